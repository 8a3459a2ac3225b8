"""Files and copies of models in which a layer stands twice, among other layers of Keras."""

import keras
import numpy as np
import pytest

from proxnet_tf import ProxKernelFeatures
from tests.helpers.layer_checks import assert_same, head, map_inputs, randomize, symbolic
from tests.helpers.registry import LAYERS, SEQUENCES, register


@register
class Subclassed(keras.Model):
    """A model as users write one."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, inputs, training=False):
        return self.layer(inputs, training=training)

    def get_config(self):
        return {**super().get_config(), "layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)


def two_of(case, inputs):
    """A functional model with two layers side by side that share their input."""
    layers = [case.make(), case.make()]
    outputs = [head(layer(inputs)) for layer in layers]
    return keras.Model(inputs, keras.layers.Add()(outputs)), layers


def prepared(model, case):
    """Weights that no new model has, and statistics of training batches."""
    randomize(model)
    for training in (True, False):
        model(case.inputs, training=training)
    for variable in model.non_trainable_variables:
        if variable.name == "lam":
            variable.assign(0.9)
    return model


@pytest.mark.parametrize("name", LAYERS)
def test_a_model_that_holds_two(name, tmp_path):
    case = LAYERS[name]
    model, _ = two_of(case, symbolic(case.inputs))
    prepared(model, case)
    expected = model(case.inputs)

    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(case.inputs), expected)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(clone(case.inputs), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh, _ = two_of(case, symbolic(case.inputs))
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same(fresh(case.inputs), expected)
    assert_same(fresh.get_weights(), model.get_weights(), 0.0)

    paths = [v.path for v in model.variables]
    assert len(paths) == len(set(paths)), sorted({p for p in paths if paths.count(p) > 1})
    model.compile("sgd")  # Keras needs its optimizer here
    model.get_state_tree()


TENSOR = [name for name, case in LAYERS.items() if not isinstance(case.inputs, list)]
PLACES = [(n, "subclassed") for n in LAYERS] + [
    pytest.param(n, "sequential", marks=[pytest.mark.slow][: n not in ("ProxLSTM", "ProxDropout")])
    for n in TENSOR
]


@pytest.mark.parametrize("name, kind", PLACES)
def test_subclassed_and_sequential_models(name, kind, tmp_path):
    case = LAYERS[name]

    def make():
        layer = case.make()
        if kind == "subclassed":
            return Subclassed(layer)
        return keras.Sequential([layer])  # its input comes with the first call

    model = make()
    model(case.inputs)
    expected = prepared(model, case)(case.inputs)
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(case.inputs), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = make()
    fresh(case.inputs)
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same(fresh(case.inputs), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_one_layer_at_two_positions(name, tmp_path):
    case = LAYERS[name]
    layer = case.make()
    places = [symbolic(case.inputs), symbolic(case.inputs)]
    outputs = [layer(place, training=case.training) for place in places]
    randomize(layer)
    flipped = map_inputs(lambda x: np.ascontiguousarray(x[::-1]) * 0.7, case.inputs)
    model = keras.Model(places, outputs)
    expected = [layer(x, training=case.training) for x in (case.inputs, flipped)]
    assert_same(model([case.inputs, flipped]), expected)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(reloaded.weights) == len(layer.weights)
    assert_same(reloaded([case.inputs, flipped]), expected)


# Keras's wrapper takes one tensor and returns one.
@pytest.mark.parametrize("name", [n for n in TENSOR if n != "ProxLSTM, unrolled"])
def test_inside_time_distributed(name, tmp_path):
    """The same as the layer on each slice, here the batch as it is and another one."""
    case = LAYERS[name]
    slices = [case.inputs, 0.7 * case.inputs[::-1]]
    outer = keras.layers.TimeDistributed(case.make())
    inputs = keras.Input((2, *case.inputs.shape[1:]))
    model = keras.Model(inputs, outer(inputs))
    randomize(model)
    found = model(np.stack(slices, 1))
    wanted = [outer.layer(x) for x in slices]
    assert_same(found, np.stack([np.asarray(w) for w in wanted], 1))
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(np.stack(slices, 1)), found)


@pytest.mark.parametrize("place", ["functional", "subclassed", "time distributed"])
def test_what_adapt_found_is_in_the_weights(place, tmp_path):
    rows = SEQUENCES.reshape(-1, SEQUENCES.shape[-1])

    def make(adapted=False):
        layer = ProxKernelFeatures("gaussian", num_landmarks=4, lam=0.3)
        if adapted:
            layer.adapt(rows)
        if place == "subclassed":
            return Subclassed(layer)
        inputs = keras.Input(SEQUENCES.shape[1:])
        outer = keras.layers.TimeDistributed(layer) if place == "time distributed" else layer
        return keras.Model(inputs, outer(inputs))

    model = make(adapted=True)
    expected = model(SEQUENCES)
    model.save(tmp_path / "model.keras")
    assert_same(keras.saving.load_model(tmp_path / "model.keras")(SEQUENCES), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = make()
    if place == "subclassed":
        fresh(keras.Input(SEQUENCES.shape[1:]))  # Keras builds what is inside by a call only
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same(fresh(SEQUENCES), expected)
    if place != "subclassed":
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        assert_same(clone(SEQUENCES), expected)
