"""A matrix with one block on each rank of a communicator, in the memory of the host or of GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.memory import library_of, matrix_memory, on_device
from ..core.problem import DTYPES
from . import files
from .exchange import exchange
from .layout import Axis, Layout
from .ranks.protocol import agree, attempt, open_communicator


class ShardedMatrix:
    """A matrix over the ranks of a communicator: this rank's block, the layout, and the communicator.

    Create one with :meth:`from_local`, :meth:`from_function`, :meth:`scatter` or :meth:`load`; the public functions
    (``lapwing.solve``, ``lapwing.eigh``, ...) accept it and return results in its layout. All methods are collective, except
    those that only use this rank's block.

    Attributes
    ----------
    local : numpy.ndarray, or an array on a GPU
        The block of this rank, row-major or column-major. On a GPU: an array of CuPy, torch, or any library with
        ``__cuda_array_interface__`` or ``__dlpack__``. cuSOLVERMp works on such matrices, and returns arrays of that library.
    layout : Layout
        Which rows and columns each rank owns.
    comm : mpi4py communicator or None
        The communicator of the caller. For blocks on GPUs it may be a torch process group.

    Examples
    --------
    >>> import numpy as np
    >>> a = ShardedMatrix.scatter(np.eye(3), None)  # with MPI: MPI.COMM_WORLD instead of None
    >>> a
    ShardedMatrix(3 x 3 float64, all 3 rows, all 3 columns on a 1 x 1 grid, rank 0 of 1)
    >>> a.gather().trace()
    np.float64(3.0)
    """

    __slots__ = ("layout", "local", "ranks")
    ndim = 2

    def __init__(self, local: Any, layout: Layout, comm: Any) -> None:
        """For blocks that are known to match the layout; no communication. See :meth:`from_local`."""
        self.ranks = open_communicator(comm)
        self.local, self.layout = local, layout
        expected = layout.local_shape(self.ranks.rank)
        if tuple(local.shape) != expected:
            raise ValueError(
                f"ShardedMatrix: the block of rank {self.ranks.rank} has shape {tuple(local.shape)}, but its layout ({layout})"
                f" says {expected}"
            )

    @classmethod
    def from_local(
        cls,
        local: Any,
        comm: Any,
        *,
        axis: int | None = None,
        grid: tuple[int, int] | None = None,
        layout: Layout | None = None,
    ) -> ShardedMatrix:
        """A matrix of the blocks of all ranks, without a copy.

        Parameters
        ----------
        local : array, shape (rows, columns)
            A NumPy array, or one on a GPU. Blocks may be uneven and empty.
        comm : mpi4py communicator
        axis : int, optional
            0 (default): the blocks are stacked in the order of the ranks. 1: they are side by side.
        grid : (p, q), optional
            The blocks fill a grid, row by row.
        layout : Layout, optional
            Any other layout, such as ``Layout.cyclic(shape, tile, grid)``.

        Returns
        -------
        ShardedMatrix

        Raises
        ------
        ValueError, TypeError
            On all ranks: blocks do not fit together, or dtypes differ.
        """
        name = "ShardedMatrix.from_local"
        ranks = open_communicator(comm)

        def check() -> Any:
            if sum(x is not None for x in (axis, grid, layout)) > 1:
                raise ValueError(f"{name}: give only one of axis, grid and layout")
            if axis not in (None, 0, 1):
                raise ValueError(f"{name}: axis={axis!r} is not 0 or 1")
            if grid is not None and (len(grid) != 2 or grid[0] * grid[1] != ranks.size):
                raise ValueError(f"{name}: grid={grid!r} does not match the number of ranks, {ranks.size}")
            if layout is not None and layout.size > ranks.size:
                raise ValueError(f"{name}: the layout ({layout}) needs {layout.size} ranks, and there are {ranks.size}")
            return checked(name, local)

        block, error = attempt(check)
        local = np.empty((0, 0)) if error else block
        facts = {"axis": axis, "grid": grid, "layout": layout, "dtype": dtype_of(local).name, "library": library_of(local)}
        shapes = agree(ranks, name, facts, error=error, mine=tuple(local.shape))
        if layout is None:
            layout = blocks_layout(name, shapes, grid or ((1, ranks.size) if axis == 1 else (ranks.size, 1)))
        for rank, shape in enumerate(shapes):
            if shape != layout.local_shape(rank):
                raise ValueError(
                    f"{name}: the block of rank {rank} has shape {shape}, but its layout ({layout}) says"
                    f" {layout.local_shape(rank)}"
                )
        return cls(local, layout, ranks)

    @classmethod
    def from_function(
        cls,
        shape: tuple[int, int],
        dtype: Any,
        f: Callable[[np.ndarray, np.ndarray], Any],
        comm: Any,
        *,
        layout: Layout | None = None,
    ) -> ShardedMatrix:
        """Make a matrix: each rank computes its own block.

        Parameters
        ----------
        shape : (m, n)
        dtype : dtype
        f : callable
            ``f(rows, columns)`` returns the block with these global indices (two arrays). Not called for an empty block.
        comm : mpi4py communicator
        layout : Layout, optional
            Blocks of rows by default.

        Examples
        --------
        >>> hilbert = ShardedMatrix.from_function((3, 3), float, lambda i, j: 1 / (i[:, None] + j + 1), None)
        >>> hilbert.gather()[1].round(2).tolist()
        [0.5, 0.33, 0.25]
        """
        name = "ShardedMatrix.from_function"
        ranks = open_communicator(comm)

        def make() -> ShardedMatrix:
            chosen = layout_for(name, shape, layout, ranks)
            expected = chosen.local_shape(ranks.rank)
            block = np.empty(expected, dtype) if 0 in expected else f(*chosen.indices(ranks.rank))
            if on_device(block):
                raise TypeError(f"{name}: f returned a block on a GPU\nhint: use ShardedMatrix.from_local")
            block = np.asarray(block, dtype)
            if block.shape != expected:
                raise ValueError(f"{name}: f returned a block of shape {block.shape}, and the layout needs {expected}")
            return cls(checked(name, block), chosen, ranks)

        matrix, error = attempt(make)
        agree(ranks, name, {"shape": tuple(shape), "dtype": str(np.dtype(dtype)), "layout": layout}, error=error)
        assert matrix is not None
        return matrix

    @classmethod
    def scatter(cls, a: Any, comm: Any, *, root: int = 0, layout: Layout | None = None) -> ShardedMatrix:
        """Distribute a matrix of rank ``root``, by default in blocks of rows. ``a`` is ignored on the other ranks."""
        name = "ShardedMatrix.scatter"
        ranks = open_communicator(comm)

        def check() -> tuple[Any, str] | None:
            """Shape and dtype, on the root."""
            if not 0 <= root < ranks.size:
                raise ValueError(f"{name}: root={root} is not one of {ranks.size} ranks")
            if ranks.rank != root:
                return None
            if on_device(a):
                raise TypeError(
                    f"{name}: the matrix is on a GPU\nhint: scatter a NumPy array, or use from_local with blocks on GPUs"
                )
            layout_for(name, checked(name, a).shape, layout, ranks)
            return a.shape, a.dtype.name

        described, error = attempt(check)
        shape, dtype = agree(ranks, name, {"root": root, "layout": layout}, error=error, mine=described)[root]
        target = layout_for(name, shape, layout, ranks)
        block = np.empty(target.local_shape(ranks.rank), dtype)
        source = on_one(shape, root, ranks.size)
        whole = a if ranks.rank == root else np.empty(source.local_shape(ranks.rank), dtype)
        move(ranks, whole, source, block, target)
        return cls(block, target, ranks)

    def gather(self, root: int | None = 0) -> Any:
        """The whole matrix on rank ``root`` and None elsewhere; on all ranks for ``root=None``. On GPUs it stays on a GPU."""
        name, ranks = "ShardedMatrix.gather", self.ranks
        target = on_one(self.shape, root or 0, ranks.size)

        def check() -> Any:
            if root is not None and not 0 <= root < ranks.size:
                raise ValueError(f"{name}: root={root} is not one of {ranks.size} ranks")
            if not self.on_gpu:
                return room(name, self.shape if root is None else target.local_shape(ranks.rank), self.dtype)

        whole: Any
        whole, error = attempt(check)
        agree(ranks, name, {"root": root, "shape": self.shape, "dtype": self.dtype.name}, error=error)
        if self.on_gpu:
            return _moves().gather(self, root)
        move(ranks, self.local, self.layout, whole, target)
        if root is None and ranks.size > 1:
            whole = ranks.spread(whole, 0, self.shape, self.dtype)  # type: ignore[attr-defined]
        return whole if root is None or ranks.rank == root else None

    def redistribute(self, layout: Layout) -> ShardedMatrix:
        """The same matrix in another layout; the matrix itself if it has that layout already."""
        name = "ShardedMatrix.redistribute"
        facts = {"layout": layout, "from": self.layout, "shape": self.shape, "dtype": self.dtype.name}

        def check() -> Any:
            if layout_for(name, self.shape, layout, self.ranks) == self.layout or self.on_gpu:
                return self.local
            return room(name, layout.local_shape(self.ranks.rank), self.dtype)

        block: Any
        block, error = attempt(check)
        agree(self.ranks, name, facts, error=error)
        if layout == self.layout:
            return self
        if self.on_gpu:
            return _moves().redistribute(self, layout)  # type: ignore[no-any-return]
        move(self.ranks, self.local, self.layout, block, layout)
        return ShardedMatrix(block, layout, self.ranks)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write one .npy file for each rank and a manifest into a folder that all ranks see.

        A matrix that was saved there before is replaced when the new one is complete, and kept if the save fails. There must be
        room for both.
        """
        name, path, ranks = "ShardedMatrix.save", Path(folder), self.ranks
        facts = {"folder": str(path), "layout": self.layout, "dtype": self.dtype.name}
        error = files.reason(lambda: path.mkdir(parents=True, exist_ok=True), path, 0) if ranks.rank == 0 else None
        label = agree(ranks, name, facts, error=error, mine=files.new_label())[0]
        saved = files.Saved(self.layout, self.dtype, label)
        error = None
        if self.layout.place(ranks.rank):
            local = _moves().to_numpy(self.local) if self.on_gpu else self.local
            error = files.reason(lambda: files.write_block(path, saved, ranks.rank, local), path, local.nbytes)
        try:
            agree(ranks, name, {}, error=error)
        except BaseException:
            files.discard(path, saved, ranks.rank)
            raise
        agree(ranks, name, {}, error=files.reason(lambda: files.finish(path, saved), path, 0) if ranks.rank == 0 else None)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], comm: Any, *, layout: Layout | None = None) -> ShardedMatrix:
        """Read a matrix that :meth:`save` wrote, on any number of ranks; each reads only its part.

        The layout is by default the saved one if the number of ranks is the same, else blocks of rows.
        """
        name = "ShardedMatrix.load"
        ranks = open_communicator(comm)
        path = Path(folder)

        def read() -> ShardedMatrix:
            try:
                saved = files.read_manifest(path)
                same = layout is None and saved.layout.size == ranks.size
                target = layout_for(name, saved.layout.shape, saved.layout if same else layout, ranks)
                return cls(files.read_block(path, saved, target, ranks.rank), target, ranks)
            except FileNotFoundError as missing:
                raise FileNotFoundError(
                    f"{name}: {missing.filename} does not exist\nhint: all ranks must see the folder"
                ) from None
            except MemoryError as full:
                raise MemoryError(f"{name}: {full}\nhint: load it on more ranks") from None
            except (OSError, ValueError, OverflowError) as damage:
                if str(damage).startswith(name):
                    raise
                raise ValueError(f"{name}: {path} cannot be read: {damage}") from None

        matrix, error = attempt(read)
        agree(ranks, name, {"folder": str(path), "layout": matrix.layout if matrix else None}, error=error)
        assert matrix is not None
        return matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(self.local)

    @property
    def on_gpu(self) -> bool:
        """Whether the blocks are on GPUs."""
        return on_device(self.local)

    @property
    def comm(self) -> Any:
        return getattr(self.ranks, "mpi", None)

    @property
    def T(self) -> ShardedMatrix:
        """The transpose: each rank's block transposed, without a copy."""
        return ShardedMatrix(self.local.T, self.layout.transposed, self.ranks)

    def conj(self) -> ShardedMatrix:
        local = _moves().conj(self.local) if self.on_gpu else self.local.conj()
        return ShardedMatrix(local, self.layout, self.ranks)

    def astype(self, dtype: Any) -> ShardedMatrix:
        local = _moves().astype(self.local, np.dtype(dtype)) if self.on_gpu else self.local.astype(dtype)
        return ShardedMatrix(checked("ShardedMatrix.astype", local), self.layout, self.ranks)

    def copy(self) -> ShardedMatrix:
        local = _moves().copy(self.local) if self.on_gpu else self.local.copy(order="K")
        return ShardedMatrix(local, self.layout, self.ranks)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "ShardedMatrix: no rank holds the whole matrix\nhint: .gather() copies it to rank 0, .local is this rank's block"
        )

    def __repr__(self) -> str:
        m, n = self.shape
        return f"ShardedMatrix({m} x {n} {self.dtype}, {self.layout}, rank {self.ranks.rank} of {self.ranks.size})"


