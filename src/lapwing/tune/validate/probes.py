"""Whether a candidate's answer is right: which products it is asked, how far off it may be, and the verdict.

All on NumPy arrays; a bench for another device may bring its outputs here, or use the lists and bounds alone. Matrices are
views (columns, rows) of column-major memory, with a batch axis in front where there are several: row-major as frameworks
see them, so that y (n, m) = x (n, k) w (k, m).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from ..backends.base import Refused
from ..gemm import TYPES, Gemm

__all__ = [
    "UNIT",
    "Operands",
    "Probe",
    "activate",
    "allowances",
    "bound",
    "exact",
    "judge",
    "probes",
    "relative_error",
    "smaller",
]

UNIT = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "tf32": 2.0**-11,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "f8e4m3": 2.0**-4,
    "f8e5m2": 2.0**-3,
    "f8e4m3fnuz": 2.0**-4,
    "f8e5m2fnuz": 2.0**-3,
    "c64": 2.0**-24,
    "c128": 2.0**-53,
}
GUARD = 256  # elements before and after D that nothing may write
RUNS = 3  # of each probe: the first may find what an earlier candidate left
_OVER_DEFAULT = 4.0  # times the default's own error that a candidate's may be
_LONG = 5e7  # operations up to which the reference of float64 is taken in long double, which no BLAS has


@dataclass(frozen=True)
class Probe:
    """A product that a candidate must get right, and the range of its scales."""

    name: str
    gemm: Gemm
    scales: tuple[float, float] = (0.5, 2.0)


def probes(gemm: Gemm, *, alpha_beta: bool = True, small: Gemm | None = None) -> tuple[Probe, ...]:
    """The product itself, then near ones that show what it hides.

    Parameters
    ----------
    gemm : Gemm
    alpha_beta : bool
        Whether the kernel has alpha and beta at all.
    small : Gemm, optional
        Take the near ones from this product of fewer numbers, where the whole one is long.
    """
    near = small or gemm
    found = [Probe("product", gemm)]
    if min(near.m, near.n, near.k, near.batch) == 0:
        return tuple(found)
    packed: dict[str, Any] = {f"ld{x}": 0 for x in "abcd"} | {f"stride_{x}": 0 for x in "abcd"}
    # a pad that keeps 16-byte alignment, and NaN in it: what is read beyond the matrix is seen
    pad: dict[str, Any] = {f"ld{x}": near.stored(x)[0] + 16 for x in "abcd"} | {f"stride_{x}": 0 for x in "abcd"}
    found.append(Probe("padded", replace(near, **pad)))
    odd = {x: max(1, getattr(near, x) - cut) for x, cut in (("m", 1), ("n", 3), ("k", 5))}
    found.append(Probe("odd tails", replace(near, **{**packed, **odd})))
    if alpha_beta and TYPES[near.a_type][0] > 1:
        found.append(Probe("alpha, beta", replace(near, alpha=0.7, beta=0.3)))
    if "none" not in (near.scale_a, near.scale_b):
        # real checkpoints have both; a kernel that scales in the wrong place overflows or loses everything
        found += [Probe("large scales", near, (2.0**9, 2.0**10)), Probe("small scales", near, (2.0**-30, 2.0**-29))]
    return tuple(found)


def smaller(gemm: Gemm, flops: float = 2e7) -> Gemm:
    """The same kind of product with sides cut until it has about so many operations."""
    sides = {x: getattr(gemm, x) for x in ("m", "n", "k", "batch")}
    sides["batch"] = min(sides["batch"], 3)
    while 2.0 * sides["m"] * sides["n"] * sides["k"] * sides["batch"] > flops:
        largest = max(("m", "n", "k"), key=lambda x: sides[x])
        sides[largest] = -(-sides[largest] // 2)
    packed: dict[str, Any] = {f"ld{x}": 0 for x in "abcd"} | {f"stride_{x}": 0 for x in "abcd"}
    return replace(gemm, **{**packed, **sides})


@dataclass(frozen=True)
class Operands:
    """One set. ``memory`` is what D lies in, guards and pads included, and ``poison`` a copy of it before any run."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    d: np.ndarray
    bias: np.ndarray | None
    scale_a: np.ndarray | None
    scale_b: np.ndarray | None
    memory: np.ndarray
    poison: np.ndarray | None

    @classmethod
    def random(cls, gemm: Gemm, dtype: Any, seed: int, *, scales: tuple[float, float] = (0.5, 2.0)) -> Operands:
        """Normal numbers; NaN in pads, guards and D. Never zeros: they run faster, and hide what was not computed."""
        rng = np.random.default_rng(seed)
        kind = np.dtype(dtype)

        def matrix(x: str, guard: int = 0, fill: bool = True) -> tuple[np.ndarray, np.ndarray]:
            rows, columns = gemm.stored(x)
            ld = getattr(gemm, f"ld{x}")
            stride = getattr(gemm, f"stride_{x}") or ld * columns
            memory = np.full(2 * guard + max(stride * (gemm.batch - 1) + ld * columns, 1), np.nan, kind)
            strides = tuple(s * kind.itemsize for s in (stride, ld, 1))
            view = np.lib.stride_tricks.as_strided(memory[guard:], (gemm.batch, columns, rows), strides)
            if fill:
                view[...] = _normal(rng, view.shape, kind)
            return (view if gemm.batch > 1 else view[0]), memory

        def scale(mode: str, size: int) -> np.ndarray | None:
            low, high = scales
            count = {"tensor": 1, "row": size}.get(mode, 0)
            return (low + (high - low) * rng.random(count)).astype(np.float32) if count else None

        a, b = matrix("a")[0], matrix("b")[0]
        d, memory = matrix("d", GUARD, fill=False)
        c = matrix("c")[0] if gemm.beta else None
        bias = _normal(rng, (gemm.m,), kind) if gemm.bias else None
        scale_a, scale_b = scale(gemm.scale_a, gemm.m), scale(gemm.scale_b, gemm.n)
        return cls(a, b, c, d, bias, scale_a, scale_b, memory, memory.copy())

    def copy(self) -> Operands:
        """The same numbers in other memory, which is all that the clock needs."""

        def again(x: np.ndarray | None) -> np.ndarray | None:
            if x is None:
                return None
            # pads included, since the strides are part of the product
            length = sum(s * (n - 1) for s, n in zip(x.strides, x.shape, strict=True)) // x.itemsize + 1 if x.size else 1
            flat = np.lib.stride_tricks.as_strided(x, (length,), (x.itemsize,)).copy() if x.size else np.empty(1, x.dtype)
            return np.lib.stride_tricks.as_strided(flat, x.shape, x.strides)

        a, b, d = again(self.a), again(self.b), again(self.d)
        assert a is not None and b is not None and d is not None
        return replace(self, a=a, b=b, c=again(self.c), d=d, poison=None)

    def reset(self) -> None:
        """D, its pads and guards as they were: what one candidate did is not blamed on the next."""
        assert self.poison is not None
        self.memory[...] = self.poison

    @property
    def untouched(self) -> bool:
        """Whether everything around D still has the bits it had."""
        assert self.poison is not None
        now = self.memory.copy()
        at = (self.d.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0]) // now.itemsize
        np.lib.stride_tricks.as_strided(now[at:], self.d.shape, self.d.strides)[...] = np.nan
        before = self.poison.copy()
        np.lib.stride_tricks.as_strided(before[at:], self.d.shape, self.d.strides)[...] = np.nan
        return now.tobytes() == before.tobytes()


