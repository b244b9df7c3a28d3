"""Arrays over memory that the solver owns, and conversions between array libraries."""

from __future__ import annotations

import contextlib
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from ...core import memory as core_memory
from ...core.memory import GPU, HOST, ROCM, Memory, memory_of_array
from .streams import copy_on_device, wide

LIBRARIES = ("auto", "numpy", "cupy", "torch", "jax")


class _Exposed:
    """An object with one array interface, from which NumPy, CuPy or torch makes a view."""

    def __init__(self, memory: Memory, attribute: str, writable: bool) -> None:
        self.memory = memory  # keeps the owner alive
        setattr(self, attribute, memory.interface(writable))


def choose_library(memory: Memory) -> str:
    """Choose an array library that can read this memory."""
    if memory.device[0] in HOST:
        return "numpy"
    library = _for_gpus()
    if library is not None:
        return library
    hint = "install a build of CuPy or torch for ROCm" if memory.device[0] == ROCM else "pip install cupy-cuda13x"
    raise TypeError(f"insitu: a field is on {memory.device_in_words}, and no array library for it is installed\nhint: {hint}")


@cache
def _for_gpus() -> str | None:
    """The first library for GPUs that is installed."""
    return next((library for library in ("cupy", "torch", "jax") if find_spec(library)), None)


def _numpy_view(name: str, memory: Memory, writable: bool | None = None) -> np.ndarray:
    if memory.device[0] not in HOST:
        raise TypeError(
            f"field {name!r} is on {memory.device_in_words}; NumPy cannot read this memory"
            "\nhint: use it as a CuPy, torch or JAX array (xp=...), or copy it with field.to_host()"
        )
    if not prod(memory.shape):
        empty = np.empty(memory.shape, memory.dtype)
        empty.flags.writeable = memory.writable if writable is None else writable
        return empty
    return np.asarray(_Exposed(memory, "__array_interface__", memory.writable if writable is None else writable))


def _cupy_view(name: str, memory: Memory) -> Any:
    cupy = import_library("cupy")
    if memory.device[0] not in GPU:
        raise TypeError(f"field {name!r} is on {memory.device_in_words}; CuPy reads GPU memory\nhint: xp='numpy' or xp='torch'")
    if not prod(memory.shape):
        return cupy.empty(memory.shape, memory.dtype)
    start, size = memory.span  # in bytes
    block = cupy.cuda.UnownedMemory(start, size, memory, memory.device[1])
    pointer = cupy.cuda.MemoryPointer(block, memory.pointer - start)
    return cupy.ndarray(memory.shape, memory.dtype, pointer, memory.byte_strides)


def _torch_view(name: str, memory: Memory) -> Any:
    torch = import_library("torch")
    if any(s < 0 for s in memory.strides):
        raise TypeError(f"field {name!r} has negative strides {memory.strides}, which torch does not support")
    if memory.device[0] in HOST:
        # torch has no read-only tensors and would warn
        return torch.from_numpy(_numpy_view(name, memory, writable=True))
    if not prod(memory.shape):
        return torch.empty(memory.shape, dtype=getattr(torch, memory.dtype.name), device=f"cuda:{memory.device[1]}")
    exposed = _Exposed(memory, "__cuda_array_interface__", writable=True)
    return torch.as_tensor(exposed, device=f"cuda:{memory.device[1]}")


def jax_copy(name: str, memory: Memory, stream: int) -> Any:
    """Copy a field into a JAX array; the copy is complete when this returns."""
    jax = import_library("jax")
    if memory.device[0] in HOST:
        # into new memory with the alignment XLA needs, so that JAX uses it without a second copy
        copy = aligned(memory.shape, memory.dtype)
        copy[...] = _numpy_view(name, memory)
        with wide():
            return jax.numpy.asarray(copy)
    if not memory.row_major:
        raise TypeError(f"field {name!r} has strides {memory.strides}; on a GPU, JAX needs row-major fields without gaps")
    if memory.device[0] == ROCM:
        raise TypeError(f"field {name!r} is on {memory.device_in_words}; copying it for JAX is not supported")
    # into memory that JAX allocated: JAX needs an alignment that fields with ghost cells do not have, and nothing else can
    # have read this new array yet
    with wide():
        array = jax.device_put(jax.numpy.zeros(memory.shape, memory.dtype), jax.devices("gpu")[memory.device[1]])
        array.block_until_ready()
    if array.size:
        copy_on_device(memory.device[1], stream, array.unsafe_buffer_pointer(), memory.pointer, array.nbytes)
    return array


