"""The proximal map of a smooth R that has no closed form: solve, then differentiate implicitly.

    z = argmin_{z in C} R(z) + lam/2 ||z - x||^2            z = P(v),  v = x - grad R(z) / lam

with P the projection onto C (the identity without a constraint). With J = dP/dv, symmetric, and
H the Hessian of R, a cotangent y of z becomes the cotangent J w of v, where

    (J + J H J / lam) w = J y                                                         (10)

(without constraint: (I + H / lam) w = y). Everything that v depends on (x, lam, a context, the
variables and tensors that R uses) then gets its gradient by ordinary differentiation of
grad R at the fixed z. Every row is a problem of its own with its own steps, forward and backward.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient
from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import check_tapes, differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed

RowFunction = Callable[[tf.Tensor], tf.Tensor]  # (batch, n) -> (batch,)
Projection = Callable[[tf.Tensor], tf.Tensor]  # (batch, n) -> (batch, n)
# z -> objective over lam and scale^2 (batch,), its slope times scale (batch, n), residual (batch,)
Evaluation = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
_ValueAndSlope = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

_NEAR = 1e-2  # the residual below which Newton is faster


class ProxSolution(NamedTuple):
    """The result of `smooth_prox`.

    Attributes:
        point: z, in the shape of x; differentiable.
        report: one value a row; the residual is max_i |z - P(x - grad R(z)/lam)|_i relative to
            max(1, max_i |x_i|).
    """

    point: tf.Tensor
    report: Report


def default_tolerance(dtype: tf.DType) -> float:
    """1e-9 in float64, 1e-5 in float32: what rounding lets the residual reach.

    Example:
        >>> default_tolerance(tf.float64)
        1e-09
    """
    return 1e-9 if tf.as_dtype(dtype) == tf.float64 else 1e-5


def smooth_prox(
    regularizer: RowFunction,
    x: tf.Tensor,
    lam: float | tf.Tensor,
    *,
    projection: Projection | None = None,
    start: tf.Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 200,
    observer: Observer | None = None,
) -> ProxSolution:
    """argmin_{z in C} R(z) + lam/2 ||z - x||^2 for every row, with the implicit gradient.

    Accelerated (projected) gradient with backtracking and restarts; without `projection` Newton
    steps finish. Differentiable once. R has to be convex, or its curvature above -lam; otherwise
    the result is a local minimum or has `converged == False`. A row whose iterates stop being
    finite returns its start.

    Args:
        regularizer: R, (batch, n) -> (batch,), smooth where it is finite, +inf elsewhere; row i of
            the result may depend on row i only.
        x: float32 or float64 tensor of shape (batch, n).
        lam: scalar > 0.
        projection: z -> the nearest point of a convex set C; R must be finite on C.
        start: a point where R is finite, in the shape of x; x (projected) by default.
        tolerance: bound on the residual; `default_tolerance(x.dtype)` by default.
        max_iterations: bound on the iterations of each solver, and on those of the conjugate
            gradients that solve (10) in the backward pass.
        observer: called in the backward pass with the `Report` of (10): relative residuals, one a
            row. A system that is not positive definite counts as unsolved.

    Returns:
        A `ProxSolution`.

    Raises:
        ValueError: if R returns another shape than (batch,), or does not depend on z.

    Example:
        >>> found = smooth_prox(lambda z: tf.reduce_sum(z**2, -1) / 2, tf.constant([[3.0]]), 2.0)
        >>> found.point.numpy().round(4).tolist(), found.report.converged.numpy().tolist()
        ([[2.0]], [True])
    """
    x = tf.convert_to_tensor(x)
    lam = scalar(lam, x.dtype)
    tolerance = default_tolerance(x.dtype) if tolerance is None else tolerance
    project = projection or tf.identity
    gradient = _gradient_of(regularizer)

    fixed_x, fixed_lam = tf.stop_gradient(x), tf.stop_gradient(lam)
    scale = tf.maximum(tf.reduce_max(tf.abs(fixed_x), axis=-1, keepdims=True), 1)
    origin = tf.stop_gradient(project(fixed_x if start is None else tf.cast(start, x.dtype)))

    def evaluate(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(R(z)/lam + 1/2 ||z - x||^2) / scale^2, its gradient times scale, the residual, by row.

        The residual is +inf where R is not finite or the value is NaN.
        """
        r, slope = gradient(z)
        shift = slope / fixed_lam
        gap = (z - fixed_x) / scale
        unit = tf.squeeze(scale, -1)
        value = r / fixed_lam / unit / unit + tf.reduce_sum(gap**2, axis=-1) / 2
        residual = tf.reduce_max(tf.abs(z - project(fixed_x - shift)) / scale, axis=-1)
        residual = tf.maximum(residual, 0)  # for a row without entries
        known = tf.math.is_finite(r) & ~tf.math.is_nan(value)
        residual = tf.where(known, residual, tf.cast(float("inf"), residual.dtype))
        return value, shift / scale + gap, residual

    near = max(tolerance, _NEAR) if projection is None else tolerance
    z, iterations = _accelerated_gradient(evaluate, project, origin, scale, near, max_iterations)
    z = _finite_or(z, origin)
    if projection is None:
        z, more = _newton(evaluate, gradient, z, fixed_lam, scale, tolerance, max_iterations)
        iterations += more
    z = tf.stop_gradient(z)
    residual = tf.stop_gradient(evaluate(z)[2])
    point = _differentiable_point(gradient, project, z, x, lam, max_iterations, observer)
    return ProxSolution(point, Report(residual, iterations, residual <= scalar(tolerance, x.dtype)))


