"""The calls whose kernels a pack holds: common operations on contiguous matrices, every order up to 128 and some beyond.

Which kernels a call launches, the native core says itself: it runs the call over libraries that do nothing (native/gpu/dry.h).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.native import AUTO, CUDA, DTYPE_CODE, ENGINES, OPS, native
from ..core.problem import ADJOINT, MIXED, POS, UPPER

Gpu = tuple[int, int, int, str]  # multiprocessors, shared memory of a block in bytes, compute capability, name
Call = tuple[str, int, tuple[int, ...]]  # operation, flags, sizes

# The GPUs that each architecture is built for: kernels differ with the room in shared memory, engines with the records.
GPUS: dict[int, tuple[Gpu, ...]] = {
    80: ((108, 166912, 80, "NVIDIA A100-SXM4-80GB"), (84, 101376, 86, "NVIDIA A40"), (142, 101376, 89, "NVIDIA L40S")),
    90: ((132, 232448, 90, "NVIDIA H200"), (132, 232448, 90, "NVIDIA H100 80GB HBM3")),
    100: ((148, 232448, 100, "NVIDIA B200"),),
    120: ((170, 101376, 120, "NVIDIA GeForce RTX 5090"),),
}

# Beyond 128 no kernel is compiled for its order: a few orders stand for the others.
_SMALL, _LARGE = range(1, 129), (200, 256, 512, 1024, 4096, 20_000)
# One matrix, some and many. The second stage of eigh has a kernel for each number of matrices that share a warp.
_BATCHES, _EIGH_BATCHES, _LARGE_BATCHES = (1, 100, 10_000), (1, 1000, 2000, 4000, 10_000), (1, 100)
_TALL = 100_000  # rows of a matrix that is taken in passes over them
_WIDEST_LSTSQ = 4096  # a column of complex128 must fit the shared memory of every GPU
# Kernels up to n = 32, and some up to 52, are compiled for their order, larger ones for its alignment and for how many fit on a
# multiprocessor.
# Derivatives and rarer choices are in a pack for these orders alone.
_ROUND = {*range(1, 17), 20, 24, 28, *range(32, 129, 8), *_LARGE}


def calls(n: int) -> Iterator[Call]:
    """The calls for matrices of order n, and for tall and wide ones with that smaller side."""
    is_round, is_large = n in _ROUND, n in _LARGE
    for batch in _LARGE_BATCHES if is_large else _EIGH_BATCHES:
        for operation in ("eigh", "eigvalsh"):
            yield operation, 0, (batch, n, 0, n)
    if is_large:
        yield "eigh", 0, (1, n, 0, 10)
        for flags in (0, POS):
            yield "solve", flags | MIXED, (1, n, 1)
    for batch in _LARGE_BATCHES if is_large else _BATCHES:
        matrices = (batch, n)
        for flags in (0, UPPER) if is_round else (0,):
            for operation in ("cholesky", "finite", "hermitian"):
                yield operation, flags, matrices
        for flags in (0, POS):
            for operation in ("inverse", "slogdet", "det"):
                yield operation, flags, matrices
        yield "lu", 0, matrices
        # large ones are unpacked on the host, which a dry call does too: one of them has the kernels of all
        if not is_large or (batch == 1 and n <= 512):
            for operation in ("eig", "eigvals") if is_large else ("eig", "eigvals", "schur"):
                yield operation, 0, matrices
        for columns in {1, n}:
            for flags in (0, POS):
                yield "solve", flags, (*matrices, columns)
            for flags in (0, UPPER, ADJOINT, UPPER | ADJOINT) if is_round else (0, UPPER):
                yield "triangular", flags, (*matrices, columns)
            if is_round:
                yield "cholesky_solve", 0, (*matrices, columns)
                for flags in (0, ADJOINT):
                    yield "lu_solve", flags, (*matrices, columns)
        for longer in (n, 2 * n, 4 * n) if is_large or batch > 1 else (n, 2 * n, 4 * n, _TALL):
            yield "qr", 0, (batch, longer, n, n)
            for operation in ("qr_r", "qr_raw"):
                yield operation, 0, (batch, longer, n)
            if is_round and n <= _WIDEST_LSTSQ:  # compiled for the number of rows
                yield "lstsq", 0, (batch, longer, n, 1)
            for rows, columns in ((longer, n), (n, longer)):
                yield "svd", 0, (batch, rows, columns, 0)
                yield "svdvals", 0, (batch, rows, columns)
        yield "svd_part", 0, (batch, n, n, 1)


# Engines that are chosen by name, or by a measured record: their calls and dtypes, and the shared memory that they need.
_NAMED = {
    "two_stage": (
        [(operation, 0, (1, n, 0, n)) for operation in ("eigh", "eigvalsh") for n in (1024, 2048, 4096, 8192, 12_288, 16_384)],
        ("float32", "float64"),
        227 * 1024,
    )
}


def kernels_for(call: Call, dtype: str, gpu: Gpu, engine: int = AUTO) -> list[tuple[str, str]]:
    """The kernels that a call launches, each as its source and its options."""
    assert native is not None
    operation, flags, sizes = call
    found = native.kernels(OPS[operation], DTYPE_CODE[dtype], CUDA, 0, engine, 0, flags, sizes, gpu)
    return list(found)


# Factors as LAPACK has them, for torch's own functions (lapwing.install): each access is of one element.
_LAPACK_FORM = {("lapack_form.cu", f"-DLW_DTYPE={code} -DLW_UPPER=0 -DLW_V={size}") for code, size in enumerate((4, 8, 8, 16))}


def common_kernels(architecture: int) -> set[tuple[str, str]]:
    chosen = {
        kernel
        for n in (*_SMALL, *_LARGE)
        for call in calls(n)
        for dtype in DTYPE_CODE
        for gpu in GPUS[architecture]
        for kernel in kernels_for(call, dtype, gpu)
    }
    named = {
        kernel
        for engine, (known_calls, dtypes, shared) in _NAMED.items()
        for gpu in GPUS[architecture]
        if gpu[1] >= shared
        for call in known_calls
        for dtype in dtypes
        for kernel in kernels_for(call, dtype, gpu, ENGINES[engine])
    }
    return _LAPACK_FORM | chosen | named
