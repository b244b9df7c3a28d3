"""A matrix with one block on each of several GPUs of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.memory import library_of, matrix_memory, on_device
from ..core.problem import DTYPES
from .layout import Axis, Layout
from .tiles import block_sizes

_LIBRARIES = ("torch", "cupy", "jax")


class DeviceMatrix:
    """A matrix over several GPUs of one process: one block on each, an array of torch, CuPy or JAX.

    Create one with :meth:`from_blocks` or :meth:`split`. ``lapwing.cholesky``, ``solve``, ``inv``, ``det``, ``slogdet``,
    ``factor``, ``eigh`` and ``eigvalsh`` accept it; cuSOLVERMg does the work on all of its GPUs. Results that are matrices
    are divided as it is; eigenvalues and determinants are NumPy arrays. A GPU may hold several blocks.

    Attributes
    ----------
    blocks : tuple of arrays
        Row-major or column-major, one for each position in the grid, row by row.
    layout : Layout
        Which rows and columns each block has.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> a = torch.eye(6, dtype=torch.float64)
    >>> DeviceMatrix.split(a, ["cpu", "cpu"])  # with two GPUs: ["cuda:0", "cuda:1"]
    DeviceMatrix(6 x 6 float64, 6 rows in blocks of 3, all 6 columns on a 2 x 1 grid)
    """

    __slots__ = ("blocks", "layout")
    ndim = 2

    def __init__(self, blocks: Sequence[Any], layout: Layout) -> None:
        self.blocks, self.layout = tuple(blocks), layout
        shapes = [tuple(block.shape) for block in self.blocks]
        expected = [layout.local_shape(i) for i in range(layout.size)]
        if shapes != expected:
            raise ValueError(f"DeviceMatrix: blocks of shapes {shapes} do not fit the layout ({layout}), which has {expected}")

    @classmethod
    def from_blocks(cls, blocks: Sequence[Any], *, axis: int = 0) -> DeviceMatrix:
        """The matrix of these blocks below each other (``axis=0``) or beside each other (``axis=1``). Nothing is copied.

        Raises
        ------
        TypeError
            Arrays of another library, of different ones, or of different dtypes.
        ValueError
            Shapes that do not fit together.
        """
        name = "DeviceMatrix.from_blocks"
        if axis not in (0, 1):
            raise ValueError(f"{name}: axis={axis!r} is not 0 or 1")
        if not len(blocks):
            raise ValueError(f"{name}: there are no blocks\nhint: pass a list with one block for each device")
        kinds = {library_of(block) for block in blocks}
        if len(kinds) != 1 or not kinds <= set(_LIBRARIES):
            raise TypeError(f"{name}: expected arrays of one library, {', '.join(_LIBRARIES)}; got {', '.join(sorted(kinds))}")
        try:
            memories = [matrix_memory(block) for block in blocks]
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        dtypes = {memory.dtype.name for memory in memories}
        if len(dtypes) != 1 or not dtypes <= set(DTYPES):
            raise TypeError(f"{name}: expected blocks of one dtype, {', '.join(DTYPES)}; got {', '.join(sorted(dtypes))}")
        shapes = [tuple(block.shape) for block in blocks]
        if any(len(shape) != 2 for shape in shapes) or len({shape[1 - axis] for shape in shapes}) != 1:
            other = "columns" if axis == 0 else "rows"
            raise ValueError(f"{name}: blocks of shapes {shapes} do not have the same number of {other}")
        long, whole = Axis.blocks([shape[axis] for shape in shapes]), Axis.whole(shapes[0][1 - axis])
        return cls(blocks, Layout(long, whole) if axis == 0 else Layout(whole, long))

    @classmethod
    def split(cls, a: Any, devices: Sequence[Any], *, axis: int = 0) -> DeviceMatrix:
        """Copy the rows (``axis=0``) or columns of a torch tensor or a CuPy array to these devices, as evenly as possible.

        ``devices`` are those of the library: ``torch.device`` or its name, or for CuPy numbers.
        """
        name, library = "DeviceMatrix.split", library_of(a)
        if library not in ("torch", "cupy"):
            raise TypeError(f"{name}: expected a torch tensor or a CuPy array, got {type(a).__name__}")
        if a.ndim != 2:
            raise ValueError(f"{name}: expected a matrix, got shape {tuple(a.shape)}")
        if axis not in (0, 1):
            raise ValueError(f"{name}: axis={axis!r} is not 0 or 1")
        if isinstance(devices, str):
            raise TypeError(f"{name}: expected a list of devices, got {devices!r}\nhint: [{devices!r}]")
        ends = np.cumsum(block_sizes(a.shape[axis], len(devices))).tolist() if len(devices) else []
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return cls.from_blocks(
            [_copied(a[part] if axis == 0 else a[:, part], device) for part, device in zip(parts, devices, strict=True)],
            axis=axis,
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(str(self.blocks[0].dtype).rpartition(".")[2])

    @property
    def on_gpu(self) -> bool:
        return all(on_device(block) for block in self.blocks)

    def astype(self, dtype: Any) -> DeviceMatrix:
        from .backends.cusolvermp.moves import astype

        return DeviceMatrix([astype(block, np.dtype(dtype)) for block in self.blocks], self.layout)

    def gather(self) -> np.ndarray:
        """All of it as a NumPy array."""
        whole = np.empty(self.shape, self.dtype)
        for i, block in enumerate(self.blocks):
            whole[np.ix_(*self.layout.indices(i))] = _on_host(block)
        return whole

    def __repr__(self) -> str:
        m, n = self.shape
        return f"DeviceMatrix({m} x {n} {self.dtype.name}, {self.layout})"


def _copied(part: Any, device: Any) -> Any:
    """A copy on a device of the library, without gaps."""
    if library_of(part) == "torch":
        copy = part.detach().to(device).contiguous()
        return copy.clone() if copy.data_ptr() == part.data_ptr() else copy
    import cupy

    with cupy.cuda.Device(device):
        return cupy.array(part, order="C")


def _on_host(block: Any) -> np.ndarray:
    if library_of(block) == "torch":
        return block.detach().cpu().numpy()  # type: ignore[no-any-return]
    return block.get() if hasattr(block, "get") else np.asarray(block)  # type: ignore[no-any-return]
