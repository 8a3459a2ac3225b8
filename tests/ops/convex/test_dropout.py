"""`prox_dropout` against a dense search in NumPy and central differences."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from proxnet_tf.ops.convex.dropout import prox_dropout

RNG = np.random.default_rng(4)


def objective(c, x, lam):
    p = 1 / (1 + np.exp(-(c * x).sum(axis=-1)))
    penalty = p * (1 - p) * (x**2 * c**2).sum(axis=-1) / 2
    return penalty + lam / 2 * ((c - x) ** 2).sum(axis=-1)


def best_of_many_starts(x, lam):
    """Local searches in c itself, from multiples of x and random points."""
    starts = [t * x for t in np.linspace(0, 2.5, 11)] + list(2 * RNG.standard_normal((5, len(x))))
    found = [minimize(objective, s, (x, lam), method="BFGS", tol=1e-10).x for s in starts]
    return min(found, key=lambda c: objective(c, x, lam))


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 5),
    lam=st.floats(-2, 1).map(lambda e: 10**e),
    scale=st.sampled_from([0.5, 1.5, 4.0]),
)
def test_global_minimum(seed, size, lam, scale):
    x = scale * np.random.default_rng(seed).standard_normal((2, size))
    c = prox_dropout(x, lam).point.numpy()
    expected = np.stack([best_of_many_starts(row, lam) for row in x])
    best, reference = objective(c, x, lam), objective(expected, x, lam)
    assert (best <= reference + 1e-9 * (1 + reference)).all()
    # stationary in all of c, not only along the search
    h = 1e-5
    for e in h * np.eye(size):
        slope = (objective(c + e, x, lam) - objective(c - e, x, lam)) / (2 * h)
        np.testing.assert_allclose(slope, 0, atol=1e-6 * scale**2)


def test_float32_finds_the_minimum_of_a_flat_profile():
    x = np.random.default_rng(0).standard_normal((200, 12))
    single = prox_dropout(x.astype("float32"), 0.5).point
    np.testing.assert_allclose(single, prox_dropout(x, 0.5).point, atol=2e-6)


def test_several_local_minima_and_a_minimiser_beyond_the_squared_norm():
    rng = np.random.default_rng(5)
    x = 2 * rng.standard_normal((300, 3))
    c = prox_dropout(x, 0.05).point.numpy()
    s, squared = (x * c).sum(axis=1), (x**2).sum(axis=1)
    assert (s > squared + 1e-3).any()
    inside = c * np.minimum(1, squared / s)[:, np.newaxis]
    assert (objective(c, x, 0.05) <= objective(inside, x, 0.05) + 1e-12).all()
    # local minima of the profile: s^2/(2 S) - lam s
    grid = np.linspace(1e-3, 1.5, 2000)[np.newaxis] * squared[:, np.newaxis]
    a = 1 / (2 + np.exp(grid) + np.exp(-grid))
    total = (x[:, np.newaxis] ** 2 / (0.05 + a[..., np.newaxis] * x[:, np.newaxis] ** 2)).sum(-1)
    profile = grid**2 / (2 * total) - 0.05 * grid
    turns = (profile[:, 1:-1] < profile[:, :-2]) & (profile[:, 1:-1] < profile[:, 2:])
    assert (turns.sum(axis=1) > 1).any()


def test_gradients_equal_central_differences():
    rng = np.random.default_rng(6)
    x, weights = 1.5 * rng.standard_normal((8, 3)), rng.standard_normal((8, 3))
    lam = 0.3

    def loss(x, lam):
        return tf.reduce_sum(prox_dropout(x, lam).point * weights, axis=-1)

    point, weight = tf.constant(x), tf.constant(lam, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch((point, weight))
        value = loss(point, weight)
    dx, dlam = tape.gradient(value, (point, weight))
    h = 1e-6
    numeric = [(loss(x + e, lam) - loss(x - e, lam)) / (2 * h) for e in h * np.eye(3)]
    np.testing.assert_allclose(dx, np.stack(numeric, axis=1), atol=1e-6)
    moved = loss(x, lam + h) - loss(x, lam - h)
    np.testing.assert_allclose(dlam, tf.reduce_sum(moved) / (2 * h), atol=1e-5)


def test_report_of_every_vector():
    """Solved to the tolerance of the dtype; 0 has nothing to solve, NaN is not solved."""
    x = 2 * RNG.standard_normal((40, 3))
    x[0] = 0
    for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-5)):
        report = prox_dropout(x.astype(dtype), 0.3).report
        assert report.residual.shape == (40,)
        assert report.residual.numpy().max() <= tolerance
        assert report.residual.numpy()[0] == 0
        assert report.converged.numpy().all()
        assert 1 <= int(report.iterations) <= 100
    x[1, 1] = np.nan
    converged = prox_dropout(x, 0.3).report.converged.numpy()
    assert not converged[1] and converged[2:].all()


def test_report_of_the_gradient():
    seen = []
    x = tf.constant(RNG.standard_normal((5, 3)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = prox_dropout(x, 0.3, observer=lambda report: seen.append(report) or [])
        loss = tf.reduce_sum(found.point)
    tape.gradient(loss, x)
    (report,) = seen
    np.testing.assert_array_equal(report.converged, np.ones(5, bool))
    np.testing.assert_array_equal(report.residual, np.zeros(5))


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_zero_tiny_and_huge_vectors_are_kept(value):
    x = np.array([[value, -value, value]], "float32")
    point = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(point)
        c = prox_dropout(point, 1.0).point
    np.testing.assert_allclose(c, x, rtol=1e-6)
    np.testing.assert_array_equal(tape.gradient(c, point), np.ones_like(x))


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_vectors_without_entries(shape):
    x = tf.zeros(shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        c = prox_dropout(x, 1.0).point
    assert c.shape == shape and tape.gradient(c, x).shape == shape


def test_what_is_not_finite_stays_in_its_own_row():
    x = RNG.standard_normal((3, 4))
    expected = prox_dropout(x[1:], 0.5).point
    for bad in (np.nan, np.inf):
        x[0, 0] = bad
        c = prox_dropout(x, 0.5).point.numpy()
        np.testing.assert_allclose(c[1:], expected, atol=1e-12)
        np.testing.assert_array_equal(c[0], [np.nan] * 4 if np.isnan(bad) else x[0])
