"""The streamed decomposition against LAPACK's of the stored history."""

from __future__ import annotations

import numpy as np
import pytest

from insitu.cases import EPS, SIGMA, burgers, stream, with_spectrum
from lapwing.insitu.analyses.blocks import BlockSVD, NotFinite

FAST = 10.0 ** -np.arange(0.0, 12.0, 0.5)  # a smooth field: down to rounding errors
SLOW = 1.0 / np.arange(1.0, 61.0)


def reference(a, centre=False):
    return np.linalg.svd(a - a.mean(axis=0) if centre else a, full_matrices=False)


def check(made, found, a, modes, centre=False, eps=EPS, sigma_tol=None):
    """Singular values, modes, coefficients, energy and bound, all against LAPACK."""
    _, s, _ = reference(a.astype(complex if a.dtype.kind == "c" else float), centre)
    n, k = max(a.shape), len(found.sigma)
    error = np.abs(found.sigma - s[:k])
    assert error.max(initial=0) <= (1e-10 * s[0] if sigma_tol is None else sigma_tol)
    assert (s[:k] - found.sigma <= found.bounds + 10 * eps * s[0]).all()
    assert (found.bounds <= found.weyl + made.updates * made.rounding + EPS).all()
    basis = made.modes(found)[0]
    basis = np.asarray(basis).reshape(k, -1)
    assert np.abs(basis @ basis.conj().T - np.eye(k)).max(initial=0) <= 10 * np.sqrt(n) * eps
    assert found.total == pytest.approx((s**2).sum(), rel=100 * n * eps)
    assert found.energy == pytest.approx((s[:k] ** 2).sum() / (s**2).sum(), abs=100 * n * eps)
    if found.right is not None:
        centred = a - a.mean(axis=0) if centre else a
        best = np.sqrt((s[k:] ** 2).sum())
        left = np.linalg.norm(centred - (found.right * found.sigma) @ basis)
        assert left <= best * (1 + 1e-3) + 1000 * n * eps * s[0] + (0 if sigma_tol is None else 3 * sigma_tol)
    return basis


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("block", [1, 7, 32, 200])
def test_fast_spectrum(dtype, centre, block):
    a = with_spectrum(150, 333, FAST, dtype)
    if centre:
        a = a + with_spectrum(1, 333, np.ones(1), dtype, seed=4)
    made, found = stream(a, rank=10, block=block, centre=centre)
    assert len(found.sigma) == 10
    check(made, found, a, 10, centre)


def test_published_case():
    a = burgers()[:, 1:-1]
    made, found = stream(a, rank=10)
    assert found.sigma[:8] == pytest.approx(SIGMA[:8], rel=5e-9)
    _, s, vh = reference(a)
    basis = check(made, found, a, 10)
    # the small ones relative to themselves, and the modes: the plain Gram method has 3e-10 and 3e-9 here
    assert (np.abs(found.sigma - s[:10]) / s[:10]).max() < 1e-8
    assert (1 - np.abs((basis * vh[:10]).sum(axis=1))).max() < 1e-14
    assert np.cumsum(found.sigma**2)[:4] / found.total == pytest.approx([0.949730, 0.996553, 0.999639, 0.999945], abs=1e-6)


def test_mean_is_exact():
    a = 1000.0 + with_spectrum(101, 77, FAST)
    made, found = stream(a, rank=5, centre=True)
    assert np.abs(made.means()[0] - a.mean(axis=0)).max() <= 1000 * len(a) * EPS
    s = reference(a, centre=True)[1]
    # the mean is 10^6 times the fluctuations' last mode here; rounding of the data themselves allows no more
    assert np.abs(found.sigma - s[:5]).max() <= 1000 * 100 * EPS * np.sqrt(a.size)
    assert np.abs(found.right.sum(axis=0)).max() < 1e-6


def test_slow_spectrum_and_its_bound():
    a = with_spectrum(200, 500, SLOW)
    made, found = stream(a, rank=10)
    s = reference(a)[1]
    error = s[:10] - found.sigma
    assert (error >= -100 * EPS).all() and (error <= found.bounds).all()
    assert found.bounds.max() < made.weyl  # sharper than the plain sum
    assert error.max() > 1e-6  # or the test shows nothing
    assert made.total == pytest.approx(made.dropped + (made.values**2).sum(), rel=1e-12)


def test_twice_the_rank_pays():
    a = with_spectrum(200, 500, 10.0 ** -np.arange(0.0, 5.0, 0.1))
    s = reference(a)[1]
    errors = []
    for rank in (5, 10, 20):
        found = stream(a, rank=rank, block=16)[1]
        errors.append(np.abs(found.sigma[:5] - s[:5]).max())
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-4, 1e-6])
def test_rank_grows_until_tolerance_is_met(tol):
    a = with_spectrum(300, 400, 10.0 ** -np.arange(0.0, 8.0, 0.1))
    made, found = stream(a, rank=2, tol=tol)
    s = reference(a)[1]
    basis = made.modes(found)[0]
    outside = np.linalg.norm(a - a @ basis.T @ basis)
    assert outside <= tol * np.linalg.norm(a) * (1 + 1e-9)
    assert made.tolerance_met(found.sigma)
    # not many more modes than the smallest number that would do
    needed = int(np.argmax(np.sqrt(np.append(np.cumsum(s[::-1] ** 2)[::-1], 0)) <= tol * np.linalg.norm(a)))
    assert needed <= len(found.sigma) <= needed + 4


