"""What an operation on a matrix that is spread over many devices costs: flops, messages, bytes, memory, seconds.

The engines work on square tiles that are dealt out over a p x q grid. Of a factorisation each device then

- does 1/(p q) of the flops, at the speed of a matrix product;
- receives each panel along its row and along its column of the grid, tile by tile: about n^2/2 (1/p + 1/q) numbers;
- waits for the panels one after the other.

    seconds = flops / (p q rate) + bytes swept / (p q memory bandwidth) + steps * latency
            + tiles received * (tile bytes / bandwidth + group * hop)

Communication and computation are added, as if nothing overlapped. Each constant has its source beside it; `docs/distributed.md`
shows the model against published and measured runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from ..core.plan import bytes_in_words
from ..core.problem import ITEMSIZE
from .layout import Layout, best_grid, default_tile

__all__ = [
    "CPU_CLUSTER",
    "H200",
    "MACHINES",
    "OPERATIONS",
    "Cost",
    "Link",
    "Machine",
    "cost",
    "largest_n",
    "largest_that",
    "memory_per_device",
    "tile_for",
]


@dataclass(frozen=True)
class Link:
    """How a tile travels through a group of g devices: ``bytes / bandwidth + g * hop`` seconds."""

    bandwidth: float
    hop: float


@dataclass(frozen=True)
class Machine:
    """Devices of one kind. Rates are what large matrix products reach, not what a data sheet says."""

    name: str
    device: str  # "cuda" or "cpu"
    engine: str
    flops: tuple[float, float]  # float32, float64: per device and second; complex ones count four times the flops
    memory: float  # bytes per device
    memory_bandwidth: float  # bytes per device and second
    step: float  # seconds of one step that cannot be blocked (a column of the reduction to tridiagonal form), on one device
    message: float  # seconds of a small message, times log2 of the devices
    inside: Link  # devices of one node
    across: Link  # of several
    per_node: int


# Measured on one H200 (benchmarks/results): Cholesky of n = 32768 in float32 42.7 and in float64 41.9 Tflop/s; a copy moves
# 4.3 TB/s counting both ways; the step is fitted to cuSOLVERMp's syevd with one rank. ``across`` is fitted to two runs of JAXMg
# on 64 H200s (n = 1,310,720 float32, tile 1024: 452 s on 8 x 8, 3065 s on 64 x 1). ``inside`` is an assumption: no run inside
# one node was published with its size.
H200 = Machine(
    name="H200",
    device="cuda",
    engine="cusolvermp",
    flops=(42.7e12, 41.9e12),
    memory=143771 * 2.0**20,
    memory_bandwidth=4.3e12,
    step=12e-6,
    message=10e-6,
    inside=Link(80e9, 20e-6),
    across=Link(8.2e9, 44.4e-6),
    per_node=8,
)
# One rank for each core and one thread for each rank. Rate: MKL's Cholesky of n = 4000 on 2 ranks (49 Gflop/s each). The nodes
# are assumed: 64 cores, 4 GiB and 4 GB/s for each, one 200 Gbit/s network card that all of them share.
CPU_CLUSTER = Machine(
    name="CPU cluster",
    device="cpu",
    engine="scalapack",
    flops=(98e9, 49e9),
    memory=4 * 2.0**30,
    memory_bandwidth=4e9,
    step=2e-6,
    message=3e-6,
    inside=Link(2e9, 2e-6),
    across=Link(25e9 / 64, 5e-6),
    per_node=64,
)
MACHINES = {"cuda": H200, "cpu": CPU_CLUSTER}


@dataclass(frozen=True)
class _Work:
    """Of an n x n matrix with k right-hand sides, in units of n^3 (and n^2 k), n^2 and n."""

    cubic: float  # flops / n^3
    columns: float = 0.0  # flops / (n^2 k)
    rows_in: float = 0.0  # numbers received along the row of the grid, each n^2 / p
    columns_in: float = 0.0  # and along its column, each n^2 / q
    swept: float = 0.0  # numbers read from memory and used once / n^3
    steps: float = 0.0  # steps that cannot be blocked / n
    copies: float = 1.0  # matrices of the size of the shard beside the input: the working copy, the results, the workspace
    gpu_copies: float | None = None  # where cuSOLVERMp needs another number of them
    gpu_rate: float = 1.0  # of the speed of a matrix product that cuSOLVERMp's routines reach for large n


# The usual counts. A Householder reduction to tridiagonal form does half its flops in products with vectors, which read the
# trailing matrix once for each column: n^3 / 3 numbers. Divide and conquer at most 4/3 n^3; back-transformation 2 n^3.
# Steps (in columns): fitted to cuSOLVERMp 0.8 with one rank on an H200 at n = 4096 and 16384. Its inverse is a solve with n
# right-hand sides, which took 700 ms at n = 16384: 0.15 of the speed at which n^3 flops could be done.
# Copies: ScaLAPACK's syevd needs the vectors and twice the shard, cuSOLVERMp's the vectors and four times the shard
# (0.8.0: 516 MB at n = 4096).
OPERATIONS = {
    "cholesky": _Work(1 / 3, rows_in=1 / 2, columns_in=1 / 2, steps=0.06),
    "slogdet": _Work(1 / 3, rows_in=1 / 2, columns_in=1 / 2, steps=0.06),
    "solve": _Work(1 / 3, 2, rows_in=1 / 2, columns_in=1 / 2, steps=0.06),
    "lu": _Work(2 / 3, 2, rows_in=1 / 2, columns_in=3 / 2, steps=1.1),
    "inv": _Work(1, rows_in=1, columns_in=3 / 2, steps=0.06, copies=1, gpu_copies=2, gpu_rate=0.15),
    "qr": _Work(8 / 3, rows_in=1, columns_in=2, steps=0.6, copies=2),
    "lstsq": _Work(4 / 3, 4, rows_in=1 / 2, columns_in=1, steps=0.6),
    "eigh": _Work(14 / 3, rows_in=3 / 2, columns_in=5 / 2, swept=1 / 3, steps=1, copies=4, gpu_copies=6),
    "eigvalsh": _Work(4 / 3, rows_in=1 / 2, columns_in=1, swept=1 / 3, steps=1, copies=2, gpu_copies=6),
    "svd": _Work(26 / 3, rows_in=3, columns_in=5, swept=2 / 3, steps=2, copies=6, gpu_copies=9),
    "svdvals": _Work(8 / 3, rows_in=1, columns_in=2, swept=2 / 3, steps=2, copies=2, gpu_copies=9),
    "polar": _Work(10, rows_in=4, columns_in=6, steps=2, copies=4, gpu_copies=6),
}
_POSITIVE = {"solve": "lu", "inv": "inv", "slogdet": "lu"}  # without assume="pos"


@dataclass(frozen=True)
class Cost:
    """How a sharded call will run. Nothing has been run."""

    operation: str
    shape: tuple[int, int]
    dtype: str
    machine: Machine
    engine: str
    grid: tuple[int, int]
    tile: int
    flops: float  # of all devices together
    messages: float  # that a device receives
    bytes_received: float  # by a device
    memory: float  # bytes on the device that has most: its part of the input, copies of it, workspace
    shard: float  # of which its part of the input
    compute_seconds: float
    message_seconds: float
    largest: int  # the largest n with which the same fits into the devices' memory
    note: str = ""  # what is said beside the engine's name
    gathered: int = 0  # of so many devices one does the work, with all of the matrix; 0: all of them do
    missing: str = ""  # why the engine cannot run on this machine
    largest_of: str = "n"  # "rows" or "columns": the other side stays as it is

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.message_seconds

    @property
    def devices(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def fits(self) -> bool:
        return self.memory <= self.machine.memory

    def __str__(self) -> str:
        p, q = self.grid
        room = "" if self.fits else f": does not fit into {bytes_in_words(self.machine.memory)}"
        devices, one = self.gathered or self.devices, "that" if self.gathered else "each"
        lines = [
            f"{self.operation} of {self.shape[0]} x {self.shape[1]} {self.dtype} on {devices} x {self.machine.name}",
            f"  engine        {self.engine} {self.note}".rstrip(),
            "  layout        all of it on one device" if self.gathered else f"  layout        {p} x {q} grid, tile {self.tile}",
            f"  memory        {bytes_in_words(self.memory)} on {one} device, {bytes_in_words(self.shard)} of it the input"
            + room,
            f"  work          {self.flops:.3g} flop, {self.flops / self.devices:.3g} on {one} device",
            f"  communication {bytes_in_words(self.bytes_received)} to {one} device in {self.messages:.3g} messages",
            f"  expected      about {_seconds(self.seconds)}: {_seconds(self.compute_seconds)} of work,"
            f" {_seconds(self.message_seconds)} of messages",
            f"  largest       {self.largest_of} = {self.largest} fits on {'that device' if self.gathered else 'these devices'}",
        ]
        if self.missing:
            lines.append(f"  note          not usable on this machine: {self.missing.splitlines()[0]}")
        return "\n".join(lines)


def cost(
    operation: str,
    n: int,
    devices: int | tuple[int, int],
    dtype: str = "float64",
    *,
    machine: Machine = H200,
    tile: int | None = None,
    columns: int = 1,
    pos: bool = True,
    in_place: bool = False,
    rows: int | None = None,
) -> Cost:
    """The cost of an operation on an n x n matrix, or rows x n for qr, svd and lstsq; ``devices``: how many, or a grid."""
    name, work = _work(operation, pos)
    shape = m, n = n if rows is None else rows, n
    grid = best_grid(devices, m, n) if isinstance(devices, int) else devices
    tile = tile or tile_for(shape, grid, operation, machine.engine)
    n, tall = min(m, n), max(m, n) / max(min(m, n), 1)  # of a tall matrix, or a wide one, the work grows with its longer side
    (p, q), size = grid, ITEMSIZE[dtype]
    each, count = 1 / (p * q), float(n)
    times = 4 if dtype.startswith("complex") else 1
    flops = times * (work.cubic * count**3 * tall + work.columns * count**2 * tall * columns)
    rate = machine.flops[0 if dtype in ("float32", "complex64") else 1] * (
        work.gpu_rate if machine.engine == "cusolvermp" else 1.0
    )
    # on a CPU one triangle is read, or served from a cache
    swept = work.swept * (1 if machine.device == "cuda" else 1 / 2) * tall
    compute = flops * each / rate + swept * count**3 * size * each / machine.memory_bandwidth
    compute += work.steps * count * machine.step

    link = machine.inside if p * q <= machine.per_node else machine.across
    along_row = work.rows_in * shape[0] * count / p if q > 1 else 0
    along_column = work.columns_in * shape[1] * count / q if p > 1 else 0
    # right-hand sides: each tile of them goes up and down its column of the grid
    along_column += 2 * work.columns * count * columns / (2 * q) if p > 1 else 0
    tiles = (along_row / tile**2, along_column / tile**2)
    waited = sum(t * (tile * tile * size / link.bandwidth + g * link.hop) for t, g in zip(tiles, (q, p), strict=True))
    small = 2 * work.steps * count if p * q > 1 and work.steps >= 0.5 else 0.0
    waited += small * machine.message * log2(p * q) if p * q > 1 else 0.0
    known: dict[str, Any] = {"machine": machine, "tile": tile, "columns": columns, "in_place": in_place}
    layout = Layout.cyclic(shape, tile, grid)
    return Cost(
        operation=name,
        shape=shape,
        dtype=dtype,
        machine=machine,
        engine=machine.engine,
        grid=grid,
        tile=tile,
        flops=flops,
        messages=sum(tiles) + small,
        bytes_received=(along_row + along_column) * size,
        memory=memory_per_device(operation, n, grid, dtype, **known, shape=shape),
        shard=float(layout.bytes_on(0, size)),
        compute_seconds=compute,
        message_seconds=waited,
        largest=largest_n(operation, devices, dtype, **known),
    )


def tile_for(shape: tuple[int, int], grid: tuple[int, int], operation: str, engine: str) -> int:
    """The default tile of a matrix that need not be square: each axis over its own side of the grid."""
    return min(default_tile(max(n, 1), parts, operation, engine) for n, parts in zip(shape, grid, strict=True))


def _work(operation: str, pos: bool) -> tuple[str, _Work]:
    if operation not in OPERATIONS:
        raise ValueError(f"cost: operation={operation!r} is not known\nhint: use one of {', '.join(OPERATIONS)}")
    if pos or operation not in _POSITIVE:
        return operation, OPERATIONS[operation]
    work = OPERATIONS[_POSITIVE[operation]]
    if operation == "inv":  # LU, then a solve with n right-hand sides
        work = replace(work, cubic=8 / 3, columns_in=3, copies=2, gpu_copies=2)
    return operation, replace(work, columns=0) if operation == "slogdet" else work


def memory_per_device(
    operation: str,
    n: int,
    grid: tuple[int, int],
    dtype: str = "float64",
    *,
    machine: Machine = H200,
    tile: int | None = None,
    columns: int = 1,
    in_place: bool = False,
    shape: tuple[int, int] | None = None,
) -> float:
    """Bytes on the device that holds most: its part of the input, the copies, the right-hand sides, and scratch for panels.

    ``in_place``: the input may be destroyed, so that the working copy is the input itself. Scratch is three panels, as JAXMg
    counts it; its run with n = 1,499,136 on 64 H200s then takes 94.7 % of the memory, as they report.
    """
    work, size = OPERATIONS[operation], ITEMSIZE[dtype]
    shape = shape or (n, n)
    tile = tile or tile_for(shape, grid, operation, machine.engine)
    rows, held = Layout.cyclic(shape, tile, grid).local_shape(0)
    copies = work.gpu_copies if machine.engine == "cusolvermp" and work.gpu_copies is not None else work.copies
    matrices = (copies if in_place else copies + 1) * rows * held
    sides = 2 * rows * -(-columns // grid[1]) if work.columns else 0
    return float((matrices + sides + 3 * tile * max(rows, held)) * size)


def largest_n(
    operation: str,
    devices: int | tuple[int, int],
    dtype: str = "float64",
    *,
    memory: float | None = None,
    machine: Machine = H200,
    tile: int | None = None,
    columns: int = 1,
    in_place: bool = False,
) -> int:
    """The largest n with which :func:`memory_per_device` stays within ``memory`` (by default, the devices' own)."""
    room = machine.memory if memory is None else memory

    def fits(n: int) -> bool:
        grid = best_grid(devices, n, n) if isinstance(devices, int) else devices
        used = memory_per_device(operation, n, grid, dtype, machine=machine, tile=tile, columns=columns, in_place=in_place)
        return used <= room

    return largest_that(fits)


def largest_that(fits: Callable[[int], bool]) -> int:
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low >> 12):  # to the fourth digit: what is free on a device is not known better
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.2g} us"
