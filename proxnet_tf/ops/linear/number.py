"""Python numbers as tensors, and numbers that are not finite.

`eigh` and `svd` of a NaN raise an error that ends the program. So the input of a
decomposition passes `guarded` (zeros if it is not finite) and the result `nan_unless` (then NaN).
"""

from typing import Any

import numpy as np
import tensorflow as tf


def scalar(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`value` in `dtype`; unlike `tf.cast`, a Python number is not first rounded to float32."""
    return tf.cast(value if tf.is_tensor(value) else np.float64(value), dtype)


def inverse(lam: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """1/lam in `dtype`, where lam itself may be too small for `dtype`."""
    return tf.cast(1 / scalar(lam, tf.float64), dtype)


def check_real(name: str, value: Any) -> Any:
    """`value`, a structure of tensors or arrays, or a `ValueError` if any of it is complex,
    text, ragged or sparse."""
    for part in tf.nest.flatten(value):
        if isinstance(part, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(
                f"{name} must be dense. Received: a {type(part).__name__} of shape {part.shape}; "
                "pad it or convert it to a tensor."
            )
        dtype = getattr(part, "dtype", type(part).__name__)
        dtype = str(getattr(dtype, "name", dtype))
        if dtype.startswith("complex"):
            raise ValueError(
                f"{name} must be real: an imaginary part would be lost. Received: {dtype}; pass "
                "the real and the imaginary parts side by side."
            )
        if hasattr(part, "dtype") and dtype.startswith(("str", "bytes", "object", "date", "time")):
            raise ValueError(f"{name} must be numbers. Received: {dtype}; convert it first.")
    return value


def real_array(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 array of its own, or a `ValueError` if it is complex."""
    array = np.asarray(value)
    return np.array(check_real(name, array), "float64")


def guarded(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether x is finite everywhere, and x where it is or zeros where it is not."""
    finite = tf.reduce_all(tf.math.is_finite(x))
    return finite, tf.where(finite, x, tf.zeros_like(x))


def nan_unless(ok: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """x where `ok`, else NaN everywhere."""
    return tf.where(ok, x, tf.constant(float("nan"), x.dtype))