VIEWS: dict[str, Any] = {"numpy": _numpy_view, "cupy": _cupy_view, "torch": _torch_view}


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array on a 64-byte boundary."""
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def library_of(array: Any) -> str | None:
    """The library an array belongs to, by the module of its type; None if the library is not supported."""
    if isinstance(array, np.ndarray):
        return "numpy"
    library = core_memory.library_of(array)
    return library if library in ("cupy", "torch", "jax") else None


def as_library(name: str, array: Any, library: str, writable: bool) -> Any:
    """Convert ``array`` to ``library``, without a copy where the two libraries can share memory."""
    source = library_of(array)
    if source is None:
        raise _not_an_array(name, array)
    if library in ("auto", source):
        if source == "numpy" and array.flags.writeable != writable:
            array = array.view()
            if not writable:
                array.flags.writeable = False
        return array
    place = memory_of(name, array, writable)
    if library == "numpy":
        if place.device[0] not in HOST:
            return _numpy_view(name, place)  # raises the error
        view = np.asarray(array.detach() if source == "torch" else array).view()
        if source != "jax" and not writable:
            view.flags.writeable = False
        return view
    if library == "jax":
        return jax_copy(name, place, 0)
    if source == "jax":
        array.block_until_ready()
    return VIEWS[library](name, place)


def memory_of(name: str, array: Any, writable: bool) -> Memory:
    """Pointer, shape, strides, dtype and device of a NumPy, CuPy, torch or JAX array."""
    if library_of(array) is None:
        raise _not_an_array(name, array)
    return memory_of_array(array, name=name, writable=writable)


def _not_an_array(name: str, value: Any) -> TypeError:
    return TypeError(f"field {name!r} is a {type(value).__name__}; pass a NumPy, CuPy, torch or JAX array")


def to_host(array: Any) -> np.ndarray:
    """Convert an array of any library to NumPy; host memory is not copied."""
    source = library_of(array)
    if source == "torch":
        return array.detach().cpu().numpy()  # type: ignore[no-any-return]
    if source == "cupy":
        return array.get()  # type: ignore[no-any-return]
    return np.asarray(array)


def host_as_numpy(array: Any) -> Any:
    """A NumPy view of an array in host memory; an array on another device is returned as it is."""
    source = library_of(array)
    if source == "torch" and array.device.type == "cpu":
        return array.detach().numpy()
    if source == "jax" and all(d.platform == "cpu" for d in array.devices()):
        return np.asarray(array)  # waits until JAX has computed it
    return array


def device_of(array: Any) -> int:
    """Number of the device that holds an array."""
    return 0 if isinstance(array, np.ndarray) else memory_of("", array, False).device[1]


def empty_like_device(library: str, device: int) -> Any:
    """An array without elements, in ``library``, on the device with this number."""
    if library == "numpy":
        return np.empty(0)
    module = import_library(library)
    if library == "torch":
        return module.empty(0, device=f"cuda:{device}" if module.cuda.is_available() else "cpu")
    if library == "jax":
        return module.device_put(np.empty(0, np.float32), module.devices()[device])
    with module.cuda.Device(device):
        return module.empty(0)


def private_copy(array: Any) -> Any:
    """A copy in the same library."""
    source = library_of(array)
    if source == "torch":
        return array.clone()
    if source == "jax":
        return sys.modules["jax"].numpy.array(array, copy=True)
    return array.copy()


def poison(array: Any) -> None:
    """Overwrite a debug copy, so that a later use of it shows."""
    source = library_of(array)
    if source == "jax":
        array.delete()  # JAX then raises an error on every use
        return
    kind = numpy_dtype(array)
    if source == "numpy":
        array.flags.writeable = True
    if kind.kind in "fc":
        array[...] = float("nan")
    elif kind.kind in "iu":
        array[...] = np.iinfo(kind).max


def restore_array(library: str | None, value: Any) -> Any:
    """Convert a NumPy array from a checkpoint back to the library it came from."""
    if not isinstance(value, np.ndarray) or library in (None, "numpy"):
        return value
    module = import_library(library or "numpy")
    if library == "torch":
        return module.from_numpy(value).to("cuda" if module.cuda.is_available() else "cpu")
    if library == "jax":
        with wide():
            return module.numpy.asarray(value)
    return module.asarray(value)


def numpy_dtype(array: Any) -> np.dtype:
    """The NumPy dtype of an array of any library."""
    return np.dtype(str(array.dtype).removeprefix("torch."))


def double_dtype(dtype: Any) -> np.dtype:
    """float64, or complex128 for a complex dtype."""
    return np.dtype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)


def as_double(array: Any) -> Any:
    """The array in double precision, without the history of torch's gradients."""
    dtype = double_dtype(numpy_dtype(array))
    if library_of(array) == "torch":
        return array.detach().to(getattr(import_library("torch"), dtype.name))
    return array.astype(dtype)


@contextlib.contextmanager
def functions_of(array: Any) -> Any:
    """The module with the functions of the array's library; inside the block JAX keeps 64-bit types."""
    library = library_of(array) or "numpy"
    if library == "jax":
        with wide():
            yield import_library("jax").numpy
    else:
        yield import_library(library)


def import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        wheel = {"cupy": "cupy-cuda13x"}.get(name, name)
        raise ImportError(
            f"insitu: {name} arrays were requested, but {name} is not installed\nhint: pip install {wheel}"
        ) from None
