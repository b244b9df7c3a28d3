"""Dense linear algebra at the speed of the hardware, from whichever Python framework you are already in."""

from importlib import import_module as _import_module
from typing import Any as _Any

from ._version import __version__
from .core.autograph import leave_alone
from .core.engines import register_backends as _register_backends
from .core.errors import ConvergenceError, DefectiveMatrixError, NotPositiveDefiniteError, SingularMatrixError
from .core.keywords import hide_unknown
from .core.problem import spec
from .doors import install
from .ops.cholesky import cholesky, cholesky_ex
from .ops.det import det
from .ops.eig import eig, eigvals, schur
from .ops.eigh import eigh, eigh_ex, eigvalsh
from .ops.explain import explain
from .ops.factor import Factor, factor
from .ops.functions import expm, inv_root, logm, sqrtm
from .ops.grouped import grouped
from .ops.hosted import hosted
from .ops.lstsq import lstsq
from .ops.matmul import matmul
from .ops.operator import operator
from .ops.qr import qr
from .ops.singular_values import cond, matrix_rank, pinv
from .ops.solve import inv, inv_ex, slogdet, solve, solve_ex
from .ops.svd import polar, svd, svdvals
from .planner import engines

__all__ = [
    "ConvergenceError",
    "DefectiveMatrixError",
    "Factor",
    "NotPositiveDefiniteError",
    "SingularMatrixError",
    "__version__",
    "cholesky",
    "cholesky_ex",
    "cond",
    "det",
    "eig",
    "eigh",
    "eigh_ex",
    "eigvals",
    "eigvalsh",
    "engines",
    "explain",
    "expm",
    "factor",
    "grouped",
    "hosted",
    "install",
    "inv",
    "inv_ex",
    "inv_root",
    "logm",
    "lstsq",
    "matmul",
    "matrix_rank",
    "operator",
    "pinv",
    "polar",
    "qr",
    "schur",
    "slogdet",
    "solve",
    "solve_ex",
    "spec",
    "sqrtm",
    "svd",
    "svdvals",
]

leave_alone(*(globals()[_name] for _name in __all__))
hide_unknown(*(globals()[_name] for _name in __all__))

# named, not imported: the list of engines loads it
_register_backends("lapwing.distributed.backends.choice")
# subpackages that are imported when they are first named, as in ``lapwing.tune.use(...)``
_SUBPACKAGES = frozenset({"compat", "distributed", "gram", "insitu", "linalg", "plugins", "tune"})


def __getattr__(name: str) -> _Any:
    if name in _SUBPACKAGES:
        return _import_module(f"lapwing.{name}")
    raise AttributeError(f"module 'lapwing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
