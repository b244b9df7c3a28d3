"""Turn a product and a configuration into kernel launches, with grids and arguments. Needs neither a GPU nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...gemm import TYPES, Gemm
from ..base import Config

POINTERS = ("a", "b", "c", "d", "bias", "scale_a", "scale_b", "work", "locks")
FETCHES = (3, 4)  # values of pdl that send weights to the cache ahead
FETCHED = 24 << 20  # bytes that all blocks together send to the cache: less than half of its size
REDUCE = {"none": 0, "atomic": 1, "two-pass": 2, "last": 3, "cluster": 4}
ACTIVATION = {"none": 0, "relu": 1, "gelu": 2, "swish": 3}
SCALES = {"none": 0, "tensor": 1, "row": 2}
SKINNY_TYPES = {"bf16": 0, "f16": 1, "f8e4m3": 2, "f32": 3}


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str  # "pointer" | "i32" | "i64" | "f32"
    value: int | float | str  # for a pointer, the name of the operand


@dataclass(frozen=True)
class Step:
    """One kernel launch."""

    kernel: str  # "tile" | "stream" | "reduce" | "skinny"
    grid: tuple[int, int, int]
    constants: tuple[tuple[str, Any], ...]
    arguments: tuple[Argument, ...]
    warps: int
    stages: int = 1
    cluster: int = 1
    dependent: bool = False
    shared: int = 0
    sums: int = 0  # floats of workspace that must be zero
    parts: int = 0  # floats of workspace


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def epilogue(gemm: Gemm) -> int:
    """The parts of the epilogue as a number, as the templates encode them."""
    bits = (1 if gemm.beta else 0) + (2 if gemm.bias else 0) + 4 * ACTIVATION[gemm.activation]
    return bits + 16 * SCALES[gemm.scale_a] + 64 * SCALES[gemm.scale_b]


def plan(gemm: Gemm, config: Config, multiprocessors: int = 132) -> tuple[Step, ...]:
    template = config["template"]
    if template == "skinny":
        return (skinny(gemm, config),)
    bm, bn, bk, split = (int(config[x]) for x in ("bm", "bn", "bk", "split"))
    tiles = blocks(gemm.m, bm) * blocks(gemm.n, bn)
    group, reduce = int(config["group"]), REDUCE[str(config["reduce"])]
    precision = "tf32" if gemm.compute == "tf32" else "ieee"
    constants: dict[str, Any] = {
        "K_A": gemm.trans_a != "N",
        "K_B": gemm.trans_b == "N",
        "EPILOGUE": epilogue(gemm),
        "EVEN": gemm.k % bk == 0,
        "PRECISION": precision,
        "BM": bm,
        "BN": bn,
        "BK": bk,
        "GROUP": group,
        "SWAP": bool(config["swap"]),
    }
    sizes = tuple(Argument(x, "i32", getattr(gemm, x)) for x in ("m", "n", "k", "lda", "ldb", "ldc", "ldd"))
    factors = (Argument("alpha", "f32", gemm.alpha), Argument("beta", "f32", gemm.beta))
    batches = tuple(Argument(f"step_{x}", "i64", getattr(gemm, f"stride_{x}")) for x in "abcd")
    memory = [Argument({"scale_a": "SA", "scale_b": "SB"}.get(name, name.upper()), "pointer", name) for name in POINTERS]
    run: dict[str, Any] = {"warps": int(config["warps"]), "stages": int(config["stages"])}
    if template == "stream":
        programs = min(split * multiprocessors, tiles * blocks(gemm.k, bk))
        extra = (Argument("programs", "i32", programs),)
        arguments = (*memory, *sizes, *extra, *factors)
        return (Step("stream", (programs, 1, 1), tuple(constants.items()), arguments, **run, parts=2 * programs * bm * bn),)
    constants |= {"REDUCE": reduce, "PDL": int(config["pdl"])}
    constants["AHEAD"] = ahead(config, int(tiles * split * bm * bk * TYPES[gemm.a_type][0]))
    cells = tiles * gemm.batch * bm * bn
    first = Step(
        "tile",
        (tiles, split, gemm.batch),
        tuple(constants.items()),
        (*memory, *sizes, *batches, Argument("split", "i32", split), *factors),
        **run,
        dependent=bool(config["pdl"]),
        sums=cells if reduce == REDUCE["atomic"] else 0,
        parts=cells * split if reduce in (REDUCE["two-pass"], REDUCE["last"]) else 0,
    )
    if reduce != REDUCE["two-pass"]:
        return (first,)
    kept = {name: constants[name] for name in ("EPILOGUE", "BM", "BN", "GROUP")}
    second = tuple(x for x in first.arguments if x.name not in ("A", "B", "LOCKS", "k", "lda", "ldb", "step_a", "step_b"))
    return first, Step("reduce", (tiles, 1, gemm.batch), tuple(kept.items()), second, warps=4, parts=first.parts)


def skinny(gemm: Gemm, config: Config) -> Step:
    bm, bn, split, warps, groups = (int(config[x]) for x in ("bm", "bn", "split", "warps", "group"))
    columns = blocks(gemm.n, bn)
    places = blocks(gemm.m, bm) * columns
    constants = {
        "INPUT": SKINNY_TYPES[gemm.a_type],
        "OUTPUT": SKINNY_TYPES[gemm.d_type],
        "BIAS_TYPE": SKINNY_TYPES[gemm.bias or gemm.d_type],
        "ROWS": bm // 16 // groups,
        "GROUPS": groups,
        "TOKENS": bn // 8,
        "WARPS": warps,
        "DEPTH": int(config["stages"]),
        "REDUCE": REDUCE[str(config["reduce"])],
        "PDL": int(config["pdl"]),
        "AHEAD": ahead(config, places * split * bm * 128),
        "EPILOGUE": epilogue(gemm),
        "BLOCKS": 1,
    }
    arguments = [Argument(name, "pointer", name) for name in POINTERS]
    arguments += [Argument(x, "i32", getattr(gemm, x)) for x in ("m", "n", "k")]
    arguments += [Argument(x, "i64", getattr(gemm, x)) for x in ("lda", "ldb", "ldc", "ldd")]
    arguments += [Argument("parts", "i32", split), Argument("column_tiles", "i32", columns)]
    arguments += [Argument("alpha", "f32", gemm.alpha), Argument("beta", "f32", gemm.beta)]
    return Step(
        "skinny",
        (places * split, 1, 1),
        tuple(constants.items()),
        tuple(arguments),
        warps,
        cluster=split if config["reduce"] == "cluster" else 1,
        dependent=bool(config["pdl"]),
        shared=4 * (warps // groups) * bn * (bm + 4),
        parts=places * split * bm * bn if config["reduce"] == "last" else 0,
    )


def ahead(config: Config, step: int) -> int:
    """How many steps of the sum are sent to the cache ahead, a power of two; one step of all blocks has ``step`` bytes."""
    if config["pdl"] not in FETCHES:
        return 0
    return 1 << max(int(FETCHED // step).bit_length() - 1, 0)
