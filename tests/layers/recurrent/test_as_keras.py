"""What Keras asks of its own recurrent layers and cells, asked of ours."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import testing

from proxnet_tf.layers.recurrent.any_cell import ProxRNNCell
from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell
from tests.layers.recurrent.test_lstm import (
    BATCH,
    FEATURES,
    STEPS,
    UNITS,
    assert_close,
    built,
    data,
    outputs_and_gradients,
    randomize,
)

RNN = keras.layers.RNN


def prox_gru_cell(units=UNITS, **arguments):
    inner = {k: arguments[k] for k in ("dtype", "dropout", "seed") if k in arguments}
    outer = {k: arguments[k] for k in ("dtype", "name", "lam", "delta") if k in arguments}
    return ProxRNNCell(keras.layers.GRUCell(units, **inner), **outer)


# How a layer over sequences is made of each class, and of what of Keras it is with delta = 0.
LAYERS = {
    "ProxLSTM": (ProxLSTM, keras.layers.LSTM),
    "ProxLSTMCell": (
        lambda units, cell={}, **k: RNN(ProxLSTMCell(units, **cell), **k),
        lambda units, cell={}, **k: RNN(keras.layers.LSTMCell(units, **cell), **k),
    ),
    "ProxRNNCell": (
        lambda units, cell={}, **k: RNN(prox_gru_cell(units, **cell), **k),
        lambda units, cell={}, **k: RNN(keras.layers.GRUCell(units, **cell), **k),
    ),
}


def make(kind, units=UNITS, *, plain=False, dtype="float32", cell=None, **arguments):
    """A layer of that kind; `cell`: arguments of its cell."""
    cell = dict(cell or {})
    if kind == "ProxLSTM":
        arguments |= cell
    else:
        arguments["cell"] = {**cell, "dtype": dtype}
    return LAYERS[kind][plain](units, dtype=dtype, **arguments)


class TestLayer(testing.TestCase):
    """Keras's own check of a layer: config, weights, shapes, masks, training, 16 bits."""

    def check(self, cls, arguments, **settings):
        self.run_layer_test(
            cls,
            init_kwargs=arguments,
            input_shape=(BATCH, STEPS, FEATURES),
            supports_masking=True,
            run_mixed_precision_check=True,
            **settings,
        )

    def test_prox_lstm(self):
        self.check(
            ProxLSTM,
            {"units": 3, "dropout": 0.5, "lam": 0.5},
            expected_output_shape=(BATCH, 3),
            expected_num_trainable_weights=3,
            expected_num_non_trainable_weights=1,
            expected_num_seed_generators=1,
        )

    def test_prox_lstm_that_returns_sequences(self):
        self.check(
            ProxLSTM,
            {"units": 3, "return_sequences": True, "recurrent_dropout": 0.3, "use_bias": False},
            expected_output_shape=(BATCH, STEPS, 3),
            expected_num_trainable_weights=2,
            expected_num_non_trainable_weights=1,
            expected_num_seed_generators=1,
        )

    def test_cells(self):
        for cell in (ProxLSTMCell(3, lam=0.5), prox_gru_cell(3, lam=0.5)):
            self.check(
                RNN,
                {"cell": cell, "return_sequences": True},
                expected_output_shape=(BATCH, STEPS, 3),
                expected_num_trainable_weights=3,
                expected_num_non_trainable_weights=1,
                custom_objects={"ProxLSTMCell": ProxLSTMCell, "ProxRNNCell": ProxRNNCell},
            )


