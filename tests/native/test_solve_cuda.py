"""Engine batched on the GPU, called as the frameworks call it: every operation on small matrices, against NumPy in double."""

import numpy as np
import pytest

from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS, native
from lapwing.core.problem import ADJOINT, UPPER

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(native is None, reason="the native core was not built"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

UNIT, POS = 8, 16  # of Flag in native/frame.h
BATCH = 9
# a thread per matrix, several matrices in a warp, one in a warp; few right-hand sides and many; in parts
CASES = [
    ("float32", 4, 1), ("float32", 32, 1), ("float32", 21, 40), ("float64", 5, 9), ("float64", 16, 3), ("float64", 32, 1),
    ("complex64", 9, 6), ("complex64", 24, 1), ("complex128", 1, 1), ("complex128", 6, 2), ("complex128", 18, 5),
    # a block per matrix: with few right-hand sides and many, panels factored ahead or not, no room for a chunk
    ("float32", 33, 1), ("float64", 48, 3), ("complex64", 64, 9), ("float32", 100, 40), ("complex128", 100, 2),
    ("float64", 128, 1), ("complex64", 150, 1), ("float64", 150, 6), ("float32", 200, 5), ("float32", 234, 5),
    ("float64", 96, 16), ("float64", 176, 2), ("complex64", 128, 3), ("float64", 192, 1), ("complex128", 64, 2),
    # by blocks of columns: one right-hand side, few, many; panels with one and two rows to a thread
    ("float32", 235, 1), ("complex128", 119, 5), ("float64", 256, 64), ("complex64", 352, 3), ("float32", 512, 5),
    ("complex128", 512, 1), ("float32", 1000, 64), ("float64", 1000, 1),
]  # fmt: skip


def run(op, flags, sizes, inputs, *outputs):
    """Outputs as (shape, dtype); they come back as NumPy arrays."""
    given = [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in inputs]
    made = [torch.from_numpy(np.full(shape, 7, dtype)).cuda() for shape, dtype in outputs]
    places = [x.data_ptr() for x in (*given, *made)]
    stream = torch.cuda.current_stream().cuda_stream
    dtype = DTYPE_CODE[inputs[0].dtype.name]
    native.run(OPS[op], dtype, CUDA, 0, ENGINES["batched"], 0, flags, sizes, stream, Scratch(), *places)
    return [x.cpu().numpy() for x in made]


class Scratch:
    """Device memory for one call."""

    def __init__(self):
        self.blocks = []

    def __call__(self, size):
        self.blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return self.blocks[-1].data_ptr()


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def wide(a):
    return a.astype(np.complex128 if np.iscomplexobj(a) else np.float64)


def norm(a):
    return np.linalg.norm(a, axis=(-2, -1))


def random(rng, dtype, *shape):
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if dtype[0] == "c" else a).astype(dtype)


def matrices(rng, dtype, n, condition, hermitian=False):
    """With determinants of modulus one, which every order can write down. The first stands in the last place too."""
    u = np.linalg.qr(wide(random(rng, dtype, BATCH, n, n)))[0]
    v = u if hermitian else np.linalg.qr(wide(random(rng, dtype, BATCH, n, n)))[0]
    values = np.geomspace(np.sqrt(condition), 1 / np.sqrt(condition), n, axis=-1)  # of each matrix, where there are as many
    a = (u * np.reshape(values, (-1, 1, n))) @ adjoint(v) if n > 1 else np.ones((BATCH, 1, 1), u.dtype)
    a = ((a + adjoint(a)) / 2 if hermitian else a).astype(dtype)
    a[-1] = a[0]
    return a


def poisoned(a, upper):
    """Only the named triangle is left, and the real parts of the diagonal."""
    other = np.tril(np.ones(a.shape[-2:], bool), -1)
    a = np.where(other if upper else other.T, np.nan, a).astype(a.dtype)
    if np.iscomplexobj(a):
        i = np.arange(a.shape[-1])
        a[:, i, i] += 3j
    return a