def _gradient_of(regularizer: RowFunction) -> _ValueAndSlope:
    """z -> (R(z), grad R(z)), with checks of what R returns."""

    def gradient(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = tf.convert_to_tensor(regularizer(z))
            _check_value(value, z)
        slope = tape.gradient(value, z)
        if slope is None:
            check_tapes()
            raise ValueError(
                "R must depend on its argument through differentiable TensorFlow or Keras "
                "operations. Received: a function whose value has no gradient."
            )
        return value, tf.convert_to_tensor(slope)

    return gradient


def _check_value(value: tf.Tensor, z: tf.Tensor) -> None:
    if not value.shape.is_compatible_with(z.shape[:1]):
        raise ValueError(
            "R must return one number a row, shape (batch,). Received: shape "
            f"{tuple(value.shape)} for z of shape {tuple(z.shape)}; sum over the last axis with "
            "tf.reduce_sum(..., axis=-1)."
        )
    if value.dtype != z.dtype:
        raise ValueError(
            f"R must keep the dtype of its argument, {z.dtype.name}. Received: {value.dtype.name}; "
            f"make a Keras layer R, and the layers in it, with dtype={z.dtype.name!r}."
        )


def _finite_or(z: tf.Tensor, fallback: tf.Tensor) -> tf.Tensor:
    finite = tf.reduce_all(tf.math.is_finite(z), axis=-1, keepdims=True)
    return tf.where(finite, z, fallback)


# Solvers ---------------------------------------------------------------------------------------


def _hessian_product(gradient: _ValueAndSlope, z: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """H v, the derivative of <grad R(z), v>; 0 where R is linear."""
    with tf.GradientTape() as tape:
        tape.watch(z)
        along = tf.reduce_sum(gradient(z)[1] * v)
    product = tape.gradient(along, z)
    return tf.zeros_like(v) if product is None else tf.convert_to_tensor(product)


def _newton(
    evaluate: Evaluation,
    gradient: _ValueAndSlope,
    z: tf.Tensor,
    lam: tf.Tensor,
    scale: tf.Tensor,
    tolerance: float,
    max_iterations: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Newton-CG with backtracking. A row ends when no step length improves it."""
    rounding = 10 * np.finfo(z.dtype.as_numpy_dtype).eps

    def newton(
        iteration: tf.Tensor, z: tf.Tensor, residual: tf.Tensor, active: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        value, slope, _ = evaluate(z)
        downhill = -_finite_or(slope, tf.zeros_like(slope)) * scale
        direction = conjugate_gradient(
            lambda v: v + _hessian_product(gradient, z, v) / lam, downhill, tolerance=1e-2
        ).solution
        flat = tf.reduce_all(direction == 0, axis=-1, keepdims=True)  # negative curvature at once
        direction = tf.where(flat, downhill, direction)
        fall = tf.reduce_sum(slope * direction / scale, axis=-1)

        def attempt(length: tf.Tensor) -> tuple[tf.Tensor, ...]:
            candidate = z + length[:, tf.newaxis] * direction
            reached, _, moved = evaluate(candidate)
            lowered = reached - value
            lower = (lowered <= 1e-4 * length * fall) & (lowered < -rounding * (1 + tf.abs(value)))
            return length, candidate, moved, lower | (moved < 0.9 * residual)

        searching = active & (residual > tolerance)  # solved rows try the full step only
        _, candidate, moved, better = tf.while_loop(
            lambda length, candidate, moved, better: tf.reduce_any(searching & ~better),
            lambda length, candidate, moved, better: attempt(tf.where(better, length, length / 2)),
            attempt(tf.ones_like(value)),
            maximum_iterations=30,
        )
        better &= active
        z = tf.where(better[:, tf.newaxis], candidate, z)
        residual = tf.where(better, moved, residual)
        return iteration + 1, z, residual, better & (residual > rounding / 20)

    residual = evaluate(z)[2]
    iterations, z, *_ = tf.while_loop(
        lambda iteration, z, residual, active: tf.reduce_any(active),
        newton,
        (tf.zeros([], tf.int32), z, residual, residual > rounding / 20),
        maximum_iterations=max_iterations,
    )
    return z, iterations


def _accelerated_gradient(
    evaluate: Evaluation,
    project: Projection,
    origin: tf.Tensor,
    scale: tf.Tensor,
    tolerance: float,
    max_iterations: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Accelerated gradient, projected onto C; every row has its own step length and restarts.

    The objective over lam has curvature 1 at least, so the momentum is that of strong convexity.
    """
    rounding = 10 * np.finfo(origin.dtype.as_numpy_dtype).eps
    value, slope, residual = evaluate(origin)
    lost = tf.math.is_nan(value)  # no step can repair such a row

    def step(
        iteration: tf.Tensor,
        z: tf.Tensor,
        slope: tf.Tensor,
        ahead: tf.Tensor,
        length: tf.Tensor,
        _: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        value, slope_ahead, _ = evaluate(ahead)
        inside = tf.math.is_finite(value)[:, tf.newaxis]  # momentum may leave the domain of R
        ahead, slope = tf.where(inside, ahead, z), tf.where(inside, slope_ahead, slope)

        def attempt(length: tf.Tensor) -> tuple[tf.Tensor, ...]:
            candidate = project(ahead - length[:, tf.newaxis] * slope * scale)
            move = (candidate - ahead) / scale
            value, moved_slope, residual = evaluate(candidate)
            curvature = tf.reduce_sum((moved_slope - slope) * move, axis=-1)
            short = curvature * length <= tf.reduce_sum(move**2, axis=-1)
            short |= tf.reduce_max(tf.abs(move), axis=-1) <= rounding
            short &= tf.math.is_finite(value)
            return candidate, moved_slope, residual, length, short | lost | (length < 1e-30)

        candidate, slope, residual, length, _ = tf.while_loop(
            lambda *state: ~tf.reduce_all(state[-1]),
            lambda *state: attempt(tf.where(state[-1], state[-2], state[-2] / 2)),
            attempt(length),
            maximum_iterations=100,
        )
        weight = (1 - tf.sqrt(length)) / (1 + tf.sqrt(length))
        # Restart where the momentum points uphill (O'Donoghue and Candes, 2015).
        uphill = tf.reduce_sum((ahead - candidate) / scale * ((candidate - z) / scale), axis=-1) > 0
        weight = tf.where(uphill, tf.zeros_like(weight), weight)
        ahead = project(candidate + weight[:, tf.newaxis] * (candidate - z))
        length = tf.minimum(1.5 * length, 1)
        return iteration + 1, candidate, slope, ahead, length, residual

    length = tf.ones_like(scale[:, 0])
    iterations, z, *_ = tf.while_loop(
        lambda *state: tf.reduce_any((state[-1] > tolerance) & ~lost),
        step,
        (tf.zeros([], tf.int32), origin, slope, origin, length, residual),
        maximum_iterations=max_iterations,
    )
    return z, iterations


# Implicit gradient -----------------------------------------------------------------------------


def _differentiable_point(
    gradient: _ValueAndSlope,
    project: Projection,
    z: tf.Tensor,
    x: tf.Tensor,
    lam: tf.Tensor,
    max_iterations: int,
    observer: Observer | None,
) -> tf.Tensor:
    """z as a function of v = x - grad R(z)/lam, with the derivative (10)."""
    slope = gradient(z)[1]
    v = x - slope / lam

    @tf.custom_gradient
    def point(v: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        fixed_lam = tf.stop_gradient(lam)

        def backward(y: tf.Tensor, fixed_v: tf.Tensor) -> tf.Tensor:
            check_tapes()

            def j(u: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    tape.watch(fixed_v)
                    projected = project(fixed_v)
                return tf.convert_to_tensor(tape.gradient(projected, fixed_v, u))

            def operator(w: tf.Tensor) -> tf.Tensor:
                return j(w + _hessian_product(gradient, z, j(w)) / fixed_lam)

            solved = conjugate_gradient(
                operator, j(y), tolerance=_cg_tolerance(y.dtype), max_iterations=max_iterations
            )
            report = Report(
                tf.squeeze(solved.residual, -1),
                solved.iterations,
                tf.squeeze(solved.converged & ~solved.negative_curvature, -1),
            )
            return observed(observer, report, j(solved.solution))

        return tf.identity(z), lambda y: differentiable_once(backward)(y, v)

    return point(v)


def _cg_tolerance(dtype: tf.DType) -> float:
    return 1e-12 if dtype == tf.float64 else 1e-6
