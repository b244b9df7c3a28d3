"""Turn the values of any analysis into valid JSON of bounded size, without NaN."""

from __future__ import annotations

import math
from typing import Any

_ITEMS = 512
_LETTERS = 8000
_DEPTH = 6


def number(value: Any) -> float | None:
    """A finite number of usual size as a float; None for anything else."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if ok and abs(value) < 1e300 and math.isfinite(value) else None


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Convert to dicts, lists, strings and finite numbers. NaN and infinities become None; long texts keep their end.

    >>> plain({"a": float("nan"), "b": (1, 2.5), 3: object})
    {'a': None, 'b': [1, 2.5], '3': "<class 'object'>"}
    """
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 1 << 62 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value[-_LETTERS:].encode("utf-8", "replace").decode()  # a lone surrogate cannot be written to a file
    if depth and isinstance(value, dict):
        return {str(key)[:200]: plain(item, depth - 1) for key, item in list(value.items())[:_ITEMS]}
    if depth and isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value[:_ITEMS]]
    if depth and hasattr(value, "tolist") and getattr(value, "size", _ITEMS + 1) <= _ITEMS:
        return plain(value.tolist(), depth - 1)  # NumPy scalars and small arrays
    return plain(str(value))
