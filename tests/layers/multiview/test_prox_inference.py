"""What ProxCCA and ProxGCCA do when they do not train."""

import keras
import numpy as np
import pytest

from tests.layers.multiview.cases import CCA_FIRST


@CCA_FIRST
def test_identity_returns_the_views(kind):
    for value, view in zip(kind.layer()(kind.views(9)), kind.views(9), strict=True):
        np.testing.assert_array_equal(value, view)


def moving_reference(kind, batches, momentum, lam):
    """Moving mean and map by the definition; the map of a batch from its outputs."""
    width = sum(kind.sizes)
    mean, matrix = np.zeros(width), np.eye(width)
    for t, x in enumerate(batches, 1):
        x = x.astype("float64")
        centre = x.mean(0)
        of_batch = np.linalg.lstsq(x - centre, kind.expected(x, lam) - centre, rcond=None)[0]
        rate = max(1 / t, 1 - momentum)
        mean = mean + rate * (centre - mean)
        matrix = matrix + rate * (of_batch - matrix)
    return mean, matrix


@pytest.mark.parametrize("momentum", [0.5, 0.99])
def test_moving_mean_and_map_begin_as_means_and_follow_the_momentum(kind, momentum):
    batches = [kind.joined(24, seed) + np.float32(seed) for seed in range(3)]
    layer = kind.layer(inference="moving", momentum=momentum, lam=2.0, split=kind.sizes)
    for t, x in enumerate(batches, 1):
        layer(x, training=True)
        mean, matrix = moving_reference(kind, batches[:t], momentum, 2.0)
        np.testing.assert_allclose(layer.moving_mean, mean, atol=1e-5)
        np.testing.assert_allclose(layer.moving_map, matrix, atol=1e-4)
        assert float(layer.moving_count) == t
    # Example by example: a batch of one gets what it gets in any batch.
    test = kind.joined(7, 9)
    expected = mean + (test - mean) @ matrix
    np.testing.assert_allclose(layer(test), expected, atol=1e-4)
    np.testing.assert_allclose(layer(test[:1]), expected[:1], atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, mean, atol=1e-5)  # left alone by inference


@pytest.mark.parametrize("rows", [0, 1, "NaN"])
@pytest.mark.filterwarnings("ignore:.*unsolved")
@CCA_FIRST
def test_a_batch_without_a_correlation_moves_nothing(kind, rows):
    layer = kind.layer(inference="moving", momentum=0.5, lam=2.0, split=kind.sizes)
    layer(kind.joined(24), training=True)
    before = [w.numpy() for w in layer.weights]
    x = kind.joined(4, 1)
    if rows == "NaN":
        x[3, 1] = np.nan
    layer(x, training=True, mask=None if rows == "NaN" else np.arange(4) < rows)
    for old, new in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(new, old)


@CCA_FIRST
def test_moving_inference_leaves_masked_steps_alone(kind):
    x, valid = kind.sequences()
    layer = kind.layer(inference="moving", momentum=0.0, lam=2.0, split=kind.sizes)
    layer(x, training=True, mask=valid)
    expected = kind.expected_of_steps(x, valid, 2.0)  # the statistics are those of valid rows
    np.testing.assert_allclose(layer(x, mask=valid), expected, atol=5e-5)


@CCA_FIRST
def test_a_frozen_layer_keeps_its_moving_map_and_applies_it_in_training(kind):
    layer = kind.layer(inference="moving", momentum=0.5, lam=2.0)
    inputs, moved = kind.encoded(layer)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(moved)))
    model.compile("sgd", "mse")
    views, target = kind.views(24), np.zeros((24, 1), "float32")
    model.fit(views, target, verbose=0)
    layer.trainable = False
    model.compile("sgd", "mse")
    before = [w.numpy() for w in layer.weights]
    assert np.abs(before[2] - np.eye(sum(kind.sizes))).max() > 1e-2
    model.fit(views, target, verbose=0)
    for old, new in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(new, old)
    for a, b in zip(layer(views, training=True), layer(views), strict=True):
        np.testing.assert_array_equal(a, b)
    layer.trainable = True
    layer(views, training=True)
    assert np.abs(layer.moving_map - before[2]).max() > 1e-3


@pytest.mark.parametrize("inference", ["identity", "batch"])
@CCA_FIRST
def test_without_moving_statistics_a_frozen_layer_solves_in_training(kind, inference):
    layer = kind.layer(inference=inference, lam=2.0, split=kind.sizes, trainable=False)
    x = kind.joined(24)
    np.testing.assert_allclose(layer(x, training=True), kind.expected(x, 2.0), atol=2e-5)
    assert layer.trainable_weights == []
