"""ProxRNNCell: any cell as a black box, against dense solves and differences.

`test_gated.py` has it against `ProxLSTMCell` and `ProxGRUCell`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxLSTMCell, ProxRNNCell
from tests.helpers.differences import central_difference, directional_difference
from tests.helpers.prox_recurrent_reference import prox
from tests.layers.recurrent.cases import (
    BATCH,
    FEATURES,
    STEPS,
    UNITS,
    assert_close,
    built,
    data,
    gradient_penalty,
    randomize,
)


@keras.saving.register_keras_serializable(package="tests")
class CountingCell(keras.layers.Layer):
    """A user's cell: an integer state between two vectors, inner layers, random numbers."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.state_size = [units, 1, units + 1]
        self.output_size = 2
        self.first = keras.layers.Dense(units, "tanh", dtype=kwargs.get("dtype"))
        self.second = keras.layers.Dense(units + 1, "softplus", dtype=kwargs.get("dtype"))
        self.head = keras.layers.Dense(2, dtype=kwargs.get("dtype"))
        self.drop = keras.layers.Dropout(0.4, seed=1, dtype=kwargs.get("dtype"))

    def build(self, input_shape):
        features = input_shape[-1]
        self.first.build((None, features + self.units))
        self.second.build((None, 2 * self.units + 1))
        self.head.build((None, self.units + 1))
        self.built = True

    def get_initial_state(self, batch_size=None):
        return [
            tf.zeros([batch_size, self.units], self.compute_dtype),
            tf.zeros([batch_size, 1], tf.int32),
            tf.ones([batch_size, self.units + 1], self.compute_dtype),
        ]

    def call(self, inputs, states, training=False):
        a, count, b = states
        a = self.first(tf.concat([self.drop(inputs, training=training), a], -1))
        b = self.second(tf.concat([a, b], -1))
        return self.head(b), [a, count + 1, b]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


CELLS = {
    "gru": lambda dtype: keras.layers.GRUCell(UNITS, dtype=dtype),
    "simple": lambda dtype: keras.layers.SimpleRNNCell(UNITS, dtype=dtype),
    "lstm": lambda dtype: keras.layers.LSTMCell(UNITS, dtype=dtype),
}


def wrapped(kind, dtype="float64", **arguments):
    settings = {"lam": 0.5, "delta": 1.2, **arguments}
    return ProxRNNCell(CELLS[kind](dtype), dtype=dtype, **settings)


@pytest.mark.parametrize("kind, features", [("gru", 1), ("simple", 6), ("lstm", 6)])
def test_state_is_the_dense_solution(kind, features):
    cell = wrapped(kind)
    cell.build((None, features))
    randomize(cell)
    x = tf.constant(data(4, features, dtype="float64"))
    states = [data(4, UNITS, seed=s, dtype="float64") for s in range(2 if kind == "lstm" else 1)]
    states = [tf.constant(s) for s in states]
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, plain = cell.cell(x, states)
        s = plain[-1]
    g = tape.batch_jacobian(s, x).numpy()
    expected = prox(s.numpy(), g, 1.44 / 0.5)
    found, new_states = cell(x, states)
    np.testing.assert_allclose(found, output, atol=1e-12)
    np.testing.assert_allclose(new_states[-1], expected, atol=1e-9)
    assert_close(new_states[:-1], plain[:-1], atol=1e-12)
    assert np.abs(expected - s).max() > 1e-3


@pytest.mark.parametrize("kind", CELLS)
def test_gradients_against_central_differences(kind):
    rnn = built(keras.layers.RNN(wrapped(kind, lam=0.3), dtype="float64", return_state=True))
    x = data(2, 3, FEATURES, dtype="float64")
    variables = rnn.trainable_variables
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in rnn(tensor)])
    gradients = tape.gradient(loss, [tensor, *[v.value for v in variables]])
    values = [v.numpy() for v in variables]
    run = tf.function(lambda x: rnn(x))

    def numpy_loss(x, *values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return sum(float(np.sum(np.sin(y))) for y in run(tf.constant(x)))

    for index, gradient in enumerate(gradients):
        if index in (0, 1):  # the input and the input kernel, entry by entry
            numeric = central_difference(numpy_loss, [x, *values], index)
            np.testing.assert_allclose(gradient, numeric, atol=1e-6)
        else:
            direction = [np.zeros_like(v) for v in (x, *values)]
            direction[index] = np.random.default_rng(index).normal(size=gradient.shape)
            numeric = directional_difference(numpy_loss, [x, *values], direction)
            found = np.sum(gradient * direction[index])
            np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-8)


