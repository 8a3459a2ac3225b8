"""The map, the loss and the envelope of rows that lack views."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.envelope import moreau_envelope
from proxnet_tf.ops.multiview.incomplete import (
    pairwise_envelope,
    pairwise_gram,
    pairwise_loss,
    pairwise_prox,
)
from proxnet_tf.ops.multiview.prox import Settings, correlation_loss, multiview_prox
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views

TIGHT = Settings(tolerance=1e-12, jit=False)
KINDS = [CCA((3, 4), 2), GCCA((3, 4, 2), 4)]
EPSILON = 1e-2
NAMES = {CCA: "cca", GCCA: "gcca"}


def entries(kind, present):
    return np.repeat(present, kind.sizes, axis=1)


def rows(kind, n, share, seed=1, noise=0.5):
    x = shared_views(n, kind.sizes, seed, noise)
    present = np.random.default_rng(seed + 50).random((n, len(kind.sizes))) >= share
    return np.where(entries(kind, present), x, 9.0), present  # any number in the gaps


def prox(x, kind, present, lam=1.0, epsilon=EPSILON, **options):
    x, present = tf.convert_to_tensor(x), tf.constant(present)
    return pairwise_prox(x, lam, kind, epsilon, present, settings=TIGHT, **options)


def loss(x, kind, present, epsilon=EPSILON):
    return pairwise_loss(tf.convert_to_tensor(x), kind, epsilon, tf.constant(present))


def envelope(x, kind, present, epsilon=EPSILON):
    x, present = tf.convert_to_tensor(x), tf.constant(present)
    return pairwise_envelope(x, 1.0, kind, epsilon, present, settings=TIGHT).value


def slope_of(function, x, cotangent=None):
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = function(variable)
    weights = None if cotangent is None else tf.constant(cotangent, variable.dtype)
    return output.numpy(), tape.gradient(output, variable, weights).numpy()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("n, share, noise", [(60, 0.1, 1.0), (30, 0.5, 0.1)])
def test_equals_the_reference_row_by_row(kind, n, share, noise):
    """With the covariances as they are, and shrunk."""
    x, present = rows(kind, n, share, noise=noise)
    arguments = kind.sizes, 1.0, kind.num_components, EPSILON, NAMES[type(kind)]
    found = prox(x, kind, present)
    assert found.report.converged
    expected = reference.incomplete_prox(x, present, *arguments)
    assert np.abs(expected - x).max() > 0.1
    np.testing.assert_allclose(found.output, expected, atol=2e-5)
    gaps = ~entries(kind, present)
    np.testing.assert_array_equal(found.output.numpy()[gaps], x[gaps])
    _, before, s = reference.pairwise_covariance(x, present, kind.sizes)
    assert (np.linalg.eigvalsh(before)[0] < -1e-6) == (noise < 0.5)
    numbers = kind.sizes, kind.num_components, EPSILON, NAMES[type(kind)]
    value = reference.loss_of_covariance(s, *numbers)
    np.testing.assert_allclose(loss(x, kind, present), value, atol=1e-9)
    np.testing.assert_allclose(kind.constant - found.correlation_before, value, atol=1e-9)
    linear = found.map.numpy() + np.eye(kind.width)
    after = reference.loss_of_covariance(linear @ s @ linear, *numbers)
    np.testing.assert_allclose(kind.constant - found.correlation_after, after, atol=1e-8)
    n = present.any(1).sum()
    distance = 0.5 / n * (n - 1) * np.trace(found.map.numpy() @ s @ found.map.numpy())
    np.testing.assert_allclose(envelope(x, kind, present), after + distance, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("n", [2, 6, 30])
def test_complete_rows_give_what_they_give_without(kind, n):
    x, present = rows(kind, n, 0.0)
    cotangent = np.random.default_rng(3).normal(size=x.shape)
    pairs = [
        (
            slope_of(lambda v: prox(v, kind, present).output, x, cotangent),
            slope_of(
                lambda v: multiview_prox(v, 1.0, kind, EPSILON, settings=TIGHT).output, x, cotangent
            ),
        ),
        (
            slope_of(lambda v: loss(v, kind, present), x),
            slope_of(lambda v: correlation_loss(v, kind, EPSILON), x),
        ),
        (
            slope_of(lambda v: envelope(v, kind, present), x),
            slope_of(lambda v: moreau_envelope(v, 1.0, kind, EPSILON, settings=TIGHT).value, x),
        ),
    ]
    for found, expected in pairs:
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, CCA((3, 4), 3)], ids=str)
@pytest.mark.parametrize("n, share, noise", [(40, 0.3, 0.5), (30, 0.5, 0.1), (12, 0.5, 0.5)])
def test_gradient(kind, n, share, noise):
    """With and without shrinking (noise 0.1), with fewer rows than columns of all views."""
    x, present = rows(kind, n, share, noise=noise)
    rng = np.random.default_rng(3)
    cotangent, reports = rng.normal(size=x.shape), []
    functions = [
        (lambda v: prox(v, kind, present, observer=reports.append).output, cotangent),
        (lambda v: loss(v, kind, present), None),
        (lambda v: envelope(v, kind, present), None),
    ]
    for function, weights in functions:
        _, slope = slope_of(function, x, weights)
        direction = rng.normal(size=x.shape)
        change = function(x + 1e-5 * direction) - function(x - 1e-5 * direction)
        expected = np.sum(change * (1.0 if weights is None else weights)) / 2e-5
        np.testing.assert_allclose((slope * direction).sum(), expected, rtol=1e-6, atol=1e-6)
        passed = 0.0 if weights is None else weights[~entries(kind, present)]
        np.testing.assert_array_equal(slope[~entries(kind, present)], passed)
    assert len(reports) == 1 and reports[0].converged


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("epsilon", [1e-2, 0.0])
def test_gradient_where_a_view_has_a_deficient_rank(kind, epsilon):
    """Along changes that keep the rank: the row space of the first view turns."""
    rng = np.random.default_rng(3)
    _, present = rows(kind, 30, 0.3)
    shared = shared_views(30, kind.sizes, 3)[:, :1]
    ranks = [kind.sizes[0] - 1, *kind.sizes[1:]]
    factors = [
        (rng.normal(size=(30, r)) + shared, np.linalg.qr(rng.normal(size=(d, r)))[0])
        for r, d in zip(ranks, kind.sizes, strict=True)
    ]
    moves = [[rng.normal(size=a.shape) for a in pair] for pair in factors]

    def at(h):
        pairs = zip(factors, moves, strict=True)
        return np.concatenate([(a + h * da) @ (b + h * db).T for (a, b), (da, db) in pairs], 1)

    direction, cotangent = (at(1e-6) - at(-1e-6)) / 2e-6, rng.normal(size=at(0).shape)
    for function, weights in (
        (lambda v: prox(v, kind, present, 3.0, epsilon).output, cotangent),
        (lambda v: loss(v, kind, present, epsilon), None),
    ):
        _, slope = slope_of(function, at(0), weights)
        change = function(at(1e-5)) - function(at(-1e-5))
        expected = np.sum(change * (1.0 if weights is None else weights)) / 2e-5
        np.testing.assert_allclose((slope * direction).sum(), expected, rtol=1e-6)


def three(n=30):
    return KINDS[1], *rows(KINDS[1], n, 0.0)


def test_rows_none_of_which_is_complete():
    kind, x, present = three()
    present[np.arange(30), np.arange(30) % 3] = False
    found = prox(x, kind, present)
    expected = reference.incomplete_prox(x, present, (3, 4, 2), 1.0, 4, EPSILON, "gcca")
    np.testing.assert_allclose(found.output, expected, atol=2e-5)
    assert found.report.converged


def test_a_view_that_is_never_there():
    """The others are as they are alone."""
    kind, x, present = three()
    present[:, 1] = False
    rest = [0, 1, 2, 7, 8]
    expected = multiview_prox(
        tf.constant(x[:, rest]), 1.0, GCCA((3, 2), 4), EPSILON, settings=TIGHT
    )
    found = prox(x, kind, present)
    np.testing.assert_allclose(found.output.numpy()[:, rest], expected.output, atol=1e-8)
    np.testing.assert_array_equal(found.output[:, 3:7], x[:, 3:7])
    np.testing.assert_array_equal(found.rows, [30, 0, 30])


@pytest.mark.parametrize("which", ["never together", "one view never", "one row", "no row"])
def test_nothing_to_learn_leaves_all_as_it_is(which):
    kind = KINDS[0]
    x, present = rows(kind, 20, 0.0)
    if which == "never together":
        present[:10, 0] = present[10:, 1] = False
    elif which == "one view never":
        present[:, 1] = False
    else:
        present[which == "one row" :] = False
    cotangent = np.random.default_rng(3).normal(size=x.shape)
    moved, slope = slope_of(lambda v: prox(v, kind, present).output, x, cotangent)
    np.testing.assert_array_equal(moved, x)
    np.testing.assert_array_equal(slope, cotangent)
    value, slope = slope_of(lambda v: loss(v, kind, present), x)
    assert value == 0.0 and not slope.any()
    found = prox(x, kind, present)
    assert found.report.converged and found.correlation_before == 0.0


def test_a_value_that_is_not_finite_comes_out_as_nan():
    kind, x, present = three()
    present[:10, 0] = False
    x[12, 1] = np.nan
    there = entries(kind, present)
    cotangent = np.ones_like(x)
    moved, slope = slope_of(lambda v: prox(v, kind, present).output, x, cotangent)
    np.testing.assert_array_equal(np.isnan(moved), there)
    np.testing.assert_array_equal(np.isnan(slope), there)
    assert not prox(x, kind, present).report.converged
    assert np.isnan(loss(x, kind, present)) and np.isnan(envelope(x, kind, present))
    assert np.isnan(pairwise_gram(tf.constant(x), tf.constant(present), kind).gram).all()


@pytest.mark.parametrize("lam, epsilon", [(0.0, 0.1), (np.nan, 0.1), (1.0, -1.0)])
def test_numbers_out_of_range_come_out_as_nan(lam, epsilon):
    kind, x, present = three()
    found = prox(x, kind, present, lam, epsilon)
    assert np.isnan(found.output).all() and not found.report.converged


def test_no_second_derivative():
    kind, x, present = three(12)
    for function in (lambda v: prox(v, kind, present).output, lambda v: loss(v, kind, present)):
        variable = tf.constant(x)
        with tf.GradientTape() as outer:
            outer.watch(variable)
            with tf.GradientTape() as tape:
                tape.watch(variable)
                output = function(variable)
            slope = tape.gradient(output, variable)
            with pytest.raises(NotImplementedError, match="first derivatives only"):
                outer.gradient(slope, variable)


def test_float32_in_blocks_equals_float64():
    kind = KINDS[1]
    x, present = rows(kind, 5000, 0.4)
    x, cotangent = x.astype("float32"), np.random.default_rng(3).normal(size=x.shape)
    single = slope_of(lambda v: prox(v, kind, present).output, x, cotangent)
    double = slope_of(lambda v: prox(v, kind, present).output, x.astype("float64"), cotangent)
    for a, b in zip(single, double, strict=True):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("scale", [1e28, 1e18])
def test_rows_near_the_end_of_float32(scale):
    kind, x, present = three()
    present[::2, 0] = False
    x = (x * scale).astype("float32")
    cotangent = np.random.default_rng(3).normal(size=x.shape).astype("float32")
    moved, slope = slope_of(lambda v: prox(v, kind, present).output, x, cotangent)
    np.testing.assert_allclose(moved, x, rtol=1e-6)  # the distance alone decides
    np.testing.assert_allclose(slope, cotangent, rtol=1e-5)
    value, slope = slope_of(lambda v: loss(v, kind, present, 0.0), x)
    expected, small = slope_of(lambda v: loss(v, kind, present, 0.0), x.astype("float64") / scale)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(slope.astype("float64") * scale, small, atol=1e-5)
