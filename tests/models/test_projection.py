"""Canonical variates of one view at a time, against SciPy and against both views at once."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import DCCA, DCCAE, LinearCCA, RecallAtK
from tests.helpers.layer_checks import policy
from tests.helpers.multiview_models import MODELS, decoders, encoders, make_data, predictors

EPSILON = 0.01


def variates(codes, k, epsilon=EPSILON):
    """Correlations and variates by the generalised eigenproblem of the joint covariance."""
    codes = [np.float64(c) for c in codes]
    sizes = [c.shape[1] for c in codes]
    covariance = np.cov(np.hstack(codes), rowvar=False)
    own = scipy.linalg.block_diag(*(np.atleast_2d(np.cov(c, rowvar=False)) for c in codes))
    values, vectors = scipy.linalg.eigh(
        covariance if len(codes) > 2 else covariance - own, own + epsilon * np.eye(len(own))
    )
    values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k] * np.sqrt(len(codes))
    first = vectors[: sizes[0]]
    vectors = vectors * np.sign(first[np.abs(first).argmax(0), np.arange(k)])
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    return values, [(c - c.mean(0)) @ u for c, u in zip(codes, parts, strict=True)]


def model_of(views=2, kind=DCCA, **options):
    keras.utils.set_random_seed(1)
    options = {"num_components": 2, "epsilon": EPSILON} | options
    parts = (encoders(views), *([decoders(views)] if kind is DCCAE else []), predictors(views))
    model = kind(*parts, **options)
    data, _ = make_data(150, views)
    model.build([x.shape for x in data])
    return model, data


@pytest.fixture(scope="module")
def fitted():
    """A model in float64 with its maps, views, codes and correlations."""
    with policy("float64"):
        model, views = model_of(kind=DCCAE)
        views = [x.astype("float64") for x in views]
        correlations = model.fit_projections(views, batch_size=40)
    return model, views, [c.numpy() for c in model.encode(views)], correlations


def test_variates_are_those_of_the_joint_problem(fitted):
    model, views, codes, correlations = fitted
    values, wanted = variates(codes, 2)
    np.testing.assert_allclose(correlations, values, rtol=1e-9)
    assert 0.2 < values[1] < values[0] < 1.0
    linear = LinearCCA(2, ridge=EPSILON).fit(*codes)
    np.testing.assert_allclose(linear.correlations_, values, rtol=1e-9)
    for index, joint in enumerate(linear.transform(*codes)):
        found = model.project(views[index], index)
        np.testing.assert_allclose(found, wanted[index], atol=1e-8)
        np.testing.assert_allclose(found, joint, atol=1e-6)
        np.testing.assert_allclose(linear.project(codes[index], index), joint, rtol=1e-12)
        np.testing.assert_allclose(model.project(views[index][:3], index), joint[:3], atol=1e-6)


def test_more_than_two_views():
    model, views = model_of(3, num_components=4)
    values = model.fit_projections(views)
    codes = model.encode(views)
    wanted_values, wanted = variates(codes, 4)
    np.testing.assert_allclose(values, wanted_values, rtol=1e-5)
    for index in range(3):
        np.testing.assert_allclose(model.project(views[index], index), wanted[index], atol=1e-4)


def test_variates_find_their_partners_where_codes_do_not(fitted):
    """The codes of the two views are of other widths; of equal ones they still are not aligned."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(60, 4))
    views = [hidden @ rng.normal(size=(4, 4)) + 0.01 * rng.normal(size=(60, 4)) for _ in range(2)]
    keras.utils.set_random_seed(0)
    model = DCCA([Dense(4), Dense(4)], predictors(), epsilon=0.0)
    model.build([x.shape for x in views])
    model.fit_projections(views)
    found = []
    for codes in (model.encode(views), [model.project(x, j) for j, x in enumerate(views)]):
        metric = RecallAtK(1)
        metric.update_state(None, codes)
        found.append(float(metric.result()))
    assert found[0] < 0.2 and found[1] > 0.95


def test_incomplete_rows_and_time_steps():
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(20, 6, 2))
    views = [
        (hidden @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(20, 6, d))).astype("float32")
        for d in (3, 4)
    ]
    valid = rng.random((20, 6)) < 0.8
    views[0][~valid] = 0.0
    there = valid & (rng.random((20, 6)) < 0.8)
    views[1][valid & ~there] = np.nan
    keras.utils.set_random_seed(0)
    masked = keras.Sequential([keras.layers.Masking(), Dense(3)])
    model = DCCA([masked, Dense(4)], predictors(), epsilon=EPSILON, nan_is_missing=True)
    model.build([x.shape for x in views])
    values = model.fit_projections(views, batch_size=7)
    codes = [c.numpy()[there] for c in model.encode(views)]
    wanted_values, wanted = variates(codes, 3)
    np.testing.assert_allclose(values, wanted_values, rtol=1e-4)
    for index in range(2):
        found = model.project(views[index], index)
        np.testing.assert_allclose(found[there], wanted[index], atol=1e-4)
    np.testing.assert_array_equal(found._keras_mask, valid & there | ~valid)  # of view 1 alone


