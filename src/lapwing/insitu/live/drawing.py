"""Small arrays for pictures: brought from the device without making the solver wait, and packed for ``status.json``."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Any

import numpy as np

from ..analysis import Sketch
from ..solver.arrays import library_of, to_host

__all__ = ["Fetch", "drawings"]

_POINTS = 1 << 14  # numbers of one sketch
_DIGITS = 5


class Fetch:
    """Sketches on their way to the host.

    On a GPU the arrays come into being some time after they were asked for, in the order of the solver's stream. `ready` tells
    without waiting; `take` then copies on a stream of our own, which does not wait for what the solver has queued since.
    """

    def __init__(self, sketches: list[tuple[str, Sketch]]) -> None:
        self._sketches = [(name, s) for name, s in sketches if 0 < _size(s.values) <= _POINTS]
        self._events = [_event(s.values) for _, s in self._sketches]

    def ready(self) -> bool:
        return all(event is None or event() for event in self._events)

    def take(self) -> list[tuple[str, Sketch, np.ndarray]]:
        return [(name, s, _copied(s.values)) for name, s in self._sketches]


def drawings(taken: list[tuple[str, Sketch, np.ndarray]]) -> list[dict[str, Any]]:
    """What the page draws: lines as numbers, images as bytes between their least and largest value."""
    made: list[dict[str, Any]] = []
    for name, sketch, values in taken:
        values = np.asarray(values.real, np.float64)
        if values.ndim not in (2, 3):
            continue
        finite = np.where(np.isfinite(values), values, 0.0)
        if sketch.free_sign:
            flat = finite.reshape(len(finite), -1)
            # the first of the largest: an odd mode has two, and which is larger is a matter of rounding
            size = np.abs(flat)
            first = (size >= 0.99 * size.max(axis=1, keepdims=True)).argmax(axis=1)
            signs = np.where(flat[np.arange(len(flat)), first] < 0, -1.0, 1.0)
            finite = finite * signs.reshape(-1, *[1] * (values.ndim - 1))
        one: dict[str, Any] = {"analysis": name, "title": sketch.title, "labels": list(sketch.labels)}
        if values.ndim == 2:
            one |= {"kind": "lines", "lines": _rounded(finite).tolist(), "extent": list(sketch.extent)}
        else:
            # zero in the middle: the colours of a mode tell its sign
            top = np.abs(finite).max(axis=(1, 2), keepdims=True)
            pixels = np.rint(127.5 + 127.5 * finite / np.where(top > 0, top, 1.0)).astype(np.uint8)
            images = [base64.b64encode(image.tobytes()).decode() for image in pixels]
            one |= {"kind": "images", "rows": values.shape[1], "columns": values.shape[2], "images": images}
            one["top"] = _rounded(top.reshape(-1)).tolist()
        made.append(one)
    return made


def _rounded(values: np.ndarray) -> np.ndarray:
    """A few digits of the largest: the eye sees no more, and the file stays small."""
    top = float(np.abs(values).max(initial=0.0))
    return np.round(values, _DIGITS - int(np.floor(np.log10(top)))) if top > 1e-300 else np.zeros_like(values)


def _size(array: Any) -> int:
    return int(np.prod(tuple(array.shape)))


def _event(array: Any) -> Any:
    """A question whether the array is there; None if it is."""
    library = library_of(array)
    if library == "cupy":
        import cupy

        with array.device:
            event = cupy.cuda.Event(block=False, disable_timing=True)
            event.record()
        return lambda: event.done
    if library == "torch" and array.is_cuda:
        import torch

        with torch.cuda.device(array.device):
            mark = torch.cuda.Event()
            mark.record()
        return mark.query
    return array.is_ready if library == "jax" else None


def _copied(array: Any) -> np.ndarray:
    library = library_of(array)
    if library == "cupy":
        with array.device, _own_stream("cupy", array.device.id):
            return np.asarray(array.get())
    if library == "torch" and array.is_cuda:
        import torch

        with torch.cuda.stream(_own_stream("torch", array.device.index)):
            return np.asarray(array.detach().cpu().numpy())
    return np.array(to_host(array))


@lru_cache
def _own_stream(library: str, device: int) -> Any:
    if library == "cupy":
        import cupy

        return cupy.cuda.Stream(non_blocking=True)
    import torch

    return torch.cuda.Stream(device)
