"""Views as rows: what the border makes of what a user passes."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.pairwise import entries_of


class Views(NamedTuple):
    """Views inside the border.

    Attributes:
        rows: the views side by side, `[n, D]`; time steps are rows.
        valid: the rows that take part, `[n, 1]` booleans; None if every row does. Rows in which no
            view is missing, or with missing="pairwise" those that have a view.
        present: with missing="pairwise", which views each row has, `[n, J]` booleans; None if each
            row has all or none.
        correlation: which correlation of which widths.
        parts: the tensors outside.
        structure: what they came in.
    """

    rows: tf.Tensor
    valid: tf.Tensor | None
    present: tf.Tensor | None
    correlation: Correlation
    parts: list[Any]
    structure: Any

    @property
    def lead(self) -> tf.Tensor:
        """The axes of the rows outside, (batch,) or (batch, time)."""
        return tf.shape(self.parts[0])[:-1]

    @property
    def takes_part(self) -> tf.Tensor:
        """`valid` as a tensor."""
        return tf.ones_like(self.rows[:, :1], tf.bool) if self.valid is None else self.valid

    @property
    def entries(self) -> tf.Tensor:
        """Which entries of the rows are there, `[n, D]` booleans."""
        if self.present is None:
            return tf.broadcast_to(self.takes_part, tf.shape(self.rows))
        return entries_of(self.correlation, self.present)

    @property
    def known(self) -> tf.Tensor:
        """The rows, with zeros in the place of what is missing."""
        return tf.where(self.entries, self.rows, tf.zeros_like(self.rows))

    def leave(self, rows: tf.Tensor, dtype: str) -> Any:
        """Rows `[n, D]` in the structure and the shapes of the views outside."""
        width = self.correlation.width
        # The known sizes as numbers: LiteRT does not translate `tf.ensure_shape`.
        known = self.parts[0].shape[:-1]
        lead = [n if n is not None else self.lead[axis] for axis, n in enumerate(known)]
        x = tf.cast(tf.reshape(rows, [*lead, width]), dtype)
        if len(self.parts) == 1:
            return x
        parts = tf.split(x, self.correlation.sizes, axis=-1)
        return keras.tree.pack_sequence_as(self.structure, parts)

    def weights(self, sample_weight: Any) -> tf.Tensor:
        """How often each row counts, `[n, 1]` float64: 0 where a view is missing.

        Args:
            sample_weight: a number, `(batch,)`, `(batch, 1)` or with time steps `(batch, time)`;
                None is 1. What is not a finite number >= 0 becomes NaN.
        """
        rank = len(self.parts[0].shape) - 1
        check_real("`sample_weight`", sample_weight)
        weight = tf.cast(1.0 if sample_weight is None else sample_weight, tf.float64)
        known = self.parts[0].shape[:-1]
        if len(weight.shape) == rank + 1 and weight.shape[-1] in (1, None):  # (batch, 1)
            weight = tf.squeeze(weight, -1)
        fits = zip(weight.shape, known, strict=False)
        if len(weight.shape) > rank or not all(w in (1, None, n) or n is None for w, n in fits):
            raise ValueError(
                f"`sample_weight` must have the shape of the rows, {tuple(known)}. Received: "
                f"{tuple(weight.shape)}"
            )
        while 0 < len(weight.shape) < rank:
            weight = weight[..., None]
        weight = tf.reshape(tf.broadcast_to(weight, self.lead), [-1, 1])
        usable = (weight >= 0) & tf.math.is_finite(weight)
        weight = tf.where(usable, weight, tf.cast(float("nan"), weight.dtype))
        return weight if self.valid is None else tf.where(self.valid, weight, tf.zeros_like(weight))
