"""Products on the CPU with NumPy and its BLAS, so that the whole workflow runs on any machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ..gemm import Gemm
from ..validate.probes import RUNS, Operands, bound, exact, judge, probes, relative_error, smaller, turned
from .base import Config, Kernel, Refused, Space
from .cpu_product import Product
from .processors import control, cores, threads_set

_DTYPES = {"f64": np.float64, "f32": np.float32, "c64": np.complex64, "c128": np.complex128}
_AS_FLOAT32 = ("tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
_ROTATED = 128 << 20  # bytes of operands that are used in turn before the first is used again
_MOST_SETS = 64
_SAMPLE = 2e-3  # seconds of calls in one sample
_MOST_CALLS = 500
_CORE_BYTES = 100e9  # bytes per second that one core can move at most, from any memory or outer cache
DEFAULT: Config = {
    "order": "direct", "tile_m": 0, "tile_n": 0, "tile_k": 0, "split_k": 1, "threads": 0, "share": "blas", "pack": "none",
}  # fmt: skip


class Cpu:
    """``numpy.matmul``, also with tiles, split sums, the transposed product, packed operands, and a number of threads."""

    name = "cpu"
    precompiles = False

    def missing(self) -> str | None:
        return None

    def environment(self, device: int) -> dict[str, str]:
        # the default depends on OPENBLAS_NUM_THREADS
        return {**dict(_environment()), "blas threads": str(threads_set())}

    def devices(self) -> list[int]:
        return [0]

    def supports(self, gemm: Gemm) -> str | None:
        types = {gemm.a_type, gemm.b_type, gemm.c_type, gemm.d_type}
        if bad := sorted(types - set(_DTYPES) - set(_AS_FLOAT32)):
            return f"the CPU has no products of {', '.join(bad)}"
        if types & {"c64", "c128"} and len(types) > 1:
            return "complex operands must all have one type"
        if gemm.activation != "none" and types & {"c64", "c128"}:
            return "complex numbers have no activation"
        if "block" in (gemm.scale_a, gemm.scale_b):
            return "block scales are not supported on the CPU"
        return None

    def note(self, gemm: Gemm) -> str:
        """How the measurement differs from the product in the log, in words, or ""."""
        other = _other_types(gemm)
        return (
            f"cpu: {', '.join(other)} runs in {self.arithmetic(gemm)}, since NumPy has no fast products of it" if other else ""
        )

    def arithmetic(self, gemm: Gemm) -> str:
        """The arithmetic of the measurement if it differs from the product's types, "float32 arithmetic"; else ""."""
        return f"{np.dtype(_dtype(gemm)).name} arithmetic" if _other_types(gemm) else ""

    def default(self, gemm: Gemm) -> Config:
        return DEFAULT

    def floor(self, gemm: Gemm, device: int) -> float:
        """Seconds that no kernel can beat here: every core at its highest clock with the widest vectors there are."""
        size = np.dtype(_dtype(gemm)).itemsize
        # 64 operations a cycle of float32 (two AVX-512 units), half of float64; a complex product is four real ones
        rate = cores() * _clock() * 64 * 4 / size * (2 if np.dtype(_dtype(gemm)).kind == "c" else 1)
        work = gemm.flops * (4 if np.dtype(_dtype(gemm)).kind == "c" else 1)
        moved = size * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
        return float(max(work / rate, moved / (_CORE_BYTES * cores())))

    def space(self, gemm: Gemm, device: int) -> Space:
        return _space(gemm)

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """There is nothing to compile."""

    def open(self, gemm: Gemm, device: int, seed: int) -> CpuBench:
        if reason := self.supports(gemm):
            raise Refused("constraints", reason)
        return CpuBench(gemm, seed)

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        """``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)`` for NumPy arrays and CPU torch tensors.

        ``x`` is (rows, inner) and ``w``, for "TN", (columns, inner) as in F.linear. Types that NumPy does not have (bfloat16)
        are computed in float32 and converted back. Waits for the result.
        """
        _check(config)
        return partial(_compute, Product(gemm, config))


