"""Derivatives that are not provided: an error, never zero."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox, ProxDropout, ProxLSTM, ProxLSTMCell, ProxRNNCell
from proxnet_tf.ops.linear.once import check_tapes, differentiable_once

X = tf.random.stateless_normal((2, 3, 2), (0, 1), dtype=tf.float64)
T = tf.random.stateless_normal((2, 3, 2), (0, 2), dtype=tf.float64)
GRU = keras.layers.GRUCell(3, dtype="float64")
WITHOUT = {
    "layer": ProxLSTM(3, dtype="float64", jit_compile=False),
    "cell": keras.layers.RNN(ProxLSTMCell(3, dtype="float64"), dtype="float64"),
    "any cell": keras.layers.RNN(ProxRNNCell(GRU, dtype="float64"), dtype="float64", unroll=True),
    "dropout": ProxDropout(dtype="float64"),
    "function": Prox(lambda z: tf.reduce_sum(z**4, -1), dtype="float64"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_forward_mode_is_refused(name):
    layer = WITHOUT[name]
    layer(X)
    with (
        pytest.raises(NotImplementedError, match="no derivative in forward mode"),
        tf.autodiff.ForwardAccumulator(X, T) as accumulator,
    ):
        accumulator.jvp(layer(X))


def test_forward_mode_of_a_closed_form():
    layer = Prox("l1", lam=2.0, dtype="float64")
    with tf.autodiff.ForwardAccumulator(X, T) as accumulator:
        z = layer(X)
    np.testing.assert_array_equal(accumulator.jvp(z), tf.where(tf.abs(X) > 0.5, T, 0.0))


def test_two_tapes_give_the_product_with_the_jacobian():
    """What the message advises."""
    layer = WITHOUT["layer"]
    y = tf.zeros_like(layer(X))
    with tf.GradientTape() as outer:
        outer.watch(y)
        with tf.GradientTape() as inner:
            inner.watch(X)
            out = layer(X)
        pulled = inner.gradient(out, X, y)
    found = outer.gradient(pulled, y, T)
    step = 1e-6
    numeric = (layer(X + step * T) - layer(X - step * T)) / (2 * step)
    np.testing.assert_allclose(found, numeric, atol=1e-8)


def test_tapes_record_in_reverse_mode_and_in_graphs():
    check_tapes()
    tf.function(check_tapes)()


def test_the_second_derivative_is_refused():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = differentiable_once(lambda x: x**2, "square")(x)
    assert float(y) == 9.0
    with pytest.raises(NotImplementedError, match="The square provides first derivatives only"):
        tape.gradient(y, x)
