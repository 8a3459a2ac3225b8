"""Norms and directions, where squares overflow or vanish too, against NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.linear.norms import norm, polar

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3))

SIZES = {"float32": [1e-35, 1e-20, 1.0, 1e20, 1e38], "float64": [1e-300, 1e-200, 1.0, 1e200, 1e307]}


@pytest.mark.parametrize("dtype", SIZES)
def test_norm_and_direction_at_any_size(dtype):
    tolerance = 4 * np.finfo(dtype).eps
    for size in SIZES[dtype]:
        # NumPy's answer for X of ordinary size, which the size does not change.
        x = (size * X).astype(dtype)
        given = x.astype("float64") / size
        length = np.linalg.norm(given, axis=1, keepdims=True)
        parts = polar(tf.constant(x))
        np.testing.assert_allclose(norm(x) / size, length[:, 0], rtol=tolerance)
        np.testing.assert_allclose(parts.unit, given / length, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(parts.size[:, 0], np.abs(x).max(1))
        np.testing.assert_allclose(parts.size * parts.length * parts.unit, x, rtol=2 * tolerance)
        assert np.all((parts.length >= 1) & (parts.length <= np.sqrt(3) * (1 + tolerance)))
        assert {norm(x).dtype, *(part.dtype for part in parts)} == {tf.as_dtype(dtype)}


def test_vectors_of_zeros_have_no_direction():
    parts = polar(tf.zeros([2, 3]))
    np.testing.assert_array_equal(parts.size, np.ones((2, 1)))
    np.testing.assert_array_equal(parts.length, np.zeros((2, 1)))
    np.testing.assert_array_equal(parts.unit, np.zeros((2, 3)))


def test_gradient_of_length_and_direction():
    """d||x|| = <u, dx> and du = (I - u u^T) dx/||x||: that `size` is a constant changes neither."""
    weights = RNG.standard_normal(X.shape)
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        parts = polar(x)
        length = parts.size * parts.length
        along = tf.reduce_sum(weights * parts.unit)
    size = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / size
    np.testing.assert_allclose(tape.gradient(length, x), unit, atol=1e-14)
    across = weights - np.sum(unit * weights, 1, keepdims=True) * unit
    np.testing.assert_allclose(tape.gradient(along, x), across / size, atol=1e-14)


def test_norm_and_its_gradient():
    z = tf.constant([[3e38, -1e38], [3e-37, 4e-37], [0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(z)
        length = norm(z)
        total = tf.reduce_sum(tf.constant([7.0, 7.0, 1.0, 1.0, 1.0]) * length)
    np.testing.assert_allclose(length, [np.sqrt(10) * 1e38, 5e-37, 0, np.inf, np.nan], rtol=1e-6)
    slope = [[7 * 3 / np.sqrt(10), -7 / np.sqrt(10)], [4.2, 5.6], [0, 0], [np.nan] * 2]
    np.testing.assert_allclose(tape.gradient(total, z), [*slope, [np.nan] * 2], rtol=1e-6)
