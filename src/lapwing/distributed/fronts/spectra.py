"""Eigenvalues, singular values, QR, least squares and polar decomposition of sharded matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import ConvergenceError
from ...ops import spectrum
from ...ops.checks import check_choice, check_flag, check_matrix, check_square
from ...ops.eigh import EighResult
from ...ops.lstsq import LstsqResult, check_rcond
from ...ops.qr import QRResult
from ...ops.svd import PolarResult, SVDResult
from ..backends import elpa
from ..backends.scalapack import routines as scalapack
from ..backends.scalapack.routines import Blocks
from ..exchange import finite_triangle, keep_triangle, mirror
from ..matrix import ShardedMatrix
from .entry import Call, enter, enter_columns, leave, leave_columns

__all__ = ["eigh", "eigvalsh", "lstsq", "polar", "qr", "svd", "svdvals", "takes_elpa"]


def eigh(a: ShardedMatrix, /, *, upper: bool = False, overwrite: bool = False, **options: Any) -> EighResult:
    values, vectors = _eigh("eigh", a, upper, overwrite, True, **options)
    return EighResult(values, vectors)


def eigvalsh(a: ShardedMatrix, /, *, upper: bool = False, overwrite: bool = False, **options: Any) -> np.ndarray:
    return _eigh("eigvalsh", a, upper, overwrite, False, **options)[0]


def _eigh(
    name: str,
    a: ShardedMatrix,
    upper: bool,
    overwrite: bool,
    vectors: bool,
    *,
    b: Any = None,
    subset: slice | None = None,
    window: tuple[float, float] | None = None,
    on_fail: str = "raise",
    engine: str = "auto",
    certify: bool = False,
) -> tuple[np.ndarray, Any]:
    def check() -> None:
        check_square(name, a.shape, a.dtype.name)
        check_flag(name, "upper", upper)
        check_flag(name, "overwrite", overwrite)
        check_choice(name, "on_fail", on_fail, ("raise", "nan"))
        spectrum.part_of(name, subset, a.shape[0])
        if window is not None:
            spectrum.check_window(name, window, subset, a.shape, False)
        if b is not None:
            hint = "with the factor B = L L^H, take L^-1 A L^-H: lapwing.factor(b).l and two triangular solves"
            raise NotImplementedError(f"{name}: b= is not there for sharded matrices\nhint: {hint}")
        if engine == "elpa" and (reason := elpa.missing()):
            raise NotImplementedError(f"{name}: {reason}")
        if certify is not False:
            raise NotImplementedError(f"{name}: certify= is for iterations, and sharded matrices are solved directly")

    told = {"upper": upper, "subset": str(subset), "window": window, "on_fail": on_fail, "engine": engine}
    call = Call.agreed(name, a, check, told, engine=engine)
    n = a.shape[0]
    real = a.local.real.dtype
    if n == 0:
        return np.empty(0, real), _empty(call, (0, 0)) if vectors else None
    # the routines may not come back from NaN
    finite = finite_triangle(a.local, a.layout, call.ranks.rank, upper=upper)
    bad = call.ranks.status(0 if finite else 1)
    if window is not None and not bad:
        everything = eigvalsh(a, upper=upper, on_fail=on_fail, engine=engine)
        low, high = (np.searchsorted(everything, x, side="right") for x in window)
        values = everything[low:high]
        if not vectors or low == high:
            return values.copy(), _empty(call, (n, 0)) if vectors else None
        subset = slice(int(low), int(high))
    first, count = spectrum.part_of(name, subset, n)
    part = None if count < 0 else (first, count)
    k = n if part is None else count
    if bad and on_fail == "raise":
        raise call.raises(ConvergenceError, finite)
    if not bad:
        x = enter(call, name, upper=upper, permute=True, overwrite=overwrite)
        way = elpa if takes_elpa(engine, part, n, vectors, a.dtype.name, x.cyclic.size) else scalapack
        values, z, info = way.eigh(x, upper != call.turned, part=part, vectors=vectors)
        if info and on_fail == "raise":
            raise call.raises(ConvergenceError, True)
        if not info:
            if z is None:
                return values, None
            if call.turned and call.complex:  # vectors of A^T, which is the conjugate of A
                np.conjugate(z.local, out=z.local)
            return values, leave(call, z, a.layout.of_shape((n, k)), turned=False)
    values = np.full(k, np.nan, real)
    return values, _filled(call, (n, k), np.nan) if vectors else None


def takes_elpa(engine: str, part: tuple[int, int] | None, n: int, vectors: bool, dtype: str, ranks: int) -> bool:
    """ELPA where it is asked for; of itself only for a part from the low end, where it saved most."""
    if engine == "elpa":
        return True
    few = part is not None and part[0] == 0 and part[1] <= n // 4 and dtype in ("float64", "complex128")
    return engine == "auto" and few and vectors and ranks >= _ELPA_RANKS and not elpa.missing()


# Its published gains are at many ranks; on 2 and 4 ranks it was level with ScaLAPACK (n = 2000 and 4000, 2026-11-15).
_ELPA_RANKS = 16


def svd(a: ShardedMatrix, /, *, full_matrices: bool = False, on_fail: str = "raise", engine: str = "auto") -> SVDResult:
    def check() -> None:
        if check_flag("svd", "full_matrices", full_matrices) and a.shape[0] != a.shape[1]:
            hint = "full_matrices=False, or qr(mode='complete') of U"
            raise NotImplementedError(f"svd: full_matrices=True is not there for sharded matrices\nhint: {hint}")

    call = _agreed("svd", a, {"on_fail": on_fail, "full_matrices": full_matrices, "engine": engine}, check)
    s, u, vh = _svd(call, on_fail)
    m, n = a.shape
    left = leave(call, u, a.layout.of_shape((m, len(s))), turned=False)
    return SVDResult(left, s, leave(call, vh, a.layout.of_shape((len(s), n)), turned=False))


def svdvals(a: ShardedMatrix, /, *, on_fail: str = "raise", engine: str = "auto") -> np.ndarray:
    call = _agreed("svdvals", a, {"on_fail": on_fail, "engine": engine})
    return _svd(call, on_fail, vectors=False)[0]


def polar(a: ShardedMatrix, /, *, side: str = "right", engine: str = "auto") -> PolarResult:
    call = _agreed("polar", a, {"side": side, "engine": engine}, lambda: check_choice("polar", "side", side, ("right", "left")))
    s, w, vh = _svd(call, "raise")
    m, n = a.shape
    # U <- W V^H, and P <- V S V^H or W S W^H: one factor of the product is scaled
    u = w.like(m, n)
    scalapack.gemm(w, vh, u)
    if side == "right":
        p, scaled = vh.like(n, n), vh.like(len(s), n)
        scaled.local[...] = vh.local * s[_rows(vh)][:, None].astype(a.dtype)
        scalapack.gemm(vh, scaled, p, adjoint_a=True)
    else:
        p, scaled = w.like(m, m), w.like(m, len(s))
        scaled.local[...] = w.local * s[_columns(w)].astype(a.dtype)
        scalapack.gemm(scaled, w, p, adjoint_b=True)
    mirror(call.ranks, p.local, p.layout)
    return PolarResult(leave(call, u, turned=False), leave(call, p, a.layout.of_shape(p.shape), turned=False))


def qr(a: ShardedMatrix, /, *, mode: str = "reduced", engine: str = "auto") -> QRResult:
    call = _agreed("qr", a, {"mode": mode, "engine": engine}, lambda: check_choice("qr", "mode", mode, ("reduced", "complete")))
    m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    shapes = a.layout.of_shape((m, k)), a.layout.of_shape((k, n))
    if 0 in a.shape:
        unit = _empty(call, (m, k))
        rows, columns = unit.layout.indices(call.ranks.rank)
        unit.local[...] = rows[:, None] == columns
        return QRResult(unit, _empty(call, (k, n)))
    few = a.layout.indices(call.ranks.rank)[1] < min(m, n)
    if call.ranks.status(0 if np.isfinite(a.local[:, few]).all() else 1):
        return QRResult(_filled(call, (m, k), np.nan), _filled(call, (k, n), np.nan))
    q, r = scalapack.qr(enter(call, "qr", turned=False), mode == "complete")
    keep_triangle(r.local, r.layout, call.ranks.rank, upper=True)
    return QRResult(leave(call, q, shapes[0], turned=False), leave(call, r, shapes[1], turned=False))


def lstsq(a: ShardedMatrix, b: Any, /, *, rcond: float | None = None, engine: str = "auto") -> LstsqResult:
    call = _agreed("lstsq", a, {"rcond": rcond, "engine": engine}, lambda: check_rcond(rcond), b)
    m, n = a.shape
    k = 1 if b.ndim == 1 else b.shape[1]
    s, u, vh = _svd(call, "raise")
    limit = (rcond if rcond is not None else float(np.finfo(s.dtype).eps) * max(m, n)) * (s[0] if len(s) else 0)
    good = s > limit
    right = enter_columns(call, u, b)
    # x <- V S^+ U^H b
    y = right.like(len(s), k)
    scalapack.gemm(u, right, y, adjoint_a=True)
    scale = np.where(good, 1 / np.where(good, s, 1), 0).astype(a.dtype)
    np.multiply(y.local, scale[_rows(y)][:, None], out=y.local)
    x = right.like(n, k)
    scalapack.gemm(vh, y, x, adjoint_a=True)
    # r <- b - A x
    product = right.like(m, k)
    if 0 not in (m, n):
        again = enter(call, "svd", turned=False)
        scalapack.gemm(again, x, product)
    left = np.zeros(k, s.dtype)
    left[_columns(right)] = (np.abs(right.local - product.local) ** 2).sum(0)
    left = call.ranks.sum(left)
    rank = np.asarray(np.count_nonzero(good))
    return LstsqResult(leave_columns(call, x, b), left[0] if b.ndim == 1 else left, rank, s)


def _svd(call: Call, on_fail: str, vectors: bool = True) -> tuple[np.ndarray, Blocks, Blocks]:
    a = call.a
    assert isinstance(a, ShardedMatrix)
    m, n = a.shape
    k = min(m, n)
    finite = bool(np.isfinite(a.local).all())
    info = call.ranks.status(0 if finite else 1)
    if info and on_fail == "raise":
        raise call.raises(ConvergenceError, finite)
    x = enter(call, "svd", turned=False)
    if k == 0:
        return np.empty(0, a.local.real.dtype), x.like(m, 0), x.like(0, n)
    if not info:
        s, u, vh, info = scalapack.svd(x, vectors)
        if info and on_fail == "raise":
            raise call.raises(ConvergenceError, True)
    if info:
        s, u, vh = np.full(k, np.nan, a.local.real.dtype), x.like(m, k), x.like(k, n)
        for blocks in (u, vh):
            blocks.local[...] = _nan(call)
    return s, u, vh


def _rows(x: Blocks) -> np.ndarray:
    return x.layout.indices(x.comm.rank)[0]


def _columns(x: Blocks) -> np.ndarray:
    return x.layout.indices(x.comm.rank)[1]


def _agreed(name: str, a: ShardedMatrix, told: dict[str, Any], more: Any = None, b: Any = None) -> Call:
    def check() -> None:
        check_matrix(name, a.shape, a.dtype.name)
        check_choice(name, "on_fail", told.get("on_fail", "raise"), ("raise", "nan"))
        if more is not None:
            more()

    return Call.agreed(name, a, check, told, b, told["engine"])


def _nan(call: Call) -> Any:
    return complex(np.nan, np.nan) if call.complex else np.nan


def _filled(call: Call, shape: tuple[int, int], value: float) -> ShardedMatrix:
    layout = call.a.layout.of_shape(shape)
    fill = _nan(call) if np.isnan(value) else value
    return ShardedMatrix(np.full(layout.local_shape(call.ranks.rank), fill, call.a.dtype), layout, call.ranks)


def _empty(call: Call, shape: tuple[int, int]) -> ShardedMatrix:
    return _filled(call, shape, 0)
