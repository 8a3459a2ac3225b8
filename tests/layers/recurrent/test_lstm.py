"""ProxLSTM and ProxLSTMCell: values, gradients, and everything keras.layers.LSTM does."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.recurrent.any_cell import ProxRNNCell
from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell
from tests.helpers import prox_lstm_reference as reference
from tests.helpers.differences import central_difference

BATCH, STEPS, FEATURES, UNITS = 3, 5, 4, 3


def data(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def randomize(layer, seed=1):
    """Random asymmetric weights: initializers like zeros would hide permuted gates."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(0.6 * rng.normal(size=weight.shape))
    return layer


def built(layer, features=FEATURES, batch=None, seed=1):
    layer.build((batch, None, features))
    return randomize(layer, seed)


def outputs_and_gradients(layer, inputs, **call):
    """Outputs, and gradients of a fixed function of them in the inputs and all weights."""
    inputs = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(layer(inputs, **call))
        loss = tf.add_n([tf.reduce_sum(tf.sin(y + k)) for k, y in enumerate(outputs)])
    gradients = tape.gradient(loss, [inputs, *[v.value for v in layer.trainable_variables]])
    return [np.asarray(t) for t in (*outputs, *gradients)]


def assert_close(left, right, **tolerance):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def same_weights(*layers):
    for layer in layers[1:]:
        layer.set_weights(layers[0].get_weights())


NON_DEFAULT = dict(
    lam=0.7,
    delta=1.3,
    output_from_prox=True,
    solver="cholesky",
    tolerance=1e-4,
    max_iterations=7,
    jit_compile=False,
    monitor="state",
)
CELL_NON_DEFAULT = dict(
    activation="softplus",
    recurrent_activation="hard_sigmoid",
    use_bias=False,
    kernel_initializer="he_normal",
    recurrent_initializer="glorot_uniform",
    bias_initializer="ones",
    unit_forget_bias=False,
    kernel_regularizer="l2",
    recurrent_regularizer="l1",
    bias_regularizer="l2",
    kernel_constraint="max_norm",
    recurrent_constraint="unit_norm",
    bias_constraint="non_neg",
    dropout=0.2,
    recurrent_dropout=0.3,
    seed=7,
    implementation=1,
)


def test_every_argument_survives_the_round_trip():
    for layer in (
        ProxLSTM(UNITS, **NON_DEFAULT, **CELL_NON_DEFAULT, name="a", dtype="float64"),
        ProxLSTMCell(UNITS, **NON_DEFAULT, **CELL_NON_DEFAULT, name="b", dtype="float64"),
    ):
        config = layer.get_config()
        for name, value in {**NON_DEFAULT, **CELL_NON_DEFAULT}.items():
            assert name in config
            if name in NON_DEFAULT or name in ("use_bias", "dropout", "seed", "implementation"):
                assert config[name] == value
        default = type(layer)(UNITS).get_config()
        assert not [name for name in CELL_NON_DEFAULT if config[name] == default[name]]
        assert type(layer).from_config(config).get_config() == config


@pytest.mark.parametrize("features, units", [(4, 3), (2, 5), (1, 3)])
@pytest.mark.parametrize("output_from_prox", [False, True])
def test_layer_and_cell_equal_the_reference(features, units, output_from_prox):
    arguments = dict(lam=0.6, delta=1.2, output_from_prox=output_from_prox, dtype="float64")
    layer = built(ProxLSTM(units, **arguments, return_sequences=True, return_state=True), features)
    cell = ProxLSTMCell(units, **arguments)
    rnn = keras.layers.RNN(cell, return_sequences=True, return_state=True, dtype="float64")
    rnn.build((None, None, features))
    same_weights(layer, cell)
    x, h, c = (data(*s, dtype="float64") for s in ((3, 5, features), (3, units), (3, units)))
    weights = [w.numpy() for w in layer.trainable_variables]
    hidden, carry = reference.prox_lstm(
        x, h, c, weights, 1.2**2 / 0.6, output_from_prox=output_from_prox
    )
    for model in (layer, rnn):
        outputs = model(x, initial_state=[h, c])
        assert_close(outputs, [hidden, hidden[:, -1], carry], atol=1e-10)


