"""Total variation and the fused lasso along the last axis: exact, all rows at once.

The level sets of the minimiser nest: {z > c} minimises a binary problem whose data term is c - x.
Start from one piece a row. In every round each piece takes its optimal constant c, and the binary
problem tells whether a part of the piece should lie above or below c. If so the piece is cut there,
and the sign of the jump is final (so the jump becomes a linear term on both sides). When no piece
is cut any more z is the pieces' constants: exact, after about log2(n) rounds, n at most.
The binary problem on a chain is a clipped running sum, m -> clip(m + u, -t, t), and clipped shifts
are closed under composition, so blocks of the chain can be processed in parallel: see
`proxnet_tf.ops.convex.chain`.
"""

import tensorflow as tf

from proxnet_tf.ops.convex import chain
from proxnet_tf.ops.convex.sets import nan_where, symmetric_map, without_nan
from proxnet_tf.ops.linear.number import inverse


def total_variation(z: tf.Tensor) -> tf.Tensor:
    """sum_i |z_{i+1} - z_i|; shape of `z` without its last axis.

    Example:
        >>> total_variation(tf.constant([0.0, 4.0, 1.0])).numpy().item()
        7.0
    """
    return tf.reduce_sum(tf.abs(z[..., 1:] - z[..., :-1]), axis=-1)


def prox_total_variation(
    x: tf.Tensor, lam: float | tf.Tensor, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """argmin_z sum_i |z_{i+1} - z_i| + lam/2 ||z - x||^2, exact.

    The Jacobian averages over the constant pieces of z. Where two pieces are just about to merge
    the gradient treats them as separate.

    Args:
        x: float tensor of shape (..., n).
        lam: scalar > 0; the larger the nearer to x.
        mask: boolean, in the shape of `x`; entries with False come out unchanged, and no jump to
            or from them counts.

    Returns:
        Tensor in the shape of `x`.

    Example:
        >>> prox_total_variation([0.0, 4.0], 1.0).numpy().tolist()
        [1.0, 3.0]
    """

    def solve(x: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, chain.Linear]:
        rows, t = chain.as_rows(x), inverse(lam, x.dtype)
        valid = None if mask is None else tf.reshape(mask, tf.shape(rows))
        known, nan = without_nan(tf.stop_gradient(rows), valid)
        cut, jump = _cuts(known, tf.stop_gradient(t), valid)
        pieces = chain.Pieces(cut)
        # The cuts do not vary with x: only the constants have a gradient.
        pulled = chain.fold(rows) + (chain.later(jump, 0.0) - jump) * t
        z = tf.reshape(chain.unfold(pieces.mean(pulled), rows) + nan, tf.shape(x))

        def jacobian(y: tf.Tensor) -> tf.Tensor:
            flat = tf.reshape(y, tf.shape(rows))
            dx = tf.reshape(chain.unfold(pieces.mean(chain.fold(flat)), flat), tf.shape(y))
            lost = nan_where(z, dx)
            return lost if mask is None else tf.where(mask, lost, dx)

        return z, jacobian

    x = tf.convert_to_tensor(x)
    return symmetric_map(solve, x, lam)


def fused_lasso(z: tf.Tensor, sparsity: float = 1.0) -> tf.Tensor:
    """sum_i |z_{i+1} - z_i| + sparsity ||z||_1; shape of `z` without its last axis.

    Example:
        >>> fused_lasso(tf.constant([0.0, 4.0, 1.0]), sparsity=2.0).numpy().item()
        17.0
    """
    return total_variation(z) + sparsity * tf.reduce_sum(tf.abs(z), axis=-1)


def prox_fused_lasso(
    x: tf.Tensor, lam: float | tf.Tensor, sparsity: float = 1.0, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """argmin_z sum_i |z_{i+1} - z_i| + sparsity ||z||_1 + lam/2 ||z - x||^2, exact.

    The soft threshold of the total variation's map (Friedman et al., 2007). At a kink of either
    map the gradient is the one documented for that map.

    Args:
        x: float tensor of shape (..., n).
        lam: scalar > 0; the larger the nearer to x.
        sparsity: factor of the l1 norm, >= 0.
        mask: as in `prox_total_variation`.

    Example:
        >>> prox_fused_lasso([0.0, 4.0], 1.0).numpy().tolist()
        [0.0, 2.0]
    """
    z = prox_total_variation(x, lam, mask)
    threshold = sparsity * inverse(lam, z.dtype)
    sparse = z - tf.clip_by_value(z, -threshold, threshold)
    return sparse if mask is None else tf.where(mask, sparse, z)


def _cuts(x: tf.Tensor, t: tf.Tensor, valid: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the minimiser of t TV(z) + 1/2 ||z - x||^2 jumps, in the layout of `chain.fold`.

    Returns cut, whether a piece begins at i, and jump, the sign of z_i - z_{i-1} there (0 where
    that difference costs nothing).
    """
    rows, n = tf.shape(x)[0], tf.shape(x)[1]
    first = tf.broadcast_to(tf.range(n) == 0, [rows, n])
    cut = chain.fold(first, True)
    if valid is not None:
        alone = chain.fold(~valid, True)
        cut |= alone | chain.earlier(alone, False)
        x = tf.where(valid, x, tf.zeros_like(x))
    x = chain.fold(x)
    # |z_i - x_i| <= 2 t: neighbours that are more than 4 t apart cannot meet.
    rise = x - chain.earlier(x, 0.0)
    cut, jump = cut | (tf.abs(rise) > 4 * t), tf.where(cut, tf.zeros_like(x), tf.sign(rise))
    jump = tf.where(tf.abs(rise) > 4 * t, jump, tf.zeros_like(x))

    def cut_again(
        _: tf.Tensor, cut: tf.Tensor, jump: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        pulled = x + t * (chain.later(jump, 0.0) - jump)
        # What a jump between i and i + 1 costs.
        price = tf.where(chain.later(cut, True), tf.zeros_like(x), t)
        upper = _upper_part(chain.Pieces(cut).mean(pulled) - pulled, price)
        fresh = ~cut & (upper != chain.earlier(upper, False))
        sign = tf.where(upper, tf.ones_like(x), -tf.ones_like(x))
        return tf.reduce_any(fresh), cut | fresh, tf.where(fresh, sign, jump)

    _, cut, jump = tf.while_loop(
        lambda again, *_: again, cut_again, (tf.constant(True), cut, jump), maximum_iterations=n
    )
    return cut, jump


def _upper_part(u: tf.Tensor, price: tf.Tensor) -> tf.Tensor:
    """argmin over w in {0, 1}^n of sum_i u_i w_i + price_i |w_i - w_{i+1}|, as booleans.

    `price_i` is the cost of a jump between i and i + 1, 0 where a piece ends.
    """
    # q_i = (cost of w_i = 1) - (cost of w_i = 0) of the chain up to i;  q_{i+1} = clip(q_i) + u.
    q = u + chain.earlier(chain.clipped_sum(u, price), 0.0)
    # From the right: w_i is fixed where |q_i| > price_i, and copies w_{i+1} elsewhere.
    fixed = (tf.abs(q) > price) | (price == 0)
    return chain.Marks(fixed, backwards=True).carried(q < 0)
