"""Projections onto sets: the proximal maps of indicators, batched over all axes but the last.

    project_C(x) = argmin_{z in C} 1/2 ||z - x||^2

lambda plays no part. Inputs are float32 or float64. `indicator(residual, ...)` is the matching
value: 0 inside the set (up to rounding), +inf outside. Where the set's boundary makes a projection
non-smooth, each docstring says which of the possible Jacobians the gradient uses.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.once import differentiable_once

Jacobian = Callable[[tf.Tensor], tf.Tensor]


def symmetric_map(
    solve: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Jacobian]],
    x: tf.Tensor,
    lam: float | tf.Tensor = 1.0,
    once: bool = False,
) -> tf.Tensor:
    """z = prox(x; lam), differentiated with its own Jacobian J = dz/dx, which is symmetric.

    Stationarity of R(z) + lam/2 ||z - x||^2 gives dz/dlam = J (x - z) / lam, so that one product
    J y serves both arguments.

    Args:
        solve: (x, lam) -> (z, y -> J y).
        x: float tensor.
        lam: scalar > 0.
        once: for a `solve` that automatic differentiation gets wrong: it is kept off the tape, and
            a second derivative raises `NotImplementedError`. Otherwise J y is itself
            differentiated as written.
    """

    @tf.custom_gradient
    def mapped(x, lam):
        z, jacobian = solve(*map(tf.stop_gradient, (x, lam)) if once else (x, lam))

        def gradient(cotangent, x, lam):
            dx = jacobian(cotangent)
            return dx, tf.reduce_sum(dx * (x - z)) / lam

        return z, lambda y: (differentiable_once(gradient) if once else gradient)(y, x, lam)

    x = tf.convert_to_tensor(x)
    return mapped(x, scalar(lam, x))


def scalar(value: float | tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """`value` in the dtype of `like`; a Python number does not pass through float32."""
    return tf.cast(value if tf.is_tensor(value) else np.float64(value), like.dtype)


def norm(x: tf.Tensor, keepdims: bool = False) -> tf.Tensor:
    """Euclidean norm along the last axis, without overflow or underflow of the squares."""
    scale = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)
    scale = tf.where(scale > 0, scale, tf.ones_like(scale))
    length = scale * tf.sqrt(tf.reduce_sum((x / scale) ** 2, axis=-1, keepdims=True))
    return length if keepdims else tf.squeeze(length, -1)


def indicator(violation: tf.Tensor, size: float | tf.Tensor) -> tf.Tensor:
    """0 where violation <= 100 roundings of `size`, +inf elsewhere."""
    dtype = violation.dtype
    rounding = tf.constant(100 * np.finfo(dtype.as_numpy_dtype).eps, dtype)
    inside = violation <= rounding * tf.maximum(tf.cast(size, dtype), 1)
    return tf.where(inside, tf.zeros([], dtype), tf.cast(float("inf"), dtype))


# Box and orthant -------------------------------------------------------------------------------


def box(z: tf.Tensor, low: float = -1.0, high: float = 1.0) -> tf.Tensor:
    """Indicator of {low <= z_i <= high}; shape of `z` without its last axis."""
    outside = tf.reduce_sum(tf.maximum(low - z, 0) + tf.maximum(z - high, 0), axis=-1)
    return indicator(outside, max(abs(low), abs(high)))


def project_box(x: tf.Tensor, low: float = -1.0, high: float = 1.0) -> tf.Tensor:
    """Projection onto {low <= z_i <= high}: hard tanh for [-1, 1].

    The gradient passes where low <= x_i <= high (on the bounds too) and is 0 elsewhere.
    `project_box([2.0, -0.5])` gives `[1.0, -0.5]`.
    """
    x = tf.convert_to_tensor(x)
    return tf.clip_by_value(x, scalar(low, x), scalar(high, x))


def nonnegative(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {z_i >= 0}; shape of `z` without its last axis."""
    return indicator(tf.reduce_sum(tf.maximum(-z, 0), axis=-1), 1.0)


