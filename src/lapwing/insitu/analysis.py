"""The contract of an analysis: a class with a few methods, or a function with a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OK, WARN, STOP, ERR = 0, 1, 2, -1  # status of a step
AT_END = 1 << 62  # for collective_every: the ranks communicate only when the run ends


class StopRun(Exception):
    """Raise this in an analysis to ask the solver to stop after this step. It does not count as an error."""


class CollectiveError(RuntimeError):
    """An error that every rank raises at the same place.

    Inside ``on_collective`` the error policy handles it. Any other exception there may have left the other ranks waiting, so
    with more than one rank it aborts the run.
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
        An array of any library, on any device; at most 16384 numbers.
    extent : (float, float)
        Coordinates of the first and last point of a line.
    free_sign : bool
        Whether the sign has no meaning. If so, each line or image is drawn with the first of its largest values positive, so
        that the picture does not flip during the run.
    aspect : float
        Height of an image divided by its width.
    """

    title: str
    labels: tuple[str, ...]
    values: Any
    extent: tuple[float, float] = (0.0, 1.0)
    free_sign: bool = False
    aspect: float = 1.0


class Context:
    """The state of the run, as an analysis sees it.

    Attributes
    ----------
    step, time : int, float
        Number and time of the current step.
    fields : dict of str to Field
        The fields of this step: shape, dtype, device, and the array on request. Not valid after the step.
    mesh : Mesh or None
        The mesh, if the solver described it.
    comm : Alone or Ranks
        Sums and maxima over the ranks of the run (`lapwing.insitu.solver.parallel`); ``comm.mpi`` is the mpi4py communicator.
    rank, size : int
        Number of this rank, and number of ranks.
    options : dict
        The user's options that are not options of the hub.
    output : pathlib.Path
        Folder for files. It exists.
    xp : str
        The requested array library: "auto", "numpy", "cupy", "torch" or "jax".
    stream : int
        The solver's CUDA stream for this step's fields, 0 on a CPU.
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
        """Write a line to the log file of this rank, and to stderr unless the hub is quiet."""
        self._log(text)

    def stop(self, reason: str = "requested by an analysis") -> None:
        """Ask the solver to stop after this step; the other analyses of the step still run."""
        self._stop = reason


class Analysis:
    """Base class of every analysis. Override the methods you need; none is required.

    Attributes
    ----------
    fields : tuple of str, or None
        Names of the fields that ``on_step`` receives, in this order. None means every field of the step.
    every : int
        Run at steps whose number is a multiple of this.
    collective : bool
        Whether the analysis communicates with other ranks. A class that overrides ``on_collective`` is collective.
    collective_every : int
        Number of ``on_step`` calls between two calls of ``on_collective``.

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
        """Called once, before the first step. The mesh is known."""

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        """Called at every step that is due. It is local to the rank: do not communicate here."""

    def on_collective(self, ctx: Context) -> None:
        """Called after ``on_step`` on all ranks, if no rank failed. Communicate here."""

    def on_skipped(self, ctx: Context) -> None:
        """Called instead of ``on_collective`` if a rank failed: discard what was collected since the last call."""

    def on_finish(self, ctx: Context) -> None:
        """Called once, at the end. A collective analysis: on all ranks, and only if no rank failed."""

    def state(self) -> dict[str, Any]:
        """The state that a restart needs: numbers, strings, arrays, and lists and dicts of them."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Load what ``state`` returned."""

    def status(self) -> dict[str, Any]:
        """A few figures for the live view, as plain Python values."""
        return {}

    def sketch(self) -> list[Sketch]:
        """Small arrays that the live view draws. Called after some steps; it must be cheap."""
        return []

    def summary(self) -> str:
        """One line for the final summary, or an empty string."""
        return ""


class Function(Analysis):
    """An analysis that calls one function ``f(ctx, *arrays)``."""

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


# lists of decorated functions; a function is added to the innermost list
_collecting: list[list[Analysis]] = []


def on_step(
    function: Callable[..., Any] | None = None, /, *, every: int = 1, fields: str | list[str] | tuple[str, ...] | None = None
) -> Any:
    """Turn a function ``f(ctx, u, v)`` into an analysis.

    Parameters
    ----------
    every : int
        Run at steps whose number is a multiple of this.
    fields : names, optional
        Fields that the function receives. By default the names of its arguments after the first.

    Returns
    -------
    Analysis
        Pass it to `Hub`; it can still be called like the function. A script run by the C library need not list it.

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
        analysis = Function(f, every=every, fields=names)
        if _collecting:
            _collecting[-1].append(analysis)
        return analysis

    return decorate if function is None else decorate(function)


@contextmanager
def collect() -> Iterator[list[Analysis]]:
    """Collect the functions that are decorated while the block runs."""
    decorated: list[Analysis] = []
    _collecting.append(decorated)
    try:
        yield decorated
    finally:
        _collecting.pop()


def as_names(fields: str | list[str] | tuple[str, ...], example: str = "") -> tuple[str, ...]:
    """Field names as a tuple of strings; with an example of the call, at least one."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if example and not names:
        raise TypeError(f"{example.partition('(')[0]}: name at least one field, for instance {example}")
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"insitu: the name of a field must be a string, got {name!r}")
    return names


def choose_name(who: str, field: str | None, names: Iterable[str]) -> str:
    """The name of a field, the first by default; ValueError if the analysis does not have it."""
    known = list(names)
    if field is not None and field not in known:
        raise ValueError(f"{who}: no field {field!r}; the fields are {', '.join(known)}")
    return known[0] if field is None else field
