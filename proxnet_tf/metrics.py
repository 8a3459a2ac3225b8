"""Canonical correlation over a whole epoch."""

from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_integer, check_number
from proxnet_tf.layers.multiview import border as views
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.prox import correlations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CanonicalCorrelation(keras.metrics.Metric):
    """Sum of the top canonical correlations of all rows seen since the last reset.

        result = sum_{i<=k} sigma_i,  sigma_i the singular values of T (see `CCALoss`)

    It accumulates count, mean and co-moments in float64, so that the result is that of the whole
    epoch and not a mean over batches. For d1 = d2 = 1 and epsilon = 0 it is |Pearson's r|.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0; 0 by default. Rank-deficient views are
            compared in their row spaces.
        split: (d1, d2); halves by default.
        name: name of the metric.

    Call arguments (`update_state`):
        y_true: ignored (Keras passes the target).
        y_pred: two views side by side, `(batch, d1 + d2)` or `(batch, time, d1 + d2)`, or a list
            of two views. A Keras mask of one tensor is respected.
        sample_weight: how often each row counts, `(batch,)` or `(batch, time)`; >= 0.

    `correlations()` gives the k values in descending order. Fewer than two rows give 0.

    Raises:
        ValueError: as `ProxCCA`.

    Example:
        model.compile("adam", loss=CCALoss(10), metrics=[CanonicalCorrelation(10)])
    """

    def __init__(
        self,
        num_components: int | None = None,
        epsilon: float = 0.0,
        split: tuple[int, int] | None = None,
        name: str = "canonical_correlation",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.split = views.check_split(split)
        self._correlation: Correlation | None = None

    def _build(self, sizes):
        k = views.cca_components(self.num_components, sizes)
        self._correlation = Correlation(sizes, k, self.epsilon)
        width = sum(sizes)
        options = dict(initializer="zeros", dtype="float64")
        self.count = self.add_variable(shape=(), name="count", **options)
        self.mean = self.add_variable(shape=(width,), name="mean", **options)
        self.comoment = self.add_variable(shape=(width, width), name="comoment", **options)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the rows of a batch."""
        name = type(self).__name__
        mask = getattr(y_pred, "_keras_mask", None)
        y_pred = views.standardize(y_pred)
        views.check_dtypes(y_pred, name)
        shape = views.shape_of(y_pred)
        sizes = views.view_sizes(shape, self.split, max_views=2, name=name)
        if self._correlation is None:
            self._build(sizes)
        elif sizes != self._correlation.sizes:
            raise ValueError(
                f"{name} holds views of the widths {self._correlation.sizes}; "
                f"`reset_state` does not change that. Received: {sizes}"
            )
        valid = views.valid_rows(y_pred, mask, nan_is_missing=False)
        rows = views.join(y_pred, tf.float64)
        first = y_pred[0] if views.is_list(y_pred) else y_pred
        weight = _row_weights(sample_weight, tf.shape(first)[:-1], len(first.shape) - 1)
        if valid is not None:
            weight = tf.where(valid, weight, tf.zeros_like(weight))
        rows = tf.where(weight > 0, rows, tf.zeros_like(rows))
        # Chan, Golub, LeVeque (1983): moments of two samples together.
        count = tf.reduce_sum(weight)
        mean = tf.math.divide_no_nan(tf.reduce_sum(weight * rows, 0), count)
        centred = tf.where(weight > 0, rows - mean, tf.zeros_like(rows))
        old, total = tf.convert_to_tensor(self.count), self.count + count
        gap = mean - self.mean
        share = tf.math.divide_no_nan(count, total)
        comoment = tf.matmul(centred, weight * centred, transpose_a=True)
        self.comoment.assign_add(comoment + old * share * gap[:, None] * gap)
        self.mean.assign_add(share * gap)
        self.count.assign(total)

    def correlations(self) -> tf.Tensor:
        """The k canonical correlations so far, `[k]`, descending, float64."""
        if self._correlation is None:
            return tf.zeros([self.num_components or 0], tf.float64)
        return correlations(
            self._correlation,
            tf.convert_to_tensor(self.comoment),
            tf.convert_to_tensor(self.count),
        )

    def result(self) -> tf.Tensor:
        """Their sum, a scalar."""
        return tf.cast(tf.reduce_sum(self.correlations()), self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
        }


def _row_weights(sample_weight, lead, rank):
    """Weights of the rows, `[n, 1]`, for leading dimensions `lead` (batch, or batch and time)."""
    weight = tf.cast(1.0 if sample_weight is None else sample_weight, tf.float64)
    if len(weight.shape) == rank + 1:  # (batch, 1) for rows (batch,)
        weight = tf.squeeze(weight, -1)
    while 0 < len(weight.shape) < rank:
        weight = weight[..., None]
    return tf.reshape(tf.broadcast_to(weight, lead), [-1, 1])
