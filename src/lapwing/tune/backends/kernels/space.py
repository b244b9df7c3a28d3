"""The configurations of our kernels: parameters, the rule, a rough estimate of the time, and the first candidates."""

from __future__ import annotations

import functools
import json
from importlib import resources
from math import log

from ...gemm import TYPES, Gemm
from ..base import Config
from .compiled import SHARED_MOST
from .plan import FETCHES, blocks
from .workspace import LOCKS

PARAMETERS: dict[str, tuple[int | str, ...]] = {
    "template": ("tile", "stream", "skinny"),
    "bm": (16, 32, 48, 64, 96, 128, 256),
    "bn": (8, 16, 32, 48, 64, 128, 256),
    "bk": (32, 64, 128, 256),
    "split": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32),
    "reduce": ("none", "atomic", "two-pass", "last", "cluster"),
    "stages": (2, 3, 4, 5, 6, 8),
    "warps": (2, 4, 8, 16),
    "group": (1, 2, 4, 8),  # blocks in a strip; in the skinny template, warps with rows of their own
    "swap": (0, 1),
    # 0: no overlap. The next kernel may start when the reads of this one are done (1) or begin (2). Before the previous
    # kernel has ended, weights may be sent to the cache (3: the next kernel may start at once, 4: when the reads are done),
    # which is always correct, or to registers (5, 6: likewise), which is correct if the previous kernel does not write them
    "pdl": (0, 1, 2, 3, 4, 5, 6),
}
_NEAREST = 3
AHEAD = (5, 6)  # values of pdl that read weights before the previous kernel has ended
# tile template, by columns: rows, depth, stages, warps, swap; good for 13 products (H200, 2026-11-15)
TILES = {
    16: ((64, 64, 4, 4, 0), (128, 256, 3, 8, 0), (64, 128, 6, 8, 0), (64, 128, 4, 4, 0), (64, 64, 6, 4, 0), (128, 64, 4, 4, 0),
         (128, 128, 6, 8, 0), (64, 128, 6, 4, 0)),
    32: ((128, 128, 4, 4, 0), (64, 64, 5, 8, 0), (64, 256, 4, 4, 0), (64, 128, 3, 4, 0), (64, 256, 3, 4, 0),
         (64, 128, 4, 4, 0)),
    64: ((64, 128, 4, 8, 1), (64, 64, 5, 8, 1), (128, 128, 4, 4, 0), (128, 64, 6, 4, 0), (64, 64, 3, 4, 0), (128, 64, 4, 4, 0)),
    128: ((64, 128, 4, 4, 0), (64, 64, 4, 4, 0), (128, 64, 4, 8, 0), (128, 64, 4, 4, 0), (64, 128, 4, 8, 1),
          (128, 128, 3, 8, 0)),
    256: ((128, 64, 3, 8, 0), (128, 64, 4, 8, 0), (64, 64, 4, 8, 0)),
}  # fmt: skip
# skinny template: rows, warps, loads in flight, groups
SKINNY = (
    (16, 4, 4, 1), (32, 4, 2, 1), (32, 8, 2, 1), (32, 4, 4, 1), (48, 4, 2, 1),
    (64, 8, 4, 2), (64, 8, 2, 2), (128, 8, 4, 4), (128, 8, 2, 4),
)  # fmt: skip


