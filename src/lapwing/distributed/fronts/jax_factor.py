"""Systems with JAX matrices that lie on several devices: at once, or with a factor that stays on the devices."""

from __future__ import annotations

from typing import Any

from ...ops.solve import SlogdetResult
from ..placement import Placement

__all__ = ["JaxFactor", "check_right", "inv", "slogdet", "solve"]

_KINDS = {"pos": "pos", "lower": "lower", "upper": "upper"}
_NAMES = {"pos": "cholesky", "lower": "triangular", "upper": "triangular"}


class JaxFactor:
    """A factored matrix over several JAX devices, made by :func:`lapwing.factor`.

    It is a pytree: it may be an argument and a result of a jitted function. It keeps the matrix beside its factor, which
    derivatives need; the factor lies in panels that are dealt out to the devices in turn.

    Attributes
    ----------
    assume : str
        What the matrix was said to be.
    info : int32 array
        0, or the pivot or the leading minor that failed; the same on every device.
    report : dict
        How it was made: ``engine``, ``kind`` ("cholesky", "lu" or "triangular"), ``grid`` and ``tile``.
    """

    def __init__(self, assume: str, upper: bool, where: Placement, cut: Any, a: Any, parts: Any) -> None:
        self.assume, self.upper = assume, upper
        self._where, self._cut, self._a, self._parts = where, cut, a, parts

    @classmethod
    def of(cls, where: Placement, a: Any, assume: str, upper: bool) -> JaxFactor:
        from . import jax_sharding

        call, cut, kind = _ways(where, a, assume)
        a = _whole(call, where, cut, assume, upper, a)
        parts = call("factor", where, cut, kind, upper and kind == "pos")(a)
        jax_sharding.register(cls, _take_apart, _put_together)  # type: ignore[arg-type]
        return cls(assume, upper, where, cut, a, parts)

    @property
    def info(self) -> Any:
        return self._parts.info

    @property
    def shape(self) -> tuple[int, int]:
        return self._a.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        return self._a.dtype

    @property
    def report(self) -> dict[str, Any]:
        grid = self._where.grid
        kind = _NAMES.get(self.assume, "lu")
        return {"engine": "sharded", "kind": kind, "grid": (grid.p, grid.q), "tile": self._cut.width}

    @property
    def l(self) -> Any:  # noqa: E743
        """The Cholesky factor, lower, or upper for ``upper=True``, where the matrix was; of a triangular matrix itself."""
        call, _, kind = self._call()
        if kind == "lu":
            raise AttributeError(f"Factor.l: assume={self.assume!r} gives an LU factorisation\nhint: solve, inv, slogdet")
        if kind == "pos":
            return call("cholesky_factor", self._place, self._cut, self.upper)(self._a, self._parts)
        return call("triangle_of", self._place, kind)(self._a)

    def solve(self, b: Any, /) -> Any:
        """A^-1 b for b of shape (n,) or (n, k), which may be split over the same devices; NaN if there is no factor."""
        from . import jax_sharding

        check_right("Factor.solve", self._a, b)
        call, cut, kind = self._call()
        where = self._place
        sides, right = jax_sharding.placed_like(b, where)
        x = call("solve", where, right, cut, kind, self._upper)(self._a, self._parts, sides)
        return jax_sharding.placed_back(x, b, where)

    def inv(self) -> Any:
        """A^-1 where the matrix was, exactly Hermitian or symmetric where A is."""
        call, cut, kind = self._call()
        x = call("inverse", self._place, cut, kind, self._upper)(self._a, self._parts)
        return _mean(call, self._place, cut, self.assume, x)

    def slogdet(self) -> SlogdetResult:
        """Sign and logarithm of the absolute value of the determinant, on every device."""
        call, cut, kind = self._call()
        return SlogdetResult(*call("slogdet", self._place, cut, kind, self._upper)(self._a, self._parts))

    def logdet(self) -> Any:
        """The logarithm of the determinant; NaN where a real determinant is not positive."""
        sign, value = self.slogdet()
        if self.assume == "pos":
            return value
        if str(self.dtype).startswith("complex"):
            raise ValueError("Factor.logdet: the determinant of a complex matrix has no real logarithm\nhint: Factor.slogdet()")
        from . import jax_sharding

        return jax_sharding.where(sign > 0, value, value * float("nan"))

    def rcond(self) -> Any:
        """An estimate of 1 / (||A|| ||A^-1||) in the 1-norm, from a few solves with the factor; 0 where there is none."""
        call, cut, kind = self._call()
        return call("rcond", self._place, cut, kind, self._upper)(self._a, self._parts)

    def __repr__(self) -> str:
        n = self.shape[0]
        return f"JaxFactor({self.report['kind']} of {n} x {n} {self.dtype}, {self._where.grid.size} devices)"

    @property
    def _place(self) -> Placement:
        """With the mesh of the arrays: a factor that a jitted function gave back knows only what the mesh looked like."""
        from . import jax_sharding

        return jax_sharding.placed_now(self._where, self._parts.panels)

    @property
    def _upper(self) -> bool:
        return self.upper and self.assume == "pos"

    def _call(self) -> tuple[Any, Any, str]:
        return _call, self._cut, _KINDS.get(self.assume, "lu")


