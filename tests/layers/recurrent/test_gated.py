"""ProxLSTM, ProxGRU and their cells: values, gradients, dropout, XLA. See `tests/contract` too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxGRUCell, ProxLSTM, ProxLSTMCell, ProxRNNCell
from tests.helpers import prox_recurrent_reference as reference
from tests.helpers.differences import central_difference
from tests.layers.recurrent.cases import (
    BATCH,
    FEATURES,
    KINDS,
    RNN,
    STEPS,
    UNITS,
    assert_close,
    built,
    data,
    gradient_penalty,
    outputs_and_gradients,
    states_of,
)

EACH = pytest.mark.parametrize("kind", KINDS)


def expected(kind, x, states, weights, **options):
    """Outputs and last states of the reference, with rho = 1.2^2 / 0.6."""
    cell = KINDS[kind][4]
    start = states if kind == "LSTM" else [0 * states[0], states[0]]
    hidden, carry = reference.sequence(cell, x, *start, weights, 1.2**2 / 0.6, **options)
    return [hidden, *([hidden[:, -1]] if kind == "LSTM" else []), carry]


@pytest.mark.parametrize("features, units, output_from_prox", [(4, 3, True), (1, 3, False)])
@EACH
def test_layer_and_cell_equal_the_reference(kind, features, units, output_from_prox):
    part = dict(lam=0.6, delta=1.2, output_from_prox=output_from_prox, dtype="float64")
    options = dict(return_sequences=True, return_state=True)
    layer = built(KINDS[kind][0](units, **part, **options), features)
    rnn = RNN(KINDS[kind][1](units, **part), dtype="float64", **options)
    built(rnn, features).cell.set_weights(layer.get_weights())
    x, states = data(3, STEPS, features, dtype="float64"), states_of(kind, units=units)
    weights = [w.numpy() for w in layer.trainable_variables]
    wanted = expected(kind, x, states, weights, output_from_prox=output_from_prox)
    for model in (layer, rnn):
        assert_close(model(x, initial_state=states), wanted, atol=1e-10)


@pytest.mark.parametrize("how", ["layer", "cell", "unrolled"])
@EACH
def test_gradients_against_central_differences(kind, how):
    """For every weight, the input and the initial states, differences of the NumPy reference."""
    part = dict(lam=0.6, delta=1.2, dtype="float64")
    if how == "cell":
        layer = RNN(KINDS[kind][1](UNITS, **part), return_state=True, dtype="float64")
    else:
        layer = KINDS[kind][0](UNITS, return_state=True, unroll=how == "unrolled", **part)
    built(layer)
    values = [data(BATCH, 3, FEATURES, dtype="float64"), *states_of(kind)]
    number, weights = len(values), [v.numpy() for v in layer.trainable_variables]
    factors = [data(BATCH, UNITS, seed=s, dtype="float64") for s in range(4, 4 + number)]
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = layer(tensors[0], initial_state=tensors[1:])
        loss = tf.add_n([tf.reduce_sum(a * y) for a, y in zip(factors, outputs, strict=True)])
    gradients = tape.gradient(loss, tensors + [v.value for v in layer.trainable_variables])

    def numpy_loss(*values):
        hidden, *last = expected(kind, values[0], values[1:number], values[number:])
        return sum(np.sum(a * y) for a, y in zip(factors, [hidden[:, -1], *last], strict=True))

    for index, gradient in enumerate(gradients):
        numeric = central_difference(numpy_loss, values + weights, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6, err_msg=f"argument {index}")


MASK = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], bool)
# Arguments of the cell, of the proximal part, of the layer, and of the call.
CASES = {
    "plain": ({}, {}, {"return_state": True}, {}),
    "no bias, mask, backwards": (
        {"use_bias": False},
        {"output_from_prox": True},
        {"return_sequences": True, "return_state": True, "go_backwards": True},
        {"mask": MASK},
    ),
    "other activations, dropout": (
        {
            "activation": "softplus",
            "recurrent_activation": "hard_sigmoid",
            "dropout": 0.4,
            "seed": 3,
        },
        {},
        {"return_sequences": True, "zero_output_for_mask": True},
        {"mask": MASK, "training": True},
    ),
    "dropout, recurrent dropout": (
        {"dropout": 0.4, "recurrent_dropout": 0.3, "seed": 3},
        {},
        {"return_sequences": True},
        {"training": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
@EACH
def test_equals_the_wrapped_cell(kind, name):
    """Values and gradients of the layer, of its cell, and of `ProxRNNCell` of Keras's cell.

    With dropout, all draw the same masks, and the Jacobian is that in the input before its mask.
    """
    prox, prox_cell, _, plain_cell, _ = KINDS[kind]
    cell, part, options, call = CASES[name]
    if kind == "LSTM" and "output_from_prox" in part:
        part = {}  # the output of an LSTM is made of the state, and is not the state
    cell, part = {**cell, "dtype": "float64"}, {**part, "lam": 0.6, "delta": 1.2}
    wrapped = ProxRNNCell(plain_cell(UNITS, **cell), dtype="float64", **part)
    layers = [
        prox(UNITS, **cell, **part, **options),
        RNN(prox_cell(UNITS, **cell, **part), dtype="float64", **options),
        RNN(wrapped, dtype="float64", **options),
    ]
    x = data(BATCH, 3, FEATURES, dtype="float64")
    *found, wanted = [outputs_and_gradients(built(y), x, states_of(kind), **call) for y in layers]
    for results in found:
        assert_close(results, wanted, atol=1e-9)


@pytest.mark.parametrize(
    "graph", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
@EACH
def test_second_derivative(kind, graph):
    """Gradient of a gradient norm along a direction of the weights, against differences."""
    layer = built(KINDS[kind][0](2, lam=0.5, dtype="float64"), features=3)
    x = tf.constant(data(2, 3, 3, dtype="float64"))
    run = tf.function(gradient_penalty) if graph else gradient_penalty
    _, gradients = run(layer, x)
    rng, step, ends = np.random.default_rng(0), 1e-5, []
    originals = [v.numpy() for v in layer.trainable_variables]
    directions = [rng.normal(size=v.shape) for v in originals]
    for sign in (1, -1):
        for v, start, d in zip(layer.trainable_variables, originals, directions, strict=True):
            v.assign(start + sign * step * d)
        ends.append(float(gradient_penalty(layer, x)[0]))
    found = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("dtype, slack, features", [("float64", 1.0, 5), ("float32", 3.0, 2)])
@EACH
def test_very_large_rho(kind, dtype, slack, features):
    """Finite, and c in the null space of G^T: ||G^T c|| <= ||s||/(2 sqrt(rho)), rho = 1e6."""
    _, prox_cell, _, plain_cell, _ = KINDS[kind]
    cell, plain = prox_cell(5, delta=1e3, dtype=dtype), plain_cell(5, dtype=dtype)
    layer = built(RNN(cell, dtype=dtype), features)
    plain.build((None, features))
    plain.set_weights(cell.get_weights()[:3])
    x, *states = (data(6, n, dtype=dtype) for n in (features, 5, 5)[: 3 if kind == "LSTM" else 2])
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = plain(x, states)[1][-1]
    g = tape.batch_jacobian(s, x)
    carry = cell(x, states)[1][-1]
    assert cell.status["unsolved"] == 0.0 and cell.status["iterations"] >= min(features, 5)
    along = tf.linalg.matvec(g, carry, transpose_a=True)
    assert (tf.norm(along, axis=-1) < slack * tf.norm(s, axis=-1) / 2e3).numpy().all()
    if features < 5:
        assert tf.norm(carry) > 0.1 * tf.norm(s)  # the null space is not trivial
    for value in outputs_and_gradients(layer, data(BATCH, STEPS, features, dtype=dtype)):
        assert np.isfinite(value).all()


@EACH
def test_nothing_to_do(kind):
    """All masked, one step, no rows."""
    layer = built(KINDS[kind][0](UNITS, lam=0.5, return_state=True))
    x, states = data(BATCH, 3, FEATURES), states_of(kind, "float32")
    nothing = np.zeros((BATCH, 3), bool)
    output, *last = layer(np.full_like(x, np.nan), initial_state=states, mask=nothing)
    np.testing.assert_array_equal(output, 0.0)  # as Keras: zeros before the first step
    assert_close(last, states)
    step = layer(x[:, :1], initial_state=states)
    output, last = layer.cell(x[:, 0], states)
    assert_close(step, [output, *last], atol=1e-6)
    for value in outputs_and_gradients(layer, x[:0]):
        assert np.isfinite(value).all()


@pytest.mark.parametrize(
    "kind, inner, outer",
    [
        ("LSTM", True, False),
        ("GRU", False, True),
        pytest.param("LSTM", False, True, marks=pytest.mark.slow),
        pytest.param("GRU", True, False, marks=pytest.mark.slow),
    ],
)
def test_xla_equals_eager(kind, inner, outer):
    """Outputs and gradients, with padding, compiled inside of the layer and with what is around."""
    eager_layer, layer = (
        built(KINDS[kind][0](UNITS, lam=0.05, return_sequences=True, jit_compile=jit))
        for jit in (False, inner)
    )
    x = data(BATCH, 3, FEATURES)
    run = tf.function(lambda x: outputs_and_tensors(layer, x), jit_compile=outer, autograph=False)
    assert_close(run(tf.constant(x)), outputs_and_gradients(eager_layer, x, mask=MASK), atol=1e-5)


def outputs_and_tensors(layer, x):
    """`outputs_and_gradients` in a graph."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, mask=MASK)
        loss = tf.reduce_sum(tf.sin(y))
    return y, *tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])


