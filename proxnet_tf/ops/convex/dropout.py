"""The proximal map of the dropout regulariser of one example (section 3, ii).

    c_x = argmin_c 1/2 p (1 - p) sum_i x_i^2 c_i^2 + lam/2 ||c - x||^2,   p = sigmoid(x^T c)

With s = x^T c fixed, a = p (1 - p) = 1/(2 + e^s + e^-s) (the paper prints the numerator 2) and

    c_i = s/S x_i/(lam + a x_i^2),   S = sum_i x_i^2/(lam + a x_i^2)                           (11)

leave one number to search: g(s) = s^2/(2 S) - lam s, which has several local minima. From
lam/2 ||c - x||^2 <= R(x) follows (s - ||x||^2)^2 <= ||x||^2 sum_i x_i^4 a(||x||^2)/lam: the
minimiser lies in [0, ||x||^2 + root of that], and may exceed ||x||^2, where p (1 - p) is smaller.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.convex.chain import as_rows
from proxnet_tf.ops.convex.sets import without_nan
from proxnet_tf.ops.convex.smooth import ProxSolution, default_tolerance
from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import check_tapes, differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed

_GRID = 128  # points of the search


def _penalty(s: tf.Tensor) -> tf.Tensor:
    """a = p (1 - p) with p = sigmoid(s)."""
    return tf.sigmoid(s) * tf.sigmoid(-s)


def _profile_slope(s: tf.Tensor, x2: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    """g'(s) = s/S - s^2 S'/(2 S^2) - lam; s has a last axis of 1."""
    a = _penalty(s)
    weights = x2 / (lam + a * x2)
    total = tf.reduce_sum(weights, axis=-1, keepdims=True)
    # dS/da = -sum_i x_i^4/(lam + a x_i^2)^2,  da/ds = -a tanh(s/2)
    growth = tf.reduce_sum(weights**2, axis=-1, keepdims=True) * a * tf.tanh(s / 2)
    return s / total - (s / total) ** 2 * growth / 2 - lam


def _profile(s: tf.Tensor, x2: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(x2 / (lam + _penalty(s) * x2), axis=-1, keepdims=True)
    return s**2 / (2 * total) - lam * s


def _point(s: tf.Tensor, x: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    """(11)."""
    weights = x / (lam + _penalty(s) * x**2)
    return s / tf.reduce_sum(x * weights, axis=-1, keepdims=True) * weights


def _search(x2: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The global minimiser of the profile: a grid, then the root of g' in the best bracket.

    Returns the minimiser and the number of iterations of the root finder.
    """
    import tensorflow_probability as tfp

    squared = tf.reduce_sum(x2, axis=-1, keepdims=True)
    reach = squared * tf.reduce_sum(x2**2, axis=-1, keepdims=True) * _penalty(squared) / lam
    end = squared + tf.sqrt(reach)
    # Denser near 0, where p (1 - p) varies.
    steps = tf.linspace(tf.zeros([], x2.dtype), 1, _GRID)
    grid = tf.math.expm1(steps * tf.math.log1p(end))
    values = tf.map_fn(lambda s: _profile(s[:, tf.newaxis], x2, lam)[:, 0], tf.transpose(grid))
    best = tf.argmin(values, axis=0, output_type=tf.int32)
    low, middle, high = (
        tf.gather(grid, tf.clip_by_value(best + move, 0, _GRID - 1), batch_dims=1)[:, None]
        for move in (-1, 0, 1)
    )
    rising = _profile_slope(middle, x2, lam) > 0
    low, high = tf.where(rising, low, middle), tf.where(rising, middle, high)
    root = tfp.math.find_root_chandrupatla(
        lambda s: _profile_slope(s, x2, lam),
        low=low,
        high=high,
        position_tolerance=1e-14 if x2.dtype == tf.float64 else 1e-7,
        value_tolerance=0.0,
        max_iterations=100,
    )
    found = root.estimated_root
    # Where the profile is flat, its rounding must not choose the grid point.
    value = _profile(middle, x2, lam)
    slack = 8 * np.finfo(x2.dtype.as_numpy_dtype).eps * tf.abs(value)
    better = _profile(found, x2, lam) <= value + slack
    steps_taken = tf.reduce_max(tf.concat([[0], tf.reshape(root.num_iterations, [-1])], axis=0))
    return tf.where(better, found, middle), steps_taken


