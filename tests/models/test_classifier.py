import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import (
    LambdaSchedule,
    ProxCCA,
    ProxGCCA,
    cca_loss,
)
from proxnet_tf.models import MultiviewClassifier
from proxnet_tf.solvers import Newton
from tests.helpers.layer_checks import assert_same
from tests.helpers.multiview_models import (
    MODELS,
    encoders,
    entropy,
    make_data,
    predictors,
    train,
    training_loss,
)

pytestmark = pytest.mark.usefixtures("eager_fit")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def test_exported_model_predicts_the_same(tmp_path):
    views, labels = make_data()
    model = MODELS["prox"]()
    train(model, views, labels)
    model.export(tmp_path / "saved_model")
    artifact = tf.saved_model.load(tmp_path / "saved_model")
    assert_same(artifact.serve(tuple(views)), model.predict(views, verbose=0), 1e-5)


def test_prediction_is_the_average_of_the_logits_or_one_views():
    views, _ = make_data()
    for method in ("vanilla", "rrm", "prox"):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        average = model(views)
        logits = [p(f) for p, f in zip(model.predictors, model.encode(views), strict=True)]
        assert_same(average, (logits[0] + logits[1]) / 2, 1e-6)
        single = MultiviewClassifier(
            model.encoders, model.predictors, method=method, predict_with=1
        )
        assert_same(single(views), logits[1], 1e-6)


def test_prox_puts_the_layer_between_encoders_and_predictors_in_training():
    views, _ = make_data()
    model = MultiviewClassifier(encoders(), predictors(), num_components=2, lam=0.3, epsilon=1e-3)
    codes = model.encode(views)
    moved = ProxCCA(2, lam=0.3, epsilon=1e-3)(codes, training=True)
    assert not np.allclose(moved[0], codes[0], atol=1e-2)
    logits = [p(f) for p, f in zip(model.predictors, moved, strict=True)]
    assert_same(model(views, training=True), (logits[0] + logits[1]) / 2, 1e-5)


@pytest.mark.parametrize("views", [2, 3])
def test_options_of_the_layer(views, tmp_path):
    data, _ = make_data(views=views)
    solver = Newton(1e-6, jit_compile=False)
    options = {"solver": solver, "momentum": 0.5, "synchronized": True}
    model = MultiviewClassifier(encoders(views), predictors(views), num_components=2, **options)
    expected = options | {"solver": keras.saving.serialize_keras_object(solver)}
    for config in (model.prox.get_config(), model.get_config()):
        assert {name: config[name] for name in options} == expected
    assert not np.array_equal(model(data, training=True), model(data))
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.prox.get_config()["momentum"] == 0.5
    assert reloaded.prox.synchronized


def test_options_of_a_model_saved_by_0_1():
    config = MODELS["prox"]().get_config()
    del config["nan_is_missing"]
    config["prox_options"] = {"solver": "lbfgs", "momentum": 0.5, "tolerance": 1e-3}
    model = MultiviewClassifier.from_config(config)
    assert model.prox.momentum == 0.5
    assert "lbfgs" in str(model.prox.get_config()["solver"]).lower()
    assert MultiviewClassifier.from_config(model.get_config()).prox.momentum == 0.5


def test_correlation_terms_are_added_to_the_loss():
    views, labels = make_data()
    for method, weight in (("rrm", 0.7), ("prox", 0.2)):
        model = MultiviewClassifier(
            encoders(), predictors(), method=method, correlation_weight=weight, epsilon=1e-2
        )
        data_loss = entropy()(labels, model(views, training=True))
        correlation = cca_loss(*model.encode(views), epsilon=1e-2)
        assert correlation < -1.0
        wanted = float(data_loss + weight * correlation)
        np.testing.assert_allclose(training_loss(model, views, labels), wanted, rtol=1e-5)


def test_defaults_of_the_correlation_weight():
    for method, weight in (("rrm", 1.0), ("prox", 0.0), ("vanilla", 0.0)):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        assert model.correlation_weight == weight


