"""The one description of memory: arrays of all libraries, DLPack capsules in and out."""

import gc

import numpy as np
import pytest

from lapwing.core import memory as m
from lapwing.core.memory import Memory, capsule_of_memory, matrix_memory, memory_of_array, memory_of_capsule, on_device


class Interface:
    """An array of an unknown library on a GPU."""

    def __init__(self, a, strides=None, mask=None, device=None):
        self.a, self.strides, self.mask = a, strides, mask
        if device is not None:
            self.device = device

    @property
    def __cuda_array_interface__(self):
        known = self.a.__array_interface__
        return {
            "shape": known["shape"],
            "typestr": known["typestr"],
            "data": (known["data"][0], True),
            "strides": self.strides,
            "mask": self.mask,
            "version": 3,
        }


class Exporter:
    """An array of an unknown library with DLPack alone."""

    def __init__(self, memory):
        self.memory = memory

    def __dlpack_device__(self):
        return self.memory.device

    def __dlpack__(self, *, stream=None):
        assert stream == -1
        return capsule_of_memory(self.memory)


@pytest.mark.parametrize("kind", m.DEVICES)
def test_on_device(kind):
    """Also AMD's: CuPy built for ROCm has no ``__cuda_array_interface__``."""
    there = Exporter(Memory(64, (2,), (1,), np.dtype("f4"), (kind, 0), True))
    assert on_device(there) == (kind not in (m.CPU, m.CUDA_HOST, m.ROCM_HOST))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3)])
def test_known_libraries(library, shape):
    module = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    a = module.ones(shape, dtype=module.float32)
    memory = memory_of_array(a)
    assert memory.shape == shape and memory.dtype == np.float32 and memory.device == (m.CPU, 0) and memory.owner is a
    assert memory.row_major and memory.writable == (library != "jax") and not on_device(a)
    assert memory.device_in_words == "the CPU"


def test_strides():
    a = np.zeros((6, 8))[::-2, 1:]
    memory = memory_of_array(a)
    assert memory.strides == (-16, 1) and memory.byte_strides == a.strides
    assert memory.span == (a[-1:].__array_interface__["data"][0], (2 * 16 + 6 + 1) * 8)
    assert not memory.row_major and not memory.column_major
    assert memory_of_array(np.zeros((3, 2)).T).column_major and memory_of_array(np.zeros((1, 5))[:, ::1]).column_major
    packed = np.zeros(3, np.dtype([("x", np.float64), ("y", np.float32)]))
    with pytest.raises(
        TypeError, match=r"insitu: field 'u' has strides of .* no multiples of its element size 8\nhint: make a copy"
    ):
        memory_of_array(packed["x"], name="u")


def test_subclasses_of_numpy():
    class Own(np.ndarray):
        pass

    a = np.arange(3.0).view(Own)
    assert memory_of_array(a).pointer == a.__array_interface__["data"][0]


def test_array_interface_of_a_gpu():
    a = np.arange(6.0).reshape(2, 3)
    memory = matrix_memory(Interface(a))
    assert on_device(Interface(a)) and memory.device == (m.CUDA, m.UNKNOWN) and not memory.writable
    assert memory.pointer == a.__array_interface__["data"][0] and memory.row_major

    class Device:
        id = 3

    assert memory_of_array(Interface(a, device=Device())).device_in_words == "CUDA device 3"
    assert memory_of_array(Interface(a, strides=(8, 16))).column_major
    with pytest.raises(TypeError, match="the array is masked"):
        memory_of_array(Interface(a, mask=a))
    with pytest.raises(TypeError, match="the array is a list, not an array"):
        memory_of_array([1.0])


def test_through_dlpack():
    a = np.arange(6.0).reshape(2, 3).T
    before = len(m._exported)
    described = memory_of_array(a)
    gpu = Memory(described.pointer, a.shape, described.strides, a.dtype, (m.CUDA, 1), True, a)
    memory = memory_of_array(Exporter(gpu))
    assert (memory.pointer, memory.strides, memory.device, memory.dtype) == (gpu.pointer, (1, 3), (m.CUDA, 1), gpu.dtype)
    assert on_device(Exporter(gpu)) and len(m._exported) == before + 1
    del memory
    gc.collect()
    assert len(m._exported) == before  # nobody consumed the capsule
    with pytest.raises(ValueError, match="the array is not a DLPack capsule"):
        memory_of_capsule("", object())


def test_tensors_without_values_of_their_own():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"requires a gradient\nhint: use \.detach"):
        matrix_memory(torch.ones(2, 2, requires_grad=True))
    with pytest.raises(TypeError, match=r"lazy conjugate or negative\nhint: use \.resolve_conj"):
        matrix_memory(torch.ones(2, 2, dtype=torch.complex64).conj())
