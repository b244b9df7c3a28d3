"""lapwing behind the libraries' own names: programs become faster without a change of their code.

A door replaces functions of one library by functions that ask :func:`lapwing.doors.ahead.ahead` whether lapwing is faster for
this call. If so lapwing computes it. Otherwise, and whenever lapwing fails, the library's own function is called with the same
arguments, so that errors and rare cases are the library's own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Self

__all__ = ["DOORS", "Handle", "install", "open_with"]

DOORS = ("torch", "numpy", "scipy", "jax")
Counts = dict[str, list[float]]  # for each function: calls by lapwing, calls by the library, seconds saved
OpenDoor = Callable[[Counts], Callable[[], None]]  # takes the counts to write to, returns how to close the door
_lock = threading.RLock()
_open: dict[str, tuple[Callable[[], None], Counts, int]] = {}  # how to close a door, its counts, how many handles hold it open


class Handle:
    """What :func:`install` returns: undo it, ask for a report, or use it in a ``with`` statement."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._before = {name: _copy(_open[name][1]) for name in names}
        self._after: dict[str, Counts] | None = None

    def undo(self) -> None:
        """Restore the library's own functions, unless another handle still uses the door. A second call does nothing."""
        with _lock:
            if self._after is None:
                self._after = {name: _copy(_open[name][1]) for name in self._names}
                for name in self._names:
                    _release(name)

    def report(self) -> dict[str, dict[str, float]]:
        """Calls since the installation, by function, as ``{"torch.linalg_qr": {"lapwing": 3, "own": 1, "saved": 0.02}}``.

        "lapwing" and "own" count the calls. "saved" is an estimate in seconds, from the time of lapwing's calls on the CPU
        after the first, and from how many times as fast they were measured to be (``lapwing/doors/cells.py``). Calls on a GPU
        and in JAX are not timed. Calls from several threads at once may be missing.
        """
        with _lock:
            now = self._after or {name: _open[name][1] for name in self._names}
            rows = {}
            for name, counts in now.items():
                for function, count in counts.items():
                    before = self._before[name].get(function, (0, 0, 0.0))
                    lapwing, own, seconds = (x - y for x, y in zip(count, before, strict=True))
                    if lapwing or own:
                        row = rows[f"{name}.{function}"] = {"lapwing": lapwing, "own": own}
                        if seconds > 0:
                            row["saved"] = seconds
            return dict(sorted(rows.items()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "undone" if self._after is not None else "installed"
        return f"<lapwing.install({', '.join(map(repr, self._names))}): {state}>"


def install(*names: str) -> Handle:
    """Put lapwing behind the functions of other libraries, where it is faster.

    Parameters
    ----------
    *names : {"torch", "numpy", "scipy", "jax"}
        The libraries; without a name, those of them that the program has imported.

    Returns
    -------
    Handle
        ``undo()`` restores the library's own functions, ``report()`` counts the calls. It is also a context manager.

    Raises
    ------
    ValueError
        An unknown name.
    ImportError
        The library is not installed, or too old.

    Notes
    -----
    "torch" replaces kernels below torch's dispatcher, for the whole process: torch's own derivatives, vmap and compiler stay in
    charge. "numpy", "scipy" and "jax" replace names in ``numpy.linalg``, ``scipy.linalg``, ``jax.numpy.linalg`` and
    ``jax.scipy.linalg``: a function that was imported by ``from numpy.linalg import eigh`` before is not replaced, and JAX
    programs that were compiled before stay as they are. Installing twice is fine; the library's own functions return with the
    last undo. Where lapwing declines, a call costs 2 to 4 us more in torch, and 0.3 to 1.5 us more in
    NumPy and SciPy.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> a = np.tile(np.eye(4), (1000, 1, 1))
    >>> with lw.install("numpy") as handle:
    ...     l = np.linalg.cholesky(a)
    >>> handle.report()["numpy.cholesky"]["lapwing"]
    1
    """
    chosen = tuple(dict.fromkeys(names)) or tuple(name for name in DOORS if name in sys.modules)
    for name in chosen:
        if name not in DOORS:
            raise ValueError(f"install: {name!r} is not known\nhint: use one of {', '.join(map(repr, DOORS))}")
    return open_with({name: _door(name) for name in chosen})


def open_with(doors: dict[str, OpenDoor]) -> Handle:
    """Open these doors, or hold open those that are: for :func:`install`, and for plug-ins with a door of their own."""
    with _lock:
        held: list[str] = []
        try:
            for name, open_door in doors.items():
                _hold(name, open_door)
                held.append(name)
        except BaseException:
            for name in held:
                _release(name)
            raise
        return Handle(tuple(doors))


def _door(name: str) -> OpenDoor:
    # imported when it is opened: the library may be missing
    return lambda counts: import_module(f".{name}", __name__).open_door(counts)  # type: ignore[no-any-return]


def _hold(name: str, open_door: OpenDoor) -> None:
    if name in _open:
        close, counts, holders = _open[name]
        _open[name] = close, counts, holders + 1
        return
    counts = {}
    _open[name] = open_door(counts), counts, 1


def _release(name: str) -> None:
    close, counts, holders = _open[name]
    if holders > 1:
        _open[name] = close, counts, holders - 1
    else:
        del _open[name]
        close()


def _copy(counts: Counts) -> Counts:
    return {function: list(pair) for function, pair in counts.items()}
