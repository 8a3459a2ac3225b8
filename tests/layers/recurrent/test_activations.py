"""Every activation of Keras in `ProxLSTM`: right derivatives, or an error that says why not."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxLSTM

JOINT = ("softmax", "log_softmax", "sparsemax", "glu")
NOT_ONE_TENSOR = ("threshold",)
NAMES = sorted(
    name
    for name, value in vars(keras.activations).items()
    if inspect.isfunction(value) and name not in ("get", "serialize", "deserialize")
)
USABLE = [name for name in NAMES if name not in JOINT + NOT_ONE_TENSOR]
X, V = np.random.default_rng(0).normal(size=(2, 2, 2, 4))


def layer_with(**activations):
    keras.utils.set_random_seed(0)
    return ProxLSTM(3, lam=0.7, delta=1.3, dtype="float64", jit_compile=False, **activations)


def test_the_list_is_that_of_keras():
    assert {"tanh", "softsign", "gelu", "relu", *JOINT} < set(NAMES)


@pytest.mark.parametrize("name", USABLE)
def test_gradient_equals_central_differences(name):
    layer = layer_with(activation=name)
    x, h = tf.constant(X), 1e-6
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(tf.sin(layer(x)))
    along = tf.reduce_sum(tape.gradient(total, x) * V)
    ends = [tf.reduce_sum(tf.sin(layer(X + s * V))) for s in (h, -h)]
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-8)


def test_softsign_is_the_function_of_keras():
    """At the first step, from c = 0, the state of an LSTM without recurrence."""
    layer, plain = (
        layer_with(activation="softsign"),
        keras.layers.LSTM(3, activation="softsign", dtype="float64"),
    )
    layer.cell.lam.assign(1e12)  # c = s
    plain.build(X.shape)
    layer(X)
    plain.set_weights(layer.get_weights()[:3])
    np.testing.assert_allclose(layer(X), plain(X), atol=1e-9)


def shifted(z):
    return tf.tanh(z + tf.roll(z, 1, axis=-1))


def summed(z):
    return tf.tanh(tf.cumsum(z, axis=-1))


def narrower(z):
    return z[..., :1]


@pytest.mark.parametrize("function", [*JOINT, shifted, summed, narrower])
def test_what_does_not_act_elementwise_is_refused(function):
    for argument in ("activation", "recurrent_activation"):
        with pytest.raises(ValueError, match=f"`{argument}` must act elementwise.*ProxRNNCell"):
            ProxLSTM(3, **{argument: function})


@pytest.mark.parametrize("function", [*NOT_ONE_TENSOR, lambda z: tf.nn.softsign(2.0 * z)])
def test_what_cannot_be_differentiated_twice_is_refused(function):
    with pytest.raises(ValueError, match="`activation` must be a function of one tensor that"):
        ProxLSTM(3, activation=function)
