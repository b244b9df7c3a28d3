"""Cost of the algorithms inside XLA, and of a matrix that is gathered to one device, with the constants of :mod:`scaling`.

Counted from the algorithms, windows and padding included; the copies in memory are fitted to XLA's own plans. Rates and links
are those of the machine: the time of this engine was not fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt, log2

from ....core.problem import ITEMSIZE
from ...cost import OPERATIONS, Cost, Machine, largest_that, predict
from .panels import WINDOWS, Panels, panels

BLOCKED = ("cholesky", "det", "factor", "inv", "slogdet", "solve")
TALL = ("lstsq", "polar", "qr", "svd", "svdvals")
DENSE = ("eigh", "eigvalsh", *TALL)
# blocks of rows that a device has at one time: its input, Q_i, Q, as XLA's plan of memory has them
_HELD = {"qr": 4.0, "svd": 3.0, "svdvals": 2.0, "polar": 3.0, "lstsq": 3.0}


# shares of the matrix that a device has at one time where it is not long and narrow, as XLA's plan of memory has them
_HELD_DENSE = {"eigh": 7.5, "eigvalsh": 5.0, "lstsq": 16.0, "polar": 16.0, "qr": 7.0, "svd": 10.5, "svdvals": 8.0}


@dataclass(frozen=True)
class _Count:
    """What one device does."""

    flops: float
    received: float  # numbers
    collectives: float
    stored: float  # numbers
    swept: float = 0.0  # numbers that are read from memory and used once


def blocked(
    operation: str,
    n: int,
    devices: int,
    dtype: str,
    *,
    machine: Machine,
    assume: str = "general",
    columns: int = 1,
    cut: Panels | None = None,
) -> Cost:
    """Cost of a factorisation in column panels; ``cut``: the panels, by default those of the machine's backend."""
    size = ITEMSIZE[dtype]

    def count(cut: Panels) -> _Count:
        return _panels(operation, cut, assume, columns, machine.device == "cpu")

    cut = cut or panels(n, devices, machine.device)
    largest = largest_that(lambda n: count(panels(n, devices, machine.device)).stored * size <= machine.memory)
    return _cost(operation, (n, n), dtype, machine, (1, devices), cut.width, count(cut), largest)


def _panels(operation: str, cut: Panels, assume: str, columns: int, tiles: bool) -> _Count:
    """``tiles``: products skip zeros, as on a CPU."""
    b, p, total, local = cut.width, cut.devices, cut.padded, cut.columns
    shard = cut.n * cut.n / p
    turns = 2 if p > 1 else 0  # a reduction, or a scatter and a gather, bring each number twice
    share = (p - 1) / p
    # into panels; results that are matrices also out of them
    out = operation in ("cholesky", "inv")
    flops, received, collectives = 0.0, (2 if out else 1) * shard * share, 2.0 if out else 1.0
    # the input, the buffers for sending and receiving, and the working copy or result
    stored = shard + 3 * total * local
    pos = operation == "cholesky" or assume == "pos"
    triangular = assume in ("lower", "upper") and operation != "cholesky"
    if triangular:
        stored += 2 * total * b  # diagonal blocks and their inverses
    else:
        for first, last in cut.windows(WINDOWS):
            steps, rows = (last - first) * p, total - first * p * b
            wide = (last if pos else cut.each - first) * b
            flops += 0.0 if pos and tiles else 2.0 * steps * b * rows * wide
            received += turns * share * steps * b * rows
            collectives += steps * (3 if pos else 1)
        if pos:
            flops += total**3 / (3 * p) if tiles else 0.0
            flops += cut.count * b**3  # the diagonal blocks and their inverses, on every device
            received += turns * share * total * b
            stored += 2 * total * b
        else:
            flops += total * total * b / 2  # the panels, while the others wait
            stored += 6 * total * b
    if operation in ("inv", "solve"):
        sides = total if operation == "inv" else columns
        sweeps = 1 if triangular else 2
        flops += sweeps * 1.5 * total * total * sides / p  # each sweep in halves
        received += sweeps * turns * share * total * sides
        collectives += sweeps * cut.count
        stored += 2 * local * sides + (sides * cut.n if operation == "solve" else 0)
    return _Count(flops, received if p > 1 else 0.0, collectives if p > 1 else 0.0, stored)


