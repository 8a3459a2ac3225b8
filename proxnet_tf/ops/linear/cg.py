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
        reduction: <b, x> - 1/2 <x, A x> at the solution, the decrease of the quadratic model.
        norm: ||x||_M in the preconditioner's norm, <x, M x>^(1/2); equal to `radius` on the
            boundary of a trust region.
    """

    solution: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    negative_curvature: tf.Tensor
    iterations: tf.Tensor
    reduction: tf.Tensor
    norm: tf.Tensor


def conjugate_gradient(
    operator: Callable[[tf.Tensor], tf.Tensor],
    rhs: tf.Tensor,
    *,
    preconditioner: Callable[[tf.Tensor], tf.Tensor] | None = None,
    tolerance: float | tf.Tensor = 1e-10,
    max_iterations: int | tf.Tensor = 100,
    axes: tuple[int, ...] = (-1,),
    radius: float | tf.Tensor | None = None,
) -> CGResult:
    """Solves A x = b for symmetric positive definite A, every example with its own step sizes.

    An example stops by itself when ||b - A x|| <= tolerance ||b||, when it meets a direction of
    curvature <= 0, or when its numbers stop being finite; its last iterate is kept. The loop
    ends when no example is left or after `max_iterations`. With `radius` it is Steihaug's method:
    an iterate that would leave the ball ||x||_M <= radius, or a direction of curvature <= 0, ends
    on the boundary. Gradients do not flow through the loop: differentiate implicitly.

    Args:
        operator: x -> A x, linear and symmetric, in the shape of `rhs`.
        rhs: right-hand sides b; the axes not in `axes` are independent examples.
        preconditioner: r -> M^-1 r, symmetric positive definite; identity by default.
        tolerance: relative to the norm of b; a float or a scalar tensor.
        max_iterations: bound on the products with `operator`.
        axes: the axes that make up one vector, (-1,) by default; (-2, -1) for matrices.
        radius: trust-region radius > 0 in the norm of M; none by default.

    Returns:
        A `CGResult`.

    Reference: T. Steihaug (1983), The conjugate gradient method and trust regions.
    """
    rhs = tf.stop_gradient(rhs)
    apply_preconditioner = preconditioner or tf.identity
    bounded = radius is not None
    squared_radius = tf.cast(radius if bounded else 0.0, rhs.dtype) ** 2

    def inner(a, b):
        return tf.reduce_sum(a * b, axis=axes, keepdims=True)

    z = apply_preconditioner(rhs)
    rr, rz = inner(rhs, rhs), inner(rhs, z)
    target = tf.cast(tolerance, rhs.dtype) ** 2 * rr
    active, nothing = rr > target, tf.zeros_like(rr)

    def go_on(iteration, active, *_):
        return tf.reduce_any(active)

    def step(iteration, active, negative, x, r, p, rz, reduction, xx, xp, pp):
        ap = operator(p)
        curvature = inner(p, ap)
        concave = active & (curvature <= 0)
        negative |= concave
        alpha = tf.math.divide_no_nan(rz, curvature)
        if bounded:  # xx, xp, pp: <x, M x>, <x, M p>, <p, M p>
            outside = xx + 2 * alpha * xp + alpha**2 * pp > squared_radius
            leaving = active & (concave | outside)
            room = tf.maximum(squared_radius - xx, 0)
            edge = tf.math.divide_no_nan(room, xp + tf.sqrt(xp**2 + pp * room))
            alpha = tf.where(leaving, edge, alpha)
            moving = leaving | (active & (curvature > 0))
            active = active & ~leaving & (curvature > 0)
        else:
            active &= curvature > 0  # false for NaN too
            moving = active
        alpha = tf.where(moving, alpha, nothing)
        reduction += alpha * rz - 0.5 * alpha**2 * tf.where(moving, curvature, nothing)
        x = tf.where(moving, x + alpha * p, x)
        r = tf.where(moving, r - alpha * ap, r)
        xx, xp = xx + 2 * alpha * xp + alpha**2 * pp, xp + alpha * pp
        z = apply_preconditioner(r)
        rz_new = inner(r, z)
        active &= inner(r, r) > target
        beta = tf.math.divide_no_nan(rz_new, rz)
        p = tf.where(active, z + beta * p, p)
        xp, pp = beta * xp, rz_new + beta**2 * pp
        return iteration + 1, active, negative, x, r, p, rz_new, reduction, xx, xp, pp

    start = (tf.zeros([], tf.int32), active, tf.zeros_like(active), tf.zeros_like(rhs), rhs, z)
    iterations, _, negative, x, r, _, _, reduction, xx, _, _ = tf.while_loop(
        go_on,
        step,
        (*start, rz, nothing, nothing, nothing, rz),
        maximum_iterations=max_iterations,
    )
    residual = tf.sqrt(tf.math.divide_no_nan(inner(r, r), rr))
    converged = inner(r, r) <= target
    return CGResult(x, residual, converged, negative, iterations, reduction, tf.sqrt(xx))