def close(error, n, dtype):
    assert np.max(error) <= 10 * n * np.finfo(dtype).eps


def solved(a, x, b):
    a, x, b = wide(a), wide(x), wide(b)
    return norm(b - a @ x) / (norm(a) * norm(x) + norm(b))


def inverted(a, x):
    a, x = wide(a), wide(x)
    return norm(a @ x - np.eye(a.shape[-1])) / (norm(a) * norm(x))


def limit(dtype, hermitian):
    """The worst condition that must still work."""
    single = np.finfo(dtype).eps > 1e-10
    return (1e4 if single else 1e13) if hermitian else (1e6 if single else 1e15)


@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_positive_definite(dtype, n, k, upper):
    rng = np.random.default_rng(n)
    for condition in (1e2, limit(dtype, True)):
        clean, b = matrices(rng, dtype, n, condition, hermitian=True), random(rng, dtype, BATCH, n, k)
        a, flags = poisoned(clean, upper), POS | upper
        b[-1] = b[0]
        z = 2 * n // 3
        a[1, z, z] = -1
        a[2, 0, 0] = np.inf
        a[3, 0 if upper else n - 1, n - 1 if upper else 0] = np.nan
        want = [0, z + 1, 1, n, *[0] * (BATCH - 4)]
        good = np.array(want) == 0
        x, info = run("solve", flags, (BATCH, n, k), (a, b), (b.shape, dtype), (BATCH, np.int32))
        assert info.tolist() == want
        assert np.isnan(x[~good]).all()
        assert np.array_equal(x[0], x[-1])
        close(solved(clean[good], x[good], b[good]), n, dtype)
        x, info = run("inverse", flags, (BATCH, n), (a,), (a.shape, dtype), (BATCH, np.int32))
        assert info.tolist() == want
        assert np.isnan(x[~good]).all()
        assert np.array_equal(x[good], adjoint(x[good]))
        close(inverted(clean[good], x[good]), n, dtype)
        real = np.finfo(dtype).dtype
        sign, logabs, info = run("slogdet", flags, (BATCH, n), (a,), (BATCH, dtype), (BATCH, real), (BATCH, np.int32))
        assert info.tolist() == want
        assert (sign[good] == 1).all()
        assert np.isnan(logabs[~good]).all()
        det, info = run("det", flags, (BATCH, n), (a,), (BATCH, dtype), (BATCH, np.int32))
        assert info.tolist() == want and np.isnan(det[~good]).all()
        if condition == 1e2:
            close(np.abs(det[good] / np.linalg.det(wide(clean[good])) - 1), n * condition, dtype)
            expected = np.linalg.slogdet(wide(clean[good]))[1]
            close(np.abs(logabs[good] - expected) / np.maximum(1, np.abs(expected)), n * condition, dtype)


