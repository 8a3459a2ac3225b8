"""Numbers that are not finite: decompositions never see them, answers show them as NaN.

`eigh` and `svd` of a NaN raise an error that ends the program. So each entry to a decomposition
takes `guarded` input and remembers whether it was sound; what depends on it is `spoiled`.

Both are conditions on the whole tensor: one bad number in a batch spoils the map of all its rows,
which depends on every row.
"""

import tensorflow as tf


def guarded(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether x is finite everywhere, and x where it is or zeros where it is not."""
    ok = tf.reduce_all(tf.math.is_finite(x))
    return ok, tf.where(ok, x, tf.zeros_like(x))


def spoiled(ok: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """x where `ok`, else NaN everywhere."""
    return tf.where(ok, x, tf.constant(float("nan"), x.dtype))
