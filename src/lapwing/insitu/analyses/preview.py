"""A few points of the modes for the live view, taken from the middle of the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import Sketch

if TYPE_CHECKING:
    from .pod import POD

__all__ = ["sketch_modes"]

_MODES = 4
_LINE = 256  # points of a line
_SIDE = 48  # points of a side of an image
_WEAK = 1e-6  # of the first singular value: the rows of weaker modes are not clean before the end


def sketch_modes(pod: POD) -> list[Sketch]:
    """The leading modes of each field, thinned out: row i of the stream is sigma_i times mode i, so no product is needed."""
    stream = pod.stream
    sigma = stream.values[: min(_MODES, stream.rank)]
    sigma = sigma[sigma > _WEAK * stream.largest]
    if stream.rows is None or not len(sigma):
        return []
    layout, made = stream.rows.layout, []
    labels = tuple(f"mode {i + 1}" for i in range(len(sigma)))
    for name, shape, (first, _, _) in zip(layout.names, layout.shapes, layout.places, strict=True):
        if 0 in shape:
            continue
        picked, grid, last = _points(shape)
        chunks, columns = first + picked // layout.width, picked % layout.width
        values = stream.rows.pick(chunks, columns, 1.0 / sigma, stream.scale).reshape(len(sigma), *grid)
        where = "" if len(shape) <= 2 else ", middle slice"
        made.append(Sketch(f"modes of {name}{where}", labels, values, _extent(pod, shape, last), free_sign=True))
    return made


def _points(shape: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...], int]:
    """Places in the flat field, the shape of the drawing, and the last place on its first axis."""
    sides: list[Any] = [np.array([n // 2]) for n in shape[:-2]]
    most = _LINE if len(shape) <= 1 else _SIDE
    axes = [np.arange(0, n, -(-n // most)) for n in (shape[-2:] or (1,))]
    picked = np.ravel_multi_index(tuple(np.ix_(*sides, *axes)), shape or (1,)).reshape(-1)
    return picked, tuple(len(a) for a in axes), int(axes[0][-1])


def _extent(pod: POD, shape: tuple[int, ...], last: int) -> tuple[float, float]:
    """First and last coordinate of a line."""
    mesh = pod._mesh
    if len(shape) != 1 or mesh is None or mesh.spacing is None:
        return 0.0, float(last)
    origin = mesh.origin[0] if mesh.origin is not None else 0.0
    offset = mesh.offset[0] if mesh.offset is not None else 0
    return origin + mesh.spacing[0] * offset, origin + mesh.spacing[0] * (offset + last)