def project_nonnegative(x: tf.Tensor) -> tf.Tensor:
    """Projection onto {z_i >= 0}: ReLU. The gradient at x_i = 0 is 0, as `tf.nn.relu` has it.

    `project_nonnegative([2.0, -0.5])` gives `[2.0, 0.0]`.
    """
    return tf.nn.relu(x)


# Balls and the simplex -------------------------------------------------------------------------


def l2_ball(z: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Indicator of {||z||_2 <= radius}; shape of `z` without its last axis."""
    return indicator(norm(z) - radius, radius)


def project_l2_ball(x: tf.Tensor, radius: float | tf.Tensor = 1.0) -> tf.Tensor:
    """Projection onto {||z||_2 <= radius}: x min(1, radius / ||x||).

    On the sphere the gradient is that of the inside, the identity.
    `project_l2_ball([3.0, 4.0])` gives `[0.6, 0.8]`.
    """

    def solve(x, _):
        length = norm(x, keepdims=True)
        shrink = tf.minimum(tf.math.divide_no_nan(scalar(radius, x), length), 1)
        outside = length > radius
        shrink = tf.where(outside, shrink, tf.ones_like(shrink))
        unit = tf.math.divide_no_nan(x, length)

        def jacobian(y):
            radial = tf.reduce_sum(unit * y, axis=-1, keepdims=True) * unit
            return tf.where(outside, shrink * (y - radial), y)

        return shrink * x, jacobian

    return symmetric_map(solve, x)


def simplex(z: tf.Tensor, total: float = 1.0) -> tf.Tensor:
    """Indicator of {z_i >= 0, sum z = total}; shape of `z` without its last axis."""
    negative = tf.reduce_sum(tf.maximum(-z, 0), axis=-1)
    return indicator(negative + tf.abs(tf.reduce_sum(z, axis=-1) - total), total)


def _simplex_point(x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """max(x - tau, 0) with tau such that the entries sum to `total` (exact, by sorting)."""
    # The projection does not see a common shift; the largest entry moves to 0, so that `total`
    # is not lost beside huge entries and the first partial sum is always admissible.
    x -= tf.reduce_max(x, axis=-1, keepdims=True)
    ordered = tf.sort(x, axis=-1, direction="DESCENDING")
    excess = tf.cumsum(ordered, axis=-1) - total
    counts = tf.cast(tf.range(1, tf.shape(x)[-1] + 1), x.dtype)
    admissible = counts * ordered > excess
    size = tf.reduce_sum(tf.cast(admissible, x.dtype), axis=-1, keepdims=True)
    size = tf.maximum(size, 1)
    top = tf.gather(excess, tf.cast(size, tf.int32) - 1, batch_dims=x.shape.rank - 1)
    return tf.nn.relu(x - top / size)


def _mean_free(y: tf.Tensor, support: tf.Tensor) -> tf.Tensor:
    """y minus its mean over the support, 0 off the support."""
    y = tf.where(support, y, tf.zeros_like(y))
    size = tf.reduce_sum(tf.cast(support, y.dtype), axis=-1, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(y, axis=-1, keepdims=True), size)
    return tf.where(support, y - mean, tf.zeros_like(y))


def project_simplex(x: tf.Tensor, total: float = 1.0) -> tf.Tensor:
    """Projection onto {z_i >= 0, sum z = total}: sparsemax for total = 1.

    The gradient is I - 11^T/|S| on the support S = {z_i > 0}; an entry that only touches 0 is
    outside S. `project_simplex([1.0, 0.5, -1.0])` gives `[0.75, 0.25, 0.0]`.
    """

    def solve(x, _):
        z = _simplex_point(x, scalar(total, x))
        return z, lambda y: _mean_free(y, z > 0)

    return symmetric_map(solve, x)


def l1_ball(z: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Indicator of {||z||_1 <= radius}; shape of `z` without its last axis."""
    return indicator(tf.reduce_sum(tf.abs(z), axis=-1) - radius, radius)


def l1_ball_point(x: tf.Tensor, radius: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
    """The point of `project_l1_ball` and its Jacobian-vector product."""
    size = tf.abs(x)
    inside = tf.reduce_sum(size, axis=-1, keepdims=True) <= radius
    shrunk = _simplex_point(size, radius)
    sign = tf.sign(x)

    def jacobian(y):
        return tf.where(inside, y, sign * _mean_free(sign * y, shrunk > 0))

    return tf.where(inside, x, sign * shrunk), jacobian


def project_l1_ball(x: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Projection onto {||z||_1 <= radius}: a soft threshold that just reaches the ball.

    On the boundary the gradient is the identity; an entry that only touches 0 gets none.
    `project_l1_ball([1.0, -0.5])` gives `[0.75, -0.25]`.
    """
    return symmetric_map(lambda x, _: l1_ball_point(x, scalar(radius, x)), x)


# Order and normalisation -----------------------------------------------------------------------


def isotonic(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {z_1 <= z_2 <= ... <= z_n}; shape of `z` without its last axis."""
    drops = tf.reduce_sum(tf.maximum(z[..., :-1] - z[..., 1:], 0), axis=-1)
    return indicator(drops, tf.reduce_max(tf.abs(z), axis=-1) if z.shape[-1] else 1.0)


def project_isotonic(x: tf.Tensor) -> tf.Tensor:
    """Projection onto the non-decreasing vectors (isotonic regression, pool adjacent violators).

    The gradient averages over the pooled blocks. Neighbours that are equal without having been
    pooled (a tie in x) keep separate gradients.
    `project_isotonic([1.0, 3.0, 2.0])` gives `[1.0, 2.5, 2.5]`.
    """

    def solve(x, _):
        z, block = tf.nn.isotonic_regression(tf.stop_gradient(x), decreasing=False)
        n = tf.shape(x)[-1]
        row = tf.reshape(tf.range(tf.size(x) // n), tf.concat([tf.shape(x)[:-1], [1]], axis=0))
        piece = row * n + block
        size = piece_sum(tf.ones_like(x), piece)
        return z, lambda y: piece_mean(y, piece, size)

    return symmetric_map(solve, x)


def piece_sum(v: tf.Tensor, piece: tf.Tensor) -> tf.Tensor:
    """For every entry the sum of `v` over the entries with the same number in `piece`."""
    flat = tf.reshape(piece, [-1])
    totals = tf.math.unsorted_segment_sum(tf.reshape(v, [-1]), flat, tf.size(v))
    return tf.reshape(tf.gather(totals, flat), tf.shape(v))


def piece_mean(v: tf.Tensor, piece: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """For every entry the mean of `v` over its piece, which has `size` entries."""
    return piece_sum(v, piece) / size


def standardized(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {||z|| = sqrt(n), sum z = 0}, not convex; shape of `z` without its last axis."""
    n = tf.cast(tf.shape(z)[-1], z.dtype)
    off_sphere = tf.abs(norm(z) - tf.sqrt(n))
    return indicator(off_sphere + tf.abs(tf.reduce_sum(z, axis=-1)), n)


def project_standardized(x: tf.Tensor) -> tf.Tensor:
    """Projection onto {||z|| = sqrt(n), sum z = 0}: (x - mean) / standard deviation.

    The paper's batch normalisation as a proximal map (section 2). The set is a sphere, not convex:
    for a constant x every point of it is equally near, and 0 is returned with gradient 0.
    `project_standardized([0.0, 2.0])` gives `[-1.0, 1.0]`.
    """

    def solve(x, _):
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        length = norm(centred, keepdims=True)
        unit = tf.math.divide_no_nan(centred, length)
        root = tf.sqrt(tf.cast(tf.shape(x)[-1], x.dtype))

        def jacobian(y):
            y -= tf.reduce_mean(y, axis=-1, keepdims=True)
            y -= tf.reduce_sum(unit * y, axis=-1, keepdims=True) * unit
            return tf.math.divide_no_nan(root * y, length)

        return root * unit, jacobian

    return symmetric_map(solve, x)
