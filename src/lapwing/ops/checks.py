"""Checks of what the user gave. A wrong value is refused at once, with the value and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core.problem import DTYPES

__all__ = ["check_choice", "check_flag", "check_square"]

_KNOWN = frozenset(DTYPES)


def check_square(operation: str, shape: tuple[int | None, ...], dtype: str) -> None:
    """``shape`` is a batch of square matrices (None: not known yet) of a supported dtype."""
    if dtype not in _KNOWN:
        hint = "float32" if dtype in ("float16", "bfloat16") else "float32 or float64"
        raise TypeError(
            f"{operation}: dtype {dtype} is not supported (use {', '.join(DTYPES)})\nhint: convert the array to {hint} first"
        )
    if len(shape) < 2:
        raise ValueError(
            f"{operation}: expected matrices of shape (..., n, n), got shape {tuple(shape)}"
            "\nhint: the last two axes are the matrix, all axes before them are the batch"
        )
    rows, columns = shape[-2], shape[-1]
    if rows != columns and rows is not None and columns is not None:
        raise ValueError(
            f"{operation}: the matrices must be square, got shape {tuple(shape)}"
            "\nhint: the last two axes are the matrix, all axes before them are the batch"
        )


def check_flag(operation: str, name: str, value: Any) -> bool:
    """True or False, as Python's or NumPy's; a word such as "L" is a mistake."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{operation}: {name}={value!r} is not True or False")
    return bool(value)


def check_choice(operation: str, name: str, value: Any, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{operation}: {name}={value!r} is not known\nhint: use one of {', '.join(map(repr, choices))}")
