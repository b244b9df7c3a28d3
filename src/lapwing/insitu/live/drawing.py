"""Small arrays for pictures: copied from the device without making the solver wait, and packed for ``status.json``."""

from __future__ import annotations

import base64
from functools import lru_cache
from time import sleep
from typing import Any

import numpy as np

from ..analysis import Sketch
from ..solver.arrays import library_of, to_host
from .plain import plain

_POINTS = 1 << 14  # most numbers of one sketch
_DIGITS = 5


class Fetch:
    """Copy sketches to the host without waiting.

    A GPU computes the arrays some time after the call, in the order of the solver's stream. `ready` says whether it has,
    without waiting; `take` then copies them on a separate stream, which does not wait for the solver's later work. At the end
    of a run `take` is called at once, and waits until they are computed.
    """

    def __init__(self, sketches: list[tuple[str, Sketch]]) -> None:
        self._sketches = [(name, s) for name, s in sketches if 0 < _size(s.values) <= _POINTS]
        self._events = [_event(s.values) for _, s in self._sketches]

    def ready(self) -> bool:
        return all(event is None or event() for event in self._events)

    def take(self) -> list[tuple[str, Sketch, np.ndarray]]:
        while not self.ready():
            sleep(1e-4)
        return [(name, s, _copied(s.values)) for name, s in self._sketches]


def drawings(sketches: list[tuple[str, Sketch, np.ndarray]]) -> list[dict[str, Any]]:
    """The entries that the page draws: lines as numbers, images as one byte per pixel."""
    entries: list[dict[str, Any]] = []
    for name, sketch, values in sketches:
        values = np.asarray(values.real, np.float64)
        if values.ndim not in (2, 3):
            continue
        finite = np.where(np.isfinite(values), values, 0.0)
        if sketch.free_sign:
            flat = finite.reshape(len(finite), -1)
            # the first of the largest: an odd mode has two of the same size, and rounding decides which one is larger
            size = np.abs(flat)
            first = (size >= 0.99 * size.max(axis=1, keepdims=True)).argmax(axis=1)
            signs = np.where(flat[np.arange(len(flat)), first] < 0, -1.0, 1.0)
            finite = finite * signs.reshape(-1, *[1] * (values.ndim - 1))
        # the user may have written the sketch: nothing but plain values may reach the file
        entry: dict[str, Any] = plain({"analysis": name, "title": sketch.title, "labels": list(sketch.labels)})
        if values.ndim == 2:
            entry |= {"kind": "lines", "lines": _rounded(finite).tolist(), "extent": plain(list(sketch.extent))}
        else:
            # zero is in the middle, so that the colours show the sign
            top = np.abs(finite).max(axis=(1, 2), keepdims=True)
            pixels = np.rint(127.5 + 127.5 * finite / np.where(top > 0, top, 1.0)).astype(np.uint8)
            images = [base64.b64encode(image.tobytes()).decode() for image in pixels]
            entry |= {"kind": "images", "rows": values.shape[1], "columns": values.shape[2], "images": images}
            entry |= {"top": _rounded(top.reshape(-1)).tolist(), "aspect": plain(float(sketch.aspect))}
        entries.append(entry)
    return entries


def _rounded(values: np.ndarray) -> np.ndarray:
    """Rounded to a few digits of the largest value: the picture shows no more, and the file stays small."""
    top = float(np.abs(values).max(initial=0.0))
    return np.round(values, _DIGITS - int(np.floor(np.log10(top)))) if top > 1e-300 else np.zeros_like(values)


def _size(array: Any) -> int:
    return int(np.prod(tuple(array.shape)))


def _event(array: Any) -> Any:
    """A function that says whether the array is computed; None if it already is."""
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