@pytest.mark.parametrize("settings", [{}, {"go_backwards": True}, {"unroll": True}])
@pytest.mark.parametrize("kind", LAYERS)
def test_with_delta_zero_it_is_the_layer_of_keras(kind, settings):
    """Outputs, states, gradients; with the same dropout under the same seed."""
    x = data(BATCH, STEPS, FEATURES)
    mask = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]], bool)
    settings = {**settings, "return_sequences": True, "return_state": True}
    cell = {"dropout": 0.5, "seed": 7}
    ours = built(make(kind, cell={**cell, "delta": 0.0}, **settings))
    theirs = built(make(kind, plain=True, cell=cell, **settings))
    for variable, value in zip(theirs.trainable_variables, ours.trainable_variables, strict=True):
        variable.assign(value)
    for call in ({}, {"mask": mask}, {"mask": mask, "training": True}):
        left, right = (outputs_and_gradients(layer, x, **call) for layer in (ours, theirs))
        assert_close(left, right, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("kind", LAYERS)
def test_stateful(kind, dtype):
    """Two halves in turn are the whole; a reset forgets."""
    x = data(BATCH, 6, FEATURES)
    layer = make(kind, stateful=True, dtype=dtype, cell={"lam": 0.5})
    layer.build((BATCH, 3, FEATURES))
    randomize(layer)
    whole = built(make(kind, dtype=dtype, cell={"lam": 0.5}))
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    layer(x[:, :3])
    np.testing.assert_allclose(layer(x[:, 3:]), whole(x), atol=tolerance)
    layer.reset_state()
    np.testing.assert_allclose(layer(x[:, :3]), whole(x[:, :3]), atol=tolerance)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 3, FEATURES)), layer])
    model.compile("sgd", "mse")
    history = model.fit(x[:, :3], x[:, 0, :UNITS], batch_size=BATCH, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("cell", ["GRUCell", "LSTMCell", "SimpleRNNCell", "ProxLSTM", "own LSTM"])
def test_training_in_16_bits(cell, dtype):
    """Finite float32 gradients, near those in float32, eager and in `fit`."""

    def layer(dtype):
        if cell == "ProxLSTM":
            return built(ProxLSTM(UNITS, lam=0.5, dtype=dtype))
        if cell == "own LSTM":
            return built(RNN(ProxLSTMCell(UNITS, lam=0.5, dtype=dtype), dtype=dtype))
        inner = getattr(keras.layers, cell)(UNITS, dtype=dtype)
        return built(RNN(ProxRNNCell(inner, lam=0.5, dtype=dtype), dtype=dtype))

    x, half = data(BATCH, STEPS, FEATURES), layer(dtype)
    variables = [v.value for v in half.trainable_variables]

    def gradients(layer, variables):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.cast(layer(x, training=True), "float32")))
        return tape.gradient(loss, variables)

    full = layer("float32")
    expected = gradients(full, [v.value for v in full.trainable_variables])
    for run in (gradients, tf.function(gradients)):
        found = run(half, variables)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == tf.float32
            assert np.linalg.norm(a - b) < (0.02 if "bf" not in dtype else 0.15) * np.linalg.norm(b)
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), half, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(x, x[:, 0, :1], epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("kind", LAYERS)
def test_two_in_one_model(kind, tmp_path):
    """Paths are unique, the state tree and both ways of saving keep the two apart."""
    inputs = keras.Input((STEPS, FEATURES))
    both = keras.layers.Bidirectional(make(kind, cell={"lam": 0.5}, return_sequences=True))
    layers = [make(kind, cell={"lam": lam}) for lam in (0.25, 2.0)]
    features = both(inputs)
    outputs = keras.layers.Add()([layer(features) for layer in layers])
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    randomize(model)
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths), paths
    model.compile("sgd", "mse")
    x = data(BATCH, STEPS, FEATURES)
    model.fit(x, x[:, 0, :1], verbose=0)
    tree = model.get_state_tree(value_format="numpy_array")
    lams = [float(v) for v in tf.nest.flatten(tree["non_trainable_variables"]) if np.ndim(v) == 0]
    assert {0.25, 0.5, 2.0} <= set(lams)
    both.forward_layer.cell.lam.assign(4.0)
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(reloaded.predict(x, verbose=0), expected, atol=1e-6)
    clone = keras.models.clone_model(model)
    assert np.abs(clone.predict(x, verbose=0) - expected).max() > 1e-3
    clone.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(clone.predict(x, verbose=0), expected, atol=1e-6)
    assert [v.name for v in clone.weights] == [v.name for v in model.weights]


@pytest.mark.parametrize("kind", LAYERS)
def test_bidirectional_is_both_directions(kind):
    x = data(BATCH, STEPS, FEATURES)
    wrapped = keras.layers.Bidirectional(make(kind, cell={"lam": 0.5}, return_sequences=True))
    wrapped.build((None, STEPS, FEATURES))
    randomize(wrapped)
    parts = wrapped.forward_layer(x), tf.reverse(wrapped.backward_layer(x), [1])
    np.testing.assert_allclose(wrapped(x), tf.concat(parts, -1), atol=1e-6)
    assert wrapped.backward_layer.go_backwards


