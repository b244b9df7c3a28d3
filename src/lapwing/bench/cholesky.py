"""The Cholesky factorisation in the benchmark. Each library's own call is in libraries.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .check import PROBES, Check, check_factor, check_on_device
from .library import Call, Library
from .operations import Operation

if TYPE_CHECKING:
    from .case import Case

__all__ = ["CHOLESKY"]


def _flops(case: Case) -> float:
    return case.batch * float(case.n) ** 3 / 3 * (4 if case.dtype.startswith("complex") else 1)


def _through(library: Library, case: Case, engine: str, on_fail: str) -> Call:
    return library.through(case.upper, engine) if on_fail == "raise" else library.through(case.upper, engine, on_fail)


def _own_text(name: str, case: Case) -> str:
    from .libraries import open_library

    return open_library(name).own_text


def _check_on_device(library: Library, a: Any, factor: Any, case: Case) -> Check:
    assert library.wide is not None
    dtype = np.dtype(case.dtype)
    probes = np.random.default_rng(1).standard_normal((case.n, PROBES)) / PROBES**0.5
    placed = library.put(probes.astype(np.result_type(dtype, np.float64)), case.device)
    return check_on_device(a, factor, placed, library.wide, float(np.finfo(dtype).eps), upper=case.upper)


CHOLESKY = Operation(
    name="cholesky",
    matrices=("random", "known"),
    flops=_flops,
    bytes_moved=lambda case: 2 * case.input_bytes,
    work="GFLOP/s by n^3/3 (complex: 4n^3/3), GB/s by one read and one write of every matrix.",
    shapes=lambda case: (case.shape,),
    through=_through,
    own=lambda library, case, name: library.own(case.upper),
    own_queued=lambda library, case, name: library.own_queued(case.upper),
    own_text=_own_text,
    check=lambda host, factor, case: check_factor(host, factor, upper=case.upper),
    check_on_device=_check_on_device,
)
