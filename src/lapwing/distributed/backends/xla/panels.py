"""The engine inside XLA for matrices that one device cannot hold: its limits, and how it cuts a matrix into panels.

The work is in layout, cholesky, lu and tall, which import jax and are loaded with the first sharded array. The engine needs no
MPI and no vendor library beyond XLA's own, and runs on any JAX backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

# Widest panel, by backend. CPU: 2 devices on 2 busy cores, n = 2048 and 4096 float64: 64 and 128 were within noise of each
# other; wider ones were not measured. GPU: not tuned.
WIDEST = {"cpu": 128, "gpu": 512}
# Static windows of the factorisation: more of them save work and messages, and cost compile time.
WINDOWS = 4
# Up to this order one window: a loop of reflections takes half a second to compile.
SMALL = 256
# Matrices up to this many bytes are gathered to one device for calls without a distributed algorithm.
GATHER_LIMIT = 8 << 30
# Right-hand sides up to this many bytes are gathered without a warning.
UNNOTICED = 64 << 20


@dataclass(frozen=True)
class Panels:
    """Column panels of width ``width``, panel g on device g mod ``devices``; the order is padded from ``n`` to ``padded``."""

    n: int
    width: int
    devices: int
    each: int  # panels on each device

    @property
    def count(self) -> int:
        return self.each * self.devices

    @property
    def padded(self) -> int:
        return self.count * self.width

    @property
    def columns(self) -> int:
        """On each device."""
        return self.each * self.width

    def few_windows(self) -> list[tuple[int, int]]:
        """As many windows as save more than the time to compile them: one for a small matrix."""
        return self.windows(WINDOWS if self.padded > SMALL else 1)

    def windows(self, most: int) -> list[tuple[int, int]]:
        """At most ``most`` ranges of panels on each device; the steps of a range share one loop."""
        many = min(most, self.each)
        cuts = [round(self.each * i / many) for i in range(many + 1)]
        return list(pairwise(cuts))


def panels(n: int, devices: int, backend: str) -> Panels:
    """The default cut: panels as wide as is best for the backend, and at least four for each device if n is large enough.

    If possible a block of columns has the same number of panels for each device, as one exchange then moves them.
    """
    widest = WIDEST["cpu" if backend == "cpu" else "gpu"]
    most = max(8, -(-n // (4 * devices)))
    width = min(widest, most)
    each = max(1, -(-n // (devices * width)))
    for many in range(-(-each // devices) * devices, 2 * each + 1, devices):
        if n and n % (devices * many) == 0:
            return panels_of_width(n, devices, n // (devices * many))
    # the narrowest panels with that count: less padding
    return panels_of_width(n, devices, max(1, -(-n // (devices * each))))


def panels_of_width(n: int, devices: int, width: int) -> Panels:
    return Panels(n, width, devices, max(1, -(-n // (devices * width))))