def test_tolerance_out_of_reach_is_said():
    made, found = stream(with_spectrum(100, 200, SLOW), rank=2, tol=1e-6, max_rank=8)
    assert len(found.sigma) == 8 and not made.tolerance_met(found.sigma)
    assert made.rows.capacity <= 2 * 8 + made.block  # memory stays bounded


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize(
    ("name", "rank"), [("zeros", 0), ("constant", 1), ("zeros first", 3), ("deficient", 3), ("one", 1), ("few points", 3)]
)
def test_degenerate(name, rank, centre):
    a = with_spectrum(90, 64, np.array([3.0, 2.0, 1.0]))
    if name == "zeros":
        a = np.zeros((50, 64))
    elif name == "constant":
        a = np.tile(np.linspace(1, 2, 64), (50, 1))
        rank = 0 if centre else 1
    elif name == "zeros first":
        a = np.concatenate([np.zeros((40, 64)), a])
    elif name == "one":
        a = a[:1]
        rank = 0 if centre else 1
    elif name == "few points":
        a = a[:, :3]
    made, found = stream(a, rank=8, block=16, centre=centre)
    assert len(found.sigma) == rank
    s = reference(a, centre)[1]
    assert np.abs(found.sigma - s[:rank]).max(initial=0) <= 100 * EPS * max(s[0], 1)
    basis = made.modes(found)[0]
    assert basis.shape == (rank, a.shape[1]) and np.isfinite(basis).all()
    assert np.abs(basis @ basis.T - np.eye(rank)).max(initial=0) < 100 * EPS
    assert found.right.shape == (len(a), rank)
    assert np.isfinite(found.energy) and found.energy == pytest.approx(1)


def test_single_precision_data():
    """float32 rows with a Gram matrix in double precision: as good as single precision can be, and orthogonal."""
    a = with_spectrum(200, 1000, FAST, "float32")
    made, found = stream(a, rank=6)
    eps = float(np.finfo(np.float32).eps)
    assert made.rows.data.dtype == np.float32
    check(made, found, a, 6, eps=eps, sigma_tol=20 * eps)


def test_weights_are_the_inner_product():
    a = with_spectrum(60, 128, FAST)
    w = np.linspace(0.5, 3, 128)
    made, found = stream(a, rank=6, scale=np.sqrt(w))
    s = np.linalg.svd(a * np.sqrt(w), compute_uv=False)
    assert np.abs(found.sigma - s[:6]).max() <= 1e-12
    basis = made.modes(found)[0]
    assert np.abs((basis * w) @ basis.T - np.eye(6)).max() <= 1e-13
    assert np.abs((found.right * found.sigma) @ basis - a).max() <= 1.5 * np.sqrt((s[6:] ** 2).sum())


@pytest.mark.parametrize("points", [1, 7, 8, 4095, 4096, 4097, 10007])
def test_chunks(points):
    """Rows of every length around the width of a chunk."""
    a = with_spectrum(20, points, np.ones(1)) if points == 1 else with_spectrum(20, points, np.array([2.0, 1.0]))
    made, found = stream(a, rank=2, block=6)
    assert found.sigma == pytest.approx(reference(a)[1][: len(found.sigma)], abs=1e-13)
    assert np.abs((found.right * found.sigma) @ made.modes(found)[0] - a).max() < 1e-13


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("centre", [False, True])
def test_other_libraries(library, dtype, centre):
    """The same update in torch and JAX memory, as on a GPU."""
    module = pytest.importorskip(library)
    a = with_spectrum(52, 5000, FAST, dtype) + (1 if centre else 0)  # three blocks and a part of one
    a = a.astype(dtype)
    like = module.empty(0) if library == "torch" else module.numpy.zeros(0)
    if library == "jax":
        from backends import x64

        with x64():
            # the tolerance changes the number of rows, and XLA compiles each one anew: once is enough
            made, found = stream(a, library, like, rank=5, centre=centre, tol=None if centre else 1e-3)
            modes = np.asarray(made.modes(found)[0])
    else:
        made, found = stream(a, library, like, rank=5, centre=centre, tol=1e-3)
        modes = np.asarray(made.modes(found)[0])
    eps = float(np.finfo(dtype).eps)
    s = reference(a.astype(float), centre)[1]
    assert np.abs(found.sigma - s[: len(found.sigma)]).max() <= 500 * eps * max(s[0], np.linalg.norm(a) if centre else 0)
    k = len(found.sigma)
    assert np.abs(modes @ modes.T - np.eye(k)).max() <= 1000 * eps


def test_bad_snapshots_are_left_out_and_named():
    a = with_spectrum(40, 50, FAST)
    bad = a.copy()
    bad[5, 3], bad[7, 0], bad[8, 49] = np.nan, np.inf, 1e200
    made = BlockSVD(4, block=40, centre=True)
    from lapwing.insitu.analyses.rows import Layout, make_rows

    made.open(make_rows("numpy", a, Layout.of(["a"], [(50,)], True), made.capacity, a.dtype))
    for i, x in enumerate(bad):
        made.put(100 + i, [x])
    with pytest.raises(NotFinite) as raised:
        made.update()
    assert raised.value.refused == [(105, ["a"]), (107, ["a"]), (108, [])]
    assert "step 105" in str(raised.value) and "'a'" in str(raised.value)
    good = np.delete(a, [5, 7, 8], axis=0)
    found = made.result()
    assert found.sigma == pytest.approx(reference(good, centre=True)[1][:4], abs=1e-13)
    assert made.means()[0] == pytest.approx(good.mean(axis=0), abs=1e-14)


def test_refuses_nonsense():
    for wrong in (
        {"rank": 0},
        {"rank": 2.5},
        {"rank": None},
        {"rank": 2, "tol": 0.0},
        {"rank": 2, "tol": 1.0},
        {"rank": 2, "block": 0},
    ):
        with pytest.raises(ValueError, match="POD"):
            BlockSVD(**wrong)
