"""One session for each communicator and device: opened at first use, closed with the communicator or with the process."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from ...ranks.protocol import Communicator
from .session import Allocator, Session

__all__ = ["open_session"]


def open_session(comm: Communicator, device: int, allocate: Allocator | None = None) -> Session:
    """The session of a communicator on a device, created at its first use (collective).

    It is stored in ``kept`` of the communicator, and closed with it. The session of a process alone is closed when the process
    ends. Call :meth:`Session.release` after the work.
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
    session.runtime.wait_all()  # the caller's streams may still write to the operands
    return session  # type: ignore[no-any-return]


_ALONE: dict[Any, Session] = {}


def _close_alone() -> None:
    """At the end of the process; not after an error, when the device may not answer any more."""
    if getattr(sys, "last_value", None) is None:
        for session in reversed(_ALONE.values()):
            session.close()
    _ALONE.clear()
