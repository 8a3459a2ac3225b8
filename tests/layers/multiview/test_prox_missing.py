"""Rows that lack a view and count for the views that they have: missing="pairwise"."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import block_diag

from proxnet_tf import GCCARegularizer, MultiviewClassifier, ProxGCCA
from tests.helpers import multiview_reference as reference
from tests.layers.multiview.cases import EPSILON, GCCA, PLAIN, TIGHT


def incomplete(kind, n=30, share=0.3, seed=21):
    """Views, joined rows and which views each row has; what is missing is NaN."""
    x = kind.joined(n, seed, "float64")
    present = np.random.default_rng(seed).random((n, len(kind.sizes))) >= share
    x[~entries(kind, present)] = np.nan
    return kind.parts(x), x, present


def entries(kind, present):
    return np.repeat(present, kind.sizes, axis=1)


def expected_of(kind, x, present, lam):
    return reference.incomplete_prox(x, present, kind.sizes, lam, kind.k, EPSILON, kind.name)


def pairwise(kind, **options):
    defaults = dict(lam=2.0, missing="pairwise", dtype="float64", solver=TIGHT)
    return kind.layer(**defaults | options)


@pytest.mark.parametrize("how", ["masks", "NaN", "NaN in one tensor"])
def test_each_row_is_moved_in_the_views_that_it_has(kind, how):
    views, x, present = incomplete(kind)
    expected = expected_of(kind, x, present, 2.0)
    options = dict(split=kind.sizes) if how == "NaN in one tensor" else {}
    layer = pairwise(kind, nan_is_missing=how != "masks", **options)
    inputs = x if how == "NaN in one tensor" else views
    moved = layer(inputs, training=True, mask=[*present.T] if how == "masks" else None)
    joined = np.asarray(moved) if how == "NaN in one tensor" else np.concatenate(moved, 1)
    there = entries(kind, present)
    assert np.abs(expected - x)[there & ~present.all(1)[:, None]].max() > 0.03
    np.testing.assert_allclose(joined[there], expected[there], atol=2e-5)
    assert np.isnan(joined[~there]).all()


@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_views_that_no_row_has_together(kind, ridge):
    """No correlation to act on; only the ridge of GCCA tells directions of a view apart."""
    x = kind.joined(30, 21, "float64")
    count = len(kind.sizes)
    present = np.arange(30)[:, None] % count == np.arange(count)
    layer = pairwise(kind, epsilon=ridge)
    moved = np.concatenate(layer(kind.parts(x), training=True, mask=[*present.T]), 1)
    if kind is not GCCA or not ridge:
        np.testing.assert_allclose(moved, x, atol=1e-12)
        return
    assert np.abs(moved - x).max() > 1e-2
    mean, _, s = reference.pairwise_covariance(x, present, kind.sizes)
    own = [
        np.linalg.lstsq(a[has] - a[has].mean(0), b[has] - a[has].mean(0), rcond=None)[0]
        for a, b, has in zip(kind.parts(x), kind.parts(moved), present.T, strict=True)
    ]
    linear = block_diag(*own)
    np.testing.assert_allclose(
        ((x - mean) @ linear + mean)[entries(kind, present)],
        moved[entries(kind, present)],
        atol=1e-9,
    )
    stationary = reference.map_at(
        linear.T @ s @ linear, 30, kind.sizes, 2.0, kind.k, ridge, kind.name
    )
    np.testing.assert_allclose(linear, stationary, atol=1e-6)


def test_sequences_and_a_mask_of_one_view(kind):
    _, _, present = incomplete(kind, 24)
    present[:, :-1] = True
    filled = np.where(entries(kind, present), kind.joined(24, 21, "float64"), 0.0)
    expected = expected_of(kind, filled, present, 2.0).reshape(6, 4, -1)
    steps = kind.parts(filled.reshape(6, 4, -1))
    mask = [None] * (len(steps) - 1) + [present[:, -1].reshape(6, 4)]
    moved = np.concatenate(pairwise(kind)(steps, training=True, mask=mask), 2)
    np.testing.assert_allclose(moved, expected, atol=2e-5)


def test_one_mask_for_all_views_is_that_of_drop(kind):
    x, valid = kind.sequences()
    mask = dict(training=True, mask=valid)
    moved = kind.layer(lam=2.0, missing="pairwise")(kind.parts(x), **mask)
    expected = kind.layer(lam=2.0)(kind.parts(x), **mask)
    for a, b in zip(moved, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_moving_map_fills_in_what_is_missing(kind):
    """After one batch without momentum it does to the batch what training did."""
    views, x, present = incomplete(kind)
    options = dict(nan_is_missing=True, inference="moving", momentum=0.0)
    layer = pairwise(kind, **options)
    trained = np.concatenate(layer(views, training=True), 1)
    applied = np.concatenate(layer(views, training=False), 1)
    np.testing.assert_allclose(applied, trained, atol=1e-12)
    assert [w.name for w in layer.non_trainable_weights][-3:] == [
        "moving_mean", "moving_map", "moving_regression",
    ]  # fmt: skip
    sizes, there = kind.sizes, entries(kind, present)
    monitored = pairwise(kind, **options, monitor=True)
    monitored.build([v.shape for v in views])
    for new, old in zip(monitored.non_trainable_weights[-3:], layer.weights[-3:], strict=True):
        new.assign(old)
    monitored(views, training=False)
    for name, rows in (("correlation_before", x), ("correlation", np.where(there, applied, x))):
        _, _, covariance = reference.pairwise_covariance(rows, present, sizes)
        value = reference.loss_of_covariance(covariance, sizes, kind.k, EPSILON, kind.name)
        value = -value if kind.name == "cca" else len(sizes) * kind.k - value
        np.testing.assert_allclose(monitored.status[name], value, rtol=1e-5)
    # A row by itself, of which the last view alone is there.
    alone = [np.full_like(v[:1], np.nan) for v in views]
    alone[-1] = np.ones_like(alone[-1])
    mean, linear, into = (w.numpy() for w in layer.non_trainable_weights[-3:])
    first = sum(sizes[:-1])
    centred = np.ones(sizes[-1]) - mean[first:]
    filled = np.concatenate([centred @ into[first:, :first], centred])
    moved = layer(alone, training=False)[-1]
    np.testing.assert_allclose(moved[0], (mean + filled @ linear)[first:], atol=1e-9)


def test_a_batch_without_one_of_the_views_moves_no_statistics(kind):
    views, _, _ = incomplete(kind)
    layer = pairwise(kind, nan_is_missing=True, inference="moving", momentum=0.5)
    layer(views, training=True)
    before = layer.get_weights()
    views[-1][:] = np.nan
    layer(views, training=True)
    for a, b in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_complete_views_after_incomplete_ones(kind):
    """Without masks the map is that of "drop", and the regression is learned all the same."""
    views = kind.views(30, 5, "float64")
    options = dict(inference="moving", momentum=0.0)
    layer, dropping = pairwise(kind, **options), pairwise(kind, missing="drop", **options)
    for a, b in zip(*(f(views, training=True) for f in (layer, dropping)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert np.abs(layer.moving_regression).max() > 0.1
    for a, b in zip(layer(views), dropping(views), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_classifier_learns_from_incomplete_rows_and_predicts_from_one_view():
    """Half of the rows lack one of three views; the classes are the signs of a shared number."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(400, 1))
    labels = (shared[:, 0] > 0).astype("int32")
    views = [
        (shared @ rng.normal(size=(1, d)) + 0.2 * rng.normal(size=(400, d))) for d in (4, 5, 3)
    ]
    train = [v[:200].astype("float32") for v in views]
    for row in range(0, 200, 2):
        train[row // 2 % 3][row] = np.nan
    keras.utils.set_random_seed(0)
    model = MultiviewClassifier(
        [keras.layers.Dense(2) for _ in views],
        [keras.layers.Dense(2) for _ in views],
        [
            GCCARegularizer(0.01, num_components=2, epsilon=EPSILON, missing="pairwise"),
            ProxGCCA(
                2,
                lam=2.0,
                epsilon=EPSILON,
                inference="moving",
                missing="pairwise",
                solver=PLAIN,
            ),
        ],
        nan_is_missing=True,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, jit_compile=False)
    model.fit(train, labels[:200], batch_size=50, epochs=8, verbose=0)
    for here in range(3):
        test = [v[200:].astype("float32") for v in views]
        for j, view in enumerate(test):
            if j != here:
                view[:] = np.nan
        found = np.argmax(model(test, training=False), axis=1)
        assert np.mean(found == labels[200:]) > 0.9


def test_export_fills_in_what_is_missing(tmp_path):
    kind = GCCA
    views, _, present = incomplete(kind)
    layer = pairwise(kind, inference="moving", momentum=0.0, dtype="float32")
    inputs = [keras.Input((d,)) for d in kind.sizes]
    masks = [keras.Input((), dtype="bool") for _ in kind.sizes]
    model = keras.Model([*inputs, *masks], layer(inputs, mask=masks))
    values = [np.nan_to_num(v).astype("float32") for v in views]
    layer(values, training=True, mask=[*present.T])
    expected = model([*values, *present.T], training=False)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    for a, b in zip(loaded.serve([*values, *present.T]), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
