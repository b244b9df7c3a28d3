"""Memory that the programs of a kernel share: one arena for each stream, since calls on one stream never overlap."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

LOCKS = 1 << 16  # number of counters, one for each block of a result
NO_ROOM = (
    "a tuned product needs memory that cannot be allocated while a graph is captured\n"
    "hint: run the model once before the capture, on the same stream"
)
_arenas: dict[tuple[int, int], Arena] = {}
_spare: dict[int, Arena] = {}
_lock = threading.Lock()


class Arena:
    """``locks`` and ``sums`` are zero between calls, because each kernel clears them; ``parts`` may contain anything."""

    def __init__(self, device: int) -> None:
        import torch

        self.device = device
        self.locks = torch.zeros(LOCKS, dtype=torch.int32, device=f"cuda:{device}")
        self._held: list[Any] = []  # older, smaller buffers, which graphs may still use
        self.sums = self.parts = torch.zeros(0, dtype=torch.float32, device=self.locks.device)
        torch.cuda.synchronize(device)

    def grow(self, *, sums: int = 0, parts: int = 0) -> Arena:
        """Make room for so many floats. Not during a capture: the zeros would be written at each replay, and only then."""
        import torch

        grown = False
        for name, size in (("sums", sums), ("parts", parts)):
            if getattr(self, name).numel() < size:
                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError(NO_ROOM)
                self._held.append(getattr(self, name))
                setattr(self, name, torch.zeros(size, dtype=torch.float32, device=self.locks.device))
                grown = True
        if grown:
            torch.cuda.synchronize(self.device)  # another stream may use the zeros
        return self


def arena(device: int, stream: int, *, sums: int = 0, parts: int = 0) -> Arena:
    """The arena of a stream. A stream that is first seen during a capture gets a spare one.

    All arenas of a device grow together, as far as there is memory. So what ran on one stream can be captured on any other that
    has an arena, and on one more. Two graphs captured on one stream share an arena, and must not be replayed at the same time.
    """
    import torch

    with _lock:
        capturing = torch.cuda.is_current_stream_capturing()
        if (device, stream) not in _arenas:
            if capturing and device not in _spare:
                raise RuntimeError(NO_ROOM)
            _arenas[device, stream] = _spare.pop(device) if device in _spare else Arena(device)
        own = _arenas[device, stream].grow(sums=sums, parts=parts)
        if not capturing:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                if device not in _spare:
                    _spare[device] = Arena(device)
                rooms = [_spare[device], *(room for (where, _), room in _arenas.items() if where == device)]
                most = {name: max(getattr(room, name).numel() for room in rooms) for name in ("sums", "parts")}
                for room in rooms:
                    room.grow(**most)
        return own
