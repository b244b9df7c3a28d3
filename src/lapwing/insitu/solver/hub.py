"""The hub passes each step's fields to the analyses, keeps their errors away from the solver, and times both."""

from __future__ import annotations

import contextlib
import os
import sys
import time as clock
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.memory import HOST
from ..analysis import OK, STOP, WARN, Analysis, CollectiveError, Context, StopRun, on_step
from ..live import Live
from . import checkpoint, report
from .arrays import LIBRARIES, choose_library
from .field import Field
from .mesh import Mesh
from .parallel import open_comm
from .report import words
from .streams import stream_context, synchronise, wide

POLICIES = ("disable", "warn", "stop", "abort")
_SHOWN = 5  # errors of one analysis shown on stderr under the policy "warn"; the log file has all of them


@dataclass(slots=True)
class _Slot:
    """One analysis and its bookkeeping."""

    analysis: Analysis
    name: str
    every: int
    fields: tuple[str, ...] | None
    collective: bool
    collective_every: int
    calls: int = 0  # steps that were due, also those it could not run: the same number on every rank
    disabled: str = ""  # why it is switched off
    failed: bool = False  # whether it failed since the ranks last agreed
    errors: int = 0
    seconds: float = 0.0


class Hub:
    """Runs analyses at every step of a solver.

    Parameters
    ----------
    analyses : list of Analysis
        They run in this order. Plain functions ``f(ctx, u)`` are accepted too.
    output : path or None
        Folder for the files of the analyses and the log of each rank; created if missing. None: no log, and files go to the
        current folder.
    on_error : {"disable", "warn", "stop", "abort"}
        What happens when an analysis raises. "disable" switches that analysis off and goes on; "warn" reports it and goes on;
        "stop" asks the solver to stop; "abort" ends the run at once, on all ranks.
    comm : mpi4py communicator, optional
        Its ranks run the same analyses, each on its part of the fields. The hub works on a duplicate of it.
    xp : {"auto", "numpy", "cupy", "torch", "jax"}
        The array library in which analyses receive the fields; "auto" keeps each array in its own library.
    every : int
        Run the analyses only at steps whose number is a multiple of this.
    mesh : Mesh or dict, optional
        See `Mesh`.
    live : bool
        Write ``status.json`` into the output folder a few times a second, for ``lapwing insitu watch``; a thread of the first
        rank does it. The environment variable LAPWING_INSITU_LIVE (1 or 0) overrides this argument.
    quiet : bool
        Print nothing on stderr.
    debug : bool
        Give the analyses copies of the fields and overwrite them with NaN after the step, so that a use after the step shows.
    writable : bool
        Let analyses write into the fields.
    options : dict
        Options for the analyses: ``ctx.options``.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> x = np.linspace(0, 2 * np.pi, 100)
    >>> pod = insitu.POD("u", rank=2)
    >>> with insitu.Hub([pod], output=None, quiet=True) as hub:
    ...     for n in range(50):
    ...         status = hub.step(n, 0.01 * n, u=np.sin(x) + 0.1 * n * np.cos(x))
    >>> pod.energy > 0.999
    True
    """

    def __init__(
        self,
        analyses: Iterable[Analysis | Callable[..., Any]],
        *,
        output: str | os.PathLike[str] | None = "insitu",
        on_error: str = "disable",
        comm: Any = None,
        xp: str = "auto",
        every: int = 1,
        mesh: Mesh | dict[str, Any] | None = None,
        live: bool = False,
        quiet: bool = False,
        debug: bool = False,
        writable: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        if on_error not in POLICIES:
            raise ValueError(f"Hub: on_error must be one of {', '.join(POLICIES)}, got {on_error!r}")
        if xp not in LIBRARIES:
            raise ValueError(f"Hub: xp must be one of {', '.join(LIBRARIES)}, got {xp!r}")
        self._every = _positive(every, "Hub: every")
        self._slots = _slots(analyses)
        self._collective = [s for s in self._slots if s.collective]
        self.on_error = on_error
        self.comm = open_comm(comm)
        self._output = None if output is None else Path(output).absolute()  # the solver may go to another folder
        if self._output is not None and self._output.exists() and not self._output.is_dir():
            raise NotADirectoryError(f"Hub: the output {str(self._output)!r} is a file\nhint: set output= to a folder")
        self._quiet, self._debug, self._writable, self._xp = quiet, debug, writable, xp
        self.ctx = Context(self.comm, dict(options or {}), self._output or Path(), xp, self._log)
        self.ctx.mesh = Mesh.of(mesh)
        self.last_error = ""  # the last traceback
        self._fields: dict[str, Field] = {}
        self._refused: dict[str, str] = {}
        self._streams: list[tuple[int, int, int]] = []  # (device type, device, stream) of this step's fields
        self._place: tuple[str, int, int, int] | None = None  # (library, device type, device, stream) of the last step
        self._embedded = False  # True inside a C solver: not even KeyboardInterrupt may leave step()
        self._started = self._finished = False
        self.stop_reason = ""  # why the solver was asked to stop; empty if it was not
        self._warned = OK
        self._times = report.Times()
        self._live = self._open_live(live)

    def _open_live(self, live: bool) -> Live | None:
        variable = os.environ.get("LAPWING_INSITU_LIVE", "")
        if not isinstance(live, bool):
            raise ValueError(f"Hub: live must be True or False, got {live!r}")
        if variable not in ("", "0", "1"):
            raise ValueError(f"Hub: LAPWING_INSITU_LIVE must be 0 or 1, got {variable!r}")
        if not (variable == "1" if variable else live):
            return None
        if self._output is None:
            if variable:  # it is set for all hubs of the process; one without a folder has nothing to show
                return None
            raise ValueError("Hub: live=True needs an output folder")
        return None if self.comm.rank else Live(self, self._output)

    @property
    def analyses(self) -> list[Analysis]:
        return [slot.analysis for slot in self._slots]

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._times.steps

    @property
    def errors(self) -> int:
        """Number of errors so far, on this rank."""
        return sum(slot.errors for slot in self._slots)

    def mesh(self, mesh: Mesh | dict[str, Any]) -> None:
        """Set the mesh that the analyses see. Call it before the first step."""
        self.ctx.mesh = Mesh.of(mesh)

    # ------------------------------------------------------------------------------------------------------------ a step

    def step(self, step: int, time: float = 0.0, /, **fields: Any) -> int:
        """Give the hub the fields of a step, by name, and run the analyses that are due.

        Returns
        -------
        int
            0: no errors. 1: an analysis has failed, now or earlier. 2: the solver should stop; ``stop_reason`` says why.
        """
        current = self._fields
        for name, array in fields.items():
            current[name] = Field(name, array, writable=self._writable, library=self._xp, debug=self._debug)
        return self._run(step, time)

    def _run(self, step: int, time: float) -> int:
        begin = clock.perf_counter()
        if not self._started:
            self._start()
        if self._finished:
            raise RuntimeError("Hub: the run is finished\nhint: create a new Hub for a new run")
        times = self._times
        if times.last_end:
            times.solver.add(begin - times.last_end)
        ctx = self.ctx
        ctx.step = step
        ctx.time = time
        ctx.fields = fields = self._fields
        try:
            if step % self._every == 0:
                if self._streams:
                    self._on_stream(step)
                elif self._xp == "jax":
                    with wide():
                        self._analyse(step)
                else:
                    self._analyse(step)
        finally:
            for field in fields.values():
                field._end(step)
            self._fields = {}
            self._refused.clear()
            self._streams.clear()
            ctx.fields = {}
            times.steps += 1
            times.last_end = end = clock.perf_counter()
            times.analysis.add(end - begin)
        return STOP if self.stop_reason else self._warned

    def _on_stream(self, step: int) -> None:
        """Run the analyses in the order of the solver's stream."""
        with contextlib.ExitStack() as stack:
            try:
                self._enter_stream(stack)
            except Exception as error:
                self._refuse_devices(error)
            self._analyse(step)
        if len(self._streams) > 1:
            synchronise(*self._streams[0])

    def _enter_stream(self, stack: contextlib.ExitStack) -> None:
        first, *others = self._streams
        library = self._xp
        if library == "auto":
            library = next((choose_library(f.memory) for f in self._fields.values() if f.memory.device[0] == first[0]), "numpy")
        # the host must wait where it reads the fields itself, and where several streams would have to wait for each other
        for place in self._streams if others or library == "numpy" else ():
            synchronise(*place)
        # work of earlier steps on another stream must be complete before this step uses its results
        if self._place is not None and self._place != (library, *first):
            synchronise(self._place[1], self._place[2], None)
        stack.enter_context(stream_context(library, first[1], first[2]))
        self.ctx.stream = first[2]
        self._place = (library, *first)

    def _refuse_devices(self, error: BaseException) -> None:
        """Leave out the fields on a device that cannot be used; the analyses of the other fields still run."""
        for name in [name for name, field in self._fields.items() if field.memory.device[0] not in HOST]:
            self._refused[name] = f"field {name!r} cannot be reached on its device: {words(error)}"
            del self._fields[name]
        self._streams.clear()

    def _settled(self) -> Any:
        """Wait for the device, then use its default stream: outside of a step the solver's stream may no longer exist."""
        if self._place is None:
            return contextlib.nullcontext()
        library, kind, device, _ = self._place
        synchronise(kind, device, None)
        self._place = (library, kind, device, 0)
        return stream_context(library, device, 0)

    def _analyse(self, step: int) -> None:
        ctx = self.ctx
        agree = False
        for slot in self._slots:
            if step % slot.every:
                continue
            slot.calls += 1
            if slot.collective and slot.calls % slot.collective_every == 0:
                agree = True
            if slot.disabled:
                continue
            begin = clock.perf_counter()
            try:
                slot.analysis.on_step(ctx, *self._arrays(slot))
            except BaseException as error:
                self._caught(slot, error)
            slot.seconds += clock.perf_counter() - begin
        if ctx._stop is not None:
            self._take_stop()
        if agree or (self.comm.size > 1 and self.on_error == "stop"):
            self._together(step)
        if self._live is not None and self._live.wanted:
            self._live.take(self)

    def _arrays(self, slot: _Slot) -> list[Any]:
        fields = self._fields
        try:
            names = fields if slot.fields is None else slot.fields
            return [fields[name].array() for name in names]
        except KeyError:
            missing = next(name for name in slot.fields or () if name not in fields)
            reason = self._refused.get(missing)
            if reason:
                raise ValueError(reason) from None
            passed = ", ".join(fields) or "none"
            raise ValueError(
                f"{slot.name} needs the field {missing!r}; at step {self.ctx.step} the solver passed: {passed}"
            ) from None

    # ---------------------------------------------------------------------------------------------------------- together

    def _together(self, step: int) -> None:
        """Run the collective parts of the analyses that failed on no rank."""
        self._agree()
        for slot in self._collective:
            if step % slot.every or slot.calls % slot.collective_every or slot.disabled:
                continue
            skipped = slot.failed and self.comm.size > 1
            self._call(slot, slot.analysis.on_skipped if skipped else slot.analysis.on_collective, together=True)
            slot.failed = False
        self._take_stop()

    def _call(self, slot: _Slot, method: Callable[[Context], None], together: bool = False) -> None:
        """Call a method of an analysis: its time is counted, and an error is handled by the policy."""
        begin = clock.perf_counter()
        try:
            method(self.ctx)
        except BaseException as error:
            self._caught(slot, error, together)
        slot.seconds += clock.perf_counter() - begin

    def _agree(self) -> None:
        """Find out, in one all-reduce, which analyses failed on any rank and whether a rank asked to stop."""
        if self.comm.size == 1:
            return
        flags = np.array([*(s.failed for s in self._collective), bool(self.stop_reason)], np.int32)
        maxima = self.comm.maximum(flags)
        for slot, here, anywhere in zip(self._collective, flags, maxima, strict=False):
            if anywhere and not here:
                slot.failed = True
                if self.on_error == "disable" and not slot.disabled:
                    slot.disabled = "it failed on another rank"
                    self._warned = WARN
                    self._log(f"{slot.name} is switched off: it failed on another rank")
        if maxima[-1]:
            self._asked_to_stop("another rank asked to stop")

    # ------------------------------------------------------------------------------------------------------------ errors

    def _caught(self, slot: _Slot, error: BaseException, together: bool = False) -> None:
        if isinstance(error, StopRun):
            self._asked_to_stop(words(error) or f"requested by {slot.name}")
            return
        if isinstance(error, KeyboardInterrupt) and not self._embedded:
            raise error
        slot.errors += 1
        slot.failed = True
        self._warned = WARN
        self.last_error = "".join(traceback.format_exception(error))
        kind = type(error).__name__
        text = words(error)
        what = f"step {self.ctx.step}: {slot.name} raised {kind}: {text}"
        if self.on_error == "abort" or (together and self.comm.size > 1 and not isinstance(error, CollectiveError)):
            # in the collective part the other ranks may be waiting for this one: only an abort is safe
            self._log(f"{what}\n{self.last_error}the run is aborted", shown=True)
            self._close_live("failed", f"{what}; the run is aborted")
            self.comm.abort(1)
        elif self.on_error == "disable":
            slot.disabled = f"{kind}: {text}"
            self._log(f"{what}\n{self.last_error}{slot.name} is switched off; the simulation goes on")
        elif self.on_error == "stop":
            self._log(f"{what}\n{self.last_error}")
            self._asked_to_stop(f"{slot.name} failed: {text}")
        else:
            self._log(f"{what}\n{self.last_error}" if slot.errors == 1 else what, to_stderr=slot.errors <= _SHOWN)

    def _asked_to_stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = reason
            self._log(f"step {self.ctx.step}: stop ({reason})", to_stderr=self.comm.rank == 0)

    def _take_stop(self) -> None:
        """An analysis may have called ``ctx.stop``."""
        reason, self.ctx._stop = self.ctx._stop, None
        if reason is not None:
            self._asked_to_stop(reason)

    # --------------------------------------------------------------------------------------------------- beginning and end

    def _start(self) -> None:
        self._started = True
        if self._output is not None:
            try:
                self._output.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # analyses that write files will fail themselves, the others need no folder
                self._log(f"the folder {self._output} cannot be created: {error}", shown=True)
        if self._live is not None:
            self._live.start()
        for slot in self._slots:
            self._call(slot, slot.analysis.on_start)

    def finish(self) -> int:
        """Finish the analyses, print the summary, close the log. Later calls do nothing."""
        return self._finish(together=True)

    def _finish(self, together: bool, failure: str = "") -> int:
        if self._finished:
            return self._warned
        if not self._started:
            self._start()
        self._finished = True
        together = together and self.comm.usable
        try:
            if together and self._collective:
                self._agree()
            with self._settled():
                self._finish_all(together)
                state = "failed" if failure else "stopped" if self.stop_reason else "finished"
                self._close_live(state, failure or self.stop_reason)
        except BaseException as error:
            self._close_live("failed", f"{type(error).__name__}: {words(error)}")
            raise
        self._log(self.summary(), to_stderr=self.comm.rank == 0 or self.errors > 0)
        if together:
            self.comm.close()
        return self._warned

    def _finish_all(self, together: bool) -> None:
        for slot in self._slots:
            if slot.collective and self.comm.size > 1 and slot.failed and not slot.disabled:
                slot.disabled = "it failed on a rank, so the ranks have no common result"
                self._warned = WARN
                self._log(f"{slot.name} is not finished: {slot.disabled}")
            if slot.disabled or (slot.collective and self.comm.size > 1 and not together):
                continue
            self._call(slot, slot.analysis.on_finish, together=slot.collective)

    def _close_live(self, state: str, message: str) -> None:
        if self._live is not None:
            self._live.close(self, state, message)

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # if the solver failed on this rank, the other ranks are still computing: no collective work
        failure = "" if error is None else f"the solver raised {type(error).__name__}: {words(error)}"
        self._finish(together=error is None or self.comm.size == 1, failure=failure)

    def summary(self) -> str:
        """A text that says what ran, how long it took and what failed."""
        return report.summary(self._slots, self._times)

    def status(self) -> dict[str, Any]:
        """Figures for a live view, as plain Python values. Cheap, and safe to call from another thread."""
        run = {
            "step": self.ctx.step,
            "time": self.ctx.time,
            "rank": self.comm.rank,
            "size": self.comm.size,
            "last_error": self.last_error,
            "stop": self.stop_reason,
            "finished": self._finished,
        }
        return report.status(self._slots, self._times) | run

    # ----------------------------------------------------------------------------------------------------------- restart

    def checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Write the state of every analysis to ``PATH.rankR.npz``, one file per rank, and return the name of this rank's file.

        The file gets its name only when it is complete. Unfinished files of killed runs in the same folder are removed.
        """
        if not self._started:
            self._start()
        with self._settled():
            states = [self._state_of(slot) for slot in self._slots]
            return checkpoint.save(path, self.comm, self._header(), states)

    def _state_of(self, slot: _Slot) -> Any:
        """The state of an analysis; None if it is switched off or its ``state`` fails."""
        if slot.disabled:
            return None
        try:
            return slot.analysis.state()
        except BaseException as error:
            self._caught(slot, error)
            return None

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Load the state that `checkpoint` wrote; the run then continues bit for bit as if it had not been interrupted."""
        if not self._started:
            self._start()
        header, states = checkpoint.load(path, self.comm, self._header())
        before = [self._state_of(slot) for slot in self._slots]
        try:
            for slot, state in zip(self._slots, states, strict=True):
                if state is not None:
                    slot.analysis.restore(state)
        except BaseException as error:  # restore all analyses, or none
            name = slot.name
            for slot, state in zip(self._slots, before, strict=True):
                if state is not None:
                    slot.analysis.restore(state)
            if isinstance(error, AttributeError | LookupError | TypeError | ArithmeticError):
                message = f"restore: the state of {name} in {path} is damaged ({type(error).__name__}: {words(error)})"
                raise checkpoint.CheckpointError(message) from error
            raise
        for slot, saved, state in zip(self._slots, header["analyses"], states, strict=True):
            slot.calls, slot.errors, slot.disabled = saved["calls"], saved["errors"], saved["disabled"]
            if state is None and not slot.disabled:
                slot.disabled = "the checkpoint has no state for it"
        self._warned = WARN if any(slot.disabled or slot.errors for slot in self._slots) else self._warned
        self._times = report.Times(steps=header["steps"], resumed=header["steps"])
        self.ctx.step, self.ctx.time = header["step"], header["time"]

    def _header(self) -> dict[str, Any]:
        return {
            "step": int(self.ctx.step),
            "time": float(self.ctx.time),
            "steps": self.steps,
            "rank": self.comm.rank,
            "size": self.comm.size,
            "analyses": [
                {name: getattr(s, name) for name in ("name", "every", "calls", "errors", "disabled")}
                | {"class": type(s.analysis).__qualname__, "fields": None if s.fields is None else list(s.fields)}
                for s in self._slots
            ],
        }

    # --------------------------------------------------------------------------------------------------------------- log

    def _log(self, text: str, shown: bool = False, to_stderr: bool = True) -> None:
        if shown or (to_stderr and not self._quiet):
            tag = f"[insitu {self.comm.rank}] " if self.comm.size > 1 else "[insitu] "
            # a closed terminal must not end the run
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write("".join(f"{tag}{line}\n" for line in text.splitlines()))
                sys.stderr.flush()
        if self._output is None:
            return
        try:
            self._output.mkdir(parents=True, exist_ok=True)
            # opened for each message: messages are few, and a killed run loses none
            with open(self._output / f"insitu-rank{self.comm.rank}.log", "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{clock.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
        except OSError:
            pass  # a full disk must not end the run


def _slots(analyses: Iterable[Analysis | Callable[..., Any]]) -> list[_Slot]:
    slots: list[_Slot] = []
    counts: dict[str, int] = {}
    for analysis in analyses:
        if isinstance(analysis, type):
            raise TypeError(f"Hub: {analysis.__name__} is a class\nhint: pass an object, {analysis.__name__}(...)")
        if not isinstance(analysis, Analysis):
            if not callable(analysis):
                raise TypeError(f"Hub: {analysis!r} is not an analysis")
            analysis = on_step(analysis)
            assert isinstance(analysis, Analysis)
        name = analysis.name or type(analysis).__name__
        counts[name] = counts.get(name, 0) + 1
        name = name if counts[name] == 1 else f"{name} {counts[name]}"
        every, together = (_positive(getattr(analysis, x), f"{name}.{x}") for x in ("every", "collective_every"))
        fields = None if analysis.fields is None else tuple(analysis.fields)
        slots.append(_Slot(analysis, name, every, fields, bool(analysis.collective), together))
    return slots


def _positive(value: int, what: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a positive whole number, got {value!r}")
    return value
