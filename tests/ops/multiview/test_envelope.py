"""The Moreau envelope of the correlation, against the problem over all n x D entries in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.envelope import moreau_envelope
from proxnet_tf.ops.multiview.newton import Settings
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views

KINDS = {"cca": CCA((3, 2), 2), "gcca": GCCA((3, 2), 2)}
EPSILON, PLAIN = 1e-2, Settings(tolerance=1e-12, jit=False)
pytestmark = pytest.mark.parametrize("name", KINDS)


def least_value(name, x, lam):
    """The minimiser and the value of lam/(2n) ||P - X||^2 + L(P)."""
    kind = KINDS[name]
    return reference.prox(x, kind.sizes, lam, kind.num_components, EPSILON, name)


def envelope_and_slope(name, x, lam, y=1.0, **options):
    x = tf.constant(x)
    options = {"settings": PLAIN} | options
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = moreau_envelope(x, lam, KINDS[name], EPSILON, **options)
    return found, tape.gradient(found.value, x, tf.constant(y, x.dtype)).numpy()


@pytest.mark.parametrize("lam", [0.7, 6.0])
def test_value_and_gradient(name, lam):
    x = shared_views(15, (3, 2), 1)
    found, slope = envelope_and_slope(name, x, lam, y=2.0)
    p, value = least_value(name, x, lam)
    np.testing.assert_allclose(found.value, value, atol=1e-9)
    np.testing.assert_allclose(slope, 2 * lam / 15 * (x - p), atol=1e-6)
    # The value of the minimum has this slope although the minimiser moves.
    direction, h = np.random.default_rng(2).normal(size=x.shape), 1e-4
    ends = [least_value(name, x + s * h * direction, lam)[1] for s in (1, -1)]
    np.testing.assert_allclose((slope * direction).sum(), (ends[0] - ends[1]) / h, atol=1e-6)
    assert found.report.converged and 0.0 <= found.report.residual <= 1e-12
    assert found.report.iterations > 1


def test_it_nears_the_correlation_from_below(name):
    x, kind = shared_views(15, (3, 2), 1), KINDS[name]
    above = reference.value_and_gradient(x, kind.sizes, kind.num_components, EPSILON, name)[0]
    values = [float(envelope_and_slope(name, x, lam)[0].value) for lam in (1.0, 10.0, 1e6)]
    assert values[0] < values[1] < values[2] < above
    np.testing.assert_allclose(values[2], above, atol=1e-5)


def test_rows_that_are_not_valid_take_no_part(name):
    x = shared_views(15, (3, 2), 1)
    valid = np.random.default_rng(3).random((15, 1)) < 0.7
    expected, slope = envelope_and_slope(name, x[valid[:, 0]], 1.5)
    spoilt = np.where(valid, x, np.nan)
    found, gradient = envelope_and_slope(name, spoilt, 1.5, valid=tf.constant(valid))
    np.testing.assert_allclose(found.value, expected.value, atol=1e-12)
    np.testing.assert_allclose(gradient[valid[:, 0]], slope, atol=1e-12)
    np.testing.assert_array_equal(gradient[~valid[:, 0]], 0.0)


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_have_no_correlation(name, rows):
    x = shared_views(4, (3, 2), 1)
    valid = tf.constant(np.arange(4)[:, None] < rows)
    found, slope = envelope_and_slope(name, x, 1.5, valid=valid)
    assert float(found.value) == {"cca": 0.0, "gcca": 4.0}[name]  # J k
    np.testing.assert_array_equal(slope, 0.0)


def test_what_is_not_finite_gives_nan(name):
    x = shared_views(15, (3, 2), 1)
    x[2, 3] = np.inf
    found, slope = envelope_and_slope(name, x, 1.5)
    assert np.isnan(found.value) and np.isnan(slope).all() and not found.report.converged


def test_an_unsolved_map_is_reported(name):
    x = shared_views(15, (3, 2), 1)
    short = Settings(tolerance=1e-12, max_iterations=2, jit=False)
    found, _ = envelope_and_slope(name, x, 0.1, settings=short)
    assert found.report.iterations == 2
    assert not found.report.converged and found.report.residual > 1e-6


def test_dtype_is_that_of_the_rows(name):
    x = shared_views(15, (3, 2), 1)
    exact, slope = envelope_and_slope(name, x, 1.5)
    found, single = envelope_and_slope(name, x.astype("float32"), 1.5, settings=Settings(jit=False))
    assert found.value.dtype == tf.float32 and single.dtype == np.float32
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-6)
    np.testing.assert_allclose(single, slope, atol=1e-6)


def test_second_derivative_is_refused(name):
    x = tf.constant(shared_views(15, (3, 2), 1))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = moreau_envelope(x, 1.5, KINDS[name], EPSILON, settings=PLAIN).value
        slope = inner.gradient(value, x)
    with pytest.raises(NotImplementedError, match="envelope provides first derivatives only"):
        outer.gradient(slope, x)
