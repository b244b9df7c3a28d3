"""A made-up GEMM space with the habits of a real one: tiles, waves, latency, split K, and some ruggedness.

Its shape was taken from what GPU kernels are known to depend on; its constants are those of no machine. The score shares no
code with the time, as a backend's own guess would not.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import product
from math import ceil

from lapwing.tune.backends.base import Config, Space

UNITS, BANDWIDTH, PEAK, SHARED, LAUNCH = 132, 4.5e12, 8e14, 227 * 1024, 2.5e-6
PARAMETERS = {
    "tile_m": (16, 32, 64, 128, 256),
    "tile_n": (16, 32, 64, 128, 256),
    "tile_k": (32, 64, 128, 256),
    "split_k": (1, 2, 3, 4, 6, 8, 16),
    "stages": (1, 2, 3, 4, 6),
    "warps": (4, 8, 16),
    "group": (1, 8),
    "load": ("pointer", "block"),
}
SHAPES = ((1, 6144, 4096), (16, 4096, 14336), (64, 28672, 4096), (128, 7168, 2048), (256, 2112, 7168), (4096, 4096, 4096))


def shared_memory(c: Config) -> int:
    return 2 * c["stages"] * (c["tile_m"] + c["tile_n"]) * c["tile_k"]


def allowed(c: Config, m: int, n: int, k: int) -> bool:
    sums = c["tile_m"] * c["tile_n"] / (32 * c["warps"])  # accumulators of a thread
    return (
        shared_memory(c) <= SHARED
        and 1 <= sums <= 128
        and c["tile_m"] <= max(16, 2 * m)
        and k // c["split_k"] >= c["tile_k"]
        and (c["warps"] < 16 or c["tile_m"] * c["tile_n"] >= 2**14)
    )


def seconds(c: Config, m: int, n: int, k: int) -> float:
    rows, columns = ceil(m / c["tile_m"]), ceil(n / c["tile_n"])
    blocks = rows * columns * c["split_k"]
    registers = (c["tile_m"] * c["tile_n"] / (32 * c["warps"]) + 40) * 32 * c["warps"]
    resident = max(1, min(SHARED // shared_memory(c), 64 // c["warps"], int(65536 // registers)))
    waves = blocks / (UNITS * resident)
    quantised = ceil(waves) / waves
    busy = min(1.0, blocks / UNITS)
    rate = PEAK * busy * min(1.0, c["tile_m"] / 64) ** 0.5 * min(1.0, c["tile_n"] / 128) ** 0.35
    rate *= {2: 0.7, 4: 0.95, 8: 1.0, 16: 0.9}[c["warps"]]
    arithmetic = 2.0 * rows * c["tile_m"] * columns * c["tile_n"] * k / rate
    hidden = min(1.0, (c["stages"] - 0.5) / 3.0 * (c["tile_k"] / 64) ** 0.3) * min(1.0, resident * c["warps"] / 12 + 0.35)
    again = 1.0 if c["group"] > 1 or rows < 8 else 1.15
    moved = 2.0 * (m * k * columns**0.35 + k * n * rows**0.35 * again) + m * n * (2 if c["split_k"] == 1 else 8 * c["split_k"])
    memory = moved / (BANDWIDTH * busy**0.6 * hidden * (1.06 if c["load"] == "block" and c["tile_k"] >= 64 else 1.0))
    reduction = 0.0 if c["split_k"] == 1 else 1.5e-6 + 4.0 * m * n * c["split_k"] / BANDWIDTH
    time = LAUNCH + max(arithmetic, memory) * (0.35 + 0.65 * quantised) + reduction
    text = repr((m, n, k, sorted(c.items()))).encode()
    return time * (1 + 0.06 * int.from_bytes(blake2b(text, digest_size=4).digest(), "big") / 2**32)


def score(c: Config, m: int, n: int, k: int) -> float:
    """An estimate on paper: wasted tiles, idle units, too few bytes in flight."""
    waste = ceil(m / c["tile_m"]) * c["tile_m"] * ceil(n / c["tile_n"]) * c["tile_n"] / (m * n)
    blocks = ceil(m / c["tile_m"]) * ceil(n / c["tile_n"]) * c["split_k"]
    under_way = min(1.0, shared_memory(c) / 65536)
    return waste**0.3 / (min(1.0, blocks / UNITS) * (0.3 + under_way)) * (1 + 0.05 * (c["split_k"] > 1))


def space(m: int, n: int, k: int) -> Space:
    return Space(
        PARAMETERS,
        allowed=lambda c: allowed(c, m, n, k),
        score=lambda c: score(c, m, n, k),
    )


def optimum(m: int, n: int, k: int) -> float:
    names = tuple(PARAMETERS)
    every = (dict(zip(names, values, strict=True)) for values in product(*PARAMETERS.values()))
    return min(seconds(c, m, n, k) for c in every if allowed(c, m, n, k))
