"""Weights and configurations that come from layers and models of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Bidirectional

from proxnet_tf import ProxGRU, ProxLSTM
from tests.layers.recurrent.cases import BATCH, FEATURES, KINDS, STEPS, UNITS, built, data

EACH = pytest.mark.parametrize("kind", KINDS)


def taken(kind, layer, **arguments):
    """`from_lstm` or `from_gru`."""
    return (ProxLSTM.from_lstm if kind == "LSTM" else ProxGRU.from_gru)(layer, **arguments)


@EACH
def test_a_layer(kind):
    plain = KINDS[kind][2]
    source = plain(UNITS, activation="softplus", dropout=0.1, return_sequences=True, name="x")
    assert not taken(kind, source, lam=2.0).built
    layer = taken(kind, built(source), lam=2.0, delta=0.5)
    assert isinstance(layer, KINDS[kind][0]) and layer.name != "x"
    assert (layer.delta, layer.lam.numpy(), layer.return_sequences) == (0.5, 2.0, True)
    assert layer.cell.activation is keras.activations.softplus and layer.dropout == 0.1
    for a, b in zip(layer.get_weights()[:3], source.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    stateful = plain(UNITS, stateful=True)
    stateful.build((2, None, FEATURES))
    assert taken(kind, stateful).states[0].shape == (2, UNITS)


@EACH
def test_what_is_refused(kind):
    name, other = KINDS[kind][2].__name__, {"LSTM": keras.layers.GRU, "GRU": keras.layers.LSTM}
    for wrong in (other[kind](3), Bidirectional(other[kind](3)), keras.layers.Dense(3)):
        with pytest.raises(ValueError, match=rf"must be a `keras.layers.{name}`.*ProxRNNCell"):
            taken(kind, wrong)
    with pytest.raises(ValueError, match=r"Received: reset_after=False"):
        ProxGRU.from_gru(built(keras.layers.GRU(3, reset_after=False)))


@pytest.mark.parametrize("kind, merge_mode", [("LSTM", "concat"), ("GRU", "sum")])
def test_both_directions(kind, merge_mode):
    """At delta = 0 the values are those of Keras; then each direction is the proximal layer."""
    source = Bidirectional(
        KINDS[kind][2](UNITS, return_sequences=True, use_cudnn=False),
        merge_mode=merge_mode,
        backward_layer=KINDS[kind][2](
            UNITS, return_sequences=True, go_backwards=True, activation="softsign", use_cudnn=False
        ),
    )
    assert not taken(kind, source).built
    built(source)
    x, mask = data(BATCH, STEPS, FEATURES), np.arange(STEPS) < np.array([[5], [2], [4]])
    same = taken(kind, source, delta=0.0)
    assert type(same) is Bidirectional and same.merge_mode == merge_mode
    for a, b in zip(tf.nest.flatten(same(x)), tf.nest.flatten(source(x)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    prox = taken(kind, source, lam=0.3)
    outputs = [taken(kind, one, lam=0.3)(x, mask=mask) for one in both(source)]
    outputs[1] = outputs[1][:, ::-1]
    if merge_mode == "concat":
        outputs = [np.concatenate(outputs, axis=-1)]
    elif merge_mode == "sum":
        outputs = [outputs[0] + outputs[1]]
    for a, b in zip(tf.nest.flatten(prox(x, mask=mask)), outputs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert [float(one.lam) for one in both(prox)] == pytest.approx([0.3, 0.3])
    assert len({v.path for v in prox.variables}) == len(prox.variables)


def both(layer):
    return layer.forward_layer, layer.backward_layer


def test_a_stateful_pair_in_16_bits_that_is_frozen():
    source = Bidirectional(
        keras.layers.LSTM(UNITS, stateful=True, dtype="mixed_float16"), dtype="mixed_float16"
    )
    source.build((2, None, FEATURES))
    source.trainable = False
    prox = ProxLSTM.from_lstm(source)
    assert prox.compute_dtype == "float16" and not prox.trainable_variables
    assert [one.states[0].shape for one in both(prox)] == [(2, UNITS)] * 2


def calm(layer):
    """The recipe of the guide: a copy of a layer with its weights, proximal if it is an LSTM."""
    if isinstance(layer, keras.layers.LSTM | Bidirectional):
        return ProxLSTM.from_lstm(layer, lam=0.1)
    copy = layer.from_config(layer.get_config())
    if getattr(layer, "weights", None):
        copy.build_from_config(layer.get_build_config())
        copy.set_weights(layer.get_weights())
    return copy


def test_a_model(tmp_path):
    inputs = keras.Input((STEPS,), dtype="int32")
    x = keras.layers.Embedding(9, FEATURES, mask_zero=True)(inputs)
    x = Bidirectional(keras.layers.LSTM(UNITS, return_sequences=True))(x)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.LSTM(2)(keras.layers.Dropout(0.5)(x))
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    words = np.random.default_rng(0).integers(0, 9, size=(BATCH, STEPS))
    prox = keras.models.clone_model(model, clone_function=calm)
    layers = [one for one in prox.layers if isinstance(one, ProxLSTM | Bidirectional)]
    assert len(layers) == 2
    for one in (layers[1], *both(layers[0])):
        one.lam = 1e8
    np.testing.assert_allclose(prox(words), model(words), atol=1e-5)
    for one in (layers[1], *both(layers[0])):
        one.lam = 0.1
    moved = prox(words)
    assert np.abs(moved - model(words)).max() > 1e-3
    prox.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(words), moved, atol=1e-6)
