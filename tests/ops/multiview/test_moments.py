"""Moments of rows against NumPy in float64: any units, masks, blocks."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA, cca_loss
from proxnet_tf.ops.multiview import moments
from proxnet_tf.ops.multiview.moments import column_rounding, gram_of, moments_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_numpy_in_blocks_and_in_one_piece(dtype, tolerance, masked, monkeypatch):
    x = (RNG.normal(size=(50, 3)) * [1.0, 1e-3, 1e3] + [0.0, 5.0, -1e4]).astype(dtype)
    valid = RNG.random((50, 1)) < 0.7 if masked else None
    rows = x[valid[:, 0]] if masked else x
    if masked:
        x = np.where(valid, x, np.nan).astype(dtype)
    centred = rows.astype("float64") - rows.astype("float64").mean(0)
    size = np.sqrt((centred**2).sum(0))
    for limit in (4096, 10):
        monkeypatch.setattr(moments, "EXACT_ROWS", limit)
        monkeypatch.setattr(moments, "BLOCK", 16)
        found = moments_of(tf.constant(x), None if valid is None else tf.constant(valid))
        assert float(found.count) == len(rows) and bool(found.finite)
        np.testing.assert_allclose(found.mean, rows.astype("float64").mean(0), rtol=tolerance)
        error = (found.gram - centred.T @ centred) / (size[:, None] * size)
        assert np.abs(error).max() < tolerance


def test_what_is_not_finite_is_said_and_kept_away():
    x = tf.constant([[1.0, 2.0], [np.inf, 3.0], [2.0, 5.0]])
    assert not moments_of(x).finite and not moments_of(x).gram.numpy().any()
    assert np.isnan(gram_of(x).gram).all()
    valid = tf.constant([[True], [False], [True]])
    np.testing.assert_allclose(gram_of(x, valid).gram, [[0.5, 1.5], [1.5, 4.5]])


def test_no_row_and_one_row():
    for rows in (0, 1):
        found = moments_of(tf.ones((rows, 2)))
        assert float(found.count) == rows and not found.gram.numpy().any()
        np.testing.assert_array_equal(found.rounding, 1.0)


def test_rounding_of_a_column():
    """Twice the unit of float32 times the mean, a row; a constant column is nothing else."""
    gram = tf.constant(np.diag([8.0, 0.0, 8.0]))
    mean = tf.constant([1e3, 1.0, 0.0], tf.float64)
    found = column_rounding(gram, tf.constant(2.0, tf.float64), mean, tf.float32)
    np.testing.assert_allclose(found, [2 * (2 * 2.0**-23 * 1e3) ** 2 / 8, 1.0, 0.0])


@pytest.mark.parametrize("scale", [3e38, 1e30])
def test_rows_near_the_end_of_float32(scale):
    """For rows this large lam/n ||P - X||^2 alone decides: P = X, and the gradient passes."""
    views = RNG.normal(size=(40, 6))
    views[:, 3:] += views[:, :3]
    views = (views / np.abs(views).max()).astype("float32")
    x = tf.constant(views * np.float32(scale))
    layer = ProxCCA(lam=0.5, epsilon=0.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        p = tf.concat(layer([x[:, :3], x[:, 3:]], training=True), 1)
    np.testing.assert_array_equal(p, x)
    np.testing.assert_array_equal(tape.gradient(p, x, tf.constant(views)), views)
    small = cca_loss(views[:, :3], views[:, 3:], epsilon=0.0)
    np.testing.assert_allclose(cca_loss(x[:, :3], x[:, 3:], epsilon=0.0), small, rtol=1e-6)


def test_sums_out_of_range_are_named():
    """More than 4096 float32 rows are multiplied in float32."""
    x = np.float32(1e30) * RNG.normal(size=(5000, 2)).astype("float32")
    with pytest.warns(UserWarning, match="the sums of squares of the input held NaN or infinite"):
        p = ProxCCA(lam=0.5)([x[:, :1], x[:, 1:]], training=True)
    assert np.isnan(p[0]).all()