@pytest.mark.parametrize("kind", ["layer", "cell", "unrolled", "cholesky", "implementation 1"])
def test_gradients_against_central_differences(kind):
    """For every weight, the input and the initial states, differences of the NumPy reference."""
    arguments = dict(lam=0.6, delta=1.2, dtype="float64")
    if kind == "cell":
        layer = keras.layers.RNN(
            ProxLSTMCell(UNITS, **arguments), return_state=True, dtype="float64"
        )
    else:
        extra = {
            "layer": {},
            "unrolled": {"unroll": True},
            "cholesky": {"solver": "cholesky"},
            "implementation 1": {"implementation": 1},
        }[kind]
        layer = ProxLSTM(UNITS, return_state=True, **arguments, **extra)
    built(layer)
    states = [data(BATCH, UNITS, seed=s, dtype="float64") for s in (2, 3)]
    values = [data(BATCH, STEPS, FEATURES, dtype="float64"), *states]
    weights = [v.numpy() for v in layer.trainable_variables]
    factors = [data(BATCH, UNITS, seed=s, dtype="float64") for s in (4, 5, 6)]
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = layer(tensors[0], initial_state=tensors[1:])
        loss = tf.add_n([tf.reduce_sum(a * y) for a, y in zip(factors, outputs, strict=True)])
    gradients = tape.gradient(loss, tensors + [v.value for v in layer.trainable_variables])

    def numpy_loss(x, h, c, *weights):
        hidden, carry = reference.prox_lstm(x, h, c, weights, 1.2**2 / 0.6)
        outputs = (hidden[:, -1], hidden[:, -1], carry)
        return sum(np.sum(a * y) for a, y in zip(factors, outputs, strict=True))

    for index, gradient in enumerate(gradients):
        numeric = central_difference(numpy_loss, values + weights, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6, err_msg=f"argument {index}")


def gradient_penalty(layer, x, training=False):
    """The gradient in all weights of the squared norm of the input's gradient."""
    variables = [v.value for v in layer.trainable_variables]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x, training=training)))
        penalty = tf.reduce_sum(tape.gradient(loss, x) ** 2)
    return penalty, outer.gradient(penalty, variables)


@pytest.mark.parametrize(
    "kind",
    [
        "layer",
        pytest.param("layer in a graph", marks=pytest.mark.slow),
        pytest.param("cell", marks=pytest.mark.slow),
        "cell in a graph",
    ],
)
def test_second_derivative(kind):
    """Gradient of a gradient norm in every weight, against central differences."""
    if kind.startswith("cell"):
        layer = keras.layers.RNN(ProxLSTMCell(2, lam=0.5, dtype="float64"), dtype="float64")
    else:
        layer = ProxLSTM(2, lam=0.5, dtype="float64")
    built(layer, features=3)
    x = tf.constant(data(2, 3, 3, dtype="float64"))
    run = tf.function(gradient_penalty) if kind.endswith("graph") else gradient_penalty
    _, gradients = run(layer, x)
    rng = np.random.default_rng(0)
    for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
        direction = rng.normal(size=variable.shape)
        original, step, values = variable.numpy(), 1e-5, []
        for sign in (1, -1):
            variable.assign(original + sign * step * direction)
            values.append(float(gradient_penalty(layer, x)[0]))
        variable.assign(original)
        numeric = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cell", "any cell"])
