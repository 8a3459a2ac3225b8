"""The nuclear norm on the last two axes.

With M = X^T X = V diag(s^2) V^T and t = 1/lam the map is X g(M), where g(s^2) = (1 - t/s)_+: the
right singular vectors are enough. Its derivative in the direction Y is

    Y g(M) + X V (G o (V^T (Y^T X + X^T Y) V)) V^T                                            (15)

with o the entrywise product and G_ij = [g(s_i^2) - g(s_j^2)] / (s_i^2 - s_j^2), without
cancellation: t / (s_i s_j (s_i + s_j)) where both exceed t, (s_i - t) / (s_i (s_i^2 - s_j^2))
where s_i alone does, 0 elsewhere.
"""

import tensorflow as tf

from proxnet_tf.ops.convex.sets import Jacobian, symmetric_map
from proxnet_tf.ops.linear.number import inverse


def nuclear(z: tf.Tensor) -> tf.Tensor:
    """Sum of the singular values of the last two axes; shape of `z` without them.

    Example:
        >>> nuclear(tf.constant([[3.0, 0.0], [0.0, -4.0]])).numpy().round(4).item()
        7.0
    """
    z = tf.convert_to_tensor(z)
    if 0 in z.shape[-2:]:
        return tf.zeros(tf.shape(z)[:-2], z.dtype)
    return tf.reduce_sum(tf.linalg.svd(z, compute_uv=False), axis=-1)


def prox_nuclear(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_Z ||Z||_* + lam/2 ||Z - X||_F^2: the soft threshold of the singular values at 1/lam.

    A singular value of exactly 1/lam counts as cut; equal singular values are allowed. A matrix
    with an entry that is not finite comes out as NaN. Differentiable once.

    Args:
        x: float32 or float64 tensor (..., m, n); float32 is computed in float64.
        lam: scalar > 0.

    Returns:
        Tensor in the shape of `x`.

    Example:
        >>> prox_nuclear([[3.0, 0.0], [0.0, 0.5]], 1.0).numpy().round(4).tolist()
        [[2.0, 0.0], [0.0, 0.0]]
    """

    def solve(x: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        finite = tf.reduce_all(tf.math.is_finite(x), axis=[-2, -1], keepdims=True)
        nan = tf.cast(float("nan"), x.dtype)
        tall = tf.shape(x)[-2] >= tf.shape(x)[-1]
        safe = _turned(tf.where(finite, x, tf.zeros_like(x)), tall)
        s, v = _right_singular(safe)
        t = inverse(lam, x.dtype)
        kept = tf.nn.relu(s - t)
        ratio = tf.math.divide_no_nan(kept, s)[..., tf.newaxis, :]
        along = tf.matmul(safe, v)
        z = _turned(tf.matmul(along * ratio, v, transpose_b=True), tall)
        z = tf.reshape(z, tf.shape(x))

        def jacobian(y: tf.Tensor) -> tf.Tensor:
            """(15)."""
            turned = tf.matmul(_turned(y, tall), v)
            both = tf.matmul(turned, along, transpose_a=True)
            core = _differences(s, t) * (both + tf.linalg.matrix_transpose(both))
            moved = turned * ratio + tf.matmul(along, core)
            moved = _turned(tf.matmul(moved, v, transpose_b=True), tall)
            return tf.where(finite, tf.reshape(moved, tf.shape(x)), nan)

        return tf.where(finite, z, nan), jacobian

    x = tf.convert_to_tensor(x)
    return x if 0 in x.shape[-2:] else symmetric_map(solve, x, lam, once=True)


def _turned(x: tf.Tensor, tall: tf.Tensor) -> tf.Tensor:
    """`x`, transposed unless `tall`."""
    return tf.cond(tall, lambda: x, lambda: tf.linalg.matrix_transpose(x))


def _right_singular(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Singular values and right singular vectors of tall matrices.

    In float64 the eigenvalues of X^T X carry more digits than a float32 decomposition of X.
    """
    if x.dtype == tf.float64:
        s, _, v = tf.linalg.svd(x)
        return s, v
    wide = tf.cast(x, tf.float64)
    values, v = tf.linalg.eigh(tf.matmul(wide, wide, transpose_a=True))
    return tf.cast(tf.sqrt(tf.nn.relu(values)), x.dtype), tf.cast(v, x.dtype)


def _differences(s: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
    """G in (15)."""
    one, two = s[..., :, tf.newaxis], s[..., tf.newaxis, :]
    above, below = tf.maximum(one, two), tf.minimum(one, two)
    share = tf.where(below > t, t / below, tf.math.divide_no_nan(above - t, above - below))
    mixed = tf.math.divide_no_nan(share, above * (above + below))
    return tf.where(above > t, mixed, tf.zeros_like(mixed))
