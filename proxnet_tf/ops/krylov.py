"""Conjugate gradients, the one implementation that every solver of the package calls."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class CGResult(NamedTuple):
    """What `conjugate_gradient` found, one value an example (shape of `rhs` with `axes` kept as 1).

    Attributes:
        solution: the last iterate, in the shape of the right-hand side.
        residual: norm of `rhs - operator(solution)` relative to the norm of `rhs`.
        converged: whether `residual <= tolerance`.
        negative_curvature: whether a direction p with <p, A p> <= 0 ended the iteration.
        iterations: scalar int32, the number of products with the operator.
    """

    solution: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    negative_curvature: tf.Tensor
    iterations: tf.Tensor


def conjugate_gradient(
    operator: Callable[[tf.Tensor], tf.Tensor],
    rhs: tf.Tensor,
    *,
    preconditioner: Callable[[tf.Tensor], tf.Tensor] | None = None,
    tolerance: float | tf.Tensor = 1e-10,
    max_iterations: int | tf.Tensor = 100,
    axes: tuple[int, ...] = (-1,),
) -> CGResult:
    """Solves A x = b for symmetric positive definite A, every example with its own step sizes.

    An example stops by itself when ||b - A x|| <= tolerance ||b||, when it meets a direction of
    curvature <= 0 (its last iterate is kept), or when its numbers stop being finite; the loop
    ends when no example is left or after `max_iterations`. Gradients do not flow through the loop:
    differentiate implicitly.

    Args:
        operator: x -> A x, linear and symmetric, in the shape of `rhs`.
        rhs: right-hand sides b; the axes not in `axes` are independent examples.
        preconditioner: r -> M^-1 r, symmetric positive definite; identity by default.
        tolerance: relative to the norm of b; a float or a scalar tensor.
        max_iterations: bound on the products with `operator`.
        axes: the axes that make up one vector, (-1,) by default; (-2, -1) for matrices.

    Returns:
        A `CGResult`.
    """
    rhs = tf.stop_gradient(rhs)
    apply_preconditioner = preconditioner or tf.identity

    def inner(a, b):
        return tf.reduce_sum(a * b, axis=axes, keepdims=True)

    zero = tf.zeros([], rhs.dtype)
    target = tf.cast(tolerance, rhs.dtype) ** 2 * inner(rhs, rhs)
    z = apply_preconditioner(rhs)
    rr = inner(rhs, rhs)

    def go_on(iteration, active, *_):
        return tf.reduce_any(active)

    def step(iteration, active, negative, x, r, p, rz):
        ap = operator(p)
        curvature = inner(p, ap)
        negative |= active & (curvature <= zero)
        active &= curvature > zero  # false for NaN too
        alpha = tf.math.divide_no_nan(rz, curvature)
        x = tf.where(active, x + alpha * p, x)
        r = tf.where(active, r - alpha * ap, r)
        z = apply_preconditioner(r)
        rz_new = inner(r, z)
        active &= inner(r, r) > target
        p = tf.where(active, z + tf.math.divide_no_nan(rz_new, rz) * p, p)
        return iteration + 1, active, negative, x, r, p, rz_new

    active = rr > target
    iterations, _, negative, x, r, *_ = tf.while_loop(
        go_on,
        step,
        (tf.zeros([], tf.int32), active, tf.zeros_like(active), tf.zeros_like(rhs), rhs, z)
        + (inner(rhs, z),),
        maximum_iterations=max_iterations,
    )
    rr = inner(r, r)
    residual = tf.sqrt(tf.math.divide_no_nan(rr, inner(rhs, rhs)))
    return CGResult(x, residual, rr <= target, negative, iterations)
