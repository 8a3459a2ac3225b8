"""Data, random weights and gradients for the tests of the recurrent layers."""

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxGRUCell, ProxLSTM, ProxLSTMCell
from tests.helpers import prox_recurrent_reference as reference

BATCH, STEPS, FEATURES, UNITS = 3, 5, 4, 3
RNN = keras.layers.RNN
# The layer, its cell, those of Keras, and the cell in NumPy.
KINDS = {
    "LSTM": (ProxLSTM, ProxLSTMCell, keras.layers.LSTM, keras.layers.LSTMCell, reference.lstm),
    "GRU": (ProxGRU, ProxGRUCell, keras.layers.GRU, keras.layers.GRUCell, reference.gru),
}


def data(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def states_of(kind, dtype="float64", units=UNITS):
    """h and c of an LSTM, h of a GRU."""
    return [data(BATCH, units, seed=s, dtype=dtype) for s in (2, 3)[: 2 if kind == "LSTM" else 1]]


def randomize(layer, seed=1):
    """Random asymmetric weights: initializers like zeros would hide permuted gates."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(0.6 * rng.normal(size=weight.shape))
    return layer


def built(layer, features=FEATURES, batch=None, seed=1):
    layer.build((batch, None, features))
    return randomize(layer, seed)


def outputs_and_gradients(layer, inputs, initial_state=(), **call):
    """Outputs, and gradients of a function of them in the inputs, the states and all weights."""
    tensors = [tf.constant(t) for t in (inputs, *initial_state)]
    if initial_state:
        call["initial_state"] = tensors[1:]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = tf.nest.flatten(layer(tensors[0], **call))
        loss = tf.add_n([tf.reduce_sum(tf.sin(y + k)) for k, y in enumerate(outputs)])
    gradients = tape.gradient(loss, [*tensors, *[v.value for v in layer.trainable_variables]])
    return [np.asarray(t) for t in (*outputs, *gradients)]


def gradient_penalty(layer, x, training=False):
    """The gradient in all weights of the squared norm of the input's gradient."""
    variables = [v.value for v in layer.trainable_variables]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, training=training)))
        penalty = tf.reduce_sum(tape.gradient(loss, x) ** 2)
    return penalty, outer.gradient(penalty, variables)


def assert_close(left, right, **tolerance):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)