def test_datasets_and_rank_deficient_codes(fitted):
    _, views, _, _ = fitted
    keras.utils.set_random_seed(2)
    wide = keras.Sequential([Dense(2), Dense(5)])  # of rank 2
    model = DCCA([wide, Dense(3)], predictors(), epsilon=0.0, dtype="float64")
    data = tf.data.Dataset.from_tensor_slices((tuple(views), np.zeros(150))).batch(60)
    model.build([x.shape for x in views])
    values = model.fit_projections(data)
    codes = [c.numpy() for c in model.encode(views)]
    linear = LinearCCA(3).fit(*codes)
    np.testing.assert_allclose(values, linear.correlations_, atol=1e-4)
    assert values[2] == 0.0 and values[1] > 0.1
    for index, joint in enumerate(linear.transform(*codes)):
        np.testing.assert_allclose(model.project(views[index], index), joint, atol=1e-3)


def test_maps_are_saved(tmp_path):
    model, views = model_of()
    model.fit_projections(views)
    wanted = [model.project(x, j) for j, x in enumerate(views)]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for index, view in enumerate(views):
        np.testing.assert_allclose(again.project(view, index), wanted[index], atol=1e-6)
    assert not any("projection" in v.path for v in model.trainable_variables)


CLIENT = """
import sys
sys.modules["proxnet_tf"] = None
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1] + "/model")
with np.load(sys.argv[1] + "/views.npz") as views:
    found = [getattr(model, f"project_{j}")(tf.constant(views[f"arr_{j}"])) for j in range(2)]
np.savez(sys.argv[1] + "/answers.npz", *found)
"""


def test_exported_projections_take_one_view(fitted, tmp_path):
    model, views, _, _ = fitted
    model.export_projections(tmp_path / "model")
    np.savez(tmp_path / "views.npz", views[0][:1], views[1][:9])  # a query, and a gallery
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", CLIENT, str(tmp_path)]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    with np.load(tmp_path / "answers.npz") as answers:
        np.testing.assert_allclose(answers["arr_0"], model.project(views[0][:1], 0), atol=1e-10)
        np.testing.assert_allclose(answers["arr_1"], model.project(views[1][:9], 1), atol=1e-10)


def test_before_the_maps_are_fitted(tmp_path):
    model, views = model_of()
    model.fit_projections(views)
    model.project(views[0], 0)
    model.pretrain(views, verbose=0)  # which changes the codes
    with pytest.raises(ValueError, match="call `fit_projections"):
        model.project(views[0], 0)
    with pytest.raises(ValueError, match="needs `fit_projections"):
        model.export_projections(tmp_path / "model")
    in_graph = tf.function(lambda x: model.project(x, 0))(tf.constant(views[0]))
    assert in_graph.shape == (150, 2) and np.isnan(in_graph).all()
    with pytest.raises(ValueError, match="call `pretrain"):
        DCCA(encoders(), predictors()).fit_projections(views)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m, x: m.project(x[0], 2), "one of the 2 views. Received: index=2"),
        (lambda m, x: m.project(x[0], "a"), "`index` must be an integer >= 0"),
        (lambda m, x: m.fit_projections([v[:1] for v in x]), "at least 2 rows.*1 of 1 rows"),
        (lambda m, x: m.fit_projections([x[0] * np.nan, x[1]]), "codes that are not finite"),
        (lambda m, x: m.fit_projections(x[0]), "takes a list of 2 views"),
        (lambda m, x: LinearCCA(2).fit(x).project(x[0], 2), "0 or 1. Received: index=2"),
        (lambda m, x: LinearCCA(2).fit(x).project(x[0], 1), r"`view` .*5 columns.*\(150, 7\)"),
        (lambda m, x: LinearCCA(2).project(x[0], 1), "not fitted"),
    ],
)
def test_bad_input(fitted, call, message):
    with pytest.raises(ValueError, match=message):
        call(*fitted[:2])


def test_weights_of_version_0_1_leave_the_maps():
    views, _ = make_data(40)
    model = MODELS["dcca"]()
    model.pretrain(views, verbose=0)
    model.fit_projections(views)
    before = model.project(views[0], 0).numpy()
    old = model.get_weights()[: -sum(len(p.weights) for p in model.projections)]
    model.set_weights(old)
    np.testing.assert_array_equal(model.project(views[0], 0), before)


def test_a_missing_query_is_nan_and_no_rows_are_refused():
    views, _ = make_data(40)
    model = MODELS["dcca"](nan_is_missing=True)
    model.pretrain(views, verbose=0)
    model.fit_projections(views)
    query = views[0][:3].copy()
    before = model.project(query, 0).numpy()
    query[1] = np.nan
    found = model.project(query, 0).numpy()
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], before[[0, 2]], rtol=1e-6)
    with pytest.raises(ValueError, match="needs at least 2 rows"):
        model.fit_projections([x[:0] for x in views])
