"""What the child processes of test_cuda_mock.py share: host arrays as device memory, with guards around them."""

import ctypes
import json
import os
from pathlib import Path

import numpy as np

from lapwing import _native as native
from lapwing.core.native import CUDA, DTYPE_CODE, ENGINES, OPS

CHOLESKY, FINITE = OPS["cholesky"], OPS["finite"]
EIGH, EIGVALSH = OPS["eigh"], OPS["eigvalsh"]
OVERWRITE = 2
MARGIN = 256
GUARD = 0xA5


class Memory:
    """Bytes at a multiple of 256 plus ``shift``, with a margin on both sides that must not change."""

    def __init__(self, size, shift=0):
        self.size = size
        self.raw = np.full(size + 3 * MARGIN, GUARD, np.uint8)
        self.start = MARGIN + -(self.raw.ctypes.data + MARGIN) % 256 + shift
        self.address = self.raw.ctypes.data + self.start

    def array(self, shape, dtype):
        return self.raw[self.start : self.start + self.size].view(dtype).reshape(shape)

    def untouched(self):
        return bool((self.raw[: self.start] == GUARD).all() and (self.raw[self.start + self.size :] == GUARD).all())


def driver():
    """The stand-in driver that the native core has loaded."""
    folder = Path(os.environ["MOCK_LIBRARIES"])
    (path,) = (*folder.glob("libcuda.so*"), *folder.glob("libamdhip64.so*"))
    library = ctypes.CDLL(str(path))
    library.mock_stream.restype = ctypes.c_void_p
    return library


def stream(device, primary=True):
    return driver().mock_stream(device, int(primary))


def balanced():
    """This thread has left every context it entered, and the capture mode is as it was."""
    return driver().mock_depth() == 0 and driver().mock_capture_mode() == 0


class Scratch:
    """Memory that is given when it is asked for, up to ``limit`` bytes in all."""

    def __init__(self, limit=None):
        self.limit, self.blocks = limit, []

    def __call__(self, size):
        if self.limit is not None and self.size + size > self.limit:
            return 0
        self.blocks.append(Memory(size))
        return self.blocks[-1].address

    @property
    def size(self):
        return sum(block.size for block in self.blocks)

    def untouched(self):
        return all(block.untouched() for block in self.blocks)


def problem(dtype, batch, n, upper=False, seed=0):
    """Positive definite matrices with NaN in the triangle that must not be read, and their factors."""
    rng = np.random.default_rng(seed + 1000 * n + batch)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    x = rng.standard_normal((batch, n, n)).astype(wide)
    if wide is np.complex128:
        x = x + 1j * rng.standard_normal((batch, n, n))
    a = (x @ x.conj().mT / max(n, 1) + np.eye(n)).astype(dtype)
    factor = np.linalg.cholesky(a.astype(wide))
    if upper:
        factor = factor.conj().mT
    other = np.tril(np.ones((n, n), bool), -1) if upper else np.triu(np.ones((n, n), bool), 1)
    a[:, other] = np.nan
    return a, factor


def cholesky(a, engine, upper=False, stream=0, ordinal=0, in_place=False, shift=0, scratch=None):
    """(factor, info) through native.run, with no more scratch memory than was told, or than ``scratch`` bytes."""
    dtype, (batch, n, _) = a.dtype.name, a.shape
    call = (CHOLESKY, DTYPE_CODE[dtype], CUDA, ordinal, ENGINES[engine], 0, int(upper), (batch, n))
    work = Scratch(native.scratch_bytes(*call) if scratch is None else scratch)
    given, out, info = (Memory(*m) for m in [(a.nbytes, shift), (a.nbytes, shift), (4 * batch,)])
    given.array(a.shape, dtype)[...] = a
    target = given if in_place else out
    native.run(*call, stream, work, given.address, target.address, info.address)
    assert all(memory.untouched() for memory in (given, out, info, work)), f"{engine} wrote outside its memory"
    return target.array(a.shape, dtype), info.array((batch,), np.int32)


def error_of(case, n):
    """The expected factor's distance in units of n eps."""
    found, expected = case
    eps = np.finfo(found.dtype).eps
    return float(np.abs(found - expected).max(initial=0) / (max(n, 1) * eps))


