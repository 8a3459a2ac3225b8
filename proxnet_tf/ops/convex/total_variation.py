"""Total variation and the fused lasso along the last axis: exact, all rows at once.

The level sets of the minimiser nest: {z > c} minimises a binary problem whose data term is c - x.
Start from one piece a row. In every round each piece takes its optimal constant c and asks that
binary problem whether a part of it wants to lie above or below; if so the piece is cut there, and
the sign of a jump, once cut, is final (so that it becomes a linear pull on both sides). When no
piece is cut any more z is the pieces' constants: exact, after about log2(n) rounds, n at most.
The binary problem on a chain is a clipped running sum, m -> clip(m + u, -t, t), and clipped shifts
are closed under composition: a doubling scan does it in log2(n) steps without a loop over n.
"""

import tensorflow as tf

from proxnet_tf.ops.convex.sets import piece_mean, piece_sum, scalar, symmetric_map


def total_variation(z: tf.Tensor) -> tf.Tensor:
    """sum_i |z_{i+1} - z_i|; shape of `z` without its last axis."""
    return tf.reduce_sum(tf.abs(z[..., 1:] - z[..., :-1]), axis=-1)


def prox_total_variation(
    x: tf.Tensor, lam: float | tf.Tensor, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """argmin_z sum_i |z_{i+1} - z_i| + lam/2 ||z - x||^2, exact.

    The Jacobian averages over the constant pieces of z. Where two pieces are just about to merge
    the gradient keeps them apart.

    Args:
        x: float tensor of shape (..., n).
        lam: scalar > 0; the larger the nearer to x.
        mask: boolean, in the shape of `x`; entries with False come out unchanged, and no jump to
            or from them counts.

    Returns:
        Tensor in the shape of `x`. `prox_total_variation([0.0, 4.0], 1.0)` gives `[1.0, 3.0]`.
    """

    def solve(x, lam):
        rows = tf.reshape(x, [-1, tf.shape(x)[-1]])
        valid = None if mask is None else tf.reshape(mask, tf.shape(rows))
        z, piece, size = _pieces(rows, 1 / lam, valid)

        def jacobian(y):
            flat = piece_mean(tf.reshape(y, tf.shape(rows)), piece, size)
            return tf.reshape(flat, tf.shape(y))

        return tf.reshape(z, tf.shape(x)), jacobian

    x = tf.convert_to_tensor(x)
    return symmetric_map(solve, x, lam)


def fused_lasso(z: tf.Tensor, sparsity: float = 1.0) -> tf.Tensor:
    """sum_i |z_{i+1} - z_i| + sparsity ||z||_1; shape of `z` without its last axis."""
    return total_variation(z) + sparsity * tf.reduce_sum(tf.abs(z), axis=-1)


def prox_fused_lasso(
    x: tf.Tensor,
    lam: float | tf.Tensor,
    sparsity: float = 1.0,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """argmin_z sum_i |z_{i+1} - z_i| + sparsity ||z||_1 + lam/2 ||z - x||^2, exact.

    The soft threshold of the total variation's map (Friedman et al., 2007). On a kink of either
    map the gradient is that map's choice.
    `prox_fused_lasso([0.0, 4.0], 1.0)` gives `[0.0, 2.0]`.
    """
    z = prox_total_variation(x, lam, mask)
    threshold = sparsity / scalar(lam, z)
    sparse = z - tf.clip_by_value(z, -threshold, threshold)
    return sparse if mask is None else tf.where(mask, sparse, z)


def _pieces(x: tf.Tensor, t: tf.Tensor, valid: tf.Tensor | None):
    """Minimiser of t TV(z) + 1/2 ||z - x||^2 for the rows of `x`.

    Returns z, the number of every entry's piece and the size of that piece.
    """
    # Where it is cut does not vary with x: only the constants carry a gradient.
    cut, jump = _cuts(tf.stop_gradient(x), tf.stop_gradient(t), valid)
    piece, size, _, z = _constants(x, t, cut, jump)
    return z, piece, size


def _cuts(x: tf.Tensor, t: tf.Tensor, valid: tf.Tensor | None):
    """cut[:, i]: a piece begins at i;  jump[:, i]: the sign of z_i - z_{i-1} there."""
    rows, n = tf.shape(x)[0], tf.shape(x)[1]
    cut = tf.broadcast_to(tf.range(n) == 0, [rows, n])
    if valid is not None:
        cut |= ~valid | ~_previous(valid, True)
        x = tf.where(valid, x, tf.zeros_like(x))

    def cut_again(_, cut, jump):
        _, _, target, level = _constants(x, t, cut, jump)
        bound = tf.where(cut, tf.zeros_like(x), t)
        upper = _upper_part(level - target, _next(bound, 0.0))
        fresh = ~cut & (upper != _previous(upper, False))
        sign = tf.where(upper, tf.ones_like(x), -tf.ones_like(x))
        return tf.reduce_any(fresh), cut | fresh, tf.where(fresh, sign, jump)

    _, cut, jump = tf.while_loop(
        lambda again, *_: again,
        cut_again,
        (tf.constant(True), cut, tf.zeros_like(x)),
        maximum_iterations=n,
    )
    return cut, jump


def _constants(x: tf.Tensor, t: tf.Tensor, cut: tf.Tensor, jump: tf.Tensor):
    """The pieces' numbers and sizes, x pulled by t at the known jumps, and its piece means."""
    piece = tf.reshape(tf.cumsum(tf.cast(tf.reshape(cut, [-1]), tf.int32)) - 1, tf.shape(x))
    size = piece_sum(tf.ones_like(x), piece)
    target = x + t * (_next(jump, 0.0) - jump)
    level = piece_mean(target, piece, size)
    level += piece_mean(target - level, piece, size)  # the rounding of a long sum
    return piece, size, target, level


def _upper_part(u: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """argmin over w in {0, 1}^n of sum_i u_i w_i + bound_i |w_i - w_{i+1}|, as booleans.

    `bound[:, i]` is the price of a jump between i and i + 1, 0 where a piece ends.
    """
    # q_i = (cost of w_i = 1) - (cost of w_i = 0) of the chain up to i;  q_{i+1} = clip(q_i) + u.
    reach = _scan_clipped_shifts(u, bound)
    q = u + _previous(reach, 0.0)
    # From the right: w_i is fixed where |q_i| > bound_i, and copies w_{i+1} elsewhere.
    fixed = (tf.abs(q) > bound) | (bound == 0)
    n = tf.shape(u)[1]
    index = tf.where(fixed, tf.range(n)[tf.newaxis], n - 1)
    index = tf.reverse(_running_minimum(tf.reverse(index, [1])), [1])
    return tf.gather(q < 0, index, batch_dims=1)


def _doubling(step, state):
    """Runs `step(shift, *state)` for shift = 1, 2, 4, ... below the length of axis 1."""
    n = tf.shape(state[0])[1]
    return tf.while_loop(
        lambda shift, *_: shift < n,
        lambda shift, *state: (2 * shift, *step(shift, *state)),
        (tf.constant(1), *state),
    )[1:]


def _scan_clipped_shifts(u: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """m_i = clip(m_{i-1} + u_i, -bound_i, bound_i) from m = 0, by composing maps clip(. + a)."""

    def step(shift, a, low, high):
        def earlier(v, identity):
            return _shifted(v, shift, identity)

        # clip(clip(m + a1, l1, h1) + a2, l2, h2) = clip(m + a1 + a2, clip(l1 + a2), clip(h1 + a2))
        limit = a.dtype.max
        low_, high_ = earlier(low, -limit) + a, earlier(high, limit) + a
        return (
            earlier(a, 0.0) + a,
            tf.clip_by_value(low_, low, high),
            tf.clip_by_value(high_, low, high),
        )

    a, low, high = _doubling(step, (u, -bound, bound))
    return tf.clip_by_value(a, low, high)


def _running_minimum(index: tf.Tensor) -> tf.Tensor:
    return _doubling(lambda shift, v: (tf.minimum(v, _shifted(v, shift, v.dtype.max)),), (index,))[
        0
    ]


def _shifted(v: tf.Tensor, shift: tf.Tensor, fill) -> tf.Tensor:
    """v[:, i - shift], `fill` where that is before the start."""
    inside = tf.range(tf.shape(v)[1]) >= shift
    return tf.where(inside, tf.roll(v, shift, axis=1), tf.cast(fill, v.dtype))


def _previous(v: tf.Tensor, fill) -> tf.Tensor:
    return _shifted(v, tf.constant(1), fill)


def _next(v: tf.Tensor, fill) -> tf.Tensor:
    return tf.reverse(_previous(tf.reverse(v, [1]), fill), [1])
