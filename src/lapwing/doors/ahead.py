"""Where lapwing is ahead of the other libraries: the one place that the doors ask."""

from __future__ import annotations

from functools import cache
from math import prod

from ..core.engines import is_amd
from ..core.native import native
from .cells import AHEAD


@cache
def _was_measured(device: str) -> bool:
    """The GPUs of the list are NVIDIA's, and torch says "cuda" of AMD's too."""
    return device != "cuda" or not is_amd()


def times_as_fast(operation: str, device: str, shape: tuple[int, ...]) -> float:
    """How many times as fast as the library lapwing was measured to be for a batch like this, in the worst of the dtypes.

    0 where it was not ahead, or nothing like it was measured. An order between two measured ones counts as the worse of them.
    """
    cells = AHEAD.get((operation, device))
    if cells is None or native is None or not _was_measured(device):
        return 0.0
    order, elements, before = max(shape[-2:]), prod(shape), None
    for cell in cells:
        if cell.order >= order:
            worse = cell if before is None or cell.order == order or cell.times <= before.times else before
            return worse.times if elements >= worse.least_elements else 0.0
        before = cell
    return 0.0


def smallest(*devices: str) -> int:
    """The least number of elements of a call that may be ahead: smaller ones are not worth a question."""
    return min((c.least_elements for key, cells in AHEAD.items() if key[1] in devices for c in cells if c.times), default=2**63)


latest_gain = [0.0]  # of the last call that was asked about; another thread's at worst, which spoils an estimate only


def ahead(operation: str, device: str, shape: tuple[int, ...]) -> bool:
    """Whether lapwing is known to be faster than the library's function for a batch of this shape, in each dtype it has."""
    latest_gain[0] = times = times_as_fast(operation, device, shape)
    return times > 0


def saved(seconds: float) -> float:
    """What the library would have needed beyond these seconds of lapwing's, by the measured ratio."""
    return seconds * max(latest_gain[0] - 1, 0.0)
