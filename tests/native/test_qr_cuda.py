"""QR and least squares of batches on a GPU, panel by panel and one after the other: the checks of qr_checks.py."""

import numpy as np
import pytest

from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS, native
from qr_checks import (
    KINDS,
    check_columns_of_any_size,
    check_columns_with_nan,
    check_lstsq,
    check_not_finite,
    check_qr,
    check_without_q,
    matrices,
)
from solve_checks import DTYPES, random

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(native is None, reason="the native core was not built"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def runner(engine):
    def run(op, flags, sizes, *arrays):
        there = {id(x): torch.from_numpy(x.copy()).cuda() for x in arrays}
        blocks = []

        def scratch(size):
            blocks.append(torch.full((size,), 255, dtype=torch.uint8, device="cuda"))
            return blocks[-1].data_ptr()

        call = (OPS[op], DTYPE_CODE[arrays[0].dtype.name], CUDA, 0, ENGINES[engine], 0, flags, sizes)
        stream = torch.cuda.current_stream().cuda_stream
        native.run(*call, stream, scratch, *[there[id(x)].data_ptr() for x in arrays])
        torch.cuda.synchronize()
        assert sum(block.numel() for block in blocks) <= native.scratch_bytes(*call)
        for x in arrays:
            x[...] = there[id(x)].cpu().numpy()

    return run


run = runner("batched")
# sizes beside the limits of a panel, of a block of panels and of shared memory
SHAPES = [
    (33, 33, 9), (48, 48, 5), (100, 100, 3), (128, 128, 3), (176, 176, 2), (256, 256, 2), (352, 352, 2), (512, 512, 2),
    (1000, 1000, 1), (2048, 2048, 1), (300, 40, 3), (1100, 100, 2), (4000, 20, 2), (40, 300, 2), (257, 1, 2), (1, 300, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, batch", SHAPES)
def test_qr(dtype, m, n, batch):
    if m > 2900 and dtype == "complex128":
        pytest.skip("more rows than shared memory has room for")
    a = matrices("random", dtype, batch, m, n)
    if max(m, n) <= 1100:
        check_qr(run, a)
        check_without_q(run, a)
        return
    # NumPy's complex products of this size take long: torch multiplies
    q, r = np.full((batch, m, min(m, n)), 7, dtype), np.full((batch, min(m, n), n), 7, dtype)
    run("qr", 0, (batch, m, n, min(m, n)), a, q, r)
    whole = torch.complex128 if dtype.startswith("c") else torch.float64
    q, r, a = (torch.from_numpy(x).cuda().to(whole) for x in (q, r, a))
    limit = 10 * max(m, n) * np.finfo(dtype).eps
    assert float((q @ r - a).norm() / a.norm()) <= limit
    assert float((q.mH @ q - torch.eye(min(m, n), device="cuda")).norm()) <= limit * batch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_matrices(dtype, kind):
    for m, n in ((100, 100), (300, 150), (352, 352)):
        check_qr(run, matrices(kind, dtype, 2, m, n))
        check_without_q(run, matrices(kind, dtype, 2, m, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_finite(dtype):
    check_not_finite(run, dtype, 100, 60)
    check_not_finite(run, dtype, 400, 300)
    check_not_finite(runner("cusolver"), dtype, 100, 60)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["batched", "cusolver"])
@pytest.mark.parametrize(
    "m, n, k",
    [
        (1, 1, 1),
        (4, 4, 1),
        (8, 3, 2),
        (3, 8, 1),
        (32, 32, 1),
        (132, 33, 1),
        (140, 35, 2),
        (192, 48, 1),
        (256, 64, 1),
        (500, 7, 1),
        (400, 100, 1),
        (100, 100, 3),
        (512, 128, 40),
        (60, 200, 2),
        (1024, 256, 1),
    ],
    ids=str,
)
def test_lstsq(dtype, engine, m, n, k):
    a = matrices("random", dtype, 3, m, n)
    a[..., : min(m, n), : min(m, n)] += 3 * np.eye(min(m, n))
    check_lstsq(runner(engine), a, random(np.random.default_rng(m), dtype, 3, m, k))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["batched", "cusolver"])
@pytest.mark.parametrize("kind", ["deficient", "zero columns", "tiny"])
def test_lstsq_of_any_rank(dtype, engine, kind):
    """Matrices of full rank beside others: each is decided for itself."""
    for m, n in ((120, 40), (40, 120)):
        a = matrices(kind, dtype, 4, m, n)
        a[2] = matrices("random", dtype, 1, m, n)[0]
        check_lstsq(runner(engine), a, random(np.random.default_rng(m), dtype, 4, m, 2))


def test_qr_in_a_graph():
    """Panels and products are captured and answer as they do outside."""
    import lapwing as lw

    a = torch.randn(3, 300, 300, device="cuda")
    expected = lw.qr(a, engine="batched")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = lw.qr(a, engine="batched")
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found.Q, expected.Q)
    assert torch.equal(found.R, expected.R)


@pytest.mark.parametrize("engine", ["batched", "cusolver"])
def test_right_hand_sides_of_any_size(engine):
    check_columns_of_any_size(runner(engine))
    for dtype in DTYPES if engine == "batched" else ():
        check_columns_with_nan(runner(engine), dtype)


def test_lstsq_from_torch():
    import lapwing as lw

    a, b = (
        torch.randn(5, 200, 50, dtype=torch.float64, device="cuda"),
        torch.randn(5, 200, 2, dtype=torch.float64, device="cuda"),
    )
    a[3, :, 4] = a[3, :, 5]
    for engine in ("auto", "batched", "cusolver"):
        found = lw.lstsq(a, b, engine=engine)
        expected = lw.lstsq(a.cpu(), b.cpu())
        assert found.rank.tolist() == [50, 50, 50, 49, 50]
        assert torch.allclose(found.x.cpu(), expected.x, atol=1e-12)
        assert torch.allclose(found.residuals.cpu(), expected.residuals)
        assert torch.allclose(found.singular_values.cpu(), expected.singular_values)
