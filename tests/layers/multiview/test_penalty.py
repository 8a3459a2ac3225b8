"""CCARegularizer and GCCARegularizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CCARegularizer, GCCARegularizer
from proxnet_tf.solvers import Newton
from tests.helpers import multiview_reference as reference
from tests.layers.multiview.cases import CCA_FIRST, EPSILON


def penalty(kind, weight=0.3, **options):
    cls = {"cca": CCARegularizer, "gcca": GCCARegularizer}[kind.name]
    return cls(weight, **dict(num_components=kind.k, epsilon=EPSILON) | options)


def loss(kind, x, k=None, epsilon=EPSILON):
    k = k or kind.k
    return reference.value_and_gradient(np.float64(x), kind.sizes, k, epsilon, kind.name)[0]


def test_value_and_gradient(kind):
    x = kind.joined(24, 1, "float64")
    layer, variable = penalty(kind, split=kind.sizes, dtype="float64"), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = layer(variable)
        (value,) = layer.losses
    np.testing.assert_array_equal(output, x)
    np.testing.assert_allclose(value, 0.3 * loss(kind, x), atol=1e-9)
    slope = tape.gradient(value, variable).numpy()
    direction = np.random.default_rng(2).normal(size=x.shape)
    h = 1e-5
    change = (loss(kind, x + h * direction) - loss(kind, x - h * direction)) / (2 * h)
    np.testing.assert_allclose((slope * direction).sum(), 0.3 * change, atol=1e-7)


@CCA_FIRST
def test_an_envelope_that_was_not_solved_says_so(kind):
    solver = Newton(tolerance=1e-12, max_iterations=1, jit_compile=False)
    layer = penalty(kind, envelope=0.1, solver=solver, split=kind.sizes)
    with pytest.warns(UserWarning, match="unsolved"):
        layer(kind.joined(24))


@pytest.mark.parametrize("how", ["mask", "NaN", "Keras"])
def test_rows_with_a_missing_view_take_no_part(kind, how):
    x, valid = kind.sequences()
    views = kind.parts(x)
    views[-1][~valid] = np.nan if how == "NaN" else 0.0
    layer = penalty(kind, dtype="float64", nan_is_missing=how == "NaN")
    if how == "Keras":
        views[-1] = keras.layers.Masking()(views[-1])
    masks = [*[None] * (len(views) - 1), valid] if how == "mask" else None
    outputs = layer(views, mask=masks)
    for out, view in zip(outputs, views, strict=True):
        np.testing.assert_array_equal(out, view)
    np.testing.assert_allclose(layer.losses[0], 0.3 * loss(kind, x[valid]), atol=1e-7)


def test_a_row_that_is_not_finite_gives_nan(kind):
    views = kind.views(24)
    views[0][3, 0] = np.inf
    layer = penalty(kind)
    layer(views)
    assert np.isnan(layer.losses[0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(weight=-0.5), "`weight` must be a finite number >= 0.*-0.5"),
        (dict(envelope=0.0), "`envelope` must be a finite number > 0"),
        (dict(solver="cg"), "`solver` must be"),
        (dict(epsilon=-0.5), "`epsilon` must be a finite number >= 0.*-0.5"),
        (dict(num_components=0), "`num_components` must be an integer >= 1"),
        (dict(nan_is_missing=None), "`nan_is_missing` must be True or False"),
    ],
)
@CCA_FIRST
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        penalty(kind, **arguments)
    assert penalty(kind).supports_jit is False
