"""The error for the first matrix of a batch that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import planner
from ..core.errors import ConvergenceError
from ..core.operation import Operation, Params
from ..core.problem import Problem


def first_failure(
    kind: Any,
    name: str,
    framework: Any,
    a: Any,
    info: Any,
    field: str = "",
    triangle: Any = None,
    finite: Any = None,
    **fields: Any,
) -> Exception:
    """An error of class ``kind``; ``field`` is its field for the status, and ``fields`` are its other fields.

    ``triangle(x)`` picks the part of a matrix that was read; ``finite`` are flags from before the matrices were overwritten.
    """
    status = framework.to_numpy(info)
    bad = np.flatnonzero(status)
    first = tuple(int(i) for i in np.unravel_index(bad[0], status.shape))
    nonfinite = False
    if finite is not None:
        nonfinite = not framework.to_numpy(finite)[first]
    elif a is not None:  # None if it was overwritten
        matrix = framework.to_numpy(a[first] if len(framework.shape_of(a)) > 2 else a)
        nonfinite = not np.isfinite(matrix if triangle is None else triangle(matrix)).all()
    if field:
        fields[field] = int(status[first])
    error: Exception = kind(name, batch_index=first, batch_shape=status.shape, nonfinite=nonfinite, failures=len(bad), **fields)
    return error


def apply_or_raise(
    framework: Any,
    name: str,
    operation: Operation,
    a: Any,
    params: Params,
    on_fail: str,
    engine: str,
    problem: Callable[[], Problem],
) -> Any:
    """The outputs of an operation that fails with a ConvergenceError; writes its decision and notes to the log."""
    code = planner.code_for(framework, a, engine, name, lambda: [problem()])
    traced = framework.traced(a)
    logging = not traced and planner.logging_decisions()
    if logging:
        planner.log_decision(problem(), engine)
    outputs = framework.apply(operation, (a,), params, code, False)
    if on_fail == "raise" and not traced and framework.failed(outputs[-1]):
        raise first_failure(ConvergenceError, name, framework, a, outputs[-1])
    if logging:
        planner.log_notes()
    return outputs
