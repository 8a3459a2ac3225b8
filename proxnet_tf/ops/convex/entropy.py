"""The entropy on the simplex: a softmax with a temperature of its own, batched over the rows.

With w = lam (x - max x) and a = lam - 1 the map solves, in p_i = log z_i and one number nu a row,

    p_i + a (e^{p_i} - 1) = w_i - nu,    sum_i e^{p_i} = 1                                    (14)
"""

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.convex.sets import Jacobian, simplex, symmetric_map, without_nan


def entropy(z: tf.Tensor) -> tf.Tensor:
    """sum_i z_i log z_i - z_i^2/2 on the simplex, +inf off it; shape of `z` without its last axis.

    Convex on the simplex; the square makes the map at lam = 1 the softmax (the paper, section 2).

    Example:
        >>> entropy(tf.constant([[1.0, 0.0], [1.0, 1.0]])).numpy().tolist()
        [-0.5, inf]
    """
    z = tf.convert_to_tensor(z)
    inside = tf.reduce_sum(tf.math.xlogy(tf.nn.relu(z), tf.nn.relu(z)) - z**2 / 2, axis=-1)
    off = simplex(z)
    return tf.where(off == 0, inside, off)


def prox_entropy(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin over the simplex of sum_i z_i log z_i - z_i^2/2 + lam/2 ||z - x||^2.

    At lam = 1 this is softmax(x). The map is smooth, and the solution interior. An entry -inf, as
    in masked scores, comes out as 0 with gradient 0. Differentiable once.

    Args:
        x: float32 or float64 tensor (..., n).
        lam: scalar > 0.

    Returns:
        Tensor in the shape of `x`; the entries of every row are >= 0 and sum to 1.

    Example:
        >>> prox_entropy(np.log([1.0, 3.0]), 1.0).numpy().round(6).tolist()
        [0.25, 0.75]
    """

    def solve(x: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        lam = tf.cast(lam, x.dtype)
        z = _point(x, lam)
        slope = z / ((1 - z) + lam * z)
        total = tf.reduce_sum(slope, axis=-1, keepdims=True)

        def jacobian(y: tf.Tensor) -> tf.Tensor:
            mean = tf.reduce_sum(slope * y, axis=-1, keepdims=True) / total
            return lam * slope * (y - mean)

        return z, jacobian

    return symmetric_map(solve, x, lam, once=True)


def _point(x: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    floor = tf.constant(np.log(np.finfo(x.dtype.as_numpy_dtype).tiny), x.dtype)
    x, nan = without_nan(x - tf.reduce_max(x, axis=-1, keepdims=True))
    w = lam * x
    w = tf.maximum(w, 2 * floor - tf.abs(lam - 1))
    z, solved = _newton(w, lam)
    z = tf.cond(solved, lambda: z, lambda: _nested(w, lam, floor))
    return z / tf.reduce_sum(z, axis=-1, keepdims=True) + nan


def _largest(v: tf.Tensor) -> tf.Tensor:
    """The largest entry, without rows of NaN, which have no solution."""
    return tf.reduce_max(tf.where(tf.math.is_nan(v), tf.zeros_like(v), v))


def _newton(w: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Newton's method on (14) for p and nu together, from the softmax of w.

    Returns z and whether every row has converged: for very large or small lam some may not.
    """
    tolerance = tf.constant(np.sqrt(np.finfo(w.dtype.as_numpy_dtype).eps), w.dtype)
    z = tf.exp(w)
    total = tf.reduce_sum(z, axis=-1, keepdims=True)
    target = w + lam  # (14) is p_i + (1 + a z_i) + nu = target_i

    def step(p: tf.Tensor, z: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        growth = 1 + (lam - 1) * z
        error = p + growth - target  # without nu, which follows from the sum of z
        slope = z / growth
        excess = tf.reduce_sum(z - slope * error, axis=-1, keepdims=True) - 1
        nu = excess / tf.reduce_sum(slope, axis=-1, keepdims=True)
        moved = (error + nu) / growth
        p = tf.minimum(p - moved, 0)
        # Quadratic convergence: of an error half its square remains, over growth >= lam.
        left = tf.reduce_max(tf.abs(moved), axis=-1)
        return p, tf.exp(p), _largest(left) / tf.minimum(lam, 1)

    _, z, left = tf.while_loop(
        lambda *state: state[-1] > tolerance,
        step,
        (w - tf.math.log(total), z / total, tf.ones([], w.dtype)),
        maximum_iterations=10,
    )
    return z, (left <= tolerance) & (lam > 1e-3)


def _nested(w: tf.Tensor, lam: tf.Tensor, floor: tf.Tensor) -> tf.Tensor:
    """A search for nu in a bracket, with p solved for every nu: slower, but for every lam."""
    a = lam - 1
    precision = np.finfo(w.dtype.as_numpy_dtype).eps

    def entries(nu: tf.Tensor) -> tf.Tensor:
        """z in (0, 1] by Newton on p; for a > 0 the start follows Wright's omega."""
        v = w - nu + a
        above = v + tf.math.log(tf.maximum(a, 1e-30))
        start = tf.where(above > 1, v - above + tf.math.log(tf.maximum(above, 1)), v)

        def newton(p: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            z = tf.exp(p)
            step = (p + a * tf.math.expm1(p) - (w - nu)) / ((1 - z) + lam * z)
            return tf.minimum(p - step, 0), _largest(tf.abs(step) / (1 - p))

        p, _ = tf.while_loop(
            lambda _, step: step > 2 * precision,
            newton,
            (tf.clip_by_value(start, floor, 0), tf.ones([], w.dtype)),
            maximum_iterations=60,
        )
        return tf.exp(p)

    def newton(
        nu: tf.Tensor, low: tf.Tensor, high: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        # sum z(nu) - 1 is convex and decreasing; the root lies between z_max = 1 and z_max = 1/n.
        z = entries(nu)
        excess = tf.reduce_sum(z, axis=-1, keepdims=True) - 1
        slope = tf.reduce_sum(z / ((1 - z) + lam * z), axis=-1, keepdims=True)
        low, high = tf.where(excess > 0, nu, low), tf.where(excess > 0, high, nu)
        nu += excess / slope
        nu = tf.where((nu >= low) & (nu <= high), nu, (low + high) / 2)
        return nu, low, high, _largest(tf.abs(excess))

    n = tf.cast(tf.shape(w)[-1], w.dtype)
    low = tf.zeros_like(w[..., :1])
    high = low + tf.math.log(n) + a * (1 - 1 / n)
    nu, *_ = tf.while_loop(
        lambda *state: state[-1] > 1e-3 * np.sqrt(precision),
        newton,
        (high, low, high, tf.ones([], w.dtype)),
        maximum_iterations=60,
    )
    return entries(nu)
