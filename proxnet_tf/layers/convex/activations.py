"""Activations and normalisation as proximal maps (section 2 of the paper)."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_choice
from proxnet_tf.layers.convex.regularizer import Regularizer


def _inside(
    z: tf.Tensor, low: float, high: float, r: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """sum r(z_i), +inf where an entry leaves (low, high); no NaN reaches the gradient."""
    valid = (z > low) & (z < high)
    middle = low + min((high - low) / 2, 1.0)
    safe = tf.where(valid, z, tf.cast(middle, z.dtype))
    return tf.reduce_sum(tf.where(valid, r(safe), tf.cast(math.inf, z.dtype)), axis=-1)


@keras.saving.register_keras_serializable(package="proxnet_tf")
def sigmoid_prior(z: tf.Tensor) -> tf.Tensor:
    """sum_i z log z + (1 - z) log(1 - z) - z^2/2 on (0, 1): the integral of the logit - z^2/2."""

    def r(z: tf.Tensor) -> tf.Tensor:
        return z * tf.math.log(z) + (1 - z) * tf.math.log1p(-z) - z**2 / 2

    return _inside(z, 0.0, 1.0, r)


@keras.saving.register_keras_serializable(package="proxnet_tf")
def tanh_prior(z: tf.Tensor) -> tf.Tensor:
    """sum_i [(1 + z) log(1 + z) + (1 - z) log(1 - z) - z^2]/2 on (-1, 1): integral of artanh."""

    def r(z: tf.Tensor) -> tf.Tensor:
        return ((1 + z) * tf.math.log1p(z) + (1 - z) * tf.math.log1p(-z) - z**2) / 2

    return _inside(z, -1.0, 1.0, r)


def prox_of_activation(name: str) -> dict[str, Any]:
    """Arguments with which `Prox` at lam = 1 is the activation or normalisation `name`.

    | name | R | C |
    | --- | --- | --- |
    | `"sigmoid"`, `"tanh"` | integral of the inverse activation - z^2/2 | |
    | `"relu"` | 0 | z >= 0 |
    | `"hard_tanh"` | 0 | -1 <= z <= 1 |
    | `"batch_normalization"` | 0 | mean 0 and norm sqrt(n) (not convex) |

    Batch normalization takes `over="batch"`. Softmax is a closed form of its own,
    `Prox("entropy")`. For sigmoid and tanh a solver runs: keep |x| below about 8 in float32, where
    a saturated sigmoid no longer differs from 1.

    Args:
        name: one of the above.

    Returns:
        A dict of `regularizer`, `constraint` and `start`, keyword arguments of `Prox`.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> from proxnet_tf import Prox
        >>> Prox(**prox_of_activation("sigmoid"))(tf.constant([[0.0, 2.0]])).numpy().round(3)
        array([[0.5  , 0.881]], dtype=float32)

    Reference: Li, Ma, Zhang (2020), section 2.
    """
    table: dict[str, tuple[Callable[..., tf.Tensor] | None, Any, Any]] = {
        "sigmoid": (sigmoid_prior, None, 0.5),
        "tanh": (tanh_prior, None, 0.0),
        "relu": (None, "nonnegative", None),
        "hard_tanh": (None, Regularizer("box", low=-1.0, high=1.0), None),
        "batch_normalization": (None, "standardized", None),
    }
    check_choice("name", name, tuple(table))
    regularizer, constraint, start = table[name]
    return {"regularizer": regularizer, "constraint": constraint, "start": start}
