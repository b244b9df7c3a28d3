"""Checks of the arguments: points, length scales, depths."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import frexp, inf, isfinite, ldexp, log2
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from .. import frameworks

_DTYPES = ("float32", "float64")
_ORDINARY = {"float32": 32, "float64": 256}  # length scales of 2^-k to 2^k, whose squares neither over- nor underflow
_SHIFTS = {"float32": (-120, 60), "float64": (-1000, 480)}  # powers of two that points may be multiplied by


@dataclass(frozen=True)
class Points:
    """Two sets of points as rows; ``y`` is None if ``x`` is compared with itself."""

    operation: str
    framework: ModuleType
    x: Any
    y: Any

    def mapped(self, function: Callable[[Any], Any]) -> Points:
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            return replace(self, x=function(self.x), y=None if self.y is None else function(self.y))


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
    """The device of a torch or CuPy array; the other libraries check devices themselves."""
    return a.device if _library(a) in ("torch", "cupy") else None


def in_safe_range(points: Points, scale: Any, gamma: Any = 1.0) -> tuple[Points, Any]:
    """Points and length scale such that squared distances of the order of the scale neither overflow nor vanish.

    Both are multiplied by a power of two, which changes nothing else: exp(-d^gamma / scale) stays the same. Ordinary scales
    are left alone, and so are scalar arrays, whose value may not be known yet.
    """
    if not isinstance(scale, float) or not isinstance(gamma, float):
        return points, scale
    dtype = points.framework.dtype_of(points.x)
    exponent = frexp(scale)[1] if gamma == 1 else round(log2(scale) / gamma)
    if abs(exponent) <= _ORDINARY[dtype]:
        return points, scale
    least, most = _SHIFTS[dtype]
    shift = max(least, min(-exponent, most))
    scale = ldexp(scale, shift) if gamma == 1 else _exp2(log2(scale) + gamma * shift)
    # XLA turns d2 / scale / scale into d2 / scale^2, so the square must be in range too
    limits = np.finfo(dtype)
    return points.mapped(lambda x: x * 2.0**shift), min(max(scale, float(limits.tiny) ** 0.5), float(limits.max) ** 0.5)


def _exp2(power: float) -> float:
    return inf if power >= 1024 else 2.0**power


def per_coordinate(points: Points, name: str, value: Any) -> Any:
    """The length scales, one per coordinate, as a list of floats or an array; None where ``value`` is not of that kind."""
    operation = points.operation
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if not all(isinstance(v, Real) for v in value):
            raise TypeError(
                f"{operation}: {name}={value!r} is not a list of numbers\nhint: give scales with gradients as one array"
            )
        count, value = len(value), [check_positive(operation, name, v) for v in value]
    elif len(getattr(value, "shape", ())) == 1 and hasattr(value, "dtype"):
        count = value.shape[0]
    else:
        return None
    coordinates = points.framework.shape_of(points.x)[1]
    if count != coordinates and None not in (count, coordinates):
        raise ValueError(f"{operation}: {name} has {count} values for points of {coordinates} coordinates")
    return value


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
