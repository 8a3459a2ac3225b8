"""The Moreau envelope of the correlation of a batch: a loss whose gradient is lam/n (X - P)."""

from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.moments import AllReduce, identity, masked
from proxnet_tf.ops.multiview.newton import Settings
from proxnet_tf.ops.multiview.prox import multiview_prox


class Envelope(NamedTuple):
    """Result of `moreau_envelope`; only `value` carries a gradient.

    Attributes:
        value: e(X), a scalar of the dtype of x.
        report: how well the map inside was solved.
    """

    value: tf.Tensor
    report: Report


def moreau_envelope(
    x: tf.Tensor,
    lam: tf.Tensor | float,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    *,
    valid: tf.Tensor | None = None,
    settings: Settings | None = None,
    all_reduce: AllReduce = identity,
) -> Envelope:
    """e(X) = min_P lam/(2n) ||P - X||_F^2 + L(P), the value of equation (1).

    It is at most L(X), which it nears as lam grows. Its gradient is lam/n (X - P) with the
    minimiser P of `multiview_prox`, so that no linear system is solved for it. Over replicas value
    and gradient are those of `correlation_loss`: of the global batch, with respect to own rows.

    Args:
        x, lam, correlation, epsilon, valid, settings, all_reduce: as for `multiview_prox`.

    Not differentiable where P jumps. A second derivative raises `NotImplementedError`. With fewer
    than two valid rows the value is that of no correlation and the gradient zero.
    """
    lam = tf.stop_gradient(scalar(lam, tf.float64))

    @tf.custom_gradient
    def envelope(x: tf.Tensor) -> tuple[Any, Any]:
        found = multiview_prox(
            tf.stop_gradient(x),
            lam,
            correlation,
            epsilon,
            valid=valid,
            settings=settings,
            all_reduce=all_reduce,
        )
        away = masked(valid, tf.stop_gradient(x) - found.output)
        rows = masked(valid, tf.ones_like(x[:, :1]))
        squares, count = all_reduce(
            tf.reduce_sum(tf.square(tf.cast(away, tf.float64))),
            tf.reduce_sum(tf.cast(rows, tf.float64)),
        )
        slope = lam / tf.maximum(count, 1.0)
        value = 0.5 * slope * squares + correlation.constant - found.correlation_after

        def backward(y: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            answer = tf.cast(slope, x.dtype) * away
            return differentiable_once(lambda y, _: y * answer, "envelope")(y, x)

        return (tf.cast(value, x.dtype), *found.report), backward

    value, *report = envelope(x)
    return Envelope(value, Report(*report))
