"""The names of JAXMg's solvers for sharded JAX arrays.

Instead of ``from jaxmg import potrs``::

    from lapwing.compat.jaxmg import potrs

All three generations of its interface are accepted: columns split (``P(None, "x")``, ``cyclic_1d=True``,
``potrs_no_shardmap``), rows split (``P("x", None)``, ``pad``, ``*_shardmap_ctx`` on blocks), and 1.x (``matrix_specs``,
``return_logdet``, ``lu_solve``, ``qr``, ...). The algorithms inside XLA do the work, on CPU or GPU devices, in one process
or many; the ordinary engines where the mesh is one device. Nothing is set at import, any number of right-hand sides is
accepted, and no input is deleted without ``donate=True``. Both triangles of a Hermitian matrix may be present; as in JAXMg, the
upper one is read if rows are split, and the lower one if columns are. Outside of jit the engine is chosen as for lapwing's own
functions.

A failure gives NaN and a status that is not zero (7); 0 is success. It is one int32 for all devices; inside shard_map it has
shape (1,). (In JAXMg 1.x it is a vector with private contents.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ... import __version__, eigh, eigvalsh, factor, inv, solve
from ...distributed import shard
from ...distributed.backends.protocol import check_columns
from ...distributed.backends.xla.layout import shard_map as shard_map
from . import utils
from .layout import (
    JaxMgWarning,
    Place,
    asked_for,
    calculate_all_valid_T_A,
    calculate_padding,
    calculate_valid_T_A,
    check_rows,
    compiled,
    cyclic_1d,
    cyclic_1d_layout,
    cyclic_1d_no_shardmap,
    determine_distributed_setup,
    device_supports_vmm,
    discard,
    finite_status,
    get_cols_cyclic,
    get_mesh_and_spec_from_array,
    inside,
    manual_axes,
    manual_cyclic_1d_layout,
    maybe_real_dtype_from_complex,
    pad_rows,
    placed,
    plot_block_to_cyclic,
    random_psd,
    status,
    symmetrized,
    undo_cyclic_1d_layout,
    undo_cyclic_1d_no_shardmap,
    unpad_rows,
    verify_cyclic,
)
from .rectangular import (
    gesvd,
    gesvd_shardmap_ctx,
    least_squares,
    least_squares_shardmap_ctx,
    polar,
    polar_shardmap_ctx,
    qr,
    qr_shardmap_ctx,
)

__all__ = [
    "JaxMgWarning",
    "__version__",
    "calculate_all_valid_T_A",
    "calculate_padding",
    "calculate_valid_T_A",
    "cyclic_1d",
    "cyclic_1d_layout",
    "cyclic_1d_no_shardmap",
    "determine_distributed_setup",
    "device_supports_vmm",
    "gesvd",
    "gesvd_shardmap_ctx",
    "get_cols_cyclic",
    "get_mesh_and_spec_from_array",
    "least_squares",
    "least_squares_shardmap_ctx",
    "lu_solve",
    "lu_solve_shardmap_ctx",
    "manual_cyclic_1d_layout",
    "maybe_real_dtype_from_complex",
    "pad_rows",
    "plot_block_to_cyclic",
    "polar",
    "polar_shardmap_ctx",
    "potri",
    "potri_no_shardmap",
    "potri_shardmap_ctx",
    "potri_symmetrize",
    "potrs",
    "potrs_jit_ctx",
    "potrs_no_shardmap",
    "potrs_shardmap_ctx",
    "qr",
    "qr_shardmap_ctx",
    "random_psd",
    "syevd",
    "syevd_no_shardmap",
    "syevd_shardmap_ctx",
    "undo_cyclic_1d_layout",
    "undo_cyclic_1d_no_shardmap",
    "unpad_rows",
    "utils",
    "verify_cyclic",
]


def potrs(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Any = None, cyclic_1d: bool = False, return_logdet: bool = False, donate: bool = False,
) -> Any:  # fmt: skip
    """Solve A x = b for a positive definite A: x, (x, status), (x, logdet) or (x, logdet, status).

    ``in_specs`` (or the fifth argument) is the spec of A, or a pair with that of b. ``T_A`` is the width of a panel.
    ``cyclic_1d=True``: A is already in the order of ``cyclic_1d_layout``. ``donate=True``: a and b are deleted afterwards, as
    in 1.x, where that is the default.
    """
    (check_columns if cyclic_1d else check_rows)("potrs", a, b)
    place = Place("potrs", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d, sides=True)
    x, logdet, info = _solved(place, a, b, "pos", return_logdet, cyclic_1d, donate)
    return asked_for((x, True), (logdet, return_logdet), (info, return_status))


def lu_solve(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, *, in_specs: Any = None,
    return_status: bool = False, pad: bool = True, donate: bool = False,
) -> Any:  # fmt: skip
    """Solve A x = b for any square A: x, or (x, status)."""
    check_rows("lu_solve", a, b)
    place = Place("lu_solve", a, T_A, mesh, matrix_specs, in_specs, pad, sides=True)
    x, _, info = _solved(place, a, b, "general", False, False, donate)
    return asked_for((x, True), (info, return_status))


def potri(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_status: bool = False, pad: bool = True, *,
    in_specs: Any = None, cyclic_1d: bool = False,
) -> Any:  # fmt: skip
    """The inverse of a positive definite matrix, exactly Hermitian: X, or (X, status)."""
    place = Place("potri", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d)
    a = _in_blocks(place, a) if cyclic_1d else place.matrix(a)
    if place.planned(a):
        x = placed(place, lambda a: inv(a, assume="pos", upper=place.upper, on_fail="nan"), place.spec, a)
        return asked_for((x, True), (finite_status(x), return_status))
    options: dict[str, Any] = {"axis_name": place.names, "upper": place.upper}
    x, info = compiled(shard.inv_ex, place.mesh, (place.spec,), (place.spec, PartitionSpec()), **options)(a)
    return asked_for((x, True), (status(info), return_status))


def syevd(
    a: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, return_eigenvectors: bool = True,
    return_status: bool = False, pad: bool = True, *, in_specs: Any = None, cyclic_1d: bool = False, donate: bool = False,
) -> Any:  # fmt: skip
    """Eigenvalues and eigenvectors of a Hermitian matrix: w, (w, V), (w, status) or (w, V, status).

    V is split by columns, also where A is split by rows, as in JAXMg.
    """
    _check_syevd(T_A)
    place = Place("syevd", a, T_A, mesh, matrix_specs, in_specs, pad, square=not cyclic_1d)
    matrix = _in_blocks(place, a) if cyclic_1d else place.matrix(a)
    specs = (PartitionSpec(), place.spec)
    if place.planned(a):
        call = eigh if return_eigenvectors else eigvalsh
        w, v = placed(
            place, lambda a: (*results,) if isinstance(results := call(a, upper=place.upper, on_fail="nan"), tuple)
            else (results, None), specs, matrix,
        )  # fmt: skip
    else:
        options: dict[str, Any] = {"axis_name": place.names, "upper": place.upper}
        function = shard.eigh if return_eigenvectors else _values_alone
        w, v = compiled(function, place.mesh, (place.spec,), (specs[0], specs[1] if return_eigenvectors else None), **options)(
            matrix
        )
    if return_eigenvectors and place.rows and (*place.spec, None)[1] is None:  # blocks of both axes stay as they are
        turned = PartitionSpec(None, place.spec[0])
        v = compiled(_columns_of, place.mesh, (place.spec,), turned, names=place.names)(place.put(v, place.spec))
    discard(donate, a)
    return asked_for((w, True), (v, return_eigenvectors), (finite_status(w), return_status))


def _values_alone(a: Any, **options: Any) -> tuple[Any, None]:
    return shard.eigvalsh(a, **options), None


def _columns_of(v: Any, names: Any) -> Any:
    """In a shard_map: my columns of a square matrix, from my rows."""
    rows, n = v.shape
    return jax.lax.all_to_all(v.reshape(rows, -1, rows), names, 1, 0, tiled=True).reshape(n, rows)


def _check_syevd(tile: int) -> None:
    if tile > 1024:
        raise ValueError(f"syevd: T_A has a maximum value of 1024, received T_A={tile}\nhint: T_A=1024 or less")


def potri_symmetrize(a: Any) -> Any:
    """The whole Hermitian matrix from its upper triangle; the other triangle must be zero."""
    return symmetrized(a)


# -- inside the user's shard_map ----------------------------------------------------------------------------------------------


def potrs_no_shardmap(a: Any, b: Any, T_A: int) -> tuple[Any, Any]:
    """In a shard_map: (x, status of shape (1,)) from this device's columns (or rows) of A and the whole b."""
    x, info = shard.solve_ex(a, b, b_split="none", width=_width(a, T_A), **_read(a))
    return x, status(info)[None]