def test_second_derivative_in_training(kind):
    """With a dropout mask drawn outside the loop, in a graph and (the cell) compiled."""
    settings = {"lam": 0.5, "dtype": "float64"}
    inner = {"dropout": 0.5, "seed": 3, "dtype": "float64"}
    if kind == "cell":
        cell = ProxLSTMCell(2, **{**settings, **inner})
    else:
        cell = ProxRNNCell(keras.layers.GRUCell(2, **inner), **settings)
    layer = built(keras.layers.RNN(cell, dtype="float64"), features=3)
    x = tf.constant(data(2, 3, 3, dtype="float64"))
    generator = (cell if kind == "cell" else cell.cell).seed_generator.state
    seed, results = generator.numpy(), []
    for run in (gradient_penalty, tf.function(gradient_penalty)):
        generator.assign(seed)
        results.append(tf.nest.flatten(run(layer, x, True)))
    assert_close(*results, atol=1e-9)
    assert np.abs(results[0][0] - gradient_penalty(layer, x)[0]) > 1e-6


def test_solvers_agree_with_batch_jacobian():
    """CG = Cholesky = G from the tape's batch_jacobian and a dense solve."""
    x, h, c = (tf.constant(data(*s, dtype="float64")) for s in ((3, 4), (3, 3), (3, 3)))
    cells = [
        ProxLSTMCell(UNITS, lam=0.3, delta=0.9, solver=solver, dtype="float64")
        for solver in ("cg", "cholesky")
    ]
    plain = keras.layers.LSTMCell(UNITS, dtype="float64")
    for cell in (*cells, plain):
        cell.build((None, FEATURES))
    randomize(cells[0])
    cells[1].set_weights(cells[0].get_weights())
    plain.set_weights(cells[0].get_weights()[:3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        hidden, (_, s) = plain(x, [h, c])
    g = tape.batch_jacobian(s, x)
    system = tf.eye(UNITS, dtype=tf.float64) + 0.9**2 / 0.3 * g @ tf.linalg.matrix_transpose(g)
    expected = tf.linalg.solve(system, s[..., None])[..., 0]
    for cell in cells:
        output, (state_h, state_c) = cell(x, [h, c])
        assert_close([output, state_h, state_c], [hidden, hidden, expected], atol=1e-10)


@pytest.mark.parametrize("change", [{"delta": 0.0}, {"delta": 1e-5}, {"lam": 1e12}])
def test_without_penalty_it_is_the_plain_lstm(change):
    lstm = built(keras.layers.LSTM(UNITS, return_sequences=True, use_cudnn=False))
    prox = built(ProxLSTM(UNITS, return_sequences=True, **change), seed=3)
    prox.set_weights(lstm.get_weights())
    x = data(BATCH, STEPS, FEATURES)
    left, right = outputs_and_gradients(prox, x), outputs_and_gradients(lstm, x)
    assert_close(left, right, atol=1e-6, rtol=1e-6)


def test_small_rho_tends_to_the_plain_lstm():
    lstm = built(keras.layers.LSTM(UNITS, dtype="float64", use_cudnn=False))
    x = data(BATCH, STEPS, FEATURES, dtype="float64")
    errors = []
    for lam in (1e4, 1e6, 1e8):
        prox = ProxLSTM.from_lstm(lstm, lam=lam)
        errors.append(np.abs(prox(x) - lstm(x)).max())
    assert errors[2] < 1e-6
    np.testing.assert_allclose(errors[0] / errors[1], 100, rtol=0.05)  # O(rho), so it is on


@pytest.mark.parametrize("dtype, slack", [("float64", 1.0), ("float32", 3.0)])
@pytest.mark.parametrize("features, units", [(2, 5), (5, 5)])
def test_very_large_rho(dtype, slack, features, units):
    """Finite, and c in the null space of G^T: ||G^T c|| <= ||s||/(2 sqrt(rho)), rho = 1e6."""
    cell = ProxLSTMCell(units, lam=1.0, delta=1e3, dtype=dtype)
    cell.build((None, features))
    randomize(cell)
    x, h, c = (data(*s, dtype=dtype) for s in ((6, features), (6, units), (6, units)))
    plain = keras.layers.LSTMCell(units, dtype=dtype)
    plain.build((None, features))
    plain.set_weights(cell.get_weights()[:3])
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = plain(x, [h, c])[1][1]
    g = tape.batch_jacobian(s, x)
    carry = cell(x, [h, c])[1][1]
    assert cell.diagnose(x, [h, c]).converged.numpy().all()
    along = tf.linalg.matvec(g, carry, transpose_a=True)
    assert (tf.norm(along, axis=-1) < slack * tf.norm(s, axis=-1) / 2e3).numpy().all()
    if features < units:
        assert tf.norm(carry) > 0.1 * tf.norm(s)  # the null space is not trivial
    layer = built(ProxLSTM(units, delta=1e3, dtype=dtype, return_state=True), features)
    for value in outputs_and_gradients(layer, data(BATCH, STEPS, features, dtype=dtype)):
        assert np.isfinite(value).all()


LENGTHS = np.array([5, 2, 4])


def padded(seed=0, dtype="float64"):
    x = data(BATCH, STEPS, FEATURES, seed=seed, dtype=dtype)
    mask = np.arange(STEPS)[None] < LENGTHS[:, None]
    x[~mask] = 99.0
    return x, mask


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_padded_to_different_lengths_equals_sliced(go_backwards, unroll):
    layer = built(
        ProxLSTM(
            UNITS,
            lam=0.5,
            dtype="float64",
            return_state=True,
            go_backwards=go_backwards,
            unroll=unroll,
        )
    )
    x, mask = padded()
    outputs = layer(x, mask=mask)
    for n, length in enumerate(LENGTHS):
        alone = layer(x[n : n + 1, :length])
        assert_close([y[n : n + 1] for y in outputs], alone, atol=1e-10)


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_masks_do_what_keras_does(return_sequences, go_backwards, zero_output_for_mask):
    """Gaps, a wholly masked row, non-zero initial states, against RNN(ProxLSTMCell)."""
    settings = dict(
        return_sequences=return_sequences,
        return_state=True,
        go_backwards=go_backwards,
        zero_output_for_mask=zero_output_for_mask,
        dtype="float64",
    )
    layer = built(ProxLSTM(UNITS, **settings))
    rnn = built(keras.layers.RNN(ProxLSTMCell(UNITS, dtype="float64"), **settings))
    rnn.cell.set_weights(layer.get_weights())
    x = data(BATCH, STEPS, FEATURES, dtype="float64")
    mask = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
    state = [data(BATCH, UNITS, seed=s, dtype="float64") for s in (2, 3)]
    call = dict(mask=mask, initial_state=state)
    left = outputs_and_gradients(layer, x, **call)
    right = outputs_and_gradients(rnn, x, **call)
    assert_close(left, right, atol=1e-10)
    assert_close([y[2] for y in left[-5:-3]], [y[2] for y in right[-5:-3]], atol=1e-10)
    hidden, carry = left[1], left[2]
    assert_close([hidden[2], carry[2]], [s[2] for s in state])  # the masked row keeps its state


def test_masking_layer_and_bidirectional():
    x, mask = padded(dtype="float32")
    x[~mask] = 0.0
    inputs = keras.Input((STEPS, FEATURES))
    masked = keras.layers.Masking()(inputs)
    wrapped = keras.layers.Bidirectional(ProxLSTM(UNITS, lam=0.5, return_sequences=True))
    model = keras.Model(inputs, wrapped(masked))
    randomize(model)
    both = model(x).numpy()
    forward = ProxLSTM(UNITS, lam=0.5, return_sequences=True)
    backward = ProxLSTM(UNITS, lam=0.5, return_sequences=True, go_backwards=True)
    for layer, source in ((forward, wrapped.forward_layer), (backward, wrapped.backward_layer)):
        layer.build((None, None, FEATURES))
        layer.set_weights(source.get_weights())
    for n, length in enumerate(LENGTHS):
        row = x[n : n + 1, :length]
        expected = np.concatenate([forward(row), backward(row)[:, ::-1]], axis=-1)
        np.testing.assert_allclose(both[n, :length], expected[0], atol=1e-5)
        np.testing.assert_array_equal(both[n, length:], 0.0)
    assert wrapped.backward_layer.lam is not wrapped.forward_layer.lam


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_stateful(dtype):
    """Two halves in turn equal the whole; a reset starts again."""
    x = data(BATCH, 6, FEATURES)
    layer = ProxLSTM(UNITS, lam=0.5, stateful=True, dtype=dtype)
    layer.build((BATCH, 3, FEATURES))
    randomize(layer)
    whole = ProxLSTM(UNITS, lam=0.5, dtype=dtype)
    whole.build((None, None, FEATURES))
    whole.set_weights(layer.get_weights())
    tolerance = 5e-3 if dtype == "mixed_float16" else 1e-5
    layer(x[:, :3])
    np.testing.assert_allclose(layer(x[:, 3:]), whole(x), atol=tolerance)
    layer.reset_state()
    first = layer(x[:, :3])
    np.testing.assert_allclose(first, whole(x[:, :3]), atol=tolerance)
    assert first.dtype == layer.compute_dtype
    with pytest.raises(ValueError, match="every batch must have the size"):
        layer(x[:2, :3])


def test_initial_state_and_returned_state_chain():
    layer = built(ProxLSTM(UNITS, lam=0.5, return_state=True, dtype="float64"))
    x = data(BATCH, 6, FEATURES, dtype="float64")
    _, *state = layer(x[:, :2])
    assert_close(layer(x[:, 2:], initial_state=state), layer(x), atol=1e-10)


def test_stacked_cells():
    cells = [ProxLSTMCell(n, lam=0.5, dtype="float64") for n in (3, 4)]
    stack = keras.layers.StackedRNNCells(cells, dtype="float64")
    rnn = keras.layers.RNN(stack, dtype="float64")
    rnn.build((None, None, FEATURES))
    randomize(rnn)
    layers = [
        ProxLSTM(3, lam=0.5, return_sequences=True, dtype="float64"),
        ProxLSTM(4, lam=0.5, dtype="float64"),
    ]
    for layer, cell, features in zip(layers, cells, (FEATURES, 3), strict=True):
        layer.build((None, None, features))
        layer.set_weights(cell.get_weights())
    x = data(BATCH, STEPS, FEATURES, dtype="float64")
    np.testing.assert_allclose(rnn(x), layers[1](layers[0](x)), atol=1e-10)


@pytest.mark.parametrize("implementation", [1, 2])
def test_dropout_acts_on_the_input_before_G(implementation):
    """One training step equals the NumPy reference with the mask that the cell drew."""
    cell = ProxLSTMCell(
        UNITS,
        lam=0.5,
        dropout=0.5,
        recurrent_dropout=0.4 if implementation == 1 else 0.0,
        implementation=implementation,
        seed=3,
        dtype="float64",
    )
    cell.build((None, FEATURES))
    randomize(cell)
    x, h, c = (data(*s, dtype="float64") for s in ((6, FEATURES), (6, UNITS), (6, UNITS)))
    output, (_, carry) = cell(x, [h, c], training=True)
    masks = np.stack(tf.nest.flatten(cell.get_dropout_mask(x)), axis=1)
    assert 0 < np.mean(masks == 0) < 1
    weights = [v.numpy() for v in cell.trainable_variables]
    hidden_scale = 1.0
    if implementation == 1:
        hidden = np.stack(cell.get_recurrent_dropout_mask(h), axis=0)
        kernel = weights[1].reshape(UNITS, 4, UNITS)
        # One mask a gate on h: the reference takes one, so fold h and the masks into the bias.
        shift = np.einsum("kbu,bu,ukv->bkv", hidden, h, kernel).reshape(6, -1)
        h_in, hidden_scale = np.zeros_like(h), 1.0
    else:
        shift, h_in = np.zeros((6, 4 * UNITS)), h
    for n in range(6):  # the bias differs by example
        row = [a[n : n + 1] for a in (x, h_in, c)]
        own = [weights[0], weights[1], weights[2] + shift[n]]

        def new_state(xt, row=row, own=own, n=n):
            return reference.state(
                xt, *row[1:], own, np.tanh, reference.sigmoid, masks[n : n + 1], hidden_scale
            )

        s, o = new_state(row[0])
        g = reference.jacobian(lambda xt, f=new_state: f(xt)[0], row[0])
        np.testing.assert_allclose(carry[n : n + 1], reference.prox(s, g, 2.0), atol=1e-10)
        np.testing.assert_allclose(output[n : n + 1], o * np.tanh(s), atol=1e-10)


def test_dropout_in_the_layer():
    """The same masks as RNN(ProxLSTMCell) with the same seed; off when not training."""
    arguments = dict(lam=0.5, dropout=0.5, seed=4, dtype="float64")
    layer = built(ProxLSTM(UNITS, **arguments))
    rnn = built(keras.layers.RNN(ProxLSTMCell(UNITS, **arguments), dtype="float64"))
    x = data(BATCH, STEPS, FEATURES, dtype="float64")
    trained = layer(x, training=True)
    np.testing.assert_allclose(trained, rnn(x, training=True), atol=1e-10)
    assert np.abs(trained - layer(x)).max() > 1e-3
    assert np.abs(trained - layer(x, training=True)).max() > 1e-3  # a new mask for a new batch
    np.testing.assert_allclose(layer(x), rnn(x), atol=1e-10)
    recurrent = built(ProxLSTM(UNITS, lam=0.5, recurrent_dropout=0.5, seed=4))
    x = x.astype("float32")
    assert np.abs(recurrent(x, training=True) - recurrent(x)).max() > 1e-3


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_graphs_and_xla_equal_eager(jit_compile, inner):
    """Outputs and gradients, in `tf.function` with and without XLA, outside and inside."""
    layer = built(ProxLSTM(UNITS, lam=0.05, return_sequences=True, jit_compile=inner))
    x, mask = padded(dtype="float32")
    x[~mask] = 0.0
    layer_eager = built(ProxLSTM(UNITS, lam=0.05, return_sequences=True, jit_compile=False))
    eager = outputs_and_gradients(layer_eager, x, mask=mask)

    @tf.function(jit_compile=jit_compile)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, mask=mask)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

    assert_close(run(tf.constant(x)), eager, atol=1e-5)


def test_dynamic_batch_and_time():
    layer = built(ProxLSTM(UNITS, lam=0.5))
    traces = []

    @tf.function(input_signature=[tf.TensorSpec((None, None, FEATURES))])
    def run(x):
        traces.append(1)
        with tf.GradientTape() as tape:
            y = layer(x)
            loss = tf.reduce_sum(y**2)
        return y, tape.gradient(loss, layer.cell.kernel.value)

    for batch, steps in ((3, 5), (1, 1), (4, 9)):
        x = data(batch, steps, FEATURES)
        y, gradient = run(x)
        np.testing.assert_allclose(y, layer(x), atol=1e-5)
        assert np.isfinite(gradient).all()
    assert len(traces) == 1
    model = keras.Sequential([keras.Input((None, FEATURES)), layer])
    assert model.output_shape == (None, UNITS)


def test_second_pass_when_the_fixed_steps_do_not_suffice():
    """rho = 400 needs far more than FIXED_STEPS; in a graph too the result is the dense one."""
    arguments = dict(lam=0.01, delta=2.0, return_sequences=True)
    layer = built(ProxLSTM(12, **arguments, jit_compile=False), features=10)
    dense = ProxLSTM(12, **arguments, solver="cholesky", dtype="float64")
    dense.build((None, None, 10))
    dense.set_weights(layer.get_weights())
    x = data(BATCH, STEPS, 10)
    states = [np.zeros((BATCH, 12), "float32")] * 2
    assert layer.cell.diagnose(x[:, 0], states).iterations > 4
    left = outputs_and_gradients(layer, x)
    right = outputs_and_gradients(dense, x.astype("float64"))
    for found, wanted in zip(left, right, strict=True):
        assert np.linalg.norm(found - wanted) < 1e-3 * np.linalg.norm(wanted)
    np.testing.assert_allclose(tf.function(layer)(x), layer(x), atol=1e-5)


def test_weights_of_an_lstm():
    lstm = built(keras.layers.LSTM(UNITS, use_cudnn=False))
    prox = built(ProxLSTM(UNITS, lam=3.0), seed=5)
    assert [w.shape for w in prox.trainable_variables] == [w.shape for w in lstm.weights]
    prox.set_weights(lstm.get_weights())
    assert_close(prox.get_weights()[:3], lstm.get_weights())
    assert prox.lam.numpy() == 3.0
    prox.lam.assign(5.0)
    other = built(ProxLSTM(UNITS), seed=6)
    other.set_weights(prox.get_weights())
    assert other.lam.numpy() == 5.0
    cell = ProxLSTMCell(UNITS)
    cell.build((None, FEATURES))
    cell.set_weights(lstm.cell.get_weights())
    assert_close(cell.get_weights()[:3], lstm.get_weights())
    with pytest.raises(ValueError, match="weights"):
        prox.set_weights(lstm.get_weights()[:1])


def test_from_lstm():
    lstm = keras.layers.LSTM(
        UNITS, activation="softplus", dropout=0.1, return_sequences=True, name="x"
    )
    unbuilt = ProxLSTM.from_lstm(lstm, lam=2.0, delta=0.5)
    assert not unbuilt.built
    lstm = built(lstm)
    prox = ProxLSTM.from_lstm(lstm, lam=2.0, delta=0.5)
    assert (prox.delta, prox.lam.numpy(), prox.return_sequences) == (0.5, 2.0, True)
    assert prox.cell.activation is keras.activations.softplus
    assert_close(prox.get_weights()[:3], lstm.get_weights())
    stateful = keras.layers.LSTM(UNITS, stateful=True)
    stateful.build((2, None, FEATURES))
    assert ProxLSTM.from_lstm(stateful).states[0].shape == (2, UNITS)
    with pytest.raises(ValueError, match=r"ProxRNNCell"):
        ProxLSTM.from_lstm(keras.layers.GRU(3))


def test_lam_is_read_at_every_call_and_saved(tmp_path):
    layer = ProxLSTM(UNITS, lam=1.0, jit_compile=False)
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), layer])
    randomize(model)
    x = data(BATCH, STEPS, FEATURES)
    run = tf.function(model)
    before = run(x).numpy()
    layer.lam.assign(0.01)
    after = run(x).numpy()
    assert np.abs(after - before).max() > 1e-3
    assert isinstance(layer.lam, keras.Variable) and layer.lam is layer.cell.lam
    assert all(v is not layer.lam for v in model.trainable_variables)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(reloaded.layers[-1].lam, 0.01)
    np.testing.assert_allclose(reloaded(x), after, atol=1e-6)