def test_fit_with_the_default_compilation():
    layer = ProxLSTM(UNITS)
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = data(8, STEPS, FEATURES)
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(x, x[:, 0, :1], epochs=2, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [w.trainable for w in model.weights]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"units": 0}, "`units` must be an integer >= 1"),
        ({"lam": 0.0}, "`lam` must be a finite number > 0"),
        ({"lam": float("nan")}, "`lam` must be a finite number > 0"),
        ({"delta": -0.1}, "`delta` must be a finite number >= 0"),
        ({"tolerance": 0.0}, "`tolerance` must be a finite number > 0"),
        ({"max_iterations": 0}, "`max_iterations` must be an integer >= 1"),
        ({"output_from_prox": "yes"}, "`output_from_prox` must be True or False"),
        ({"jit_compile": "yes"}, "`jit_compile` must be True or False"),
        ({"activation": "softmax"}, "must act elementwise"),
    ],
)
def test_bad_arguments(arguments, message):
    for cls in (ProxLSTM, ProxLSTMCell, ProxGRU, ProxGRUCell):
        with pytest.raises(ValueError, match=message):
            cls(**{"units": 3, **arguments})


def test_a_gru_whose_reset_gate_acts_before_is_refused():
    with pytest.raises(ValueError, match=r"ProxRNNCell\(keras.layers.GRUCell\(units, reset_after"):
        ProxGRU(3, reset_after=False)
    assert ProxGRU(3, reset_after=True).get_config()["reset_after"] is True