def test_second_derivative_equals_that_of_prox_lstm_cell():
    rnns = [
        keras.layers.RNN(cell, dtype="float64")
        for cell in (wrapped("lstm"), ProxLSTMCell(UNITS, lam=0.5, delta=1.2, dtype="float64"))
    ]
    x = tf.constant(data(2, 3, FEATURES, dtype="float64"))
    results = [gradient_penalty(built(rnn), x) for rnn in rnns]
    for left, right in zip(*(tf.nest.flatten(r) for r in results), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)


def test_output_from_prox_of_a_gru():
    """The output is the state, at the last step too."""
    rnn = keras.layers.RNN(
        wrapped("gru", output_from_prox=True), return_state=True, dtype="float64"
    )
    plain = keras.layers.RNN(wrapped("gru"), return_state=True, dtype="float64")
    x = data(BATCH, STEPS, FEATURES, dtype="float64")
    for layer in (rnn, plain):
        built(layer)
    output, state = rnn(x)
    np.testing.assert_array_equal(output, state)
    other, same = plain(x)
    np.testing.assert_allclose(state, same, atol=1e-12)
    assert np.abs(other - same).max() > 1e-3


@pytest.mark.parametrize("state_index", [0, -1])
def test_a_users_cell(state_index):
    """States of several sizes and dtypes, inner layers, the same random numbers in s and in G."""
    cell = ProxRNNCell(
        CountingCell(3, dtype="float64"), lam=0.1, state_index=state_index, dtype="float64"
    )
    cell.build((None, FEATURES))
    randomize(cell)
    x = tf.constant(data(BATCH, FEATURES, dtype="float64"))
    states = cell.get_initial_state(BATCH)
    generator = cell.cell.drop.seed_generator
    seed = generator.state.numpy()
    output, new_states = cell(x, states, training=True)
    assert not np.array_equal(generator.state.numpy(), seed)  # the next step draws others
    generator.state.assign(seed)
    with tf.GradientTape() as tape:
        tape.watch(x)
        plain_output, plain = cell.cell(x, states, training=True)
        s = plain[state_index]
    g = tape.batch_jacobian(s, x).numpy()
    expected = prox(s.numpy(), g, 10.0)
    np.testing.assert_allclose(new_states[state_index], expected, atol=1e-9)
    np.testing.assert_array_equal(new_states[1], 1)
    np.testing.assert_allclose(output, plain_output, atol=1e-12)


def test_bad_arguments():
    for state_index in (2, -3, 1.5):
        with pytest.raises(ValueError, match="`state_index` must be an integer"):
            ProxRNNCell(keras.layers.LSTMCell(3), state_index=state_index)
    with pytest.raises(ValueError, match="`cell` must be a Keras layer"):
        ProxRNNCell(lambda x, states: (x, states))
    with pytest.raises(ValueError, match="must be a Keras layer with a `state_size`"):
        ProxRNNCell(keras.layers.GRU(8))
    stack = keras.layers.StackedRNNCells([keras.layers.LSTMCell(3), keras.layers.LSTMCell(3)])
    with pytest.raises(ValueError, match="stack the wrappers"):
        ProxRNNCell(stack)
    with pytest.raises(ValueError, match="`lam`"):
        ProxRNNCell(keras.layers.GRUCell(3), lam=0.0)
    with pytest.raises(ValueError, match="`delta`"):
        ProxRNNCell(keras.layers.GRUCell(3), delta=-1.0)
    with pytest.raises(ValueError, match="must have one size"):
        ProxRNNCell(CountingCell(3), state_index=0, output_from_prox=True)
    with pytest.raises(ValueError, match="must be \\(batch, input_dim\\)"):
        ProxRNNCell(keras.layers.GRUCell(3)).build((None, 4, 4, 1))
