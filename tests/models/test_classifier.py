"""MultiviewClassifier: what stands between codes and predictors."""

import keras
import numpy as np
import pytest
from keras.layers import Dense

from proxnet_tf import (
    CCARegularizer,
    MultiviewClassifier,
    ProxCCA,
    ProxGCCA,
    cca_loss,
)
from tests.helpers.layer_checks import assert_same
from tests.helpers.multiview_models import (
    encoders,
    entropy,
    make_data,
    predictors,
    train,
    training_loss,
)
from tests.helpers.registry import PLAIN


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


@pytest.mark.parametrize("views", [2, 3])
def test_layers_act_between_encoders_and_predictors_in_their_order(views, tmp_path):
    data, labels = make_data(views=views)
    kind = ProxCCA if views == 2 else ProxGCCA
    layers = [kind(2, lam=0.3, name="first", **PLAIN), kind(2, lam=3.0, name="second", **PLAIN)]
    model = MultiviewClassifier(encoders(views), predictors(views), layers)
    codes = model.encode(data)
    moved = codes
    for lam in (0.3, 3.0):
        moved = kind(2, lam=lam, **PLAIN)(moved, training=True)
    assert not np.allclose(moved[0], codes[0], atol=1e-2)
    logits = [p(f) for p, f in zip(model.predictors, moved, strict=True)]
    assert_same(model(data, training=True), sum(logits) / views, 1e-5)
    train(model, data, labels)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [float(layer.lam) for layer in reloaded.between] == pytest.approx([0.3, 3.0])
    assert_same(reloaded(data, training=True), model(data, training=True), 1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Mixed(keras.layers.Layer):
    """A layer of the user's own, with a weight and without `compute_output_shape`."""

    def build(self, shapes):
        self.scale = self.add_weight(name="scale", shape=(shapes[0][-1],))

    def call(self, codes):
        return [code * self.scale for code in codes]


def test_a_layer_of_ones_own_and_one_that_acts_twice(tmp_path):
    views, labels = make_data()
    twice = Mixed()
    parts = [Dense(3), Dense(3)], predictors()
    model = MultiviewClassifier(*parts, [twice, CCARegularizer(0.1), twice])
    train(model, views, labels)
    logits = [
        p(code * twice.scale**2)
        for p, code in zip(model.predictors, model.encode(views), strict=True)
    ]
    assert_same(model(views), (logits[0] + logits[1]) / 2, 1e-5)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.between[0] is reloaded.between[2] is not reloaded.between[1]
    assert len(reloaded.weights) == len(model.weights)
    assert_same(reloaded(views), model(views), 1e-6)
    model.save_weights(tmp_path / "model.weights.h5")
    copy = keras.models.clone_model(reloaded)
    copy.build([x.shape for x in views])
    copy.load_weights(tmp_path / "model.weights.h5")
    assert_same(copy(views), model(views), 1e-6)


def test_correlation_terms_are_added_to_the_loss():
    views, labels = make_data()
    for weight, more in ((0.7, []), (0.2, [ProxCCA(epsilon=1e-2, **PLAIN)])):
        between = [CCARegularizer(weight, epsilon=1e-2), *more]
        model = MultiviewClassifier(encoders(), predictors(), between)
        data_loss = entropy()(labels, model(views, training=True))
        correlation = cca_loss(*model.encode(views), epsilon=1e-2)
        assert correlation < -1.0
        wanted = float(data_loss + weight * correlation)
        np.testing.assert_allclose(training_loss(model, views, labels), wanted, rtol=1e-5)


@pytest.mark.parametrize("regularized", [False, True])
def test_a_view_index_trains_with_the_mean_of_the_views_losses(regularized):
    views, labels = make_data()
    between = CCARegularizer() if regularized else None
    model = MultiviewClassifier(encoders(), predictors(), between, predict_with=0)
    logits = model(views, training=True)
    assert [x.shape for x in logits] == [(120, 2), (120, 2)]
    weights = np.random.default_rng(0).random(120).astype("float32")
    losses = [float(entropy()(labels, x, sample_weight=weights)) for x in logits]
    extra = float(cca_loss(*model.encode(views))) if regularized else 0.0
    found = training_loss(model, views, labels, sample_weight=weights)
    np.testing.assert_allclose(found, np.mean(losses) + extra, rtol=1e-5)


def test_sequences_with_a_mask_reach_the_layer():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(6, 5, d)).astype("float32") for d in (3, 2)]
    for view in views:
        view[:, 3:] = 0.0
    layers = [keras.Sequential([keras.layers.Masking(), Dense(2)]) for _ in views]
    model = MultiviewClassifier(layers, predictors(), ProxCCA(lam=0.2, **PLAIN))
    shorter = model([view[:, :3] for view in views], training=True)
    assert_same(model(views, training=True)[:, :3], shorter, 1e-5)