@EACH
def test_bad_inputs(kind):
    layer = KINDS[kind][0](3)
    with pytest.raises(ValueError, match="ndim=3"):
        layer(np.zeros((2, 3), "float32"))
    stateful = built(KINDS[kind][0](3, stateful=True), batch=BATCH)
    with pytest.raises(ValueError, match="every batch must have the size"):
        stateful(data(2, STEPS, FEATURES))


@EACH
def test_initial_state_as_in_keras(kind):
    prox, _, plain, _, _ = KINDS[kind]
    x, state = data(BATCH, STEPS, FEATURES), [s[:1] for s in states_of(kind, "float32")]
    source, layer = built(plain(UNITS)), built(prox(UNITS, delta=0.0), seed=2)
    layer.set_weights(source.get_weights())
    wanted = source(x, initial_state=state)  # one row for all examples
    np.testing.assert_allclose(layer(x, initial_state=state), wanted, atol=1e-6)
    np.testing.assert_allclose(RNN(layer.cell)(x, initial_state=state), wanted, atol=1e-6)
    form = r"\[h, c\], each" if kind == "LSTM" else "one state"
    wide = [np.zeros((3, 2), "float32")] * len(state)
    for wrong in ([*state, state[0]], wide, [[0.0]] * len(state)):
        with pytest.raises(ValueError, match=rf"must be {form} of shape \(batch, 3\)"):
            layer(x, initial_state=wrong)
