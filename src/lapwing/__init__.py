"""Dense linear algebra at the speed of the hardware, from whichever Python framework you are already in."""

from ._version import __version__
from .core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from .core.problem import spec
from .engines.planner import engines
from .ops.cholesky import cholesky, cholesky_ex
from .ops.eigh import eigh, eigh_ex, eigvalsh
from .ops.explain import explain
from .ops.operator import operator

__all__ = [
    "ConvergenceError",
    "NotPositiveDefiniteError",
    "SingularMatrixError",
    "__version__",
    "cholesky",
    "cholesky_ex",
    "eigh",
    "eigh_ex",
    "eigvalsh",
    "engines",
    "explain",
    "operator",
    "spec",
]
