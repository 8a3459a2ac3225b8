"""`ProxDropout` as a layer; its map is judged in `tests/ops/convex/test_dropout.py`."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.convex.dropout import ProxDropout


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_zero_tiny_and_huge_vectors_are_kept(value):
    x = np.array([[value, -value, value]], "float32")
    point = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(point)
        c = ProxDropout(1.0)(point)
    np.testing.assert_allclose(c, x, rtol=1e-6)
    np.testing.assert_array_equal(tape.gradient(c, point), np.ones_like(x))


@pytest.mark.parametrize("arguments", [{"lam": 0.0}, {"lam": float("nan")}])
def test_bad_input(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ProxDropout(**arguments)
