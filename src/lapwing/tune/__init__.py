"""Make the matrix products of a real workload faster, and prove it.

:func:`all_steps` does everything, as ``lapwing tune all`` does; :func:`read`, :func:`record`, :func:`configure`, :func:`run`,
:func:`compare`, :func:`build` are its steps. :func:`use` and :func:`enable` let torch use what was found.
"""

from __future__ import annotations

from .buckets import widen
from .compare import Comparison, compare
from .configure import configure
from .export import Export, export
from .gemm import Call, Gemm
from .library import Entry, EnvironmentMismatch, LedgerLine, Library, build, merge
from .readers import BadLine, Log, read
from .record import Recorded, record
from .results import Metrics
from .run import RunSummary, Step, run
from .use import Handle, enable, use
from .workdir import Problem, Workdir
from .workflow import Tuned, all_steps

__all__ = [
    "BadLine",
    "Call",
    "Comparison",
    "Entry",
    "EnvironmentMismatch",
    "Export",
    "Gemm",
    "Handle",
    "LedgerLine",
    "Library",
    "Log",
    "Metrics",
    "Problem",
    "Recorded",
    "RunSummary",
    "Step",
    "Tuned",
    "Workdir",
    "all_steps",
    "build",
    "compare",
    "configure",
    "enable",
    "export",
    "merge",
    "read",
    "record",
    "run",
    "use",
    "widen",
]
