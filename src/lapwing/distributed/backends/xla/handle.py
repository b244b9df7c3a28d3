"""Systems with JAX matrices on several devices: at once, or with a factor that stays on the devices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ....core.errors import warn
from ....core.plan import bytes_in_words
from ....core.request import Request
from ....frameworks import jax as framework
from ...placement import Grid, Placement
from ..protocol import check_right, promote
from . import calls, dense, factored, panels, sharding, tall
from .backend import is_tall
from .calls import compiled
from .layout import adjoint

_NAMES = {"pos": "cholesky", "triangle": "triangular"}


class FactoredPanels:
    """A factor in panels that the devices own in turn, and the matrix, which derivatives need. It is a JAX pytree."""

    framework = framework

    def __init__(self, assume: str, upper: bool, where: Placement, cut: Any, a: Any, parts: Any) -> None:
        self.assume, self.upper = assume, upper
        self._where, self._cut, self._a, self._parts = where, cut, a, parts
        grid = where.grid
        self.report = {"engine": "xla", "kind": _NAMES.get(_kind(assume), "lu"), "grid": (grid.p, grid.q), "tile": cut.width}

    @classmethod
    def of(cls, request: Request, where: Placement, a: Any) -> FactoredPanels:
        cut, kind, upper = _way(request, where, a)
        a = _whole(request, where, cut, a)
        return cls(request.assume, request.upper, where, cut, a, compiled(factored.factor, where, cut, kind, upper)(a))

    @property
    def info(self) -> Any:
        return self._parts.info

    @property
    def shape(self) -> tuple[int, int]:
        return self._a.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return str(self._a.dtype)

    @property
    def about(self) -> str:
        return f", xla on {self._where.grid.size} devices"

    @property
    def l(self) -> Any:  # noqa: E743
        if self.assume == "pos":
            return compiled(factored.cholesky_factor, self._place, self._cut, self.upper)(self._a, self._parts)
        return compiled(factored.read, self._place, *self._fixed)(self._a)

    def solve(self, b: Any, /) -> Any:
        _, b = promote(self._a, b, lambda b, dtype: b.astype(dtype), fixed=True)
        check_right("Factor.solve", self._a, b)
        where = self._place
        sides, right = sharding.placed_like(b, where)
        _warn_if_gathered("Factor.solve", self.assume, where, self._a, sides, right)
        x = compiled(factored.solve, where, right, *self._fixed)(self._a, self._parts, sides)
        return sharding.placed_back(x, b, where)

    def inverse(self) -> Any:
        x = compiled(factored.inverse, self._place, *self._fixed)(self._a, self._parts)
        return _mean(self.assume, self._place, self._cut, x)

    def slogdet(self) -> Any:
        return compiled(factored.slogdet, self._place, *self._fixed)(self._a, self._parts)

    def logdet(self) -> Any:
        sign, value = self.slogdet()
        return value if self.assume == "pos" else jnp.where(sign > 0, value, value * float("nan"))

    def rcond(self) -> Any:
        return compiled(factored.rcond, self._place, *self._fixed)(self._a, self._parts)

    @property
    def _place(self) -> Placement:
        """The placement with the mesh of the arrays: a factor that a jitted function returned has only the shape of its
        mesh."""
        return sharding.placed_now(self._where, self._parts.panels)

    @property
    def _fixed(self) -> tuple[Any, str, bool]:
        return self._cut, _kind(self.assume), _upper(self)

    def take_apart(self) -> tuple[tuple[Any, ...], Any]:
        return (self._a, self._parts), (self.assume, self.upper, self._where, self._cut)

    @staticmethod
    def put_together(about: Any, arrays: tuple[Any, ...]) -> FactoredPanels:
        return FactoredPanels(*about, *arrays)


def _solve(request: Request, where: Placement, a: Any, b: Any) -> tuple[Any, Any]:
    """A^-1 b and the status."""
    sides, right = sharding.placed_like(b, where)
    _warn_if_gathered(request.name, request.assume, where, a, sides, right)
    x, info = _at_once(factored.solve, (right,), request, where, a, sides)
    return sharding.placed_back(x, b, where), info


def _inv(request: Request, where: Placement, a: Any, b: None) -> tuple[Any, Any]:
    x, info = _at_once(factored.inverse, (), request, where, a)
    return _mean(request.assume, where, calls.cut_for(a.shape[-1], where.grid), x), info


def _det(request: Request, where: Placement, a: Any, b: None) -> Any:
    return _at_once(factored.det, (), request, where, a)


def _slogdet(request: Request, where: Placement, a: Any, b: None) -> tuple[Any, Any, Any]:
    (sign, logabs), info = _at_once(factored.slogdet, (), request, where, a)
    return sign, logabs, info


def _at_once(call: Any, first: tuple[Any, ...], request: Request, where: Placement, a: Any, *b: Any) -> Any:
    """The results of ``call`` from a new factor, and the status."""
    way = _way(request, where, a)
    return compiled(factored.at_once, where, call, first, *way)(_whole(request, where, way[0], a), *b)


def _cholesky(request: Request, where: Placement, a: Any, b: None) -> Any:
    return compiled(factored.cholesky, where, calls.cut_for(a.shape[-1], where.grid), request.upper)(a)


def _eigh(request: Request, where: Placement, a: Any, b: None) -> Any:
    n, vectors = a.shape[0], request.operation == "eigh"
    start, count = request.part or (0, n)
    if request.window is not None:
        everything = np.asarray(compiled(dense.eigh, where, request.upper, (0, n), False)(a)[0].addressable_data(0))
        start, end = (int(np.searchsorted(everything, x, side="right")) for x in request.window)
        count = end - start
    start += n if start < 0 else 0
    if not count:
        whole = compiled(dense.eigh, where, request.upper, (0, 1), False)(a)
        return whole[0][:0], *[jnp.zeros((n, 0), a.dtype)] * vectors, whole[2]
    w, v, info = compiled(dense.eigh, where, request.upper, (start, count), vectors)(a)
    return (w, v, info) if vectors else (w, info)


def _qr(request: Request, where: Placement, a: Any, b: None) -> Any:
    tall_enough = a.shape[0] >= a.shape[1] and is_tall(where, a.shape)
    return *compiled(tall.qr if tall_enough else dense.qr, where)(a), 0


def _svd(request: Request, where: Placement, a: Any, b: None) -> Any:
    vectors = request.operation == "svd"
    if is_tall(where, a.shape):
        u, s, vh, info = compiled(tall.svd, where, a.shape[0] < a.shape[1])(a)
    else:
        u, s, vh, info = compiled(dense.svd, where, vectors)(a)
    if request.full_matrices and a.shape[0] > a.shape[1]:
        u = compiled(dense.complete, where)(u)
    elif request.full_matrices:
        vh = adjoint(compiled(dense.complete, Placement(where.mesh, where.grid.turned()))(adjoint(vh)))
    return (u, s, vh, info) if vectors else (s, info)


def _polar(request: Request, where: Placement, a: Any, b: None) -> Any:
    if is_tall(where, a.shape):
        return compiled(tall.polar, where, a.shape[0] < a.shape[1])(a)
    if request.side == "right":
        return compiled(dense.polar, where)(a)
    # A^H = U P: A = P U^H
    u, p, info = compiled(dense.polar, Placement(where.mesh, where.grid.turned()))(adjoint(a))
    return adjoint(u), p, info


def _lstsq(request: Request, where: Placement, a: Any, b: Any) -> Any:
    b, right = sharding.placed_like(b, where)
    _warn_if_gathered(request.name, "general", where, a, b, right)
    precision = np.finfo(str(a.dtype))
    # an argument, as a constant would mean compiling again for each value
    rcond = precision.eps * max(a.shape) if request.rcond is None else request.rcond
    solver = tall.lstsq if a.shape[0] >= a.shape[1] and is_tall(where, a.shape) else dense.lstsq
    return compiled(solver, where, right)(a, b, np.asarray(rcond, precision.dtype))


def _warn_if_gathered(name: str, assume: str, where: Placement, a: Any, b: Any, right: Grid | None) -> None:
    """Warn if every device needs the whole of a split right-hand side, and that is more than its share of the matrix."""
    if right is None or right.size == 1:
        return
    if assume not in ("general", "symmetric", "hermitian") and set(right.order) == set(where.grid.order):
        return
    size, share = b.size * b.dtype.itemsize, a.size * a.dtype.itemsize / where.grid.size
    if size <= max(share, panels.UNNOTICED):
        return
    reason = "LU and least squares need it whole"
    if assume not in ("general", "symmetric", "hermitian"):
        reason = "it is split over other axes than the matrix"
    text = f"{name}: b of {bytes_in_words(size)} is gathered to every device: {reason}"
    warn(f"{text}\nhint: factor the matrix once, and solve for some columns of b at a time")


# by operation: the results, and the status at the end
ROUTINES: dict[str, Any] = {"cholesky": _cholesky, "solve": _solve, "inv": _inv, "det": _det, "slogdet": _slogdet}
ROUTINES |= {"eigh": _eigh, "eigvalsh": _eigh, "qr": _qr, "svd": _svd, "svdvals": _svd, "polar": _polar, "lstsq": _lstsq}


def _way(request: Request, where: Placement, a: Any) -> tuple[Any, str, bool]:
    return calls.cut_for(a.shape[-1], where.grid), _kind(request.assume), _upper(request)


def _kind(assume: str) -> str:
    return {"pos": "pos", "lower": "triangle", "upper": "triangle"}.get(assume, "lu")


def _upper(call: Any) -> bool:
    """Which triangle is read, of a request or a factor; False for both."""
    return bool(call.assume == "upper" or (call.upper and call.assume == "pos"))


def _whole(request: Request, where: Placement, cut: Any, a: Any) -> Any:
    """Both triangles of a symmetric or Hermitian matrix, which is factored by LU, as there is no LDL^H here."""
    if request.assume not in ("symmetric", "hermitian"):
        return a
    return compiled(factored.mirrored, where, cut, request.upper, request.assume == "hermitian")(a)


def _mean(assume: str, where: Placement, cut: Any, x: Any) -> Any:
    return compiled(factored.mean, where, cut, assume == "hermitian")(x) if assume in ("symmetric", "hermitian") else x
