"""The determinant itself; :func:`lapwing.slogdet` gives its logarithm, which stays in range."""

from __future__ import annotations

from typing import Any, Literal, Never

import numpy as np

from .. import frameworks
from ..core.derivatives import det_jvp, det_vjp
from ..core.keywords import unknown_keyword
from ..core.operation import Operation, Params
from .solve import Assume, determinant, problem_of, slogdet
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
    The derivative is right at singular matrices too. The second derivative is not finite there.

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
        sign, logabs = framework.call(slogdet, a, assume=assume, upper=upper, on_fail=on_fail, engine=engine)
        return sign * np.e**logabs
    return determinant(framework, det, DET, a, assume, upper, on_fail, engine, lambda xp, pivots: (xp.product(pivots),))[0]


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
det.request = slogdet.request  # type: ignore[attr-defined]  # over many devices it is computed from the logarithm
det.problem = problem_of("det", of_diagonal=True)  # type: ignore[attr-defined]
