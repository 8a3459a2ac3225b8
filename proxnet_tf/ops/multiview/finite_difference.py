"""The gradient of the paper: a difference of two more proximal maps."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.multiview.gram import Sample, masked
from proxnet_tf.ops.multiview.of_gram import Map


def by_finite_difference(
    output: tf.Tensor,
    prox: Callable[[tf.Tensor], tuple[tf.Tensor, Sample, Map]],
    x: tf.Tensor,
    valid: tf.Tensor | None = None,
    observer: Observer | None = None,
) -> tf.Tensor:
    """The output of a proximal map with the paper's gradient, after Domke (2010).

    The Jacobian of a proximal map is symmetric, so the gradient is the directional derivative along
    the cotangent Y, here a central difference of two more maps. The step along Y is that of the
    published code.

    Args:
        output: the map of x, `[n, D]`.
        prox: maps rows `[n, D]` to their proximal map, their sample and its `map_of_gram`.
        x: rows, `[n, D]`.
        valid: `[n, 1]` booleans; the other rows pass unchanged, and so do their gradients.
        observer: receives the worst report of the two solves, see `observed`.
    """

    def difference(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        inside = masked(valid, y)
        size, span = (tf.reduce_max(tf.abs(a)) for a in (inside, masked(valid, x)))
        step = tf.math.divide_no_nan(1e-2 * (1.0 + span), size)
        above, _, up = prox(x + step * inside)
        below, _, down = prox(x - step * inside)
        first, second = up.report, down.report
        worst = Report(
            tf.maximum(first.residual, second.residual),
            tf.maximum(first.iterations, second.iterations),
            first.converged & second.converged,
        )
        change = tf.where(step > 0, (above - below) / (2.0 * step), y)
        return observed(observer, worst, change if valid is None else tf.where(valid, change, y))

    @tf.custom_gradient
    def moved(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(difference, "multiview proximal map")(y, x)

        return tf.stop_gradient(output), backward

    return moved(x)
