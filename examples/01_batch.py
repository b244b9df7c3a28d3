"""Factor ten thousand small covariances at once, and find the ones that are not positive definite."""

import time

import numpy as np

import lapwing as lw

rng = np.random.default_rng(0)
x = rng.standard_normal((10_000, 16, 32))
covariances = x @ x.swapaxes(-1, -2) / 32
covariances[1234, 3, 3] = -1.0

start = time.perf_counter()
factors, info = lw.cholesky_ex(covariances)
took = time.perf_counter() - start

(bad,) = np.nonzero(info)
print(f"{len(covariances)} factors in {took * 1e3:.1f} ms; not positive definite: {bad.tolist()}")

# the log-determinant of every matrix that could be factored
diagonal = np.diagonal(factors, axis1=-2, axis2=-1)
logdet = 2 * np.log(diagonal).sum(-1)
print(f"mean log-determinant of the others: {np.nanmean(logdet):.3f}")
