"""Python numbers keep their digits on the way to a tensor."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import cca_loss, gcca_loss
from proxnet_tf.ops.linear.number import scalar
from tests.helpers.multiview_reference import value_and_gradient


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), tf.constant(0.1, tf.float64)])
def test_number(value):
    assert scalar(value, tf.float64).numpy() == 0.1
    assert scalar(value, tf.float32).numpy() == np.float32(0.1)


# Through float32 a ridge of 1e-3 is off by 5e-8 of its size, which shows in the loss from 1e-11 on.
@pytest.mark.parametrize("objective", ["cca", "gcca"])
def test_ridge_of_a_float64_loss(objective):
    sizes = (3, 4) if objective == "cca" else (3, 4, 2)
    x = np.random.default_rng(0).normal(size=(30, sum(sizes)))
    value, gradient = value_and_gradient(x, sizes, 2, 1e-3, objective)
    rows = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        views = tf.split(rows, sizes, axis=1)
        loss = cca_loss(*views, 2, 1e-3) if objective == "cca" else gcca_loss(views, 2, 1e-3)
    np.testing.assert_allclose(loss, value, atol=1e-13)
    np.testing.assert_allclose(tape.gradient(loss, rows), gradient, atol=1e-14)
