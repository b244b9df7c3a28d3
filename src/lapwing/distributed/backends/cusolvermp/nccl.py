"""The CUDA runtime and NCCL by ctypes: the few calls that the distributed engine makes. Loaded at first use."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_void_p
from functools import cache
from typing import Any

from ....core import libraries
from ...ranks.protocol import Communicator, agree, attempt


def load(library: str) -> ctypes.CDLL:
    """Open one of NVIDIA's libraries so that later ones, which search by name, find it."""
    return libraries.load(library, operation="distributed", shared=True)


class Runtime:
    """The calls of the CUDA runtime that the engine needs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudaGetErrorString.restype = ctypes.c_char_p
        library.cudaMemcpy2DAsync.argtypes = [c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p]
        library.cudaMemcpyAsync.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_void_p]
        library.cudaMemsetAsync.argtypes = [c_void_p, c_int, c_size_t, c_void_p]
        library.cudaMalloc.argtypes = [c_void_p, c_size_t]
        library.cudaFree.argtypes = [c_void_p]
        library.cudaStreamSynchronize.argtypes = library.cudaStreamDestroy.argtypes = [c_void_p]
        library.cudaPointerGetAttributes.argtypes = [c_void_p, c_void_p]
        library.cudaStreamCreateWithFlags.argtypes = [c_void_p, ctypes.c_uint]

    def _check(self, status: int, what: str) -> None:
        if status:
            text = self._library.cudaGetErrorString(status)
            self._library.cudaGetLastError()  # clears the error, or the next call would report it again
            raise RuntimeError(f"distributed: {what}: {text.decode() if text else status}")

    def set_device(self, device: int) -> None:
        self._check(self._library.cudaSetDevice(device), f"device {device} cannot be used")

    def device(self) -> int:
        return self._number(self._library.cudaGetDevice)

    def count(self) -> int:
        """GPUs that this process sees."""
        return self._number(self._library.cudaGetDeviceCount)

    def _number(self, ask: Any) -> int:
        number = c_int()
        self._check(ask(byref(number)), "no GPU")
        return number.value

    def open_peers(self, devices: set[int]) -> None:
        """Let each of these devices read the memory of the others, if the hardware can. Changes the current device."""
        for device in devices:
            for other in devices - {device}:
                possible = c_int()
                self._library.cudaDeviceCanAccessPeer(byref(possible), device, other)
                if possible.value:
                    self.set_device(device)
                    self._library.cudaDeviceEnablePeerAccess(other, 0)
                    self._library.cudaGetLastError()  # clears "already enabled"

    def stream(self) -> int:
        stream = c_void_p()
        self._check(self._library.cudaStreamCreateWithFlags(byref(stream), 1), "no stream")
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        self._library.cudaStreamDestroy(stream)

    def device_of(self, pointer: int) -> int:
        """The device of some memory."""
        attributes = (c_int * 64)()  # kind, device, and pointers; newer versions write more
        self._check(self._library.cudaPointerGetAttributes(attributes, pointer), "this memory is not on a GPU")
        if attributes[0] not in (2, 3):  # on the device, managed
            raise RuntimeError("distributed: this memory is not on a GPU")
        return attributes[1]

    def allocate(self, count: int) -> tuple[int, Any]:
        """Pointer, and the object that keeps the memory: the default allocator of the engine."""
        pointer = c_void_p()
        status = self._library.cudaMalloc(byref(pointer), max(count, 1))
        if status == 2:
            self._library.cudaGetLastError()
            raise MemoryError(
                f"distributed: out of GPU memory, {count} bytes more are needed\nhint: use more GPUs, or free some memory"
            )
        self._check(status, "no memory")
        return pointer.value or 0, _Freed(self._library, pointer.value)

    def copy(self, to: int, source: int, count: int, kind: int, stream: int) -> None:
        """kind: 1 to the device, 2 to the host, 3 on the device."""
        if count:
            self._check(self._library.cudaMemcpyAsync(to, source, count, kind, stream), "a copy failed")

    def copy_2d(
        self, to: int, pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int, stream: int
    ) -> None:
        if width and height:
            status = self._library.cudaMemcpy2DAsync(to, pitch, source, source_pitch, width, height, kind, stream)
            self._check(status, "a copy failed")

    def zero(self, pointer: int, count: int, stream: int) -> None:
        if count:
            self._check(self._library.cudaMemsetAsync(pointer, 0, count, stream), "memory could not be cleared")

    def wait(self, stream: int) -> None:
        self._check(self._library.cudaStreamSynchronize(stream), "the device reports an error")

    def wait_all(self) -> None:
        self._check(self._library.cudaDeviceSynchronize(), "the device reports an error")


class _Freed:
    """Device memory that is freed with this object."""

    def __init__(self, library: ctypes.CDLL, pointer: int | None) -> None:
        self._free, self._pointer = library.cudaFree, pointer

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._free(self._pointer)


@cache
def runtime() -> Runtime:
    return Runtime(load("cudart"))


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Nccl:
    """The NCCL library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.ncclCommInitRank.argtypes = [c_void_p, c_int, _UniqueId, c_int]
        library.ncclSend.argtypes = library.ncclRecv.argtypes = [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
        library.ncclCommDestroy.argtypes = library.ncclCommAbort.argtypes = [c_void_p]
        library.ncclGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> int:
        """22809 for 2.28.9."""
        number = c_int()
        self.check(self.library.ncclGetVersion(byref(number)))
        return number.value

    def check(self, status: int) -> None:
        if status:
            text = self.library.ncclGetErrorString(status)
            raise RuntimeError(
                f"distributed: NCCL: {text.decode() if text else status}"
                "\nhint: set NCCL_DEBUG=WARN in the environment for details; each process needs its own GPU"
            )


@cache
def nccl() -> Nccl:
    return Nccl(load("nccl"))


class NcclComm:
    """A communicator for the engine alone, as calls on the framework's own could come in another order."""

    def __init__(self, handle: int, rank: int, size: int) -> None:
        self.handle, self.rank, self.size = handle, rank, size

    def swap(self, sent: tuple[int, int, int], received: tuple[int, int, int], stream: int) -> None:
        """Send (pointer, bytes, rank) to a rank and receive (pointer, bytes, rank) from one; 0 bytes send nothing."""
        library, check = nccl().library, nccl().check
        check(library.ncclGroupStart())
        try:
            if sent[1]:
                check(library.ncclSend(sent[0], sent[1], 1, sent[2], self.handle, stream))
            if received[1]:
                check(library.ncclRecv(received[0], received[1], 1, received[2], self.handle, stream))
        finally:
            check(library.ncclGroupEnd())

    def abort(self) -> None:
        """End messages that wait for a missing rank. The communicator cannot be used again."""
        handle, self.handle = self.handle, 0
        if handle:
            nccl().library.ncclCommAbort(handle)

    def close(self) -> None:
        """Collective over the ranks of a node. The work on it must be complete."""
        if self.handle:
            nccl().library.ncclCommDestroy(self.handle)
            self.handle = 0


def open_nccl(comm: Communicator, device: int) -> NcclComm:
    """A new communicator. Collective: rank 0 makes an id, ``comm`` broadcasts it, NCCL does the rest."""
    library = nccl()
    identity = _UniqueId()

    def make() -> None:
        runtime().set_device(device)
        if comm.rank == 0:
            library.check(library.library.ncclGetUniqueId(byref(identity)))

    agree(comm, "distributed", {}, error=attempt(make)[1])
    data = comm.broadcast(bytes(identity) if comm.rank == 0 else None, 0)
    ctypes.memmove(byref(identity), data, 128)
    handle = c_void_p()
    status = library.library.ncclCommInitRank(byref(handle), comm.size, identity, comm.rank)
    try:
        agree(comm, "distributed", {}, error=attempt(lambda: library.check(status))[1])
    except BaseException:
        if handle.value:  # aborted, as closing is collective and other ranks have none
            library.library.ncclCommAbort(handle)
        raise
    return NcclComm(handle.value or 0, comm.rank, comm.size)
