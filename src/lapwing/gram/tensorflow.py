"""TensorFlow tensors, eager and in graphs. TensorFlow has no writes in place: the peak is about two matrices and a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from .expression import build, safe_power, safe_root
from .tiles import DIRECT

__all__ = ["make"]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def make(
    x: Any, y: Any, formula: Callable[..., Any], numbers: tuple[Any, ...], options: dict[str, int], directions: bool
) -> Any:
    x, y = tf.convert_to_tensor(x), None if y is None else tf.convert_to_tensor(y)
    numbers = tuple(tf.constant(v, x.dtype) if isinstance(v, float) else tf.cast(v, x.dtype) for v in numbers)
    return build(_Namespace, x, y, lambda d2, size: formula(_Namespace, d2, size, *numbers, **options), directions)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _squared_distances(x: Any, y: Any) -> Any:
    def gradient(g: Any) -> Any:
        # sum_j 2 g_ij (x_i - y_j), and the same for y
        p, q = _centred(x, y)
        p, q = tf.cast(p, x.dtype), tf.cast(q, x.dtype)
        along, across = tf.reduce_sum(g, 1)[:, None], tf.reduce_sum(g, 0)[:, None]
        return 2 * (along * p - g @ q), 2 * (across * q - tf.matmul(g, p, transpose_a=True))

    coordinates = x.shape[1]
    if coordinates is not None and coordinates <= DIRECT:
        d2 = tf.zeros((tf.shape(x)[0], tf.shape(y)[0]), x.dtype)
        for k in range(coordinates):
            d2 = d2 + tf.square(x[:, k, None] - y[None, :, k])
        return d2, gradient
    p, q = _centred(x, y)
    d2 = tf.reduce_sum(p * p, 1)[:, None] + tf.reduce_sum(q * q, 1)[None, :] - 2 * tf.matmul(p, q, transpose_b=True)
    return tf.cast(tf.where(d2 < 0, tf.zeros_like(d2), d2), x.dtype), gradient


def _centred(x: Any, y: Any) -> tuple[Any, Any]:
    """Shifted to the mean of the points, in float64."""
    p, q = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
    finite = tf.where(tf.math.is_finite(q), q, tf.zeros_like(q))
    centre = tf.math.divide_no_nan(tf.reduce_sum(finite, 0), tf.cast(tf.shape(q)[0], tf.float64))
    return p - centre, q - centre


def _where(condition: Any, number: float, x: Any) -> Any:
    """In a graph a Python number would be float32."""
    return tf.where(condition, tf.constant(number, x.dtype), x)


class _Namespace:
    """What gram/expression.py and gram/formulas.py work with."""

    arctan2 = staticmethod(tf.atan2)
    exp = staticmethod(tf.exp)
    squared_distances = staticmethod(_squared_distances)
    stop_gradient = staticmethod(tf.stop_gradient)
    root = staticmethod(partial(safe_root, _where, tf.sqrt))
    power = staticmethod(partial(safe_power, _where, tf.pow))
    where = staticmethod(_where)

    @staticmethod
    def clip(x: Any, low: float, high: float) -> Any:
        return tf.clip_by_value(x, low, high)

    @staticmethod
    def sum(x: Any) -> Any:
        return tf.reduce_sum(x, 1, keepdims=True)

    @staticmethod
    def largest(x: Any) -> Any:
        return tf.reduce_max(tf.abs(tf.pad(x, [[0, 0], [0, 1]])), 1, keepdims=True)

    @staticmethod
    def zero_diagonal(d2: Any) -> Any:
        """Zero where a row meets itself; NaN, as of a point that is not finite, stays."""
        rows, columns = tf.shape(d2)[0], tf.shape(d2)[1]
        shift = columns - rows
        old = tf.linalg.diag_part(d2[:, shift:])
        new = tf.where(tf.math.is_finite(old), tf.zeros_like(old), old)
        return tf.linalg.set_diag(d2, new, k=shift)

    @staticmethod
    def mirror(k: Any) -> Any:
        """The lower triangle on both sides."""
        lower = tf.linalg.band_part(k, -1, 0)
        return tf.linalg.set_diag(lower + tf.transpose(lower), tf.linalg.diag_part(k))

    @classmethod
    def assemble(cls, n: int, bands: list[tuple[int, Any]]) -> Any:
        rows = []
        bounds = [*[start for start, _ in bands], n]
        for place, (start, band) in enumerate(bands):
            end = bounds[place + 1]
            right = [tf.transpose(other[:, start:end]) for _, other in bands[place + 1 :]]
            rows.append(tf.concat([band[:, :start], cls.mirror(band[:, start:]), *right], 1))
        return tf.concat(rows, 0)