def potrs_shardmap_ctx(
    a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, pad: bool = True, *, in_specs: Any = None,
    return_logdet: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """In a shard_map: (x, status of shape (1,)) for a b that every device has.

    With this device's rows of b, or ``return_logdet=True``, as in 1.5: (A's work space, x[, logdet], status). Outside of a
    shard_map, as in 1.4, it is :func:`potrs_jit_ctx`.
    """
    if not inside(a):
        return potrs_jit_ctx(a, b, T_A, mesh, matrix_specs, pad=pad, in_specs=in_specs, return_logdet=return_logdet, **more)
    if b.shape[0] == max(a.shape) and not return_logdet:
        return potrs_no_shardmap(a, b, T_A)
    x, logdet, info = shard.solve_logdet_ex(a, b, width=_width(a, T_A), **_read(a))
    return asked_for((a, True), (x, True), (logdet, return_logdet), (status(info)[None], True))


def potrs_jit_ctx(a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, **more: Any) -> Any:
    """On whole arrays, inside your jit: (A's work space, x[, logdet], status)."""
    return (a, *potrs(a, b, T_A, mesh, matrix_specs, return_status=True, **more))


def lu_solve_shardmap_ctx(a: Any, b: Any, T_A: int, mesh: Any = None, matrix_specs: Any = None, **more: Any) -> Any:
    """As :func:`potrs_shardmap_ctx`, for any square matrix."""
    if inside(a):
        x, info = shard.solve_ex(a, b, axis_name=manual_axes(a), assume="general", b_split="none", width=_width(a, T_A))
        return x, status(info)[None]
    return (a, *lu_solve(a, b, T_A, mesh, matrix_specs, return_status=True, **more))


def potri_no_shardmap(a: Any, T_A: int) -> tuple[Any, Any]:
    """In a shard_map: (this device's block of the inverse, status of shape (1,))."""
    x, info = shard.inv_ex(a, **_read(a))
    return x, status(info)[None]


def potri_shardmap_ctx(a: Any, T_A: int, pad: bool = True) -> tuple[Any, Any]:
    """In a shard_map: (this device's block of the inverse's upper triangle, status of shape (1,)); see potri_symmetrize."""
    names = manual_axes(a)
    x, info = shard.inv_ex(a, **_read(a))
    start = jax.lax.axis_index(names)
    rows = jnp.arange(a.shape[0])[:, None] + (start * a.shape[0] if a.shape[0] < a.shape[1] else 0)
    columns = jnp.arange(a.shape[1])[None] + (start * a.shape[1] if a.shape[1] < a.shape[0] else 0)
    return jnp.where(rows <= columns, x, 0), status(info)[None]


def syevd_no_shardmap(a: Any, T_A: int, return_eigenvectors: bool = True) -> tuple[Any, ...]:
    """In a shard_map: (w, this device's block of V, status of shape (1,)), or (w, status). V is split as A is."""
    if return_eigenvectors:
        w, v = shard.eigh(a, **_read(a))
        return w, v, finite_status(w)[None]
    w = shard.eigvalsh(a, **_read(a))
    return w, finite_status(w)[None]


def syevd_shardmap_ctx(
    a: Any, T_A: int, *more: Any, mesh: Any = None, matrix_specs: Any = None, return_eigenvectors: bool | None = None,
    pad: bool = True, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """In a shard_map: (w, this device's columns of V, status of shape (1,)), or (w, status), also if A is split by rows.

    Outside of one, as in 1.x: (A's work space, w, V, status). ``more``: mesh and specs as in 1.x, else return_eigenvectors and
    pad.
    """
    _check_syevd(T_A)
    if more and isinstance(more[0], (Mesh, AbstractMesh)):
        mesh, matrix_specs = (*more, matrix_specs)[:2]
    elif more:
        return_eigenvectors = bool(more[0])
    return_eigenvectors = return_eigenvectors is not False
    if not inside(a):
        return (
            a,
            *syevd(a, T_A, mesh, matrix_specs, return_eigenvectors=return_eigenvectors, return_status=True, **options),
        )
    w, *v, info = syevd_no_shardmap(a, T_A, return_eigenvectors)
    if v and a.shape[0] < a.shape[1]:
        v = [_columns_of(v[0], manual_axes(a))]
    return w, *v, info


def _width(a: Any, tile: int) -> int:
    """A tile that is larger than a shard is the shard."""
    return int(min(tile, *a.shape))


def _read(a: Any) -> dict[str, Any]:
    """The axes around a block, and the triangle that is read: below the diagonal where columns are split."""
    return {"axis_name": manual_axes(a), "upper": a.shape[0] < a.shape[1]}


def _solved(place: Place, a: Any, b: Any, assume: Any, logdet: bool, cyclic: bool, donate: bool) -> tuple[Any, Any, Any]:
    """x, log det A if ``logdet``, and the status."""
    whole = PartitionSpec()
    upper = assume == "pos" and place.upper
    if place.planned(a, b) and not cyclic and not donate:

        def work(a: Any, b: Any) -> tuple[Any, Any]:
            if not logdet:
                return solve(a, b, assume=assume, upper=upper, on_fail="nan"), None
            f = factor(a, assume=assume, upper=upper, on_fail="nan")
            return f.solve(b), f.logdet()

        x, value = placed(place, work, (place.b_spec, whole), place.matrix(a), place.put(b, place.b_spec))
        return x, value, finite_status(x)
    rows, columns = (*place.b_spec, None, None)[:2]
    split = "rows" if rows is not None else "columns" if columns is not None else "none"
    specs = (place.spec, place.b_spec), (place.b_spec, whole, whole)
    options: dict[str, Any] = {"axis_name": place.names, "width": place.tile, "assume": assume, "b_split": split}
    options |= {"spec": place.spec if cyclic else None, "upper": upper}
    # x may take the memory of b; no result fits into that of a, which is deleted after the call
    call = compiled(_local_solve, place.mesh, *specs, donated=(1,) if donate else (), **options)
    x, value, info = call(place.matrix(a), place.put(b, place.b_spec))
    discard(donate, a, b)
    return x, value, status(info)


def _local_solve(a: Any, b: Any, spec: Any, **options: Any) -> Any:
    """``spec``: that of a matrix in block-cyclic order, else None."""
    a = a if spec is None else _from_cyclic(a, options["axis_name"], options["width"], spec)
    return shard.solve_logdet_ex(a, b, **options)


def _in_blocks(place: Place, a: Any) -> Any:
    """A matrix in block-cyclic order, in contiguous blocks."""
    fixed: dict[str, Any] = {"names": place.names, "tile": place.tile, "spec": place.spec}
    return compiled(_from_cyclic, place.mesh, (place.spec,), place.spec, **fixed)(place.put(a, place.spec))


def _from_cyclic(a: Any, names: Any, tile: int, spec: Any) -> Any:
    """Blocks from block-cyclic order. The axis that is not split has the order as its length; the other may have been
    padded."""
    rows = next(iter(spec)) is not None
    n = a.shape[1 if rows else 0]
    if a.shape[0 if rows else 1] == tile:  # one tile on each device
        return a
    return shard.from_cyclic(a, axis_name=names, width=tile, n=n, split="rows" if rows else "columns")
