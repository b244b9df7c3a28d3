"""Which part of a spectrum is meant, and the proof that it is complete."""

from __future__ import annotations

import logging
import operator
from math import frexp
from typing import Any

import numpy as np

from .. import frameworks
from ..core.engines import library_engine
from ..core.errors import ConvergenceError
from ..core.problem import UPPER
from .cholesky import cholesky_ex
from .triangle import whole_matrix

_log = logging.getLogger("lapwing")
_FARTHEST = {"float32": 120, "float64": 1000}


def part_of(name: str, subset: slice | None, n: Any, what: str = "eigenvalues") -> tuple[int, int]:
    """The first value and how many; (0, -1) for all. Before n is known, the first one may count from the end."""
    if subset is None:
        return 0, -1
    if not isinstance(subset, slice):
        largest = "slice(-16, None)" if what == "eigenvalues" else "slice(16)"
        raise TypeError(f"{name}: subset={subset!r} is not a slice\nhint: subset={largest} are the 16 largest")
    if subset.step not in (None, 1):
        raise ValueError(f"{name}: subset={subset} has a step\nhint: leave it out, then index the result with [..., ::step]")
    try:
        subset = slice(*[None if x is None else operator.index(x) for x in (subset.start, subset.stop)])
    except TypeError:
        raise TypeError(f"{name}: subset={subset} has entries that are not whole numbers") from None
    if not isinstance(n, int):
        return _part_before_n(name, subset)
    first, last, _ = subset.indices(n)
    if last <= first:
        raise ValueError(f"{name}: subset={subset} selects none of {n} {what}\nhint: slice(3) selects the first 3")
    return (0, -1) if last - first == n else (first, last - first)


def _part_before_n(name: str, subset: slice) -> tuple[int, int]:
    start, stop = subset.start or 0, subset.stop
    if start == 0 and stop is None:
        return 0, -1
    if start >= 0 and stop is not None and stop > start:
        return start, stop - start
    if start < 0 and (stop is None or start < stop < 0):
        return start, (stop or 0) - start
    raise ValueError(f"{name}: subset={subset} needs a matrix of known size")


_COUNT_BITS = 32  # of the native parameter `count`, whose upper half holds the tolerance in single precision


def check_tolerance(name: str, tol: Any, subset: slice | None) -> float:
    """The tolerance of a part of a spectrum; 0.0 for the default."""
    if tol is None:
        return 0.0
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.integer, np.floating)) or not 0 < tol < 1:
        raise ValueError(
            f"{name}: tol={tol!r} is not a number between 0 and 1\nhint: it is relative to the norm of a, such as 1e-6"
        )
    if subset is None:
        raise ValueError(f"{name}: tol={tol!r} needs a subset\nhint: the whole spectrum is always computed to about n eps")
    return max(float(tol), float(np.finfo(np.float32).tiny))


def with_tolerance(count: int, tol: float) -> int:
    """The native parameter for ``count`` eigenvalues to a tolerance."""
    return count | (_float32_bits(tol) << _COUNT_BITS) if tol and count >= 0 else count


def _float32_bits(number: float) -> int:
    """The bits of a normal positive number, by plain arithmetic, as torch.compile cannot trace NumPy's views."""
    mantissa, exponent = frexp(number)
    return ((exponent + 126) << 23) + round((2 * mantissa - 1) * 2**23)


def count_in(param: int) -> int:
    return param & ((1 << _COUNT_BITS) - 1) if param >= 0 else param


def check_window(name: str, window: Any, subset: slice | None, shape: tuple[Any, ...], traced: bool) -> tuple[float, float]:
    if subset is not None:
        raise ValueError(f"{name}: give subset or window, not both")
    if traced:
        raise ValueError(
            f"{name}: window cannot be used in traced code, where the number of values must be known"
            "\nhint: use subset, or call it outside of jit"
        )
    if len(shape) != 2:
        raise ValueError(f"{name}: window takes one matrix, got shape {tuple(shape)}\nhint: call it for each matrix")
    try:
        if isinstance(window, str):
            raise TypeError
        low, high = (float(x) for x in window)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: window={window!r} is not a pair of numbers\nhint: window=(low, high)") from None
    if not low < high:
        raise ValueError(f"{name}: window=({low}, {high}) is empty\nhint: low < high; the values lie in (low, high]")
    return low, high


