"""Ranks of partners among all pairs seen so far, batch by batch, in memory of a fixed size.

Pair i has a code a_i of one view and a code b_i of another. The query a_i looks for b_i among all
b_j, and b_i for a_i among all a_j. With the cosines s_ij = cos(a_i, b_j), the query a_i has

    g_i = #{j: s_ij > s_ii}  candidates ahead of its partner,
    t_i = #{j != i: s_ij = s_ii}  tied with it,

and b_i likewise with s_ji. Both counts only grow with new pairs. So it is enough to store the codes
and the counts: a new batch is compared with the stored pairs, and no two codes are compared twice.

If ties are broken at random, the rank of the partner is g_i + 1, .., g_i + t_i + 1 with equal
probability. Scores of a query are expectations over that.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.norms import polar

# Cosines that differ by at most this are tied; the products of codes round to about 1e-15.
TIE = 1e-12
# Entries of a block of similarities.
BLOCK = 2**21


class Pairs(NamedTuple):
    """The stored pairs, float64; C is the capacity, and unused places hold zeros.

    Attributes:
        count: how many pairs came, a scalar; more than C if some were not stored.
        weights: of the queries, `[C]`; NaN where a code or a weight was not a number.
        first: a_i of length one (or zero), `[C, d]`.
        second: b_i, `[C, d]`.
        ahead: g_i of the queries a_i, and of the queries b_i, `[2, C]`.
        tied: t_i, `[2, C]`.
    """

    count: tf.Tensor
    weights: tf.Tensor
    first: tf.Tensor
    second: tf.Tensor
    ahead: tf.Tensor
    tied: tf.Tensor


def insert(pairs: Pairs, first: tf.Tensor, second: tf.Tensor, weights: tf.Tensor) -> Pairs:
    """Adds pairs, and compares them with all pairs.

    Args:
        pairs: the stored pairs.
        first: codes `[m, d]`, float64.
        second: codes `[m, d]`, float64.
        weights: `[m]`, float64, of the queries; a pair of weight 0 is left out altogether, one of
            weight NaN makes every score NaN.
    """
    rows = tf.shape(first)[0]
    block = tf.minimum(max(BLOCK // pairs.weights.shape[0], 1), tf.maximum(rows, 1))

    def blocks(x: tf.Tensor) -> tf.Tensor:
        x = tf.pad(x, [[0, -rows % block]] + [[0, 0]] * (len(x.shape) - 1))
        return tf.reshape(x, [-1, block, *x.shape[1:]])

    new = [blocks(x) for x in (first, second, weights)]
    _, pairs = tf.while_loop(
        lambda i, _: i * block < rows,
        lambda i, pairs: (i + 1, _insert_block(pairs, *(x[i] for x in new))),
        (0, pairs),
    )
    return pairs


def _insert_block(pairs: Pairs, first: tf.Tensor, second: tf.Tensor, weights: tf.Tensor) -> Pairs:
    capacity = pairs.weights.shape[0]
    first, second = polar(first).unit, polar(second).unit
    cosine = tf.reduce_sum(first * second, axis=1)
    known = ~tf.math.is_nan(cosine)
    first, second = (tf.where(known[:, None], x, tf.zeros_like(x)) for x in (first, second))
    weights = tf.where(known | (weights == 0), weights, tf.cast(np.nan, weights.dtype))

    here = weights != 0
    before = tf.cast(pairs.count, tf.int32)
    place = before + tf.cumsum(tf.cast(here, tf.int32)) - 1
    kept = here & (place < capacity)
    place = tf.where(kept, place, -1)  # the sums below leave out -1
    count = before + tf.reduce_sum(tf.cast(here, tf.int32))

    def placed(x: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(tf.cast(x, tf.float64), place, capacity)

    all_first, all_second = pairs.first + placed(first), pairs.second + placed(second)
    places = tf.range(capacity)
    old, now = places < before, places < count
    rivals = now[:, None] & kept & (places[:, None] != place)
    none = tf.constant(-4.0, tf.float64)  # below every cosine
    # Cosines of stored a_i with new b_j, and of stored b_i with new a_j.
    by_first = tf.where(rivals, tf.matmul(all_first, second, transpose_b=True), none)
    by_second = tf.where(rivals, tf.matmul(all_second, first, transpose_b=True), none)
    partner = tf.reduce_sum(all_first * all_second, axis=1)[:, None]
    new_partner = tf.reduce_sum(first * second, axis=1)

    ahead, tied = [], []
    for stored, new in ((by_first, by_second), (by_second, by_first)):
        # Old queries meet the new candidates, new queries all candidates.
        ahead_old, tied_old = _compared(stored, partner, axis=1)
        ahead_new, tied_new = _compared(new, new_partner, axis=0)
        ahead.append(tf.where(old, ahead_old, tf.zeros_like(ahead_old)) + placed(ahead_new))
        tied.append(tf.where(old, tied_old, tf.zeros_like(tied_old)) + placed(tied_new))
    return Pairs(
        tf.cast(count, tf.float64),
        pairs.weights + placed(weights),
        all_first,
        all_second,
        pairs.ahead + tf.stack(ahead),
        pairs.tied + tf.stack(tied),
    )


def _compared(cosines: tf.Tensor, partner: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """How many cosines are ahead of the partner's, and how many are tied with it."""

    def number(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reduce_sum(tf.cast(x, tf.int32), axis=axis), tf.float64)

    ahead = number(cosines > partner + TIE)
    return ahead, number(cosines >= partner - TIE) - ahead


def recall(pairs: Pairs, k: int) -> tf.Tensor:
    """Probability that the rank is at most k, min(max(k - g, 0), t + 1) / (t + 1), `[2, C]`."""
    places = pairs.tied + 1.0
    return tf.minimum(tf.maximum(float(k) - pairs.ahead, 0.0), places) / places


def mean(pairs: Pairs, values: tf.Tensor) -> tf.Tensor:
    """Weighted means of the values of the queries of each direction, `[2]`; 0 without pairs."""
    total = tf.reduce_sum(pairs.weights)
    return tf.math.divide_no_nan(tf.linalg.matvec(values, pairs.weights), total)
