"""Canonical correlation over a whole epoch."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32
from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.ops.multiview.correlation import CCA, Correlation
from proxnet_tf.ops.multiview.gram import EXACT_RANK, Sample, column_rounding
from proxnet_tf.ops.multiview.of_gram import correlations_of_gram

_Moments = tuple[tf.Tensor, ...]


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CanonicalCorrelation(keras.metrics.Metric):
    """Sum of the top canonical correlations of all rows seen since the last reset.

        result = sum_{i<=k} sigma_i,  sigma_i the singular values of T (see `cca_loss`)

    The metric accumulates count, mean and co-moments in float64. So the result is that of the whole
    epoch and not a mean over batches. Under a `tf.distribute` strategy it is that of the rows of
    all replicas. For d1 = d2 = 1 and epsilon = 0 it is |Pearson's r|.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge >= 0 on each view's covariance; 0 by default. Rank-deficient views are
            compared in their row spaces: each column is scaled to variance one first. Directions
            whose variance is then at most 1e-10, or no more than the rounding of the columns in
            their own dtype explains, take no part.
        split: (d1, d2); halves by default.
        name: name of the metric.
        nan_is_missing: whether a NaN marks its view as missing in that row; False by default.
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
        )
        self.correlation: Correlation | None = None  # known once rows were seen

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the rows of a batch."""
        views = self.border.enter(y_pred, dtype="float64", built=self.correlation)
        if self.correlation is None:
            self._build(views.correlation, [x.dtype for x in views.parts])
        weight = views.weights(sample_weight)
        rows = tf.where(weight > 0, views.rows, tf.zeros_like(views.rows))
        count = tf.reduce_sum(weight)
        mean = tf.math.divide_no_nan(tf.reduce_sum(weight * rows, 0), count)
        centred = tf.where(weight > 0, rows - mean, tf.zeros_like(rows))
        batch = count, mean, tf.matmul(centred, weight * centred, transpose_a=True)
        # Keras adds the states of replicas: one slot for each makes the sum a concatenation.
        replica = tf.distribute.get_replica_context()
        slots = self.count.shape[0]
        index = replica.replica_id_in_sync_group if replica and slots > 1 else 0
        states = self.count, self.mean, self.comoment
        before = [tf.convert_to_tensor(state) for state in states]
        moments = _together(tuple(x[index] for x in before), batch)
        for state, old, new in zip(states, before, moments, strict=True):
            mine = tf.reshape(tf.range(slots) == index, [-1] + [1] * (len(old.shape) - 1))
            state.assign(tf.where(mine, new, old))

    def _build(self, correlation: Correlation, dtypes: list[Any]) -> None:
        self.correlation = correlation
        self._dtype_of_rows = min(map(at_least_float32, dtypes), key=lambda dtype: dtype.size)
        slots, width = tf.distribute.get_strategy().num_replicas_in_sync, correlation.width
        options = dict(initializer="zeros", dtype="float64")
        self.count = self.add_variable(shape=(slots,), name="count", **options)
        self.mean = self.add_variable(shape=(slots, width), name="mean", **options)
        self.comoment = self.add_variable(shape=(slots, width, width), name="comoment", **options)

    def correlations(self) -> tf.Tensor:
        """The k canonical correlations so far, `[k]`, descending, float64."""
        if self.correlation is None:
            return tf.zeros([self.border.num_components or 0], tf.float64)
        states = (tf.convert_to_tensor(x) for x in (self.count, self.mean, self.comoment))
        slots = zip(*map(tf.unstack, states), strict=True)
        count, mean, comoment = functools.reduce(_together, slots)
        rounding = column_rounding(count, mean, comoment, self._dtype_of_rows)
        sample = Sample(count, mean, comoment, tf.maximum(rounding, EXACT_RANK))
        return correlations_of_gram(self.correlation, sample, self.border.epsilon)

    def result(self) -> tf.Tensor:
        """The sum of the k canonical correlations so far, a scalar."""
        return tf.cast(tf.reduce_sum(self.correlations()), self.dtype)

    def get_config(self) -> dict[str, Any]:
        config = self.border.get_config()
        del config["synchronized"]  # all replicas always count
        return {**super().get_config(), **config}


def _together(first: _Moments, second: _Moments) -> _Moments:
    """Count, mean and co-moments of two samples taken together: Chan, Golub, LeVeque (1983)."""
    (n, mean, comoment), (m, other_mean, other_comoment) = first, second
    total, gap = n + m, other_mean - mean
    share = tf.math.divide_no_nan(m, total)
    comoment += other_comoment + n * share * gap[:, None] * gap
    return total, mean + share * gap, comoment