@pytest.mark.parametrize("method", ["vanilla", "rrm"])
def test_a_view_index_trains_with_the_mean_of_the_views_losses(method):
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), method=method, predict_with=0)
    logits = model(views, training=True)
    assert [x.shape for x in logits] == [(120, 2), (120, 2)]
    weights = np.random.default_rng(0).random(120).astype("float32")
    losses = [float(entropy()(labels, x, sample_weight=weights)) for x in logits]
    extra = float(cca_loss(*model.encode(views))) if method == "rrm" else 0.0
    found = training_loss(model, views, labels, sample_weight=weights)
    np.testing.assert_allclose(found, np.mean(losses) + extra, rtol=1e-5)


def test_a_view_index_trains_every_view():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), method="vanilla", predict_with=0)
    model(views)
    before = [w.copy() for w in model.get_weights()]
    train(model, views, labels)
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert min(moved) > 1e-4


def test_rows_of_weight_zero_feed_only_the_correlation():
    views, labels = make_data()
    weights = np.zeros(120, "float32")
    weights[:30] = 4.0
    wrong = np.where(weights > 0, labels, 1 - labels)
    for method in ("rrm", "prox"):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        wanted = entropy()(labels[:30], model(views, training=True)[:30])
        if method == "rrm":
            wanted += cca_loss(*model.encode(views))
        found = training_loss(model, views, wrong, sample_weight=weights)
        np.testing.assert_allclose(found, float(wanted), rtol=1e-5)


def test_lambda_schedule_drives_the_layer_in_the_model():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), lam=0.5, monitor=True)
    model.compile("adam", entropy())
    history = model.fit(
        views, labels, epochs=2, verbose=0, callbacks=[LambdaSchedule(lambda t: 2.0 + t)]
    ).history
    assert history["lam"] == [2.0, 3.0]
    assert float(model.prox.lam) == 3.0
    assert history["correlation"][0] > history["correlation_before"][0]


def test_lam_of_the_model_is_the_layers():
    model = MultiviewClassifier(encoders(), predictors(), lam=0.5)
    model.lam = 0.25
    assert model.lam is model.prox.lam
    assert float(model.prox.lam) == 0.25
    assert model.get_config()["lam"] == 0.5
    with pytest.raises(ValueError, match="`lam` must be a finite number > 0"):
        model.lam = -1.0
    assert MultiviewClassifier(encoders(), predictors(), method="rrm").lam is None


def test_sequences_with_a_mask_reach_the_layer():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(6, 5, d)).astype("float32") for d in (3, 2)]
    for view in views:
        view[:, 3:] = 0.0
    layers = [keras.Sequential([keras.layers.Masking(), Dense(2)]) for _ in views]
    model = MultiviewClassifier(layers, predictors(), lam=0.2)
    shorter = model([view[:, :3] for view in views], training=True)
    assert_same(model(views, training=True)[:, :3], shorter, 1e-5)


def test_mixed_precision():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), lam=0.5, dtype="mixed_float16")
    assert np.isfinite(train(model, views, labels).history["loss"]).all()
    assert model.prox.compute_dtype == "float16"


def test_three_views_without_a_correlation():
    views, labels = make_data(views=3)
    model = MultiviewClassifier(encoders(3), predictors(3), method="vanilla")
    train(model, views, labels)
    logits = [p(f) for p, f in zip(model.predictors, model.encode(views), strict=True)]
    assert_same(model(views), sum(logits) / 3, 1e-6)


def test_three_views_pass_through_the_generalised_layer(tmp_path):
    views, labels = make_data(views=3)
    model = MultiviewClassifier(encoders(3), predictors(3), num_components=4, lam=0.5)
    codes = model.encode(views)
    moved = ProxGCCA(4, lam=0.5)(codes, training=True)
    assert not np.allclose(moved[2], codes[2], atol=1e-3)
    logits = [p(f) for p, f in zip(model.predictors, moved, strict=True)]
    assert_same(model(views, training=True), sum(logits) / 3, 1e-5)
    train(model, views, labels)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(reloaded(views), model(views), 1e-6)


def test_no_lam_without_a_proximal_layer():
    layers = [[keras.layers.Dense(2) for _ in range(2)] for _ in range(2)]
    model = MultiviewClassifier(*layers, method="rrm")
    with pytest.raises(ValueError, match='"rrm" has no proximal layer, and no lam'):
        model.lam = 0.5
    assert model.lam is None
