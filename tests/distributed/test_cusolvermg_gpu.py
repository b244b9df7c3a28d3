"""cuSOLVERMg itself on one GPU that has several places of the grid: layouts for 2, 4 and 8 GPUs with the real library."""

import numpy as np
import pytest

import lapwing as lw
from distributed.mg_child import check, check_failures, of_torch, on_host
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
        ("float64", 600, 1, 0), ("float64", 1500, 4, 1), ("complex128", 700, 2, 0), ("float32", 2100, 8, 0),
        ("complex64", 515, 8, 1), ("float64", 5, 8, 0), ("float32", 1, 2, 1),
    ],
)  # fmt: skip
def test_answers(dtype, n, places, axis):
    import torch

    device = torch.cuda.current_device()
    check(of_torch(places, "cuda:0", axis), dtype, n, (places, axis), host=on_host)
    assert torch.cuda.current_device() == device


@pytest.mark.parametrize("places", [1, 4])
def test_failures(places):
    check_failures(of_torch(places, "cuda:0"), 700)


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

    check(split, "complex128", 130, library, host=on_host)
    assert isinstance(lw.cholesky(split(np.eye(4))).blocks[0], kind)


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
