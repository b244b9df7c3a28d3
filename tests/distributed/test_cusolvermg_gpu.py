"""cuSOLVERMg itself on one GPU that has several places of the grid: layouts for 2, 4 and 8 GPUs with the real library."""

import os

import numpy as np
import pytest

import lapwing as lw
from distributed.mg_child import backward, check, check_failures, close, of_torch, on_host, random
from lapwing.distributed import DeviceMatrix
from lapwing.distributed.backends.cusolvermg.library import missing

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def need_cusolvermg():
    reason = missing()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("dtype", "n", "places", "axis"),
    [
        ("float64", 300, 1, 0), ("float64", 270, 4, 1), ("complex128", 200, 2, 0), ("complex64", 130, 8, 1),
        ("float64", 5, 8, 0), ("float32", 1, 2, 1),
    ],
)  # fmt: skip
def test_answers(dtype, n, places, axis):
    import torch

    device = torch.cuda.current_device()
    check(of_torch(places, "cuda:0", axis), dtype, n, (places, axis), host=on_host)
    assert torch.cuda.current_device() == device


@pytest.mark.parametrize("places", [3, 8])
def test_many_right_hand_sides(places):
    """More than 2048 at once are wrong in the library (CUDA 13.0): they are solved in parts."""
    n = 2100
    x = random("float32", n, n)
    a, limit = x @ x.T + n * np.eye(n, dtype="float32"), 10 * n * np.finfo("float32").eps
    split = of_torch(places, "cuda:0")
    inverse = lw.inv(split(a), assume="pos").gather()
    close(a @ inverse, np.eye(n), limit, "inv")
    assert (inverse == inverse.T).all()
    close(a @ lw.solve(split(a), x, assume="pos"), x, limit, "solve")
    backward(a, lw.inv(split(a)).gather(), np.eye(n), limit)


@pytest.mark.parametrize("places", [1, 4])
def test_failures(places):
    check_failures(of_torch(places, "cuda:0"), 300)


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_other_libraries(library):
    module = pytest.importorskip(library)
    if library == "jax":
        module.config.update("jax_enable_x64", True)
        put = lambda x: module.device_put(x, module.devices("gpu")[0])  # noqa: E731
    else:
        put = module.asarray
    kind = type(put(np.eye(2)))

    def split(a):
        return DeviceMatrix.from_blocks([put(np.ascontiguousarray(part)) for part in np.array_split(a, 3, 1)], axis=1)

    check(split, "complex128", 30, library, host=on_host)
    assert isinstance(lw.cholesky(split(np.eye(4))).blocks[0], kind)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes use memory of the GPU meanwhile")
def test_many_calls_take_no_memory():
    """One handle serves all calls."""
    import torch

    a = np.random.default_rng(3).standard_normal((256, 256))
    held = of_torch(2, "cuda:0")(a + a.T)
    expected = np.linalg.eigvalsh(a + a.T)
    lw.eigh(held)
    free = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        w, _ = lw.eigh(held)
        assert np.abs(w - expected).max() <= 1e-11
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20
