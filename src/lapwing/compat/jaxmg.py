"""The names of JAXMg's solvers for sharded JAX arrays.

Instead of ``from jaxmg import potrs``::

    from lapwing.compat.jaxmg import potrs

All three generations of its interface are accepted: columns split (``P(None, "x")``, ``cyclic_1d=True``,
``potrs_no_shardmap``), rows split (``P("x", None)``, ``pad``, ``*_shardmap_ctx`` on blocks), and 1.x (``matrix_specs``,
``return_logdet``, ``lu_solve``, ``qr``, ...). The algorithms inside XLA do the work, on CPU or GPU devices, in one process
or many; the ordinary engines where the mesh is one device. Nothing is set at import, any number of right-hand sides is
accepted, no input is deleted without ``donate=True``, and both triangles of a positive definite matrix may be present: the one
above the diagonal is read, as JAXMg does.

A failure gives NaN and a status that is not zero (7); 0 is success. It is one int32 for all devices; inside shard_map it has
shape (1,). (1.x has a vector, whose words are private to it.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from .. import __version__, eigh, eigvalsh, factor, inv_ex, solve_ex
from ..distributed import shard
from ..distributed.backends.protocol import check_columns, check_right
from ..distributed.backends.xla.layout import shard_map as shard_map
from ..distributed.backends.xla.sharding import put
from .jaxmg_layout import (
    JaxMgWarning,
    Place,
    asked_for,
    calculate_all_valid_T_A,
    calculate_padding,
    compiled,
    cyclic_1d,
    cyclic_1d_layout,
    determine_distributed_setup,
    device_supports_vmm,
    discard,
    finite_status,
    get_cols_cyclic,
    get_mesh_and_spec_from_array,
    inside,
    manual_axes,
    maybe_real_dtype_from_complex,
    on_one_device,
    pad_rows,
    plot_block_to_cyclic,
    random_psd,
    status,
    unpad_rows,
    verify_cyclic,
)
from .jaxmg_rectangular import gesvd, least_squares, polar, qr

__all__ = [
    "JaxMgWarning",
    "__version__",
    "calculate_all_valid_T_A",
    "calculate_padding",
    "cyclic_1d",
    "cyclic_1d_layout",
    "determine_distributed_setup",
    "device_supports_vmm",
    "gesvd",
    "get_cols_cyclic",
    "get_mesh_and_spec_from_array",
    "least_squares",
    "lu_solve",
    "lu_solve_shardmap_ctx",
    "maybe_real_dtype_from_complex",
    "pad_rows",
    "plot_block_to_cyclic",
    "polar",
    "potri",
    "potri_no_shardmap",
    "potri_shardmap_ctx",
    "potri_symmetrize",
    "potrs",
    "potrs_no_shardmap",
    "potrs_shardmap_ctx",
    "qr",
    "random_psd",
    "syevd",
    "syevd_no_shardmap",
    "syevd_shardmap_ctx",
    "unpad_rows",
    "verify_cyclic",
]


def potrs(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Any = None, cyclic_1d: bool = False, return_logdet: bool = False, donate: bool = False,
) -> Any:  # fmt: skip
    """Solve A x = b for a positive definite A: x, (x, status), (x, logdet) or (x, logdet, status).

    ``in_specs`` (or the fifth argument) is the spec of A, or a pair with that of b. ``T_A`` is the width of a panel.
    ``cyclic_1d=True``: A already is in the order of ``cyclic_1d_layout``. ``donate=True``: a and b are deleted afterwards, as
    in 1.x, where that is the default.
    """
    place = Place("potrs", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d)
    (check_columns if cyclic_1d else check_right)("potrs", a, b)
    if place.alone(a, b) and not cyclic_1d:
        x, logdet, info = _solved_alone(place, a, b, "pos", return_logdet)
    else:
        x, logdet, info = _solver(place, T_A, cyclic_1d, "pos", donate)(a, b)
    discard(donate, a, b)
    return asked_for((x, True), (logdet, return_logdet), (status(info), return_status))


def lu_solve(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None,
    return_status: bool = False, pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """Solve A x = b for any square A: x, or (x, status)."""
    place = Place("lu_solve", a, T_A, mesh, matrix_specs, in_specs, pad)
    check_right("lu_solve", a, b)
    if place.alone(a, b):
        x, _, info = _solved_alone(place, a, b, "general", False)
    else:
        x, _, info = _solver(place, T_A, False, "general", donate)(a, b)
    discard(donate, a, b)
    return asked_for((x, True), (status(info), return_status))


def potri(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Any = None, cyclic_1d: bool = False,
) -> Any:  # fmt: skip
    """The inverse of a positive definite matrix, exactly Hermitian: X, or (X, status)."""
    place = Place("potri", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d)
    a = _in_blocks(place, a, T_A) if cyclic_1d else a
    if place.alone(a):
        x, info = on_one_device(partial(inv_ex, assume="pos", upper=True), a)
        x, info = put(x, place.mesh, place.spec), put(info, place.mesh, PartitionSpec())
    else:
        options: dict[str, Any] = {"axis_name": place.names, "upper": True, "width": T_A}
        x, info = compiled(shard.inv_ex, place.mesh, (place.spec,), (place.spec, PartitionSpec()), **options)(a)
    return asked_for((x, True), (status(info), return_status))


def syevd(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: Any = None, cyclic_1d: bool = False, donate: bool = False,
) -> Any:  # fmt: skip
    """Eigenvalues and eigenvectors of a Hermitian matrix: w, (w, V), (w, status) or (w, V, status).

    The matrix is gathered to one device (inside jit: to every device), which must hold it.
    """
    if T_A > 1024:
        raise ValueError(f"syevd: T_A={T_A} is larger than 1024")
    place = Place("syevd", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d)
    w, v = _eigen(place, _in_blocks(place, a, T_A) if cyclic_1d else a, return_eigenvectors)
    discard(donate, a)
    return asked_for((w, True), (v, return_eigenvectors), (finite_status(w), return_status))


def potri_symmetrize(a: Any) -> Any:
    """The whole Hermitian matrix from its upper triangle, the other being zero."""
    return _symmetrized(a)


@jax.jit
def _symmetrized(a: Any) -> Any:
    upper = jnp.triu(a)
    return upper + jnp.conj(jnp.triu(a, 1)).T


# -- inside the user's shard_map ----------------------------------------------------------------------------------------------


def potrs_no_shardmap(a: Any, b: Any, T_A: int) -> tuple[Any, Any]:
    """In a shard_map: (x, status of shape (1,)) from my columns (or rows) of A and the whole b."""
    x, info = shard.solve_ex(a, b, axis_name=manual_axes(a), upper=True, b_split="none", width=T_A)
    return x, status(info)[None]


def potrs_shardmap_ctx(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, pad: bool = True, **more: Any
) -> Any:
    """In a shard_map: (x, status of shape (1,)). Outside of one, as in 1.x: (A's work space, x[, logdet], status)."""
    if inside(a):
        return potrs_no_shardmap(a, b, T_A)
    return (a, *potrs(a, b, T_A, mesh, matrix_specs, return_status=True, pad=pad, **more))


def lu_solve_shardmap_ctx(a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, **more: Any) -> Any:
    """As :func:`potrs_shardmap_ctx`, for any square matrix."""
    if inside(a):
        x, info = shard.solve_ex(a, b, axis_name=manual_axes(a), assume="general", b_split="none", width=T_A)
        return x, status(info)[None]
    return (a, *lu_solve(a, b, T_A, mesh, matrix_specs, return_status=True, **more))


def potri_no_shardmap(a: Any, T_A: int) -> tuple[Any, Any]:
    """In a shard_map: (my block of the inverse, status of shape (1,))."""
    x, info = shard.inv_ex(a, axis_name=manual_axes(a), upper=True, width=T_A)
    return x, status(info)[None]


def potri_shardmap_ctx(a: Any, T_A: int, pad: bool = True) -> tuple[Any, Any]:
    """In a shard_map: (the upper triangle of the inverse, in my block, status of shape (1,)); see potri_symmetrize."""
    names = manual_axes(a)
    x, info = shard.inv_ex(a, axis_name=names, upper=True, width=T_A)
    start = jax.lax.axis_index(names)
    rows = jnp.arange(a.shape[0])[:, None] + (start * a.shape[0] if a.shape[0] < a.shape[1] else 0)
    columns = jnp.arange(a.shape[1])[None] + (start * a.shape[1] if a.shape[1] < a.shape[0] else 0)
    return jnp.where(rows <= columns, x, 0), status(info)[None]


def syevd_no_shardmap(a: Any, T_A: int, return_eigenvectors: bool = True) -> tuple[Any, ...]:
    """In a shard_map: (w, my block of V, status of shape (1,)), or (w, status)."""
    names = manual_axes(a)
    if return_eigenvectors:
        w, v = shard.eigh(a, axis_name=names, upper=True)
        return w, v, finite_status(w)[None]
    w = shard.eigvalsh(a, axis_name=names, upper=True)
    return w, finite_status(w)[None]


def syevd_shardmap_ctx(a: Any, T_A: int, return_eigenvectors: bool = True, pad: bool = True) -> tuple[Any, ...]:
    """In a shard_map: as :func:`syevd_no_shardmap`."""
    if T_A > 1024:
        raise ValueError(f"syevd: T_A={T_A} is larger than 1024")
    return syevd_no_shardmap(a, T_A, return_eigenvectors)


def _solved_alone(place: Place, a: Any, b: Any, assume: Any, logdet: bool) -> tuple[Any, Any, Any]:
    """x, log det A where it is asked for, and the status."""

    def solved(a: Any, b: Any) -> tuple[Any, Any, Any]:
        if not logdet:
            x, info = solve_ex(a, b, assume=assume, upper=assume == "pos")
            return x, None, info
        f = factor(a, assume=assume, upper=assume == "pos", on_fail="nan")
        return f.solve(b), f.logdet(), f.info

    x, value, info = on_one_device(solved, a, b)
    value, info = (None if y is None else put(y, place.mesh, PartitionSpec()) for y in (value, info))
    return put(x, place.mesh, place.b_spec), value, info


def _solver(place: Place, tile: int, cyclic: bool, assume: str, donate: bool) -> Any:
    rows, columns = (*place.b_spec, None, None)[:2]
    split = "rows" if rows is not None else "columns" if columns is not None else "none"
    specs = (place.spec, place.b_spec), (place.b_spec, PartitionSpec(), PartitionSpec())
    options: dict[str, Any] = {"axis_name": place.names, "width": tile, "assume": assume, "b_split": split}
    options |= {"spec": place.spec if cyclic else None, "upper": assume == "pos"}
    # x may take the memory of b; no result fits into that of a, which is deleted after the call
    return compiled(_local_solve, place.mesh, *specs, donated=(1,) if donate else (), **options)


def _local_solve(a: Any, b: Any, spec: Any, **options: Any) -> Any:
    """``spec``: that of a matrix in block-cyclic order, else None."""
    a = a if spec is None else _from_cyclic(a, options["axis_name"], options["width"], spec)
    return shard.solve_logdet_ex(a, b, **options)


def _in_blocks(place: Place, a: Any, tile: int) -> Any:
    """A matrix in block-cyclic order, in contiguous blocks."""
    fixed: dict[str, Any] = {"names": place.names, "tile": tile, "spec": place.spec}
    return compiled(_from_cyclic, place.mesh, (place.spec,), place.spec, **fixed)(a)


def _from_cyclic(a: Any, names: Any, tile: int, spec: Any) -> Any:
    """The axis that is not split tells the order; the other may have been padded."""
    split = "rows" if next(iter(spec)) is not None else "columns"
    return shard.from_cyclic(a, axis_name=names, width=tile, n=a.shape[1 if split == "rows" else 0], split=split)


def _eigen(place: Place, a: Any, vectors: bool) -> tuple[Any, Any]:
    """Eigenvalues on every device and, where asked for, eigenvectors as the matrix is split."""
    specs = (PartitionSpec(), place.spec) if vectors else PartitionSpec()
    if isinstance(a, jax.core.Tracer) or not getattr(a, "is_fully_addressable", True):
        function: Any = shard.eigh if vectors else shard.eigvalsh
        results = compiled(function, place.mesh, (place.spec,), specs, axis_name=place.names, upper=True)(a)
    else:
        results = on_one_device(partial(eigh if vectors else eigvalsh, upper=True, on_fail="nan"), a)
        results = jax.tree.map(lambda x, spec: put(x, place.mesh, spec), tuple(results) if vectors else results, specs)
    return results if vectors else (results, None)
