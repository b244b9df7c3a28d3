"""Keep TensorFlow's AutoGraph away from lapwing's functions. TensorFlow is not imported."""

from __future__ import annotations

from inspect import isfunction
from typing import Any


def leave_alone(*public: Any) -> None:
    """Mark functions, and the methods of classes, so that AutoGraph calls them as they are.

    AutoGraph rewrites every Python function that ``tf.function`` reaches. Ours have no control flow that depends on values, so
    the rewriting gains nothing, and it took half a minute for a program of four calls. The mark is the attribute that
    ``tf.autograph.experimental.do_not_convert`` sets.
    """
    for entity in public:
        for function in vars(entity).values() if isinstance(entity, type) else [entity]:
            if isfunction(function):
                function.autograph_info__ = {}  # type: ignore[attr-defined]
