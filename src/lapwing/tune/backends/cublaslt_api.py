"""cuBLASLt by ctypes: descriptors, the list of algorithms, and the call. Descriptors work without a GPU."""

from __future__ import annotations

import ctypes as C
import functools
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...core import libraries
from ..gemm import Gemm
from .base import Config, Refused

# attributes of an algorithm, under the names and in the order of TunableOp's solution names (torch >= 2.14)
FIELDS: dict[str, tuple[int, Any]] = {
    "id": (0, C.c_int32),
    "tile": (1, C.c_uint32),
    "stages": (6, C.c_uint32),
    "splitk": (2, C.c_int32),
    "red": (3, C.c_uint32),
    "swizzle": (4, C.c_uint32),
    "custom": (5, C.c_uint32),
    "inner": (7, C.c_uint16),
    "cluster": (8, C.c_uint16),
}
# split-K, mask of reductions, swizzle, largest custom option
CAPABILITIES = {"splitk": 0, "red": 1, "swizzle": 2, "custom": 7}
CAP_TILES, CAP_STAGES = 6, 13
TYPES = {"f32": 0, "tf32": 0, "f64": 1, "f16": 2, "i8": 3, "i32": 10, "bf16": 14, "f8e4m3": 28, "f8e5m2": 29}
COMPUTE = {"f32": 68, "tf32": 77, "f64": 70, "i32": 72, "f16": 64}
IN_PLACE = 1  # reduction in place by atomics, in which the order of the sum varies
EPILOGUES = {("", "none"): 1, ("", "relu"): 2, ("b", "none"): 4, ("b", "relu"): 6, ("", "gelu"): 32, ("b", "gelu"): 36}
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, SCALE_A, SCALE_B, BIAS_TYPE, MODE_A, MODE_B = 3, 4, 7, 8, 17, 18, 26, 31, 32
FAST_ACCUM = 25
SCALE_MODES = {"tensor": 0, "row": 3}  # CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, _OUTER_VEC_32F
CLUSTERS = (2, 3, 4, 5, 6, 7)  # 1x1, 2x1, 4x1, 1x2, 2x2, 4x2
CUSTOMS = 5
WORKSPACE = 32 << 20  # the same as torch uses on Hopper


def solution_name(config: Config) -> str:
    """The name of this algorithm in result files of TunableOp (torch >= 2.14)."""
    return "Gemm_Cublaslt_" + "_".join(f"{name}_{config[name]}" for name in FIELDS)


class Algorithm(C.Structure):
    _fields_ = (("data", C.c_uint64 * 8),)


class Result(C.Structure):
    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", C.c_size_t),
        ("state", C.c_int),
        ("waves", C.c_float),
        ("reserved", C.c_int * 4),
    )


@dataclass(frozen=True)
class Found:
    """The algorithms of one product, and how they were found."""

    configs: tuple[Config, ...]
    heuristic: int  # number of these, the first ones, that the heuristic named
    tried: int  # combinations that the library was asked about
    ids: int


