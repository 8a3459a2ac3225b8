"""Numbers that are not finite are kept from decompositions and shown in the answer."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview.guard import guarded, spoiled

X = np.random.default_rng(0).normal(size=(2, 3, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_finite_passes(dtype):
    x = tf.constant(X, dtype)
    ok, passed = guarded(x)
    assert bool(ok) and ok.shape == ()
    np.testing.assert_array_equal(passed, x)
    np.testing.assert_array_equal(spoiled(ok, passed), x)
    assert passed.dtype == spoiled(ok, x).dtype == dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_spoils_the_whole(bad):
    x = X.copy()
    x[1, 2, 0] = bad
    ok, passed = guarded(tf.constant(x))
    assert not ok
    np.testing.assert_array_equal(passed, np.zeros_like(x))
    answer = spoiled(ok, tf.linalg.eigh(passed)[0])
    assert answer.shape == (2, 3) and np.isnan(answer).all()


def test_nothing_is_finite():
    ok, passed = guarded(tf.zeros([0, 2]))
    assert bool(ok) and passed.shape == (0, 2)


def test_what_is_spoiled_never_passes_a_number():
    """The number is replaced, not multiplied: NaN for 0, too, and for any shape."""
    assert np.isnan(spoiled(tf.constant(False), tf.zeros([])))
    assert np.isnan(spoiled(tf.constant(False), tf.zeros([2, 2], tf.float64))).all()
