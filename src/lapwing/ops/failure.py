"""The error for the first matrix of a batch that failed."""

from __future__ import annotations

from typing import Any

import numpy as np


def first_failure(
    kind: Any,
    name: str,
    framework: Any,
    a: Any,
    info: Any,
    place: str = "",
    triangle: Any = None,
    finite: Any = None,
    **fields: Any,
) -> Exception:
    """An error of class ``kind``; ``place`` is its field for the status, and ``fields`` are others.

    ``triangle(x)`` picks the part of a matrix that was read; ``finite`` are flags from before the matrices were overwritten.
    """
    status = framework.to_numpy(info)
    bad = np.flatnonzero(status)
    first = tuple(int(i) for i in np.unravel_index(bad[0], status.shape))
    nonfinite = False
    if finite is not None:
        nonfinite = not framework.to_numpy(finite)[first]
    elif a is not None:  # it is gone where it was overwritten
        matrix = framework.to_numpy(a[first] if len(framework.shape_of(a)) > 2 else a)
        nonfinite = not np.isfinite(matrix if triangle is None else triangle(matrix)).all()
    if place:
        fields[place] = int(status[first])
    error: Exception = kind(name, batch_index=first, batch_shape=status.shape, nonfinite=nonfinite, failures=len(bad), **fields)
    return error
