"""A stand-in for CUDA: host memory, and NumPy in place of cuBLAS and cuSOLVER, with the same pointers, flags and strides."""

from __future__ import annotations

import ctypes

import numpy as np

DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}


def number(x):
    return int(x.value or 0) if isinstance(x, ctypes.c_void_p) else int(x)


class StandIn:
    """The methods of ``outofcore.cuda.Cuda``. Every operation happens at once, so that the order of streams is not checked."""

    main, inward, outward = 1, 2, 3

    def __init__(self, device=0, operation="test"):
        self.memory, self.events, self.most = {}, set(), 0

    def enter(self):
        pass

    def close(self):
        self.closed = True

    def allocate(self, size):
        buffer = np.full(size + 8, 0xFF, np.uint8)  # NaN: memory is not zero
        self.memory[buffer.ctypes.data] = buffer
        self.most = max(self.most, sum(b.size for b in self.memory.values()))
        return buffer.ctypes.data

    def release(self, pointer):
        del self.memory[pointer]

    def allocate_pinned(self, size):
        buffer = np.empty(size, np.uint8)
        self.pinned = getattr(self, "pinned", {})
        self.pinned[buffer.ctypes.data] = buffer
        return buffer.ctypes.data

    def release_pinned(self, pointer):
        del self.pinned[pointer]

    def is_pinned(self, pointer):
        return False

    def copy(self, to, to_pitch, source, pitch, width, height, kind, stream):
        assert height == 1 or max(width, 1) <= min(to_pitch, pitch)
        for line in range(height):
            ctypes.memmove(to + line * to_pitch, source + line * pitch, width)

    def event(self):
        self.events.add(len(self.events) + 1)
        return len(self.events)

    def release_event(self, event):
        pass

    record = wait = lambda self, *_: None
    wait_here = synchronize = lambda self, _: None

    def at(self, letter, pointer, rows, columns, lead):
        """A matrix by columns."""
        dtype = np.dtype(DTYPES[letter])
        assert lead >= max(rows, 1)
        size = ((columns - 1) * lead + rows) * dtype.itemsize if rows and columns else 0
        flat = np.frombuffer((ctypes.c_char * max(size, 1)).from_address(number(pointer)), np.uint8, size).view(dtype)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, lead * dtype.itemsize))

    def scalar(self, letter, pointer):
        return self.at(letter, pointer, 1, 1, 1)[0, 0]

    def blas(self, letter, routine, *args):
        getattr(self, routine.removesuffix("_v2"))(letter, *args)

    solver = blas

    def gemm(self, t, first, second, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        left = op(self.at(t, a, *((m, k) if first == 0 else (k, m)), lda), first)
        right = op(self.at(t, b, *((k, n) if second == 0 else (n, k)), ldb), second)
        to, product = self.at(t, c, m, n, ldc), self.scalar(t, alpha) * (left @ right)
        factor = self.scalar(t, beta)
        to[...] = product if factor == 0 else factor * to + product

    def trsm(self, t, side, triangle, operation, unit, m, n, alpha, a, lda, b, ldb):
        order = m if side == 0 else n
        matrix = self.at(t, a, order, order, lda)
        matrix = np.tril(matrix) if triangle == 0 else np.triu(matrix)
        if unit:
            matrix = matrix - np.diag(matrix.diagonal()) + np.eye(order, dtype=matrix.dtype)
        matrix, x = op(matrix, operation), self.at(t, b, m, n, ldb)
        x[...] = self.scalar(t, alpha) * (np.linalg.solve(matrix, x) if side == 0 else np.linalg.solve(matrix.T, x.T).T)

    def geam(self, t, first, second, m, n, alpha, a, lda, beta, b, ldb, c, ldc):
        self.at(t, c, m, n, ldc)[...] = op(self.at(t, a, *((m, n) if first == 0 else (n, m)), lda), first)

    def size(self, t, *args):
        args[-1]._obj.value = 7

    potrf_bufferSize = getrf_bufferSize = geqrf_bufferSize = orgqr_bufferSize = ungqr_bufferSize = size

    def status(self, pointer, value):
        ctypes.c_int.from_address(number(pointer)).value = value

    def potrf(self, t, triangle, n, a, lda, work, size, info):
        matrix = self.at(t, a, n, n, lda)
        lower = np.tril(matrix) if triangle == 0 else np.triu(matrix).conj().T
        self.status(info, 0)
        try:
            factor = np.linalg.cholesky(lower)
        except np.linalg.LinAlgError:
            orders = (k for k in range(1, n + 1) if not np.linalg.eigvalsh(lower[:k, :k])[0] > 0)
            self.status(info, next(orders))
            return
        if triangle == 0:
            matrix[np.tril_indices(n)] = factor[np.tril_indices(n)]
        else:
            matrix[np.triu_indices(n)] = factor.conj().T[np.triu_indices(n)]

    def getrf(self, t, m, n, a, lda, work, pivots, info):
        matrix, rows = self.at(t, a, m, n, lda), (ctypes.c_int * n).from_address(number(pivots))
        self.status(info, 0)
        for k in range(min(m, n)):
            row = k + int(np.argmax(abs(matrix[k:, k])))
            rows[k] = row + 1
            if matrix[row, k] == 0:
                self.status(info, k + 1)
                return
            matrix[[k, row]] = matrix[[row, k]]
            matrix[k + 1 :, k] /= matrix[k, k]
            matrix[k + 1 :, k + 1 :] -= np.outer(matrix[k + 1 :, k], matrix[k, k + 1 :])

    def laswp(self, t, n, a, lda, first, last, pivots, step):
        assert first == 1 and step in (1, -1)
        rows = (ctypes.c_int * last).from_address(number(pivots))
        matrix = self.at(t, a, max(*rows, last), n, lda)
        for k, row in list(enumerate(rows))[::step]:
            matrix[[k, row - 1]] = matrix[[row - 1, k]]

    def geqrf(self, t, m, n, a, lda, tau, work, size, info):
        matrix = self.at(t, a, m, n, lda)
        self.q, r = np.linalg.qr(matrix)
        matrix[:n] = r
        self.status(info, 0)

    def orgqr(self, t, m, n, k, a, lda, tau, work, size, info):
        self.at(t, a, m, n, lda)[...] = self.q
        self.status(info, 0)

    ungqr = orgqr


def op(matrix, operation):
    return matrix if operation == 0 else matrix.T if operation == 1 else matrix.conj().T
