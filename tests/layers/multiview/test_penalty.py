"""CCARegularizer and GCCARegularizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CCARegularizer, GCCARegularizer, ProxCCA, ProxGCCA
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


def envelope(kind, x, lam, p):
    """lam/(2n) ||P - X||^2 + L(P)."""
    return 0.5 * lam / len(x) * np.sum((p - x) ** 2) + loss(kind, p)


@pytest.mark.parametrize("lam", [0.5, 5.0])
@CCA_FIRST
def test_the_envelope_is_the_least_value_of_the_proximal_problem(kind, lam):
    x = kind.joined(24, 1, "float64")
    cls = {"cca": ProxCCA, "gcca": ProxGCCA}[kind.name]
    options = dict(num_components=kind.k, epsilon=EPSILON, split=kind.sizes, dtype="float64")
    p = cls(lam=lam, **options)(x, training=True).numpy()
    layer, variable = penalty(kind, envelope=lam, split=kind.sizes, dtype="float64"), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        np.testing.assert_array_equal(layer(variable), x)
        (value,) = layer.losses
    np.testing.assert_allclose(value, 0.3 * envelope(kind, x, lam, p), atol=1e-9)
    assert value < 0.3 * loss(kind, x)
    slope = tape.gradient(value, variable).numpy()
    np.testing.assert_allclose(slope, 0.3 * lam / 24 * (x - p), atol=1e-9)


def test_rows_with_a_missing_view_take_no_part_in_the_envelope(kind):
    x, valid = kind.sequences()
    views = kind.parts(x)
    views[-1][~valid] = np.nan
    options = dict(envelope=2.0, dtype="float64")
    layer, alone = penalty(kind, nan_is_missing=True, **options), penalty(kind, **options)
    views = [tf.constant(view) for view in views]
    with tf.GradientTape() as tape:
        tape.watch(views)
        layer(views)
        (value,) = layer.losses
    alone([view[valid] for view in kind.parts(x)])
    np.testing.assert_allclose(value, alone.losses[0], atol=1e-9)
    for slope in tape.gradient(value, views):
        assert np.all(slope.numpy()[~valid] == 0.0) and np.all(np.isfinite(slope))


@CCA_FIRST
def test_an_envelope_that_was_not_solved_says_so(kind):
    solver = Newton(tolerance=1e-12, max_iterations=1)
    layer = penalty(kind, envelope=0.1, solver=solver, split=kind.sizes)
    with pytest.warns(UserWarning, match="unsolved"):
        layer(kind.joined(24))


@CCA_FIRST
def test_its_loss_is_added_to_the_model(kind):
    target = np.random.default_rng(4).normal(size=(24, 1)).astype("float32")
    inputs, moved = kind.encoded(penalty(kind))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(moved)))
    model.compile("sgd", "mse")
    views = kind.views(24)
    dense = [item for item in model.layers if isinstance(item, keras.layers.Dense)][: len(views)]
    codes = np.concatenate([layer(v) for layer, v in zip(dense, views, strict=True)], 1)
    value = model.evaluate(views, target, batch_size=24, verbose=0)
    risk = np.mean((model(views) - target) ** 2)
    np.testing.assert_allclose(value, risk + 0.3 * loss(kind, codes), rtol=1e-4)
    # One step of `fit` follows the gradient of both terms.
    before = dense[0].kernel.numpy()
    with tf.GradientTape() as tape:
        output = model(views)
        total = tf.reduce_mean((output - target) ** 2) + sum(model.losses)
    slope = tape.gradient(total, dense[0].kernel)
    model.fit(views, target, batch_size=24, verbose=0)
    np.testing.assert_allclose(dense[0].kernel, before - 0.01 * slope, atol=1e-6)


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
