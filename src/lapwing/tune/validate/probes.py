"""Check that a candidate is correct: the products it must compute, the error it may make, and the verdict.

Everything here works on NumPy arrays; benches of other devices use the lists and bounds, or copy their outputs. Matrices are
views (columns, rows) of column-major memory, with a batch axis in front if there are several. So they are row-major, as in
frameworks: y (n, m) = x (n, k) w (k, m).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isnan, sqrt
from typing import Any

import numpy as np

from ..backends.base import Refused
from ..gemm import PACKED, TYPES, Gemm

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
GUARD = 256  # elements before and after D that must not be written
RUNS = 3  # runs of each probe: the first may see what an earlier candidate left in memory
_OVER_DEFAULT = 4.0  # a candidate's error may be this many times that of the default
_LONG = 5e7  # operations up to which the reference of float64 is computed in long double, which no BLAS supports


@dataclass(frozen=True)
class Probe:
    """A product that a candidate must compute correctly, and the range of its scales."""

    name: str
    gemm: Gemm
    scales: tuple[float, float] = (0.5, 2.0)


def probes(gemm: Gemm, *, alpha_beta: bool = True, small: Gemm | None = None) -> tuple[Probe, ...]:
    """The product itself, and similar ones that reveal other mistakes.

    Parameters
    ----------
    gemm : Gemm
    alpha_beta : bool
        Whether the kernel supports alpha and beta.
    small : Gemm, optional
        A smaller product from which the similar ones are derived, if the whole one takes long.
    """
    near = small or gemm
    listed = [Probe("product", gemm)]
    if min(near.m, near.n, near.k, near.batch) == 0:
        return tuple(listed)
    # the pad keeps 16-byte alignment and holds NaN, which shows reads beyond the matrix
    pad = PACKED | {f"ld{x}": near.stored(x)[0] + 16 for x in "abcd"}
    listed.append(Probe("padded", replace(near, **pad)))
    odd = {x: max(1, getattr(near, x) - cut) for x, cut in (("m", 1), ("n", 3), ("k", 5))}
    listed.append(Probe("odd tails", replace(near, **PACKED | odd)))
    if alpha_beta and TYPES[near.a_type][0] > 1:
        listed.append(Probe("alpha, beta", replace(near, alpha=0.7, beta=0.3)))
    if "none" not in (near.scale_a, near.scale_b):
        # real models have both; a kernel that scales in the wrong place overflows or underflows
        listed += [Probe("large scales", near, (2.0**9, 2.0**10)), Probe("small scales", near, (2.0**-30, 2.0**-29))]
    return tuple(listed)


def smaller(gemm: Gemm, flops: float = 2e7) -> Gemm:
    """The same kind of product with shorter sides, so that it has at most about ``flops`` operations."""
    sides = {x: getattr(gemm, x) for x in ("m", "n", "k", "batch")}
    sides["batch"] = min(sides["batch"], 3)
    while 2.0 * sides["m"] * sides["n"] * sides["k"] * sides["batch"] > flops:
        largest = max(("m", "n", "k"), key=lambda x: sides[x])
        sides[largest] = -(-sides[largest] // 2)
    return replace(gemm, **PACKED | sides)


@dataclass(frozen=True)
class Operands:
    """One set of operands. ``memory`` contains D with its guards and pads; ``poison`` is a copy of it from before any run."""

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
        """Normal random numbers; NaN in pads, guards and D. No zeros: they run faster, and hide missing results."""
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
        """The same numbers in other memory, for timing."""

        def again(x: np.ndarray | None) -> np.ndarray | None:
            if x is None:
                return None
            # with pads, since the strides are part of the product
            length = sum(s * (n - 1) for s, n in zip(x.strides, x.shape, strict=True)) // x.itemsize + 1 if x.size else 1
            flat = np.lib.stride_tricks.as_strided(x, (length,), (x.itemsize,)).copy() if x.size else np.empty(1, x.dtype)
            return np.lib.stride_tricks.as_strided(flat, x.shape, x.strides)

        a, b, d = again(self.a), again(self.b), again(self.d)
        assert a is not None and b is not None and d is not None
        return replace(self, a=a, b=b, c=again(self.c), d=d, poison=None)

    def reset(self) -> None:
        """Restore D, its pads and guards, so that one candidate is not blamed for the mistakes of another."""
        assert self.poison is not None
        self.memory[...] = self.poison

    @property
    def untouched(self) -> bool:
        """Whether everything around D still has its original bits."""
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


def exact(gemm: Gemm, operands: Any, wide: Callable[[Any], Any] | None = None, xp: Any = np) -> tuple[Any, Any]:
    """The result in higher precision, and the same sums of absolute values, which scale the allowed error.

    NumPy arrays become float64, or long double where that is quick. For arrays of another library, ``wide`` converts them and
    ``xp`` has its functions.
    """
    convert = wide or partial(_wide, long=gemm.a_type in ("f64", "c128") and gemm.flops <= _LONG)
    x, w = turned(convert(operands.b), gemm.trans_b), turned(convert(operands.a), gemm.trans_a)
    answer, size = gemm.alpha * (x @ w), abs(gemm.alpha) * (abs(x) @ abs(w))
    for scale in (operands.scale_a, None if operands.scale_b is None else operands.scale_b[:, None]):
        if scale is not None:
            answer, size = answer * convert(scale), size * convert(scale)
    added = [gemm.beta * convert(operands.c)] if gemm.beta else []
    added += [] if operands.bias is None else [convert(operands.bias)]
    for term in added:
        answer, size = answer + term, size + abs(term)
    return activate(gemm.activation, answer, xp), size


def _wide(x: np.ndarray, long: bool) -> np.ndarray:
    real, complex_ = (np.longdouble, np.clongdouble) if long else (np.float64, np.complex128)
    return x.astype(complex_ if x.dtype.kind == "c" else real)


def turned(x: Any, letter: str) -> Any:
    """op(x): as it is for "N", transposed for "T", transposed and conjugated for "C"."""
    if letter == "N":
        return x
    return x.swapaxes(-1, -2).conj() if letter == "C" else x.swapaxes(-1, -2)


def activate(name: str, x: Any, xp: Any = np) -> Any:
    if name == "relu":
        return x.clip(0)
    if name == "gelu":
        return 0.5 * x * (1 + xp.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))
    if name == "swish":
        with np.errstate(over="ignore"):
            return x / (1 + xp.exp(-x))
    return x


def bound(gemm: Gemm, answer: Any, size: Any, reference: float = 1.0) -> Any:
    """The allowed error of each element: c K u (|A||B|) for the sums, and the rounding of D.

    With random signs the error of K sums is about sqrt(K) u, and never reaches 8 sqrt(K) u. So the smaller of both bounds is
    used: K u alone would accept a kernel that leaves out one of K products. ``reference`` multiplies it where the reference
    is no more precise than the kernel.
    """
    of_answer, of_size, tiny = allowances(gemm)
    return of_answer * abs(answer) + reference * of_size * size + tiny


def allowances(gemm: Gemm) -> tuple[float, float, float]:
    """The factors of :func:`bound`: for the result, for the sums of absolute values, and a constant."""
    k = max(gemm.k, 1)
    eight_bit = TYPES[gemm.a_type][0] <= 1
    # Hopper adds 8-bit products with about 14 bits
    unit = 2.0**-13 if eight_bit else 2.0**-11 if gemm.compute == "tf32" else UNIT.get(gemm.compute, 2.0**-24)
    sums = (min(k, 8 * sqrt(k)) + 4) * unit
    reference = 2.0 if gemm.a_type in ("f64", "c128") and gemm.flops > _LONG else 1.0
    tiny = {2.0**-11: 2.0**-24, 2.0**-8: 2.0**-133}.get(UNIT.get(gemm.d_type, 0.0), 1e-300)  # below the normal numbers of D
    return 2 * UNIT.get(gemm.d_type, 2.0**-24), 1.13 * reference * sums, tiny


def relative_error(output: Any, answer: Any) -> float:
    norm, error = (sqrt(float((abs(x) ** 2).sum())) for x in (answer, output - answer))
    return error / max(norm, 1e-300)


def largest_error(output: Any, answer: Any, allowed: Any) -> float:
    """The largest error relative to the allowed one; inf for NaN."""
    off = abs(output - answer) / allowed
    largest = float(off.max()) if 0 not in off.shape else 0.0
    return inf if isnan(largest) else largest


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


def judge(
    probe: Probe,
    outputs: Sequence[Any],
    answer: Any,
    allowed: Any,
    *,
    untouched: bool = True,
    default_error: float | None = None,
    over: float = _OVER_DEFAULT,
    wide: Callable[[Any], Any] = lambda x: x,
    same: Callable[[Any, Any], bool] = same_bits,
) -> float:
    """The largest error relative to the allowed one, at most 1. Refused("correctness", ...) says what is wrong.

    Parameters
    ----------
    probe : Probe
    outputs : sequence of arrays
        D after each run; all must have equal bits if the product is deterministic.
    answer, allowed : arrays
        From :func:`exact` and :func:`bound`.
    untouched : bool
        Whether guards and pads are unchanged.
    default_error : float, optional
        The relative error of the default; that of a candidate may be ``over`` times as large.
    wide, same : callables
        For arrays of another library than NumPy: converts an output to the type of ``answer``, and compares bits.
    """
    if not untouched:
        raise Refused("correctness", f"{probe.name}: something outside D was written")
    worst = 0.0
    for output in map(wide, outputs):
        worst = max(worst, largest_error(output, answer, allowed))
        if worst > 1.0:
            off = abs(output - answer) / allowed
            at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), tuple(off.shape)))
            raise Refused("correctness", f"{probe.name}: element {at} is {output[at].item():.6g}, not {answer[at].item():.6g}")
    if probe.gemm.deterministic and not all(same(outputs[0], other) for other in outputs[1:]):
        raise Refused("correctness", f"{probe.name}: {len(outputs)} runs gave different bits")
    if default_error is not None and outputs and 0 not in answer.shape:
        error = relative_error(wide(outputs[-1]), answer)
        if not error <= over * max(default_error, UNIT.get(probe.gemm.d_type, 2.0**-24) / 4):
            raise Refused("correctness", f"{probe.name}: the relative error is {error:.2g}, the default's {default_error:.2g}")
    return worst