def tall(operation: str, shape: tuple[int, int], devices: int, dtype: str, *, machine: Machine, columns: int = 1) -> Cost:
    """Cost for a long and narrow matrix, or its transpose: a QR of each block of rows, and one of all the small factors."""
    size, (m, n) = ITEMSIZE[dtype], (max(shape), min(shape))

    def count(m: int) -> _Count:
        rows = -(-m // devices)
        stacked = devices * n
        # Q and R of my rows, of the small factors on every device, and Q <- Q_i Q'
        flops = 4.0 * rows * n * n + 4.0 * stacked * n * n + 2.0 * rows * n * n
        stored = _HELD[operation] * rows * n + stacked * n + 2.0 * n * n
        if operation != "qr":
            flops += 22.0 * n**3  # the svd of R, on every device
        if operation in ("svd", "polar"):
            flops += 2.0 * rows * n * n
        if operation == "lstsq":
            flops += 4.0 * rows * n * columns
            stored += (m + rows) * columns
        # rows may have to become whole first
        received = (devices - 1.0) * n * n
        return _Count(flops, received, 1.0 if devices > 1 else 0.0, stored)

    largest = largest_that(lambda m: count(m).stored * size <= machine.memory)
    grid, letter = ((devices, 1), "rows") if shape[0] >= shape[1] else ((1, devices), "columns")
    estimate = _cost(operation, shape, dtype, machine, grid, -(-m // devices), count(m), largest)
    return replace(estimate, largest_of=letter)


def dense(operation: str, shape: tuple[int, int], devices: int, dtype: str, *, machine: Machine, columns: int = 1) -> Cost:
    """Cost of spectra and QR of a matrix of any shape, by reflections on column panels."""
    size, work = ITEMSIZE[dtype], OPERATIONS["svd" if operation in ("lstsq", "polar") else operation]

    def count(m: int, n: int) -> _Count:
        # windows leave a third of the work that is not needed
        flops = 1.5 * work.cubic * m * n * n / devices + 4.0 * m * n * columns * (operation == "lstsq") / devices
        # a vector for each column, and for singular values another; panels of reflections, once or twice
        vectors = {"eigh": 1, "eigvalsh": 1, "qr": 0}.get(operation, 2)
        sides = (m + n) * columns if operation == "lstsq" else 0
        return _Count(
            flops, (vectors + 2.0) * m * n, (vectors + 0.1) * n, _HELD_DENSE[operation] * m * n / devices + sides,
            1.5 * work.swept * m * n * n / devices,
        )  # fmt: skip

    m, n = max(shape), min(shape)
    largest = largest_that(lambda k: count(k * m // n, k).stored * size <= machine.memory)
    return _cost(operation, shape, dtype, machine, (1, devices), panels(n, devices, machine.device).width, count(m, n), largest)


def gathered(
    operation: str,
    shape: tuple[int, int],
    devices: int,
    dtype: str,
    *,
    machine: Machine,
    note: str,
    limit: float,
    columns: int = 1,
    assume: str = "pos",
) -> Cost:
    """One device gets the whole matrix and does the work; ``limit``: the largest bytes of a matrix that is gathered."""
    one = replace(machine, engine="gathered")
    tile = max(min(shape), 1)
    estimate = predict(operation, shape[1], 1, dtype, machine=one, tile=tile, columns=columns, assume=assume, rows=shape[0])
    matrix = float(shape[0] * shape[1] * ITEMSIZE[dtype])
    received = matrix * (devices - 1) / devices
    link = machine.inside if devices <= machine.per_node else machine.across
    # one device has neither panels of others nor tiles: its part of the input, all of it, copies, right-hand sides
    work = OPERATIONS[operation]
    sides = 2 * shape[0] * columns * ITEMSIZE[dtype] if work.columns else 0
    needed = matrix * (1 + work.copies) + matrix / devices + sides
    room = (machine.memory - sides) / (1 + work.copies + 1 / devices)
    return replace(
        estimate,
        memory=needed,
        shard=matrix,
        messages=float(devices - 1),
        bytes_received=received,
        message_seconds=received / link.bandwidth + (devices - 1) * link.hop,
        largest=isqrt(max(int(min(room, limit) // ITEMSIZE[dtype]), 0)),
        note=note,
        gathered=devices,
    )


def _cost(
    operation: str,
    shape: tuple[int, int],
    dtype: str,
    machine: Machine,
    grid: tuple[int, int],
    tile: int,
    count: _Count,
    largest: int,
) -> Cost:
    size, devices = ITEMSIZE[dtype], grid[0] * grid[1]
    link = machine.inside if devices <= machine.per_node else machine.across
    flops = count.flops * (4 if dtype.startswith("complex") else 1)
    rate = machine.flops[0 if dtype in ("float32", "complex64") else 1]
    waited = count.received * size / link.bandwidth + count.collectives * (devices * link.hop + log2(devices) * machine.message)
    return Cost(
        operation=operation,
        shape=shape,
        dtype=dtype,
        machine=machine,
        engine="sharded",
        grid=grid,
        tile=tile,
        flops=flops * devices,
        messages=count.collectives,
        bytes_received=count.received * size,
        memory=count.stored * size,
        shard=shape[0] * shape[1] * size / devices,
        compute_seconds=flops / rate + count.swept * size / machine.memory_bandwidth,
        message_seconds=waited,
        largest=largest,
    )
