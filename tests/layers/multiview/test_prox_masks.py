"""Rows that take no part: masks and NaN."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.layers.multiview.cases import CCA, CCA_FIRST, TIGHT


@pytest.mark.parametrize(
    "which", ["all", "first", "last", "differing", "single mask", "one tensor"]
)
def test_mask_equals_slicing(kind, which):
    x, valid = kind.sequences()
    other = np.random.default_rng(9).random((6, 4)) < 0.8
    nothing = [None] * (len(kind.sizes) - 1)
    mask = {
        "all": [valid] * len(kind.sizes),
        "first": [valid, *nothing],
        "last": [*nothing, valid],
        "differing": [valid, *nothing[:-1], other],
        "single mask": valid,
        "one tensor": valid,
    }[which]
    used = valid & other if which == "differing" else valid
    poison = x.copy()
    poison[~used, 0] = np.nan  # must take no part
    expected = kind.expected_of_steps(x, used, 2.0)
    layer = kind.layer(lam=2.0, split=kind.sizes)
    inputs = poison if which == "one tensor" else kind.parts(poison)
    outputs = layer(inputs, training=True, mask=mask)
    joined = outputs.numpy() if which == "one tensor" else np.concatenate(outputs, 2)
    np.testing.assert_allclose(joined[used], expected[used], atol=2e-5)
    np.testing.assert_array_equal(joined[~used], poison[~used])


@pytest.mark.parametrize("how", ["mask", "NaN"])
@pytest.mark.parametrize("gradient", ["implicit", "finite_difference"])
def test_rows_with_a_missing_view_pass_and_the_others_do_not_see_them(kind, how, gradient):
    views = kind.views(30, 21, "float64")
    present = np.random.default_rng(3).random((len(views), 30)) < 0.85
    used = present.all(0)
    for view, rows in zip(views, present, strict=True):
        view[~rows] = np.nan
    options = dict(lam=2.0, gradient=gradient, solver=TIGHT, dtype="float64")
    layer = kind.layer(nan_is_missing=how == "NaN", **options)
    variables = [tf.constant(v) for v in views]
    weights = np.random.default_rng(4).normal(size=(30, sum(kind.sizes)))
    with tf.GradientTape() as tape:
        tape.watch(variables)
        mask = [*present] if how == "mask" else None
        moved = tf.concat(layer(variables, training=True, mask=mask), 1)
    slope = np.concatenate(tape.gradient(moved, variables, weights), 1)
    x, moved = np.concatenate(views, 1), moved.numpy()
    np.testing.assert_allclose(moved[used], kind.expected(x[used], 2.0), atol=2e-6)
    np.testing.assert_array_equal(moved[~used], x[~used])
    expected = kind.expected_gradient(x[used], weights[used], 2.0)
    atol = 1e-5 if gradient == "implicit" else 3e-2
    np.testing.assert_allclose(slope[used], expected, atol=atol)
    np.testing.assert_array_equal(slope[~used], weights[~used])


@CCA_FIRST
def test_a_mask_of_rows_in_a_functional_model(kind):
    views = kind.views(30, 22)
    present = np.random.default_rng(5).random(30) < 0.7
    inputs = [keras.Input((d,)) for d in kind.sizes]
    here = keras.Input((), dtype="bool")
    layer = kind.layer(lam=2.0, inference="batch")
    nothing = [None] * (len(inputs) - 1)
    model = keras.Model([*inputs, here], layer(inputs, mask=[here, *nothing]))
    moved = np.concatenate(model.predict([*views, present], verbose=0), 1)
    x = np.concatenate(views, 1)
    np.testing.assert_allclose(moved[present], kind.expected(x[present], 2.0), atol=2e-5)
    np.testing.assert_array_equal(moved[~present], x[~present])


@pytest.mark.parametrize("inference", ["batch", "moving"])
@CCA_FIRST
def test_missing_views_at_test_time_and_in_the_monitor(kind, inference):
    x = kind.joined(30, 23)
    x[4, 1] = x[9, 5] = np.nan
    used = np.isfinite(x).all(1)
    options = dict(
        lam=2.0, monitor=True, inference=inference, nan_is_missing=True, momentum=0.0,
        split=kind.sizes,
    )  # fmt: skip
    layer = kind.layer(**options)
    expected = kind.expected(x[used], 2.0)
    for training in (True, False):
        moved = layer(x, training=training).numpy()
        np.testing.assert_allclose(moved[used], expected, atol=5e-5)
        np.testing.assert_array_equal(moved[~used], x[~used])
    status = layer.status
    np.testing.assert_allclose(status["correlation_before"], kind.correlation(x[used]), rtol=1e-4)
    np.testing.assert_allclose(status["correlation"], kind.correlation(expected), rtol=1e-4)


@pytest.mark.parametrize(
    "mask, message",
    [
        (np.ones((30, 2), bool), r"shape \(batch,\).*Received 1 of the shapes \[\(30, 2\)\]"),
        (np.ones(1, bool), r"shapes \[\(1,\)\] for views of the shape \(30, 'd_j'\)"),
        ([np.ones(30, bool)] * 4, r"each of the \d inputs. Received 4"),
    ],
)
@CCA_FIRST
def test_bad_masks(kind, mask, message):
    with pytest.raises(ValueError, match=message):
        kind.layer()(kind.views(30), mask=mask)


@CCA_FIRST
def test_wholly_masked_batch_passes_unchanged(kind):
    x, _ = kind.sequences()
    layer = kind.layer(inference="moving", momentum=0.5, split=kind.sizes)
    layer(x, training=True)
    weights = [w.numpy() for w in layer.weights]
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = layer(variable, training=True, mask=np.zeros((6, 4), bool))
        value = tf.reduce_sum(output**2)
    np.testing.assert_array_equal(output, x)
    np.testing.assert_allclose(tape.gradient(value, variable), 2 * x, rtol=1e-6)
    for before, after in zip(weights, layer.weights, strict=True):
        np.testing.assert_array_equal(after, before)


def test_embedding_masks_on_both_views_train():
    kind, rng = CCA, np.random.default_rng(5)
    tokens = [rng.integers(0, 9, size=(8, 5)) for _ in kind.sizes]
    inputs = [keras.Input((5,), dtype="int32") for _ in kind.sizes]
    tables = [
        keras.layers.Embedding(
            9, d, keras.initializers.RandomNormal(stddev=1.0, seed=d), mask_zero=True
        )
        for d in kind.sizes
    ]
    outputs = kind.layer(lam=2.0)([e(x) for e, x in zip(tables, inputs, strict=True)])
    model = keras.Model(inputs, outputs)
    valid = (tokens[0] != 0) & (tokens[1] != 0)
    assert 0 < valid.sum() < valid.size
    codes = [np.asarray(e.embeddings)[t] for e, t in zip(tables, tokens, strict=True)]
    expected = kind.expected_of_steps(np.concatenate(codes, 2), valid, 2.0)
    np.testing.assert_allclose(np.concatenate(model(tokens, training=True), 2), expected, atol=2e-5)
    pooled = [keras.layers.GlobalAveragePooling1D()(o) for o in outputs]
    head = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(pooled)))
    head.compile("sgd", "mse")
    before = [np.asarray(e.embeddings) for e in tables]
    head.fit(tokens, np.ones((8, 1)), verbose=0)
    for table, old in zip(tables, before, strict=True):
        assert np.isfinite(table.embeddings).all() and np.abs(table.embeddings - old).max() > 0
