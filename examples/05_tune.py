"""From a log of matrix products to a tuned library and its use: three steps on NumPy's products, in a few seconds.

On a GPU the steps are the same: ``lapwing tune record -- python serve.py`` makes the log, backend "auto" takes cuBLASLt and
Triton, and torch's own functions use the library inside ``lapwing.tune.use``. Give it minutes there, not seconds.
"""

import tempfile
from statistics import median
from time import perf_counter

import numpy as np

import lapwing as lw
from lapwing import tune

# 1. The log: the two layers of a network. "linear" is x (16, 256) times w (1024, 256) transposed.
log = tune.read("16x1024x256 f32 linear count=50", "16x256x1024 f32 linear count=50")
for call in log.calls:
    print(f"{call.count:4} x {call.gemm}")

# 2. Search, validate, compare. The folder has the results, a report with pictures, and the library.
tuned = tune.all_steps(log, tempfile.mkdtemp(prefix="tune-"), backend="cpu", budget=5, evaluations=20)
print(tuned.metrics)
print(f"report: {tuned.report}")

# 3. Use it. Where no faster kernel was found, NumPy computes the product as before.
rng = np.random.default_rng(0)
x, first, second = (rng.standard_normal(shape, "float32") for shape in ((16, 256), (1024, 256), (256, 1024)))


def network() -> np.ndarray:
    return lw.matmul(lw.matmul(x, first.T), second.T)


def microseconds(repeats: int = 50) -> float:
    times = []
    for _ in range(repeats):
        start = perf_counter()
        network()
        times.append(perf_counter() - start)
    return 1e6 * median(times)


expected, before = network(), microseconds()
with tune.use(tuned.library) as library:
    print(library)
    found, after = network(), microseconds()

error = np.abs(found - expected).max() / np.abs(expected).max()
print(f"both layers: {before:.0f} us, with the library {after:.0f} us, relative difference {error:.1e}")
assert error < 1024 * np.finfo("float32").eps
