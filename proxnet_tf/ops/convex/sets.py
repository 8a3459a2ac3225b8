"""Projections onto sets: the proximal maps of indicators, batched over all axes but the last.

    project_C(x) = argmin_{z in C} 1/2 ||z - x||^2

lam changes nothing. Inputs are float32 or float64. Beside each projection stands the indicator of
its set, 0 inside and +inf outside, where a bound may be missed by 100 roundings of its own size.
Where the set's boundary makes a projection non-smooth, each docstring says which of the possible
Jacobians the gradient uses. An empty last axis comes out empty. An entry that is not finite affects
only its own row. Where every entry of the output depends on every entry of the input, NaN makes the
whole row NaN, value and gradient, as does an infinity for which no projection is defined.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.norms import norm, polar
from proxnet_tf.ops.linear.number import scalar
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
        lam: scalar > 0, in the dtype of x or in float64 if it is too small for that of x.
        once: for a `solve` that automatic differentiation gets wrong. It is kept off the tape, and
            a second derivative raises `NotImplementedError`. Without `once`, J y is differentiated
            as written.
    """

    @tf.custom_gradient
    def mapped(x: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tuple]]:
        z, jacobian = solve(*map(tf.stop_gradient, (x, lam)) if once else (x, lam))

        def gradient(
            cotangent: tf.Tensor, x: tf.Tensor, lam: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            dx = jacobian(cotangent)
            # An entry that the map ignores may be infinite: 0 times inf counts as 0.
            moved = tf.where(dx == 0, tf.zeros_like(x), x - z)
            total = tf.reduce_sum(dx * moved)
            return dx, tf.cast(total, lam.dtype) / lam

        return z, lambda y: (differentiable_once(gradient) if once else gradient)(y, x, lam)

    x = tf.convert_to_tensor(x)
    return mapped(x, lam if tf.is_tensor(lam) else scalar(lam, x.dtype))


def nan_where(z: tf.Tensor, dx: tf.Tensor) -> tf.Tensor:
    """`dx`, but NaN where z is NaN: there the support, and so the gradient, is unknown."""
    return tf.where(tf.math.is_nan(z), tf.constant(np.nan, dx.dtype), dx)


def without_nan(x: tf.Tensor, valid: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """`x` with 0 in the rows that hold a NaN; and a tensor to add: NaN in those rows, else 0.

    The minimum, the maximum and the order of NaNs differ between processors.

    Args:
        x: float tensor (..., n).
        valid: booleans in the shape of `x`; entries with False neither count nor change.
    """
    unknown = tf.math.is_nan(x) if valid is None else tf.math.is_nan(x) & valid
    lost = tf.reduce_any(unknown, axis=-1, keepdims=True)
    if valid is not None:
        lost &= valid
    zero = tf.zeros_like(x)
    return tf.where(lost, zero, x), tf.where(lost, tf.constant(np.nan, x.dtype), zero)


def indicator(inside: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """0 where `inside`, +inf elsewhere."""
    return tf.where(inside, tf.zeros([], dtype), tf.constant(np.inf, dtype))


def slack(size: float | tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """By how much a bound of this size may be missed: 100 roundings, in the dtype of `like`."""
    return scalar(100 * np.finfo(like.dtype.as_numpy_dtype).eps, like.dtype) * scalar(
        size, like.dtype
    )


# Box and orthant -------------------------------------------------------------------------------


def box(z: tf.Tensor, low: float = -1.0, high: float = 1.0) -> tf.Tensor:
    """Indicator of {low <= z_i <= high}; shape of `z` without its last axis.

    Either bound may be infinite. The size of a bound at 0 is the width of the box, 1 at most.

    Example:
        >>> box(tf.constant([[0.5, -5.0], [0.5, 2.0]]), low=0.0, high=float("inf")).numpy().tolist()
        [inf, 0.0]
    """
    z = tf.convert_to_tensor(z)
    width = min(high - low, 1.0)
    below = scalar(low, z.dtype) - slack(max(abs(low), width), z)
    above = scalar(high, z.dtype) + slack(max(abs(high), width), z)
    return indicator(tf.reduce_all((z >= below) & (z <= above), axis=-1), z.dtype)


def project_box(x: tf.Tensor, low: float = -1.0, high: float = 1.0) -> tf.Tensor:
    """Projection onto {low <= z_i <= high}: hard tanh for [-1, 1].

    The gradient passes where low <= x_i <= high (on the bounds too) and is 0 elsewhere.

    Example:
        >>> project_box([2.0, -0.5]).numpy().tolist()
        [1.0, -0.5]
    """
    x = tf.convert_to_tensor(x)
    return tf.clip_by_value(x, scalar(low, x.dtype), scalar(high, x.dtype))


def nonnegative(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {z_i >= 0}, where 0 has size 1; shape of `z` without its last axis.

    Example:
        >>> nonnegative(tf.constant([[1.0, 0.0], [1.0, -1.0]])).numpy().tolist()
        [0.0, inf]
    """
    return box(z, 0.0, np.inf)


def project_nonnegative(x: tf.Tensor) -> tf.Tensor:
    """Projection onto {z_i >= 0}: ReLU. The gradient at x_i = 0 is 0, as `tf.nn.relu` has it.

    Example:
        >>> project_nonnegative([2.0, -0.5]).numpy().tolist()
        [2.0, 0.0]
    """
    return tf.nn.relu(x)


# Balls and the simplex -------------------------------------------------------------------------


def l2_ball(z: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Indicator of {||z||_2 <= radius}; shape of `z` without its last axis.

    Example:
        >>> l2_ball(tf.constant([[0.6, 0.8], [3.0, 4.0]])).numpy().tolist()
        [0.0, inf]
    """
    z = tf.convert_to_tensor(z)
    return indicator(norm(z) <= scalar(radius, z.dtype) + slack(radius, z), z.dtype)


def l2_ball_point(x: tf.Tensor, radius: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
    """The point of `project_l2_ball` and its Jacobian-vector product."""
    size, length, unit = polar(x)
    limit = radius / size  # the norm of x itself may overflow
    outside = ~(length <= limit)  # a NaN is outside
    shrink = tf.where(outside, limit / tf.where(outside, length, tf.ones_like(length)), 1.0)

    def jacobian(y: tf.Tensor) -> tf.Tensor:
        radial = tf.reduce_sum(unit * y, axis=-1, keepdims=True) * unit
        return tf.where(outside, shrink * (y - radial), y)

    return tf.where(outside, radius * unit, x), jacobian


def project_l2_ball(x: tf.Tensor, radius: float | tf.Tensor = 1.0) -> tf.Tensor:
    """Projection onto {||z||_2 <= radius}: x min(1, radius / ||x||).

    On the sphere the gradient is that of the inside, the identity.

    Example:
        >>> project_l2_ball([3.0, 4.0], radius=2.5).numpy().tolist()
        [1.5, 2.0]
    """
    return symmetric_map(lambda x, _: l2_ball_point(x, scalar(radius, x.dtype)), x)


def simplex(z: tf.Tensor, total: float = 1.0) -> tf.Tensor:
    """Indicator of {z_i >= 0, sum z = total}; shape of `z` without its last axis.

    Example:
        >>> simplex(tf.constant([[0.75, 0.25], [0.75, 0.75], [1.5, -0.5]])).numpy().tolist()
        [0.0, inf, inf]
    """
    z = tf.convert_to_tensor(z)
    sums = tf.abs(tf.reduce_sum(z, axis=-1) - scalar(total, z.dtype)) <= slack(total, z)
    return indicator(tf.reduce_all(z >= -slack(total, z), axis=-1) & sums, z.dtype)


def _simplex_point(x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """max(x - tau, 0) with tau such that the entries sum to `total` (exact, by sorting)."""
    # A common shift changes nothing: the largest entry is moved to 0. An entry that is `total` or
    # more below it comes out as 0, however far below. In units of `total` nothing can
    # overflow, and `total` is not lost beside huge entries.
    x, nan = without_nan(x - tf.reduce_max(x, axis=-1, keepdims=True))
    x = tf.maximum(x, -total) / total
    ordered = tf.sort(x, axis=-1, direction="DESCENDING")
    excess = tf.cumsum(ordered, axis=-1) - 1
    counts = tf.cast(tf.range(1, tf.shape(x)[-1] + 1), x.dtype)
    admissible = counts * ordered > excess
    size = tf.reduce_sum(tf.cast(admissible, x.dtype), axis=-1, keepdims=True)
    size = tf.maximum(size, 1)
    top = tf.where(counts == size, excess, tf.zeros_like(excess))
    return total * tf.nn.relu(x - tf.reduce_sum(top, axis=-1, keepdims=True) / size) + nan


def _mean_free(y: tf.Tensor, support: tf.Tensor) -> tf.Tensor:
    """y minus its mean over the support, 0 off the support."""
    y = tf.where(support, y, tf.zeros_like(y))
    size = tf.reduce_sum(tf.cast(support, y.dtype), axis=-1, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(y, axis=-1, keepdims=True), size)
    return tf.where(support, y - mean, tf.zeros_like(y))


def project_simplex(x: tf.Tensor, total: float = 1.0) -> tf.Tensor:
    """Projection onto {z_i >= 0, sum z = total}: sparsemax for total = 1.

    The gradient is I - 11^T/|S| on the support S = {z_i > 0}; an entry that only touches 0 is
    outside S. An entry -inf, as in masked scores, comes out as 0.

    Example:
        >>> project_simplex([1.0, 0.5, -1.0]).numpy().tolist()
        [0.75, 0.25, 0.0]
    """

    def solve(x: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        z = _simplex_point(x, scalar(total, x.dtype))
        return z, lambda y: nan_where(z, _mean_free(y, z > 0))

    return symmetric_map(solve, x)


def l1_ball(z: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Indicator of {||z||_1 <= radius}; shape of `z` without its last axis.

    Example:
        >>> l1_ball(tf.constant([[0.5, -0.5], [1.0, -0.5]])).numpy().tolist()
        [0.0, inf]
    """
    z = tf.convert_to_tensor(z)
    length = tf.reduce_sum(tf.abs(z), axis=-1)
    return indicator(length <= scalar(radius, z.dtype) + slack(radius, z), z.dtype)


def l1_ball_point(x: tf.Tensor, radius: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
    """The point of `project_l1_ball` and its Jacobian-vector product."""
    size = tf.abs(x)
    inside = tf.reduce_sum(size, axis=-1, keepdims=True) <= radius
    shrunk = _simplex_point(size, radius)
    sign = tf.sign(x)

    z = tf.where(inside, x, sign * shrunk)

    def jacobian(y: tf.Tensor) -> tf.Tensor:
        return nan_where(z, tf.where(inside, y, sign * _mean_free(sign * y, shrunk > 0)))

    return z, jacobian


def project_l1_ball(x: tf.Tensor, radius: float = 1.0) -> tf.Tensor:
    """Projection onto {||z||_1 <= radius}: a soft threshold that just reaches the ball.

    On the boundary the gradient is the identity; an entry that only touches 0 gets none.

    Example:
        >>> project_l1_ball([1.0, -0.5]).numpy().tolist()
        [0.75, -0.25]
    """
    return symmetric_map(lambda x, _: l1_ball_point(x, scalar(radius, x.dtype)), x)


# Order and normalisation -----------------------------------------------------------------------


def isotonic(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {z_1 <= z_2 <= ... <= z_n}; shape of `z` without its last axis.

    A step down is judged by the larger of its own two entries.

    Example:
        >>> isotonic(tf.constant([[0.0, 1.0, 1.0], [0.0, -5.0, 1e9]])).numpy().tolist()
        [0.0, inf]
    """
    z = tf.convert_to_tensor(z)
    left, right = z[..., :-1], z[..., 1:]
    larger = tf.maximum(tf.abs(left), tf.abs(right))
    even = tf.math.is_finite(larger) & (left - right <= slack(larger, z))
    return indicator(tf.reduce_all((left <= right) | even, axis=-1), z.dtype)


def project_isotonic(x: tf.Tensor) -> tf.Tensor:
    """Projection onto the non-decreasing vectors (isotonic regression, pool adjacent violators).

    The gradient averages over the pooled blocks. Neighbours that are equal without having been
    pooled (a tie in x) keep separate gradients.

    Example:
        >>> project_isotonic([1.0, 3.0, 2.0]).numpy().tolist()
        [1.0, 2.5, 2.5]
    """

    def solve(x: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        known, nan = without_nan(tf.stop_gradient(x))
        z, block = tf.nn.isotonic_regression(known, decreasing=False)
        shape = tf.shape(x)
        rows = tf.reduce_prod(shape[:-1])
        row = tf.reshape(tf.range(rows), tf.concat([shape[:-1], [1]], axis=0))
        piece = tf.reshape(row * shape[-1] + block, [-1])

        def piece_sum(v: tf.Tensor) -> tf.Tensor:
            totals = tf.math.unsorted_segment_sum(tf.reshape(v, [-1]), piece, tf.size(v))
            return tf.reshape(tf.gather(totals, piece), tf.shape(v))

        size = piece_sum(tf.ones_like(x))
        z += nan
        return z, lambda y: nan_where(z, piece_sum(y) / size)

    return symmetric_map(solve, x)


def standardized(z: tf.Tensor) -> tf.Tensor:
    """Indicator of {||z|| = sqrt(n), sum z = 0}, not convex; shape of `z` without its last axis.

    Example:
        >>> standardized(tf.constant([[-1.0, 1.0], [-1.0, 2.0]])).numpy().tolist()
        [0.0, inf]
    """
    z = tf.convert_to_tensor(z)
    n = tf.cast(tf.shape(z)[-1], z.dtype)
    on_sphere = tf.abs(norm(z) - tf.sqrt(n)) <= slack(n, z)
    return indicator(on_sphere & (tf.abs(tf.reduce_sum(z, axis=-1)) <= slack(n, z)), z.dtype)


def project_standardized(x: tf.Tensor) -> tf.Tensor:
    """Projection onto {||z|| = sqrt(n), sum z = 0}: (x - mean) / standard deviation.

    The paper's batch normalisation as a proximal map (section 2). The set is a sphere, not convex:
    for a constant x every point of it is equally near, and 0 is returned with gradient 0.

    Example:
        >>> project_standardized([0.0, 2.0]).numpy().round(4).tolist()
        [-1.0, 1.0]
    """

    def solve(x: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        size, length, unit = polar(x - tf.reduce_mean(x, axis=-1, keepdims=True))
        root = tf.sqrt(tf.cast(tf.shape(x)[-1], x.dtype))

        def jacobian(y: tf.Tensor) -> tf.Tensor:
            y -= tf.reduce_mean(y, axis=-1, keepdims=True)
            y -= tf.reduce_sum(unit * y, axis=-1, keepdims=True) * unit
            return tf.math.divide_no_nan(root * y, length) / size

        return root * unit, jacobian

    return symmetric_map(solve, x)
