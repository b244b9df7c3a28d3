"""The calls for use inside your own ``jax.shard_map``: blocks in, blocks out.

``axis_name`` is the mesh axis that splits the matrix, or a tuple of axes. The shape of the block says what it splits:
n/p x n: the rows; n x n/p: the columns; n/p x n/q with two axes: both. Only wrong shapes and dtypes raise an error here: a
matrix that cannot be factored gives NaN, and the ``_ex`` functions also return a status, the same on every device.

Derivatives are with respect to the entries that are read: for a positive definite matrix one triangle gets the whole gradient
(the public functions give its Hermitian part). They keep every step of the loops; derivatives outside of shard_map cost
less. eigh, and qr and svd of matrices that are not long and narrow, have derivatives only outside.

Give ``shard_map`` the option ``check_vma=False`` (``check_rep=False`` before JAX 0.6), as JAX cannot see what is replicated.

Needs JAX.
"""

from __future__ import annotations

from typing import Any, Required, TypedDict, Unpack

import numpy as np

from .backends.protocol import check_columns
from .backends.xla.panels import panels_of_width
from .placement import Grid
from .shard_blocks import axes_of, cyclic, dense, method_of, right_grid, square

__all__ = [
    "cholesky",
    "cholesky_ex",
    "eigh",
    "eigvalsh",
    "from_cyclic",
    "inv",
    "inv_ex",
    "lstsq",
    "polar",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_logdet_ex",
    "svd",
    "svdvals",
    "to_cyclic",
]


class MatrixOptions(TypedDict, total=False):
    """The keywords of calls on a square matrix; see :func:`solve`."""

    axis_name: Required[Any]
    assume: str
    upper: bool
    width: int | None


class SystemOptions(MatrixOptions, total=False):
    """The keywords of :func:`solve`."""

    b_split: str


def cholesky(a_local: Any, *, axis_name: Any, upper: bool = False, width: int | None = None) -> Any:
    """This device's block of the Cholesky factor.

    Parameters
    ----------
    a_local : array, shape (n/p, n), (n, n/p) or (n/p, n/q)
        This device's block of a positive definite matrix. Only the triangle named by ``upper`` is read.
    axis_name : str or tuple of str
        The mesh axes that split the matrix.
    upper : bool
        False: L with A = L L^H. True: U with A = U^H U.
    width : int, optional
        Columns in a panel.

    Returns
    -------
    array like ``a_local``

    Raises
    ------
    ValueError, TypeError
        Wrong shape or dtype.

    Examples
    --------
    >>> import jax, jax.numpy as jnp  # doctest: +SKIP
    >>> from jax.sharding import PartitionSpec as P
    >>> from lapwing.distributed import shard
    >>> mesh = jax.make_mesh((8,), ("x",))  # doctest: +SKIP
    >>> factor = jax.shard_map(  # doctest: +SKIP
    ...     lambda a: shard.cholesky(a, axis_name="x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    ... )
    """
    return cholesky_ex(a_local, axis_name=axis_name, upper=upper, width=width)[0]


def cholesky_ex(a_local: Any, *, axis_name: Any, upper: bool = False, width: int | None = None) -> tuple[Any, Any]:
    """This device's block of the factor, and the status: 0, or the order of the first minor that is not positive definite."""
    from .backends.xla.calls import local_factor, triangle_of

    grid, cut = square("shard.cholesky", a_local, axis_name, width, upper)
    f = local_factor(a_local, grid, cut, upper)
    return triangle_of(f, grid, cut, upper), f.info


def solve(a_local: Any, b_local: Any, **options: Unpack[SystemOptions]) -> Any:
    """This device's block of A^-1 B.

    Parameters
    ----------
    a_local : array
        As for :func:`cholesky`.
    b_local : array, shape (n,), (n, k) or (n/p, k)
        The right-hand sides, the same on every device, or this device's block of them.
    axis_name, upper, width
        As for :func:`cholesky`.
    assume : {"pos", "general"}
        Positive definite (default), or any matrix.
    b_split : {"auto", "none", "rows", "columns"}
        Which axis of B is split over all of ``axis_name``. With "auto" (default) a B of n rows is whole, and one with fewer
        is a block of rows.

    Returns
    -------
    array like ``b_local``

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype or choice.
    """
    return solve_logdet_ex(a_local, b_local, **options)[0]


