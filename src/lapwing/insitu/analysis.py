"""What an analysis is: a class with a few methods, or a function with a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Analysis", "CollectiveError", "Context", "Sketch", "StopRun", "on_step"]

OK, WARN, STOP, ERR = 0, 1, 2, -1  # what the solver is told after a step
AT_END = 1 << 62  # for collective_every: the ranks meet when the run ends


class StopRun(Exception):
    """Raised by an analysis to ask the solver to stop after this step. It is not counted as an error."""


class CollectiveError(RuntimeError):
    """An error that every rank raises alike, at the same place.

    Raised inside ``on_collective`` it is treated by the error policy. Any other exception there may have left the other ranks
    waiting, so that with more than one rank the only safe answer to it is to abort the run.
    """


@dataclass(frozen=True)
class Sketch:
    """Small arrays that the live view draws: lines (shape (m, points)) or images (shape (m, rows, columns)).

    Parameters
    ----------
    title : str
    labels : tuple of str
        One for each line or image.
    values : array
        Of any library and device; at most 16384 numbers.
    extent : (float, float)
        Coordinates of the first and last point of a line.
    free_sign : bool
        The sign means nothing: each is drawn with the first of its largest values positive, so that it does not jump.
    """

    title: str
    labels: tuple[str, ...]
    values: Any
    extent: tuple[float, float] = (0.0, 1.0)
    free_sign: bool = False


class Context:
    """What an analysis may ask about the run.

    Attributes
    ----------
    step, time : int, float
        Of the step in progress.
    fields : dict of str to Field
        The fields of this step: shape, dtype, device, and the array on request. Not valid after the step.
    mesh : Mesh or None
        What the solver told about its mesh.
    comm : Alone or Ranks
        Sums and maxima over the ranks of the run (`lapwing.insitu.solver.parallel`); ``comm.mpi`` is the mpi4py communicator.
    rank, size : int
    options : dict
        Options the hub itself does not know, as the user gave them.
    output : pathlib.Path
        Folder for files. It exists.
    xp : str
        The array library asked for: "auto", "numpy", "cupy", "torch" or "jax".
    stream : int
        The solver's CUDA stream of this step's fields, 0 on a CPU.
    """

    __slots__ = ("_log", "_stop", "comm", "fields", "mesh", "options", "output", "rank", "size", "step", "stream", "time", "xp")

    def __init__(self, comm: Any, options: dict[str, Any], output: Path, xp: str, log: Callable[[str], None]) -> None:
        self.step = -1
        self.time = 0.0
        self.fields: dict[str, Any] = {}
        self.mesh: Any = None
        self.comm = comm
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.options = options
        self.output = output
        self.xp = xp
        self.stream = 0
        self._log = log
        self._stop: str | None = None

    def log(self, text: str) -> None:
        """One line for the log file of this rank, shown on stderr too unless the hub is quiet."""
        self._log(text)

    def stop(self, reason: str = "asked by an analysis") -> None:
        """Ask the solver to stop after this step; the other analyses of the step still run."""
        self._stop = reason


class Analysis:
    """Base of every analysis. Override what is needed; every method may be left out.

    Attributes
    ----------
    fields : tuple of str, or None
        Names of the fields wanted; ``on_step`` gets their arrays in this order. None means every field of the step.
    every : int
        Run at steps whose number is a multiple of this.
    collective : bool
        True if the analysis talks to other ranks. It is worked out from the class: overriding ``on_collective`` makes it so.
    collective_every : int
        Call ``on_collective`` after every so many calls of ``on_step``.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> class Largest(insitu.Analysis):
    ...     fields = ("u",)
    ...     def on_start(self, ctx):
    ...         self.value = -np.inf
    ...     def on_step(self, ctx, u):
    ...         self.value = max(self.value, float(u.max()))
    >>> largest = Largest()
    >>> with insitu.Hub([largest], output=None, quiet=True) as hub:
    ...     for n in range(3):
    ...         status = hub.step(n, 0.1 * n, u=np.arange(4.0) * n)
    >>> largest.value
    6.0
    """

    fields: tuple[str, ...] | None = ()
    every: int = 1
    collective: bool = False
    collective_every: int = 1
    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "collective" not in cls.__dict__ and "on_collective" in cls.__dict__:
            cls.collective = True

    def on_start(self, ctx: Context) -> None:
        """Once, before the first step; the mesh is known."""

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        """At every step that is due. Local to the rank: do not communicate here."""

    def on_collective(self, ctx: Context) -> None:
        """After ``on_step``, on all ranks, and only if none of them failed. Communicate here."""

    def on_skipped(self, ctx: Context) -> None:
        """Instead of ``on_collective`` when some rank failed: forget what was gathered since the last one."""

    def on_finish(self, ctx: Context) -> None:
        """Once, at the end. If the analysis is collective: on all ranks, and only if none of them failed."""

    def state(self) -> dict[str, Any]:
        """What a restart needs: numbers, strings, NumPy arrays, and lists and dicts of them."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up the state that ``state`` gave."""

    def status(self) -> dict[str, Any]:
        """A few figures for the live view; plain Python values."""
        return {}

    def sketch(self) -> list[Sketch]:
        """Small arrays for pictures in the live view; called now and then after a step, and cheap."""
        return []

    def summary(self) -> str:
        """One line for the final summary, or nothing."""
        return ""


class Function(Analysis):
    """An analysis made of one function ``f(ctx, *arrays)``."""

    def __init__(self, function: Callable[..., Any], *, every: int, fields: tuple[str, ...] | None) -> None:
        self.function = function
        self.every = every
        self.fields = fields
        self.name = getattr(function, "__name__", "function")
        self.__doc__ = function.__doc__

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        self.function(ctx, *arrays)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


# lists that gather decorated functions; the innermost one gets them
_collecting: list[list[Analysis]] = []


def on_step(
    function: Callable[..., Any] | None = None, /, *, every: int = 1, fields: str | list[str] | tuple[str, ...] | None = None
) -> Any:
    """Make an analysis of a function ``f(ctx, u, v)``.

    Parameters
    ----------
    every : int
        Run at steps whose number is a multiple of this.
    fields : names, optional
        Fields to hand over. Left out, they are the names of the function's arguments after the first.

    Returns
    -------
    Analysis
        For `Hub`; it can still be called like the function. In a script run by the C library it need not be listed.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> seen = []
    >>> @insitu.on_step(every=2)
    ... def total(ctx, u):
    ...     seen.append((ctx.step, float(u.sum())))
    >>> with insitu.Hub([total], output=None, quiet=True) as hub:
    ...     for n in range(4):
    ...         status = hub.step(n, 0.1 * n, u=np.full(3, n))
    >>> seen
    [(0, 0.0), (2, 6.0)]
    """

    def decorate(f: Callable[..., Any]) -> Analysis:
        names = tuple(list(inspect.signature(f).parameters)[1:]) if fields is None else as_names(fields)
        made = Function(f, every=every, fields=names)
        if _collecting:
            _collecting[-1].append(made)
        return made

    return decorate if function is None else decorate(function)


@contextmanager
def collect() -> Iterator[list[Analysis]]:
    """Gather the functions decorated while the block runs."""
    found: list[Analysis] = []
    _collecting.append(found)
    try:
        yield found
    finally:
        _collecting.pop()


def as_names(fields: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Field names as a tuple of strings."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"insitu: a field is named by a string, got {name!r}")
    return names
