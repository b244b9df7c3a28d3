"""Make the matrix products of a real workload faster, and prove it.

:func:`all_steps` does everything, as ``lapwing tune all`` does; :func:`read`, :func:`record`, :func:`configure`, :func:`run`,
:func:`compare`, :func:`build` are its steps. :func:`use` and :func:`enable` let torch use what was found.
"""

from __future__ import annotations

from .dispatch.installed import Handle, enable, use
from .gemm import Call, Gemm
from .library import Entry, EnvironmentMismatch, LedgerLine, Library, build, merge
from .library.formats import Export, export
from .library.tokens import widen
from .readers import BadLine, Log, read
from .readers.recording import Recorded, record
from .search.selection import configure
from .search.session import RunSummary, Step, run
from .validate.comparison import Comparison, compare
from .validate.results import Metrics
from .workdir import Target, Workdir
from .workflow import Tuned, all_steps

Problem = Target  # its earlier name

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
    "Target",
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
