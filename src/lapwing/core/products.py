"""The tuned matrix products in use: ``lapwing.tune.use`` adds them, :func:`lapwing.matmul` asks them first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# returns the product of two arrays, or None if it is not faster than the framework
Product = Callable[[Any, Any], Any]
# A tuple that is replaced, never changed, so a thread can read it without a lock. The last one added is asked first.
_in_use: tuple[Product, ...] = ()


def add(product: Product) -> None:
    global _in_use
    _in_use = (*_in_use, product)


def remove(product: Product) -> None:
    """Remove the last entry that is this product, if there is one."""
    global _in_use
    for i in reversed(range(len(_in_use))):
        if _in_use[i] is product:
            _in_use = _in_use[:i] + _in_use[i + 1 :]
            return


def product(a: Any, b: Any) -> Any:
    """The product by a tuned kernel, or None."""
    for tuned in reversed(_in_use):
        result = tuned(a, b)
        if result is not None:
            return result
    return None
