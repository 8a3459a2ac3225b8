"""One check of everything that any Keras layer must do, on public API only."""

import inspect
import json

import keras
import numpy as np
import tensorflow as tf


def flat(outputs):
    return [np.asarray(o) for o in tf.nest.flatten(outputs)]


def assert_same(left, right, atol):
    left, right = flat(left), flat(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=atol, rtol=atol)


def constructor_arguments(cls):
    """Names and defaults of every constructor argument of the class itself."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def check_config(layer, allow_default=()):
    """Every constructor argument is in the config, differs from its default, survives JSON."""
    config = layer.get_config()
    for name, default in constructor_arguments(type(layer)).items():
        assert name in config, f"{name} is missing from get_config()"
        if name not in allow_default:
            assert config[name] != default, f"give {name} a value other than its default here"
    restored = type(layer).from_config(json.loads(json.dumps(config)))
    assert restored.get_config() == config
    return restored


def check_layer(layer, inputs, tmp_path, *, training=None, atol=1e-5, allow_default=(), fit=True):
    """Config, JSON, `.keras` file, symbolic = eager = `tf.function`, `fit`, mixed precision.

    `layer`: made with NON-default arguments (but those named in `allow_default`); `inputs`: one
    float32 array or a list of them, batch first; `training`: the mode of the compared outputs.
    """
    check_config(layer, allow_default)
    call = {} if training is None else {"training": training}
    symbolic = tf.nest.map_structure(lambda x: keras.Input(x.shape[1:], dtype="float32"), inputs)
    outputs = layer(symbolic, **call)
    model = keras.Model(symbolic, outputs)
    eager = layer(inputs, **call)
    for spec, value in zip(tf.nest.flatten(outputs), flat(eager), strict=True):
        assert spec.shape[0] is None
        assert tuple(spec.shape[1:]) == value.shape[1:]
        assert keras.backend.standardize_dtype(spec.dtype) == value.dtype
        assert np.isfinite(value).all()
    assert_same(tf.function(lambda x: layer(x, **call))(inputs), eager, atol)
    assert_same(model(inputs), eager, atol)

    path = str(tmp_path / "model.keras")
    model.save(path)
    reloaded = keras.saving.load_model(path)
    assert_same(reloaded(inputs), eager, atol)

    if fit:
        heads = [keras.layers.Dense(1)(keras.layers.Flatten()(o)) for o in tf.nest.flatten(outputs)]
        head = heads[0] if len(heads) == 1 else keras.layers.Add()(heads)
        trained = keras.Model(symbolic, head)
        trained.compile("sgd", "mse")
        batch = len(flat(inputs)[0])
        history = trained.fit(inputs, np.zeros((batch, 1), "float32"), epochs=1, verbose=0)
        assert np.isfinite(history.history["loss"]).all()

    config = layer.get_config() | {"dtype": "mixed_float16"}
    half = type(layer).from_config(config)
    for value in flat(half(inputs, **call)):
        assert value.dtype == np.float16
        assert np.isfinite(value).all()
