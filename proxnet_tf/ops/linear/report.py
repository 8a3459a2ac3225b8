"""How well a problem was solved: the type that every solve of the package returns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class Report(NamedTuple):
    """How well one problem, or each of a batch of problems, was solved.

    Attributes:
        residual: how far the returned point is from a solution, relative to the size of the
            problem; one value a problem.
        iterations: int32, the number for the problem that took most.
        converged: booleans in the shape of `residual`: whether it reached the tolerance. False
            where a number is not finite.
    """

    residual: tf.Tensor
    iterations: tf.Tensor
    converged: tf.Tensor


Observer = Callable[[Report], Any]


def exact(like: tf.Tensor) -> Report:
    """The report of a closed form, which has nothing to solve, in the dtype of `like`."""
    return Report(tf.zeros([], like.dtype), tf.zeros([], tf.int32), tf.constant(True))


def observed(observer: Observer | None, report: Report, tensors: Any) -> Any:
    """`tensors`, once `observer` has seen `report`.

    For the gradient functions of custom gradients. Inside the gradient of a loop, TensorFlow runs
    only what an output depends on, so the observer's operations are tied to `tensors`.

    Args:
        observer: what to call with the report; it returns the operations to wait for. None calls
            nothing. In a loop it must hold handles of variables that the forward pass captured
            (`Monitor.backward` of a layer does).
        report: how the backward problem was solved.
        tensors: a structure of tensors.
    """
    if observer is None:
        return tensors
    operations = observer(Report(*map(tf.stop_gradient, report)))
    if tf.executing_eagerly():
        return tensors
    with tf.control_dependencies(operations):
        return tf.nest.map_structure(tf.identity, tensors)
