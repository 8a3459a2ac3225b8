"""Recurrent layers and cells: Keras's own at delta = 0, a loop over the cell otherwise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxGRUCell, ProxLSTM, ProxLSTMCell, ProxRNNCell
from tests.helpers.layer_checks import assert_finite, assert_same, randomize
from tests.helpers.registry import CELLS, SEQUENCES, UNITS, LeakyCell, wrapped

LENGTHS = 1 + np.arange(len(SEQUENCES)) % SEQUENCES.shape[1]
MASK = np.arange(SEQUENCES.shape[1]) < LENGTHS[:, None]
HOLES = np.random.default_rng(0).random(MASK.shape) < 0.6  # masked steps at the start and inside

LAYERS = {"ProxLSTM": (ProxLSTM, keras.layers.LSTM), "ProxGRU": (ProxGRU, keras.layers.GRU)}
OWN_CELLS = {"ProxLSTMCell": ProxLSTMCell, "ProxGRUCell": ProxGRUCell}
PLAIN_CELLS = {
    "ProxLSTMCell": keras.layers.LSTMCell,
    "ProxGRUCell": keras.layers.GRUCell,
    "ProxRNNCell of GRUCell": keras.layers.GRUCell,
    "ProxRNNCell of LSTMCell": keras.layers.LSTMCell,
    "ProxRNNCell of a user's cell": LeakyCell,
}


def make(name, delta, cell=None, **options):
    cell = cell or {}
    if name in LAYERS:
        settings = {"lam": 0.7, "jit_compile": False, **cell, **options}
        return LAYERS[name][0](UNITS, delta=delta, **settings)
    if name in OWN_CELLS:
        return keras.layers.RNN(OWN_CELLS[name](UNITS, delta=delta, lam=0.7, **cell), **options)
    inner = PLAIN_CELLS[name](UNITS, **cell)
    return keras.layers.RNN(ProxRNNCell(inner, delta=delta, lam=0.7), **options)


def keras_layer(name, cell=None, **options):
    cell = cell or {}
    if name in LAYERS:
        return LAYERS[name][1](UNITS, **cell, **options)
    return keras.layers.RNN(PLAIN_CELLS[name](UNITS, **cell), **options)


# Two states and one in closed form, and a wrapped cell; the others are their kin.
ALWAYS = ("ProxLSTM", "ProxGRU", "ProxRNNCell of GRUCell")


def names(select=lambda name: True):
    """Parameters of the tests below: names of layers and cells that `select` takes."""
    return [
        pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow)
        for name in (*LAYERS, *CELLS)
        if select(name)
    ]


def built(layer):
    layer.build(SEQUENCES.shape)
    return layer


def pair(name, cell=None, **options):
    """The layer with delta = 0 and Keras's, with the same weights."""
    mine, theirs = make(name, 0.0, cell, **options), keras_layer(name, cell, **options)
    return randomize(built(mine)), randomize(built(theirs))


def states_of(name, scale=0.3):
    count = 2 if "LSTM" in name else 1
    rng = np.random.default_rng(8)
    return [
        scale * rng.normal(size=(len(SEQUENCES), UNITS)).astype("float32") for _ in range(count)
    ]


def values_and_gradients(layer, **call):
    x = tf.constant(SEQUENCES)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(layer(x, **call))
        total = tf.add_n([tf.reduce_sum(tf.sin(o + k)) for k, o in enumerate(outputs)])
    weights = [v.value for v in layer.trainable_variables]
    return [*outputs, *tape.gradient(total, [x, *weights])]


