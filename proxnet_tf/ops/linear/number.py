"""Python numbers as tensors."""

import numpy as np
import tensorflow as tf


def scalar(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`value` in `dtype`; a Python number does not pass through float32, as in `tf.cast`."""
    return tf.cast(value if tf.is_tensor(value) else np.float64(value), dtype)


def inverse(lam: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """1/lam in `dtype`, where lam itself may be too small for `dtype`."""
    return tf.cast(1 / scalar(lam, tf.float64), dtype)