def solve_ex(a_local: Any, b_local: Any, **options: Unpack[SystemOptions]) -> tuple[Any, Any]:
    """This device's block of A^-1 B, and the status. Options as for :func:`solve`."""
    x, _, info = solve_logdet_ex(a_local, b_local, **options)
    return x, info


def solve_logdet_ex(
    a_local: Any,
    b_local: Any,
    *,
    axis_name: Any,
    assume: str = "pos",
    upper: bool = False,
    b_split: str = "auto",
    width: int | None = None,
) -> tuple[Any, Any, Any]:
    """This device's block of A^-1 B, log |det A| and the status, from one factorisation."""
    name = "shard.solve"
    grid, cut = square(name, a_local, axis_name, width, upper)
    check_columns(name, a_local, b_local)
    b = b_local[:, None] if b_local.ndim == 1 else b_local
    right = right_grid(name, b, grid, cut.n, b_split)
    method = method_of(name, assume)
    f = method.local_factor(a_local, grid, cut, upper)
    x = method.apply(f, b, grid, right, cut, upper, turned=False)
    return (x[:, 0] if b_local.ndim == 1 else x), method.slogdet_of(f)[1], f.info


def inv(a_local: Any, **options: Unpack[MatrixOptions]) -> Any:
    """This device's block of A^-1; for "pos" it is exactly Hermitian. Options as for :func:`solve`, without ``b_split``."""
    return inv_ex(a_local, **options)[0]


def inv_ex(
    a_local: Any, *, axis_name: Any, assume: str = "pos", upper: bool = False, width: int | None = None
) -> tuple[Any, Any]:
    """This device's block of A^-1, and the status."""
    grid, cut = square("shard.inv", a_local, axis_name, width, upper)
    method = method_of("shard.inv", assume)
    f = method.local_factor(a_local, grid, cut, upper)
    return method.inverse_of(f, grid, cut, upper), f.info


def slogdet(
    a_local: Any, *, axis_name: Any, assume: str = "pos", upper: bool = False, width: int | None = None
) -> tuple[Any, Any]:
    """Sign and log |det A|, the same on every device."""
    grid, cut = square("shard.slogdet", a_local, axis_name, width, upper)
    method = method_of("shard.slogdet", assume)
    return method.slogdet_of(method.local_factor(a_local, grid, cut, upper))  # type: ignore[no-any-return]


def qr(a_local: Any, *, axis_name: Any) -> tuple[Any, Any]:
    """This device's block of Q, and R.

    The block is m/p x n of a matrix split by rows, or n/p x n/q of a square one split by two axes. If m/p >= n, R is whole on
    every device. Else you get this device's block of R, which is k x n with k = min(m, n): the rows are split if the devices
    divide their number, else the columns; if neither is possible, R is whole.
    """
    from .backends.xla import spectra, tall

    grid, cut = dense("shard.qr", a_local, axis_name)
    return tall.local_qr(a_local, grid) if cut is None else spectra.local_qr(a_local, grid, cut)


def svd(a_local: Any, *, axis_name: Any) -> tuple[Any, Any, Any]:
    """This device's block of U, S on every device, and V^H.

    The matrix is as for :func:`qr`, with at least as many rows as columns.
    If m/p >= n, V^H is whole on every device, else you get this device's block, split as R of :func:`qr`.
    """
    from .backends.xla import spectra, tall

    grid, cut = dense("shard.svd", a_local, axis_name, tall_only=True)
    results = tall.local_svd(a_local, grid) if cut is None else spectra.local_svd(a_local, grid, cut, True)
    return results[:3]


def svdvals(a_local: Any, *, axis_name: Any) -> Any:
    """Singular values, on every device. The matrix as for :func:`svd`."""
    from .backends.xla import spectra, tall

    grid, cut = dense("shard.svdvals", a_local, axis_name, tall_only=True)
    return (tall.local_svd(a_local, grid) if cut is None else spectra.local_svd(a_local, grid, cut, False))[1]


