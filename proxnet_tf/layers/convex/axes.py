"""Which entries of an input make up one vector that a regulariser sees."""

from typing import Any

import tensorflow as tf

from proxnet_tf.checks import steps_mask
from proxnet_tf.layers.convex.regularizer import Regularizer


def check_rank(x: tf.Tensor, meaning: str) -> None:
    """Raises a `ValueError` unless `x` has three axes or more."""
    if len(x.shape) < 3:
        raise ValueError(
            f"This Prox needs inputs of shape {meaning}. Received: shape {tuple(x.shape)}"
        )


def refuse_mask(mask: Any, over: str) -> None:
    """Raises a `ValueError` if there is a mask."""
    if mask is not None:
        raise ValueError(
            "A mask cannot be respected here: R sees the masked steps too. Received: a mask "
            f"with over={over!r}; remove it, or hand it to R(z, context) as the context."
        )


def apply_closed_form(
    form: Regularizer, x: tf.Tensor, lam: tf.Tensor, mask: tf.Tensor | None, over: str
) -> tf.Tensor:
    """The map of `form` on every vector of `x` along the last axis, along time, or along the batch.

    Args:
        form: R.
        x: (batch, ..., n).
        lam: scalar.
        mask: (batch, time), for over="time"; steps with False keep their value.
        over: "example", "time" or "batch", as in `Prox`.
    """
    matrix = form.operator.matrix
    if over == "example":
        if matrix:
            check_rank(x, "(batch, rows, columns)")
        return form.prox(x, lam)
    if over == "time":
        check_rank(x, "(batch, time, features)")
        valid = None
        if mask is not None:
            valid = tf.broadcast_to(steps_mask(mask, x)[..., tf.newaxis], tf.shape(x))
        if matrix:
            return form.prox(x, lam, valid)
        swapped = tf.transpose(x, [0, 2, 1])
        valid = None if valid is None else tf.transpose(valid, [0, 2, 1])
        return tf.transpose(form.prox(swapped, lam, valid), [0, 2, 1])
    refuse_mask(mask, over)
    rows = tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])
    z = form.prox(rows, lam) if matrix else tf.transpose(form.prox(tf.transpose(rows), lam))
    return tf.reshape(z, tf.shape(x))


def shape_of_first(input_shape: Any) -> tuple[int | None, ...]:
    """The shape of x, given that of x or those of [x, context], in lists or tuples."""
    first = input_shape[0] if len(input_shape) else None
    return tuple(first) if isinstance(first, list | tuple | tf.TensorShape) else tuple(input_shape)
