"""The functions that the C library calls. None of them raises: a failure is a status, and `Session.error` has the reason."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...core.memory import CPU, memory_of_capsule
from ..analysis import ERR, OK, Analysis, collect
from .field import Field
from .hub import POLICIES, Hub
from .parallel import Alone, Ranks, from_fortran
from .report import words

_CACHED = 64  # fields kept with their arrays: a solver with two buffers passes the same pointers again
_HUB_OPTIONS = ("on_error", "output", "xp", "every", "quiet", "debug", "live")
_sessions = 0


def start(script: str, options_json: str = "{}", comm_f: int = -1) -> Session:
    """Open a session: load the script and build its analyses.

    Parameters
    ----------
    script : str
        Path of a Python file, or "module:name". The file defines ``analyses()`` or a list ``analyses``, or decorates functions
        with ``insitu.on_step``.
    options_json : str
        A JSON object: on_error, output, xp, every, quiet, debug, live; all other options go to the analyses (``ctx.options``).
    comm_f : int
        Fortran handle of the MPI communicator, or -1.

    Returns
    -------
    Session
        This function never raises. A session that could not be opened answers every call with -1; ``error()`` says why.
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
            raise ValueError(f"insitu_init: the options must be a JSON object, got {options_json!r}")
        policy = os.environ.get("LAPWING_INSITU_ON_ERROR") or options.get("on_error", "disable")
        if policy not in POLICIES:
            raise ValueError(f"insitu_init: on_error must be one of {', '.join(POLICIES)}, got {policy!r}")
        session = _open(script, options | {"on_error": policy}, comm)
    except BaseException:
        problem = traceback.format_exc()
    # if one rank cannot start, none starts: the others would wait for it later
    failed = bool(problem)
    if comm is not None and comm.size > 1:
        failed = bool(comm.maximum(np.array([failed], np.int32))[0])
    if failed:
        session = Session(None)
        session._error = problem or "insitu_init: the analyses could not be started on another rank"
        if problem:
            print(
                f"[insitu] the analyses could not be started; the simulation goes on without them\n{problem}", file=sys.stderr
            )
        if policy == "abort":
            (comm or Alone()).abort(1)
    return session


def _open(script: str, options: dict[str, Any], comm: Alone | Ranks) -> Session:
    hub_options = {name: options.pop(name) for name in _HUB_OPTIONS if name in options}
    if not script:
        raise ValueError("insitu_init: no script was named\nhint: pass its path to insitu_init, or set LAPWING_INSITU_SCRIPT")
    folder = None
    with collect() as decorated:
        if not Path(script).exists() and ":" in script:
            analyses = _from_module(script)
        else:
            # modules in the script's folder can be imported, as with "python script.py"
            folder = str(Path(script).resolve().parent)
            if folder in sys.path:
                folder = None
            else:
                sys.path.append(folder)
            analyses = _from_script(script, decorated)
    hub = Hub(analyses, comm=comm, options=options, **hub_options)
    hub._embedded = True
    return Session(hub, folder=folder)


def _from_script(script: str, decorated: list[Analysis]) -> list[Any]:
    global _sessions
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(f"insitu_init: there is no script {script!r} (the current folder is {Path.cwd()})")
    _sessions += 1
    name = f"_lapwing_insitu_script_{_sessions}"
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
        listed = getattr(module, "analyses", None)
        analyses = list(listed()) if callable(listed) else list(listed or ())
    except BaseException:
        del sys.modules[name]
        raise
    analyses += [a for a in decorated if not any(a is b for b in analyses)]
    if not analyses:
        raise ValueError(
            f"insitu_init: {script} has no analyses"
            "\nhint: define analyses() that returns a list, or decorate a function with @insitu.on_step"
        )
    return analyses


def _from_module(script: str) -> list[Any]:
    module, _, name = script.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(value, Analysis):
        return [value]
    return list(value() if callable(value) else value)


class Session:
    """One connection between a solver and its analyses."""

    def __init__(self, hub: Hub | None, *, off: bool = False, folder: str | None = None) -> None:
        self.hub = hub
        self._dead = OK if off else ERR  # the answer of a session without a hub
        self._folder = folder
        self._error = ""
        self._known: dict[Any, Field] = {}

    @property
    def alive(self) -> bool:
        return self.hub is not None

    def field(self, name: str, *array: Any) -> int:
        """Describe a field of the next step.

        ``array`` is (pointer, shape, strides, code, bits, device_type, device_id, stream, writable); strides are in elements,
        None means row-major.
        """
        hub = self.hub
        if hub is None:
            return OK
        try:
            key = (name, *array)
            field = self._known.get(key)
            if field is None:
                field = Field.described(name, array, library=hub._xp, debug=hub._debug)
                if len(self._known) >= _CACHED:
                    self._known.clear()
                self._known[key] = field
            field._valid = True
            hub._fields[name] = field
            if array[5] != CPU and array[5:8] not in hub._streams:
                hub._streams.append(array[5:8])
        except BaseException as error:
            return self._refuse(name, error)
        return OK

    def dlpack(self, name: str, capsule: Any) -> int:
        """Pass a field as a DLPack capsule. It is released after the step."""
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
        """Set the mesh, see `lapwing.insitu.Mesh`. An array is a tuple of what `field` takes after the name."""
        return OK if self.hub is None else self._guarded(lambda hub: hub.mesh(spec))

    def step(self, step: int, time: float) -> int:
        """Run the analyses that are due: 0 no errors, 1 an analysis has failed, 2 please stop, -1 the session is dead."""
        hub = self.hub  # not through _guarded: this is called at every step
        if hub is None:
            return self._dead
        try:
            return hub._run(step, time)
        except BaseException:
            return self._failed()

    def checkpoint(self, path: str) -> int:
        return self._guarded(lambda hub: hub.checkpoint(path))

    def restore(self, path: str) -> int:
        return self._guarded(lambda hub: hub.restore(path))

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

    def _guarded(self, work: Callable[[Hub], Any]) -> int:
        """OK, or ERR if ``work`` raises."""
        if self.hub is None:
            return self._dead
        try:
            work(self.hub)
        except BaseException:
            return self._failed()
        return OK

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
