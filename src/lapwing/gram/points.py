"""Checks of what the user gave: points, scales, depths."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from .. import frameworks

__all__ = ["Points", "check_count", "check_number", "check_points", "check_positive"]

_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Points:
    """Two sets of points as rows; ``y`` is None where ``x`` is compared with itself."""

    operation: str
    framework: ModuleType
    x: Any
    y: Any


def check_points(operation: str, x: Any, y: Any) -> Points:
    framework = frameworks.of(x, operation)
    _check_one(operation, "x", framework, x)
    if y is None or y is x:
        return Points(operation, framework, x, None)
    if frameworks.of(y, operation) is not framework:
        raise TypeError(
            f"{operation}: x is a {_library(x)} array and y a {_library(y)} array"
            "\nhint: convert one of them to the other's library"
        )
    _check_one(operation, "y", framework, y)
    a, b = framework.dtype_of(x), framework.dtype_of(y)
    if a != b:
        raise TypeError(f"{operation}: x is {a} and y is {b}\nhint: give both the same dtype")
    p, q = framework.shape_of(x)[1], framework.shape_of(y)[1]
    if p != q and None not in (p, q):
        raise ValueError(f"{operation}: the points of x have {p} coordinates, those of y have {q}")
    here, there = _device(x), _device(y)
    if here != there:
        raise ValueError(f"{operation}: x is on {here} and y on {there}\nhint: move one of them")
    return Points(operation, framework, x, y)


def _check_one(operation: str, name: str, framework: ModuleType, a: Any) -> None:
    shape, dtype = tuple(framework.shape_of(a)), framework.dtype_of(a)
    if dtype not in _DTYPES:
        raise TypeError(f"{operation}: {name} has dtype {dtype}, which is not {' or '.join(_DTYPES)}\nhint: convert it first")
    if len(shape) != 2:
        raise ValueError(
            f"{operation}: {name} must have shape (points, coordinates), got {shape}"
            "\nhint: points on a line are x[:, None]; for a batch use vmap"
        )


def _library(a: Any) -> str:
    return type(a).__module__.partition(".")[0].replace("jaxlib", "jax")


def _device(a: Any) -> Any:
    """Where torch and CuPy arrays lie; the other libraries look themselves."""
    return a.device if _library(a) in ("torch", "cupy") else None


def check_number(operation: str, name: str, value: Any) -> Any:
    """A finite number as a float, or a scalar array, which may have a gradient."""
    if isinstance(value, Real) or (isinstance(value, np.ndarray) and value.ndim == 0):
        number = float(value)
        if not isfinite(number):
            raise ValueError(f"{operation}: {name}={value!r} is not a finite number")
        return number
    if getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return value
    raise TypeError(f"{operation}: {name}={value!r} is not a number")


def check_positive(operation: str, name: str, value: Any) -> Any:
    value = check_number(operation, name, value)
    # the value of an array may not be known yet, and looking at it would wait for the device
    if isinstance(value, float) and value <= 0:
        raise ValueError(f"{operation}: {name}={value:g} is not positive")
    return value


def check_count(operation: str, name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{operation}: {name}={value!r} is not an integer") from None
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"{operation}: {name}={value!r} is not a positive integer")
    return count
