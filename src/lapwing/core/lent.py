"""LAPACK routines that torch lends for its own tensors: MKL, up to twice as fast as NumPy's OpenBLAS on the CPUs of its maker.

Arrays of other libraries stay with NumPy's routines, whose threads their programs use already. So does a forked child: the
threads of torch do not live there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .native import native

__all__ = ["borrow_from_torch", "lender"]

# what torch itself needs of LAPACK, and so has; all else stays NumPy's
_NAMES = [t + name for name in ("potrf", "getrf", "geqrf", "gesdd", "potri", "trsm", "gemm") for t in "sdcz"]
_lender = ""


def lender() -> str:
    """Who lends now, or ""."""
    return _lender


def borrow_from_torch(torch: Any) -> None:
    """For tensors of this module use its routines from the next call on, if they are the faster ones here."""
    global _lender
    if native is None or not torch.backends.mkl.is_available() or not _made_by_intel():
        return
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if native.bind_library(str(library), "", "", 4, True) >= len(_NAMES):
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
