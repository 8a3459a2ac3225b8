"""Derivatives that are not provided: an error, never zero; the others pass."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox, ProxDropout, ProxGRU, ProxLSTM, ProxLSTMCell, ProxRNNCell
from proxnet_tf.ops.convex.dropout import prox_dropout
from proxnet_tf.ops.convex.entropy import prox_entropy
from proxnet_tf.ops.convex.nuclear import prox_nuclear
from proxnet_tf.ops.convex.smooth import smooth_prox
from proxnet_tf.ops.linear.once import differentiable_once

X = tf.random.stateless_normal((2, 3, 2), (0, 1), dtype=tf.float64)
T = tf.random.stateless_normal((2, 3, 2), (0, 2), dtype=tf.float64)
GRU = keras.layers.GRUCell(3, dtype="float64")
WITHOUT = {
    "layer": ProxLSTM(3, dtype="float64", jit_compile=False),
    "cell": keras.layers.RNN(ProxLSTMCell(3, dtype="float64"), dtype="float64"),
    "GRU": ProxGRU(3, dtype="float64", jit_compile=False),
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


@tf.custom_gradient
def cube(x):
    """x^3 with its first derivative only."""

    def backward(y):
        return differentiable_once(lambda y, x: 3 * x**2 * y, "cube")(y, x)

    return x**3, backward


def first_and_second(x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        slope = inner.gradient(y, x)
    return slope, lambda: outer.gradient(slope, x)


@pytest.mark.parametrize("graph", [False, True])
def test_the_first_derivative_is_there_and_the_second_an_error_that_names_what(graph):
    def at(x):
        slope, second = first_and_second(x)
        if not graph:
            np.testing.assert_allclose(slope, [12.0, 27.0])
        return second()

    run = tf.function(at, autograph=False) if graph else at
    with pytest.raises(NotImplementedError, match="The cube provides first derivatives only"):
        run(tf.constant([2.0, -3.0]))


@pytest.mark.parametrize("index", [0, 1])
def test_no_argument_has_a_derivative(index):
    """Nor is there a second way round, through a variable that the function reads."""
    arguments = [tf.constant(2.0), tf.constant(5.0)]
    variable = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(arguments)
        found = differentiable_once(lambda a, b: a * b * variable)(*arguments)
    assert float(found) == 30.0
    for wanted in (arguments[index], variable):
        with pytest.raises(NotImplementedError, match="The proximal map provides"):
            tape.gradient(found, wanted)


@pytest.mark.parametrize(
    "prox",
    [
        prox_entropy,
        lambda x, lam: prox_dropout(x, lam).point,
        lambda x, lam: prox_nuclear(x[tf.newaxis], lam),
        lambda x, lam: smooth_prox(lambda z: tf.reduce_sum(z**4, -1), x, lam).point,
    ],
)
def test_maps_that_are_differentiable_once(prox):
    x = tf.random.stateless_normal((2, 3), (0, 3), dtype=tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            z = tf.reduce_sum(prox(x, 1.0) ** 2)
        dx = inner.gradient(z, x)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(dx, x)