def prox_dropout(
    x: tf.Tensor, lam: float | tf.Tensor, observer: Observer | None = None
) -> ProxSolution:
    """argmin_c 1/2 p (1 - p) sum_i x_i^2 c_i^2 + lam/2 ||c - x||^2 with p = sigmoid(x^T c).

    The gradient is the implicit one at the minimum found; the map jumps where two minima tie.
    At x = 0, and where ||x||^2 overflows (p (1 - p) is 0 there), c = x with gradient 1.
    Differentiable once.

    Args:
        x: float32 or float64 tensor (..., n).
        lam: scalar > 0; the larger the nearer to x.
        observer: called in the backward pass with a `Report`. That pass is a closed form. A vector
            counts as unsolved where g'' <= 0: there s has no derivative and is held fixed.

    Returns:
        A `ProxSolution`: c in the shape of x, and how well it was solved, one value a vector. The
        residual is |g'(s)| relative to the terms that g' is the difference of; the tolerance is
        `default_tolerance(x.dtype)`.

    Example:
        >>> found = prox_dropout(tf.constant([[0.0, 0.0], [1.0, -2.0]]), 0.5)
        >>> found.point[0].numpy().tolist(), found.report.converged.numpy().tolist()
        ([0.0, 0.0], [True, True])
    """
    x = tf.convert_to_tensor(x)

    @tf.custom_gradient
    def mapped(
        rows: tf.Tensor, lam: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], Callable[..., tuple[tf.Tensor, tf.Tensor]]]:
        fixed, fixed_lam = tf.stop_gradient(rows), tf.stop_gradient(lam)
        squared = tf.reduce_sum(fixed**2, axis=-1, keepdims=True)
        usable = (squared > 0) & tf.math.is_finite(squared**2)
        safe = tf.where(usable, fixed, tf.ones_like(fixed))
        s, steps = _search(safe**2, fixed_lam)
        known, nan = without_nan(fixed)
        point = tf.where(usable, _point(s, safe, fixed_lam), known + nan)
        slope = tf.abs(_profile_slope(s, safe**2, fixed_lam))
        # Where c = x no solve is needed, unless x is not finite.
        trivial = 0 * tf.reduce_sum(fixed, axis=-1, keepdims=True)
        residual = tf.where(usable, slope / (2 * fixed_lam + slope), trivial)

        def gradient(
            cotangent: tf.Tensor, rows: tf.Tensor, lam: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            check_tapes()
            with tf.GradientTape() as tape:
                tape.watch((rows, lam))
                safe = tf.where(usable, rows, tf.ones_like(rows))
                with tf.GradientTape() as inner:
                    inner.watch(s)
                    slope = _profile_slope(s, safe**2, lam)
                curvature = tf.stop_gradient(inner.gradient(slope, s))
                convex = curvature > 0
                # g'(s; x, lam) = 0 moves s by -g'_x/g'' dx - g'_lam/g'' dlam.
                moved = tf.where(convex, (tf.stop_gradient(slope) - slope) / curvature, 0.0)
                c = tf.where(usable, _point(s + moved, safe, lam), rows)
            solved = tf.squeeze(convex | ~usable, -1)
            report = Report(tf.cast(~solved, cotangent.dtype), tf.zeros([], tf.int32), solved)
            return observed(observer, report, tape.gradient(c, (rows, lam), cotangent))

        def of_point(cotangent: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return differentiable_once(gradient)(cotangent, rows, lam)

        return (point, tf.squeeze(residual, -1), steps), of_point

    rows = as_rows(x)
    if 0 in rows.shape[1:]:
        point, residual, steps = rows, tf.zeros(tf.shape(rows)[:1], x.dtype), tf.constant(0)
    else:
        point, residual, steps = mapped(rows, scalar(lam, x.dtype))
    solved = residual <= default_tolerance(x.dtype)
    return ProxSolution(tf.reshape(point, tf.shape(x)), Report(residual, steps, solved))
