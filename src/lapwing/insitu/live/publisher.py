"""The part inside the simulation: a thread that writes ``status.json``.

The solver's thread only collects a few figures when the writing thread has asked for them, and never waits for it. An error in
the writing thread is logged once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time as clock
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapwing._version import __version__

from ..solver.report import words
from .drawing import Fetch, drawings
from .plain import plain

if TYPE_CHECKING:
    from ..solver.hub import Hub

STATUS_FILE = "status.json"
FORMAT = 1
_PERIOD = 0.5  # seconds between two files
_SHARE = 0.01  # largest share of the solver's time that collecting may take; beyond it the period grows
_HISTORY = 240  # points of the curves over the run; beyond this every second one is dropped
_PATIENCE = 5.0  # seconds that the end of the run waits for the last file; a dead file system must not block it


class Live:
    """Writes ``status.json`` into a folder, a few times a second.

    Parameters
    ----------
    hub : Hub
        Held by a weak reference: the thread ends when the hub is deleted.
    folder : Path
    """

    def __init__(self, hub: Hub, folder: Path, period: float = _PERIOD) -> None:
        self.wanted = False  # set by the writing thread, read by the solver's thread
        self._hub = weakref.ref(hub)
        self._folder = folder
        self._period = self._pause = period
        self._slot: deque[tuple[dict[str, Any], list[Any]]] = deque(maxlen=1)  # its operations are atomic and need no lock
        self._fetch: Fetch | None = None
        self._drawn: list[Any] = []
        self._end: tuple[str, str] | None = None  # how it ended, and why
        self._ended = threading.Event()
        self._complained = False
        self._beat = 0
        self._started = clock.time()
        self._history: list[tuple[int, float | None, float | None, float | None]] = []
        self._before: tuple[float, float, int] | None = None
        self._known: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------------------------- the solver's thread

    def start(self) -> None:
        """Start the thread. It blocks all signals: they are meant for the solver's threads."""
        thread = threading.Thread(target=self._loop, name="lapwing-insitu-live", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._complain(error)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._thread = thread
        self.wanted = True

    def take(self, hub: Hub, at_end: bool = False) -> None:
        """Put the figures of this step into the slot. Called by the solver's thread, in the order of its stream."""
        self.wanted = False
        begin = clock.perf_counter()
        try:
            times = hub._times
            status = hub.status() | {"_seconds": (times.solver.total, times.analysis.total, times.steps)}
            if self._fetch is None or at_end:
                self._fetch = Fetch(
                    [(slot.name, s) for slot in hub._slots if not slot.disabled for s in slot.analysis.sketch()]
                )
            if at_end or self._fetch.ready():
                self._drawn, self._fetch = self._fetch.take(), None
            self._slot.append((status, self._drawn))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's analyses provide the figures
            self._fetch = None
            self._complain(error)
        self._pause = max(self._period, (clock.perf_counter() - begin) / _SHARE)

    def close(self, hub: Hub, state: str, message: str = "") -> None:
        """Write the last figures and how the run ended: "finished", "stopped" or "failed". Waits a few seconds at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.take(hub, at_end=True)
        self.wanted = False
        self._end = state, message
        self._ended.set()
        thread.join(_PATIENCE)

    # ------------------------------------------------------------------------------------------------- the writing thread

    def _loop(self) -> None:
        ended = False
        while True:
            try:
                self._write()
            except Exception as error:
                self._complain(error)
            if ended:
                return
            ended = self._ended.wait(self._pause)
            hub = self._hub()
            if hub is None and not ended:
                self._end, ended = ("stopped", "the hub was deleted without finish()"), True
            del hub
            self.wanted = not ended

    def _write(self) -> None:
        end = self._end  # read before the slot, so that the slot then has the last figures
        if self._slot:
            status, drawn = self._slot.pop()
            self._remember(status)
            self._known = plain(status) | {"drawings": drawings(drawn), "history": self._curves()}
        self._beat += 1
        content = self._known | {
            "format": FORMAT,
            "lapwing": __version__,
            "state": end[0] if end else "running" if self._known else "starting",
            "message": plain(end[1]) if end else "",
            "started": self._started,
            "heartbeat": clock.time(),
            "beat": self._beat,
            "period": self._pause,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        if (hub := self._hub()) is not None:  # during a slow step no figures are collected, but its number is known
            content |= plain({"step": hub.ctx.step, "time": hub.ctx.time, "steps": hub.steps})
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        partial = self._folder / f".{STATUS_FILE}.partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self._folder / STATUS_FILE)  # a reader never sees half a file

    def _remember(self, status: dict[str, Any]) -> None:
        """Add a point to the curves: milliseconds per step since the last point."""
        solver, analysis, steps = status.pop("_seconds")
        before, self._before = self._before, (solver, analysis, steps)
        if before is None or steps <= before[2]:  # the first point, or the run was restored
            return
        count = (steps - before[2]) / 1e3
        point = ((solver - before[0]) / count, (analysis - before[1]) / count, status.get("energy"))
        self._history.append((status["step"], *point))
        if len(self._history) > _HISTORY:
            self._history = self._history[-1::-2][::-1]

    def _curves(self) -> dict[str, list[Any]]:
        names = ("step", "solver_ms", "analysis_ms", "energy")
        return {name: [plain(point[i]) for point in self._history] for i, name in enumerate(names)}

    def _complain(self, error: BaseException) -> None:
        if self._complained:
            return
        self._complained = True
        hub = self._hub()
        if hub is not None:
            hub._log(f"live view: {type(error).__name__}: {words(error)}; the simulation goes on")
