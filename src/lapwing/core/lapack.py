"""LAPACK through pointers that the process already has: NumPy's own OpenBLAS, SciPy's table, or torch's. No BLAS is linked.

Tensors of torch are worked on with torch's own MKL, which is up to twice as fast as NumPy's OpenBLAS on Intel CPUs. Arrays of
other libraries stay with NumPy's routines, whose threads their programs use already. So does a forked child, where the threads
of torch do not exist.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from .native import missing_reason, native

# a real routine that also serves complex Hermitian matrices is listed twice, as in the native table
_LAPACK = (
    *[
        t + name
        for name in ("potrf", "getrf", "trtri", "lauum", "geqrf", "gesdd", "gesvd", "potri", "sytrf", "sytrs", "geev", "gees")
        for t in "sdcz"
    ],
    *[t + name for name in ("syevd", "syevr", "orgqr", "ormqr", "sytrf", "sytrs") for t in "sd"],
    *[t + name for name in ("sterf", "stedc", "bdsdc") for t in "sdsd"],
    *[t + name for name in ("heevd", "heevr", "ungqr", "unmqr", "hetrf", "hetrs") for t in "cz"],
)
_BLAS = (*[t + name for name in ("trsm", "trmm", "trsv", "gemm") for t in "sdcz"], "ssyrk", "dsyrk", "cherk", "zherk")
# torch has these because it calls them itself; all others stay NumPy's
_LENT = [t + name for name in ("potrf", "getrf", "geqrf", "gesdd", "potri", "trsm", "gemm") for t in "sdcz"]
_lender = ""


def _bind() -> str:
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


LIBRARY = _bind()


def missing() -> str:
    """Why LAPACK cannot be used here, or ""."""
    if native is None:
        return missing_reason
    return "" if LIBRARY else "neither NumPy's BLAS nor SciPy's LAPACK could be reached\nhint: pip install scipy"


def libraries() -> str:
    """The library whose routines are called, and the one that torch lends for its tensors."""
    return (LIBRARY or "NumPy or SciPy") + (f", for torch tensors {_lender}" if _lender else "")


def borrow_from_torch(torch: Any) -> None:
    """From the next call on use torch's own routines for its tensors, if they are the faster ones here."""
    global _lender
    if native is None or not torch.backends.mkl.is_available() or not _made_by_intel():
        return
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if native.bind_library(str(library), "", "", 4, True) >= len(_LENT):
        native.use_lent(True)
        _lender = f"MKL of torch {torch.__version__}"
        os.register_at_fork(after_in_child=_give_back)


def _give_back() -> None:
    global _lender
    assert native is not None
    native.use_lent(False)
    _lender = ""


def _made_by_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
