"""Configurations: every argument is kept, in JSON too, before and after `build`."""

import copy
import pickle

import keras
import pytest

from tests.helpers.layer_checks import (
    assert_same,
    check_round_trip,
    constructor_arguments,
    same_config,
)
from tests.helpers.registry import CONFIGURED, LAYERS, layers

THINGS = [make() for make in CONFIGURED.values()]
CLASSES = {type(thing) for thing in THINGS}


@pytest.mark.parametrize("name", CONFIGURED)
def test_config_survives_json(name):
    check_round_trip(CONFIGURED[name]())


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__))
def test_every_argument_is_checked_with_another_value_than_its_default(cls):
    configs = [thing.get_config() for thing in THINGS if type(thing) is cls]
    arguments = constructor_arguments(cls).items()
    same = [name for name, default in arguments if all(c[name] == default for c in configs)]
    assert not same, f"give these a value other than their default in the registry: {same}"


@pytest.mark.parametrize("name", layers())
def test_layers_serialise_before_and_after_build(name):
    case = LAYERS[name]
    layer = case.make(name="mine")
    check_round_trip(layer)
    expected = layer(case.inputs, training=case.training)
    check_round_trip(layer)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same_config(copied, layer)
        assert_same(copied(case.inputs, training=case.training), expected, 1e-4)


def test_every_public_layer_is_registered():
    import proxnet_tf

    public = {getattr(proxnet_tf, name) for name in proxnet_tf.__all__}
    kinds = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric)
    classes = {c for c in public if isinstance(c, type) and issubclass(c, kinds)}
    models = {c for c in classes if issubclass(c, keras.Model)}
    assert classes - models <= CLASSES
