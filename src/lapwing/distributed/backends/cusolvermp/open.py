"""Sessions are made once for each communicator and device, kept with it, and closed with it or at the end of the process."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from ...ranks.protocol import Communicator
from .session import Allocator, Session

__all__ = ["open_session"]


def open_session(comm: Communicator, device: int, allocate: Allocator | None = None) -> Session:
    """The session of a communicator on a device, made at its first use (collective).

    It is closed with the communicator where that is freed (``kept`` of MPI's ranks); else at the end of the process, where no
    other rank is needed for that. Call :meth:`Session.release` after the work.
    """
    kept: dict[Any, Any] = comm.__dict__.setdefault("kept", {}) if comm.size > 1 else _ALONE
    key = ("cusolvermp", device)
    session = kept.get(key)
    if session is None:
        if not _ALONE and kept is _ALONE:
            atexit.unregister(_close_alone)
            atexit.register(_close_alone)
        session = kept[key] = Session(comm, device)
    session.runtime.set_device(device)
    session.allocate = allocate or session.runtime.allocate
    session.runtime.wait_all()  # what the caller's streams are still writing
    return session  # type: ignore[no-any-return]


_ALONE: dict[Any, Session] = {}


def _close_alone() -> None:
    """At the end of the process. After an error the device may not answer any more."""
    if getattr(sys, "last_value", None) is None:
        for session in reversed(_ALONE.values()):
            session.close()
    _ALONE.clear()
