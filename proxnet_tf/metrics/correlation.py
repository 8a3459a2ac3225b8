"""Canonical correlation over a whole epoch."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32
from proxnet_tf.layers.multiview.border import Border
from proxnet_tf.layers.multiview.views import Views
from proxnet_tf.ops.multiview.correlation import CCA
from proxnet_tf.ops.multiview.moments import column_rounding
from proxnet_tf.ops.multiview.pairwise import (
    PairSums,
    gram_of_pairs,
    moments_of_pairs,
    pair_sums,
    pairs_together,
)
from proxnet_tf.ops.multiview.prox import correlations

_Moments = tuple[tf.Tensor, ...]


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CanonicalCorrelation(keras.metrics.Metric):
    """Sum of the top canonical correlations of all rows seen since the last reset.

        result = sum_{i<=k} sigma_i,  sigma_i the singular values of T (see `cca_loss`)

    It accumulates count, mean and co-moments in float64, so that the result is that of the whole
    epoch and not a mean over batches; under a `tf.distribute` strategy it is that of the rows of
    all replicas. For d1 = d2 = 1 and epsilon = 0 it is |Pearson's r|.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge >= 0 on each view's covariance; 0 by default. Rank-deficient views are
            compared in their row spaces: each column is scaled to variance one first, and
            directions with at most 1e-10 of that, or with no more than the rounding of the columns
            in their own dtype explains, take no part.
        split: (d1, d2); halves by default.
        name: name of the metric.
        nan_is_missing: whether a NaN marks its view as missing in that row; False by default.
        missing: "drop" (default) where a row that lacks a view takes no part, "pairwise" where it
            counts for the views that it has: see `ProxCCA`.
        **kwargs: of `keras.metrics.Metric`: `dtype` of the result.

    Call arguments (`update_state`):
        y_true: ignored (Keras passes the target).
        y_pred: two views side by side, `(batch, d1 + d2)` or `(batch, time, d1 + d2)`, or two
            views as for `ProxCCA`. Keras masks are respected.
        sample_weight: how often each row counts, `(batch,)` or `(batch, time)`; >= 0. A negative
            weight or NaN makes the result NaN.

    `correlations()` gives the k values in descending order. Fewer than two rows give 0.

    Raises:
        ValueError: as `ProxCCA`.

    Example:

    >>> metric = CanonicalCorrelation()
    >>> for seed in range(3):
    ...     x = keras.random.normal((20, 2), seed=seed)
    ...     metric.update_state(None, [x, 1 - 2 * x])
    >>> print(f"{float(metric.result()):.4f}")
    2.0000
    """

    def __init__(
        self,
        num_components: int | None = None,
        epsilon: float = 0.0,
        split: Sequence[int] | None = None,
        name: str = "canonical_correlation",
        *,
        nan_is_missing: bool = False,
        missing: str = "drop",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.border = Border(
            type(self).__name__,
            CCA,
            num_components,
            epsilon=epsilon,
            split=split,
            nan_is_missing=nan_is_missing,
            missing=missing,
        )

    def _build(self, width: int) -> None:
        # Over replicas Keras adds the states up: a slot for each makes the sum a concatenation.
        slots = tf.distribute.get_strategy().num_replicas_in_sync
        shapes: dict[str, tuple[int, ...]] = dict(count=(), mean=(width,), comoment=(width, width))
        if self.border.missing == "pairwise":
            shapes = dict(total=(), count=(2, 2), mean=(2, width), comoment=(width, width))
        options = dict(initializer="zeros", dtype="float64")
        self._states = tuple(
            self.add_variable(shape=(slots, *shape), name=name, **options)
            for name, shape in shapes.items()
        )
        *_, self.count, self.mean, self.comoment = self._states

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the rows of a batch."""
        views = self.border.enter(y_pred, dtype="float64")
        if self.border.fixed is None:
            self.border.fixed = views.correlation
            dtypes = [at_least_float32(x.dtype) for x in views.parts]
            self._dtype_of_rows = min(dtypes, key=lambda dtype: dtype.size)
            self._build(views.correlation.width)
        batch = self._moments(views, views.weights(sample_weight))
        replica = tf.distribute.get_replica_context()
        slots = self._states[0].shape[0]
        index = replica.replica_id_in_sync_group if replica and slots > 1 else 0
        before = [tf.convert_to_tensor(state) for state in self._states]
        moments = self._together(tuple(x[index] for x in before), batch)
        for state, old, new in zip(self._states, before, moments, strict=True):
            mine = tf.reshape(tf.range(slots) == index, [-1] + [1] * (len(old.shape) - 1))
            state.assign(tf.where(mine, new, old))

    def _moments(self, views: Views, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What the states hold, of one batch."""
        if self.border.missing == "pairwise":
            present = tf.repeat(views.takes_part, 2, 1) if views.present is None else views.present
            return pair_sums(views.correlation, views.rows, present, weight)
        rows = tf.where(weight > 0, views.rows, tf.zeros_like(views.rows))
        count = tf.reduce_sum(weight)
        mean = tf.math.divide_no_nan(tf.reduce_sum(weight * rows, 0), count)
        centred = tf.where(weight > 0, rows - mean, tf.zeros_like(rows))
        return count, mean, tf.matmul(centred, weight * centred, transpose_a=True)

    def _together(self, first: _Moments, second: _Moments) -> _Moments:
        """What the states hold, of two samples together."""
        if self.border.missing == "pairwise":
            correlation: Any = self.border.fixed
            return pairs_together(correlation, PairSums(*first), PairSums(*second))
        return _together(first, second)

    def correlations(self) -> tf.Tensor:
        """The k canonical correlations so far, `[k]`, descending, float64."""
        if self.border.fixed is None:
            return tf.zeros([self.border.num_components or 0], tf.float64)
        slots = [tf.unstack(tf.convert_to_tensor(state)) for state in self._states]
        first, *others = zip(*slots, strict=True)
        for other in others:
            first = self._together(first, other)
        correlation: Any = self.border.fixed
        if self.border.missing == "pairwise":
            sums = PairSums(*first)
            gram = gram_of_pairs(correlation, sums)
            sample = moments_of_pairs(correlation, sums, gram, self._dtype_of_rows).sample
            return correlations(correlation, self.border.epsilon, *sample)
        count, mean, comoment = first
        rounding = column_rounding(comoment, count, mean, self._dtype_of_rows)
        return correlations(correlation, self.border.epsilon, comoment, count, rounding)

    def result(self) -> tf.Tensor:
        """Their sum, a scalar."""
        return tf.cast(tf.reduce_sum(self.correlations()), self.dtype)

    def get_config(self) -> dict[str, Any]:
        config = self.border.get_config()
        del config["synchronized"]  # all replicas always count
        return {**super().get_config(), **config}


def _together(first: _Moments, second: _Moments) -> _Moments:
    """Count, mean and co-moment of two samples together: Chan, Golub, LeVeque (1983)."""
    (n, mean, comoment), (m, other_mean, other_comoment) = first, second
    total, gap = n + m, other_mean - mean
    share = tf.math.divide_no_nan(m, total)
    comoment += other_comoment + n * share * gap[:, None] * gap
    return total, mean + share * gap, comoment
