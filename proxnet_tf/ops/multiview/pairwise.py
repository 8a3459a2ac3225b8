"""Moments of views of which rows may lack some: what each pair of views tells.

Row r has view i where a_ri = 1. With n_ij rows that have both i and j (n_i = n_ii of view i), m_i
the mean of view i over the rows that have it, and

    G_ij = sum_r a_ri a_rj (x_ri - m_i)^T (x_rj - m_j),
    S_ij = G_ij / c_ij,      c_ij = n_ij (1 - 1/n_i - 1/n_j) + n_ij^2 / (n_i n_j),

S_ii is the covariance of view i in all rows that have it, and S_ij is the unbiased estimate of the
cross-covariance from the rows that have both, where what is missing does not depend on the values.
It is zero where no row has both. For complete rows c_ij = n - 1.

These blocks need not be those of any sample: S may have negative eigenvalues. With a root L of
the blocks of the views themselves, L L^T = B(S), and the correlations T = L^-1 S L^-T,

    S+ = L D^-1/2 T+ D^-1/2 L^T,      T+ = T without its negative eigenvalues,   D = B(T+),    (17)

is positive semidefinite and has the blocks of S for the views themselves. It is S where S is
positive semidefinite. For two views it is S with the canonical correlations above 1 set to 1. It
does not change with the units of the columns, nor with any invertible map of a view. It is not
differentiable where T has the eigenvalue 0.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.norms import headroom
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.guard import guarded, spoiled
from proxnet_tf.ops.multiview.moments import (
    BLOCK,
    BLOCK_RANK,
    EXACT_RANK,
    EXACT_ROWS,
    AllReduce,
    Gram,
    column_rounding,
    identity,
    masked,
    sizes_of_columns,
    sum_over_rows,
)
from proxnet_tf.ops.multiview.problem import outside_row_spaces


class PairSums(NamedTuple):
    """What is known of the rows, float64.

    Attributes:
        total: n, the number of rows that have a view, scalar.
        count: n_ij, `[J, J]`.
        mean: `[J, D]`, in row i and the columns of view j the mean of view j over the rows that
            have both.
        comoment: `[D, D]`, sums of products over the rows that have both, each view relative to
            its mean over those rows.
    """

    total: tf.Tensor
    count: tf.Tensor
    mean: tf.Tensor
    comoment: tf.Tensor


class PairMoments(NamedTuple):
    """Moments of the rows; `mean` and `gram` carry a gradient.

    Attributes:
        mean: `[D]`, of each view over the rows that have it, float64.
        gram: C = (n - 1) S+, `[D, D]`, float64; NaN where a number was not finite.
        count: n, the number of rows that have a view, scalar float64.
        rounding: as in `Moments`.
        rows: n_i, `[J]`.
        turn: block-diagonal G_ii^+; zero where each view has full rank.
        unused: projection onto what lies outside the row spaces of the views.
    """

    mean: tf.Tensor
    gram: tf.Tensor
    count: tf.Tensor
    rounding: tf.Tensor
    rows: tf.Tensor
    turn: tf.Tensor
    unused: tf.Tensor

    @property
    def sample(self) -> Gram:
        """What functions of a Gram matrix take."""
        return Gram(self.gram, self.count, self.rounding)


def view_of(correlation: Correlation) -> np.ndarray:
    """The view that each column belongs to, `[D]`."""
    return np.repeat(np.arange(len(correlation.sizes)), correlation.sizes)


def entries_of(correlation: Correlation, present: tf.Tensor) -> tf.Tensor:
    """Which entries are there, `[n, D]`, from which views are there, `[n, J]`."""
    return tf.gather(present, view_of(correlation), axis=1)


def by_columns(correlation: Correlation, x: tf.Tensor) -> tf.Tensor:
    """Numbers of pairs of views, `[J, J]`, as numbers of pairs of columns, `[D, D]`."""
    view = view_of(correlation)
    return tf.gather(tf.gather(x, view, axis=0), view, axis=1)


def partner_means(correlation: Correlation, mean: tf.Tensor) -> tf.Tensor:
    """`[D, D]`: (a, b) is the mean of column a over the rows that have the view of b, too."""
    return tf.gather(tf.transpose(mean), view_of(correlation), axis=1)


def own_mean(correlation: Correlation, mean: tf.Tensor) -> tf.Tensor:
    """`[D]`: the mean of each column over all rows that have it."""
    return tf.linalg.diag_part(partner_means(correlation, mean))


def pairs_together(correlation: Correlation, first: PairSums, second: PairSums) -> PairSums:
    """The sums of two samples together: Chan, Golub, LeVeque (1983) for each pair of views."""
    count = first.count + second.count
    share = tf.math.divide_no_nan(second.count, count)
    gap = second.mean - first.mean
    apart = partner_means(correlation, gap)
    between = by_columns(correlation, first.count * share) * apart * tf.transpose(apart)
    return PairSums(
        first.total + second.total,
        count,
        first.mean + tf.gather(share, view_of(correlation), axis=1) * gap,
        first.comoment + second.comoment + between,
    )


def pair_sums(
    correlation: Correlation, x: tf.Tensor, present: tf.Tensor, weight: tf.Tensor
) -> PairSums:
    """The sums of one batch.

    Args:
        correlation: sizes of the views.
        x: `[n, D]`, float64.
        present: `[n, J]` booleans.
        weight: how often each row counts, `[n, 1]`, float64 >= 0.
    """
    entries = entries_of(correlation, present & (weight > 0))
    x = masked(entries, x)
    has = tf.cast(present, x.dtype)
    some = tf.cast(tf.reduce_any(present, 1, keepdims=True), x.dtype)
    count = tf.matmul(has, weight * has, transpose_a=True)
    total = tf.reduce_sum(weight * some)
    column = tf.gather(count, view_of(correlation), axis=1)
    # Relative to the mean of each column first, so that the products lose no digits.
    shift = tf.math.divide_no_nan(tf.reduce_sum(weight * x, 0), own_mean(correlation, column))
    near = masked(entries, x - shift)
    sums = tf.matmul(has, weight * near, transpose_a=True)
    return _centred(correlation, total, count, shift, sums, tf.matmul(near, weight * near, True))


def _centred(
    correlation: Correlation,
    total: tf.Tensor,
    count: tf.Tensor,
    shift: tf.Tensor,
    sums: tf.Tensor,
    products: tf.Tensor,
) -> PairSums:
    """Sums and products of rows relative to `shift` as `PairSums`."""
    mean = tf.math.divide_no_nan(sums, tf.gather(count, view_of(correlation), axis=1))
    means = partner_means(correlation, mean)
    comoment = products - by_columns(correlation, count) * means * tf.transpose(means)
    return PairSums(total, count, mean + shift, comoment)


def gram_of_pairs(correlation: Correlation, sums: PairSums) -> tf.Tensor:
    """G, `[D, D]`: each view relative to its own mean."""
    apart = partner_means(correlation, sums.mean - own_mean(correlation, sums.mean))
    return sums.comoment + by_columns(correlation, sums.count) * apart * tf.transpose(apart)


def _unbiased(correlation: Correlation, total: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """(n - 1) / c_ij for pairs of columns; 0 where no row has both views, 1 where all have."""
    share = tf.math.reciprocal_no_nan(tf.linalg.diag_part(count))
    number = count * (1.0 - share[:, None] - share + count * share[:, None] * share)
    # A single row of a view is its mean and tells nothing; rounding may leave a trace of it.
    ratio = tf.where(number > 1e-12, (total - 1.0) / tf.maximum(number, 1e-12), 0.0)
    return by_columns(correlation, tf.where(count == total, tf.ones_like(ratio), ratio))


def moments_of_pairs(
    correlation: Correlation,
    sums: PairSums,
    gram: tf.Tensor,
    dtype: tf.DType,
    tolerance: float | tf.Tensor = EXACT_RANK,
) -> PairMoments:
    """S+ from the sums.

    Args:
        correlation: sizes of the views.
        sums: counts and means.
        gram: G, see `gram_of_pairs`; a gradient may pass through it.
        dtype: of the rows.
        tolerance: variance along a direction of a view whose columns have unit variance, below
            which it is rounding.
    """
    total, count = sums.total, sums.count
    ratio = _unbiased(correlation, total, count)
    finite, gram = guarded(gram * ratio)
    mean = own_mean(correlation, sums.mean)
    rounding = column_rounding(tf.stop_gradient(gram), total, mean, dtype)
    rounding = tf.maximum(rounding, tf.cast(tolerance, rounding.dtype))
    unused, turn = outside_row_spaces(correlation, tf.stop_gradient(gram), rounding)
    some = tf.reduce_max(unused) > 0.0
    turn = tf.where(some, ratio * turn, tf.zeros_like(turn))
    within = tf.eye(correlation.width, dtype=gram.dtype) - unused
    gram = tf.matmul(within, tf.matmul(gram, within))
    complete = tf.reduce_all(count == total)
    gram = _positive(correlation, 0.5 * (gram + tf.transpose(gram)), unused, complete)
    rows = tf.linalg.diag_part(count)
    return PairMoments(mean, spoiled(finite, gram), total, rounding, rows, turn, unused)


def _positive(
    correlation: Correlation, gram: tf.Tensor, unused: tf.Tensor, complete: tf.Tensor
) -> tf.Tensor:
    """C as it is for complete rows, otherwise (17)."""
    within = correlation.blocks(gram) + unused
    factor = tf.linalg.cholesky(within)
    half = tf.linalg.triangular_solve(factor, gram + unused)
    whitened = tf.linalg.triangular_solve(factor, tf.transpose(half))
    clipped = _spectral(whitened, tf.nn.relu, _slope_of_relu)
    inverse_root = _spectral(correlation.blocks(clipped), tf.math.rsqrt, _slope_of_rsqrt)
    joint = tf.matmul(factor, tf.matmul(inverse_root, tf.matmul(clipped, inverse_root)))
    joint = tf.matmul(joint, factor, transpose_b=True) - unused
    return tf.where(complete, gram, 0.5 * (joint + tf.transpose(joint)))


def _spectral(x: tf.Tensor, function: Any, slope: Any) -> tf.Tensor:
    """`function` of the eigenvalues of a symmetric matrix, with its derivative (Daleckii, Krein).

    Args:
        x: `[D, D]`, float64; its symmetric part counts. Zeros stand for what is not finite.
        function: of eigenvalues.
        slope: of two eigenvalues, the divided difference of the function.
    """

    @tf.custom_gradient
    def mapped(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        _, sound = guarded(0.5 * (x + tf.transpose(x)))
        values, vectors = tf.linalg.eigh(sound)

        def turned(y: tf.Tensor) -> tf.Tensor:
            return tf.matmul(vectors, tf.matmul(y, vectors, transpose_b=True))

        def backward(y: tf.Tensor) -> tf.Tensor:
            y = tf.matmul(vectors, tf.matmul(0.5 * (y + tf.transpose(y)), vectors), True)
            return turned(slope(values[:, None], values) * y)

        return turned(tf.linalg.diag(function(values))), backward

    return mapped(x)


def _slope_of_relu(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """(max(a, 0) - max(b, 0)) / (a - b); 1 or 0 where both have one sign."""
    above, below = tf.maximum(first, second), tf.minimum(first, second)
    apart = tf.math.divide_no_nan(above, above - below)
    one, zero = tf.ones_like(apart), tf.zeros_like(apart)
    return tf.where(below > 0, one, tf.where(above > 0, apart, zero))


def _slope_of_rsqrt(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    a, b = tf.sqrt(first), tf.sqrt(second)
    return -1.0 / (a * b * (a + b))


def pairwise_moments(
    x: tf.Tensor,
    present: tf.Tensor,
    correlation: Correlation,
    all_reduce: AllReduce = identity,
) -> PairMoments:
    """Moments of rows of which some lack views, with their gradient with respect to x.

    Args:
        x: views side by side, `[n, D]`, float32 or float64; what is missing may hold anything.
        present: which views are there, `[n, J]` booleans.
        correlation: sizes of the views.
        all_reduce: sums tensors over replicas. What arrives at the moments of all replicas is
            summed, too: the gradient is that of the sum of what each replica makes of them.
    """
    entries = entries_of(correlation, present)
    view = view_of(correlation)

    def head(x: tf.Tensor, entries: tf.Tensor) -> tuple[tf.Tensor, ...]:
        columns = tf.transpose(masked(entries, x))
        room = headroom(columns)
        total = tf.cast(tf.reduce_sum(columns * room, 1), tf.float64)
        count = tf.reduce_sum(tf.cast(entries, tf.float64), 0)
        return count, total / tf.cast(room[:, 0], tf.float64)

    @tf.custom_gradient
    def moments(x: tf.Tensor) -> tuple[Any, Any]:
        x = tf.stop_gradient(x)
        number, sums = all_reduce(*head(x[:BLOCK], entries[:BLOCK]))
        shift = tf.cast(tf.math.divide_no_nan(sums, number), x.dtype)

        def part(exact: bool, x: tf.Tensor, present: tf.Tensor) -> tuple[tf.Tensor, ...]:
            near = masked(entries_of(correlation, present), x - shift)
            near = tf.cast(near, tf.float64) if exact else near
            has = tf.cast(present, near.dtype)
            some = tf.math.count_nonzero(tf.reduce_any(present, 1))
            pairs = (has, has), (has, near), (near, near)
            products = (tf.matmul(a, b, transpose_a=True) for a, b in pairs)
            return tuple(tf.cast(s, tf.float64) for s in (some, *products))

        total, count, sums, products = all_reduce(*sum_over_rows(part, x, present))
        found = _centred(correlation, total, count, tf.cast(shift, tf.float64), sums, products)
        gram = gram_of_pairs(correlation, found)
        mean = own_mean(correlation, found.mean)

        def answer(of_gram: tf.Tensor, of_mean: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            of_gram, of_mean = all_reduce(of_gram, of_mean)
            slope = of_gram + tf.transpose(of_gram)
            # The sums, over the rows that have view i, of the other views relative to their means.
            apart = tf.gather(count, view, axis=1) * (found.mean - mean)
            moved = tf.reduce_sum(tf.gather(apart, view, axis=0) * tf.transpose(slope), 1)
            rows = tf.gather(tf.linalg.diag_part(count), view)
            constant = tf.math.divide_no_nan(of_mean - moved, rows)
            near = masked(entries, x - tf.cast(mean, x.dtype))
            size = sizes_of_columns(gram, rows, mean, x.dtype)
            near = tf.matmul(near / tf.cast(size, x.dtype), tf.cast(size[:, None] * slope, x.dtype))
            return masked(entries, near + tf.cast(constant, x.dtype))

        def backward(of_gram: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
            of_mean = tf.zeros_like(mean) if others[0] is None else others[0]
            of_gram = tf.zeros_like(gram) if of_gram is None else of_gram
            return differentiable_once(answer, "pairwise moments")(of_gram, of_mean, x)

        return (gram, mean, *found), backward

    gram, mean, *sums = moments(x)
    total, *rest = map(tf.stop_gradient, sums)
    tolerance = tf.constant(EXACT_RANK, tf.float64)
    if x.dtype != tf.float64:
        tolerance = tf.where(total <= EXACT_ROWS, tolerance, BLOCK_RANK)
    found = moments_of_pairs(correlation, PairSums(total, *rest), gram, x.dtype, tolerance)
    return found._replace(mean=mean)