def check(dtype, batch, n, engine, upper=False, **options):
    a, expected = problem(dtype, batch, n, upper)
    found, info = cholesky(a, engine, upper, **options)
    where = (dtype, batch, n, engine, upper, options)
    assert (info == 0).all(), (where, info)
    assert error_of((found, expected), n) < 10, (where, error_of((found, expected), n))
    other = np.tril(found, -1) if upper else np.triu(found, 1)
    assert not other.any(), where


def hermitian(dtype, batch, n, seed=0, w=None):
    """Hermitian matrices with the eigenvalues w, or random ones."""
    rng = np.random.default_rng(seed + 1000 * n + batch)
    x = rng.standard_normal((batch, n, n))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal((batch, n, n))
    if w is None:
        return (x + x.conj().mT).astype(dtype)
    q = np.linalg.qr(x)[0]
    a = q * w @ q.conj().mT
    return ((a + a.conj().mT) / 2).astype(dtype)


def one_triangle(a, upper):
    """A copy with NaN in the other triangle, and in the imaginary part of the diagonal."""
    a, n = a.copy(), a.shape[-1]
    other = np.tril(np.ones((n, n), bool), -1) if upper else np.triu(np.ones((n, n), bool), 1)
    a[..., other] = np.nan
    if a.dtype.kind == "c":
        a[..., np.arange(n), np.arange(n)] += 5j
    return a


def eigh_call(a, engine, upper=False, part=None, vectors=True, ordinal=0, flags=0):
    """The fixed part of a native call."""
    batch, n, _ = a.shape
    first, count = (0, n) if part is None else part
    op = EIGH if vectors else EIGVALSH
    return (op, DTYPE_CODE[a.dtype.name], CUDA, ordinal, ENGINES[engine], 0, flags | int(upper), (batch, n, first, count))


def eigh(
    a, engine, upper=False, part=None, vectors=True, stream=0, ordinal=0, in_place=False, overwrite=False, shift=0, scratch=None
):
    """(w, v or None, info) through native.run, with at most ``scratch`` bytes of memory."""
    call = eigh_call(a, engine, upper, part, vectors, ordinal, OVERWRITE if overwrite else 0)
    batch, n, _, count = call[-1]
    real = a.real.dtype
    sizes = [(a.nbytes, shift), (batch * count * real.itemsize,), (batch * n * count * a.itemsize, shift), (4 * batch,)]
    given, w, v, info = (Memory(*m) for m in sizes)
    work = Scratch(scratch)
    given.array(a.shape, a.dtype)[...] = a
    target = given if in_place else v
    outputs = [w.address, *([target.address] if vectors else []), info.address]
    native.run(*call, stream, work, given.address, *outputs)
    assert all(memory.untouched() for memory in (given, w, v, info, work)), f"{engine} wrote outside its memory"
    if engine != "krylov" and scratch is None:
        assert work.size == native.scratch_bytes(*call), f"{engine} told another size than it took"
    if not in_place and not overwrite:
        assert given.array(a.shape, a.dtype).tobytes() == a.tobytes(), f"{engine} wrote to its input"
    found = target.array((batch, n, count), a.dtype) if vectors else None
    return w.array((batch, count), real), found, info.array((batch,), np.int32)


def check_eigh(a, engine, upper=False, part=None, vectors=True, **options):
    """Eigenvalues, residuals and orthogonality in units of n eps, of finite matrices."""
    n, wide = a.shape[-1], np.complex128 if a.dtype.kind == "c" else np.float64
    first, count = (0, n) if part is None else part
    w, v, info = eigh(one_triangle(a, upper), engine, upper, part, vectors, **options)
    where = (a.dtype.name, a.shape, engine, upper, part, vectors, options)
    assert not info.any(), (where, info)
    a = a.astype(wide)
    expected = np.linalg.eigvalsh(a)[:, first : first + count]
    norm = np.linalg.norm(a, axis=(1, 2))[:, None]
    unit = 10 * n * np.finfo(w.dtype).eps
    assert (np.abs(w - expected) <= unit * norm).all(), (where, np.abs(w - expected).max())
    if vectors:
        v = v.astype(wide)
        assert (np.linalg.norm(a @ v - v * w[:, None], axis=1) <= unit * norm).all(), where
        assert (np.abs(v.conj().mT @ v - np.eye(count)) <= unit).all(), where


