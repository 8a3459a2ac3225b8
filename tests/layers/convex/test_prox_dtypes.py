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


@pytest.mark.parametrize(
    "name, own", [("float64", None), ("float64", "float32"), ("mixed_float16", None)]
)
def test_a_layer_computes_in_the_dtype_of_the_solver(name, own):
    with policy(name):
        inner = Rise(dtype=own) if own else Rise()
        layer = Prox(inner)
        layer.build(X.shape)
    inner.set_weights([KERNEL])
    kept = inner.dtype_policy, inner.dense.dtype_policy
    x = tf.constant(X, layer.compute_dtype)
    with tf.GradientTape() as tape:
        z = layer(x)
        total = tf.reduce_sum(z)
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-6}
    assert z.dtype == layer.compute_dtype
    # The kernel is rounded to float32 in most cases.
    np.testing.assert_allclose(tf.cast(z, "float64"), solved(), atol=tolerance[layer.compute_dtype])
    assert layer.status["residual"] < (1e-9 if name == "float64" else 1e-6)
    gradient = tape.gradient(total, inner.trainable_variables[0].value)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1
    assert (inner.dtype_policy, inner.dense.dtype_policy) == kept
    assert inner(tf.cast(x, "float32")).dtype == inner.compute_dtype


def test_a_variable_that_a_function_reads_is_not_rounded():
    with policy("mixed_float16"):
        weight = keras.Variable(np.linspace(0.1, 0.5, 5), dtype="float32")
        layer = Prox(lambda z: tf.reduce_sum(tf.cast(weight, z.dtype) * z**2, axis=-1) / 2)
        z = layer(tf.constant(X, layer.compute_dtype))
    np.testing.assert_allclose(z, X / (1 + np.linspace(0.1, 0.5, 5)), atol=1e-3)
    assert layer.status["residual"] < 1e-6


def sequential(dtype):
    return keras.Sequential(
        [
            keras.Input((5,), dtype=dtype),
            keras.layers.Dense(4, "softplus", use_bias=False),
            keras.layers.Lambda(lambda t: keras.ops.sum(t, axis=-1)),
        ]
    )


def test_a_model_computes_in_the_dtype_of_the_solver():
    with policy("mixed_float16"):
        model = sequential("float32")
        model.set_weights([KERNEL])
        layer = Prox(model)
        np.testing.assert_allclose(layer(X), solved(), atol=2e-3)
    assert layer.status["residual"] < 1e-6
    model = sequential("float64")
    model.set_weights([KERNEL])
    np.testing.assert_allclose(Prox(model, dtype="float64")(X), solved(), atol=1e-6)
    with pytest.raises(ValueError, match=r"use keras.Input\(\.\.\., dtype='float64'\)"):
        Prox(sequential("float32"), dtype="float64")(X)