class Library:
    """The loaded library. ``handle`` is created at the first use that needs a GPU."""

    def __init__(self, path: str | None = None) -> None:
        self.c = libraries.load("cublasLt", operation="tune", path=path or "")
        self.c.cublasLtGetVersion.restype = C.c_size_t
        self.c.cublasLtGetStatusString.restype = C.c_char_p
        self.c.cublasLtMatmul.argtypes = (C.c_void_p,) * 13 + (C.c_void_p, C.c_size_t, C.c_void_p)
        self.version = int(self.c.cublasLtGetVersion())

    @functools.cached_property
    def handle(self) -> C.c_void_p:
        handle = C.c_void_p()
        self.check(self.c.cublasLtCreate(C.byref(handle)), "starting cuBLASLt")
        return handle

    def check(self, status: int, what: str) -> None:
        if status:
            raise RuntimeError(f"{what}: {self.c.cublasLtGetStatusString(status).decode()} ({status})")

    def put(self, call: Any, target: C.c_void_p, number: int, value: Any, what: str) -> None:
        """Set an attribute of a descriptor with ``call``, the library's function for its kind."""
        self.check(call(target, number, C.byref(value), C.c_size_t(C.sizeof(value))), what)

    def get(self, algorithm: Algorithm, name: str) -> int:
        number, kind = FIELDS[name]
        value, size = kind(), C.c_size_t()
        call = self.c.cublasLtMatmulAlgoConfigGetAttribute
        self.check(call(C.byref(algorithm), number, C.byref(value), C.c_size_t(C.sizeof(kind)), C.byref(size)), name)
        return int(value.value)

    def set(self, algorithm: Algorithm, name: str, value: int) -> bool:
        number, kind = FIELDS[name]
        cell = kind(value)
        call = self.c.cublasLtMatmulAlgoConfigSetAttribute
        return bool(call(C.byref(algorithm), number, C.byref(cell), C.c_size_t(C.sizeof(kind))) == 0)

    def config(self, algorithm: Algorithm) -> Config:
        return {name: self.get(algorithm, name) for name in FIELDS}

    def capability(self, algorithm: Algorithm, number: int) -> int:
        value, size = C.c_int32(), C.c_size_t()
        call = self.c.cublasLtMatmulAlgoCapGetAttribute
        return 0 if call(C.byref(algorithm), number, C.byref(value), C.c_size_t(4), C.byref(size)) else int(value.value)

    def choices(self, algorithm: Algorithm, number: int) -> list[int]:
        size, call = C.c_size_t(), self.c.cublasLtMatmulAlgoCapGetAttribute
        if call(C.byref(algorithm), number, None, C.c_size_t(0), C.byref(size)) or not size.value:
            return [0]
        values = (C.c_uint32 * (size.value // 4))()
        call(C.byref(algorithm), number, values, size, C.byref(size))
        return list(values) or [0]


class Descriptors:
    """One product, described to cuBLASLt."""

    def __init__(self, lib: Library, gemm: Gemm) -> None:
        self.lib, self.gemm = lib, gemm
        scale = "f64" if gemm.compute == "f64" else "f32"
        self.types = (COMPUTE[gemm.compute], TYPES[scale], *(TYPES[getattr(gemm, f"{x}_type")] for x in "abcd"))
        self.operation = C.c_void_p()
        lib.check(lib.c.cublasLtMatmulDescCreate(C.byref(self.operation), *self.types[:2]), "describing the product")
        self.set(TRANSA, C.c_int32({"N": 0, "T": 1, "C": 2}[gemm.trans_a]))
        self.set(TRANSB, C.c_int32({"N": 0, "T": 1, "C": 2}[gemm.trans_b]))
        self.set(EPILOGUE, C.c_int32(EPILOGUES["b" if gemm.bias else "", gemm.activation]))
        if gemm.fast_accum:
            self.set(FAST_ACCUM, C.c_int8(1))
        if gemm.bias:
            self.set(BIAS_TYPE, C.c_int32(TYPES[gemm.bias]))
            self.set(BIAS_POINTER, C.c_void_p(256))  # the heuristic only checks that the pointer exists and is aligned
        for mode, scale_kind, pointer in ((MODE_A, gemm.scale_a, SCALE_A), (MODE_B, gemm.scale_b, SCALE_B)):
            if scale_kind != "none":
                if SCALE_MODES[scale_kind]:
                    self.set(mode, C.c_int32(SCALE_MODES[scale_kind]))
                self.set(pointer, C.c_void_p(256))
        self.layouts = [self.layout(x) for x in "abcd"]
        self.scalar = C.c_double if scale == "f64" else C.c_float

    def __del__(self) -> None:
        for layout in getattr(self, "layouts", ()):
            self.lib.c.cublasLtMatrixLayoutDestroy(layout)
        if getattr(self, "operation", None):
            self.lib.c.cublasLtMatmulDescDestroy(self.operation)

    def set(self, number: int, value: Any) -> None:
        self.lib.put(self.lib.c.cublasLtMatmulDescSetAttribute, self.operation, number, value, f"attribute {number}")

    def layout(self, x: str) -> C.c_void_p:
        gemm, lib, layout = self.gemm, self.lib, C.c_void_p()
        rows, columns = gemm.stored(x)
        kind, ld = TYPES[getattr(gemm, f"{x}_type")], C.c_int64(getattr(gemm, f"ld{x}"))
        status = lib.c.cublasLtMatrixLayoutCreate(C.byref(layout), kind, C.c_uint64(rows), C.c_uint64(columns), ld)
        lib.check(status, f"describing {x.upper()}")
        if gemm.batch > 1:
            for number, value in ((5, C.c_int32(gemm.batch)), (6, C.c_int64(getattr(gemm, f"stride_{x}")))):
                lib.put(lib.c.cublasLtMatrixLayoutSetAttribute, layout, number, value, f"batches of {x.upper()}")
        return layout

    def heuristics(self, wanted: int, workspace: int = WORKSPACE) -> list[Config]:
        """The algorithms that the library ranks best, the best first."""
        lib, preference = self.lib, C.c_void_p()
        lib.check(lib.c.cublasLtMatmulPreferenceCreate(C.byref(preference)), "preferences")
        reductions = 0x7 & ~IN_PLACE if self.gemm.deterministic else 0x7
        for number, value in ((1, C.c_uint64(workspace)), (3, C.c_uint32(reductions))):
            lib.put(lib.c.cublasLtMatmulPreferenceSetAttribute, preference, number, value, "preferences")
        results, got = (Result * wanted)(), C.c_int()
        find = lib.c.cublasLtMatmulAlgoGetHeuristic
        status = find(lib.handle, self.operation, *self.layouts, preference, wanted, results, C.byref(got))
        lib.c.cublasLtMatmulPreferenceDestroy(preference)
        if status in (7, 15):  # invalid value, or not supported: there is no algorithm for the product
            return []
        lib.check(status, "asking for algorithms")
        return [lib.config(r.algorithm) for r in results[: got.value] if r.state == 0]

    def ids(self, wanted: int = 256) -> list[int]:
        numbers, got = (C.c_int * wanted)(), C.c_int()
        status = self.lib.c.cublasLtMatmulAlgoGetIds(self.lib.handle, *self.types, wanted, numbers, C.byref(got))
        return [] if status else list(numbers[: got.value])

    def algorithm(self, config: Config) -> tuple[Algorithm, int]:
        """The library's form of a configuration, and its workspace. Refused if the library does not have it."""
        algorithm, lib = Algorithm(), self.lib
        if lib.c.cublasLtMatmulAlgoInit(lib.handle, *self.types, int(config["id"]), C.byref(algorithm)):
            raise Refused("constraints", f"algorithm {config['id']} does not support this product")
        for name in FIELDS:
            if name != "id" and not lib.set(algorithm, name, int(config[name])) and int(config[name]):
                raise Refused("constraints", f"algorithm {config['id']} does not support {name} {config[name]}")
        needs = self.fits(algorithm)
        if needs is None:
            raise Refused("constraints", f"{solution_name(config)} does not support this product")
        return algorithm, needs

    def combinations(self, algorithm_id: int) -> Iterator[Config]:
        """Combinations that the capabilities of one algorithm allow, in an order whose first part covers the whole range.

        Some algorithms allow millions, so they are generated one by one.
        """
        base, lib = Algorithm(), self.lib
        if lib.c.cublasLtMatmulAlgoInit(lib.handle, *self.types, algorithm_id, C.byref(base)):
            return
        caps = {name: lib.capability(base, number) for name, number in CAPABILITIES.items()}
        reductions = [1 << bit for bit in range(3) if caps["red"] >> bit & 1]
        if self.gemm.deterministic:
            reductions = [r for r in reductions if r != IN_PLACE]
        splits = [(1, 0)] + [(s, r) for s in (2, 3, 4, 6, 8, 12, 16) for r in reductions if caps["splitk"]]
        axes: list[list[Any]] = [lib.choices(base, CAP_TILES), lib.choices(base, CAP_STAGES), splits]
        axes += [list(range(min(caps["custom"], 63) + 1)), [0, 1] if caps["swizzle"] else [0]]
        fixed = {name: lib.get(base, name) for name in ("inner", "cluster")}
        total = math.prod(map(len, axes))
        step = max(int(total * 0.6180339887498949), 1)
        while math.gcd(step, total) != 1:
            step += 1
        for i in range(total):
            place, chosen = i * step % total, []
            for axis in axes:
                place, at = divmod(place, len(axis))
                chosen.append(axis[at])
            tile, stages, (splitk, red), custom, swizzle = chosen
            config = {"id": algorithm_id, "tile": tile, "stages": stages, "splitk": splitk, "red": red}
            yield config | {"swizzle": swizzle, "custom": custom} | fixed

    def variations(self, named: list[Config]) -> Iterator[Config]:
        """Variations of the algorithms that the heuristic named and that have a cluster shape; these do not list combinations.

        First with one attribute changed, then all combinations of tile, custom option and cluster shape.
        """
        newer = [c for c in named if c["cluster"]]
        reduction = next((c["red"] for c in newer if c["red"]), 2)
        splits = [int(s) for s in dict.fromkeys([c["splitk"] for c in newer] + [1, 2, 3, 4, 5, 6, 8])]
        for like in newer:
            for split in splits:
                yield {**like, "splitk": split, "red": reduction if split > 1 else 0}
            yield from ({**like, "cluster": cluster} for cluster in CLUSTERS)
            yield from ({**like, "custom": custom} for custom in range(CUSTOMS))
        tiles = dict.fromkeys((c["id"], c["tile"]) for c in newer)
        for (number, tile), custom, cluster, split in itertools.product(tiles, range(CUSTOMS), CLUSTERS, splits[:3]):
            like = next(c for c in newer if c["id"] == number)
            red = reduction if split > 1 else 0
            yield {**like, "tile": tile, "custom": custom, "cluster": cluster, "splitk": split, "red": red}

    def fits(self, algorithm: Algorithm) -> int | None:
        """The workspace of an algorithm; None if it does not support this product."""
        result, call = Result(), self.lib.c.cublasLtMatmulAlgoCheck
        bad = call(self.lib.handle, self.operation, *self.layouts, C.byref(algorithm), C.byref(result)) or result.state
        return None if bad else int(result.workspace)

    def find(self, *, wanted: int = 256, seconds: float = 3.0, keep: int = 400, workspace: int = WORKSPACE) -> Found:
        """List what the heuristic names, then at most ``keep`` more that are found by trying combinations.

        The library takes about a millisecond for each combination, and there are hundreds of thousands, so ``seconds`` limits
        the time. Two thirds of it go to variations of what the heuristic named, the rest to the algorithms that list their
        combinations, all in turn.
        """
        named = self.heuristics(wanted, workspace)
        seen = dict.fromkeys(tuple(c[f] for f in FIELDS) for c in named)
        first, tried, ids, begin = len(seen), 0, self.ids(), time.perf_counter()
        walks = [self.combinations(number) for number in ids]
        listed = (config for turn in itertools.zip_longest(*walks) for config in turn if config is not None)
        for walk, until in ((self.variations(named), seconds * 2 / 3), (listed, seconds)):
            for config in walk:
                if time.perf_counter() - begin > until or len(seen) >= first + keep:
                    break
                tried += 1
                try:
                    algorithm, needs = self.algorithm(config)
                except (Refused, RuntimeError):
                    continue
                if needs <= workspace:
                    accepted = self.lib.config(algorithm)
                    seen[tuple(accepted[f] for f in FIELDS)] = None
        configs = tuple(dict(zip(FIELDS, values, strict=True)) for values in seen)
        return Found(configs, heuristic=first, tried=tried, ids=len(ids))


@functools.cache
def library() -> Library:
    return Library()
