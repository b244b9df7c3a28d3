"""Eigenvalues, singular values, QR, least squares and polar decomposition by ScaLAPACK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ....core.errors import ConvergenceError
from ...exchange import finite_triangle, keep_triangle, mirror
from ..protocol import Part, nan_of
from . import routines as scalapack
from .moves import Call, enter, enter_columns, leave, leave_columns
from .routines import Blocks


def eigh(call: Call, b: None, solver: Callable[..., Any] = scalapack.eigh) -> tuple[Any, ...]:
    """Eigenvalues, and for "eigh" vectors; ``solver`` works on the blocks."""
    request, a = call.request, call.a
    n, real, vectors = a.shape[0], np.empty(0, call.dtype).real.dtype, request.operation == "eigh"

    def results(values: np.ndarray, make_vectors: Callable[[], Part]) -> tuple[Any, ...]:
        return (values, make_vectors()) if vectors else (values,)

    if n == 0:
        return results(np.empty(0, real), lambda: _filled(call, (0, 0), 0))
    # with NaN the routines might never end
    finite = finite_triangle(a.local, a.layout, call.ranks.rank, upper=request.upper)
    bad = call.ranks.status(0 if finite else 1)
    part = request.part
    if request.window is not None and not bad:
        alone = replace(request, operation="eigvalsh", window=None, overwrite=False)
        (everything,) = eigh(replace(call, request=alone), None, solver)
        low, high = (int(np.searchsorted(everything, x, side="right")) for x in request.window)
        if not vectors or low == high:
            return results(everything[low:high].copy(), lambda: _filled(call, (n, 0), 0))
        part = low, high - low
    k = n if part is None else part[1]
    if bad and request.on_fail == "raise":
        raise call.error(ConvergenceError, finite)
    if not bad:
        x = enter(call, request.operation, upper=request.upper, permute=True, overwrite=request.overwrite)
        values, z, info = solver(x, request.upper != call.turned, part=part, vectors=vectors)
        if info and request.on_fail == "raise":
            raise call.error(ConvergenceError, True)
        if not info:
            if call.turned and call.complex and vectors:  # vectors of A^T, which is the conjugate of A
                np.conjugate(z.local, out=z.local)
            return results(values, lambda: leave(call, z, a.of_shape((n, k)), turned=False))
    return results(np.full(k, np.nan, real), lambda: _filled(call, (n, k), nan_of(call.dtype)))


def svd(call: Call, b: None) -> tuple[Any, ...]:
    s, u, vh = _svd(call)
    a, (m, n) = call.a, call.a.shape
    left = leave(call, u, a.of_shape((m, len(s))), turned=False)
    return left, s, leave(call, vh, a.of_shape((len(s), n)), turned=False)


def svdvals(call: Call, b: None) -> tuple[np.ndarray]:
    return (_svd(call, vectors=False)[0],)


def polar(call: Call, b: None) -> tuple[Part, Part]:
    s, w, vh = _svd(call)
    a, (m, n) = call.a, call.a.shape
    # U <- W V^H, and P <- V S V^H or W S W^H: one factor of the product is scaled
    u = w.like(m, n)
    scalapack.gemm(w, vh, u)
    if call.request.side == "right":
        p, scaled = vh.like(n, n), vh.like(len(s), n)
        scaled.local[...] = vh.local * s[_rows(vh)][:, None].astype(call.dtype)
        scalapack.gemm(vh, scaled, p, adjoint_a=True)
    else:
        p, scaled = w.like(m, m), w.like(m, len(s))
        scaled.local[...] = w.local * s[_columns(w)].astype(call.dtype)
        scalapack.gemm(scaled, w, p, adjoint_b=True)
    mirror(call.ranks, p.local, p.layout)
    return leave(call, u, turned=False), leave(call, p, a.of_shape(p.shape), turned=False)


def qr(call: Call, b: None) -> tuple[Part, Part]:
    a, (m, n) = call.a, call.a.shape
    complete = call.request.mode == "complete"
    k = m if complete else min(m, n)
    shapes = (m, k), (k, n)
    if 0 in a.shape:
        unit, empty = (_filled(call, shape, 0) for shape in shapes)
        rows, columns = unit.layout.indices(call.ranks.rank)
        unit.local[...] = rows[:, None] == columns
        return unit, empty
    leading = a.layout.indices(call.ranks.rank)[1] < min(m, n)
    if call.ranks.status(0 if np.isfinite(a.local[:, leading]).all() else 1):
        nans = [_filled(call, shape, nan_of(call.dtype)) for shape in shapes]
        return nans[0], nans[1]
    q, r = scalapack.qr(enter(call, "qr", turned=False), complete)
    keep_triangle(r.local, r.layout, call.ranks.rank, upper=True)
    factors = [leave(call, x, a.of_shape(shape), turned=False) for x, shape in zip((q, r), shapes, strict=True)]
    return factors[0], factors[1]


def lstsq(call: Call, b: Any) -> tuple[Any, ...]:
    m, n = call.a.shape
    rcond = call.request.rcond
    k = 1 if b.ndim == 1 else b.shape[1]
    s, u, vh = _svd(call)
    limit = (rcond if rcond is not None else float(np.finfo(s.dtype).eps) * max(m, n)) * (s[0] if len(s) else 0)
    good = s > limit
    right = enter_columns(call, u, b)
    # x <- V S^+ U^H b
    y = right.like(len(s), k)
    scalapack.gemm(u, right, y, adjoint_a=True)
    scale = np.where(good, 1 / np.where(good, s, 1), 0).astype(call.dtype)
    np.multiply(y.local, scale[_rows(y)][:, None], out=y.local)
    x = right.like(n, k)
    scalapack.gemm(vh, y, x, adjoint_a=True)
    # r <- b - A x
    product = right.like(m, k)
    if 0 not in (m, n):
        scalapack.gemm(enter(call, "svd", turned=False), x, product)
    residuals = np.zeros(k, s.dtype)
    residuals[_columns(right)] = (np.abs(right.local - product.local) ** 2).sum(0)
    residuals = call.ranks.sum(residuals)
    rank = np.asarray(np.count_nonzero(good))
    return leave_columns(call, x, b), residuals[0] if b.ndim == 1 else residuals, rank, s


def _svd(call: Call, vectors: bool = True) -> tuple[np.ndarray, Blocks, Blocks]:
    a, on_fail = call.a, call.request.on_fail
    m, n = a.shape
    k = min(m, n)
    finite = bool(np.isfinite(a.local).all())
    info = call.ranks.status(0 if finite else 1)
    if info and on_fail == "raise":
        raise call.error(ConvergenceError, finite)
    x = enter(call, "svd", turned=False)
    if k == 0:
        return np.empty(0, a.local.real.dtype), x.like(m, 0), x.like(0, n)
    if not info:
        s, u, vh, info = scalapack.svd(x, vectors)
        if info and on_fail == "raise":
            raise call.error(ConvergenceError, True)
    if info:
        s, u, vh = np.full(k, np.nan, a.local.real.dtype), x.like(m, k), x.like(k, n)
        for blocks in (u, vh):
            blocks.local[...] = nan_of(call.dtype)
    return s, u, vh


def _rows(x: Blocks) -> np.ndarray:
    return x.layout.indices(x.comm.rank)[0]


def _columns(x: Blocks) -> np.ndarray:
    return x.layout.indices(x.comm.rank)[1]


def _filled(call: Call, shape: tuple[int, int], value: Any) -> Part:
    layout = call.a.of_shape(shape)
    return Part(np.full(layout.local_shape(call.ranks.rank), value, call.dtype), layout, call.ranks)