@pytest.mark.parametrize("kind", ["layer", "cell", "any cell"])
@pytest.mark.slow
def test_saved_model_in_a_fresh_process(tmp_path, kind):
    """Values and first gradients, with neither proxnet_tf nor Keras imported."""
    if kind == "layer":
        layer = ProxLSTM(UNITS, lam=0.3)
    elif kind == "cell":
        layer = keras.layers.RNN(ProxLSTMCell(UNITS, lam=0.3))
    else:
        layer = keras.layers.RNN(ProxRNNCell(keras.layers.GRUCell(UNITS), lam=0.3))
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), layer])
    randomize(model)
    x = data(BATCH, STEPS, FEATURES)
    outputs, input_gradient, *_ = outputs_and_gradients(model, x)
    model.export(str(tmp_path / "saved"), verbose=False)
    np.savez(tmp_path / "data.npz", x=x, outputs=outputs, gradient=input_gradient)
    script = """
        import sys
        import numpy as np
        import tensorflow as tf
        folder = sys.argv[1]
        data = np.load(folder + "/data.npz")
        model = tf.saved_model.load(folder + "/saved")
        assert "proxnet_tf" not in sys.modules
        x = tf.constant(data["x"])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model.serve(x)
            loss = tf.reduce_sum(tf.sin(y))
        np.testing.assert_allclose(y, data["outputs"], atol=1e-5)
        np.testing.assert_allclose(tape.gradient(loss, x), data["gradient"], atol=1e-5)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]


def test_fit_with_the_default_compilation():
    layer = ProxLSTM(UNITS)
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), layer, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = data(10, STEPS, FEATURES)
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(x, x[:, 0, :1], epochs=2, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [w.trainable for w in model.weights]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"lam": 0.0}, "`lam` must be a finite number > 0"),
        ({"lam": -1.0}, "`lam` must be a finite number > 0"),
        ({"lam": float("nan")}, "`lam` must be a finite number > 0"),
        ({"delta": -0.1}, "`delta` must be a finite number >= 0"),
        ({"solver": "lu"}, "`solver` must be one of 'cg', 'cholesky'"),
        ({"tolerance": 0.0}, "`tolerance` must be a finite number > 0"),
        ({"max_iterations": 0}, "`max_iterations` must be an integer >= 1"),
        ({"output_from_prox": "yes"}, "`output_from_prox` must be True or False"),
        ({"activation": "softmax"}, "must act elementwise"),
    ],
)
@pytest.mark.parametrize("cls", [ProxLSTM, ProxLSTMCell])
def test_bad_arguments(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(3, **arguments)


def test_bad_units_and_inputs():
    with pytest.raises(ValueError, match="`units` must be an integer >= 1"):
        ProxLSTM(0)
    with pytest.raises(ValueError, match="`jit_compile` must be True or False"):
        ProxLSTM(3, jit_compile="yes")
    ragged = tf.ragged.constant([[[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]], ragged_rank=1)
    with pytest.raises(ValueError, match=r"must be dense.*RaggedTensor"):
        ProxLSTM(3)(ragged)
    with pytest.raises(ValueError, match="ndim=3"):
        ProxLSTM(3)(np.zeros((2, 3), "float32"))


def test_initial_state_as_in_keras():
    x = tf.random.stateless_normal((3, 4, 2), seed=(0, 1))
    state = [tf.random.stateless_normal((1, 3), seed=(0, seed)) for seed in (2, 3)]
    plain = keras.layers.LSTM(3)
    layer = ProxLSTM(3, delta=0.0)
    for one in (plain, layer):
        one.build(x.shape)
    layer.set_weights(plain.get_weights())
    expected = plain(x, initial_state=state)  # one row for all examples
    np.testing.assert_allclose(layer(x, initial_state=state), expected, atol=1e-6)
    by_cell = keras.layers.RNN(layer.cell)
    np.testing.assert_allclose(by_cell(x, initial_state=state), expected, atol=1e-6)
    for wrong in (state[:1], [*state, state[0]], [tf.zeros((3, 2)), tf.zeros((3, 2))]):
        with pytest.raises(ValueError, match=r"must be \[h, c\], each of shape \(batch, 3\)"):
            layer(x, initial_state=wrong)