OPTIONS = {
    "last output": ({}, {}),
    "mask with holes, backwards, zeros": (
        {
            "return_sequences": True,
            "return_state": True,
            "go_backwards": True,
            "zero_output_for_mask": True,
        },
        {"mask": HOLES},
    ),
    "mask, unrolled": ({"unroll": True, "return_state": True}, {"mask": HOLES}),
    "mask, initial state": ({"return_sequences": True}, {"mask": MASK, "initial_state": True}),
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("name", names())
def test_without_penalty_it_is_keras(name, case):
    options, call = OPTIONS[case]
    if "initial_state" in call:
        call = call | {"initial_state": states_of(name)}
    mine, theirs = pair(name, **options)
    found, wanted = values_and_gradients(mine, **call), values_and_gradients(theirs, **call)
    assert_same(found, wanted, 1e-4)


@pytest.mark.parametrize("recurrent_dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", names(lambda name: "user" not in name))
def test_dropout_with_equal_seeds_is_that_of_keras(name, recurrent_dropout):
    cell = {"dropout": 0.4, "recurrent_dropout": recurrent_dropout, "seed": 11}
    mine, theirs = pair(name, cell, return_sequences=True)
    plain = theirs(SEQUENCES)
    assert_same(mine(SEQUENCES), plain)  # Keras draws masks here too
    for _ in range(2):  # the second call draws other masks
        wanted = theirs(SEQUENCES, training=True)
        assert np.abs(wanted - plain).max() > 1e-2
        assert_same(mine(SEQUENCES, training=True), wanted)


def loop(cell, states, mask=None, backwards=False, zeros=False):
    """Outputs and last states by calls of the cell, one step after the other."""
    steps = range(SEQUENCES.shape[1])
    outputs, last = [], np.zeros((len(SEQUENCES), UNITS), "float32")
    for t in reversed(steps) if backwards else steps:
        output, new = cell(SEQUENCES[:, t], states)
        new = tf.nest.flatten(new)
        if mask is not None:
            keep = mask[:, t, None]
            new = [np.where(keep, n, s) for n, s in zip(new, states, strict=True)]
            output = np.where(keep, output, 0.0 if zeros else last)
        states, last = new, np.asarray(output)
        outputs.append(last)
    return np.stack(outputs, 1), states


@pytest.mark.parametrize("case", [c for c in OPTIONS if "zeros" in c or "initial" in c])
@pytest.mark.parametrize("name", names())
def test_layer_is_a_loop_over_its_cell(name, case):
    options, call = OPTIONS[case]
    options = {**options, "return_sequences": True, "return_state": True}
    layer = randomize(built(make(name, 1.3, **options)))
    states = states_of(name, 0.3 if "initial_state" in call else 0.0)
    given = dict(call, initial_state=states) if "initial_state" in call else call
    outputs, *last = layer(SEQUENCES, **given)
    expected, expected_states = loop(
        layer.cell,
        states,
        call.get("mask"),
        options.get("go_backwards", False),
        options.get("zero_output_for_mask", False),
    )
    assert_same(outputs, expected, 1e-4)
    assert_same(last, expected_states, 1e-4)
    plain = randomize(built(make(name, 0.0, **options)))
    assert np.abs(outputs - plain(SEQUENCES, **given)[0]).max() > 1e-3


@pytest.mark.parametrize("name", names())
def test_stateful_continues_where_the_last_batch_ended(name):
    options = {"return_sequences": True, "return_state": True}
    plain = randomize(built(make(name, 1.3, **options)))
    whole = plain(SEQUENCES)
    layer = make(name, 1.3, stateful=True, **options)
    inputs = keras.Input(batch_shape=(len(SEQUENCES), None, SEQUENCES.shape[2]))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    for run in (layer, lambda x: model.predict(x, batch_size=len(x), verbose=0)):
        layer.reset_state()
        parts = [run(SEQUENCES[:, :2]), run(SEQUENCES[:, 2:])]
        assert_same(np.concatenate([np.asarray(p[0]) for p in parts], 1), whole[0], 1e-4)
        assert_same(list(parts[1][1:]), list(whole[1:]), 1e-4)
        for state, value in zip(layer.states, whole[1:], strict=True):
            np.testing.assert_allclose(state, value, atol=1e-4)
    layer.reset_state()
    assert all(not np.any(state) for state in layer.states)
    # an initial state that is given replaces the kept one
    start = states_of(name)
    assert_same(layer(SEQUENCES, initial_state=start), plain(SEQUENCES, initial_state=start), 1e-4)
    # training keeps everything finite
    layer.reset_state()
    trained = keras.Model(inputs, keras.layers.Dense(1)(model.outputs[0]))
    trained.compile("sgd", "mse", jit_compile=False)
    target = np.ones((*SEQUENCES.shape[:2], 1), "float32")
    trained.fit(SEQUENCES, target, batch_size=len(SEQUENCES), epochs=2, verbose=0, shuffle=False)
    assert_finite(trained.variables)
    assert all(np.any(state) for state in layer.states)


@pytest.mark.parametrize("name", names())
def test_initial_states_in_a_functional_model(name, tmp_path):
    layer = make(name, 1.3, return_state=True)
    inputs = keras.Input(SEQUENCES.shape[1:])
    starts = [keras.Input((UNITS,)) for _ in states_of(name)]
    model = keras.Model([inputs, *starts], layer(inputs, initial_state=starts))
    randomize(layer)
    given = [SEQUENCES, *states_of(name)]
    expected = layer(SEQUENCES, initial_state=states_of(name))
    assert_same(model(given), expected)
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(given), expected)


