"""`ProxDropout` as a layer; its map is judged in `tests/ops/convex/test_dropout.py`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.convex.dropout import ProxDropout

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_zero_tiny_and_huge_vectors_are_kept(value):
    x = np.array([[value, -value, value]], "float32")
    point = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(point)
        c = ProxDropout(1.0)(point)
    np.testing.assert_allclose(c, x, rtol=1e-6)
    np.testing.assert_array_equal(tape.gradient(c, point), np.ones_like(x))


def test_vectors_along_the_last_axis_and_sequential():
    x = RNG.standard_normal((2, 3, 4)).astype("float32")
    layer = ProxDropout(0.5)
    np.testing.assert_allclose(layer(x)[1], layer(x[1]), atol=1e-6)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x[0], x[0, :, :1], epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]


@pytest.mark.parametrize("arguments", [{"lam": 0.0}, {"lam": float("nan")}])
def test_bad_input(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ProxDropout(**arguments)


def test_monitor_shows_both_passes_in_fit():
    x = RNG.standard_normal((16, 4)).astype("float32")
    model = keras.Sequential(
        [keras.layers.Dense(3), ProxDropout(0.5, monitor="all"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    logs = model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0).history
    assert 0 <= logs["residual"][0] < 1e-5
    assert logs["unsolved"] == [0.0]
    assert logs["iterations"][0] >= 1
    assert logs["backward_residual"] == [0.0]
