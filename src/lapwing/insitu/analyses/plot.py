"""Pictures, drawn with matplotlib and refreshed while the run goes on."""

from __future__ import annotations

import os
import time as clock
from typing import Any

import numpy as np

from ..analysis import Analysis, Context
from ..solver.arrays import to_host
from .pod import POD
from .spectrum import Spectrum

__all__ = ["Plot"]

_LINES = 12  # of a field of one dimension; beyond this every second one is dropped
_POINTS = 1 << 20  # a picture has no more; larger fields are thinned out


class Plot(Analysis):
    """One picture, of a field, of the modes of a POD, or of a spectrum.

    Drawn at the end, and during the run at most every few seconds. A field of one dimension is drawn as lines, one for each
    step that is due; of two as the picture of the last one; of more as its middle slice. With several ranks each draws its own
    part, ``...-rank1.png``.

    Parameters
    ----------
    source : str, POD or Spectrum
        An analysis must be one of the same hub, listed before this one.
    file : str, optional
        Default: ``Field_evolution.png`` for a field, ``SVD_Eigenvectors.png`` for a POD, ``Spectrum.png``.
    count : int
        Modes drawn.
    every : int
        Steps drawn.
    refresh : float
        Least seconds between two drawings during the run.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from lapwing import insitu
    >>> x = np.linspace(0, 2 * np.pi, 64)
    >>> pod = insitu.POD("u", rank=3)
    >>> pictures = [insitu.Plot("u", every=5), insitu.Plot(pod)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with insitu.Hub([pod, *pictures], output=folder, quiet=True) as hub:
    ...         for n in range(11):
    ...             status = hub.step(n, 0.1 * n, u=np.sin(x - 0.1 * n))
    ...     hub.status()["pictures"]
    ['Field_evolution.png', 'SVD_Eigenvectors.png']
    """

    def __init__(
        self, source: str | POD | Spectrum, *, file: str | None = None, count: int = 3, every: int = 1, refresh: float = 10.0
    ) -> None:
        if not isinstance(source, str | POD | Spectrum):
            raise TypeError(f"Plot: give the name of a field, a POD or a Spectrum, not a {type(source).__name__}")
        self.source = source
        self.fields = (source,) if isinstance(source, str) else ()
        kinds = {str: "Field_evolution.png", POD: "SVD_Eigenvectors.png", Spectrum: "Spectrum.png"}
        self.file = file or next(name for kind, name in kinds.items() if isinstance(source, kind))
        self.count, self.every, self.refresh = count, every, refresh
        self.pictures: list[str] = []
        self._calls = 0
        self._stride = 1
        self._lines: list[tuple[int, float, np.ndarray]] = []
        self._drawn = clock.monotonic()

    def on_start(self, ctx: Context) -> None:
        _figure()  # a missing matplotlib is known at once

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        if arrays:
            self._keep(ctx, arrays[0])
        now = clock.monotonic()
        if now - self._drawn >= self.refresh and (isinstance(self.source, str) or ctx.size == 1):
            self._draw(ctx)
            self._drawn = clock.monotonic()

    def _keep(self, ctx: Context, array: Any) -> None:
        calls, self._calls = self._calls, self._calls + 1
        if len(array.shape) != 1:
            self._lines = [(ctx.step, ctx.time, _thin(to_host(_slice(array))))]
            return
        if calls % self._stride:
            return
        self._lines.append((ctx.step, ctx.time, _thin(to_host(array))))
        if len(self._lines) > _LINES:
            self._lines = self._lines[::2]
            self._stride *= 2

    def on_finish(self, ctx: Context) -> None:
        self._draw(ctx)

    def _draw(self, ctx: Context) -> None:
        figure = _figure()
        axes = figure.add_subplot()
        if isinstance(self.source, POD):
            self._modes(figure, axes, self.source)
        elif isinstance(self.source, Spectrum):
            axes.loglog(self.source.wavenumbers[1:], self.source.power[1:])
            axes.set(xlabel="wavenumber", ylabel="power", title=f"Spectrum of {(self.source.fields or ('',))[0]}")
        else:
            self._field(figure, axes, ctx)
        name = self.file if ctx.size == 1 else f"-rank{ctx.rank}.".join(self.file.rsplit(".", 1))
        partial = ctx.output / f".{name}.partial"
        figure.savefig(partial, format=name.rsplit(".", 1)[-1], dpi=110)
        os.replace(partial, ctx.output / name)  # a viewer never meets half a picture
        if name not in self.pictures:
            self.pictures.append(name)

    def _field(self, figure: Any, axes: Any, ctx: Context) -> None:
        name = str(self.source)
        if self._lines and self._lines[0][2].ndim == 2:
            step, _, values = self._lines[-1]
            figure.colorbar(axes.imshow(values, origin="lower", aspect="auto"))
            axes.set(title=f"{name} at step {step}")
            return
        for step, _, values in self._lines:
            x = np.arange(len(values)) if ctx.mesh is None or ctx.mesh.spacing is None else _places(ctx.mesh, len(values))
            axes.plot(x, values, label=f"step {step}")
        axes.set(title=f"Evolution of {name}", xlabel="x", ylabel=name)
        if self._lines:
            axes.legend()

    def _modes(self, figure: Any, axes: Any, pod: POD) -> None:
        modes = to_host(pod.modes())[: self.count]
        if modes.ndim == 2:
            for i, mode in enumerate(modes):
                axes.plot(_thin(mode.real), label=f"mode {i + 1}")
            axes.set(title="Modes", xlabel="x")
            if len(modes):
                axes.legend()
            return
        figure.clear()
        for i, mode in enumerate(modes):
            axes = figure.add_subplot(1, len(modes), i + 1)
            axes.imshow(_thin(_slice(mode.real)), origin="lower", aspect="auto")
            axes.set(title=f"mode {i + 1}")

    def status(self) -> dict[str, Any]:
        return {"pictures": list(self.pictures)}

    def summary(self) -> str:
        return ", ".join(self.pictures)

    def state(self) -> dict[str, Any]:
        return {"calls": self._calls, "stride": self._stride, "lines": [list(line) for line in self._lines]}

    def restore(self, state: dict[str, Any]) -> None:
        self._calls, self._stride = state["calls"], state["stride"]
        self._lines = [(line[0], line[1], line[2]) for line in state["lines"]]


def _figure() -> Any:
    """A figure that belongs to nobody's screen: matplotlib's global state is left alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("Plot: pictures need matplotlib\nhint: pip install matplotlib") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _slice(array: Any) -> Any:
    """The middle slice of two dimensions."""
    while len(array.shape) > 2:
        array = array[array.shape[0] // 2]
    return array


def _thin(values: np.ndarray) -> np.ndarray:
    """A copy with few enough points for a picture."""
    step = 1
    while values.size // step**values.ndim > _POINTS:
        step += 1
    return np.array(values[(slice(None, None, step),) * values.ndim], copy=True)


def _places(mesh: Any, count: int) -> np.ndarray:
    origin = mesh.origin[0] if mesh.origin is not None else 0.0
    offset = mesh.offset[0] if mesh.offset is not None else 0
    return origin + mesh.spacing[0] * (offset + np.arange(count))  # type: ignore[no-any-return]
