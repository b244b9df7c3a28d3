"""The calls for use inside your own ``jax.shard_map``: blocks in, blocks out.

``axis_name`` is the mesh axis that splits the matrix, or a tuple of axes. The shape of the block says what it splits:
n/p x n: the rows; n x n/p: the columns; n/p x n/q with two axes: both. Nothing raises here but wrong shapes and dtypes: a
matrix that cannot be factored gives NaN, and the ``_ex`` functions also return a status, the same on every device.

They can be differentiated with respect to what is read: of a positive definite matrix one triangle has all of the gradient
(the public functions give its Hermitian part), and every step of the loops is kept. Outside of shard_map that costs less.

Give ``shard_map`` the option ``check_vma=False`` (``check_rep=False`` before JAX 0.6): JAX cannot see what is replicated here.

Needs JAX.
"""

from __future__ import annotations

from typing import Any, Required, TypedDict, Unpack

import numpy as np

from .backends.protocol import check_columns
from .backends.xla.panels import panels_of_width
from .placement import Grid
from .shard_blocks import axes_of, cyclic, method_of, right_grid, square, tall

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
    """My block of the Cholesky factor.

    Parameters
    ----------
    a_local : array, shape (n/p, n), (n, n/p) or (n/p, n/q)
        My block of a positive definite matrix, of which the triangle named by ``upper`` is read.
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
    """My block of the factor, and the status: 0, or the order of the first leading minor that is not positive definite."""
    from .backends.xla.calls import local_factor, triangle_of

    grid, cut = square("shard.cholesky", a_local, axis_name, width, upper)
    f = local_factor(a_local, grid, cut, upper)
    return triangle_of(f, grid, cut, upper), f.info


def solve(a_local: Any, b_local: Any, **options: Unpack[SystemOptions]) -> Any:
    """My block of A^-1 B.

    Parameters
    ----------
    a_local : array
        As for :func:`cholesky`.
    b_local : array, shape (n,), (n, k) or (n/p, k)
        The right-hand sides, the same on every device, or my block of them.
    axis_name, upper, width
        As for :func:`cholesky`.
    assume : {"pos", "general"}
        Positive definite (default), or any matrix.
    b_split : {"auto", "none", "rows", "columns"}
        Which axis of B is split over all of ``axis_name``. "auto" (default) takes n rows for the whole, fewer for a block of
        rows.

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
    """My block of A^-1 B, and the status; the options as for :func:`solve`."""
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
    """My block of A^-1 B, log |det A| and the status, from one factorisation."""
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
    """My block of A^-1; for "pos" it is exactly Hermitian. The options as for :func:`solve`, without ``b_split``."""
    return inv_ex(a_local, **options)[0]


def inv_ex(
    a_local: Any, *, axis_name: Any, assume: str = "pos", upper: bool = False, width: int | None = None
) -> tuple[Any, Any]:
    """My block of A^-1, and the status."""
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
    """My rows of Q, and R on every device, of a matrix split by rows: m/p x n with m/p >= n."""
    from .backends.xla.tall import local_qr

    return local_qr(a_local, tall("shard.qr", a_local, axis_name))


def svd(a_local: Any, *, axis_name: Any) -> tuple[Any, Any, Any]:
    """My rows of U, and S and V^H on every device; the matrix as for :func:`qr`."""
    from .backends.xla.tall import local_svd

    return local_svd(a_local, tall("shard.svd", a_local, axis_name))[:3]


def svdvals(a_local: Any, *, axis_name: Any) -> Any:
    """Singular values, on every device; the matrix as for :func:`qr`."""
    from .backends.xla.tall import local_svd

    return local_svd(a_local, tall("shard.svdvals", a_local, axis_name))[1]


def polar(a_local: Any, *, axis_name: Any) -> tuple[Any, Any]:
    """My rows of U, and P on every device, with A = U P; the matrix as for :func:`qr`."""
    from .backends.xla.tall import local_polar

    return local_polar(a_local, tall("shard.polar", a_local, axis_name))[:2]


def lstsq(a_local: Any, b_local: Any, *, axis_name: Any, rcond: float | None = None) -> tuple[Any, Any, Any, Any]:
    """x, residuals, rank and singular values, on every device.

    The matrix as for :func:`qr`; ``b_local`` are my rows of B (m/p of them), or all m.
    """
    from .backends.xla.tall import local_lstsq

    grid = tall("shard.lstsq", a_local, axis_name)
    m = a_local.shape[0] * grid.p
    check_columns("shard.lstsq", a_local, b_local)
    b = b_local[:, None] if b_local.ndim == 1 else b_local
    if b.shape[0] not in (m, a_local.shape[0]):
        raise ValueError(f"shard.lstsq: b must have {m} rows, or {a_local.shape[0]} as my block, got {b.shape[0]}")
    limit = float(np.finfo(str(a_local.dtype)).eps) * m if rcond is None else float(rcond)
    x, residuals, rank, s, _ = local_lstsq(a_local, b, limit, grid, None if b.shape[0] == m else Grid(grid.rows, ()))
    return (x[:, 0], residuals[0], rank, s) if b_local.ndim == 1 else (x, residuals, rank, s)


def eigh(a_local: Any, *, axis_name: Any, upper: bool = False) -> tuple[Any, Any]:
    """Eigenvalues on every device and my block of the eigenvectors. Every device gathers the matrix: for those that fit."""
    from .backends.xla.layout import local_part

    grid, w, v = _spectrum("shard.eigh", a_local, axis_name, upper)
    return w, local_part(v, grid)


def eigvalsh(a_local: Any, *, axis_name: Any, upper: bool = False) -> Any:
    """Eigenvalues, on every device. Every device gathers the matrix: for those that fit."""
    return _spectrum("shard.eigvalsh", a_local, axis_name, upper)[1]


def _spectrum(name: str, a_local: Any, axis_name: Any, upper: bool) -> tuple[Grid, Any, Any]:
    """The grid of the matrix, and all of its eigenvalues and eigenvectors on every device."""
    import jax.numpy as jnp

    from .backends.xla.layout import gathered

    grid, _ = square(name, a_local, axis_name, None, upper)
    return grid, *jnp.linalg.eigh(gathered(a_local, grid), UPLO="U" if upper else "L", symmetrize_input=False)


def to_cyclic(a_local: Any, *, axis_name: Any, width: int, split: str = "columns") -> Any:
    """My panels of a matrix whose columns (or rows) are split in contiguous blocks: panel g is on device g mod p.

    By all-to-alls alone. Where the panels are not equally many on all devices, zeros fill the last ones.
    """
    from .backends.xla.layout import to_panels

    grid, cut = cyclic("shard.to_cyclic", a_local, axis_name, width, split)
    return to_panels(a_local, grid, cut) if split == "columns" else to_panels(a_local.T, grid, cut).T


def from_cyclic(c_local: Any, *, axis_name: Any, width: int, n: int, split: str = "columns") -> Any:
    """My contiguous block of the ``n`` columns (or rows), from my panels."""
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
