"""A small multiple of the identity, for matrices that would be positive definite without rounding errors."""

from __future__ import annotations

import warnings
from math import inf
from typing import Any

import numpy as np

from ..core.operation import operation_named
from ..core.problem import REAL

# "auto", relative to the mean of the diagonal
_STEPS = {"float32": (1e-6, 1e-5, 1e-4, 1e-3), "float64": (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)}


def check_jitter(name: str, jitter: Any, framework: Any, assume: str = "pos", precision: str = "full") -> None:
    if assume != "pos" or precision != "full":
        raise ValueError(f'{name}: jitter goes with assume="pos" and precision="full", not {assume!r} and {precision!r}')
    if framework.sharded:
        raise ValueError(f"{name}: jitter is not supported for sharded matrices\nhint: add it to the diagonal before the call")
    number = isinstance(jitter, (int, float, np.floating)) and not isinstance(jitter, bool) and 0 < jitter < inf
    if not number and jitter != "auto":
        raise ValueError(f'{name}: jitter={jitter!r} is not known\nhint: use None, "auto" or a positive number')


def factor_with_jitter(framework: Any, a: Any, flags: int, engine: int, jitter: Any) -> tuple[Any, Any, Any, Any]:
    """Factor, status, the matrix that was factored, and the number added to the diagonal of each matrix (None: nothing).

    Each step is tried for the matrices that still fail. The trials are constants, so derivatives are those of the last call.
    """
    cholesky = operation_named("cholesky")
    xp = framework.Namespace
    traced = framework.traced(a)
    fixed = xp.constant(a)
    factor, info = framework.apply(cholesky, (fixed if traced else a,), (flags,), engine, False)
    if not traced and not framework.failed(info):
        return factor, info, a, None
    diagonal = xp.real(xp.diagonal(a))
    mean = xp.sum(diagonal, -1) / xp.order(diagonal)
    share = xp.zeros_like(xp.constant(mean))
    for step in _STEPS[REAL[framework.dtype_of(a)]] if jitter == "auto" else (float(jitter),):
        share = xp.where(info != 0, xp.zeros_like(share) + step, share)
        info = framework.apply(cholesky, (_shifted(xp, fixed, share * xp.constant(mean)),), (flags,), engine, False)[1]
        if not traced and not framework.failed(info):
            break
    amount = xp.where(info == 0, share * mean, xp.zeros_like(mean))  # nothing is added if it does not help
    shifted = _shifted(xp, a, amount)
    return *framework.apply(cholesky, (shifted,), (flags,), engine, False), shifted, amount


def _shifted(xp: Any, a: Any, amount: Any) -> Any:
    return a + xp.eye(a) * xp.like(amount, a)[..., None, None]


def warn_of_jitter(framework: Any, name: str, amount: Any) -> None:
    if amount is None or framework.traced(amount):
        return
    added = framework.to_numpy(amount)
    if added.any():
        text = f"{name}: up to {added.max():.3g} was added to the diagonal of {(added > 0).sum()} of {added.size} matrices"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
