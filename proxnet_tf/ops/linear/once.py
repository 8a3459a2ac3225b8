"""Gradient functions without derivatives: a derivative raises an error instead of being wrong."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def differentiable_once(
    function: Callable[..., Any], what: str = "proximal map"
) -> Callable[..., Any]:
    """`function` off the tape, with an error in place of its derivative.

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