@pytest.mark.parametrize("merge_mode", ["concat", "sum"])
@pytest.mark.parametrize("name", names())
def test_bidirectional(name, merge_mode, tmp_path):
    options = {"return_sequences": True, "return_state": merge_mode == "sum"}
    layer = keras.layers.Bidirectional(make(name, 1.3, **options), merge_mode=merge_mode)
    inputs = keras.Input(SEQUENCES.shape[1:])
    outputs = layer(keras.layers.Masking()(inputs))
    model = keras.Model(inputs, outputs)
    randomize(layer)
    padded = np.where(MASK[..., None], SEQUENCES, 0.0).astype("float32")
    found = tf.nest.flatten(model(padded))
    ahead, *states = tf.nest.flatten(layer.forward_layer(padded, mask=MASK))
    back, *back_states = tf.nest.flatten(layer.backward_layer(padded, mask=MASK))
    back = back[:, ::-1]
    merged = np.concatenate([ahead, back], -1) if merge_mode == "concat" else ahead + back
    assert_same(found, [merged, *states, *back_states])
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(tf.nest.flatten(reloaded(padded)), found)
    paths = [v.path for v in model.variables]
    assert len(paths) == len(set(paths)), paths
    model.compile("sgd")  # Keras needs its optimizer here
    model.get_state_tree()


def stacked_cells():
    return [
        ProxLSTMCell(4, lam=0.7, delta=1.3),
        wrapped(keras.layers.GRUCell(3)),
        wrapped(LeakyCell(2)),
    ]


@pytest.mark.parametrize("unroll", [False, True])
def test_stacked_cells_are_stacked_layers(unroll, tmp_path):
    cells = stacked_cells()
    layer = keras.layers.RNN(
        keras.layers.StackedRNNCells(cells), return_sequences=True, return_state=True, unroll=unroll
    )
    inputs = keras.Input(SEQUENCES.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    found = model(SEQUENCES)
    x, states = SEQUENCES, []
    for cell in cells:
        x, *state = keras.layers.RNN(cell, return_sequences=True, return_state=True)(x)
        states.extend(state)
    assert_same(found[0], x)
    assert_same(tf.nest.flatten(found[1:]), states)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")(SEQUENCES)
    assert_same(tf.nest.flatten(again), tf.nest.flatten(found))


@pytest.mark.parametrize("name", CELLS)
def test_cell_returns_states_as_the_wrapped_cell_does(name):
    cell = CELLS[name]()
    plain = PLAIN_CELLS[name](UNITS)
    x, states = SEQUENCES[:, 0], states_of(name)
    assert cell.state_size == plain.state_size and cell.output_size == plain.output_size
    given = [states, tuple(states)]
    if len(states) == 1:
        given.append(states[0])
    for form in given:
        output, new = cell(x, form)
        wanted_output, wanted = plain(x, form)
        keras.tree.assert_same_structure(new, wanted)
        assert output.shape == wanted_output.shape
        kinds = [(s.shape, s.dtype) for s in keras.tree.flatten(new)]
        assert kinds == [(s.shape, s.dtype) for s in keras.tree.flatten(wanted)]
    states = keras.tree.flatten(cell.get_initial_state(batch_size=2))
    assert [s.shape for s in states] == [(2, UNITS)] * len(states_of(name))
    assert all(not np.any(s) for s in states)


@pytest.mark.parametrize("name", names())
def test_any_number_of_steps_and_examples(name):
    layer = make(name, 1.3, return_sequences=True)
    inputs = keras.Input((None, SEQUENCES.shape[2]))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    whole = model(SEQUENCES)
    for examples, steps in ((2, 3), (1, 1)):
        part = model.predict(SEQUENCES[:examples, :steps], verbose=0)
        np.testing.assert_allclose(part, whole[:examples, :steps], atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("unroll", [False, True])
def test_a_mask_of_one_more_axis_is_taken_as_by_keras(name, unroll):
    layer = randomize(built(make(name, 1.0, unroll=unroll)))
    assert_same(layer(SEQUENCES, mask=MASK[..., None]), layer(SEQUENCES, mask=MASK))
