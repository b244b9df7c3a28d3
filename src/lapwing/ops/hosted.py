"""Mark a matrix that is larger than the memory that works on it."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from typing import Any

from ..core.errors import ShapeError
from ..core.hosted import HostedMatrix, Progress, unsupported_array
from ..core.problem import spec

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def hosted(
    a: Any,
    /,
    *,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    memory: int | str | None = None,
    device: str | None = None,
    out: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> HostedMatrix:
    """Mark a matrix that stays in host memory or on disk while the work is done in a limited memory.

    Pass the result to :func:`cholesky`, :func:`solve`, :func:`inv`, :func:`slogdet`, :func:`factor`, :func:`eigh` and
    :func:`svd` with a ``subset``, or :func:`qr` and :func:`svd` of a tall matrix. Blocks are read and written while the
    products run. Nothing is read before that call.

    Parameters
    ----------
    a : array, data set or function
        A NumPy array, ``np.memmap``, HDF5 (h5py) or Zarr data set with two dimensions, or a function
        ``f(rows: slice, columns: slice) -> array`` that computes a block.
    shape, dtype
        Needed for a function, and only for a function.
    memory : int or str, optional
        Limit for the work: bytes, or a text such as "2GB" or "512MiB". On a GPU it limits the memory of the GPU, on the CPU
        the memory of this process. By default 80 % of the free memory of the GPU, or half of the free memory of the host.
    device : {"cpu", "cuda", "cuda:1", ...}, optional
        Where the work is done; a GPU if there is one.
    out : array, data set or file name, optional
        Where the large result goes: the factor, the solution, the inverse, the eigenvectors, Q, or U. A file name makes a
        .npy file. By default a NumPy array gives a NumPy array, and a matrix on disk or a function gives an ``np.memmap``
        whose file disappears with it.
    checkpoint : folder, optional
        Keep the factor there. A factorisation that was killed continues after its last finished panel when the same call is
        made again; an input that has changed is refused.
    progress : function, optional
        Called with a ``Progress`` (``operation``, ``done``, ``total``, ``seconds``) after each panel.

    Returns
    -------
    HostedMatrix

    Raises
    ------
    ValueError, TypeError
        Wrong shape, dtype, limit or device.

    See Also
    --------
    explain : panels, memory and bytes moved of a call.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.eye(300) + 1 / 300
    >>> l = lw.cholesky(lw.hosted(a, memory="300KB", device="cpu"))
    >>> np.allclose(l @ l.T, a)
    True

    A matrix that a function computes block by block:

    >>> x = np.linspace(0, 1, 300)
    >>> def kernel(rows, columns):
    ...     return np.exp(-np.subtract.outer(x[rows], x[columns]) ** 2)
    >>> k = lw.hosted(kernel, shape=(300, 300), dtype="float64", memory="300KB", device="cpu")
    >>> w, v = lw.eigh(k, subset=slice(-2, None))
    >>> np.allclose(kernel(slice(None), slice(None)) @ v, v * w)
    True
    """
    described = _described(a, shape, dtype)
    if device is not None and re.fullmatch(r"cpu|cuda(:\d+)?", str(device)) is None:
        raise ValueError(f"hosted: unknown device {device!r}\nhint: use 'cpu', 'cuda' or 'cuda:1'")
    if progress is not None and not callable(progress):
        raise TypeError(f"hosted: progress must be a function, got {type(progress).__name__}\nhint: progress=print")
    limit = None if memory is None else _bytes_of(memory)
    if checkpoint is not None and not (isinstance(checkpoint, (str, os.PathLike)) and os.fspath(checkpoint)):
        raise ValueError(f"hosted: checkpoint={checkpoint!r} is not the name of a folder\nhint: checkpoint='factorisation'")
    folder = None if checkpoint is None else os.fspath(checkpoint)
    device = None if device is None else str(device)
    return HostedMatrix(a, described.shape, described.dtype, limit, device, out, folder, progress)  # type: ignore[arg-type]


def _described(a: Any, shape: Any, dtype: Any) -> Any:
    if callable(a):
        if shape is None or dtype is None:
            missing = "shape" if shape is None else "dtype"
            raise TypeError(f"hosted: a function needs {missing}\nhint: hosted(f, shape=(n, n), dtype='float64')")
    elif shape is not None or dtype is not None:
        raise TypeError("hosted: shape and dtype go with a function; an array has its own")
    elif not all(hasattr(a, name) for name in ("shape", "dtype", "__getitem__")):
        raise TypeError(
            f"hosted: expected a NumPy array, memmap, HDF5 or Zarr data set or a function, got {type(a).__name__}"
            "\nhint: np.load(file, mmap_mode='r') opens a .npy file without reading it"
        )
    elif problem := unsupported_array(a):
        raise TypeError(f"hosted: {problem}")
    try:
        described = spec(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("spec:", "hosted:", 1)) from None
    if len(described.shape) != 2:
        raise ShapeError(f"hosted: expected a matrix, got shape {described.shape}\nhint: give the matrices one by one")
    if not callable(a) and not getattr(a.dtype, "isnative", True):
        raise TypeError(f"hosted: the byte order of dtype {a.dtype} is not that of this machine\nhint: convert the data once")
    return described


def _bytes_of(memory: Any) -> int:
    text = re.fullmatch(r"\s*([\d.]+(?:[eE][+-]?\d+)?)\s*([kKmMgGtT]?i?[bB])?\s*", memory) if isinstance(memory, str) else None
    try:
        count = int(float(text[1]) * _UNITS[(text[2] or "").upper()]) if text else None
        count = operator.index(memory) if count is None and not isinstance(memory, str) else count
    except (KeyError, OverflowError, TypeError, ValueError):
        count = None
    if count is None or count <= 0:
        raise ValueError(f"hosted: memory={memory!r} is not a number of bytes\nhint: memory='2GB', or memory=2_000_000_000")
    return count
