"""The sample of rows against NumPy in float64: any units, masks, blocks, gradients."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview.gram import column_rounding, gram_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 3e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [50, 5000])
def test_equal_numpy_in_blocks_and_in_one_piece(n, dtype, tolerance, masked):
    x = (RNG.normal(size=(n, 3)) * [1.0, 1e-3, 1e3] + [0.0, 5.0, -1e4]).astype(dtype)
    valid = RNG.random((n, 1)) < 0.9 if masked else None
    rows = x[valid[:, 0]] if masked else x
    if masked:
        x = np.where(valid, x, np.nan).astype(dtype)
    centred = rows.astype("float64") - rows.astype("float64").mean(0)
    size = np.sqrt((centred**2).sum(0))
    mask = None if valid is None else tf.constant(valid)
    of_any_size = tf.function(
        lambda x: gram_of(x, mask), input_signature=[tf.TensorSpec([None, 3], dtype)]
    )
    for found in (gram_of(tf.constant(x), mask), of_any_size(tf.constant(x))):
        assert float(found.count) == len(rows)
        np.testing.assert_allclose(found.mean, rows.astype("float64").mean(0), rtol=tolerance)
        error = (found.gram - centred.T @ centred) / (size[:, None] * size)
        assert np.abs(error).max() < tolerance


@pytest.mark.parametrize("n", [20, 5000])
def test_gradients_of_mean_and_gram_are_those_of_numpy(n):
    x, valid = RNG.normal(size=(n, 3)) + 5.0, RNG.random((n, 1)) < 0.7
    of_gram, of_mean = RNG.normal(size=(3, 3)), RNG.normal(size=3)

    def value(x):
        rows = x[valid[:, 0]]
        centred = rows - rows.mean(0)
        return np.sum(of_gram * (centred.T @ centred)) + np.sum(of_mean * rows.mean(0))

    rows = tf.constant(np.where(valid, x, np.nan))
    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = gram_of(rows, tf.constant(valid))
        total = tf.reduce_sum(of_gram * found.gram) + tf.reduce_sum(of_mean * found.mean)
    gradient = tape.gradient(total, rows).numpy()
    direction, h = RNG.normal(size=x.shape), 1e-5
    numeric = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
    np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=1e-8)
    np.testing.assert_array_equal(gradient[~valid[:, 0]], 0.0)


def test_what_is_not_finite_gives_nan():
    x = tf.constant([[1.0, 2.0], [np.inf, 3.0], [2.0, 5.0]])
    assert np.isnan(gram_of(x).gram).all()
    valid = tf.constant([[True], [False], [True]])
    np.testing.assert_allclose(gram_of(x, valid).gram, [[0.5, 1.5], [1.5, 4.5]])


def test_no_row_and_one_row():
    for rows in (0, 1):
        found = gram_of(tf.ones((rows, 2)))
        assert float(found.count) == rows and not found.gram.numpy().any()
        np.testing.assert_array_equal(found.rounding, 1.0)


def test_rounding_of_a_column():
    """Twice the unit of float32 times the mean, a row; a constant column is nothing else."""
    gram = tf.constant(np.diag([8.0, 0.0, 8.0]))
    mean = tf.constant([1e3, 1.0, 0.0], tf.float64)
    found = column_rounding(tf.constant(2.0, tf.float64), mean, gram, tf.float32)
    np.testing.assert_allclose(found, [2 * (2 * 2.0**-23 * 1e3) ** 2 / 8, 1.0, 0.0])
