"""ProxGRU and ProxGRUCell: `ProxRNNCell(GRUCell)` in closed form. See `tests/contract` too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxGRUCell, ProxRNNCell
from tests.helpers import prox_gru_reference as reference
from tests.helpers.differences import central_difference
from tests.helpers.prox_lstm_reference import jacobian, prox
from tests.layers.recurrent.test_lstm import (
    BATCH,
    FEATURES,
    UNITS,
    assert_close,
    built,
    data,
    outputs_and_gradients,
    randomize,
)

RNN, STEPS = keras.layers.RNN, 3
MASK = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], bool)


def outputs_and_all_gradients(layer, **call):
    """Outputs, and gradients in the inputs, the initial state and all weights."""
    tensors = [tf.constant(data(*s, dtype="float64")) for s in ((3, 3, 4), (3, 3))]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = tf.nest.flatten(layer(tensors[0], initial_state=tensors[1:], **call))
        loss = tf.add_n([tf.reduce_sum(tf.sin(y + k)) for k, y in enumerate(outputs)])
    weights = [v.value for v in layer.trainable_variables]
    return [np.asarray(t) for t in (*outputs, *tape.gradient(loss, [*tensors, *weights]))]


# Arguments of the cell, of the proximal part, of the layer, and of the call.
CASES = {
    "plain": ({}, {}, {"return_state": True}, {}),
    "no bias, mask, backwards": (
        {"use_bias": False},
        {"output_from_prox": True},
        {"return_sequences": True, "return_state": True, "go_backwards": True},
        {"mask": MASK},
    ),
    "other activations, mask": (
        {"activation": "softplus", "recurrent_activation": "hard_sigmoid"},
        {},
        {"return_sequences": True, "zero_output_for_mask": True},
        {"mask": MASK},
    ),
    "dense, dropout": (
        {"dropout": 0.4, "seed": 3},
        {"solver": "cholesky"},
        {"return_sequences": True},
        {"training": True},
    ),
    "dropout, recurrent dropout": (
        {"dropout": 0.4, "recurrent_dropout": 0.3, "seed": 3},
        {},
        {"return_sequences": True},
        {"training": True},
    ),
    "reset before": ({"reset_after": False}, {}, {"return_state": True}, {}),
    "reset before, no bias, mask": (
        {"reset_after": False, "use_bias": False},
        {"output_from_prox": True},
        {"return_sequences": True},
        {"mask": MASK},
    ),
    "reset before, dropout": (
        {"reset_after": False, "dropout": 0.4, "recurrent_dropout": 0.3, "seed": 3},
        {},
        {"return_sequences": True},
        {"training": True},
    ),
}


SLOW = ("other activations, mask", "dense, dropout", "reset before", "reset before, dropout")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow][: n in SLOW]) for n in CASES]
)
def test_equals_the_wrapped_cell(name):
    """Values and gradients of the layer, of its cell, and of `ProxRNNCell(GRUCell)`."""
    cell, part, options, call = CASES[name]
    cell, part = {**cell, "dtype": "float64"}, {**part, "lam": 0.6, "delta": 1.2}
    layers = [
        ProxGRU(UNITS, **cell, **part, **options),
        RNN(ProxGRUCell(UNITS, **cell, **part), dtype="float64", **options),
        RNN(
            ProxRNNCell(keras.layers.GRUCell(UNITS, **cell), dtype="float64", **part),
            dtype="float64",
            **options,
        ),
    ]
    *found, wanted = [outputs_and_all_gradients(built(layer), **call) for layer in layers]
    for results in found:
        assert_close(results, wanted, atol=1e-9)


@pytest.mark.parametrize("reset_after", [True, False])
def test_gradients_against_central_differences(reset_after):
    """For every weight, the input and the initial state, differences of the NumPy reference."""
    layer = ProxGRU(
        UNITS, lam=0.6, delta=1.2, return_state=True, reset_after=reset_after, dtype="float64"
    )
    built(layer)
    values = [data(*s, dtype="float64") for s in ((BATCH, STEPS, FEATURES), (BATCH, UNITS))]
    weights = [v.numpy() for v in layer.trainable_variables]
    factors = [data(BATCH, UNITS, seed=s, dtype="float64") for s in (4, 5)]
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = layer(tensors[0], initial_state=tensors[1])
        loss = tf.add_n([tf.reduce_sum(a * y) for a, y in zip(factors, outputs, strict=True)])
    gradients = tape.gradient(loss, tensors + [v.value for v in layer.trainable_variables])

    def numpy_outputs(x, h, kernel, recurrent_kernel, bias):
        biases = bias if reset_after else np.stack([bias, 0 * bias])
        found, state = reference.prox_gru(
            x, h, (kernel, recurrent_kernel, biases), 1.2**2 / 0.6, reset_after=reset_after
        )
        return found[:, -1], state

    assert_close(outputs, numpy_outputs(*values, *weights), atol=1e-10)

    def numpy_loss(*v):
        return sum(np.sum(a * y) for a, y in zip(factors, numpy_outputs(*v), strict=True))

    for index, gradient in enumerate(gradients):
        numeric = central_difference(numpy_loss, values + weights, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6, err_msg=f"argument {index}")


@pytest.mark.parametrize("kind", ["layer", pytest.param("graph", marks=pytest.mark.slow)])
def test_second_derivative(kind):
    """Gradient of a gradient norm along a direction of the weights, against differences."""
    layer = built(ProxGRU(2, lam=0.5, dtype="float64"), features=3)
    x = tf.constant(data(2, 3, 3, dtype="float64"))
    variables = [v.value for v in layer.trainable_variables]

    def penalty():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(layer(x)))
        return tf.reduce_sum(tape.gradient(loss, x) ** 2)

    def second():
        with tf.GradientTape() as tape:
            value = penalty()
        return tape.gradient(value, variables)

    gradients = (tf.function(second) if kind == "graph" else second)()
    rng, step, ends = np.random.default_rng(0), 1e-5, []
    directions = [rng.normal(size=v.shape) for v in variables]
    originals = [v.numpy() for v in variables]
    for sign in (1, -1):
        for v, original, d in zip(variables, originals, directions, strict=True):
            v.assign(original + sign * step * d)
        ends.append(float(penalty()))
    found = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("change", [{"delta": 0.0}, {"lam": 1e12}])
def test_without_penalty_it_is_the_plain_gru(change, reset_after):
    gru = built(
        keras.layers.GRU(UNITS, return_sequences=True, reset_after=reset_after, use_cudnn=False)
    )
    layer = ProxGRU.from_gru(gru, **change)
    x = data(BATCH, STEPS, FEATURES)
    left, right = outputs_and_gradients(layer, x), outputs_and_gradients(gru, x)
    assert_close(left, right, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("reset_after", [True, False])
def test_very_large_rho(reset_after):
    """Finite, and h in the null space of G^T: ||G^T h|| <= ||s||/(2 sqrt(rho)), rho = 1e6."""
    cell = ProxGRUCell(5, delta=1e3, reset_after=reset_after, dtype="float64")
    built(layer := RNN(cell, dtype="float64"), features=2)
    x, h = (data(*s, dtype="float64") for s in ((6, 2), (6, 5)))
    kernel, recurrent_kernel, bias = [v.numpy() for v in cell.trainable_variables]
    weights = kernel, recurrent_kernel, bias if reset_after else np.stack([bias, 0 * bias])

    def state(x):
        return reference.state(x, h, weights, reset_after)

    s, (c,) = cell(x, [h])
    np.testing.assert_allclose(s, state(x), atol=1e-12)
    along = np.einsum("nuf,nu->nf", jacobian(state, x), c)
    size = np.linalg.norm(s, axis=1)
    assert (np.linalg.norm(along, axis=1) < size / 2e3).all()
    assert (np.linalg.norm(c, axis=1) > 0.1 * size).all()  # the null space is not trivial
    np.testing.assert_allclose(c, prox(s, jacobian(state, x), 1e6), atol=1e-8)
    assert cell.diagnose(x, h).converged.numpy().all()
    for value in outputs_and_gradients(layer, data(BATCH, STEPS, 2, dtype="float64")):
        assert np.isfinite(value).all()


@pytest.mark.parametrize("options", [{}, {"reset_after": False}, {"unroll": True}])
def test_nothing_to_do(options):
    """All masked, one step, no rows."""
    layer = built(ProxGRU(UNITS, lam=0.5, return_state=True, **options))
    x, h = data(BATCH, STEPS, FEATURES), data(BATCH, UNITS)
    nothing = np.zeros((BATCH, STEPS), bool)
    output, state = layer(np.full_like(x, np.nan), initial_state=h, mask=nothing)
    np.testing.assert_array_equal(output, 0.0)  # as Keras: zeros before the first step
    np.testing.assert_array_equal(state, h)
    step = layer(x[:, :1], initial_state=h)
    output, state = layer.cell(x[:, 0], h)
    assert_close(step, [output, state], atol=1e-6)
    for value in outputs_and_gradients(layer, x[:0]):
        assert np.isfinite(value).all()


@pytest.mark.parametrize("inner, outer", [(True, False), (False, True)])
def test_xla_equals_eager(inner, outer):
    layers = [
        built(ProxGRU(UNITS, lam=0.05, return_sequences=True, jit_compile=jit))
        for jit in (False, inner)
    ]
    x = data(BATCH, STEPS, FEATURES)

    @tf.function(jit_compile=outer)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers[1](x, mask=MASK)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *tape.gradient(loss, [x, *[v.value for v in layers[1].trainable_variables]])

    eager = outputs_and_gradients(layers[0], x, mask=MASK)
    assert_close(run(tf.constant(x)), eager, atol=1e-5)


@pytest.mark.parametrize("reset_after", [True, False])
def test_weights_of_a_gru(reset_after):
    gru = built(keras.layers.GRU(UNITS, reset_after=reset_after, use_cudnn=False))
    layer = built(ProxGRU(UNITS, lam=3.0, reset_after=reset_after), seed=5)
    assert [w.shape for w in layer.trainable_variables] == [w.shape for w in gru.weights]
    assert [w.name for w in layer.trainable_variables] == [w.name for w in gru.weights]
    layer.set_weights(gru.get_weights())
    assert_close(layer.get_weights()[:3], gru.get_weights())
    assert layer.lam.numpy() == 3.0
    cell = ProxGRUCell(UNITS, reset_after=reset_after)
    cell.build((None, FEATURES))
    cell.set_weights(gru.cell.get_weights())
    assert_close(cell.get_weights()[:3], gru.get_weights())


def test_from_gru():
    gru = keras.layers.GRU(
        UNITS, activation="softplus", reset_after=False, return_sequences=True, name="x"
    )
    unbuilt = ProxGRU.from_gru(gru, lam=2.0, delta=0.5)
    assert not unbuilt.built
    layer = ProxGRU.from_gru(built(gru), lam=2.0, delta=0.5)
    assert (layer.delta, layer.lam.numpy(), layer.return_sequences) == (0.5, 2.0, True)
    assert layer.cell.activation is keras.activations.softplus and not layer.cell.reset_after
    assert_close(layer.get_weights()[:3], gru.get_weights())
    stateful = keras.layers.GRU(UNITS, stateful=True)
    stateful.build((2, None, FEATURES))
    assert ProxGRU.from_gru(stateful).states[0].shape == (2, UNITS)
    with pytest.raises(ValueError, match=r"must be a `keras.layers.GRU`.*ProxRNNCell"):
        ProxGRU.from_gru(keras.layers.LSTM(3))


def test_saved_under_its_own_name(tmp_path):
    layer = ProxGRU(UNITS, lam=1.0, jit_compile=False, reset_after=False)
    assert keras.saving.get_registered_name(ProxGRU) == "proxnet_tf>ProxGRU"
    assert keras.saving.get_registered_name(ProxGRUCell) == "proxnet_tf>ProxGRUCell"
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), layer])
    randomize(model)
    layer.lam.assign(0.01)
    x = data(BATCH, STEPS, FEATURES)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(reloaded.layers[-1].lam, 0.01)
    np.testing.assert_allclose(reloaded(x), model(x), atol=1e-6)


@pytest.mark.parametrize("reset_after", [True, False])
def test_what_is_unsolved_shows(reset_after):
    """In both passes, by a warning and in the status."""
    layer = built(
        ProxGRU(UNITS, delta=20.0, max_iterations=1, reset_after=reset_after, monitor=True)
    )
    x = tf.constant(data(BATCH, STEPS, FEATURES))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, training=True))
    tape.gradient(loss, x)
    status = layer.status
    assert status["residual"] > 0.01 and status["unsolved"] == 1.0
    assert status["backward_residual"] > 0.01 and status["backward_unsolved"] > 0.5
    quiet = built(ProxGRU(UNITS, delta=20.0, max_iterations=1, reset_after=reset_after))
    with pytest.warns(UserWarning, match="left .* of its proximal problems unsolved"):
        quiet(x)
    assert not quiet.cell.diagnose(x[:, 0], data(BATCH, UNITS)).converged.numpy().any()


def test_bad_arguments():
    for arguments, message in (
        ({"lam": 0.0}, "`lam` must be a finite number > 0"),
        ({"activation": "softmax"}, "must act elementwise"),
        ({"units": 0}, "`units` must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ProxGRU(**{"units": 3, **arguments})
    layer, x = ProxGRU(3), data(2, 3, 4)
    for wrong in ([data(2, 3)] * 2, data(2, 4)):
        with pytest.raises(ValueError, match=r"must be one state of shape \(batch, 3\)"):
            layer(x, initial_state=wrong)
    row = data(1, 3)  # one state for all examples
    for start in (row, [row]):
        expected = layer(x, initial_state=np.repeat(row, 2, axis=0))
        np.testing.assert_allclose(layer(x, initial_state=start), expected, atol=1e-6)
        np.testing.assert_allclose(RNN(layer.cell)(x, initial_state=start), expected, atol=1e-6)