def failed_eigh(w, v, m):
    """The answers of matrix m are NaN in all parts."""
    parts = [w[m], *([] if v is None else [v[m].real] + ([v[m].imag] if v.dtype.kind == "c" else []))]
    return all(np.isnan(part).all() for part in parts)


def message(call):
    """The text of the error a call ends in, or None. Contexts and the capture mode must be as before."""
    text = None
    try:
        call()
    except RuntimeError as error:
        text = str(error)
    assert balanced(), text
    return text


def failing(order, call):
    os.environ["MOCK_FAIL"] = order
    try:
        return message(call)
    finally:
        del os.environ["MOCK_FAIL"]


def xla(handler):
    """The address behind one of the XLA handlers."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(get(native.xla_handler(handler), b"xla._CUSTOM_CALL_TARGET"))


class Books(ctypes.Structure):
    """As in xla.cc."""

    _fields_ = (
        ("stream", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("fail_stream", "fail_allocate", "streams", "allocations", "frees")),
        *((name, ctypes.c_int32) for name in ("wrong", "errors_made", "errors_destroyed")),
        ("bytes", ctypes.c_int64),
        ("message", ctypes.c_char * 512),
    )

    def told(self):
        return {name: getattr(self, name) for name, _ in self._fields_} | {"message": self.message.decode()}


def execute(handler, a, engine, upper=False, op=CHOLESKY, dtype=None, dims=None, **orders):
    """(failed, factor, info, books) of one XLA call."""
    library = ctypes.CDLL(os.path.join(os.environ["MOCK_LIBRARIES"], "xla.so"))
    books = Books(**orders)
    dims = a.shape if dims is None else dims
    code = {"float32": 11, "float64": 12, "complex64": 15, "complex128": 18}[a.dtype.name] if dtype is None else dtype
    factor, info = np.empty_like(a), np.full(a.shape[:-2], -7, np.int32)
    array = (ctypes.c_int64 * len(dims))(*dims)
    numbers = [ctypes.c_int64(v) for v in (op, ENGINES[engine], int(upper))]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, factor, info)]
    failed = library.execute(xla(handler), ctypes.byref(books), code, len(dims), array, *numbers, *pointers)
    assert balanced()
    return bool(failed), factor, info, books.told()


def execute_eigh(handler, a, engine, upper=False, part=None, vectors=True, **orders):
    """(failed, w, v, info, books) of one XLA call."""
    library = ctypes.CDLL(os.path.join(os.environ["MOCK_LIBRARIES"], "xla.so"))
    books = Books(**orders)
    n = a.shape[-1]
    first, count = (0, -1) if part is None else part
    columns = n if count < 0 else count
    code = {"float32": 11, "float64": 12, "complex64": 15, "complex128": 18}[a.dtype.name]
    w = np.empty((*a.shape[:-2], columns), a.real.dtype)
    v = np.empty((*a.shape[:-1], columns), a.dtype)
    info = np.full(a.shape[:-2], -7, np.int32)
    array = (ctypes.c_int64 * a.ndim)(*a.shape)
    numbers = [ctypes.c_int64(x) for x in (EIGH if vectors else EIGVALSH, ENGINES[engine], int(upper), first, count)]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, w, v, info)]
    failed = library.execute_eigh(xla(handler), ctypes.byref(books), code, a.ndim, array, *numbers, *pointers)
    assert balanced()
    return bool(failed), w, v if vectors else None, info, books.told()


def describe(handler):
    library = ctypes.CDLL(os.path.join(os.environ["MOCK_LIBRARIES"], "xla.so"))
    answer = (ctypes.c_int * 3)()
    assert library.describe(xla(handler), answer) == 0
    return list(answer)


def tell(**values):
    """Hands results to the test."""
    Path(os.environ["MOCK_TOLD"]).write_text(json.dumps(values))
