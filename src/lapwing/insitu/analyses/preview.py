"""A few points of the modes for the live view, read from the stream during the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import Sketch

if TYPE_CHECKING:
    from .pod import POD

_MODES = 4
_LINE = 256  # points of a line
_SIDE = 48  # points along a side of an image
_WEAK = 1e-6  # of the first singular value: before the end of the run the rows of weaker modes are mostly rounding errors


def sketch_modes(pod: POD) -> list[Sketch]:
    """The leading modes of each field, thinned out. Row i of the stream is sigma_i times mode i, so no product is needed."""
    stream = pod.stream
    sigma = stream.values[: min(_MODES, stream.rank)]
    sigma = sigma[sigma > _WEAK * stream.largest]
    if stream.rows is None or not len(sigma):
        return []
    layout, sketches = stream.rows.layout, []
    labels = tuple(f"mode {i + 1}" for i in range(len(sigma)))
    for name, shape, (first, _, _) in zip(layout.names, layout.shapes, layout.places, strict=True):
        if 0 in shape:
            continue
        axes = _axes(shape)
        middle: list[Any] = [np.array([n // 2]) for n in shape[:-2]]
        picked = np.ravel_multi_index(tuple(np.ix_(*middle, *axes)), shape or (1,)).reshape(-1)
        chunks, columns = first + picked // layout.width, picked % layout.width
        values = stream.rows.pick(chunks, columns, 1.0 / sigma, stream.scale).reshape(len(sigma), *map(len, axes))
        title = f"modes of {name}" + ("" if len(shape) <= 2 else ", middle slice")
        extent, aspect = _place(pod, shape, axes)
        sketches.append(Sketch(title, labels, values, extent, free_sign=True, aspect=aspect))
    return sketches


def _axes(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Indices of the points that are drawn, along each direction of the drawing."""
    most = _LINE if len(shape) <= 1 else _SIDE
    return [np.arange(0, n, -(-n // most)) for n in (shape[-2:] or (1,))]


def _place(pod: POD, shape: tuple[int, ...], axes: list[np.ndarray]) -> tuple[tuple[float, float], float]:
    """First and last coordinate of a line; height of an image divided by its width."""
    places = []
    for direction, picked in enumerate(axes, len(shape) - len(axes)):
        known = None if pod._mesh is None or direction < 0 else pod._mesh.axis(direction, shape[direction])
        places.append(picked.astype(float) if known is None else known[picked])
    sides = [abs(place[-1] - place[0]) * len(place) / max(len(place) - 1, 1) for place in places]
    extent = float(places[0][0]), float(places[0][-1])
    return extent if len(shape) == 1 else (0.0, float(axes[0][-1])), sides[0] / sides[-1] if all(sides) else 1.0
