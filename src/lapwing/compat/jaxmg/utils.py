"""JAXMg's utilities, under the name of its own module."""

from __future__ import annotations

from .layout import (
    JaxMgWarning,
    determine_distributed_setup,
    get_mesh_and_spec_from_array,
    maybe_real_dtype_from_complex,
    random_psd,
)
from .layout import symmetrized as symmetrize

__all__ = [
    "JaxMgWarning",
    "determine_distributed_setup",
    "get_mesh_and_spec_from_array",
    "maybe_real_dtype_from_complex",
    "random_psd",
    "symmetrize",
]
