"""What sharded operations cost, before any device is asked for: :func:`predict`, :func:`largest_n`, :func:`table`.

The model is in :mod:`lapwing.distributed.scaling`; ``docs/distributed.md`` shows it against published and measured runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

from . import scaling
from .scaling import CPU_CLUSTER, H200, Cost, Link, Machine

__all__ = ["CPU_CLUSTER", "H200", "Cost", "Link", "Machine", "largest_n", "predict", "table"]


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
) -> Cost:
    """What an operation on an n x n matrix over many devices would cost. Nothing is run.

    Parameters
    ----------
    operation : str
        "cholesky", "solve", "inv", "slogdet", "eigh", "eigvalsh", "qr", "svd", "svdvals", "lstsq" or "polar".
    n : int
    devices : int or (p, q)
        How many, or the grid.
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
        The input may be destroyed: one copy less.

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
    return scaling.cost(
        operation, n, devices, dtype, machine=machine, tile=tile, columns=columns, pos=assume == "pos", in_place=in_place
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
        Bytes of one device; None for those of the machine.
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
    return scaling.largest_n(operation, devices, dtype, memory=memory, machine=machine, tile=tile, in_place=in_place)


def table(
    operation: str,
    n: int,
    devices: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    dtype: str = "float64",
    *,
    machine: Machine = H200,
) -> str:
    """Predicted seconds over numbers of devices, as lines of text; where it does not fit, the seconds are in brackets.

    Examples
    --------
    >>> print(table("cholesky", 100_000, (1, 4)).splitlines()[0].split()[:3])
    ['devices', 'grid', 'tile']
    """
    widths = {"devices": 7, "grid": 9, "tile": 5, "GiB each": 9, "work s": 9, "messages s": 10, "seconds": 10, "speed-up": 8}
    lines = [" ".join(f"{name:>{width}}" for name, width in widths.items())]
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
