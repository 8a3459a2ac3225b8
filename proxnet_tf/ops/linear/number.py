"""Python numbers as tensors."""

import numpy as np
import tensorflow as tf


def scalar(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`value` in `dtype`; a Python number does not pass through float32, as in `tf.cast`."""
    return tf.cast(value if tf.is_tensor(value) else np.float64(value), dtype)
