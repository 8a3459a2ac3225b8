"""The multiview proximal map, loss and envelope on rows of which some lack views.

The moments of `pairwise` stand in the place of those of complete rows: the map M is that of a
complete batch of n rows with the Gram matrix C = (n - 1) S+. A complete row comes out as
P = m + (x - m) M. A row that lacks views comes out, in the views that it has, as it would with the
missing ones filled in by what the others say of them: for a missing view j

    x_rj - m_j = mean over the views i that row r has of (x_ri - m_i) B_ij,
    B_ij = (S_ii + eps I)^-1 S+_ij,                                                     (18)

the regression of view j on view i.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.envelope import Envelope
from proxnet_tf.ops.multiview.moments import AllReduce, Gram, identity, kept, masked
from proxnet_tf.ops.multiview.newton import Settings
from proxnet_tf.ops.multiview.of_gram import envelope_of_gram, loss_of_gram, map_of_gram
from proxnet_tf.ops.multiview.pairwise import PairMoments, entries_of, pairwise_moments


class IncompleteResult(NamedTuple):
    """Result of `pairwise_prox`; only `output` carries a gradient.

    Attributes:
        output: P, in the shape and dtype of x.
        mean: m, `[D]`, of each view over the rows that have it, in the dtype of x.
        map: M - I, `[D, D]`, in the dtype of x.
        regression: B of (18), `[D, D]`, in the dtype of x.
        rows: how many rows have each view, `[J]`, float64.
        report: as of `multiview_prox`.
        correlation_before: the sum of the top k eigenvalues mu at S+, float64 scalar.
        correlation_after: the same at M S+ M.
    """

    output: tf.Tensor
    mean: tf.Tensor
    map: tf.Tensor
    regression: tf.Tensor
    rows: tf.Tensor
    report: Report
    correlation_before: tf.Tensor
    correlation_after: tf.Tensor


def pairwise_prox(
    x: tf.Tensor,
    lam: tf.Tensor | float,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    present: tf.Tensor,
    *,
    settings: Settings | None = None,
    all_reduce: AllReduce = identity,
    observer: Observer | None = None,
) -> IncompleteResult:
    """The map of (1) from the moments of each pair of views, for the views that each row has.

    For complete rows it is `multiview_prox`. What a row lacks passes unchanged, and its gradient
    too. Two views that no row has together have no correlation: then P = X for `CCA`, and for
    `GCCA` if epsilon = 0 (a ridge ranks the directions of each view by itself). With fewer than
    two rows of a view, or all rows equal, that view passes unchanged.

    The gradient is exact, through the moments, the map and (18). Not differentiable where
    mu_k = mu_{k+1} and at the kinks of (17), see `pairwise`. A second derivative raises
    `NotImplementedError`.

    Args:
        x: views side by side, `[n, D]`, float32 or float64; what is missing may hold anything.
        lam, correlation, epsilon, settings, all_reduce, observer: as for `multiview_prox`.
        present: which views each row has, `[n, J]` booleans.
    """
    settings = settings or Settings()
    lam = tf.stop_gradient(scalar(lam, tf.float64))
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))
    moments = pairwise_moments(x, present, correlation, all_reduce)
    found = map_of_gram(correlation, moments.sample, lam, epsilon, settings, observer)
    regression = regression_of(correlation, moments, epsilon)
    mean, step, into = (tf.cast(a, x.dtype) for a in (moments.mean, found.step, regression))
    moved = moved_by(correlation, x, present, mean, step, into)
    entries = entries_of(correlation, present)
    moved = _turned(correlation, x, masked(entries, moved), entries, moments, all_reduce)
    return IncompleteResult(
        output=kept(entries, x + moved, x),
        mean=tf.stop_gradient(mean),
        map=tf.stop_gradient(step),
        regression=tf.stop_gradient(into),
        rows=moments.rows,
        report=found.report,
        correlation_before=found.correlation_before,
        correlation_after=found.correlation_after,
    )


def moved_by(
    correlation: Correlation,
    x: tf.Tensor,
    present: tf.Tensor,
    mean: tf.Tensor,
    step: tf.Tensor,
    regression: tf.Tensor,
) -> tf.Tensor:
    """P - X, `[n, D]`, for the rows with what is missing filled in by (18).

    Args:
        correlation: sizes of the views.
        x: `[n, D]`.
        present: which views each row has, `[n, J]` booleans.
        mean: m, `[D]`.
        step: M - I, `[D, D]`.
        regression: B, `[D, D]`.
    """
    entries = entries_of(correlation, present)
    near = masked(entries, x - mean)
    number = tf.reduce_sum(tf.cast(present, x.dtype), 1, keepdims=True)
    filled = tf.matmul(near, regression) / tf.maximum(number, 1.0)
    return tf.matmul(tf.where(entries, near, filled), step)


def regression_of(correlation: Correlation, moments: PairMoments, epsilon: tf.Tensor) -> tf.Tensor:
    """B of (18), `[D, D]`, float64; zero in the blocks of the views themselves."""
    covariance = moments.gram / tf.maximum(moments.count - 1.0, 1.0)
    own = correlation.blocks(covariance)
    # A ridge out of range has its answer from the map.
    ridge = tf.where(epsilon >= 0.0, epsilon, 1.0) * tf.eye(correlation.width, dtype=own.dtype)
    factor = tf.linalg.cholesky(own + ridge + moments.unused)
    return tf.linalg.cholesky_solve(factor, covariance - own)


def _turned(
    correlation: Correlation,
    x: tf.Tensor,
    moved: tf.Tensor,
    entries: tf.Tensor,
    moments: PairMoments,
    all_reduce: AllReduce,
) -> tf.Tensor:
    """`moved`, with what a turn of the row spaces of deficient views adds to the gradient.

    As `problem.turning`: a change of X_j outside its row space turns P_j along.
    """
    unused = moments.unused
    constant = tf.linalg.diag_part(unused) > 1.0 - 1e-9
    outside = tf.where(constant, tf.zeros_like(unused), unused)

    @tf.custom_gradient
    def turned(x: tf.Tensor, moved: tf.Tensor) -> tuple[tf.Tensor, Any]:
        values = tf.stop_gradient(moved)

        def answer(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            cross = tf.cast(tf.matmul(values, y, transpose_a=True), tf.float64)
            (cross,) = all_reduce(correlation.blocks(cross))
            slope = tf.matmul(moments.turn, tf.matmul(cross, outside))
            near = masked(entries, x - tf.cast(moments.mean, x.dtype))
            return masked(entries, tf.matmul(near, tf.cast(slope, x.dtype)))

        def backward(y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return differentiable_once(answer, "multiview proximal map")(y, x), y

        return tf.identity(moved), backward

    return turned(x, moved)


def pairwise_gram(
    x: tf.Tensor, present: tf.Tensor, correlation: Correlation, all_reduce: AllReduce = identity
) -> Gram:
    """C = (n - 1) S+ of rows of which some lack views, as `gram_of`."""
    return Gram(
        *map(tf.stop_gradient, pairwise_moments(x, present, correlation, all_reduce).sample)
    )


def pairwise_loss(
    x: tf.Tensor,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    present: tf.Tensor,
    all_reduce: AllReduce = identity,
) -> tf.Tensor:
    """L at S+, a scalar in the dtype of x, with the gradient of `correlation_loss`.

    Over replicas every replica gets the value of the global batch. What arrives at the values of
    all replicas is summed: own rows get the gradient of the sum of the replicas' losses.

    Args:
        x, correlation, epsilon, present, all_reduce: as for `pairwise_prox`.
    """
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))
    moments = pairwise_moments(x, present, correlation, all_reduce)
    return tf.cast(loss_of_gram(correlation, moments.sample, epsilon), x.dtype)


def pairwise_envelope(
    x: tf.Tensor,
    lam: tf.Tensor | float,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    present: tf.Tensor,
    *,
    settings: Settings | None = None,
    all_reduce: AllReduce = identity,
) -> Envelope:
    """The value of (4) at C = (n - 1) S+: for complete rows `moreau_envelope`.

    Its gradient is exact; for incomplete rows it is not lam/n (X - P). Over replicas as
    `pairwise_loss`.

    Args:
        x, lam, correlation, epsilon, present, settings, all_reduce: as for `pairwise_prox`.
    """
    lam = tf.stop_gradient(scalar(lam, tf.float64))
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))
    moments = pairwise_moments(x, present, correlation, all_reduce)
    settings = settings or Settings()
    value, report = envelope_of_gram(correlation, moments.sample, lam, epsilon, settings)
    return Envelope(tf.cast(value, x.dtype), report)