@pytest.mark.parametrize("kind", LAYERS)
def test_time_distributed_and_a_shared_place(kind):
    """A sequence of sequences, and one layer in two places, are the layer on each."""
    layer = built(make(kind, cell={"lam": 0.5}))
    x = data(BATCH, 2, STEPS, FEATURES)
    inputs = keras.Input((2, STEPS, FEATURES))
    model = keras.Model(inputs, keras.layers.TimeDistributed(layer)(inputs))
    expected = np.stack([layer(x[:, 0]), layer(x[:, 1])], axis=1)
    np.testing.assert_allclose(model(x), expected, atol=1e-6)
    shared = keras.Model(inputs, [layer(inputs[:, 0]), layer(inputs[:, 1])])
    np.testing.assert_allclose(np.stack(shared(x), axis=1), expected, atol=1e-6)
    assert len(shared.trainable_weights) == len(layer.trainable_weights)


def test_stacked_cells_of_all_kinds():
    cells = [ProxLSTMCell(3, lam=0.5), prox_gru_cell(4, lam=0.5), keras.layers.LSTMCell(2)]
    rnn = built(RNN(cells, return_state=True))
    assert isinstance(rnn.cell, keras.layers.StackedRNNCells)
    x = data(BATCH, STEPS, FEATURES)
    output, *states = rnn(x)
    y = x
    for cell, features in zip(cells, (FEATURES, 3, 4), strict=True):
        layer = RNN(cell, return_sequences=True)
        layer.build((None, None, features))
        y = layer(y)
    np.testing.assert_allclose(output, y[:, -1], atol=1e-6)
    assert len(states) == 3
    paths = [v.path for v in rnn.variables]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("make_cell", [prox_gru_cell, ProxLSTMCell], ids=["any", "lstm"])
def test_states_have_the_structure_of_the_cell_of_keras(make_cell):
    ours = make_cell(UNITS)
    theirs = (keras.layers.GRUCell if make_cell is prox_gru_cell else keras.layers.LSTMCell)(UNITS)
    assert ours.state_size == theirs.state_size
    x = tf.constant(data(BATCH, FEATURES))
    state = tf.constant(data(BATCH, UNITS))
    given = [[state], state] if make_cell is prox_gru_cell else [[state, state]]
    for states in given:
        left, right = ours(x, states)[1], theirs(x, states)[1]
        tf.nest.assert_same_structure(left, right)
        assert type(left) is type(right)
    tf.nest.assert_same_structure(ours.get_initial_state(2), theirs.get_initial_state(2))


@keras.saving.register_keras_serializable(package="tests")
class BareCell(keras.layers.Layer):
    """A user's cell of one state that is a bare tensor, and that names no initial state."""

    state_size = UNITS

    def build(self, input_shape):
        self.dense = keras.layers.Dense(UNITS, "tanh")
        self.dense.build((None, input_shape[-1] + UNITS))
        self.built = True

    def call(self, inputs, states):
        state = states[0] if isinstance(states, (list, tuple)) else states
        new = self.dense(tf.concat([inputs, state], -1))
        return new, new


def test_a_cell_that_returns_a_bare_state():
    cell = ProxRNNCell(BareCell(), lam=0.3)
    x, state = tf.constant(data(BATCH, FEATURES)), tf.constant(data(BATCH, UNITS))
    output, new = cell(x, state)
    assert new.shape == output.shape == (BATCH, UNITS)
    assert np.abs(new - output).max() > 1e-3
    np.testing.assert_array_equal(cell(x, [state])[1], new)
    assert cell.get_initial_state(2).shape == (2, UNITS)
    layer = RNN(cell, stateful=True)
    layer.build((BATCH, STEPS, FEATURES))
    assert layer(data(BATCH, STEPS, FEATURES)).shape == (BATCH, UNITS)


@pytest.mark.parametrize("kind", LAYERS)
def test_initial_states(kind):
    """As lists, as Keras tensors, and passed on from layer to layer."""
    layer = built(make(kind, cell={"lam": 0.5}, return_state=True))
    x = data(BATCH, 4, FEATURES)
    _, *states = layer(x[:, :2])
    expected = layer(x)[0]
    np.testing.assert_allclose(layer(x[:, 2:], initial_state=states)[0], expected, atol=1e-5)
    first, second = keras.Input((2, FEATURES)), keras.Input((2, FEATURES))
    _, *symbolic = layer(first)
    model = keras.Model([first, second], layer(second, initial_state=symbolic)[0])
    np.testing.assert_allclose(model([x[:, :2], x[:, 2:]]), expected, atol=1e-5)