def _normal(rng: np.random.Generator, shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    if kind.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    return rng.standard_normal(shape, np.float32 if kind.itemsize <= 4 else np.float64).astype(kind, copy=False)


def exact(gemm: Gemm, operands: Operands) -> tuple[np.ndarray, np.ndarray]:
    """The answer in a higher precision, and the same sums of absolute values, against which an error is measured."""
    long = gemm.a_type in ("f64", "c128") and gemm.flops <= _LONG
    complex_ = operands.a.dtype.kind == "c"
    real: Any = np.longdouble if long else np.float64
    wide: Any = (np.clongdouble if long else np.complex128) if complex_ else real
    x, w = operands.b.astype(wide), operands.a.astype(wide)
    x = x if gemm.trans_b == "N" else x.swapaxes(-1, -2).conj() if gemm.trans_b == "C" else x.swapaxes(-1, -2)
    w = w if gemm.trans_a == "N" else w.swapaxes(-1, -2).conj() if gemm.trans_a == "C" else w.swapaxes(-1, -2)
    factor = np.asarray(gemm.alpha, real)
    if operands.scale_a is not None:
        factor = factor * operands.scale_a.astype(real)
    if operands.scale_b is not None:
        factor = factor * operands.scale_b.astype(real)[:, None]
    answer, size = (x @ w) * factor, (np.abs(x) @ np.abs(w)) * np.abs(factor)
    if operands.c is not None:
        added = gemm.beta * operands.c.astype(wide)
        answer, size = answer + added, size + np.abs(added)
    if operands.bias is not None:
        answer, size = answer + operands.bias, size + np.abs(operands.bias)
    return activate(gemm.activation, answer), size


def activate(name: str, x: np.ndarray) -> np.ndarray:
    if name == "relu":
        return np.asarray(np.maximum(x, 0))
    if name == "gelu":
        return np.asarray(0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x * x * x))))
    if name == "swish":
        with np.errstate(over="ignore"):
            return np.asarray(x / (1 + np.exp(-x)))
    return x


