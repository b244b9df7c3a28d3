"""A checked call of a public function, and where each of its results belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

ASSUME = ("general", "symmetric", "hermitian", "pos", "lower", "upper")
ONE_TRIANGLE = ("symmetric", "hermitian", "pos")  # only one triangle of these is read, and `upper` says which


class Place(Enum):
    """Where a result belongs when the matrix is spread over many devices."""

    MATRIX = "placed as the matrix"
    RIGHT = "placed as the right-hand side"
    VALUE = "small, the same on every device"


MATRIX, RIGHT, VALUE = Place.MATRIX, Place.RIGHT, Place.VALUE


@dataclass(frozen=True)
class Request:
    """A call after its options were checked. Fields after ``status`` are the options, by their public names."""

    function: Callable[..., Any]  # the public function, for arrays that are not sharded
    operation: str  # its name without "_ex"
    places: tuple[Place, ...]  # one for each result
    result: Any = None  # the named tuple of the results; None for a single result
    status: bool = False  # the results end with a status, and a failure gives NaN
    assume: str = "general"
    upper: bool = False
    overwrite: bool = False
    precision: str = "full"
    on_fail: str = "raise"
    engine: str = "auto"
    subset: slice | None = None
    part: tuple[int, int] | None = None  # the first eigenvalue and how many, as ``subset`` says; None: all
    window: tuple[float, float] | None = None
    certify: bool = False
    tol: float | None = None
    full_matrices: bool = False
    mode: str = "reduced"
    side: str = "right"
    unit: bool = False
    jitter: Any = None
    rcond: float | None = None
    b: bool = False  # a second matrix, of a generalised eigenproblem

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def mixed(self) -> bool:
        return self.precision == "mixed"

    @property
    def facts(self) -> dict[str, Any]:
        """The options, which must be the same on all ranks; ``part`` stands for ``subset``."""
        left_out = ("function", "operation", "places", "result", "status", "subset")
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}

    def ordinary(self, *arrays: Any, **changed: Any) -> Any:
        """Call the public function with the same options on arrays that are not sharded."""
        known = self.function.__kwdefaults__ or {}
        options = {name: getattr(self, name) for name in known if name != "b"} | changed
        if "b" in known and len(arrays) > 1:
            arrays, options["b"] = arrays[:1], arrays[1]
        return self.function(*arrays, **options)

    def results(self, returned: Any) -> tuple[Any, ...]:
        """The return value of the public function as a tuple."""
        return tuple(returned) if self.result is not None else (returned,)

    def returned(self, results: Any) -> Any:
        """The return value of the public function for these results."""
        return self.result(*results) if self.result is not None else results[0]