@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_general(dtype, n, k):
    rng = np.random.default_rng(n)
    real = np.finfo(dtype).dtype
    for condition in (1e2, limit(dtype, False)):
        clean, b = matrices(rng, dtype, n, condition), random(rng, dtype, BATCH, n, k)
        b[-1] = b[0]
        a = clean.copy()
        z = 2 * n // 3
        a[1] = 0
        a[2, :, z] = 0
        a[3, n - 1, 0] = np.inf
        a[4, 0, n - 1] = np.nan
        bad = [False, True, True, True, True, *[False] * (BATCH - 5)]
        good = ~np.array(bad)
        x, info = run("solve", 0, (BATCH, n, k), (a, b), (b.shape, dtype), (BATCH, np.int32))
        assert (info != 0).tolist() == bad
        assert info[1:4].tolist() == [1, z + 1, 1]
        assert np.isnan(x[~good]).all()
        assert np.array_equal(x[0], x[-1])
        close(solved(clean[good], x[good], b[good]), n, dtype)
        x, info = run("inverse", 0, (BATCH, n), (a,), (a.shape, dtype), (BATCH, np.int32))
        assert (info != 0).tolist() == bad
        assert np.isnan(x[~good]).all()
        close(inverted(clean[good], x[good]), n, dtype)
        sign, logabs, info = run("slogdet", 0, (BATCH, n), (a,), (BATCH, dtype), (BATCH, real), (BATCH, np.int32))
        assert info.tolist() == [0, 0, 0, 1, 1, *[0] * (BATCH - 5)]
        assert sign[1:3].tolist() == [0, 0]
        assert logabs[1:3].tolist() == [-np.inf, -np.inf]
        assert np.isnan(logabs[3:5]).all()
        det, info = run("det", 0, (BATCH, n), (a,), (BATCH, dtype), (BATCH, np.int32))
        assert info.tolist() == [0, 0, 0, 1, 1, *[0] * (BATCH - 5)]
        assert det[1:3].tolist() == [0, 0] and np.isnan(det[3:5]).all()
        if condition == 1e2:
            close(np.abs(det[good] / np.linalg.det(wide(clean[good])) - 1), n * condition, dtype)
            expected = np.linalg.slogdet(wide(clean[good]))
            close(np.abs(sign[good] - expected[0]), n * condition, dtype)
            close(np.abs(logabs[good] - expected[1]) / np.maximum(1, np.abs(expected[1])), n * condition, dtype)
        lu, rows, info = run("lu", 0, (BATCH, n), (a,), (a.shape, dtype), ((BATCH, n), np.int32), (BATCH, np.int32))
        assert (info != 0).tolist() == bad
        assert np.isnan(lu[~good]).all()
        assert (np.sort(rows, -1) == np.arange(n)).all()
        lower, upper = np.tril(wide(lu), -1) + np.eye(n), np.triu(wide(lu))
        permuted = np.take_along_axis(wide(clean), rows[:, :, None], 1)
        close((norm(permuted - lower @ upper) / norm(wide(clean)))[good], n, dtype)
        for flags in (0, ADJOINT):
            (x,) = run("lu_solve", flags, (BATCH, n, k), (a, lu, rows, b), (b.shape, dtype))
            close(solved(adjoint(clean[good]) if flags else clean[good], x[good], b[good]), n, dtype)


