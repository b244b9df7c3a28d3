"""What the C library calls. Nothing here raises: a failure is a status, and `Session.error` tells why."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import ERR, OK, Analysis, collect
from ..dlpack import memory_of_capsule
from ..memory import CPU, Memory
from .field import Field
from .hub import POLICIES, Hub
from .parallel import Alone, Ranks, from_fortran
from .report import words

__all__ = ["Session", "start"]

_CACHED = 64  # fields remembered with their arrays: a solver with two buffers comes back to the same pointers
_HUB_OPTIONS = ("on_error", "output", "xp", "every", "quiet", "debug", "live")
_sessions = 0


def start(script: str, options_json: str = "{}", comm_f: int = -1) -> Session:
    """Open a session: load the script, build its analyses.

    Parameters
    ----------
    script : str
        Path of a Python file, or "module:name". The file defines ``analyses()`` or a list ``analyses``, or decorates functions
        with ``insitu.on_step``.
    options_json : str
        A JSON object: on_error, output, xp, every, quiet, debug, live; everything else is for the analyses (``ctx.options``).
    comm_f : int
        Fortran handle of the MPI communicator, or -1.

    Returns
    -------
    Session
        Never an exception. A session that could not be opened answers every call with -1 and tells the reason in ``error()``.
    """
    if os.environ.get("LAPWING_INSITU") == "0":
        return Session(None, off=True)
    comm: Alone | Ranks | None = None
    session, problem = Session(None), ""
    policy = ""
    try:
        comm = from_fortran(comm_f)
        script = os.environ.get("LAPWING_INSITU_SCRIPT") or script or ""
        options = json.loads(options_json or "{}")
        if not isinstance(options, dict):
            raise ValueError(f"insitu: the options must be a JSON object, got {options_json!r}")
        policy = os.environ.get("LAPWING_INSITU_ON_ERROR") or options.get("on_error", "disable")
        if policy not in POLICIES:
            raise ValueError(f"insitu: on_error must be one of {', '.join(POLICIES)}, got {policy!r}")
        session = _open(script, options | {"on_error": policy}, comm)
    except BaseException:
        problem = traceback.format_exc()
    # a rank that could not start must not leave the others waiting later
    failed = bool(problem)
    if comm is not None and comm.size > 1:
        failed = bool(comm.maximum(np.array([failed], np.int32))[0])
    if failed:
        session = Session(None)
        session._error = problem or "insitu: the analyses could not be started on another rank"
        if problem:
            print(
                f"[insitu] the analyses could not be started; the simulation goes on without them\n{problem}", file=sys.stderr
            )
        if policy == "abort":
            (comm or Alone()).abort(1)
    return session


def _open(script: str, options: dict[str, Any], comm: Alone | Ranks) -> Session:
    hub_options = {name: options.pop(name) for name in _HUB_OPTIONS if name in options}
    folder = None
    if script and not Path(script).exists() and ":" in script:
        with collect():
            found = _of_module(script)
    elif not script:
        raise ValueError("insitu: no script was named\nhint: give its path to insitu_init, or set LAPWING_INSITU_SCRIPT")
    else:
        # modules beside the script are found, as with "python script.py"
        folder = str(Path(script).resolve().parent)
        if folder in sys.path:
            folder = None
        else:
            sys.path.append(folder)
        with collect() as decorated:
            found = _of_script(script, decorated)
    hub = Hub(found, comm=comm, options=options, **hub_options)
    hub._embedded = True
    return Session(hub, folder=folder)


def _of_script(script: str, decorated: list[Analysis]) -> list[Any]:
    global _sessions
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(f"insitu: there is no script {script!r} (looked from {Path.cwd()})")
    _sessions += 1
    name = f"_lapwing_insitu_script_{_sessions}"
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and the like look for it
    try:
        spec.loader.exec_module(module)
        listed = getattr(module, "analyses", None)
        found = list(listed()) if callable(listed) else list(listed or ())
    except BaseException:
        del sys.modules[name]
        raise
    found += [a for a in decorated if not any(a is b for b in found)]
    if not found:
        raise ValueError(
            f"insitu: {script} has no analyses"
            "\nhint: define analyses() returning a list, or decorate a function with @insitu.on_step"
        )
    return found


def _of_module(script: str) -> list[Any]:
    module, _, name = script.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return list(value()) if callable(value) and not isinstance(value, Analysis) else _as_list(value)


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, Analysis) else list(value)


class Session:
    """One coupling of a solver with its analyses."""

    def __init__(self, hub: Hub | None, *, off: bool = False, folder: str | None = None) -> None:
        self.hub = hub
        self._dead = OK if off else ERR  # what a session without a hub answers
        self._folder = folder
        self._error = ""
        self._known: dict[Any, Field] = {}

    @property
    def alive(self) -> bool:
        return self.hub is not None

    def field(
        self,
        name: str,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        code: str,
        bits: int,
        device_type: int,
        device_id: int,
        stream: int,
        writable: bool,
    ) -> int:
        """Describe a field of the next step; strides are in elements, None means row-major."""
        hub = self.hub
        if hub is None:
            return OK
        try:
            key = (name, pointer, shape, strides, code, bits, device_type, device_id, stream, writable)
            field = self._known.get(key)
            if field is None:
                memory = Memory.describe(name, pointer, shape, strides, code, bits, device_type, device_id, writable)
                field = Field(name, memory=memory, stream=stream, writable=writable, library=hub._xp, debug=hub._debug)
                if len(self._known) >= _CACHED:
                    self._known.clear()
                self._known[key] = field
            field._valid = True
            hub._fields[name] = field
            if device_type != CPU:
                place = (device_type, device_id, stream)
                if place not in hub._streams:
                    hub._streams.append(place)
        except BaseException as error:
            return self._refuse(name, error)
        return OK

    def dlpack(self, name: str, capsule: Any) -> int:
        """A field as a DLPack capsule. It is given back after the step."""
        hub = self.hub
        if hub is None:
            return OK
        try:
            memory = memory_of_capsule(name, capsule)
            hub._fields[name] = Field(name, memory=memory, writable=memory.writable, library=hub._xp, debug=hub._debug)
            if memory.device[0] != CPU:
                hub._streams.append((*memory.device, 0))
        except BaseException as error:
            return self._refuse(name, error)
        return OK

    def mesh(self, spec: dict[str, Any]) -> int:
        """See `lapwing.insitu.Mesh`. An array is a tuple of what `field` takes after the name."""
        if self.hub is None:
            return OK
        try:
            self.hub.mesh(spec)
        except BaseException:
            return self._failed()
        return OK

    def step(self, step: int, time: float) -> int:
        """Run what is due: 0 well, 1 an analysis has failed, 2 please stop, -1 the session is dead."""
        if self.hub is None:
            return self._dead
        try:
            return self.hub._run(step, time)
        except BaseException:
            return self._failed()

    def checkpoint(self, path: str) -> int:
        if self.hub is None:
            return self._dead
        try:
            self.hub.checkpoint(path)
            return OK
        except BaseException:
            return self._failed()

    def restore(self, path: str) -> int:
        if self.hub is None:
            return self._dead
        try:
            self.hub.restore(path)
            return OK
        except BaseException:
            return self._failed()

    def finalize(self) -> int:
        """Finish the analyses and print the summary. The session is dead afterwards, but `error` still answers."""
        if self.hub is None:
            return self._dead
        hub, self.hub = self.hub, None
        self._known.clear()
        try:
            status = hub.finish()
            self._error = hub.last_error or self._error
        except BaseException:
            status = self._failed()
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        return status

    def error(self) -> str:
        """The last traceback, or an empty string."""
        return (self.hub.last_error if self.hub is not None else "") or self._error

    def _refuse(self, name: str, error: BaseException) -> int:
        self._error = traceback.format_exc()
        if self.hub is not None:
            self.hub.last_error = self._error
            self.hub._fields.pop(name, None)
            self.hub._refused[name] = words(error)
        return ERR

    def _failed(self) -> int:
        self._error = traceback.format_exc()
        if self.hub is not None:
            self.hub.last_error = self._error
        print(f"[insitu] {self._error}", end="", file=sys.stderr)
        return ERR