def _moves() -> Any:
    """The module that moves blocks on GPUs, loaded with the first of them."""
    from .backends.cusolvermp import moves

    return moves


def checked(name: str, local: Any) -> Any:
    """The block, if it is a matrix of a supported dtype on the host or on a GPU."""
    device = on_device(local)
    if not device and (not isinstance(local, np.ndarray) or isinstance(local, np.ma.MaskedArray)):
        raise TypeError(
            f"{name}: expected a NumPy array or one on a GPU, got {type(local).__module__}.{type(local).__qualname__}"
            "\nhint: use numpy.asarray(block); torch DTensors and sharded JAX arrays go to lapwing's functions as they are"
        )
    try:
        block = matrix_memory(local) if device else local
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from None
    if block.dtype.name not in DTYPES or not block.dtype.isnative:
        raise TypeError(f"{name}: dtype {block.dtype} is not supported\nhint: use one of {', '.join(DTYPES)}")
    if len(block.shape) != 2:
        raise ValueError(f"{name}: expected a block of shape (rows, columns), got shape {block.shape}")
    return local


def dtype_of(local: Any) -> np.dtype:
    """The dtype as NumPy's."""
    return local.dtype if isinstance(local.dtype, np.dtype) else np.dtype(str(local.dtype).rpartition(".")[2])


