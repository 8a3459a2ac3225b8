"""ProxCCA and ProxGCCA with a weight: the envelope of their own problem as a loss."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CCARegularizer, GCCARegularizer
from tests.helpers import multiview_reference as reference
from tests.layers.multiview.cases import CCA_FIRST, EPSILON, TIGHT

WEIGHT = 0.3


def envelope(kind, x, lam):
    """The least value of lam/(2n) ||P - X||^2 + L(P)."""
    p = kind.expected(x, lam)
    value, _ = reference.value_and_gradient(p, kind.sizes, kind.k, EPSILON, kind.name)
    return 0.5 * lam / len(x) * np.sum((p - x) ** 2) + value


def penalty(kind, **options):
    cls = {"cca": CCARegularizer, "gcca": GCCARegularizer}[kind.name]
    return cls(WEIGHT, num_components=kind.k, epsilon=EPSILON, solver=TIGHT, **options)


def outputs_loss_and_gradient(layers, x, cotangent, mask=None):
    """Of layers in a row: the output, their losses together, the gradient of both."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        moved = x
        for layer in layers:
            moved = layer(moved, training=True, mask=mask)
        loss = sum(sum(layer.losses) for layer in layers)
        value = tf.reduce_sum(moved * cotangent) + tf.cast(loss, x.dtype)
    return moved.numpy(), float(loss), tape.gradient(value, x).numpy()


@pytest.mark.parametrize("gradient", ["implicit", "finite_difference"])
def test_value_and_gradient(kind, gradient):
    x = kind.joined(24, 1, "float64")
    cotangent = np.random.default_rng(2).normal(size=x.shape)
    options = dict(split=kind.sizes, dtype="float64")
    layer = kind.layer(lam=2.0, weight=WEIGHT, solver=TIGHT, gradient=gradient, **options)
    moved, loss, found = outputs_loss_and_gradient([layer], x, cotangent)
    np.testing.assert_allclose(moved, kind.expected(x, 2.0), atol=2e-6)
    np.testing.assert_allclose(loss, WEIGHT * envelope(kind, x, 2.0), atol=1e-8)
    # As the penalty in front of the layer.
    parts = [penalty(kind, envelope=2.0, **options), kind.layer(lam=2.0, solver=TIGHT, **options)]
    other, same, expected = outputs_loss_and_gradient(parts, x, cotangent)
    np.testing.assert_allclose(moved, other, atol=1e-12)
    np.testing.assert_allclose(loss, same, rtol=1e-12)
    np.testing.assert_allclose(found, expected, atol=1e-9 if gradient == "implicit" else 3e-2)
    # The gradient of the loss alone is that of its value.
    _, _, alone = outputs_loss_and_gradient([layer], x, 0.0 * cotangent)
    direction, h = np.random.default_rng(3).normal(size=x.shape), 1e-4
    ends = [
        outputs_loss_and_gradient([layer], x + s * h * direction, cotangent)[1] for s in (1, -1)
    ]
    numeric = (ends[0] - ends[1]) / (2 * h)
    np.testing.assert_allclose(np.sum(alone * direction), numeric, atol=1e-7)
    np.testing.assert_allclose(alone, WEIGHT * 2.0 / 24 * (x - moved), atol=1e-9)


@CCA_FIRST
def test_rows_that_lack_a_view_and_steps_of_sequences(kind):
    x, valid = kind.sequences()
    x = x.astype("float64")
    cotangent = np.random.default_rng(2).normal(size=x.shape)
    options = dict(lam=2.0, weight=WEIGHT, split=kind.sizes, solver=TIGHT, dtype="float64")
    spoilt = np.where(valid[..., None], x, np.nan)
    _, loss, slope = outputs_loss_and_gradient([kind.layer(**options)], spoilt, cotangent, valid)
    rows = x[valid], cotangent[valid]
    _, expected, of_rows = outputs_loss_and_gradient([kind.layer(**options)], *rows)
    np.testing.assert_allclose(loss, expected, rtol=1e-10)
    np.testing.assert_allclose(slope[valid], of_rows, atol=1e-9)
    np.testing.assert_array_equal(slope[~valid], cotangent[~valid])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@CCA_FIRST
def test_dtype_of_the_loss(kind, policy):
    x = kind.joined(24)
    layer = kind.layer(lam=2.0, weight=WEIGHT, split=kind.sizes, dtype=policy)
    layer(x, training=True)
    (loss,) = layer.losses
    assert loss.dtype == "float32"
    np.testing.assert_allclose(loss, WEIGHT * envelope(kind, x, 2.0), atol=2e-3)


@CCA_FIRST
def test_only_training_adds_it(kind):
    layer, x = kind.layer(lam=2.0, weight=WEIGHT, inference="batch"), kind.views(24)
    layer(x)
    assert layer.losses == []
    layer(x, training=True)
    assert len(layer.losses) == 1
    plain = kind.layer(lam=2.0)
    plain(x, training=True)
    assert plain.losses == []


@pytest.mark.parametrize("rows", [0, 1])
@CCA_FIRST
def test_fewer_than_two_rows_have_no_correlation(kind, rows):
    layer = kind.layer(weight=1.0, split=kind.sizes)
    layer(kind.joined(4), training=True, mask=np.arange(4) < rows)
    nothing = {"cca": 0.0, "gcca": float(len(kind.sizes) * kind.k)}[kind.name]
    assert float(layer.losses[0]) == nothing