def bound(gemm: Gemm, answer: np.ndarray, size: np.ndarray) -> np.ndarray:
    """How far each element may be off: c K u (|A||B|) for the sums, and the rounding of D.

    With random signs the error of K sums is about sqrt(K) u, and 8 sqrt(K) u is never met: it is taken where it is less, since
    K u would let pass a kernel that leaves out one of K products.
    """
    of_answer, of_size, tiny = allowances(gemm)
    return np.asarray(of_answer * np.abs(answer) + of_size * size + tiny, np.float64)


def allowances(gemm: Gemm) -> tuple[float, float, float]:
    """The factors of :func:`bound`: of the answer, of the sums of absolute values, and what may always be. For any array."""
    k = max(gemm.k, 1)
    eight_bit = TYPES[gemm.a_type][0] <= 1
    # Hopper sums eight-bit products with some 14 bits
    unit = 2.0**-13 if eight_bit else 2.0**-11 if gemm.compute == "tf32" else UNIT.get(gemm.compute, 2.0**-24)
    sums = (min(k, 8 * sqrt(k)) + 4) * unit
    reference = 2.0 if gemm.a_type in ("f64", "c128") and gemm.flops > _LONG else 1.0
    tiny = {2.0**-11: 2.0**-24, 2.0**-8: 2.0**-133}.get(UNIT.get(gemm.d_type, 0.0), 1e-300)  # below D's normal numbers
    return 2 * UNIT.get(gemm.d_type, 2.0**-24), 1.13 * reference * sums, tiny


def relative_error(output: np.ndarray, answer: np.ndarray) -> float:
    wide = np.complex128 if answer.dtype.kind == "c" else np.float64
    norm = float(np.linalg.norm(answer.astype(wide, copy=False).ravel()))
    return float(np.linalg.norm((output - answer).astype(wide, copy=False).ravel())) / max(norm, 1e-300)


def judge(
    probe: Probe,
    outputs: Sequence[np.ndarray],
    answer: np.ndarray,
    allowed: np.ndarray,
    *,
    untouched: bool = True,
    default_error: float | None = None,
) -> float:
    """The largest error in units of what is allowed, at most 1. Refused("correctness", ...) says what is wrong.

    Parameters
    ----------
    probe : Probe
    outputs : sequence of arrays
        D after each run; equal bits are asked for when the product is deterministic.
    answer, allowed : arrays
        From :func:`exact` and :func:`bound`.
    untouched : bool
        Whether guards and pads are as they were.
    default_error : float, optional
        The relative error of the default; a candidate may have a few times that.
    """
    if not untouched:
        raise Refused("correctness", f"{probe.name}: something outside D was written")
    worst = 0.0
    for output in outputs:
        off = np.abs(output - answer) / allowed
        largest = float(off.max()) if off.size else 0.0
        if not largest <= 1.0:  # NaN too
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape))
            raise Refused("correctness", f"{probe.name}: element {at} is {output[at]:.6g}, not {answer[at]:.6g}")
        worst = max(worst, largest)
    if probe.gemm.deterministic and any(o.tobytes() != outputs[0].tobytes() for o in outputs[1:]):
        raise Refused("correctness", f"{probe.name}: {len(outputs)} runs gave different bits")
    if default_error is not None and outputs and answer.size:
        error = relative_error(outputs[-1], answer)
        limit = _OVER_DEFAULT * max(default_error, UNIT.get(probe.gemm.d_type, 2.0**-24) / 4)
        if error > limit:
            raise Refused("correctness", f"{probe.name}: the relative error is {error:.2g}, the default's {default_error:.2g}")
    return worst
