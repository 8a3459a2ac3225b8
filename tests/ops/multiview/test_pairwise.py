"""Moments of pairs of views against loops in NumPy; their gradient against central differences."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import moments, pairwise
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.pairwise import (
    PairSums,
    gram_of_pairs,
    moments_of_pairs,
    pair_sums,
    pairs_together,
    pairwise_moments,
)
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views

SIZES = (2, 3, 2)
KIND = GCCA(SIZES, 3)
VIEW = np.repeat(np.arange(3), SIZES)


def rows(n, share, seed=0, noise=0.5):
    """Rows and which views they have; what is missing is NaN."""
    x = shared_views(n, SIZES, seed, noise) * [1, 10, 1, 0.1, 1, 5, 1] + 3.0
    present = np.random.default_rng(seed + 50).random((n, 3)) >= share
    return np.where(present[:, VIEW], x, np.nan), present


def moments_at(x, present):
    return pairwise_moments(tf.constant(x), tf.constant(present), KIND)


@pytest.mark.parametrize("share, noise", [(0.1, 1.0), (0.5, 0.05)])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_equals_loops_over_the_rows(share, noise, in_blocks, monkeypatch):
    if in_blocks:
        monkeypatch.setattr(moments, "EXACT_ROWS", 10)
        for module in (moments, pairwise):
            monkeypatch.setattr(module, "BLOCK", 16)
    x, present = rows(40, share, noise=noise)
    mean, before, after = reference.pairwise_covariance(x, present, SIZES)
    found = moments_at(x, present)
    n = present.any(1).sum()
    assert found.count == n
    np.testing.assert_array_equal(found.rows, present.sum(0))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.gram / (n - 1), after, rtol=1e-9, atol=1e-9)
    shrunk = np.linalg.eigvalsh(before)[0] < -1e-6
    assert shrunk == (noise < 0.1)
    assert np.linalg.eigvalsh(found.gram)[0] > -1e-9 * np.linalg.eigvalsh(found.gram)[-1]


def test_no_bias_where_views_are_missing_at_random():
    """S_ij = x_i^T Q x_j has the expectation trace(Q) Sigma_ij for independent rows: it is 1."""
    kind, present = CCA((1, 1), 1), np.array([[1, 1], [1, 1], [1, 0], [0, 1], [1, 0]], bool)
    trace = np.zeros((2, 2))
    for unit in np.eye(5):
        x = tf.constant(np.stack([unit, unit], 1))
        sums = pair_sums(kind, x, tf.constant(present), tf.ones((5, 1), tf.float64))
        ratio = pairwise._unbiased(kind, sums.total, sums.count)
        trace += (gram_of_pairs(kind, sums) * ratio).numpy() / 4
    np.testing.assert_allclose(trace, 1.0, rtol=1e-12)


def test_complete_rows_have_the_moments_of_all_rows():
    x, _ = rows(12, 0.0)
    found = moments_at(x, np.ones((12, 3), bool))
    expected = moments.moments_of(tf.constant(x))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-14)
    np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-10, atol=1e-10)
    few = moments_at(x[:3], np.ones((3, 3), bool))  # two rows fewer than columns of a view
    expected = moments.moments_of(tf.constant(x[:3]))
    np.testing.assert_allclose(few.gram, expected.gram, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("units", [1.0, 1e3])
def test_shrinking_does_not_depend_on_coordinates(units):
    x, present = rows(20, 0.5, noise=0.05)
    maps = [np.random.default_rng(3).normal(size=(d, d)) * units for d in SIZES]
    turn = np.zeros((7, 7))
    for v, a in enumerate(maps):
        turn[np.ix_(VIEW == v, VIEW == v)] = a
    filled = np.nan_to_num(x)
    first, second = moments_at(filled, present), moments_at(filled @ turn, present)
    expected = turn.T @ first.gram.numpy() @ turn
    np.testing.assert_allclose(second.gram, expected, rtol=1e-7, atol=1e-9 * abs(expected).max())


@pytest.mark.parametrize("share, noise", [(0.2, 0.5), (0.5, 0.05), (0.0, 0.5)])
def test_gradient(share, noise):
    x, present = rows(24, share, noise=noise)
    rng = np.random.default_rng(7)
    of_gram, of_mean = rng.normal(size=(7, 7)), rng.normal(size=7)

    def value(x):
        found = moments_at(x, present)
        return tf.reduce_sum(found.gram * of_gram) + tf.reduce_sum(found.mean * of_mean)

    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        result = value(variable)
    slope = tape.gradient(result, variable).numpy()
    np.testing.assert_array_equal(slope[~present[:, VIEW]], 0.0)
    for _ in range(3):
        direction = rng.normal(size=x.shape)
        change = (value(x + 1e-5 * direction) - value(x - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose((slope * direction).sum(), change, rtol=2e-7)


def test_samples_together():
    x, present = rows(30, 0.4)
    weight = np.random.default_rng(1).integers(0, 3, size=(30, 1)).astype("float64")

    def sums(part):
        return pair_sums(KIND, *(tf.constant(a[part]) for a in (x, present, weight)))

    whole = sums(slice(None))
    parts = [sums(slice(a, b)) for a, b in ((0, 1), (1, 20), (20, 20), (20, 30))]
    found = PairSums(*(tf.zeros_like(a) for a in whole))
    for part in parts:
        found = pairs_together(KIND, found, part)
    for a, b in zip(found, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    repeated = np.repeat(np.arange(30), weight[:, 0].astype(int))
    expected = moments_at(x[repeated], present[repeated])
    from_sums = moments_of_pairs(KIND, found, gram_of_pairs(KIND, found), tf.float64)
    np.testing.assert_allclose(from_sums.gram, expected.gram, rtol=1e-9, atol=1e-9)


def test_views_that_never_meet_are_uncorrelated():
    """Unless what others say of them leaves no room for that."""
    x, present = rows(200, 0.0, noise=2.0)
    present[:100, 0] = present[100:, 2] = False
    found = moments_at(x, present).gram.numpy()
    np.testing.assert_allclose(found[:2, 5:], 0.0, atol=1e-10)
    assert np.abs(found[:2, 2:5]).max() > 1.0 and np.abs(found[2:5, 5:]).max() > 1.0


def test_a_view_of_one_row_or_none_tells_nothing():
    x, present = rows(20, 0.0)
    present[1:, 0] = present[:, 1] = False
    found = moments_at(x, present)
    assert not found.gram.numpy()[:5].any()
    np.testing.assert_array_equal(found.rows, [1, 0, 20])
    np.testing.assert_allclose(found.mean[:2], x[0, :2])
    np.testing.assert_array_equal(found.mean[2:5], 0.0)


def test_what_is_not_finite_is_said():
    x, present = rows(20, 0.4)
    first = np.argwhere(present[:, VIEW])[0]
    x[tuple(first)] = np.inf
    assert np.isnan(moments_at(x, present).gram).all()


def test_no_second_derivative():
    x, present = rows(12, 0.2)
    variable = tf.constant(np.nan_to_num(x))
    with tf.GradientTape() as outer:
        outer.watch(variable)
        with tf.GradientTape() as tape:
            tape.watch(variable)
            value = tf.reduce_sum(moments_at(variable, present).gram)
        slope = tape.gradient(value, variable)
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            outer.gradient(slope, variable)
