"""The recurrent layers in models: 16 bits, two of a kind, monitors. See `tests/contract` too."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxLSTM, ProxRNNCell
from tests.layers.recurrent.cases import BATCH, FEATURES, RNN, STEPS, UNITS, built, data, randomize

# How a layer over sequences is made of each class.
LAYERS = {
    "ProxLSTM": functools.partial(ProxLSTM, jit_compile=False),
    "ProxGRU": functools.partial(ProxGRU, jit_compile=False),
    "ProxRNNCell": lambda units, lam, delta=1.0, max_iterations=None, monitor=False, **k: RNN(
        ProxRNNCell(
            keras.layers.GRUCell(units),
            lam=lam,
            delta=delta,
            max_iterations=max_iterations,
            monitor=monitor,
        ),
        **k,
    ),
}


def make(kind, lam=0.5, **arguments):
    return LAYERS[kind](UNITS, lam=lam, **arguments)


def test_gradients_in_16_bits():
    """Float32, and near those in float32, eagerly and in a graph."""

    def layer(dtype):
        inner = keras.layers.GRUCell(UNITS, dtype=dtype)
        return built(RNN(ProxRNNCell(inner, lam=0.5, dtype=dtype), dtype=dtype))

    x, half = data(BATCH, STEPS, FEATURES), layer("mixed_float16")
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
            assert np.linalg.norm(a - b) < 0.02 * np.linalg.norm(b)


@pytest.mark.parametrize("cls", [ProxLSTM, ProxGRU])
def test_the_attributes_of_the_layer_of_keras(cls):
    arguments = {
        "dropout": 0.25, "recurrent_dropout": 0.125, "activation": "softsign",
        "recurrent_activation": "hard_sigmoid" if cls is ProxGRU else "sigmoid",
        "use_bias": False, "kernel_initializer": "ones", "kernel_regularizer": "l2",
        "bias_constraint": "non_neg",
    }  # fmt: skip
    layer, plain = cls(3, **arguments), cls.plain_class(3, **arguments)
    public = {
        name
        for name in inspect.signature(cls.plain_class.__init__).parameters
        if hasattr(plain, name)
    }
    assert {"units", "dropout", "activation", "recurrent_regularizer", "use_bias"} < public
    # `use_cudnn` chooses a kernel, and `implementation` is 2 where ours runs fused.
    serialize = keras.saving.serialize_keras_object
    for name in public - {"use_cudnn", "implementation"}:
        ours, theirs = getattr(layer, name), getattr(plain, name)
        assert serialize(ours) == serialize(theirs), name

    class Own(cls):
        """A subclass has them, too."""

    assert Own(3, dropout=0.5).dropout == 0.5


@pytest.mark.parametrize("cls", [ProxLSTM, ProxGRU])
def test_a_mask_of_another_shape_is_refused(cls):
    layer, x = cls(2, jit_compile=False), np.ones((4, 6, 3), "float32")
    for shape in [(4,), (), (4, 1), (4, 3), (3, 6), (4, 6, 2), (4, 6, 1, 1)]:
        with pytest.raises(
            ValueError, match=r"`mask` must have the shape \(batch, time\).*\(4, 6\)"
        ):
            layer(x, mask=np.ones(shape, bool))


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


OWN = ("ProxLSTM", "ProxGRU")  # layers that have a status; else it is the cell's
NAMES = ("residual", "unsolved", "iterations", "backward_residual")


@pytest.mark.parametrize("kind", [*OWN, pytest.param("ProxRNNCell", marks=pytest.mark.slow)])
def test_fit_shows_what_is_unsolved_in_both_passes(kind):
    """One step of conjugate gradients and a large perturbation: nothing is solved, and it shows."""
    masked = kind in OWN  # Keras hands no mask to cells
    x = data(4, STEPS, FEATURES)
    logs = {}
    for name, arguments in (
        ("bad", {"delta": 20.0, "max_iterations": 1, "monitor": "all"}),
        ("good", {"delta": 1.0, "monitor": "all"}),
    ):
        layer = make(kind, return_sequences=True, **arguments)
        inputs = keras.Input((STEPS, FEATURES))
        hidden = keras.layers.Masking()(inputs) if masked else inputs
        model = keras.Model(inputs, keras.layers.Dense(1)(layer(hidden)))
        randomize(model)
        model.compile("sgd", "mse")
        if masked:
            x[2:, 2:] = 0.0
        logs[name] = model.fit(x, x[..., :1], batch_size=2, verbose=0).history
        owner = layer if kind in OWN else layer.cell
        expected = {k: v[-1] for k, v in logs[name].items() if k != "loss"}
        assert owner.status == pytest.approx(expected)
        assert set(logs[name]) == {"loss", *NAMES}
    good, bad = ({k: v[0] for k, v in logs[name].items()} for name in ("good", "bad"))
    assert bad["residual"] > 0.01 and bad["backward_residual"] > 0.01
    # The last step's c has no cotangent where the output is taken from s: nothing to solve.
    assert 0.75 < bad["unsolved"] <= 1.0
    assert bad["iterations"] == 1.0
    assert 0 < good["residual"] <= 1e-5 and 0 < good["backward_residual"] <= 1e-5
    assert good["unsolved"] == 0.0
    assert 1.0 < good["iterations"] <= 2 * UNITS + 10


@pytest.mark.parametrize("kind", ["ProxGRU", "ProxRNNCell"])
def test_eager_calls_warn_of_what_is_unsolved(kind):
    """With what helps here: no bound but `max_iterations`, and no R of the user's."""
    layer = built(make(kind, delta=20.0, max_iterations=1))
    x = data(BATCH, STEPS, FEATURES)
    with pytest.warns(UserWarning, match="left .* of its proximal problems unsolved.*`max_itera"):
        layer(x)
    owner = layer if kind in OWN else layer.cell
    assert owner.status["residual"] > 0.01 and owner.status["unsolved"] > 0.5


@pytest.mark.parametrize("kind", ["ProxGRU", "ProxRNNCell"])
def test_recomputation_is_refused(kind):
    """TensorFlow stops all tapes in `tf.recompute_grad`: the Jacobian would be zero."""
    layer = built(make(kind))
    x = tf.constant(data(BATCH, STEPS, FEATURES))
    with tf.GradientTape() as tape, pytest.raises(NotImplementedError, match=r"keras.RematScope"):
        tape.watch(x)
        tf.recompute_grad(lambda x: layer(x))(x)
