"""Make the matrix products of a program faster, and prove it.

:func:`all_steps` does everything, like ``lapwing tune all``. Its steps are :func:`record` or :func:`read`, :func:`configure`,
:func:`run`, :func:`compare` and :func:`build`. :func:`use` and :func:`enable` let torch use the tuned library, and
:func:`report` counts what it uses.
"""

from __future__ import annotations

from .dispatch.counts import UseReport, report
from .dispatch.installed import Handle, enable, use
from .gemm import Call, Gemm
from .library import Entry, EnvironmentMismatch, LedgerLine, Library, build, merge
from .library.formats import Export, export
from .library.tokens import widen
from .readers import BadLine, Log, read
from .readers.recording import Recorded, record
from .search.hunt import Step
from .search.selection import configure
from .search.session import RunSummary, run
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
    "UseReport",
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
    "report",
    "run",
    "use",
    "widen",
]
