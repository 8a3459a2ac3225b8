"""Norms and directions of vectors near the ends of the range of their dtype.

Squares of float32 numbers overflow beyond 1e19 and vanish below 1e-19; so every norm of the package
is taken in units of the largest entry.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class Polar(NamedTuple):
    """x = size * length * unit and ||x|| = size * length, along the last axis, kept as 1.

    Attributes:
        size: the largest absolute entry, 1 for a vector of zeros; a constant for gradients, which
            changes no derivative of the norm or of `unit`.
        length: the norm of x / size, from 1 to sqrt(n), or 0.
        unit: x / ||x||, or 0. A vector with an entry that is not finite has NaN everywhere.
    """

    size: tf.Tensor
    length: tf.Tensor
    unit: tf.Tensor


def polar(x: tf.Tensor) -> Polar:
    """Length and direction of vectors whose squares may overflow or underflow."""
    # The first part of the maximum is for vectors without entries.
    size = tf.maximum(tf.reduce_max(tf.abs(x), axis=-1, keepdims=True), 0)
    size = tf.stop_gradient(tf.where(size == 0, tf.ones_like(size), size))
    small = x / size
    squares = tf.reduce_sum(small**2, axis=-1, keepdims=True)
    zero = squares == 0
    length = tf.sqrt(tf.where(zero, tf.ones_like(squares), squares))
    return Polar(size, tf.where(zero, squares, length), small / length)


def norm(x: tf.Tensor) -> tf.Tensor:
    """Euclidean norm along the last axis, by `polar`; its gradient is the unit vector, 0 at 0.

    Example:
        >>> norm(tf.constant([3.0, 4.0])).numpy().item()
        5.0
    """

    @tf.custom_gradient
    def measured(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        parts = polar(x)
        infinite = tf.math.is_inf(parts.size)
        length = tf.where(infinite, parts.size, parts.size * parts.length)
        return length, lambda y: y * polar(x).unit

    return tf.squeeze(measured(tf.convert_to_tensor(x)), -1)