def solve(where: Placement, a: Any, b: Any, assume: str, upper: bool) -> tuple[Any, Any]:
    """A^-1 b and the status."""
    from . import jax_sharding

    call, cut, kind = _ways(where, a, assume)
    sides, right = jax_sharding.placed_like(b, where)
    a = _whole(call, where, cut, assume, upper, a)
    x, info = call("solve_at_once", where, right, cut, kind, upper and kind == "pos")(a, sides)
    return jax_sharding.placed_back(x, b, where), info


def inv(where: Placement, a: Any, assume: str, upper: bool) -> tuple[Any, Any]:
    call, cut, kind = _ways(where, a, assume)
    x, info = call("inv", where, cut, kind, upper and kind == "pos")(_whole(call, where, cut, assume, upper, a))
    return _mean(call, where, cut, assume, x), info


def slogdet(where: Placement, a: Any, assume: str, upper: bool) -> tuple[Any, Any, Any]:
    call, cut, kind = _ways(where, a, assume)
    a = _whole(call, where, cut, assume, upper, a)
    return call("slogdet_at_once", where, cut, kind, upper and kind == "pos")(a)  # type: ignore[no-any-return]


def check_right(name: str, a: Any, b: Any) -> None:
    if not hasattr(b, "dtype") or str(b.dtype) != str(a.dtype):
        raise TypeError(
            f"{name}: a and b must have the same dtype, got {a.dtype} and {getattr(b, 'dtype', type(b).__name__)}"
            "\nhint: convert one of them"
        )
    if len(b.shape) not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ValueError(
            f"{name}: b must have shape ({a.shape[0]},) or ({a.shape[0]}, k) for a sharded matrix, got {tuple(b.shape)}"
        )


def _call(name: str, *fixed: Any) -> Any:
    from ..backends.xla import calls as sharded_calls
    from ..backends.xla import factored as sharded_factored

    return sharded_calls.compiled(getattr(sharded_factored, name), *fixed)


def _ways(where: Placement, a: Any, assume: str) -> tuple[Any, Any, str]:
    from ..backends.xla import calls as sharded_calls

    return _call, sharded_calls.cut_for(a.shape[-1], where.grid), _KINDS.get(assume, "lu")


def _whole(call: Any, where: Placement, cut: Any, assume: str, upper: bool, a: Any) -> Any:
    """Of a symmetric or Hermitian matrix both triangles: it is factored as any other, there is no LDL^H here."""
    return call("mirrored", where, cut, upper, assume == "hermitian")(a) if assume in ("symmetric", "hermitian") else a


def _mean(call: Any, where: Placement, cut: Any, assume: str, x: Any) -> Any:
    return call("mean", where, cut, assume == "hermitian")(x) if assume in ("symmetric", "hermitian") else x


def _take_apart(f: JaxFactor) -> tuple[tuple[Any, ...], Any]:
    return (f._a, f._parts), (f.assume, f.upper, f._where, f._cut)


def _put_together(about: Any, arrays: tuple[Any, ...]) -> JaxFactor:
    return JaxFactor(*about, *arrays)
