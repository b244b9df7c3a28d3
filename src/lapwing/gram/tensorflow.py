"""TensorFlow tensors, eager and in graphs. TensorFlow cannot write in place: the peak is about two matrices and a block."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from .expression import build, join_bands, safe_power, safe_root
from .formulas import Kernel
from .tiles import DIRECT


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def make(x: Any, y: Any, kernel: Kernel, numbers: tuple[Any, ...]) -> Any:
    x, y = tf.convert_to_tensor(x), None if y is None else tf.convert_to_tensor(y)
    return build(_FUNCTIONS, x, y, kernel, tuple(vector(v, x) for v in numbers))


def vector(values: Any, like: Any) -> Any:
    known = isinstance(values, (float, list))
    return tf.constant(values, like.dtype) if known else tf.cast(values, like.dtype)


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
    """Shifted to the mean of the second points, in float64."""
    p, q = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
    finite = tf.where(tf.math.is_finite(q), q, tf.zeros_like(q))
    centre = tf.math.divide_no_nan(tf.reduce_sum(finite, 0), tf.cast(tf.shape(q)[0], tf.float64))
    return p - centre, q - centre


def _where(condition: Any, value: Any, x: Any) -> Any:
    """tf.where, which would make a Python number float32 in a graph."""
    return tf.where(condition, tf.constant(value, x.dtype) if isinstance(value, float) else value, x)


def _mirror(k: Any) -> Any:
    """The lower triangle on both sides."""
    lower = tf.linalg.band_part(k, -1, 0)
    return tf.linalg.set_diag(lower + tf.transpose(lower), tf.linalg.diag_part(k))


def _largest(x: Any) -> Any:
    return tf.reduce_max(tf.abs(tf.pad(x, [[0, 0], [0, 1]])), 1, keepdims=True)


# the functions that gram/expression.py and gram/formulas.py call
_FUNCTIONS = SimpleNamespace(
    arange=lambda n, like: tf.range(n),
    arctan2=tf.atan2,
    assemble=partial(join_bands, tf.concat, tf.transpose, _mirror),
    clip=tf.clip_by_value,
    exp=tf.exp,
    largest=_largest,
    mirror=_mirror,
    power=partial(safe_power, _where, tf.pow),
    root=partial(safe_root, _where, tf.sqrt),
    shape=lambda x: tf.unstack(tf.shape(x), 2),
    squared_distances=_squared_distances,
    stop_gradient=tf.stop_gradient,
    sum=partial(tf.reduce_sum, axis=1, keepdims=True),
    where=_where,
)
