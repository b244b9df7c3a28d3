"""Pictures, drawn with matplotlib and refreshed during the run."""

from __future__ import annotations

import os
import time as clock
from typing import Any

import numpy as np

from ..analysis import Analysis, Context
from ..solver.arrays import to_host
from ..solver.mesh import Mesh
from .pod import POD
from .spectrum import Spectrum

_LINES = 12  # lines in the picture of a one-dimensional field; beyond this every second one is dropped
_POINTS = 1 << 20  # points in a picture; larger fields are thinned out


class Plot(Analysis):
    """One picture: of a field, of the modes of a POD, or of a spectrum.

    Drawn at the end, and at most every few seconds during the run. A one-dimensional field is drawn as lines, one for each
    step that is due; a two-dimensional field as an image of the last step; a larger one as an image of its middle slice. Images
    show the coordinates of the mesh, in true proportions; values of both signs have diverging colours around zero. With several
    ranks each rank draws its own part, ``...-rank1.png``.

    Parameters
    ----------
    source : str, POD or Spectrum
        The name of a field, or an analysis of the same hub that is listed before this one.
    file : str, optional
        Default: ``Field_evolution.png`` for a field, ``SVD_Eigenvectors.png`` for a POD, ``Spectrum.png`` for a spectrum.
    count : int
        Number of modes to draw.
    every : int
        Draw steps whose number is a multiple of this.
    refresh : float
        Minimum time in seconds between two drawings during the run.

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
            raise TypeError(f"Plot: the source must be the name of a field, a POD or a Spectrum, got a {type(source).__name__}")
        self.source = source
        self.fields = (source,) if isinstance(source, str) else ()
        kinds = {str: "Field_evolution.png", POD: "SVD_Eigenvectors.png", Spectrum: "Spectrum.png"}
        self.file = file or next(name for kind, name in kinds.items() if isinstance(source, kind))
        self.count, self.every, self.refresh = count, every, refresh
        self.pictures: list[str] = []
        self._calls = 0
        self._stride = 1
        self._shape: tuple[int, ...] = ()  # of the field
        self._lines: list[tuple[int, float, np.ndarray]] = []
        self._drawn = clock.monotonic()

    def on_start(self, ctx: Context) -> None:
        _figure()  # report a missing matplotlib at once

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        if arrays:
            self._keep(ctx, arrays[0])
        now = clock.monotonic()
        if now - self._drawn >= self.refresh and (isinstance(self.source, str) or ctx.size == 1):
            self._draw(ctx)
            self._drawn = clock.monotonic()

    def _keep(self, ctx: Context, array: Any) -> None:
        calls, self._calls = self._calls, self._calls + 1
        self._shape = tuple(array.shape)
        if len(array.shape) > 1:
            self._lines = [(ctx.step, ctx.time, _thin(to_host(_slice(array)).real))]
            return
        if calls % self._stride:
            return
        self._lines.append((ctx.step, ctx.time, _thin(np.atleast_1d(to_host(array).real))))
        if len(self._lines) > _LINES:
            self._lines = self._lines[::2]
            self._stride *= 2

    def on_finish(self, ctx: Context) -> None:
        self._draw(ctx)

    def _draw(self, ctx: Context) -> None:
        figure = _figure()
        if isinstance(self.source, POD):
            self._modes(figure, ctx.mesh, self.source)
        elif isinstance(self.source, Spectrum):
            axes = figure.add_subplot()
            axes.loglog(self.source.wavenumbers[1:], self.source.power[1:])
            axes.set(xlabel="wavenumber", ylabel="power", title=f"Spectrum of {(self.source.fields or ('',))[0]}")
            axes.grid(alpha=0.3)
        else:
            self._field(figure, ctx.mesh)
        name = self.file if ctx.size == 1 else f"-rank{ctx.rank}.".join(self.file.rsplit(".", 1))
        partial = ctx.output / f".{name}.partial"
        figure.savefig(partial, format=name.rsplit(".", 1)[-1], dpi=110)
        os.replace(partial, ctx.output / name)  # a viewer never sees half a picture
        if name not in self.pictures:
            self.pictures.append(name)

    def _field(self, figure: Any, mesh: Mesh | None) -> None:
        name = str(self.source)
        if len(self._shape) > 1:
            for step, _, values in self._lines:
                title = f"{name} at step {step}" + (", middle slice" if len(self._shape) > 2 else "")
                _images(figure, [(title, values)], mesh, self._shape)
            return
        curves = [(f"step {step}", values) for step, _, values in self._lines]
        from matplotlib import colormaps

        # the colour of a line shows its time
        colours = [colormaps["viridis"](0.9 * i / max(len(curves) - 1, 1)) for i in range(len(curves))]
        _curves(figure, curves, mesh, self._shape, f"Evolution of {name}", name, colours)

    def _modes(self, figure: Any, mesh: Mesh | None, pod: POD) -> None:
        modes = to_host(pod.modes())[: self.count].real
        squares, total = pod.sigma**2, pod.stream.total
        name, shape = (pod.fields or ("",))[0], modes.shape[1:]
        titles = [f"mode {i + 1}: {100 * square / total:.3g} %" for i, square in enumerate(squares[: len(modes)])]
        heading = f"Modes of {name}" + (", middle slice" if len(shape) > 2 else "") + ", with their shares of the energy"
        if len(shape) > 1:
            figure.suptitle(heading)
            _images(figure, [(t, _thin(_slice(m))) for t, m in zip(titles, modes, strict=True)], mesh, shape)
        else:
            curves = [(t, _thin(np.atleast_1d(m))) for t, m in zip(titles, modes, strict=True)]
            _curves(figure, curves, mesh, shape, heading, "mode", [f"C{i}" for i in range(len(curves))])

    def status(self) -> dict[str, Any]:
        return {"pictures": list(self.pictures)}

    def summary(self) -> str:
        return ", ".join(self.pictures)

    def state(self) -> dict[str, Any]:
        lines = [list(line) for line in self._lines]
        return {"calls": self._calls, "stride": self._stride, "lines": lines, "shape": list(self._shape)}

    def restore(self, state: dict[str, Any]) -> None:
        self._calls, self._stride = state["calls"], state["stride"]
        self._lines = [(line[0], line[1], line[2]) for line in state["lines"]]
        self._shape = tuple(state.get("shape", self._lines[-1][2].shape if self._lines else ()))


def _figure() -> Any:
    """A figure outside matplotlib's global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("Plot: pictures need matplotlib\nhint: pip install matplotlib") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _curves(
    figure: Any,
    curves: list[tuple[str, np.ndarray]],
    mesh: Mesh | None,
    shape: tuple[int, ...],
    title: str,
    ylabel: str,
    colours: list[Any],
) -> None:
    """Lines over the one direction of a field."""
    axes = figure.add_subplot()
    x, xlabel = _axis(mesh, shape or (1,), 0)
    for (label, values), colour in zip(curves, colours, strict=True):
        axes.plot(x, values, label=label, color=colour)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    if curves:  # outside the axes, so that it covers no curve
        figure.legend(loc="outside right upper", frameon=False)


