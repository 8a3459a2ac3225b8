"""Gradient functions that have no derivatives of their own: those raise instead of being wrong."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report, observed


def differentiable_once(
    function: Callable[..., Any], what: str = "proximal map"
) -> Callable[..., Any]:
    """`function` off the tape, with an error in the place of its derivative.

    Args:
        function: from tensors to tensors, the gradient function of a custom gradient.
        what: what the gradient belongs to, for the message.
    """

    @tf.custom_gradient
    def wrapped(*arguments: tf.Tensor) -> Any:
        def refuse(*_: tf.Tensor, variables: Any = None) -> Any:
            raise NotImplementedError(
                f"The {what} provides first derivatives only. Received a request for the "
                "gradient of its gradient; do not put it under nested gradient tapes."
            )

        return function(*map(tf.stop_gradient, arguments)), refuse

    return wrapped


def by_finite_difference(
    output: tf.Tensor,
    prox: Callable[[tf.Tensor], tuple[tf.Tensor, Report]],
    x: tf.Tensor,
    valid: tf.Tensor | None = None,
    observer: Observer | None = None,
) -> tf.Tensor:
    """The output of a proximal map with the paper's gradient, after Domke (2010).

    The Jacobian of a proximal map is symmetric, so that the gradient is the directional derivative
    along the cotangent Y: a central difference of two more maps. The step along Y is that of the
    published code.

    Args:
        output: the map of x, `[n, D]`.
        prox: from rows `[n, D]` to their map, and the report of the solve.
        x: rows, `[n, D]`.
        valid: `[n, 1]` booleans; the other rows pass unchanged, and so do their gradients.
        observer: receives the worst report of the two solves, see `observed`.
    """

    def masked(rows: tf.Tensor) -> tf.Tensor:
        return rows if valid is None else tf.where(valid, rows, tf.zeros_like(rows))

    def difference(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        inside = masked(y)
        size, span = (tf.reduce_max(tf.abs(a)) for a in (inside, masked(x)))
        step = tf.math.divide_no_nan(1e-2 * (1.0 + span), size)
        (above, first), (below, second) = prox(x + step * inside), prox(x - step * inside)
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


def check_tapes() -> None:
    """Raises a `NotImplementedError` where no gradient tape records, as in forward mode.

    For gradient functions that need one: without it their derivatives would come out as zero.
    """
    probe = tf.ones([])
    with tf.GradientTape() as tape:
        tape.watch(probe)
        moved = probe + probe
    if tape.gradient(moved, probe) is None:
        raise NotImplementedError(
            "This proximal map has no derivative in forward mode (`tf.autodiff."
            "ForwardAccumulator`). Take the product with its Jacobian by two gradient tapes, or "
            "the Jacobian by `tape.jacobian`. Nor has it one inside of `keras.RematScope` or "
            "`tf.recompute_grad`: make the layer outside of the scope."
        )
