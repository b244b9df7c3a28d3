"""What the library uses of CuPy, on the host's memory; and arrays of libraries that it does not know."""

import sys
import types

import numpy as np


def interface(x):
    """The memory of an array of the host, as if it were on a GPU."""
    return {name: x.__array_interface__[name] for name in ("shape", "typestr", "data", "strides")} | {"version": 3}


class _Device:
    id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class ndarray(np.ndarray):
    """As CuPy's: its memory is said to be a GPU's, and NumPy's functions would not take it."""

    device = _Device()

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return interface(self)


ndarray.__module__ = "cupy"


def array(x):
    return np.array(x, order="K").view(ndarray)


def host(x):
    """On the host, whatever it is."""
    return x.get() if hasattr(x, "get") else np.asarray(x) if isinstance(x, np.ndarray) else x.kept


def install():
    sys.modules["cupy"] = _module()


def _module():
    cupy = types.ModuleType("cupy")
    cupy.ndarray = ndarray
    cupy.empty = lambda *a: np.empty(*a).view(ndarray)
    cupy.full = lambda *a: np.full(*a).view(ndarray)
    cupy.asarray = lambda x: np.asarray(x).view(ndarray)
    cupy.ascontiguousarray = lambda x: np.ascontiguousarray(x).view(ndarray)
    cupy.asnumpy = lambda x: np.array(x).view(np.ndarray)
    cupy.isfinite = np.isfinite
    cupy.cuda = types.SimpleNamespace(memory=types.SimpleNamespace(OutOfMemoryError=MemoryError))
    return cupy


class Plain:
    """An array that says where its memory lies, and no more."""

    def __init__(self, x):
        self.kept, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    @property
    def __cuda_array_interface__(self):
        return interface(self.kept)


class Capsule:
    """An array that has DLPack only; the device that its capsule names is a GPU."""

    def __init__(self, x):
        self.kept, self.shape, self.dtype, self.ndim = x, x.shape, x.dtype, x.ndim

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None):
        assert stream == -1
        return self.kept.__dlpack__()