def polar(a_local: Any, *, axis_name: Any) -> tuple[Any, Any]:
    """This device's block of U, and P, with A = U P. The matrix as for :func:`svd`; P is split as V^H is there."""
    from .backends.xla import spectra, tall

    grid, cut = dense("shard.polar", a_local, axis_name, tall_only=True)
    results = tall.local_polar(a_local, grid) if cut is None else spectra.local_polar(a_local, grid, cut)
    return results[:2]


def lstsq(a_local: Any, b_local: Any, *, axis_name: Any, rcond: float | None = None) -> tuple[Any, Any, Any, Any]:
    """x, residuals, rank and singular values, on every device.

    The matrix as for :func:`svd`; ``b_local`` is this device's m/p rows of B, or all m.
    """
    from .backends.xla import spectra, tall

    grid, cut = dense("shard.lstsq", a_local, axis_name, tall_only=True)
    m = a_local.shape[0] * grid.p
    check_columns("shard.lstsq", a_local, b_local)
    b = b_local[:, None] if b_local.ndim == 1 else b_local
    if b.shape[0] not in (m, a_local.shape[0]):
        raise ValueError(f"shard.lstsq: b must have {m} rows, or {a_local.shape[0]} on this device, got {b.shape[0]}")
    limit = float(np.finfo(str(a_local.dtype)).eps) * m if rcond is None else float(rcond)
    right = None if b.shape[0] == m else Grid(grid.rows, ())
    if cut is None:
        x, residuals, rank, s, _ = tall.local_lstsq(a_local, b, limit, grid, right)
    else:
        x, residuals, rank, s, _ = spectra.local_lstsq(a_local, b, limit, grid, right, cut, turned=False)
    return (x[:, 0], residuals[0], rank, s) if b_local.ndim == 1 else (x, residuals, rank, s)


def eigh(a_local: Any, *, axis_name: Any, upper: bool = False, width: int | None = None) -> tuple[Any, Any]:
    """Eigenvalues on every device, and this device's block of the eigenvectors. Arguments as for :func:`cholesky`."""
    return _spectrum("shard.eigh", a_local, axis_name, upper, width, True)


def eigvalsh(a_local: Any, *, axis_name: Any, upper: bool = False, width: int | None = None) -> Any:
    """Eigenvalues, on every device. Arguments as for :func:`cholesky`."""
    return _spectrum("shard.eigvalsh", a_local, axis_name, upper, width, False)[0]


def _spectrum(name: str, a_local: Any, axis_name: Any, upper: bool, width: int | None, vectors: bool) -> tuple[Any, Any]:
    from .backends.xla.spectra import local_eigh
    from .backends.xla.triangle import local_mirrored

    grid, cut = square(name, a_local, axis_name, width, upper)
    return local_eigh(local_mirrored(a_local, grid, cut, upper, True), grid, cut, (0, cut.n), vectors)[:2]


def to_cyclic(a_local: Any, *, axis_name: Any, width: int, split: str = "columns") -> Any:
    """This device's panels of a matrix whose columns (or rows) are split in contiguous blocks: panel g is on device g mod p.

    Uses only all-to-alls. If the devices do not have the same number of panels, the last ones are filled with zeros.
    """
    from .backends.xla.layout import to_panels

    grid, cut = cyclic("shard.to_cyclic", a_local, axis_name, width, split)
    return to_panels(a_local, grid, cut) if split == "columns" else to_panels(a_local.T, grid, cut).T


def from_cyclic(c_local: Any, *, axis_name: Any, width: int, n: int, split: str = "columns") -> Any:
    """This device's contiguous block of the ``n`` columns (or rows), from its panels."""
    from .backends.xla.layout import from_panels

    grid = Grid((), axes_of("shard.from_cyclic", axis_name))
    cut = panels_of_width(n, grid.size, width)
    c = c_local if split == "columns" else c_local.T
    if c.shape[1] != cut.columns or n % grid.size:
        raise ValueError(
            f"shard.from_cyclic: panels of width {width} for n = {n} on {grid.size} devices are {cut.columns} wide together,"
            f" got {c.shape[1]}"
        )
    block = from_panels(c, grid, cut, c.shape[0])
    return block if split == "columns" else block.T
