"""Conjugate gradients, the one implementation that every solver of the package calls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.report import Report


class CGResult(NamedTuple):
    """What `conjugate_gradient` found, one value an example (shape of `rhs` with `axes` kept as 1).

    Attributes:
        solution: the last iterate, in the shape of the right-hand side.
        residual: norm of `rhs - operator(solution)` relative to the norm of `rhs`.
        converged: whether `residual <= tolerance`.
        negative_curvature: whether a direction p with <p, A p> <= 0 ended the iteration.
        iterations: scalar int32, the number of products with the operator.
        reduction: <b, x> - 1/2 <x, A x> at the solution, the decrease of the quadratic model.
        norm: ||x||_M in the preconditioner's norm, <x, M x>^(1/2), equal to `radius` on the
            boundary of a trust region; 0 without a radius.
        image: B x where `image` was given, else the solution.
    """

    solution: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    negative_curvature: tf.Tensor
    iterations: tf.Tensor
    reduction: tf.Tensor
    norm: tf.Tensor
    image: tf.Tensor

    @property
    def report(self) -> Report:
        """How well the systems were solved."""
        return Report(self.residual, self.iterations, self.converged)


def conjugate_gradient(
    operator: Callable[..., Any],
    rhs: tf.Tensor,
    *,
    preconditioner: Callable[[tf.Tensor], tf.Tensor] | None = None,
    tolerance: float | tf.Tensor = 1e-10,
    max_iterations: int | tf.Tensor = 100,
    axes: tuple[int, ...] = (-1,),
    radius: float | tf.Tensor | None = None,
    image: tf.Tensor | None = None,
) -> CGResult:
    """Solves A x = b for symmetric positive definite A, every example with its own step sizes.

    An example stops by itself when ||b - A x|| <= tolerance ||b||, when it meets a direction of
    curvature <= 0, or when its numbers stop being finite; its last iterate is kept. The loop
    ends when no example is left or after `max_iterations`. With `radius` it is Steihaug's method:
    an iterate that would leave the ball ||x||_M <= radius, or a direction of curvature <= 0, ends
    on the boundary. The loop has no gradient: differentiate implicitly.

    Args:
        operator: x -> A x, linear and symmetric, in the shape of `rhs`. With `image` it returns
            the pair A x, B x.
        rhs: right-hand sides b; the axes not in `axes` are independent examples, each scaled by
            its largest entry for the solve.
        preconditioner: r -> M^-1 r, symmetric positive definite; identity by default.
        tolerance: relative to the norm of b; a float, a scalar tensor or one value an example.
        max_iterations: bound on the products with `operator`.
        axes: the axes that make up one vector, (-1,) by default; (-2, -1) for matrices.
        radius: trust-region radius > 0 in the norm of M; none by default.
        image: zeros in the shape of B x, for a linear map B that is a part of A and whose value at
            the solution is wanted too. It costs no further product.

    Returns:
        A `CGResult`.

    Reference: T. Steihaug (1983), The conjugate gradient method and trust regions.
    """
    rhs = tf.stop_gradient(rhs)
    unit = tf.maximum(tf.reduce_max(tf.abs(rhs), axis=axes, keepdims=True), 0)
    rhs = tf.math.divide_no_nan(rhs, unit)
    if radius is not None:
        squared_radius = (scalar(radius, rhs.dtype) / unit) ** 2

    def inner(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * b, axis=axes, keepdims=True)

    def preconditioned(r: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """||r||^2, z = M^-1 r and <r, z>."""
        rr = inner(r, r)
        if preconditioner is None:
            return rr, r, rr
        z = preconditioner(r)
        return rr, z, inner(r, z)

    rr0, z, rz = preconditioned(rhs)
    target = scalar(tolerance, rhs.dtype) ** 2 * rr0
    active, nothing = rr0 > target, tf.zeros_like(rr0)
    state = {
        "active": active,
        "negative": tf.zeros_like(active),
        "x": tf.zeros_like(rhs),
        "r": rhs,
        "p": z,
        "rr": rr0,
        "rz": rz,
    }
    if image is not None:
        state["image"] = image
    if radius is not None:  # <x, M x>, <x, M p>, <p, M p>
        state |= {"xx": nothing, "xp": nothing, "pp": rz}

    def step(old: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        new = dict(old)
        active, p, rz = old["active"], old["p"], old["rz"]
        ap, along = operator(p) if image is not None else (operator(p), None)
        curvature = inner(p, ap)
        concave = active & (curvature <= 0)
        new["negative"] |= concave
        alpha = tf.math.divide_no_nan(rz, curvature)
        finite = tf.math.is_finite(curvature + alpha**2 * inner(p, p))
        moving = active & (curvature > 0) & finite
        active = moving
        if radius is not None:
            xx, xp, pp = old["xx"], old["xp"], old["pp"]
            outside = xx + 2 * alpha * xp + alpha**2 * pp > squared_radius
            leaving = old["active"] & (concave | outside)
            room = tf.maximum(squared_radius - xx, 0)
            edge = tf.math.divide_no_nan(room, xp + tf.sqrt(xp**2 + pp * room))
            alpha = tf.where(leaving, edge, alpha)
            moving |= leaving
            active &= ~leaving
        alpha = tf.where(moving, alpha, nothing)

        def along_p(start: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
            return start + tf.math.multiply_no_nan(slope, alpha)

        new["x"], new["r"] = along_p(old["x"], p), along_p(old["r"], -ap)
        if along is not None:
            new["image"] = along_p(old["image"], along)
        new["rr"], z, new["rz"] = preconditioned(new["r"])
        active &= new["rr"] > target
        beta = tf.math.divide_no_nan(new["rz"], rz)
        new["p"] = tf.where(active, z + beta * p, p)
        if radius is not None:
            new["xx"] = xx + 2 * alpha * xp + alpha**2 * pp
            new["xp"], new["pp"] = beta * (xp + alpha * pp), new["rz"] + beta**2 * pp
        new["active"] = active
        return new

    iterations, state = tf.while_loop(
        lambda iteration, state: tf.reduce_any(state["active"]),
        lambda iteration, state: (iteration + 1, step(state)),
        (tf.constant(0), state),
        maximum_iterations=max_iterations,
    )
    x, r, rr = state["x"], state["r"], state["rr"]
    solution = tf.math.multiply_no_nan(unit, x)
    return CGResult(
        solution=solution,
        residual=tf.sqrt(tf.math.divide_no_nan(rr, rr0)),
        converged=(rr <= target) & tf.math.is_finite(target),
        negative_curvature=state["negative"],
        iterations=iterations,
        reduction=unit**2 * (inner(rhs, x) + inner(x, r)) / 2,  # A x = b - r
        norm=nothing if radius is None else unit * tf.sqrt(state["xx"]),
        image=solution if image is None else tf.math.multiply_no_nan(unit, state["image"]),
    )
