"""Calls every public operation with random input, and checks each answer by mathematics.

    python tests/fuzz.py --calls 100000
    python tests/fuzz.py --seed 3 --only 1234        # one call again, with its traceback

Call number i of a seed is always the same call. It draws an operation, dtype, size, batch, memory layout (transposed, strided,
reversed, broadcast, not aligned, byte-swapped, read-only), scale (up to the ends of the range, subnormal numbers), options and,
for some calls, a flaw: NaN, a singular or indefinite matrix, a wrong dtype, shape or choice.

Checked: residuals of at most 30 n eps on a scale that the matrix gives, never against another library; results that the
documentation promises for flawed input; documented errors only; not one byte written to the input or beside it.

The calls run in child processes: a crash is reported like any other failure, and the run goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import lapwing as lw

LIMIT = 30
DTYPES = ("float32", "float64", "complex64", "complex128")
SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 9)
LARGE = (15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65, 97, 128, 130)
RECTANGLES = ((0, 3), (3, 0), (5, 1), (1, 5), (9, 4), (4, 9), (33, 17), (17, 33), (65, 64), (130, 20), (2100, 17), (4200, 9))
ONE_TRIANGLE = ("symmetric", "hermitian", "pos")
ASSUME = ("general", *ONE_TRIANGLE, "lower", "upper")
L = np.longdouble  # norms and determinants: the range of the products of two doubles


@dataclass(frozen=True)
class Call:
    """One call, in words. ``repr`` is what a report prints."""

    seed: int
    index: int
    operation: str
    library: str
    dtype: str
    batch: tuple[int, ...]
    m: int
    n: int
    columns: int | None
    condition: float
    scale: int  # of a, a power of two
    scale_b: int
    layout: str
    layout_b: str
    flaw: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.index, 1])

    @property
    def subnormal(self) -> bool:
        """Entries that the dtype holds with fewer bits, or results that it does."""
        lowest = np.finfo(self.dtype).minexp
        low = np.log2(self.condition) + 8
        result = self.scale_b + self.scale if self.operation == "matmul" else self.scale_b - self.scale
        return min(self.scale, self.scale_b, result) - low <= lowest

    @property
    def assume(self) -> str:
        return self.options.get("assume", "pos" if self.operation == "factor" else "general")

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if name not in ("seed", "index"))


# Failures that are known and being mended. A line goes when its test is there.
KNOWN: list[tuple[str, Callable[[Call], bool]]] = [
    (
        "the LU factor of a subnormal matrix is subnormal too, and has few digits",
        lambda c: c.operation == "factor" and c.subnormal and c.assume in ("general", "symmetric", "hermitian"),
    ),
    (
        "what JAX computes outside of native code flushes subnormal numbers",
        lambda c: (
            c.library == "jax" and c.subnormal and c.operation in ("lstsq", "matmul", "polar", "qr", "factor", "slogdet", "det")
        ),
    ),
]


class Wrong(Exception):
    """The call broke a promise."""


# ---- drawing a call


def draw(seed: int, index: int) -> Call:
    """Call number ``index`` of ``seed``."""
    rng = np.random.default_rng([seed, index])

    def pick(choices: Any, weights: Any = None) -> Any:
        choices = list(choices)
        p = None if weights is None else np.array(weights) / sum(weights)
        return choices[rng.choice(len(choices), p=p)]

    def chance(p: float) -> bool:
        return bool(rng.random() < p)

    operation = pick(OPERATIONS)
    library = pick(("numpy", "torch", "jax"), (87, 11.5, 1.5))
    dtype = pick(DTYPES)
    info = np.finfo(dtype)
    square = operation not in ("qr", "svd", "svdvals", "lstsq", "polar", "matmul")
    few = library == "jax"  # each new shape is compiled
    if square or chance(0.3):
        m = n = int(pick((0, 1, 5, 33) if few else SMALL if chance(0.6) else LARGE))
    else:
        m, n = pick(RECTANGLES[4:7] if few else RECTANGLES)
    batch = () if few and chance(0.7) else pick(((), (0,), (1,), (3,), (2, 3)), (10, 1, 2, 4, 1))
    if chance(0.1) and n <= 9 and m <= 9 and not few:
        batch = (int(pick((8, 33, 70))),)
    columns = pick((None, 0, 1, 2, 7, 40), (4, 1, 3, 2, 2, 1))

    high, low = info.maxexp - 12, info.minexp
    tiny = low - info.nmant // 2
    scale = pick((0, high, high // 2, -high // 2, low + 4, tiny), (12, 1, 1, 1, 1, 1))
    scale_b = scale if chance(0.7) else pick((0, high // 2, low + 4))
    # rounded to the few bits that subnormal numbers have, a matrix of bad condition may be singular
    bits = min(info.nmant, scale - (low - info.nmant))
    limit = max(1e-2 / max(m, n, 1) * 2.0**bits, 1.0)
    condition = min(pick((1.0, 10.0, 1e3, 1e6, 1e10)), limit)
    layouts = {
        "numpy": ("plain", "transposed", "step", "reversed", "broadcast", "unaligned", "swapped", "readonly"),
        "torch": ("plain", "transposed", "step", "broadcast"),
        "jax": ("plain",),
    }[library]
    layout, layout_b = (pick(layouts, [6, *[1] * (len(layouts) - 1)]) for _ in range(2))
    flaw = pick(("", "nan", "inf", "singular", "dtype", "shape", "choice"), (30, 1, 1, 2, 1, 1, 1))
    if (flaw == "shape" and (not square or not n)) or operation == "matmul":
        flaw = ""

    options: dict[str, Any] = {}
    takes = OPERATIONS[operation].options
    if "assume" in takes:
        options["assume"] = pick(ASSUME)
    if "upper" in takes and options.get("assume", "pos") in ONE_TRIANGLE:
        options["upper"] = chance(0.5)
    if "on_fail" in takes and chance(0.5):
        options["on_fail"] = pick(("raise", "nan"))
    if "overwrite" in takes and chance(0.3):
        options["overwrite"] = True
    if "precision" in takes and chance(0.2) and options["assume"] in ("general", "pos") and dtype in ("float64", "complex128"):
        options["precision"] = "mixed"
    if "engine" in takes and chance(0.3):
        options["engine"] = pick(("lapack", "batched"), (2, 1))
    if "mode" in takes and chance(0.3):
        options["mode"] = "complete"
    if "full_matrices" in takes and chance(0.3):
        options["full_matrices"] = True
    if "side" in takes and chance(0.5):
        options["side"] = "left"
    if "subset" in takes and n and chance(0.5):
        count = int(rng.integers(1, n + 1))
        options["subset"] = pick((slice(count), slice(-count, None), slice(int(rng.integers(0, count)), count)))
        if n >= 32 and options["subset"].start is None and count <= n // 8 and "engine" in takes and chance(0.5):
            options["engine"] = "krylov"
        if batch == () and "certify" in takes and options["subset"].start is None and chance(0.2):
            options["certify"] = True
    if "b" in takes and chance(0.15):
        options["b"] = True
        scale_b = 0
    if m > 1000:  # each of these gives an m x m matrix
        for name in ("mode", "full_matrices", "side"):
            options.pop(name, None)
    if flaw == "choice":
        name = pick([name for name in takes if name in WRONG_CHOICES] or ["engine"])
        options[name] = WRONG_CHOICES[name]
    scales = float(condition), int(scale), int(scale_b)
    return Call(seed, index, operation, library, dtype, batch, m, n, columns, *scales, layout, layout_b, flaw, options)


WRONG_CHOICES: dict[str, Any] = {
    "assume": "positive",
    "on_fail": "ignore",
    "engine": "fastest",
    "upper": "L",
    "overwrite": "yes",
    "mode": "r2",
    "side": "middle",
    "full_matrices": 3.5,
    "precision": "half",
}


# ---- matrices with known properties, in double precision and of norm 1


def random(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if dtype.startswith("c") else x


def unitary(rng: np.random.Generator, dtype: str, batch: tuple[int, ...], m: int, n: int) -> np.ndarray:
    return np.linalg.qr(random(rng, dtype, *batch, m, n))[0]


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def singular_values(call: Call) -> np.ndarray:
    """Descending."""
    return np.geomspace(1, 1 / call.condition, min(call.m, call.n))


def matrix(call: Call, rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A batch of matrices of this kind, and their singular values, or eigenvalues where they are Hermitian."""
    m, n, dtype = call.m, call.n, call.dtype
    s = singular_values(call)
    if kind in ("lower", "upper"):
        a = random(rng, dtype, *call.batch, n, n) / (2 * max(n, 1)) + np.eye(n)
        return (np.tril(a) if kind == "lower" else np.triu(a)), s
    if kind == "general":
        return (unitary(rng, dtype, call.batch, m, min(m, n)) * s) @ adjoint(unitary(rng, dtype, call.batch, n, min(m, n))), s
    q = unitary(rng, dtype, call.batch, n, n)
    if kind == "symmetric":
        a = (q * s) @ np.swapaxes(q, -1, -2)
        return (a + np.swapaxes(a, -1, -2)) / 2, s
    w = np.sort(s if kind == "pos" else s * np.where(np.arange(n) % 3 == 1, -1, 1))
    a = (q * w) @ adjoint(q)
    return (a + adjoint(a)) / 2, w


