"""The tuned matrix products in use, if any: what ``lapwing.tune.use`` puts here, :func:`lapwing.matmul` asks first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["add", "product", "remove"]

# takes two arrays and gives their product, or None where it has nothing better than the framework
Product = Callable[[Any, Any], Any]
# replaced, never changed: a thread that reads it needs no lock. The last one added is asked first.
_in_use: tuple[Product, ...] = ()


def add(product: Product) -> None:
    global _in_use
    _in_use = (*_in_use, product)


def remove(product: Product) -> None:
    """Takes the last one added that is this one away; nothing if there is none."""
    global _in_use
    for i in reversed(range(len(_in_use))):
        if _in_use[i] is product:
            _in_use = _in_use[:i] + _in_use[i + 1 :]
            return


def product(a: Any, b: Any) -> Any:
    """The product by a tuned kernel, or None."""
    for tuned in reversed(_in_use):
        made = tuned(a, b)
        if made is not None:
            return made
    return None
