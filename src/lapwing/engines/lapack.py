"""LAPACK through pointers that the process already has: NumPy's own OpenBLAS, SciPy's table, or torch's. No BLAS is linked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..core.lent import lender
from ..core.native import missing_reason, native, workspace
from ..core.plan import Capability
from ..core.problem import DTYPES, SOLVED
from .engine import Engine

__all__ = ["ENGINE", "bind"]

# a real routine that stands for the complex Hermitian one too is counted twice, as in the native table
_LAPACK = (
    *[
        t + name
        for name in ("potrf", "getrf", "trtri", "lauum", "geqrf", "gesdd", "gesvd", "potri", "sytrf", "sytrs")
        for t in "sdcz"
    ],
    *[t + name for name in ("syevd", "syevr", "orgqr", "sytrf", "sytrs") for t in "sd"],
    *[t + name for name in ("heevd", "heevr", "ungqr", "hetrf", "hetrs") for t in "cz"],
)
_BLAS = (*[t + name for name in ("trsm", "trmm", "trsv", "gemm") for t in "sdcz"], "ssyrk", "dsyrk", "cherk", "zherk")


def bind() -> str:
    """Give the native core its LAPACK; the library's name, or "" when there is none."""
    if native is None:
        return ""
    package = Path(np.__file__).parent
    # wheels carry OpenBLAS beside the package, with prefixed names; "64_" marks 64-bit integers
    for folder in (package.parent / "numpy.libs", package / ".libs"):
        for path in sorted(folder.glob("*openblas*")) if folder.is_dir() else ():
            for prefix, suffix, width in (("scipy_", "64_", 8), ("", "64_", 8), ("scipy_", "", 4), ("", "", 4)):
                if native.bind_library(str(path), prefix, suffix, width) == len(_LAPACK + _BLAS):
                    return path.name
    # a NumPy of the system or of a site: its BLAS is loaded under one of the usual names
    for name in ("libopenblas.so.0", "libmkl_rt.so.2", "libmkl_rt.so.3", "liblapack.so.3"):
        if native.bind_library(name, "", "", 4) == len(_LAPACK + _BLAS):
            return name
    return _bind_scipy()


def _bind_scipy() -> str:
    assert native is not None
    try:
        from scipy.linalg import cython_blas, cython_lapack
    except ImportError:
        return ""
    for names, table in ((_LAPACK, cython_lapack.__pyx_capi__), (_BLAS, cython_blas.__pyx_capi__)):
        for name in names:
            # each capsule's name is the C signature, so that the width of its integers can be read from it
            if "int *" not in repr(table[name]) or not native.bind_capsule(name, table[name], 4):
                return ""
    return "scipy.linalg.cython_lapack"


LIBRARY = bind()


def _missing(device: str) -> str:
    if native is None:
        return missing_reason
    return "" if LIBRARY else "neither NumPy's BLAS nor SciPy's LAPACK could be reached\nhint: pip install scipy"


ENGINE = Engine(
    name="lapack",
    what="LAPACK",
    library=lambda: (LIBRARY or "NumPy or SciPy") + (f", for torch tensors {lender()}" if lender() else ""),
    capabilities=tuple(
        Capability(op, "lapack", "cpu", DTYPES, "one matrix after the other, with the library's threads")
        for op in ("cholesky", "eigh", "eigvalsh", *SOLVED)
    ),
    missing=_missing,
    workspace=lambda problem: workspace(problem, "lapack"),
)