@pytest.mark.parametrize("upper", [0, UPPER])
@pytest.mark.parametrize(("dtype", "n", "k"), CASES)
def test_triangles(dtype, n, k, upper):
    rng = np.random.default_rng(n)
    b = random(rng, dtype, BATCH, n, k)
    i = np.arange(n)
    full = (random(rng, dtype, BATCH, n, n) / np.sqrt(n) + 2 * np.eye(n)).astype(dtype)
    full = np.triu(full) if upper else np.tril(full)
    other = np.where(np.tril(np.ones((n, n), bool), -1) == bool(upper), np.nan, 0) if n > 1 else np.zeros((1, 1))
    other[i, i] = 0
    for unit in (0, UNIT):
        t, whole = (full + other).astype(dtype), full.copy()
        want = np.zeros(BATCH, int)
        if unit:
            t[:, i, i], whole[:, i, i] = np.nan, 1
        else:
            t[1, n // 2, n // 2], t[2, n - 1, n - 1] = 0, np.inf
            want[1:3] = n // 2 + 1, n
        good = want == 0
        for flags in (0, ADJOINT):
            x, info = run("triangular", upper | unit | flags, (BATCH, n, k), (t, b), (b.shape, dtype), (BATCH, np.int32))
            assert info.tolist() == want.tolist()
            assert np.isnan(x[~good]).all()
            close(solved(adjoint(whole[good]) if flags else whole[good], x[good], b[good]), n, dtype)
    factor = np.linalg.cholesky(wide(matrices(rng, dtype, n, 1e2, hermitian=True)))
    factor = (adjoint(factor) if upper else factor).astype(dtype)
    (x,) = run("cholesky_solve", upper, (BATCH, n, k), (factor, (factor + other).astype(dtype), b), (b.shape, dtype))
    close(solved(adjoint(wide(factor)) @ wide(factor) if upper else wide(factor) @ adjoint(wide(factor)), x, b), n, dtype)


@pytest.mark.parametrize("n", [20, 48, 100, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conditions_side_by_side(dtype, n):
    """Every matrix is solved as well as alone, whatever lies beside it."""
    rng = np.random.default_rng(n)
    for flags in (0, POS):
        a = matrices(rng, dtype, n, np.geomspace(1, limit(dtype, flags), BATCH), hermitian=bool(flags))
        b = random(rng, dtype, BATCH, n, 2)
        x, info = run("solve", flags, (BATCH, n, 2), (a, b), (b.shape, dtype), (BATCH, np.int32))
        y, info_too = run("inverse", flags, (BATCH, n), (a,), (a.shape, dtype), (BATCH, np.int32))
        assert not info.any() and not info_too.any()
        close(solved(a, x, b), n, dtype)
        close(inverted(a, y), n, dtype)


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 3), (3, 8), (16, 16), (32, 20), (12, 70)])
@pytest.mark.parametrize("dtype", list(DTYPE_CODE))
def test_qr(dtype, m, n, scale):
    rng = np.random.default_rng(m)
    a = (random(rng, dtype, BATCH, m, n) * scale).astype(dtype)
    a[1, :, 0] = 0
    a[2] = 0
    a[3, m - 1, n - 1] = np.nan
    a[-1] = a[0]
    good = np.arange(BATCH) != 3
    for c in {min(m, n), m}:
        q, r = run("qr", 0, (BATCH, m, n, c), (a,), ((BATCH, m, c), dtype), ((BATCH, c, n), dtype))
        assert np.isnan(q[3]).all()
        assert np.isnan(r[3]).all()
        assert np.array_equal(q[0], q[-1])
        assert (np.tril(r[good], -1) == 0).all()
        close(norm(wide(a) - wide(q) @ wide(r))[good] / np.maximum(norm(wide(a)), 1e-300)[good], max(m, n), dtype)
        close(norm(adjoint(wide(q)) @ wide(q) - np.eye(c))[good], max(m, n), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("m, n", [(1, 1), (2, 2), (3, 3), (5, 5), (20, 4), (7, 16), (31, 31), (32, 32)])
def test_svd(dtype, m, n):
    """Of any scale; zero, of rank one, with repeated values, with a zero column, not finite; graded."""
    rng = np.random.default_rng(m)
    k, small = min(m, n), 1e-30 if dtype in ("float32", "complex64") else 1e-300
    plain = random(rng, dtype, BATCH, m, n)
    plain[1], plain[2], plain[3, :, 0], plain[5] = 0, np.eye(m, n), 0, plain[5, :, :1] @ plain[5, :1]
    plain[4, m - 1, n - 1] = np.nan
    plain[-1] = plain[0]
    good = np.arange(BATCH) != 4
    for a in (plain, plain * small, plain / small, plain * np.geomspace(1, 1e-12, n)):
        a = a.astype(dtype)
        shapes = ((BATCH, m, k), dtype), ((BATCH, k), a.real.dtype), ((BATCH, k, n), dtype), (BATCH, np.int32)
        u, s, vh, info = run("svd", 0, (BATCH, m, n, 0), (a,), *shapes)
        values, _ = run("svdvals", 0, (BATCH, m, n), (a,), shapes[1], shapes[3])
        assert np.flatnonzero(info).tolist() == [4]
        assert all(np.isnan(x[4]).all() for x in (u, s, vh))
        assert all(x[0].tobytes() == x[-1].tobytes() for x in (u, s, vh))
        assert np.array_equal(values, s, equal_nan=True)
        assert (np.diff(s[good], axis=-1) <= 0).all()
        u, s, vh, a = (wide(x[good]) for x in (u, s, vh, a))
        size = abs(a).max()  # squares of what it is divided by stay in range
        close(norm(a / size - (u * (s / size)[:, None, :]) @ vh) / np.maximum(norm(a / size), 1e-300), max(m, n), dtype)
        close(norm(adjoint(u) @ u - np.eye(k)), max(m, n), dtype)
        close(norm(vh @ adjoint(vh) - np.eye(k)), max(m, n), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [2, 4, 12, 32, 70, 130, 240])
def test_subnormal_pivot(dtype, n):
    """One over such a pivot is too large a number, but it is not zero: what can be written down is found."""
    rng = np.random.default_rng(n)
    tiny = 2.0**-133 if dtype in ("float32", "complex64") else 2.0**-1030
    a = np.triu(random(rng, dtype, BATCH, n, n)) / n + np.eye(n, dtype=dtype)
    a[2, -1] = a[2, :, -1] = 0
    a[2, -1, -1] = tiny * (1j if dtype[0] == "c" else 1)
    rows = np.arange(n)[::-1].astype(np.int32)
    for k in (1, 9):
        b = random(rng, dtype, BATCH, n, k)
        b[2, -1] = a[2, -1, -1] * np.arange(k)
        to, info = ((BATCH, n, k), dtype), (BATCH, np.int32)
        general = run("solve", 0, (BATCH, n, k), (a[:, rows], b[:, rows]), to, info)
        triangle = run("triangular", UPPER, (BATCH, n, k), (a, b), to, info)
        order = np.broadcast_to(rows, (BATCH, n))
        factored = run("lu_solve", 0, (BATCH, n, k), (a, a, order, b[:, rows]), to)
        for x, *status in (general, triangle, factored):
            assert not np.any(status)
            close(solved(a, x, b), n, dtype)
            assert np.allclose(x[2, -1], np.arange(k), rtol=10 * np.finfo(dtype).eps)
        b[2, -1] = 0
        diagonal = np.triu(np.tril(a))
        lower = adjoint(a - diagonal + abs(diagonal)).astype(dtype)  # the diagonal of a Cholesky factor is real
        (x,) = run("cholesky_solve", 0, (BATCH, n, k), (a, lower, b), to)
        close(solved(wide(lower) @ adjoint(wide(lower)), x, b), n, dtype)
        a_zero = a.copy()
        a_zero[2, -1, -1] = 0
        assert run("solve", 0, (BATCH, n, k), (a_zero, b), to, info)[1].tolist() == [0, 0, n, *[0] * (BATCH - 3)]


def test_a_result_may_take_the_place_of_its_input():
    rng = np.random.default_rng(1)
    for n in (4, 24, 70, 260):
        a = torch.from_numpy(matrices(rng, "float64", n, 1e2)).cuda()
        b = torch.from_numpy(random(rng, "float64", BATCH, n, 6)).cuda()
        info = torch.empty(BATCH, dtype=torch.int32, device="cuda")
        x, y, work = b.clone(), a.clone(), Scratch()
        head = (DTYPE_CODE["float64"], CUDA, 0, ENGINES["batched"], 0, 0)
        stream = torch.cuda.current_stream().cuda_stream
        native.run(OPS["solve"], *head, (BATCH, n, 6), stream, work, a.data_ptr(), x.data_ptr(), x.data_ptr(), info.data_ptr())
        native.run(OPS["inverse"], *head, (BATCH, n), stream, work, y.data_ptr(), y.data_ptr(), info.data_ptr())
        close(solved(a.cpu().numpy(), x.cpu().numpy(), b.cpu().numpy()), n, "float64")
        close(inverted(a.cpu().numpy(), y.cpu().numpy()), n, "float64")


@pytest.mark.parametrize(("n", "batch"), [(16, 1000), (300, 5)])
def test_a_graph_holds_it(n, batch):
    a = torch.randn(batch, n, n, dtype=torch.float64, device="cuda")
    b = torch.randn(batch, n, 1, dtype=torch.float64, device="cuda")
    x, info, work = torch.empty_like(b), torch.empty(batch, dtype=torch.int32, device="cuda"), Scratch()

    def solve():
        places = [t.data_ptr() for t in (a, b, x, info)]
        stream = torch.cuda.current_stream().cuda_stream
        head = (OPS["solve"], DTYPE_CODE["float64"], CUDA, 0, ENGINES["batched"], 0, 0)
        native.run(*head, (batch, n, 1), stream, work, *places)

    solve()  # the BLAS library starts, which no graph can hold
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solve()
    a.normal_()
    graph.replay()
    close(solved(*(t.cpu().numpy() for t in (a, x, b))), n, "float64")


def on_device(op, flags, sizes, *arrays):
    dtype = DTYPE_CODE[str(arrays[0].dtype).removeprefix("torch.")]
    stream = torch.cuda.current_stream().cuda_stream
    head = (OPS[op], dtype, CUDA, 0, ENGINES["batched"], 0, flags)
    native.run(*head, sizes, stream, Scratch(), *[t.data_ptr() for t in arrays])


def residual(a, x, b):
    """The worst of the batch, in units of n eps."""
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    size = a.to(wide).norm(dim=(1, 2)) * x.to(wide).norm(dim=(1, 2)) + b.to(wide).norm(dim=(1, 2))
    wrong = (a.to(wide) @ x.to(wide) - b.to(wide)).norm(dim=(1, 2)) / size
    return float(wrong.max()) / (a.shape[-1] * torch.finfo(a.dtype).eps)


@pytest.mark.parametrize(("dtype", "n", "batch", "k"), [
    ("float32", 2048, 3, 1), ("float64", 2048, 3, 2048), ("complex64", 1500, 3, 5), ("complex128", 2048, 2, 3),
    ("float32", 3000, 2, 64), ("complex128", 1024, 260, 1),  # more than one part of the batch
])  # fmt: skip
def test_large(dtype, n, batch, k):
    torch.manual_seed(n)
    a = torch.randn(batch, n, n, dtype=getattr(torch, dtype), device="cuda")
    b = torch.randn(batch, n, k, dtype=a.dtype, device="cuda")
    x, info = torch.empty_like(b), torch.empty(batch, dtype=torch.int32, device="cuda")
    a[1, :, n // 2] = 0
    on_device("solve", 0, (batch, n, k), a, b, x, info)
    assert info.nonzero().flatten().tolist() == [1] and int(info[1]) == n // 2 + 1
    assert bool(x[1].isnan().all())
    good = torch.arange(batch, device="cuda") != 1
    assert residual(a[good], x[good], b[good]) <= 10
    if batch > 3:
        return
    y, eye = torch.empty_like(a), torch.eye(n, dtype=a.dtype, device="cuda").expand_as(a)
    on_device("inverse", 0, (batch, n), a, y, info)
    assert info.nonzero().flatten().tolist() == [1] and bool(y[1].isnan().all())
    assert residual(a[good], y[good], eye[good]) <= 10
    triangle = (torch.tril(a) / n + torch.eye(n, dtype=a.dtype, device="cuda")).contiguous()
    for flags in (0, ADJOINT):
        on_device("triangular", flags, (batch, n, k), triangle, b, x, info)
        assert not info.any()
        assert residual(triangle.mH if flags else triangle, x, b) <= 10
    p = (a @ a.mH / n + torch.eye(n, dtype=a.dtype, device="cuda")).contiguous()
    on_device("solve", POS, (batch, n, k), p, b, x, info)
    assert not info.any()
    assert residual(p, x, b) <= 10
    on_device("inverse", POS | UPPER, (batch, n), p, y, info)
    assert not info.any() and torch.equal(y, y.mH)
    assert residual(p, y, eye) <= 10
