"""What the solver told about its mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..memory import CPU, Memory
from .arrays import to_host
from .field import Field

__all__ = ["Mesh"]


@dataclass(frozen=True)
class Mesh:
    """What the solver told about its mesh; every entry may be missing.

    Parameters
    ----------
    global_shape : tuple of int
        Shape of the whole field over all ranks.
    offset : tuple of int
        Index of this rank's first point in it.
    spacing, origin : tuple of float
        Of a regular mesh: point i lies at origin + (offset + i) * spacing.
    weights : array
        Volume (or quadrature weight) of each local point: the inner product of `POD` and the means of `Stats` can use it.
    coordinates : tuple of arrays
        Coordinates of the local points of an irregular mesh, one array for each direction.

    Examples
    --------
    >>> mesh = Mesh(global_shape=(64,), spacing=(0.5,), origin=(1.0,))
    >>> mesh.nearest((3.1,), (64,))
    (4,)
    """

    global_shape: tuple[int, ...] | None = None
    offset: tuple[int, ...] | None = None
    spacing: tuple[float, ...] | None = None
    origin: tuple[float, ...] | None = None
    weights: np.ndarray | None = None
    coordinates: tuple[np.ndarray, ...] | None = None

    @classmethod
    def of(cls, spec: Mesh | dict[str, Any] | None) -> Mesh | None:
        """From a dict with the names above; arrays may also be described as a field is, and are copied to the host."""
        if spec is None or isinstance(spec, Mesh):
            return spec
        unknown = set(spec) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(
                f"insitu: a mesh has no {', '.join(sorted(unknown))}; it has {', '.join(cls.__dataclass_fields__)}"
            )
        known: dict[str, Any] = {k: v for k, v in spec.items() if v is not None}
        for name, kind in (("global_shape", int), ("offset", int), ("spacing", float), ("origin", float)):
            if name in known:
                values = known[name]
                known[name] = tuple(kind(x) for x in (values if np.iterable(values) else (values,)))
        if "weights" in known:
            known["weights"] = _mesh_array("weights", known["weights"])
        if "coordinates" in known:
            known["coordinates"] = tuple(_mesh_array("coordinates", x) for x in known["coordinates"])
        return cls(**known)

    @cached_property
    def dimensions(self) -> int:
        for known in (self.global_shape, self.spacing, self.origin, self.coordinates):
            if known is not None:
                return len(known)
        return 0

    def nearest(self, point: tuple[float, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Index in the local block, of shape ``shape``, of the mesh point nearest to ``point``.

        On a regular mesh None says that the point belongs to another rank; on an irregular one it is the nearest local point.
        """
        if self.coordinates is not None:
            distance = sum((np.asarray(x).reshape(-1) - p) ** 2 for x, p in zip(self.coordinates, point, strict=True))
            return tuple(int(i) for i in np.unravel_index(int(np.argmin(distance)), shape))
        if self.spacing is None:
            raise ValueError("insitu: a point was given by coordinates, but the solver told neither spacing nor coordinates")
        origin = self.origin or (0.0,) * len(self.spacing)
        offset = self.offset or (0,) * len(self.spacing)
        if not len(point) == len(self.spacing) == len(origin) == len(offset) == len(shape):
            raise ValueError(
                f"insitu: the point {point} does not fit a field of shape {shape} on a mesh of {self.dimensions} dimensions"
            )
        index = tuple(round((p - x) / h) - o for p, x, h, o in zip(point, origin, self.spacing, offset, strict=True))
        return index if all(0 <= i < n for i, n in zip(index, shape, strict=True)) else None


def _mesh_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, dict):
        value = (
            value["pointer"],
            value["shape"],
            value.get("strides"),
            value["code"],
            value["bits"],
            value.get("device_type", CPU),
            value.get("device_id", 0),
            value.get("stream", 0),
            value.get("writable", False),
        )
    if isinstance(value, tuple) and len(value) == 9:
        pointer, shape, strides, code, bits, device_type, device_id, stream, writable = value
        memory = Memory.describe(name, pointer, shape, strides, code, bits, device_type, device_id, writable)
        return Field(name, memory=memory, stream=stream).to_host()
    return np.array(to_host(value), copy=True)
