"""Eigenvalues of general matrices in batches on a GPU: the checks of eig_checks.py."""

import numpy as np
import pytest

import eig_checks
import lapwing as lw
from lapwing.core.native import native
from solve_checks import DTYPES, random

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(native is None, reason="the native core was not built"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture
def run():
    from test_qr_cuda import runner

    return runner("batched")


# around the limits of a thread, a warp, the rows of a lane and shared memory
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 64, 65, 84, 96, 113, 120, 128])
def test_sizes(run, dtype, n):
    eig_checks.check_random(run, dtype, n, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 8, 16, 33, 64, 100, 128])
def test_kinds_of_matrices(run, dtype, n):
    eig_checks.check_kinds(run, dtype, n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many(run, dtype):
    for n, batch in ((3, 5000), (8, 5000), (20, 1000), (40, 400)):
        eig_checks.check_eig(run, random(np.random.default_rng(n), dtype, batch, n, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 16, 40, 128])
def test_not_finite(run, dtype, n):
    eig_checks.check_not_finite(run, dtype, n)
    eig_checks.check_in_place(run, dtype, n)


def test_a_larger_matrix_is_refused(run):
    with pytest.raises(RuntimeError, match="n up to 128"):
        eig_checks.check_schur(run, np.zeros((1, 129, 129), "float32"))


@pytest.mark.parametrize("library", ["torch", "jax", "cupy"])
@pytest.mark.parametrize("n", [3, 40])
def test_frameworks_reach_the_kernel(library, n):
    a = random(np.random.default_rng(n), "float32", 2, n, n)
    if library == "torch":
        there = torch.as_tensor(a, device="cuda")
    elif library == "jax":
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU")
        there = jax.numpy.asarray(a)
    else:
        there = pytest.importorskip("cupy").asarray(a)
    for function in (lw.eig, lw.eigvals, lw.schur):
        assert lw.explain(function, there).engine == "batched"
    to_numpy = {"torch": lambda x: x.cpu().numpy(), "jax": np.asarray, "cupy": lambda x: x.get()}[library]
    w, v = (to_numpy(x).astype(complex) for x in lw.eig(there))
    eig_checks.close(eig_checks.norm(a @ v - v * w[:, None]) / eig_checks.norm(a), n, "float32")
    t, z = (to_numpy(x).astype(float) for x in lw.schur(there))
    eig_checks.close(eig_checks.norm(z @ t @ eig_checks.adjoint(z) - a) / eig_checks.norm(a), n, "float32")