def allowed(gemm: Gemm, config: Config) -> bool:
    """A cheap, static rule that excludes what cannot be built or makes no sense."""
    template, reduce = config["template"], config["reduce"]
    bm, bn, bk, split, stages, warps = (int(config[x]) for x in ("bm", "bn", "bk", "split", "stages", "warps"))
    size, group = TYPES[gemm.a_type][0], int(config["group"])
    rows = bm // group  # rows of one warp, in the skinny template
    if template == "skinny":
        return (
            gemm.layout == "TN"
            and gemm.a_type in ("bf16", "f16", "f8e4m3")
            and gemm.batch == 1
            and gemm.n <= 128
            and gemm.k * size % 128 == 0
            and gemm.lda * size % 16 == 0
            and gemm.ldb * size % 16 == 0
            and warps % group == 0
            and bm % (16 * group) == 0
            and rows <= 64
            and bn <= 64
            and bn < 2 * max(gemm.n, 8)
            and (bk, config["swap"]) == (64, 0)
            and stages % 2 == 0
            and 8 * stages * (rows // 8 + bn // 8) // 2 + rows * bn // 32
            <= 168  # registers of the loads in flight and of the sums
            and 4 * (warps // group) * bn * (bm + 4) <= SHARED_MOST
            and gemm.k * size // 128 >= split * warps // group
            and ((split == 1) == (reduce == "none"))
            and (split == 1 or reduce == "last" or (reduce == "cluster" and split <= 8))
            and (reduce != "last" or blocks(gemm.m, bm) * blocks(gemm.n, bn) <= LOCKS)
        )
    # shared memory and registers of a block that the loads in flight and the sums need
    shared = stages * (bm + bn) * bk * size
    sums = bm * bn // (32 * warps)
    steps = blocks(gemm.k, bk)
    common = (
        bm in (16, 32, 64, 128, 256)
        and bn != 48
        and config["group"] in (1, 8)
        and bn >= 16
        and (config["pdl"] == 0 or (template == "tile" and reduce != "two-pass" and _overlap_fits(gemm, config)))
        and warps <= 8
        and shared <= SHARED_MOST
        and 1 <= sums <= 128
        and bk * size >= 64
        and (bn == 16 or bn < 2 * gemm.n)
        and (bm == 16 or bm < 2 * gemm.m)
        and (config["group"] == 1 or (blocks(gemm.m, bm) > 8 and gemm.n > 2 * bn))
        and not (config["swap"] and bn < 64 and bm < 64 and warps > 4)
    )
    if template == "stream":
        return (
            common and gemm.batch == 1 and reduce == "last" and split <= 4 and blocks(gemm.m, bm) * blocks(gemm.n, bn) <= LOCKS
        )
    cells = blocks(gemm.m, bm) * blocks(gemm.n, bn) * gemm.batch
    return (
        common
        and split <= steps
        and ((split == 1) == (reduce == "none"))
        and reduce != "cluster"
        and not (gemm.deterministic and reduce == "atomic")
        and (split == 1 or (cells <= LOCKS and cells * bm * bn * split <= 16 << 20))
    )


def _overlap_fits(gemm: Gemm, config: Config) -> bool:
    """Whether the tile template can overlap: it sends weights ahead in lines of 128 bytes along the summed index."""
    lines = config["pdl"] in FETCHES
    return config["pdl"] in (1, 2) or (lines and gemm.trans_a == "T" and int(config["bk"]) * TYPES[gemm.a_type][0] >= 128)


def score(gemm: Gemm, multiprocessors: int, config: Config) -> float:
    """A rough estimate of the time: waves, waste at the edges, bytes in flight, and the cost of adding split sums."""
    bm, bn, bk, split, stages, warps = (int(config[x]) for x in ("bm", "bn", "bk", "split", "stages", "warps"))
    size = TYPES[gemm.a_type][0]
    tiles = blocks(gemm.m, bm) * blocks(gemm.n, bn) * gemm.batch
    skinny, group = config["template"] == "skinny", int(config["group"])
    flying = stages * 64 * (bm // group + bn) * warps if skinny else (stages - 1) * bk * (bm + bn) * size
    held = 4 * warps // group * bn * (bm + 4) if skinny else stages * bk * (bm + bn) * size
    resident = max(1, min(int(SHARED_MOST // max(held, 1)), 64 // warps, 4))
    programs = split * multiprocessors if config["template"] == "stream" else tiles * split
    full = programs / (multiprocessors * resident)
    waves = max(1.0, -(-programs // (multiprocessors * resident)) / full) if full > 1 else max(1.0, multiprocessors / programs)
    waste = blocks(gemm.m, bm) * bm / gemm.m * (blocks(gemm.n, bn) * bn / gemm.n) ** 0.5
    busy = min(1.0, flying * min(resident, max(programs / multiprocessors, 1)) / 49152)
    memory = gemm.bytes * (1 + 0.15 * (blocks(gemm.n, bn) - 1)) / 4.3e12 / (0.2 + 0.8 * busy)
    rate = 3e14 if skinny else 6.5e14 * min(1.0, (bm / 128) ** 0.5) * min(1.0, (bn / 128) ** 0.35)
    arithmetic = gemm.flops * waste / (rate / size * 2)
    joined = (
        0.0 if split == 1 else {"cluster": 0.6e-6, "last": 1.2e-6, "atomic": 1.5e-6, "two-pass": 2.5e-6}[str(config["reduce"])]
    )
    parts = 4.0 * gemm.m * gemm.n * (split - 1) / 8e12
    return float(2e-6 + max(memory * waves**0.5, arithmetic * waves) + joined + parts)


def seeds(gemm: Gemm, multiprocessors: int, overlap: tuple[int, ...] = (0,)) -> list[Config]:
    """The best configurations on an H200 for similar products, and good ones for this number of columns, split so that each
    multiprocessor has one or two blocks."""
    fitting = next((w for w in sorted(TILES) if w >= gemm.n), max(TILES))
    narrow = next((w for w in (8, 16, 32, 48, 64) if w >= gemm.n), 64)
    strips = 8 if gemm.n > 1024 else 1
    names = ("template", "bm", "bn", "bk", "stages", "warps", "group", "swap", "pdl")
    rows: list[tuple[int | str, ...]] = []
    rows += [("tile", bm, fitting, bk, stages, warps, strips, swap, 0) for bm, bk, stages, warps, swap in TILES[fitting]]
    rows += [("skinny", bm, narrow, 64, depth, warps, group, 0, 0) for bm, warps, depth, group in SKINNY]
    bases: list[Config] = [dict(zip(names, row, strict=True)) for row in rows]
    candidates: list[Config] = [{**c, "template": "stream", "split": 1, "reduce": "last"} for c in bases[:2]]
    for base in bases:
        count = blocks(gemm.m, int(base["bm"])) * blocks(gemm.n, int(base["bn"])) * gemm.batch
        for wanted in (1, 2):
            split = max(int(s) for s in PARAMETERS["split"] if int(s) <= max(1, wanted * multiprocessors // count))
            reduce = "none" if split == 1 else "cluster" if base["template"] == "skinny" else "last"
            config = {**base, "split": split, "reduce": reduce}
            if config not in candidates:
                candidates.append(config)
    best = [{**c, "pdl": pdl} for c in winners(gemm) for pdl in overlap]
    candidates = [{**c, "pdl": pdl} for c in candidates for pdl in overlap]
    guessed = sorted(
        (c for c in candidates if allowed(gemm, c) and c not in best), key=functools.partial(score, gemm, multiprocessors)
    )
    return [c for c in best if allowed(gemm, c)] + guessed


def winners(gemm: Gemm) -> list[Config]:
    """The best measured configurations of the products with the most similar sizes."""

    def distance(product: dict) -> float:
        ratios = (max(1, getattr(gemm, x)) / product[x] for x in "mnk")
        return float(sum(abs(log(r)) for r in ratios) + 2 * (product["type"] != gemm.a_type))

    near = sorted(_measured(), key=distance)[:_NEAREST]
    return list({str(c): c for product in near for c in product["configs"]}.values())


@functools.cache
def _measured() -> list[dict]:
    text = resources.files(__package__).joinpath("winners.json").read_text()
    return list(json.loads(text)["products"])