def _images(figure: Any, images: list[tuple[str, np.ndarray]], mesh: Mesh | None, shape: tuple[int, ...]) -> None:
    """Images of the last two directions of a field, in true proportions, each with its colour bar."""
    directions = len(shape) - 2, len(shape) - 1
    (y, ylabel), (x, xlabel) = (_axis(mesh, shape, direction) for direction in directions)
    extent = (*_ends(x), *_ends(y))
    width, height = extent[1] - extent[0], extent[3] - extent[2]
    ratio = height / width
    # wide images are drawn one below the other; extreme proportions would make the picture unreadable
    stacked = len(images) > 1 and ratio < 0.45
    aspect, ratio = ("equal", ratio) if 1 / 20 < ratio < 20 else ("auto", 1.0)
    rows, columns = (len(images), 1) if stacked else (1, max(len(images), 1))
    inches = 6.0 if ratio < 0.45 else min(3.6, 6.0 / ratio)  # width of an image
    figure.set_size_inches(columns * (inches + 1.1) + 0.4, max(rows, 1) * (inches * ratio + 0.55) + 0.7)
    for i, (title, values) in enumerate(images):
        axes = figure.add_subplot(rows, columns, i + 1)
        finite = values[np.isfinite(values)]
        low, high = finite.min(initial=0.0), finite.max(initial=0.0)
        if low < 0 < high:  # white is zero
            top = max(-low, high)
            colours: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
        else:
            colours = {"cmap": "viridis"}
        image = axes.imshow(values, origin="lower", aspect=aspect, extent=extent, **colours)
        bar = figure.colorbar(image, cax=axes.inset_axes((1 + 0.1 / inches, 0, 0.12 / inches, 1)))
        bar.formatter.set_powerlimits((-3, 4))
        axes.set_title(title, fontsize="medium")
        if i >= len(images) - columns:
            axes.set_xlabel(xlabel)
        if stacked or i == 0:
            axes.set_ylabel(ylabel)


def _axis(mesh: Mesh | None, shape: tuple[int, ...], direction: int) -> tuple[np.ndarray, str]:
    """Coordinates of the points that `_thin` keeps along a direction, and their label; without a mesh, the indices."""
    places = None if mesh is None else mesh.axis(direction, shape[direction])
    label = "x" if len(shape) == 1 else f"x{direction}"
    if places is None or not np.isfinite(places).all() or (len(places) > 1 and places[0] == places[-1]):
        places, label = np.arange(shape[direction]), f"index {direction}" if len(shape) > 1 else "index"
    return places[:: _stride(shape[-2:])], label


def _ends(places: np.ndarray) -> tuple[float, float]:
    """The outer edges of the first and the last pixel."""
    half = (places[1] - places[0]) / 2 if len(places) > 1 else 0.5
    return float(places[0] - half), float(places[-1] + half)


def _slice(array: Any) -> Any:
    """The middle slice of the last two directions."""
    while len(array.shape) > 2:
        array = array[array.shape[0] // 2]
    return array


def _stride(shape: tuple[int, ...]) -> int:
    """Distance of the points that a picture shows."""
    step = 1
    while int(np.prod(shape)) // step ** len(shape) > _POINTS:
        step += 1
    return step


def _thin(values: np.ndarray) -> np.ndarray:
    """A copy with few enough points for a picture."""
    return np.array(values[(slice(None, None, _stride(values.shape)),) * values.ndim], copy=True)
