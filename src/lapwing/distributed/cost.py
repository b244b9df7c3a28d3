"""The cost of an operation on a matrix that is spread over many devices: flops, messages, bytes, memory, seconds.

:func:`predict`, :func:`largest_n` and :func:`table` run nothing and need no device. The seconds come from a model, they are not
measured. The engines work on square tiles, which are dealt to a p x q grid in turn. In a factorisation each device

- does 1/(p q) of the flops, at the speed of a matrix product;
- receives each panel along its row and along its column of the grid, tile by tile: about n^2/2 (1/p + 1/q) numbers;
- waits for the panels one after the other.

    seconds = flops / (p q rate) + bytes swept / (p q memory bandwidth) + steps * latency
            + tiles received * (tile bytes / bandwidth + group * hop)

Communication and computation are added, as if nothing overlapped. The source of each constant is next to it;
`docs/distributed.md` compares the model with published and measured runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from numbers import Real
from typing import Any

from ..core.plan import bytes_in_words
from ..core.problem import ITEMSIZE
from .layout import Layout
from .tiles import best_grid, default_tile


@dataclass(frozen=True)
class Link:
    """How a tile travels through a group of g devices: ``bytes / bandwidth + g * hop`` seconds."""

    bandwidth: float
    hop: float


@dataclass(frozen=True)
class Machine:
    """Devices of one kind. Rates are those of large matrix products, not those of a data sheet."""

    name: str
    device: str  # "cuda" or "cpu"
    engine: str
    flops: tuple[float, float]  # float32, float64: per device and second; complex ones count four times the flops
    memory: float  # bytes per device
    memory_bandwidth: float  # bytes per device and second
    step: float  # seconds of one step that cannot be blocked (a column of the reduction to tridiagonal form), on one device
    message: float  # seconds of a small message, times log2 of the devices
    inside: Link  # between devices of one node
    across: Link  # between nodes
    per_node: int


# Measured on one H200 (benchmarks/results): Cholesky of n = 32768 in float32 42.7 and in float64 41.9 Tflop/s; a copy moves
# 4.3 TB/s counting both ways; the step is fitted to cuSOLVERMp's syevd with one rank. ``across`` is fitted to two runs of JAXMg
# on 64 H200s (n = 1,310,720 float32, tile 1024: 452 s on 8 x 8, 3065 s on 64 x 1). ``inside`` is an assumption: no run inside
# one node was published with its size.
H200 = Machine(
    "H200", "cuda", "cusolvermp", flops=(42.7e12, 41.9e12), memory=143771 * 2.0**20, memory_bandwidth=4.3e12,
    step=12e-6, message=10e-6, inside=Link(80e9, 20e-6), across=Link(8.2e9, 44.4e-6), per_node=8,
)  # fmt: skip
# One rank for each core and one thread for each rank. Rate: MKL's Cholesky of n = 4000 on 2 ranks (49 Gflop/s each). The nodes
# are assumed: 64 cores, 4 GiB and 4 GB/s for each, one 200 Gbit/s network card that all of them share.
CPU_CLUSTER = Machine(
    "CPU core", "cpu", "scalapack", flops=(98e9, 49e9), memory=4 * 2.0**30, memory_bandwidth=4e9,
    step=2e-6, message=3e-6, inside=Link(2e9, 2e-6), across=Link(25e9 / 64, 5e-6), per_node=64,
)  # fmt: skip
MACHINES = {"cuda": H200, "cpu": CPU_CLUSTER}


@dataclass(frozen=True)
class _Work:
    """The work on an n x n matrix with k right-hand sides, in units of n^3 (and n^2 k), n^2 and n."""

    cubic: float  # flops / n^3
    columns: float = 0.0  # flops / (n^2 k)
    rows_in: float = 0.0  # numbers received along the row of the grid, each n^2 / p
    columns_in: float = 0.0  # and along its column, each n^2 / q
    swept: float = 0.0  # numbers read from memory and used once / n^3
    steps: float = 0.0  # steps that cannot be blocked / n
    copies: float = 1.0  # matrices of the size of the shard besides the input: working copy, results, workspace
    gpu_copies: float | None = None  # the number for cuSOLVERMp, if it is another
    gpu_rate: float = 1.0  # the part of the speed of a matrix product that cuSOLVERMp's routines reach for large n


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
    """How a sharded call would run, according to the model; nothing has been run or measured."""

    operation: str
    shape: tuple[int, int]
    dtype: str
    machine: Machine
    engine: str
    grid: tuple[int, int]
    tile: int
    flops: float  # of all devices together
    messages: float  # received by a device
    bytes_received: float  # by a device
    memory: float  # bytes on the device that needs most: its part of the input, copies of it, workspace
    shard: float  # bytes of its part of the input
    compute_seconds: float
    message_seconds: float
    largest: int  # the largest n with which the operation fits into the devices' memory
    note: str = ""  # printed after the engine's name
    gathered: int = 0  # the number of devices whose parts are gathered on one, which does the work; 0: all of them work
    missing: str = ""  # why the engine cannot run on this machine
    largest_of: str = "n"  # or "rows" or "columns", with the other side fixed
    host: float = 0.0  # bytes on the host of each process, if the devices are GPUs

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
            f"  memory        {bytes_in_words(self.memory)} on {one} device, {bytes_in_words(self.shard)} of it the input,"
            f" modelled{room}",
            *([f"  host memory   {bytes_in_words(self.host)}, modelled"] if self.machine.device == "cuda" else []),
            f"  work          {self.flops:.3g} flop, {self.flops / self.devices:.3g} on {one} device",
            f"  communication {bytes_in_words(self.bytes_received)} to {one} device in {self.messages:.3g} messages, modelled",
            f"  modelled      about {_seconds(self.seconds)}, not measured: {_seconds(self.compute_seconds)} of work,"
            f" {_seconds(self.message_seconds)} of messages",
            f"  largest       {self.largest_of} = {self.largest} fits on {'that device' if self.gathered else 'these devices'},"
            " modelled",
        ]
        if self.missing:
            lines.append(f"  note          not usable on this machine: {self.missing.splitlines()[0]}")
        return "\n".join(lines)


def predict(
    operation: str,
    n: int,
    devices: int | tuple[int, int],
    dtype: str = "float64",
    *,
    machine: Machine = H200,
    tile: int | None = None,
    columns: int = 1,
    assume: str = "pos",
    in_place: bool = False,
    rows: int | None = None,
) -> Cost:
    """The modelled cost of an operation on an n x n matrix over many devices. Nothing is run.

    Parameters
    ----------
    operation : str
        "cholesky", "solve", "inv", "slogdet", "eigh", "eigvalsh", "qr", "svd", "svdvals", "lstsq" or "polar".
    n : int
    devices : int or (p, q)
        Their number, or the grid.
    dtype : str
    machine : Machine
        ``H200`` (default), ``CPU_CLUSTER``, or a :class:`Machine` of your own.
    tile : int, optional
        By default the engine's.
    columns : int
        Right-hand sides.
    assume : str
        "pos" (default), or anything else for LU.
    in_place : bool
        The input may be destroyed, which saves one copy.
    rows : int, optional
        For qr, svd and lstsq: the matrix is rows x n.

    Returns
    -------
    Cost
        ``seconds``, ``compute_seconds``, ``message_seconds``, ``memory`` and ``bytes_received`` per device, ``messages``,
        ``grid``, ``tile``, ``largest``. Printing it shows a summary.

    Examples
    --------
    >>> run = predict("solve", 1_499_136, (8, 8), "float32", tile=1024, in_place=True)
    >>> 600 < run.seconds < 700  # 654 s were measured by the authors of JAXMg
    True
    """
    name, work = _work(operation, assume == "pos")
    shape = m, n = n if rows is None else rows, n
    grid = best_grid(devices, m, n) if isinstance(devices, int) else devices
    tile = tile or tile_for(shape, grid, operation, machine.engine)
    n, tall = min(m, n), max(m, n) / max(min(m, n), 1)  # the work grows with the longer side
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
    # each tile of the right-hand sides goes up and down its column of the grid
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
        largest=_largest(operation, devices, dtype, None, **known),
    )


def largest_n(
    memory: float | None,
    devices: int | tuple[int, int],
    operation: str = "solve",
    dtype: str = "float64",
    *,
    machine: Machine = H200,
    tile: int | None = None,
    in_place: bool = False,
) -> int:
    """The largest n whose operation fits into the devices' memory.

    Parameters
    ----------
    memory : float or None
        Bytes of one device; None for the machine's own.
    devices : int or (p, q)
    operation, dtype, machine, tile, in_place
        As for :func:`predict`.

    Examples
    --------
    >>> largest_n(80 * 2**30, 16, "cholesky", "float32") // 1000
    410
    """
    if memory is not None and not isinstance(memory, Real):
        raise TypeError(
            f"largest_n: memory={memory!r} is not a number of bytes\nhint: 4 GiB are 4 * 2**30; None: the machine's own"
        )
    return _largest(operation, devices, dtype, memory, machine=machine, tile=tile, columns=1, in_place=in_place)


def _largest(operation: str, devices: int | tuple[int, int], dtype: str, memory: float | None, **known: Any) -> int:
    room = known["machine"].memory if memory is None else memory

    def fits(n: int) -> bool:
        grid = best_grid(devices, n, n) if isinstance(devices, int) else devices
        return bool(memory_per_device(operation, n, grid, dtype, **known) <= room)

    return largest_that(fits)


def table(
    operation: str,
    n: int,
    devices: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    dtype: str = "float64",
    *,
    machine: Machine = H200,
) -> str:
    """The modelled seconds for several numbers of devices, as lines of text; in brackets where the memory is too small.

    Examples
    --------
    >>> print(table("cholesky", 100_000, (1, 4)).splitlines()[0].split()[:3])
    ['devices', 'grid', 'tile']
    """
    widths = {"devices": 7, "grid": 9, "tile": 5, "GiB each": 9, "work s": 9, "messages s": 10, "seconds": 10, "speed-up": 8}
    lines = [" ".join(f"{name:>{width}}" for name, width in widths.items()) + "  (modelled, not measured)"]
    one = None
    for count in devices:
        run = predict(operation, n, count, dtype, machine=machine)
        one = one or run.seconds
        seconds = f"{run.seconds:.3g}" if run.fits else f"({run.seconds:.3g})"
        p, q = run.grid
        lines.append(
            f"{count:>7} {f'{p} x {q}':>9} {run.tile:>5} {run.memory / 2**30:>9.3g} {run.compute_seconds:>9.3g}"
            f" {run.message_seconds:>10.3g} {seconds:>10} {one / run.seconds:>8.3g}"
        )
    return "\n".join(lines)


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
    """Bytes on the device that needs most: its part of the input, copies, right-hand sides, and scratch for panels.

    ``in_place``: the input may be destroyed, so the working copy is the input itself. Scratch is three panels, as JAXMg counts
    it; its run with n = 1,499,136 on 64 H200s then takes 94.7 % of the memory, as its authors report.
    """
    work, size = OPERATIONS[operation], ITEMSIZE[dtype]
    shape = shape or (n, n)
    tile = tile or tile_for(shape, grid, operation, machine.engine)
    rows, width = Layout.cyclic(shape, tile, grid).local_shape(0)
    copies = work.gpu_copies if machine.engine == "cusolvermp" and work.gpu_copies is not None else work.copies
    matrices = (copies if in_place else copies + 1) * rows * width
    sides = 2 * rows * -(-columns // grid[1]) if work.columns else 0
    return float((matrices + sides + 3 * tile * max(rows, width)) * size)


def largest_that(fits: Callable[[int], bool]) -> int:
    """The largest n that fits, to four digits: the free memory of a device is not known more precisely."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low >> 12):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.2g} us"
