"""The toolbox's layers in the places where layers stand: twice, wrapped, shared, subclassed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.convex.dropout import ProxDropout
from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.kernels.features import ProxKernelFeatures

RNG = np.random.default_rng(0)
LANDMARKS = RNG.standard_normal((4, 3))


@keras.saving.register_keras_serializable(package="proxnet_tf_tests")
def smooth_l1(z):
    return tf.reduce_sum(tf.sqrt(1 + z**2), axis=-1)


LAYERS = {
    "closed form": lambda **k: Prox("l1", lam=4.0, **k),
    "total variation": lambda **k: Prox("total_variation", lam=4.0, **k),
    "callable": lambda **k: Prox(smooth_l1, lam=4.0, **k),
    "dropout": lambda **k: ProxDropout(0.5, **k),
    "kernel": lambda **k: ProxKernelFeatures(
        "gaussian", landmarks=LANDMARKS, kernel_options={"length_scale": 1.5}, **k
    ),
}
parametrized = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def inputs(*shape):
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[pytest.mark.slow][: name in ("total variation",)])
        for name, make in LAYERS.items()
    ],
)
def test_two_monitored_ones_in_one_model(make, tmp_path):
    first, second = keras.Input((3,)), keras.Input((3,))
    left, right = make(monitor="left"), make(monitor="right")
    joined = keras.layers.Concatenate()([left(first), right(second)])
    model = keras.Model([first, second], keras.layers.Dense(1)(joined))
    paths = [w.path for w in model.weights]
    assert len(set(paths)) == len(paths)
    model.compile("sgd", "mse")
    model.get_state_tree()
    x = [inputs(4, 3), inputs(4, 3)]
    logs = model.fit(x, np.zeros((4, 1)), verbose=0).history
    assert {f"{side}_{name}" for side in ("left", "right") for name in left._monitor.metrics} < set(
        logs
    )
    model.save(tmp_path / "two.keras")
    np.testing.assert_allclose(
        keras.saving.load_model(tmp_path / "two.keras")(x), model(x), atol=1e-6
    )


@parametrized
def test_inside_time_distributed_equals_step_by_step(make):
    layer = make()
    x = inputs(2, 3, 3)
    outer = keras.layers.TimeDistributed(layer)
    steps = np.stack([layer(x[:, t]) for t in range(3)], axis=1)
    np.testing.assert_allclose(outer(x), steps, atol=1e-6)
    assert outer.compute_output_shape((None, 3, 3)) == (None, 3, steps.shape[-1])
    again = keras.layers.deserialize(keras.layers.serialize(outer))
    np.testing.assert_allclose(again(x), steps, atol=1e-6)


@parametrized
def test_in_a_shared_position(make):
    first, second = keras.Input((3,)), keras.Input((3,))
    layer = make()
    model = keras.Model([first, second], [layer(first), layer(second)])
    x = [inputs(4, 3), inputs(2, 3)]
    for found, v in zip(model([x[0], x[1]]), x, strict=True):
        np.testing.assert_allclose(found, layer(v), atol=1e-6)


@keras.saving.register_keras_serializable(package="proxnet_tf_tests")
class Holder(keras.Model):
    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, x):
        return self.layer(x)

    def get_config(self):
        return {**super().get_config(), "layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)


@parametrized
def test_in_a_subclassed_model(make, tmp_path):
    model = Holder(make())
    x = inputs(4, 3)
    expected = model(x)
    model.layer.lam.assign(7.0)
    changed = model(x)
    assert np.abs(changed - expected).max() > 1e-4
    model.save(tmp_path / "held.keras")
    np.testing.assert_allclose(
        keras.saving.load_model(tmp_path / "held.keras")(x), changed, atol=1e-6
    )


@parametrized
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_every_precision(make, dtype):
    layer = make(dtype=dtype)
    x = inputs(4, 3)
    z = layer(x)
    assert keras.backend.standardize_dtype(z.dtype) == layer.compute_dtype
    atol = {"mixed_float16": 4e-3, "mixed_bfloat16": 4e-2, "float64": 1e-5}[dtype]
    np.testing.assert_allclose(np.asarray(z, "float32"), make()(x), atol=atol)


@parametrized
def test_compute_output_shape_takes_lists(make):
    layer = make()
    size = 4 if isinstance(layer, ProxKernelFeatures) else 3
    for shape in ([None, 3], (None, 3), [2, 5, 3]):
        assert tuple(layer.compute_output_shape(shape)) == (*shape[:-1], size)
