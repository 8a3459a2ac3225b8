"""`Prox` of a user's R under every policy: R computes in the dtype of the solver."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox
from tests.helpers.layer_checks import policy

X = np.random.default_rng(0).normal(size=(3, 5))
KERNEL = np.random.default_rng(1).normal(size=(5, 4))


class Rise(keras.layers.Layer):
    """R(z) = sum softplus(kernel^T z), by a layer inside the layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4, "softplus", use_bias=False, dtype=self.dtype_policy)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, z):
        return keras.ops.sum(self.dense(z), axis=-1)


def solved():
    """argmin_z R(z) + 1/2 ||z - X||^2 in NumPy, by a fixed point that contracts."""
    z = X.copy()
    for _ in range(3000):
        z += 0.1 * (X - z - (1 / (1 + np.exp(-z @ KERNEL))) @ KERNEL.T)
    return z


@pytest.mark.parametrize("name", ["float32", "float64", "mixed_float16"])
def test_a_layer_of_the_dtype_of_the_solver(name):
    own = "float64" if name == "float64" else "float32"
    inner = Rise(dtype=own)
    layer = Prox(inner, dtype=name)
    layer.build(X.shape)
    inner.set_weights([KERNEL])
    with tf.GradientTape() as tape:
        z = layer(tf.constant(X, layer.compute_dtype))
        total = tf.reduce_sum(z)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-6}
    assert z.dtype == layer.compute_dtype
    np.testing.assert_allclose(tf.cast(z, "float64"), solved(), atol=tolerance[layer.compute_dtype])
    assert layer.status["residual"] < (1e-9 if name == "float64" else 1e-6)
    gradient = tape.gradient(total, inner.trainable_variables[0].value)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1


@pytest.mark.parametrize(
    "own, name, wanted",
    [("mixed_float16", "mixed_float16", "float32"), ("float32", "float64", "float64")],
)
def test_a_layer_of_another_dtype(own, name, wanted):
    with pytest.raises(ValueError, match=f"{wanted}. Received: float.*with dtype='{wanted}'"):
        Prox(Rise(dtype=own), dtype=name)(X)


def test_a_variable_that_a_function_reads_is_not_rounded():
    with policy("mixed_float16"):
        weight = keras.Variable(np.linspace(0.1, 0.5, 5), dtype="float32")
        layer = Prox(lambda z: tf.reduce_sum(tf.cast(weight, z.dtype) * z**2, axis=-1) / 2)
        z = layer(tf.constant(X, layer.compute_dtype))
    np.testing.assert_allclose(z, X / (1 + np.linspace(0.1, 0.5, 5)), atol=1e-3)
    assert layer.status["residual"] < 1e-6


def test_a_model():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, "softplus", use_bias=False),
            keras.layers.Lambda(lambda t: keras.ops.sum(t, axis=-1)),
        ]
    )
    model.set_weights([KERNEL])
    layer = Prox(model, dtype="mixed_float16")
    np.testing.assert_allclose(layer(X), solved(), atol=2e-3)
    assert layer.status["residual"] < 1e-6
