"""Models: configuration, files, copies, training in three precisions."""

import json

import keras
import numpy as np
import pytest

from tests.helpers.layer_checks import (
    assert_finite,
    assert_same,
    constructor_arguments,
    policy,
    randomize,
    same_config,
    symbolic,
)
from tests.helpers.registry import MODELS


def compiled(case, dtype="float32", **options):
    keras.utils.set_random_seed(0)
    with policy(dtype):
        model = case.make()
    compile_again(model, **options)
    return model


def compile_again(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], **options)


def trained(case, dtype="float32", **options):
    """A model after one epoch, and its history."""
    model = compiled(case, dtype, **options)
    if case.pretrained:
        model.pretrain(case.inputs, batch_size=8, epochs=1, verbose=0)
    history = model.fit(case.inputs, case.targets, batch_size=8, epochs=1, verbose=0, shuffle=False)
    return model, history.history


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    case = MODELS[request.param]
    # Tracing takes most of the time: two kinds train in a graph.
    return case, *trained(
        case, run_eagerly=request.param not in ("MultiviewClassifier, prox", "DCCAE")
    )


def test_config_survives_json(fitted):
    case, model, _ = fitted
    for each in (case.make(), model):
        config = each.get_config()
        assert not set(constructor_arguments(type(each))) - set(config)
        same_config(type(each).from_config(json.loads(json.dumps(config))), each)


def test_every_argument_is_checked_with_another_value_than_its_default():
    models = [case.make() for case in MODELS.values()]
    for cls in {type(m) for m in models}:
        configs = [m.get_config() for m in models if type(m) is cls]
        arguments = constructor_arguments(cls).items()
        same = [name for name, default in arguments if all(c[name] == default for c in configs)]
        assert not same, f"give these of {cls.__name__} another value in the registry: {same}"


def test_outputs_and_shapes(fitted):
    case, model, history = fitted
    assert_finite([history["loss"], *model.weights])
    output = np.asarray(model(case.inputs))
    assert_finite(output)
    assert_same(model.predict(case.inputs, verbose=0), output)
    spec = model(symbolic(case.inputs))  # as a part of another model
    assert spec.shape == (None, *output.shape[1:]) and spec.dtype == output.dtype


def test_files_and_copies(fitted, tmp_path):
    case, model, _ = fitted
    expected = model(case.inputs)
    compile_again(model, run_eagerly=True)  # which costs less than tracing for one batch
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(reloaded(case.inputs), expected)
    assert_same(reloaded.get_weights(), model.get_weights(), 0.0)
    scores = [
        m.evaluate(case.inputs, case.targets, verbose=0, return_dict=True)
        for m in (model, reloaded)
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4, abs=1e-6)
    again = reloaded.fit(case.inputs, case.targets, verbose=0)  # it trains on
    assert_finite(again.history["loss"])

    model.save_weights(tmp_path / "model.weights.h5")
    fresh = case.make()
    fresh(case.inputs)
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_same(fresh(case.inputs), expected)
    clone = keras.models.clone_model(model)
    clone(case.inputs)
    clone.set_weights(model.get_weights())
    assert_same(clone(case.inputs), expected)


@keras.saving.register_keras_serializable(package="tests")
class Outer(keras.Model):
    """A model of a user that holds one of ours."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, inputs):
        return -self.inner(inputs)

    def get_config(self):
        return super().get_config() | {"inner": keras.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("inner")), **config)


def functional(inner, inputs):
    return keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))


def sequential(inner, inputs):
    return keras.Sequential([inputs, inner, keras.layers.Dense(2)])


ONCE = ("DCCAE", "AdversarialModel")  # the other places are shown with these
PLACES = [
    pytest.param(name, kind, marks=[] if kind is functional or name in ONCE else pytest.mark.slow)
    for name, case in MODELS.items()
    for kind in (functional, sequential, Outer)
    if kind is not sequential or not isinstance(case.inputs, list)  # it has one input
]


@pytest.mark.parametrize("name, kind", PLACES)
def test_inside_another_model(name, kind, tmp_path):
    case = MODELS[name]
    single = not isinstance(case.inputs, list)
    inputs = [keras.Input(x.shape[1:]) for x in ([case.inputs] if single else case.inputs)]
    outer = (
        Outer(case.make()) if kind is Outer else kind(case.make(), inputs[0] if single else inputs)
    )
    expected = outer(case.inputs)
    outer.save(tmp_path / "outer.keras")
    assert_same(keras.saving.load_model(tmp_path / "outer.keras")(case.inputs), expected)
    for copy in (keras.models.clone_model(outer), keras.models.model_from_json(outer.to_json())):
        copy(case.inputs)
        copy.set_weights(outer.get_weights())
        assert_same(copy(case.inputs), expected)


def test_paths_are_unique(fitted):
    _, model, _ = fitted
    paths = [v.path for v in model.variables]
    assert len(paths) == len(set(paths)), sorted(p for p in paths if paths.count(p) > 1)
    model.get_state_tree()


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision(name):
    case, dtype = MODELS[name], "mixed_float16"
    model, history = trained(case, dtype, run_eagerly=True)
    assert_finite([history["loss"], *model.weights])
    assert {w.dtype for w in model.weights if "float" in w.dtype} == {"float32"}
    assert model(case.inputs).dtype == keras.DTypePolicy(dtype).compute_dtype


@pytest.mark.parametrize("name", MODELS)
def test_frozen_model_keeps_its_weights(name):
    case = MODELS[name]
    model = compiled(case)
    model(case.inputs)
    randomize(model)
    if case.pretrained:
        model.pretrained.assign(1.0)
    model.trainable = False
    compile_again(model, run_eagerly=True)
    before = [np.asarray(w) for w in model.weights]
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(case.inputs, case.targets, epochs=1, verbose=0)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value, weight.path)
