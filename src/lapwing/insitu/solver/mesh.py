"""The mesh of the solver, as far as the solver describes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .arrays import to_host
from .field import Field


@dataclass(frozen=True)
class Mesh:
    """The mesh of the solver; every entry may be missing.

    Parameters
    ----------
    global_shape : tuple of int
        Shape of the whole field over all ranks.
    offset : tuple of int
        Index of this rank's first point in the whole field.
    spacing, origin : tuple of float
        For a regular mesh: point i is at origin + (offset + i) * spacing.
    weights : array
        Volume (or quadrature weight) of each local point: the inner product of `POD` can use it.
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
        """From a dict with the names above. Arrays are copied to the host; the C library passes them as descriptions."""
        if spec is None or isinstance(spec, Mesh):
            return spec
        unknown = set(spec) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(
                f"Mesh: no entry {', '.join(sorted(unknown))}; the entries are {', '.join(cls.__dataclass_fields__)}"
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

    def axis(self, direction: int, count: int) -> np.ndarray | None:
        """Coordinates of the ``count`` local points along a direction of a regular mesh; None if the spacing is not known."""
        if self.spacing is None or direction >= len(self.spacing):
            return None
        origin = self.origin[direction] if self.origin is not None else 0.0
        offset = self.offset[direction] if self.offset is not None else 0
        return origin + self.spacing[direction] * (offset + np.arange(count))  # type: ignore[no-any-return]

    def nearest(self, point: tuple[float, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Index of the mesh point nearest to ``point`` in the local block, which has the shape ``shape``.

        On a regular mesh the result is None if the point belongs to another rank; on an irregular mesh it is the nearest local
        point.
        """
        if self.coordinates is not None:
            distance = sum((np.asarray(x).reshape(-1) - p) ** 2 for x, p in zip(self.coordinates, point, strict=True))
            return tuple(int(i) for i in np.unravel_index(int(np.argmin(distance)), shape))
        if self.spacing is None:
            raise ValueError(f"Mesh: the point {point} has coordinates, but the mesh has neither spacing nor coordinates")
        origin = self.origin or (0.0,) * len(self.spacing)
        offset = self.offset or (0,) * len(self.spacing)
        if not len(point) == len(self.spacing) == len(origin) == len(offset) == len(shape):
            raise ValueError(
                f"Mesh: the point {point} does not fit a field of shape {shape} on a mesh of {self.dimensions} dimensions"
            )
        index = tuple(round((p - x) / h) - o for p, x, h, o in zip(point, origin, self.spacing, offset, strict=True))
        return index if all(0 <= i < n for i, n in zip(index, shape, strict=True)) else None


def _mesh_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, tuple) and len(value) == 9 and isinstance(value[3], str):  # described by the C library
        return Field.described(name, value).to_host()
    return np.array(to_host(value), copy=True)