def poison(a: np.ndarray, kind: str, upper: bool) -> np.ndarray:
    """NaN in the triangle that must not be read."""
    lower = kind == "lower" or (kind in ONE_TRIANGLE and not upper)
    if kind == "general" or (kind in ("lower", "upper") and lower != (kind == "lower")):
        return a
    a, n = a.copy(), a.shape[-1]
    a[..., (np.triu(np.ones((n, n), bool), 1) if lower else np.tril(np.ones((n, n), bool), -1))] = np.nan
    return a


def whole(a: np.ndarray, kind: str, upper: bool) -> np.ndarray:
    """The matrix that the triangle stands for."""
    if kind == "general":
        return a
    if kind in ("lower", "upper"):
        return np.tril(a) if kind == "lower" else np.triu(a)
    part = np.triu(a) if upper else np.tril(a)
    if kind == "symmetric":
        return part + np.swapaxes(np.triu(a, 1) if upper else np.tril(a, -1), -1, -2)
    i = np.arange(a.shape[-1])
    part[..., i, i] = part[..., i, i].real
    return part + adjoint(np.triu(a, 1) if upper else np.tril(a, -1))


# ---- memory


class Memory:
    """An array with the strides that ``layout`` names, inside a larger buffer that is watched."""

    def __init__(self, values: np.ndarray, layout: str) -> None:
        shape, item = values.shape, values.itemsize
        dtype = values.dtype.newbyteorder() if layout == "swapped" else values.dtype
        order = list(range(len(shape)))
        step, sign, shift = 1, 1, 0
        if layout == "transposed" and len(shape) >= 2:
            order[-1], order[-2] = order[-2], order[-1]
        step = 2 if layout == "step" else 1
        sign = -1 if layout == "reversed" else 1
        shift = 1 + (item // 2 + 1) % item if layout == "unaligned" else 0
        if layout == "broadcast" and len(shape) > 2 and shape[0]:
            values[...] = values[:1]
        strides, size = [0] * len(shape), item * step
        for axis in reversed(order):
            strides[axis] = sign * size
            size *= max(shape[axis], 1)
        if layout == "broadcast" and len(shape) > 2:
            strides[0] = 0
        margin = 256
        start = margin + shift
        if sign < 0 and values.size:
            start += sum(-s * (d - 1) for s, d in zip(strides, shape, strict=True))
        self.buffer = np.full(size + 2 * margin + 16, 0xA5, np.uint8)
        self.place = {"shape": shape, "dtype": dtype, "offset": start, "strides": strides}
        self.array = np.ndarray(buffer=self.buffer.data, **self.place)
        self.array[...] = values
        self.before = self.buffer.copy()
        if layout == "readonly":
            self.array.flags.writeable = False

    def check(self, overwritten: bool) -> None:
        changed = self.buffer != self.before
        if overwritten:
            inside = np.zeros_like(self.buffer)
            mark = np.frombuffer(b"\xff" * self.array.itemsize, self.array.dtype)[0]
            np.ndarray(buffer=inside.data, **self.place)[...] = mark
            changed &= inside == 0
        if changed.any():
            raise Wrong("memory beside the input was changed" if overwritten else "the input was changed")


# ---- norms of numbers near the ends of the range


def unit(a: np.ndarray) -> tuple[np.ndarray, int]:
    """(x, e): a = x 2^e with entries of x up to 1, in double precision."""
    parts = [a.real, a.imag] if np.iscomplexobj(a) else [a]
    parts = [np.asarray(p, np.float64) for p in parts]
    top = max((float(np.max(np.abs(p), initial=0)) for p in parts), default=0)
    if not np.isfinite(top):
        raise Wrong("the result holds NaN or Inf")
    e = int(np.frexp(top)[1]) if top else 0
    scaled = [np.ldexp(np.ldexp(p, -(e // 2)), -(e - e // 2)) for p in parts]
    return (scaled[0] + 1j * scaled[1] if len(scaled) == 2 else scaled[0]), e


def norm(a: np.ndarray) -> Any:
    x, e = unit(a)
    return np.ldexp(L(np.linalg.norm(x)), e)


def distance(terms: list[tuple[int, tuple[np.ndarray, ...]]]) -> Any:
    """The norm of a sum of products, each with its sign."""
    parts = []
    for sign, factors in terms:
        product, e = unit(factors[0])
        for other in factors[1:]:
            x, more = unit(other)
            product, e = product @ x, e + more
        parts.append((sign * product, e))
    top = max(e for _, e in parts)
    return np.ldexp(L(np.linalg.norm(sum(x * np.ldexp(1.0, max(e - top, -1100)) for x, e in parts))), top)


def small(what: str, value: Any, scale: Any, call: Call, dtype: str | None = None, slack: Any = 0) -> None:
    """value <= 30 n eps scale, or what the spacing of subnormal numbers allows."""
    n = max(call.m, call.n, 1)
    bound = LIMIT * n * L(np.finfo(dtype or call.dtype).eps) * scale + slack
    if not value <= bound:
        unit_of = n * L(np.finfo(call.dtype).eps) * scale + slack / LIMIT
        raise Wrong(f"{what}: {float(value / unit_of) if unit_of else float('inf'):.3g} n eps")


def grain(call: Call, factor: Any = 1) -> Any:
    """What rounding to the smallest subnormal number may change."""
    n = max(call.m, call.n, 1)
    return L(np.finfo(call.dtype).smallest_subnormal) * n * n * factor


def orthonormal(what: str, q: np.ndarray, call: Call) -> None:
    x = np.asarray(q, complex if np.iscomplexobj(q) else float)
    k = x.shape[-1]
    small(f"{what} is not orthonormal", L(np.linalg.norm(adjoint(x) @ x - np.eye(k))), L(max(k, 1)) ** 0.5, call)


def determinant(a: np.ndarray) -> tuple[Any, Any, Any]:
    """(sign, log |det|, |A^-1|) by elimination in long double."""
    n = a.shape[-1]
    x = np.concatenate([a.astype(np.clongdouble if np.iscomplexobj(a) else L), np.eye(n)], axis=1)
    sign, logabs = L(1), L(0)
    for k in range(n):
        p = k + int(np.argmax(np.abs(x[k:, k])))
        if not x[p, k]:
            return L(0), -L(np.inf), L(np.inf)
        if p != k:
            x[[k, p]] = x[[p, k]]
            sign = -sign
        pivot = x[k, k]
        sign, logabs = sign * (pivot / np.abs(pivot)), logabs + np.log(np.abs(pivot))
        x[k] /= pivot
        others = np.arange(n) != k
        x[others] -= np.outer(x[others, k], x[k])
    return sign, logabs, np.sqrt(np.sum(np.abs(x[:, n:]) ** 2))


# ---- the operations: how each is called and what must hold for one matrix


@dataclass(frozen=True)
class Operation:
    options: tuple[str, ...]
    check: Callable[..., None]
    right: bool = False  # has a second argument
    kind: str = ""  # of matrix; "" for what assume says


def check_cholesky(call: Call, a: np.ndarray, known: np.ndarray, l: np.ndarray) -> None:
    upper = bool(call.options.get("upper"))
    if np.any(np.tril(l, -1) if upper else np.triu(l, 1)):
        raise Wrong("the other triangle is not zero")
    product = (adjoint(l), l) if upper else (l, adjoint(l))
    small("A - L L^H", distance([(1, (a,)), (-1, product)]), norm(a), call, slack=grain(call))


def check_solution(call: Call, a: np.ndarray, known: np.ndarray, x: np.ndarray, b: np.ndarray) -> None:
    b, x = (v[:, None] if v.ndim == 1 else v for v in (b, x))
    slack = grain(call, norm(a) + 1)
    small("A x - b", distance([(1, (a, x)), (-1, (b,))]), norm(a) * norm(x) + norm(b), call, slack=slack)


def check_inverse(call: Call, a: np.ndarray, known: np.ndarray, x: np.ndarray) -> None:
    eye = np.eye(call.n)
    error = min(distance([(1, (a, x)), (-1, (eye,))]), distance([(1, (x, a)), (-1, (eye,))]))
    small("A X - 1", error, norm(a) * norm(x), call, slack=grain(call, norm(a)))


def check_slogdet(call: Call, a: np.ndarray, known: np.ndarray, sign: Any, logabs: Any) -> None:
    if call.n > 65:
        return  # elimination in long double would take most of the time
    x, e = unit(a)
    right, log, inverse = determinant(x)
    log += e * call.n * np.log(L(2))
    spread = norm(x) * inverse * call.n**0.5
    if spread * 30 * call.n * np.finfo(call.dtype).eps > 0.1:
        return
    small("log |det|", abs(L(logabs) - log), spread + abs(log), call)
    small("the sign of det", abs(sign - right), spread, call)


def check_det(call: Call, a: np.ndarray, known: np.ndarray, det: Any) -> None:
    if call.n > 65:
        return
    x, e = unit(a)
    right, log, inverse = determinant(x)
    log += e * call.n * np.log(L(2))
    spread, kind = norm(x) * inverse * call.n**0.5, np.finfo(call.dtype)
    if spread * 30 * call.n * kind.eps > 0.1 or abs(log - np.log(L(kind.max))) < 1 or abs(log - np.log(L(kind.tiny))) < 1:
        return
    if np.log(L(kind.tiny)) < log < np.log(L(kind.max)):
        small("det", abs(det / np.exp(log) - right), spread, call)
    elif not (abs(det) < kind.tiny if log < 0 else np.isinf(abs(det))):
        raise Wrong(f"det {det} instead of exp({log})")


def check_eigh(
    call: Call, a: np.ndarray, known: np.ndarray, w: np.ndarray, v: np.ndarray | None, b: np.ndarray | None = None
) -> None:
    if np.any(np.diff(w) < 0):
        raise Wrong("the eigenvalues do not ascend")
    if b is None:
        x, e = unit(w)
        wanted = known[call.options.get("subset") or slice(None)]
        if x.shape != wanted.shape:
            raise Wrong(f"{x.shape} eigenvalues instead of {wanted.shape}")
        error = np.ldexp(L(np.max(np.abs(x - np.ldexp(wanted, call.scale - e)), initial=0)), e)
        small("eigenvalues", error, norm(a), call, slack=grain(call, 8))
    if v is None:
        return
    spread = L(1) if b is None else L(10)  # the condition of b
    right = [(1, (a, v)), (-1, (v if b is None else b @ v, np.diag(w)))]
    slack = grain(call) * max(norm(v), 1)
    scale = norm(a) * norm(v) + (0 if b is None else norm(w) * norm(v))
    small("A V - V W", distance(right), scale * spread, call, slack=slack)
    if b is None:
        orthonormal("V", v, call)
    else:
        gram = adjoint(v.astype(complex)) @ b @ v
        small("V^H B V - 1", L(np.linalg.norm(gram - np.eye(len(gram)))), spread * len(gram), call)


def check_eig(call: Call, a: np.ndarray, known: np.ndarray, w: np.ndarray, v: np.ndarray) -> None:
    small(
        "A V - V W",
        distance([(1, (a, v)), (-1, (v, np.diag(w)))]),
        norm(a) * max(norm(v), 1),
        call,
        slack=grain(call) * max(norm(v), 1),
    )
    small("lengths", L(np.max(np.abs(np.linalg.norm(v.astype(complex), axis=0) - 1), initial=0)), L(1), call)


def check_eigvals(call: Call, a: np.ndarray, known: np.ndarray, w: np.ndarray) -> None:
    """Their sum is the trace."""
    one = np.ones((1, call.n))
    error = distance([(1, (one, np.diag(w), one.T)), (-1, (one, np.diag(np.diag(a)), one.T))])
    small("trace", error, norm(a) * max(call.n, 1) ** 0.5, call, slack=grain(call, 8))


def check_schur(call: Call, a: np.ndarray, known: np.ndarray, t: np.ndarray, z: np.ndarray) -> None:
    if np.any(np.tril(t, -1 if np.iscomplexobj(t) else -2)):
        raise Wrong("T is not upper triangular")
    orthonormal("Z", z, call)
    small("A - Z T Z^H", distance([(1, (a,)), (-1, (z, t, adjoint(z)))]), norm(a), call, slack=grain(call))


def check_svd(call: Call, a: np.ndarray, known: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> None:
    check_svdvals(call, a, known, s)
    k = len(s)
    full = bool(call.options.get("full_matrices"))
    if u.shape != (call.m, call.m if full else k) or vh.shape != (call.n if full else k, call.n):
        raise Wrong(f"shapes {u.shape} and {vh.shape}")
    orthonormal("U", u, call)
    orthonormal("V", adjoint(vh), call)
    small("A - U S V^H", distance([(1, (a,)), (-1, (u[:, :k], np.diag(s), vh[:k]))]), norm(a), call, slack=grain(call))


def check_svdvals(call: Call, a: np.ndarray, known: np.ndarray, s: np.ndarray) -> None:
    if np.any(np.diff(s) > 0) or np.any(s < 0):
        raise Wrong("the singular values do not descend to zero")
    x, e = unit(s)
    error = np.ldexp(L(np.max(np.abs(x - np.ldexp(known, call.scale - e)), initial=0)), e)
    small("singular values", error, norm(a), call, slack=grain(call, 8))


def check_qr(call: Call, a: np.ndarray, known: np.ndarray, q: np.ndarray, r: np.ndarray) -> None:
    if np.any(np.tril(r, -1)):
        raise Wrong("R is not upper triangular")
    orthonormal("Q", q, call)
    small("A - Q R", distance([(1, (a,)), (-1, (q, r))]), norm(a), call, slack=grain(call))


def check_lstsq(
    call: Call, a: np.ndarray, known: np.ndarray, x: np.ndarray, residuals: Any, rank: Any, s: np.ndarray, b: np.ndarray
) -> None:
    b, x = (v[:, None] if v.ndim == 1 else v for v in (b, x))
    if int(rank) != len(known) and call.condition < 0.1 / (max(call.m, call.n) * np.finfo(call.dtype).eps):
        raise Wrong(f"rank {rank} instead of {len(known)}")
    check_svdvals(call, a, known, s)
    if not min(a.shape):
        return
    # A^H (A x - b) = 0
    scale = norm(a) * (norm(a) * norm(x) + norm(b))
    terms = [(1, (adjoint(a), a, x)), (-1, (adjoint(a), b))]
    small("A^H (A x - b)", distance(terms), scale, call, slack=grain(call, norm(a) * (norm(a) + 1)))


def check_polar(call: Call, a: np.ndarray, known: np.ndarray, u: np.ndarray, p: np.ndarray) -> None:
    left = call.options.get("side") == "left"
    product = (p, u) if left else (u, p)
    small("A - U P", distance([(1, (a,)), (-1, product)]), norm(a), call, slack=grain(call))
    small("P - P^H", distance([(1, (p,)), (-1, (adjoint(p),))]), norm(a), call, slack=grain(call))
    tall = call.m >= call.n
    if (min(call.m, call.n) and tall != left) or call.m == call.n:
        orthonormal("U", u if tall else adjoint(u), call)


def check_matmul(call: Call, a: np.ndarray, known: np.ndarray, c: np.ndarray, b: np.ndarray) -> None:
    b, c = (v[:, None] if v.ndim == 1 else v for v in (b, c))
    small("A B", distance([(1, (c,)), (-1, (a, b))]), norm(a) * norm(b), call, slack=grain(call))


def check_factor(call: Call, a: np.ndarray, known: np.ndarray, *results: Any) -> None:
    x, inverse, sign, logabs, rcond, b = results
    check_solution(call, a, known, x, b)
    if np.log2(call.condition) - call.scale < np.finfo(call.dtype).maxexp - 4:
        check_inverse(call, a, known, inverse)
    check_slogdet(call, a, known, sign, logabs)
    if call.n and call.condition < 1e-3 / np.finfo(call.dtype).eps:
        y, _ = unit(a)
        true = 1 / (np.linalg.norm(y, 1) * np.linalg.norm(np.linalg.inv(y), 1))
        if not 0.5 * true <= float(rcond) <= 10 * call.n * true:
            raise Wrong(f"rcond {float(rcond):.3g} instead of {true:.3g}")


SYSTEM = ("assume", "upper", "overwrite", "on_fail", "engine")
SPECTRUM = ("subset", "upper", "overwrite", "on_fail", "engine", "b", "certify")
OPERATIONS: dict[str, Operation] = {
    "cholesky": Operation(("upper", "overwrite", "on_fail", "engine"), check_cholesky, kind="pos"),
    "cholesky_ex": Operation(("upper",), check_cholesky, kind="pos"),
    "solve": Operation((*SYSTEM, "precision"), check_solution, right=True),
    "solve_ex": Operation(("assume", "upper"), check_solution, right=True),
    "inv": Operation(SYSTEM, check_inverse),
    "inv_ex": Operation(("assume", "upper"), check_inverse),
    "slogdet": Operation(("assume", "upper", "on_fail", "engine"), check_slogdet),
    "det": Operation(("assume", "upper", "on_fail", "engine"), check_det),
    "factor": Operation((*SYSTEM, "precision"), check_factor, right=True),
    "eigh": Operation(SPECTRUM, check_eigh, kind="hermitian"),
    "eigvalsh": Operation(SPECTRUM, lambda call, a, known, w, b=None: check_eigh(call, a, known, w, None, b), kind="hermitian"),
    "eigh_ex": Operation(("subset", "upper"), check_eigh, kind="hermitian"),
    "eig": Operation(("on_fail", "engine"), check_eig),
    "eigvals": Operation(("on_fail", "engine"), check_eigvals),
    "schur": Operation(("on_fail", "engine"), check_schur),
    "svd": Operation(("full_matrices", "on_fail", "engine"), check_svd, kind="general"),
    "svdvals": Operation(("on_fail", "engine"), check_svdvals, kind="general"),
    "qr": Operation(("mode", "engine"), check_qr, kind="general"),
    "lstsq": Operation(("engine",), check_lstsq, right=True, kind="general"),
    "polar": Operation(("side", "engine"), check_polar, kind="general"),
    "matmul": Operation((), check_matmul, right=True, kind="general"),
}


# ---- one call


def overflows(call: Call) -> bool:
    """The true result, or a sum on the way to it that no library keeps in range, is larger than the dtype's largest number."""
    top = np.finfo(call.dtype).maxexp - 6
    lost = np.log2(call.condition)
    if call.operation in ("inv", "inv_ex"):
        return lost - call.scale > top
    if call.operation == "matmul":
        return call.scale + call.scale_b > top
    if OPERATIONS[call.operation].right:
        return bool(lost + call.scale_b - call.scale > top)
    return False


def perform(call: Call) -> None:
    """Runs the call; raises :class:`Wrong` where a promise is broken."""
    operation, rng = OPERATIONS[call.operation], call.rng
    kind, upper = operation.kind or call.assume, bool(call.options.get("upper") is True)
    if kind not in ASSUME:
        kind = "general"
    values, known = matrix(call, rng, kind)
    small_dtype = np.dtype(call.dtype)
    exact = np.ldexp(1.0, call.scale // 2), np.ldexp(1.0, call.scale - call.scale // 2)
    values = (values * exact[0] * exact[1]).astype(small_dtype)
    if call.layout == "broadcast" and len(call.batch) and values.size:
        values[...] = values[:1]
    bad = flawed(call, values, kind, upper, rng)
    given = poison(values, kind, upper)
    truth = whole(values, kind, upper)
    options = {name: value for name, value in call.options.items() if name not in ("b",)}
    memory = [Memory(given.copy() if call.flaw != "shape" else given[..., :-1, :].copy(), call.layout)]
    right = None
    if operation.right:
        shape = (call.n,) if call.columns is None and call.operation != "matmul" else (*call.batch, call.n, call.columns or 1)
        if call.operation == "lstsq":
            shape = (call.m,) if call.columns is None else (*call.batch, call.m, call.columns)
        b_scale = np.ldexp(1.0, call.scale_b // 2), np.ldexp(1.0, call.scale_b - call.scale_b // 2)
        right = (random(rng, call.dtype, *shape) / 4 * b_scale[0] * b_scale[1]).astype(small_dtype)
        layout = "plain" if call.layout_b == "broadcast" else call.layout_b
        memory.append(Memory(right.copy(), layout))
    if "b" in call.options:
        q = unitary(rng, call.dtype, call.batch, call.n, call.n)
        second = (q * np.linspace(1, 2, call.n)) @ adjoint(q)
        second = ((second + adjoint(second)) / 2).astype(small_dtype)
        memory.append(Memory(poison(second, "hermitian", upper), "plain" if call.layout_b == "broadcast" else call.layout_b))
        options["b"] = memory[-1].array
        second = whole(second, "hermitian", upper)
    arrays = [m.array for m in memory[: 1 + operation.right]]
    if call.flaw == "dtype":
        kinds = ("int64", "float16", "bool", "object")
        arrays[0] = np.ones(arrays[0].shape, kinds[call.index % (4 if call.library == "numpy" else 3)])
    expected = expected_failure(call, bad)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if overflows(call) else "error")
            outputs, info = in_library(call, arrays, options)
    except Exception as error:
        judge(call, error, bad, expected)
        outputs = None
    for piece in memory:
        piece.check(bool(call.options.get("overwrite") is True) and piece is memory[0])
    if outputs is None:
        return
    if expected is not None:
        raise Wrong(f"no error where {expected.__name__} was due")
    if overflows(call) or 0 in call.batch:
        return
    for where in itertools.product(*map(range, call.batch)):
        parts = [np.asarray(x)[where] if call.batch else np.asarray(x) for x in outputs]
        if info is not None and bool(np.asarray(info)[where]) != (where == bad):
            raise Wrong(f"info is {np.asarray(info)[where]} for matrix {where}")
        if where == bad:
            # slogdet of a singular matrix is (0, -inf), det is 0
            promised = call.operation not in ("slogdet", "det", "factor", "matmul", "qr", "lstsq", "polar")
            if promised and not any(np.isnan(p).any() for p in parts):
                raise Wrong("a matrix that failed has numbers for a result")
            continue
        extra = []
        if right is not None:
            extra = [right[where] if right.ndim > 2 else right]
        if "b" in call.options:
            extra = [second[where] if call.batch else second]
        allowed = (small_dtype, small_dtype.type(0).real.dtype, np.dtype(np.int32), np.dtype(np.int64))
        if call.operation in ("eig", "eigvals"):
            allowed = (np.result_type(small_dtype, np.complex64),)
        for part in parts:
            if part.dtype not in allowed:
                raise Wrong(f"a result of dtype {part.dtype}")
        with np.errstate(all="ignore"):
            operation.check(call, truth[where] if call.batch else truth, known, *parts, *extra)


def flawed(call: Call, values: np.ndarray, kind: str, upper: bool, rng: np.random.Generator) -> tuple[int, ...] | None:
    """Puts the flaw into one matrix; which one, or None."""
    if call.flaw not in ("nan", "inf", "singular") or not values.size or 0 in call.batch or call.layout == "broadcast":
        return None
    if call.flaw == "singular" and call.operation in SINGULAR_IS_FINE:
        return None
    where = tuple(int(rng.integers(0, d)) for d in call.batch)
    one = values[where]
    i = int(rng.integers(0, min(one.shape)))
    if call.flaw == "singular":
        if kind in ("lower", "upper"):
            one[i, i] = 0
        else:
            one[i, :] = 0
            one[:, i] = 0
    else:
        one[i, i] = np.nan if call.flaw == "nan" else np.inf
    return where


SINGULAR_IS_FINE = (
    "eigh",
    "eigvalsh",
    "eigh_ex",
    "svd",
    "svdvals",
    "qr",
    "lstsq",
    "polar",
    "matmul",
    "eig",
    "eigvals",
    "schur",
)


def expected_failure(call: Call, bad: tuple[int, ...] | None) -> type[Exception] | None:
    """The error that the call must raise."""
    if call.flaw == "dtype":
        return TypeError
    if call.flaw == "shape" and (OPERATIONS[call.operation].kind not in ("general",)):
        return ValueError
    if call.flaw == "choice":
        return Exception
    if bad is None or call.options.get("on_fail") == "nan" or "on_fail" not in OPERATIONS[call.operation].options:
        return None
    if call.flaw == "singular" and call.operation in ("slogdet", "det") and call.assume != "pos":
        return None
    if call.operation in ("slogdet", "det") and call.flaw != "singular":
        return None  # NaN or an error: both are documented
    return np.linalg.LinAlgError


def judge(call: Call, error: Exception, bad: tuple[int, ...] | None, expected: type[Exception] | None) -> None:
    """Raises :class:`Wrong` unless the error is a documented one that is due."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Wrong):
        raise error
    if not isinstance(error, (np.linalg.LinAlgError, ValueError, TypeError)):
        raise Wrong(f"not a documented error: {text}") from error
    if isinstance(error, np.linalg.LinAlgError) and hasattr(error, "batch_index"):
        if bad is not None and error.batch_index == bad:
            return
        if bad is not None:
            raise Wrong(f"matrix {error.batch_index} is blamed instead of {bad}") from error
        if overflows(call) or (call.subnormal and call.flaw == ""):
            return  # rounded to few bits the matrix can be singular
    if call.flaw in ("dtype", "shape", "choice"):
        if not str(error).startswith(call.operation.removesuffix("_ex")) or "_native" in text:
            raise Wrong(f"an error without the operation's name: {text}") from error
        return
    engine = call.options.get("engine")
    if isinstance(error, ValueError) and engine not in (None, "auto") and engine in str(error):
        return  # an engine asked for by name may refuse, in words
    if isinstance(error, ValueError) and "certify" in str(error):
        return
    if expected is not None and isinstance(error, expected):
        return
    raise Wrong(f"an error where none was due: {text}") from error


def in_library(call: Call, arrays: list[np.ndarray], options: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """(outputs, info) as NumPy arrays."""
    with contextlib.ExitStack() as stack:
        put: Callable[[np.ndarray], Any] = lambda x: x  # noqa: E731
        get: Callable[[Any], np.ndarray] = np.asarray
        if call.library == "torch":
            import torch

            put, get = torch.from_numpy, lambda x: x.detach().resolve_conj().numpy()
        elif call.library == "jax":
            import jax

            from backends import x64

            stack.enter_context(x64())
            put = jax.numpy.asarray
        given = [put(x) for x in arrays]
        if "b" in options:
            options = {**options, "b": put(options["b"])}
        function = getattr(lw, call.operation)
        if call.operation == "factor":
            b = given.pop()
            f = function(*given, **options)
            return tuple(get(x) for x in (f.solve(b), f.inv(), *f.slogdet(), f.rcond())), None
        result = function(*given, **options)
        outputs = result if isinstance(result, tuple) else (result,)
        outputs = tuple(get(x) for x in outputs)
        return (outputs[:-1], outputs[-1]) if call.operation.endswith("_ex") else (outputs, None)


def known_failure(call: Call) -> str | None:
    return next((words for words, applies in KNOWN if applies(call)), None)


# ---- many calls


def child(seed: int, first: int, last: int, place: str, known: bool) -> None:
    """Runs the calls and prints a line for each failure; the file ``place`` holds the number of the call under way."""
    with open(place, "r+b", buffering=0) as position:
        for index in range(first, last):
            os.pwrite(position.fileno(), b"%020d" % index, 0)
            call = draw(seed, index)
            if not known and known_failure(call):
                print(json.dumps({"known": index}), flush=True)
                continue
            try:
                perform(call)
            except Exception as error:
                what = str(error) if isinstance(error, Wrong) else f"the fuzzer itself: {traceback.format_exc()[-600:]}"
                print(json.dumps({"index": index, "what": what, "call": str(call)}), flush=True)
        os.pwrite(position.fileno(), b"%020d" % last, 0)


def failures(calls: int, seed: int = 0, known: bool = False, first: int = 0) -> Iterator[dict[str, Any]]:
    """A record for each failure and for each call that was left out; with ``known`` the known ones are tried too."""
    source = str(Path(lw.__file__).resolve().parents[1])
    path = os.pathsep.join([source, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    last = first + calls
    with tempfile.NamedTemporaryFile() as place:
        while first < last:
            place.seek(0)
            place.write(b"%020d" % first)
            place.flush()
            command = [sys.executable, "-X", "faulthandler", __file__, "--child", place.name, "--seed", str(seed)]
            command += ["--first", str(first), "--calls", str(last - first)] + ["--known"] * known
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
            with subprocess.Popen(command, env=environment, **pipes) as process:
                assert process.stdout is not None and process.stderr is not None
                for line in process.stdout:
                    yield json.loads(line)
                errors = process.stderr.read()
            place.seek(0)
            reached = int(place.read(20))
            if process.returncode == 0:
                return
            yield {"index": reached, "what": f"crash ({process.returncode}): {errors[-600:]}", "call": str(draw(seed, reached))}
            first = reached + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--only", type=int, help="run one call in this process")
    parser.add_argument("--known", action="store_true", help="try the known failures too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.seed, options.first, options.first + options.calls, options.child, options.known)
        return 0
    if options.only is not None:
        call = draw(options.seed, options.only)
        print(call)
        perform(call)
        print("as promised")
        return 0
    left_out = wrong = 0
    for record in failures(options.calls, options.seed, options.known, options.first):
        if "known" in record:
            left_out += 1
            continue
        wrong += 1
        print(f"{record['what']}\n    {record['call']}")
        print(f"    again: python {sys.argv[0]} --seed {options.seed} --only {record['index']}", flush=True)
    print(f"{options.calls} calls, {left_out} left out as known failures, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
