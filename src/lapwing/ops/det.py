"""The determinant. :func:`lapwing.slogdet` gives its logarithm, which stays in range."""

from __future__ import annotations

from typing import Any, Literal, Never

import numpy as np

from .. import frameworks
from ..core.derivatives import det_jvp, det_vjp
from ..core.keywords import unknown_keyword
from ..core.operation import Operation, Params
from ..core.request import VALUE
from .solve import Assume, determinant, inv, problem_of, system_request
from .systems import SLOGDET
from .triangle import batch_and_order


def det(
    a: Any,
    /,
    *,
    assume: Assume = "general",
    upper: bool = False,
    on_fail: Literal["raise", "nan"] = "raise",
    engine: str = "auto",
    **unknown: Never,
) -> Any:
    """Determinant of square matrices.

    Parameters
    ----------
    a, assume, upper, on_fail, engine
        As for :func:`solve`.

    Returns
    -------
    array, shape (...)
        0 for a singular matrix, NaN for one with NaN or Inf. Infinite or 0 where the number is too large or too small for the
        dtype: :func:`slogdet` has its logarithm.

    Raises
    ------
    NotPositiveDefiniteError
        With "pos".
    ValueError, TypeError
        Wrong shape, dtype or choice.

    Notes
    -----
    The derivative is right at singular matrices too. The second derivative is not finite there, that is, where the condition
    number is above 0.1 / (n eps). A sharded matrix that is exactly singular has no derivative.

    See Also
    --------
    slogdet : sign and logarithm.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> float(lw.det(np.array([[0.0, 2.0], [3.0, 1.0]])))
    -6.0
    """
    if unknown:
        raise unknown_keyword(det, unknown)
    framework = frameworks.entry(a, "det")
    if framework.sharded:
        return framework.call(det, a, assume=assume, upper=upper, on_fail=on_fail, engine=engine)
    return determinant(framework, det, DET, a, assume, upper, on_fail, engine, _of_diagonal)[0]


def _of_diagonal(xp: Any, pivots: Any) -> tuple[Any]:
    """The product of the pivots, by their logarithms if a partial product is out of range. Its derivative is right even if some
    pivots are zero."""
    tiny = float(np.finfo(xp.dtype_name(pivots)).tiny)
    with xp.quiet():
        plain = xp.product(xp.constant(pivots))
        good = (xp.abs(plain) >= tiny) & xp.isfinite(plain)
        size = xp.abs(xp.constant(pivots))
        size = xp.where((size > 0) & xp.isfinite(size), size, xp.ones_like(size))
        phase, factor = xp.product(pivots / xp.like(size, pivots)), xp.exp(xp.sum(xp.log(size), -1))
        scaled = xp.where((phase == 0) & ~xp.isfinite(factor), phase, phase * xp.like(factor, pivots))
        product = xp.product(xp.where(good[..., None], pivots, xp.ones_like(pivots)))
        # CuPy's order of multiplication depends on the strides: a product that was in range above may not be here
        good = good & (xp.abs(xp.constant(product)) >= tiny) & xp.isfinite(xp.constant(product))
        return (xp.where(good, product, scaled),)


def _reference(arrays: tuple[Any, ...], params: Params) -> tuple[np.ndarray, ...]:
    sign, logabs, info = SLOGDET.reference(arrays, params)
    with np.errstate(over="ignore"):
        return np.asarray(sign * np.exp(logabs), arrays[0].dtype), info


DET = Operation(
    "det",
    results=lambda shapes, params: ((shapes[0][:-2], None), (shapes[0][:-2], "int32")),
    sizes=batch_and_order,
    reference=_reference,
    work=SLOGDET.work,
    jvp=det_jvp,
    vjp=det_vjp,
    keeps_inputs=lambda params: True,
    turns="pos",
)
det.request = system_request(det, (VALUE,))  # type: ignore[attr-defined]
det.inverse = inv  # type: ignore[attr-defined]  # which derivatives of sharded matrices need
det.problem = problem_of("det", of_diagonal=True)  # type: ignore[attr-defined]