BACKEND = Cpu()


def _check(config: Config) -> None:
    """Check the values: a file may be damaged, and a tile of -4 would silently give a wrong result."""
    if set(config) != set(DEFAULT):
        raise Refused("constraints", f"the parameters must be {', '.join(DEFAULT)}")
    for name, (low, high) in _RANGES.items():
        if type(value := config[name]) is not int or not low <= value <= high:
            raise Refused("constraints", f"{name} is {value!r}; it must be {low} to {high}")
    for name, words in _WORDS.items():
        if config[name] not in words:
            raise Refused("constraints", f"{name} is {config[name]!r}; it must be one of {', '.join(words)}")
    if config["share"] == "tiles" and config["threads"] == 0:
        raise Refused("constraints", "share=tiles needs a number of threads")


_RANGES = {"tile_m": (0, 2**31), "tile_n": (0, 2**31), "tile_k": (0, 2**31), "split_k": (1, 64), "threads": (0, 4096)}
_WORDS = {"order": ("direct", "swapped"), "share": ("blas", "tiles"), "pack": ("none", "x", "w", "both")}


def _space(gemm: Gemm) -> Space:
    here = cores()
    threads = sorted({0, 1, here, *[2**i for i in range(1, here.bit_length()) if 2**i <= here]}) if control() else [0]

    def tiles(size: int, least: int) -> tuple[int, ...]:
        return (0, *[t for t in (32, 64, 128, 256, 512, 1024, 2048, 4096) if least <= t < size])

    parameters: dict[str, tuple[int | str, ...]] = {
        "order": ("direct", "swapped"),
        "tile_m": tiles(gemm.m, 64),
        "tile_n": tiles(gemm.n, 32),
        "tile_k": tiles(gemm.k, 128),
        "split_k": tuple(s for s in (1, 2, 4, 8) if s == 1 or gemm.k >= 64 * s),
        "threads": tuple(threads),
        "share": ("blas", "tiles") if here > 1 and control() else ("blas",),
        "pack": ("none", "x", "w", "both"),
    }

    def pieces(c: Config) -> int:
        parts = [ceil(size / int(c[t])) if c[t] else 1 for size, t in ((gemm.m, "tile_m"), (gemm.n, "tile_n"))]
        return int(c["split_k"]) if c["split_k"] != 1 else gemm.batch * parts[0] * parts[1]

    def allowed(c: Config) -> bool:
        if c["share"] == "tiles" and (int(c["threads"]) < 2 or pieces(c) < 2):
            return False
        if c["split_k"] != 1 and (c["tile_m"] or c["tile_n"] or c["tile_k"] or c["share"] != "tiles"):
            return False
        return pieces(c) * max(1, gemm.k // (int(c["tile_k"]) or gemm.k or 1)) <= 4096

    def score(c: Config) -> float:
        """Estimated cost in operations: the work per thread, microseconds for each call, and a pass over memory for packing."""
        working = int(c["threads"]) or here
        if c["share"] == "tiles":
            working = min(working, pieces(c))
        calls = pieces(c) * (ceil(gemm.k / int(c["tile_k"])) if c["tile_k"] else 1)
        packed = {"none": 0, "x": gemm.n * gemm.k, "w": gemm.m * gemm.k, "both": (gemm.n + gemm.m) * gemm.k}[str(c["pack"])]
        extra = gemm.m * gemm.n * ((c["order"] == "swapped") + int(c["split_k"]) - 1)
        return gemm.flops / working + 2e5 * calls * (1 + (c["share"] == "tiles")) + 20.0 * gemm.batch * (packed + extra)

    one, many = {**DEFAULT, "threads": 1}, {**DEFAULT, "threads": here, "share": "tiles"}
    wanted = [DEFAULT, one, {**DEFAULT, "order": "swapped"}, {**DEFAULT, "pack": "w"}, {**one, "order": "swapped"}]
    # whole rows are contiguous, so that the activation finds them in the cache
    rows = [{**c, "tile_n": t} for t in (128, 256) for c in (one, many)]
    wanted[2:2] = rows if gemm.activation != "none" else []
    wanted += [{**many, "tile_m": t} for t in parameters["tile_m"]] + [{**many, "split_k": here}, many] + rows
    seeds = tuple(c for c in wanted if all(c[n] in v for n, v in parameters.items()) and allowed(c))
    return Space(parameters, allowed, score=score, seeds=seeds)


class CpuBench:
    """Several sets of operands that are used in turn, and a clock."""

    def __init__(self, gemm: Gemm, seed: int) -> None:
        self.gemm, self.seed = gemm, seed
        self.dtype = _dtype(gemm)
        one = np.dtype(self.dtype).itemsize * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
        self.sets = min(_MOST_SETS, max(1, ceil(_ROTATED / max(one, 1))))
        first = Operands.random(gemm, self.dtype, seed)
        self._operands = [first, *[first.copy() for _ in range(self.sets - 1)]]
        self._answers: dict[str, tuple[Operands, np.ndarray, np.ndarray, float]] = {}
        self._calls: dict[int, int] = {}

    def build(self, config: Config) -> Kernel:
        _check(config)
        product = Product(self.gemm, config)
        return Kernel(config, lambda i: _run(product, self._operands[i % self.sets]))

    def time(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        calls = [self._enough(kernel) for kernel in kernels]
        times: list[list[float]] = [[] for _ in kernels]
        at = 0
        for sample in range(samples):
            order = range(len(kernels)) if sample % 2 == 0 else reversed(range(len(kernels)))
            for i in order:
                begun = perf_counter()
                for call in range(calls[i]):
                    kernels[i].run(at + call)
                times[i].append((perf_counter() - begun) / calls[i])
            at += max(calls)
        return times

    def _enough(self, kernel: Kernel) -> int:
        """Number of calls in one sample. The first two calls wake threads and do not count."""
        if id(kernel) not in self._calls:
            times = []
            for i in range(3):
                begun = perf_counter()
                kernel.run(i)
                times.append(perf_counter() - begun)
            self._calls[id(kernel)] = min(_MOST_CALLS, max(1, ceil(_SAMPLE / max(min(times), 1e-7))))
        return self._calls[id(kernel)]

    def forget(self, kernel: Kernel) -> None:
        self._calls.pop(id(kernel), None)

    def check(self, kernel: Kernel) -> Mapping[str, float]:
        errors = {}
        for place, probe in enumerate(probes(self.gemm, small=smaller(self.gemm))):
            if probe.name not in self._answers:
                own = probe.gemm == self.gemm
                operands = self._operands[0] if own else Operands.random(probe.gemm, self.dtype, self.seed + 1000 + place)
                answer, size = exact(self._as_run(probe.gemm), operands)
                _run(Product(probe.gemm, DEFAULT), operands)
                error = relative_error(operands.d, answer)
                self._answers[probe.name] = operands, answer, bound(self._as_run(probe.gemm), answer, size), error
            operands, answer, allowed, error = self._answers[probe.name]
            outputs = []
            operands.reset()
            for _ in range(RUNS):
                operands.d[...] = np.nan
                _run(Product(probe.gemm, kernel.config), operands)
                outputs.append(operands.d.copy())
            untouched = operands.untouched
            errors[probe.name] = judge(probe, outputs, answer, allowed, untouched=untouched, default_error=error)
        return errors

    def _as_run(self, gemm: Gemm) -> Gemm:
        """The product with the types that are really used, which determine the error bound."""
        name = next(n for n, d in _DTYPES.items() if d is self.dtype)
        return replace(gemm, a_type=name, b_type=name, c_type=name, d_type=name, compute=name)

    def close(self) -> None:
        self._operands, self._answers = [], {}


def _other_types(gemm: Gemm) -> list[str]:
    return sorted({gemm.a_type, gemm.b_type, gemm.c_type, gemm.d_type, gemm.compute} & set(_AS_FLOAT32))


def _dtype(gemm: Gemm) -> Any:
    types = (gemm.a_type, gemm.b_type, gemm.d_type)
    widest = max(types, key=lambda t: np.dtype(_DTYPES.get(t, np.float32)).itemsize)
    return _DTYPES.get(widest, np.float32)


def _run(product: Product, o: Operands) -> None:
    product(o.b, o.a, o.d, o.c, o.bias, (o.scale_a, None if o.scale_b is None else o.scale_b[:, None]))


def _compute(
    product: Product, x: Any, w: Any, bias: Any = None, out: Any = None, scale_x: Any = None, scale_w: Any = None
) -> Any:
    """One call on NumPy arrays or CPU torch tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        bias, scale_x, scale_w, target = (None if t is None else _from_torch(t, torch) for t in (bias, scale_x, scale_w, out))
        array = _multiply(product, _from_torch(x, torch), _from_torch(w, torch), bias, target, (scale_x, scale_w))
        y = torch.from_numpy(array).to(x.dtype)
        if out is None:
            return y
        return out if target is not None and out.data_ptr() == target.__array_interface__["data"][0] else out.copy_(y)
    x, w = np.asarray(x), np.asarray(w)
    if x.dtype == w.dtype == np.float16 and out is None:  # it was validated in float32, so it runs in float32
        return _multiply(product, x.astype(np.float32), w.astype(np.float32), bias, None, (scale_x, scale_w)).astype(x.dtype)
    return _multiply(product, x, w, bias, out, (scale_x, scale_w))


def _multiply(product: Product, x: np.ndarray, w: np.ndarray, bias: Any, out: Any, scales: tuple[Any, Any]) -> np.ndarray:
    gemm = product.gemm
    if x.ndim > 2 and w.ndim == 2 and gemm.trans_b == "N" and out is None:  # as in a linear layer
        flat = _multiply(product, x.reshape(-1, x.shape[-1]), w, bias, None, scales)
        return flat.reshape(*x.shape[:-1], flat.shape[-1])
    left, right = turned(x, gemm.trans_b).shape, turned(w, gemm.trans_a).shape
    if left[-1] != right[-2] or left[:-2] != right[:-2]:
        raise ValueError(f"matmul: shapes {x.shape} and {w.shape} do not match the tuned {gemm.layout} product")
    shape = (*left[:-1], right[-1])
    if out is not None and out.shape != shape:
        raise ValueError(f"matmul: out has shape {out.shape}, but the product has {shape}")
    y: np.ndarray = out
    if out is None:  # beta multiplies the contents of out, here zeros
        y = (np.zeros if gemm.beta else np.empty)(shape, np.result_type(x, w))
    product(x, w, y, None, bias, scales)
    return y


def _from_torch(tensor: Any, torch: Any) -> np.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    wide = tensor.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    array: np.ndarray = (tensor if wide else tensor.float()).numpy()
    return array


@cache
def _clock() -> float:
    """The highest clock of the processor in Hz, or more than any has."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") as file:
            return 1e3 * float(file.read())
    except (OSError, ValueError):
        return 6e9


@cache
def _environment() -> tuple[tuple[str, str], ...]:
    from ...bench.environment import cpu_name
    from ...core.native import native

    try:
        shown: Any = np.show_config(mode="dicts")
        blas = shown["Build Dependencies"]["blas"]
    except (KeyError, TypeError):
        blas = dict[str, str]()
    return (
        ("device", cpu_name()),
        ("level", str(native.simd()) if native is not None else "unknown"),
        ("threads", str(cores())),
        ("numpy", np.__version__),
        ("blas", f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()),
        ("schema", "1"),
    )