def layout_for(name: str, shape: tuple[int, ...], layout: Layout | None, ranks: Any) -> Layout:
    """The layout, checked; None stands for blocks of rows."""
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{name}: shape {shape!r} is not (rows, columns)")
    if layout is None:
        return Layout.rows_of((shape[0], shape[1]), ranks.size)
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: expected a Layout, got {layout!r}\nhint: lapwing.distributed.Layout.rows_of(shape, ranks)")
    if layout.shape != tuple(shape):
        raise ValueError(f"{name}: the layout is for shape {layout.shape}, and the matrix has shape {tuple(shape)}")
    if layout.size > ranks.size:
        raise ValueError(f"{name}: the layout ({layout}) needs {layout.size} ranks, and there are {ranks.size}")
    return layout


def blocks_layout(name: str, shapes: list[tuple[int, int]], grid: tuple[int, int]) -> Layout:
    """The layout of blocks of these shapes (by rank) on a grid, row by row."""
    p, q = grid
    rows, columns = [shapes[i * q][0] for i in range(p)], [shapes[j][1] for j in range(q)]
    for rank, shape in enumerate(shapes):
        i, j = divmod(rank, q)
        if shape != (rows[i], columns[j]):
            equal = "columns" if q == 1 else "rows" if p == 1 else "rows in a row of the grid, and columns in a column of it"
            raise ValueError(
                f"{name}: blocks of shapes {shapes[0]} on rank 0 and {shape} on rank {rank} do not fit a {p} x {q} grid"
                f"\nhint: blocks must have the same number of {equal}; also empty ones, such as numpy.empty((0, n))"
            )
    return Layout(Axis.blocks(rows), Axis.blocks(columns))


def room(name: str, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """New memory."""
    try:
        return np.empty(shape, dtype)
    except MemoryError as full:
        raise MemoryError(f"{name}: {full}\nhint: use parts of it: .local, or .redistribute") from None


def on_one(shape: tuple[int, int], root: int, size: int) -> Layout:
    """The layout with the whole matrix on one rank."""
    return Layout(Axis.blocks([shape[0] if rank == root else 0 for rank in range(size)]), Axis.whole(shape[1]))


def move(ranks: Any, source: np.ndarray, layout: Layout, target: np.ndarray, to: Layout) -> None:
    """``target`` <- ``source``, blocks of the host in two layouts. Collective."""
    if ranks.size > 1 and not hasattr(ranks, "isend"):  # all ranks alike
        raise TypeError(
            "ShardedMatrix: moving blocks of the host needs MPI\nhint: use an mpi4py communicator, or blocks on GPUs"
        )
    exchange(ranks, source, layout, target, to)