def cut_to_window(framework: Any, window: tuple[float, float], values: Any, solve: Any, vectors: bool) -> tuple[Any, ...]:
    """The values in the window, and their vectors. With vectors, one more pair is solved for on each side, as values that are
    computed with vectors are rounded differently."""
    outputs: tuple[Any, ...] = (values,)
    first, last = _inside(framework, window, values)
    if vectors:
        outputs = tuple(solve(slice(max(first - 1, 0), last + 1)))
        first, last = _inside(framework, window, outputs[0])
    return tuple(x[..., first:last] * 1 for x in outputs)  # a product owns its memory


def _inside(framework: Any, window: tuple[float, float], values: Any) -> tuple[int, int]:
    first, last = np.searchsorted(framework.to_numpy(values), window, side="right")
    return int(first), int(last)


def certified(
    framework: Any, name: str, a: Any, part: tuple[int, int], function: Any, eigh: Any, options: dict[str, Any], tol: float
) -> tuple[Any, ...]:
    """Solve, and prove with the inertia of a shifted matrix that no value beyond the cut was missed."""
    shape, n = framework.shape_of(a), framework.shape_of(a)[-1]
    first, count = part
    if framework.traced(a) or len(shape) != 2:
        raise ValueError(f"{name}: certify takes one matrix, outside of traced code")
    if count < 0:
        return as_outputs(function(a, **options))
    largest = first + count == n
    if not largest and first != 0:
        raise ValueError(f"{name}: certify takes a subset at one end of the spectrum, not {options['subset']}")
    w, v = eigh(a, **options)
    if not _none_beyond(framework, a, w, v, options["upper"], largest, tol):
        _log.warning("%s: an eigenvalue beyond the cut was missed; the direct routine is used", name)
        direct = "lapack" if framework.describe(a).device == "cpu" else library_engine()
        w, v = eigh(a, **{**options, "engine": direct})
        if not _none_beyond(framework, a, w, v, options["upper"], largest, tol):
            raise ConvergenceError(name)
    return (w, v) if function is eigh else (w,)


def _none_beyond(framework: Any, a: Any, w: Any, v: Any, upper: bool, largest: bool, tol: float = 0.0) -> bool:
    """Whether s I - A + V (W - c) V^H is positive definite: the known values are shifted away, so no other value is above s.

    For the smallest values the same with -A. The tolerance is that of the eigenvalues themselves: 10 n eps ||A||, or what the
    caller asked for. The matrix is scaled by a power of two first, so that ||A||^2 is in range.
    """
    if framework.describe(a).device == "cpu":  # XLA would flush subnormal numbers to zero
        a, w, v = (framework.to_numpy(x) for x in (a, w, v))
        framework = frameworks.of(v, "eigh")
    xp = framework.Namespace
    whole = whole_matrix(framework, a, UPPER if upper else 0)
    known = framework.to_numpy(w)
    top = float(framework.to_numpy(xp.largest(xp.largest(xp.abs(whole))[..., 0])).max())
    if top == 0:  # all eigenvalues are zero
        return True
    # the scale and its inverse are normal numbers of the dtype
    power = int(np.clip(np.frexp(top)[1], -_FARTHEST[known.dtype.name], _FARTHEST[known.dtype.name]))
    whole = whole * float(np.ldexp(1.0, -power))
    values = np.ldexp(known.astype(float) if largest else -known.astype(float), -power)
    norm = float(framework.to_numpy(xp.norm(whole)))
    slack = max(10 * framework.shape_of(a)[-1] * float(np.finfo(known.dtype).eps), 2 * tol) * norm
    cut = values.min()
    lifted = xp.like(xp.put((values - cut + 2 * slack).astype(known.dtype), v), v)
    lifted = xp.matmul(v * lifted, xp.adjoint(v)) + xp.eye(whole) * (cut + slack)
    shifted = lifted - whole if largest else lifted + whole
    return not framework.failed(cholesky_ex(shifted).info)


def as_outputs(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)
