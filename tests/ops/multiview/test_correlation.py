import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.gram import EXACT_RANK, Sample, column_rounding, gram_of
from proxnet_tf.ops.multiview.of_gram import correlations_of_gram, loss_of_gram
from proxnet_tf.ops.multiview.spectrum import divided_differences
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views


def covariance(sizes, n=40, seed=0):
    return tf.constant(np.cov(shared_views(n, sizes, seed).T))


def test_types_are_values():
    assert CCA((3, 4), 2) == CCA((3, 4), 2) and hash(CCA((3, 4), 2)) == hash(CCA((3, 4), 2))
    assert CCA((3, 4), 2) != CCA((3, 4), 3)
    assert CCA((3, 4), 2) != GCCA((3, 4), 2)
    assert CCA((3, 4), 2).width == 7 and CCA((3, 4), 2).constant == 0.0
    assert GCCA((3, 4, 2), 5).constant == 15.0
    assert GCCA((3, 4, 2), 5).slices == (slice(0, 3), slice(3, 7), slice(7, 9))


@pytest.mark.parametrize("kind", [CCA((4, 4), 3), CCA((3, 5), 2), CCA((5, 3), 3), GCCA((4, 3), 5)])
def test_spectrum_solves_the_eigenproblem(kind):
    s = covariance(kind.sizes)
    spectrum = kind.decompose(s, tf.constant(0.1, s.dtype))
    u = spectrum.basis @ spectrum.rotation
    mask = kind.block_mask
    within = mask * s + 0.1 * np.eye(kind.width)
    between = s if isinstance(kind, GCCA) else (1.0 - mask) * s
    np.testing.assert_allclose(tf.transpose(u) @ within @ u, np.eye(kind.width), atol=1e-12)
    diagonal = np.diag(spectrum.values)
    np.testing.assert_allclose(tf.transpose(u) @ between @ u, diagonal, atol=1e-12)
    np.testing.assert_allclose(spectrum.basis @ spectrum.inverse, np.eye(kind.width), atol=1e-12)
    np.testing.assert_array_equal(spectrum.basis * (1.0 - mask), 0.0)
    assert (np.diff(spectrum.values) <= 1e-15).all()


@pytest.mark.parametrize("kind", [CCA((4, 4), 4), CCA((3, 5), 2), CCA((5, 3), 3), GCCA((4, 3), 5)])
def test_slope_and_its_differential_are_those_of_the_value(kind):
    rng = np.random.default_rng(1)
    s, epsilon = covariance(kind.sizes), tf.constant(0.1, tf.float64)
    change, other = (a + a.T for a in rng.normal(size=(2, kind.width, kind.width)))
    spectrum = kind.decompose(s, epsilon)

    def gradient(s):
        at = kind.decompose(s, epsilon)
        return at.basis @ kind.slope(at) @ tf.transpose(at.basis)

    def value(s):
        return float(kind.value(kind.decompose(s, epsilon)))

    h = 1e-6
    numeric = (value(s + h * change) - value(s - h * change)) / (2 * h)
    np.testing.assert_allclose(np.sum(gradient(s) * change), numeric, rtol=1e-8)
    numeric = np.sum((gradient(s + h * change) - gradient(s - h * change)) * other) / (2 * h)
    differences = divided_differences(spectrum)
    basis = spectrum.basis
    if isinstance(kind, CCA):
        basis = basis @ spectrum.rotation
        slope = kind.paired_differential(differences, tf.transpose(basis) @ change @ basis)
    else:
        inner = tf.transpose(basis) @ change @ basis
        slope = kind.differential(spectrum.rotation, differences, inner)
    exact = np.sum((basis @ slope @ tf.transpose(basis)) * other)
    np.testing.assert_allclose(exact, numeric, rtol=1e-6)


@pytest.mark.parametrize("kind", [CCA((2, 2), 2), GCCA((2, 2), 2)])
def test_covariance_that_cannot_be_decomposed_gives_nan(kind):
    for bad in (np.full((4, 4), np.nan), -np.eye(4)):
        spectrum = kind.decompose(tf.constant(bad), tf.constant(0.0, tf.float64))
        assert np.isnan(spectrum.values).all() and np.isnan(kind.value(spectrum))


# --- units -----------------------------------------------------------------------------------


def other_units(n, ratio, dtype="float64"):
    """A second column of view 1 that view 2 repeats, beside a first one of larger units."""
    rng = np.random.default_rng(0)
    s = rng.uniform(size=n)
    return np.c_[ratio * rng.normal(size=n), s, s, rng.normal(size=n)].astype(dtype)


@pytest.mark.parametrize("epsilon", [0.0, 1e-9])
@pytest.mark.parametrize("n, dtype", [(1000, "float64"), (5000, "float32")])
@pytest.mark.parametrize("ratio", [1e-8, 1.0, 2e3, 1e8])
def test_columns_of_other_units_are_not_lost(ratio, n, dtype, epsilon):
    x = tf.constant(other_units(n, ratio, dtype))
    if ratio < 1.0:
        epsilon = 0.0  # the ridge has the units of the covariance
    found = correlations_of_gram(CCA((2, 2), 2), gram_of(x), epsilon)
    expected = reference.linear_correlations(*np.split(other_units(n, 1.0), [2], axis=1))
    np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == "float32" else 1e-6)
    loss = loss_of_gram(CCA((2, 2), 1), gram_of(x), epsilon)
    np.testing.assert_allclose(loss, -1.0, atol=1e-5)


def test_a_constant_column_is_no_signal_however_it_was_summed():
    rng = np.random.default_rng(1)
    x = np.c_[rng.normal(size=(300, 2)), np.full(300, 0.7), rng.normal(size=300) + 1e6]
    x[:, 1] = x[:, 0] + 1e-13 * rng.normal(size=300)  # rounding beside the first column
    gram, count = np.zeros((4, 4)), np.float64(300.0)
    for part in np.split(x - x.mean(0) * (1.0 + 2e-16), 3):
        gram += part.T @ part
    share = column_rounding(*map(tf.constant, (count, x.mean(0), gram)), tf.float64)
    assert share[2] == 1.0 and (share.numpy()[[0, 1, 3]] < 1e-10).all()
    share = tf.maximum(share, EXACT_RANK)
    sample = Sample(tf.constant(count), tf.constant(x.mean(0)), tf.constant(gram), share)
    found = correlations_of_gram(CCA((2, 2), 2), sample, 0.0)
    expected = abs(np.corrcoef(x[:, 0], x[:, 3])[0, 1])
    np.testing.assert_allclose(found, [expected, 0.0], atol=1e-6)


# --- replicas ----------------------------------------------------------------------------------
