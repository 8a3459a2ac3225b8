"""Files and copies of models in which a layer stands twice, among other layers of Keras."""

import keras
import numpy as np
import pytest

from tests.helpers.layer_checks import assert_same, head, map_inputs, randomize, symbolic
from tests.helpers.registry import LAYERS, layers, register, takes_views


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


def prepared(model, inputs):
    """Weights that no new model has, and statistics of training batches."""
    randomize(model)
    for training in (True, False):
        model(inputs, training=training)
    for variable in model.non_trainable_variables:
        if variable.name == "lam":
            variable.assign(0.9)
    return model


def check_files(model, fresh, inputs, path):
    """The whole model and its weights alone come back from files."""
    expected = model(inputs)
    model.save(path / "model.keras")
    reloaded = keras.saving.load_model(path / "model.keras")
    assert_same(reloaded(inputs), expected)
    assert len(reloaded.weights) == len(model.weights)
    model.save_weights(path / "model.weights.h5")
    fresh.load_weights(path / "model.weights.h5")
    assert_same(fresh(inputs), expected)
    assert_same(fresh.get_weights(), model.get_weights(), 0.0)


# `lam` is all that `ProxDropout` keeps, as `Prox`, and its steps are slow.
@pytest.mark.parametrize("name", layers(among=set(LAYERS) - {"ProxDropout"}))
def test_two_layers_one_of_them_at_two_positions(name, tmp_path):
    case = LAYERS[name]

    def make():
        places, twice = [symbolic(case.inputs), symbolic(case.inputs)], case.make()
        outputs = [twice(places[0]), case.make()(places[0]), twice(places[1])]
        return keras.Model(places, keras.layers.Add()([head(output) for output in outputs]))

    flipped = map_inputs(lambda x: np.ascontiguousarray(x[::-1]) * 0.7, case.inputs)
    inputs = [case.inputs, flipped]
    model = prepared(make(), inputs)
    check_files(model, make(), inputs, tmp_path)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(clone(inputs), model(inputs))

    paths = [v.path for v in model.variables]
    assert len(paths) == len(set(paths)), sorted({p for p in paths if paths.count(p) > 1})
    model.compile("sgd")  # Keras needs its optimizer here
    model.get_state_tree()


@pytest.mark.parametrize("name", layers(among=("ProxGCCA, moving", "ProxLSTM")))
def test_in_a_subclassed_model(name, tmp_path):
    case = LAYERS[name]
    model, fresh = Subclassed(case.make()), Subclassed(case.make())
    for each in (model, fresh):
        each(case.inputs)  # builds it
    check_files(prepared(model, case.inputs), fresh, case.inputs, tmp_path)


def one_tensor(case):
    return not takes_views(case)


def one_output(case):
    return one_tensor(case) and not case.arguments().get("return_state")


@pytest.mark.parametrize("name", layers(one_tensor, ("Prox of a function", "ProxKernelFeatures")))
def test_in_a_sequential_model(name, tmp_path):
    """Its input comes with the first call."""
    case = LAYERS[name]
    model, fresh = (keras.Sequential([case.make()]) for _ in range(2))
    for each in (model, fresh):
        each(case.inputs)
    check_files(prepared(model, case.inputs), fresh, case.inputs, tmp_path)


@pytest.mark.parametrize("name", layers(one_output, ("Prox l1", "ProxLSTM")))
def test_inside_time_distributed(name, tmp_path):
    """The same as the layer on each slice. Keras's wrapper takes one tensor and returns one."""
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
