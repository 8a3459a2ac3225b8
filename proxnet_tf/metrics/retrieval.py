"""Retrieval of one view by another over a whole epoch."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_choice, check_integer
from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.metrics import ranks
from proxnet_tf.ops.multiview.correlation import CCA

DIRECTIONS = ("both", "first_to_second", "second_to_first")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class RecallAtK(keras.metrics.Metric):
    """Share of queries whose partner is among the k most similar codes of the other view.

        recall at k = mean_i P(r_i <= k)
        r_i = 1 + #{j: s_ij > s_ii},  s_ij = cos(a_i, b_j)

    with the codes a_i and b_i of pair i. Every code is a query, and its candidates are the codes of
    the other view of **all** pairs since the last reset: the result is that of the whole epoch, and
    the task gets harder with every pair. Ties are broken at random, and the result is the
    expectation: with t candidates tied with the partner and g ahead of it, it averages
    P(r_i <= k) = min(max(k - g, 0), t + 1) / (t + 1). Cosines that differ by at most 1e-12 are
    tied; a code of zeros has the cosine 0 with all.

    The metric stores the normalised codes in float64, `capacity` pairs at most, with two counts for
    each query. It compares a batch with the stored codes when the batch arrives: so m rows cost
    m * capacity products of codes, the result costs little, and a whole epoch costs as much as
    comparing all pairs at its end. Under a `tf.distribute` strategy the first replica keeps the
    pairs of all replicas.

    Args:
        k: how many candidates a user looks at, >= 1.
        direction: "first_to_second" (codes of the first view are the queries), "second_to_first",
            or "both" (default), the mean of the two.
        capacity: how many pairs can be stored, >= 1; 4096 by default. Each pair of codes of width d
            takes 16 d + 40 bytes. With more pairs the result is NaN, and outside of graphs
            there is a warning.
        split: widths of the views that come side by side in one tensor; two halves by default.
        nan_is_missing: whether a NaN in one of the two views marks its row as missing; such rows
            take no part. False by default: then a NaN makes the result NaN.
        name: name of the metric; "recall_at_{k}" by default.
        **kwargs: of `keras.metrics.Metric`: `dtype` of the result.

    Call arguments (`update_state`):
        y_true: ignored (Keras passes the target).
        y_pred: two views: a list of `(batch, d)` or `(batch, time, d)`, or one tensor with the
            views side by side. Steps are rows. Keras masks are respected. Both views need the same
            width: project them first if they differ.
        sample_weight: the weight of the two queries of a row in the mean, `(batch,)` or
            `(batch, time)`; >= 0. A row of weight 0 takes no part, not even as a candidate.
            A negative weight or NaN makes the result NaN.

    `result()` is in [0, 1]; 0 before the first pair.

    Raises:
        ValueError: an argument outside its range, views of different widths or of others than
            before, and as `ProxCCA`.

    Example:

    >>> metric = RecallAtK(1, direction="first_to_second")
    >>> words = keras.ops.eye(3)
    >>> metric.update_state(None, [words, keras.ops.take(words, [0, 2, 1], axis=0)])
    >>> print(f"{float(metric.result()):.2f}")  # one of three finds its partner
    0.33

    Reference: Hodosh, Young, Hockenmaier, Framing image description as a ranking task (2013).
    """

    def __init__(
        self,
        k: int = 1,
        *,
        direction: str = "both",
        capacity: int = 4096,
        split: Sequence[int] | None = None,
        nan_is_missing: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ):
        self.k = check_integer("k", k)
        super().__init__(name=name or f"recall_at_{self.k}", **kwargs)
        self.direction = check_choice("direction", direction, DIRECTIONS)
        self.capacity = check_integer("capacity", capacity)
        self.border = Border(
            type(self).__name__, CCA, None, epsilon=0.0, split=split, nan_is_missing=nan_is_missing
        )
        self._state: list[Any] = []

    def _build(self, width: int) -> None:
        shapes = ranks.Pairs(
            count=(),
            weights=(self.capacity,),
            first=(self.capacity, width),
            second=(self.capacity, width),
            ahead=(2, self.capacity),
            tied=(2, self.capacity),
        )
        self._state = [
            self.add_variable(shape=shape, initializer="zeros", dtype="float64", name=name)
            for name, shape in shapes._asdict().items()
        ]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the pairs of a batch, and ranks all pairs among all."""
        views = self.border.enter(y_pred, dtype="float64")
        width, other = views.correlation.sizes
        if width != other:
            raise ValueError(
                f"{type(self).__name__} compares codes of one width by their cosine; project the "
                "views to a common space first, see `LinearCCA.project`. Received: views of the "
                f"widths {views.correlation.sizes}"
            )
        if not self._state:
            with tf.init_scope():  # in a graph over replicas the gathering below would fail
                self._build(width)
        if width != self._state[2].shape[1]:
            raise ValueError(
                f"{type(self).__name__} was built for codes of the width "
                f"{self._state[2].shape[1]}. Received: {width}"
            )
        rows, weights = views.rows, views.weights(sample_weight)
        rows = tf.where(weights != 0, rows, tf.zeros_like(rows))
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            # The first replica keeps the pairs of all, since Keras adds the replicas' states.
            rows, weights = (
                tf.ensure_shape(replica.all_gather(x, axis=0), [None, x.shape[1]])
                for x in (rows, weights)
            )
            keeps = tf.equal(replica.replica_id_in_sync_group, 0)
            weights = tf.where(keeps, weights, tf.zeros_like(weights))
        pairs = ranks.insert(self._pairs(), rows[:, :width], rows[:, width:], weights[:, 0])
        for variable, value in zip(self._state, pairs, strict=True):
            variable.assign(value)

    def _pairs(self) -> ranks.Pairs:
        return ranks.Pairs(*(tf.convert_to_tensor(variable) for variable in self._state))

    def result(self) -> tf.Tensor:
        """The metric of all pairs so far, a scalar; NaN if there were more than `capacity`."""
        if not self._state:
            return tf.zeros([], self.dtype)
        pairs = self._pairs()
        both = ranks.mean(pairs, ranks.recall(pairs, self.k))
        scores = {"both": 0.5 * (both[0] + both[1]), DIRECTIONS[1]: both[0], DIRECTIONS[2]: both[1]}
        full = pairs.count > self.capacity
        if tf.executing_eagerly() and bool(full):
            warnings.warn(
                f"{self.name} is NaN: it has place for capacity={self.capacity} pairs. Received: "
                f"{int(pairs.count)}. Give it a larger `capacity`.",
                stacklevel=2,
            )
        score = scores[self.direction]
        return tf.cast(tf.where(full, tf.cast(float("nan"), score.dtype), score), self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "k": self.k,
            "direction": self.direction,
            "capacity": self.capacity,
            "split": self.border.split,
            "nan_is_missing": self.border.nan_is_missing,
        }
