"""What the contract tests share: comparisons, arguments of constructors, small models."""

import contextlib
import inspect
import json

import keras
import numpy as np
import tensorflow as tf


def flat(outputs):
    return [np.asarray(o) for o in tf.nest.flatten(outputs)]


def assert_same(left, right, atol=1e-5):
    """Equal dtypes, shapes and values."""
    left, right = flat(left), flat(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=atol, rtol=atol)


def assert_finite(values):
    for value in flat(values):
        assert np.isfinite(value.astype("float64")).all()


def constructor_arguments(cls):
    """Names and defaults of every constructor argument of the class itself."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def without_build(config):
    """A config without what Keras notes about the shapes that inner layers were built with."""
    if isinstance(config, dict):
        return {k: without_build(v) for k, v in config.items() if k != "build_config"}
    if isinstance(config, list | tuple):
        return [without_build(v) for v in config]
    return config


def same_config(one, other):
    """Whether two objects have one class and one configuration."""
    configs = [without_build(thing.get_config()) for thing in (one, other)]
    assert type(one) is type(other)
    assert configs[0] == configs[1]


def check_round_trip(thing):
    """Every constructor argument is in the config, which survives JSON."""
    config = thing.get_config()
    missing = set(constructor_arguments(type(thing))) - set(config)
    assert not missing, f"missing from get_config(): {missing}"
    same_config(type(thing).from_config(json.loads(json.dumps(config))), thing)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(thing)))
    same_config(keras.saving.deserialize_keras_object(serialized), thing)


def map_inputs(function, inputs):
    """The same structure with `function` of each array."""
    return [function(x) for x in inputs] if isinstance(inputs, list) else function(inputs)


def symbolic(inputs):
    """A `keras.Input` for each array."""
    return map_inputs(lambda x: keras.Input(x.shape[1:], dtype="float32"), inputs)


def head(outputs, dtype=None):
    """One number for each example, of outputs of any structure."""
    dense = [
        keras.layers.Dense(1, dtype=dtype)(keras.layers.Flatten(dtype=dtype)(o))
        for o in tf.nest.flatten(outputs)
    ]
    return dense[0] if len(dense) == 1 else keras.layers.Add(dtype=dtype)(dense)


def randomize(layer, seed=1):
    """Random trainable weights: initializers like zeros would hide permuted ones."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(0.6 * rng.normal(size=weight.shape))
    return layer


def length(inputs):
    """The number of examples."""
    return len(inputs[0] if isinstance(inputs, list) else inputs)


@contextlib.contextmanager
def policy(dtype):
    """The default policy of what is made inside."""
    usual = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(usual)
