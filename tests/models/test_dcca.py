"""DCCA and DCCAE: their two stages, and the canonical variates of one view at a time."""

import keras
import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import DCCA, DCCAE, CanonicalCorrelation, LinearCCA, cca_loss, gcca_loss
from tests.helpers.layer_checks import policy
from tests.helpers.multiview_models import (
    CODES,
    MODELS,
    WIDTHS,
    decoders,
    encoders,
    entropy,
    make_data,
    predictors,
)

EPSILON = 0.01


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def eager(model):
    """Tracing takes most of the time of a short training."""
    model.run_eagerly = True
    return model


def held_out_correlation(model, views):
    metric = CanonicalCorrelation()
    metric.update_state(None, model.encode(views))
    return float(metric.result())


def test_pretraining_raises_the_correlation_of_the_codes():
    views, labels = make_data(400)
    model = eager(MODELS["dccae"]())
    train_views, test_views = [x[:200] for x in views], [x[200:] for x in views]
    model.build([x.shape for x in views])
    before = held_out_correlation(model, test_views)
    history = model.pretrain(
        train_views,
        epochs=25,
        batch_size=200,
        validation_freq=25,
        optimizer=keras.optimizers.Adam(0.05),
        validation_data=(test_views,),
        verbose=0,
    ).history
    assert history["correlation_loss"][-1] < history["correlation_loss"][0] - 0.1
    assert "val_correlation_loss" in history
    assert held_out_correlation(model, test_views) > before + 0.1
    assert history["reconstruction_loss"][-1] < 0.5 * history["reconstruction_loss"][0]
    model.compile(keras.optimizers.Adam(0.1), entropy(), metrics=["accuracy"], run_eagerly=True)
    model.fit(train_views, labels[:200], batch_size=200, epochs=20, verbose=0)
    assert model.evaluate(test_views, labels[200:], batch_size=200, verbose=0)[1] > 0.8


def test_pretraining_objective_of_dccae():
    views, _ = make_data()
    model = eager(
        DCCAE(encoders(), decoders(), predictors(), reconstruction_weight=0.3, epsilon=1e-2)
    )
    model.build([x.shape for x in views])
    codes = model.encode(views)
    errors = [
        np.mean((x - np.asarray(g(f))) ** 2)
        for x, f, g in zip(views, codes, model.decoders, strict=True)
    ]
    correlation = float(cca_loss(*codes, epsilon=1e-2))
    history = model.pretrain(
        views, optimizer=keras.optimizers.SGD(0.0), batch_size=120, verbose=0
    ).history
    np.testing.assert_allclose(history["reconstruction_loss"][0], sum(errors), rtol=1e-5)
    np.testing.assert_allclose(history["correlation_loss"][0], correlation, rtol=1e-5)
    np.testing.assert_allclose(history["loss"][0], correlation + 0.3 * sum(errors), rtol=1e-5)


@pytest.mark.parametrize("views", [2, 3])
def test_pretraining_leaves_padding_out(views):
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(20, 6, d)).astype("float32") for d in WIDTHS[:views]]
    valid = np.arange(6) < rng.integers(2, 7, (20, 1))
    for view in x:
        view[~valid] = 0.0
    maskers = [keras.Sequential([keras.layers.Masking(), Dense(d)]) for d in CODES[:views]]
    options = dict(num_components=3, epsilon=0.1, reconstruction_weight=0.5)
    model = eager(DCCAE(maskers, decoders(views), predictors(views), **options))
    model.build([v.shape for v in x])
    frames = [v[valid] for v in x]
    codes = [c.numpy()[valid] for c in model.encode(x)]
    correlation = cca_loss(*codes, 3, 0.1) if views == 2 else gcca_loss(codes, 3, 0.1)
    error = sum(
        np.mean((f - decoder(c)) ** 2)
        for f, c, decoder in zip(frames, codes, model.decoders, strict=True)
    )
    frozen = keras.optimizers.SGD(0.0)
    history = model.pretrain(x, optimizer=frozen, epochs=1, batch_size=20, verbose=0).history
    np.testing.assert_allclose(history["correlation_loss"][0], correlation, rtol=1e-4)
    np.testing.assert_allclose(history["reconstruction_loss"][0], error, rtol=1e-4)


def test_stages_train_only_their_own_weights():
    views, labels = make_data()
    model = eager(DCCAE(encoders(), decoders(), predictors()))
    model.build([x.shape for x in views])

    def snapshot():
        groups = (model.encoders, model.decoders, model.predictors)
        return [[w for layer in group for w in layer.get_weights()] for group in groups]

    def moved(before, after):
        return [
            max(np.abs(a - b).max() for a, b in zip(x, y, strict=True)) > 0
            for x, y in zip(before, after, strict=True)
        ]

    start = snapshot()
    model.pretrain(views, batch_size=120, verbose=0)
    middle = snapshot()
    assert moved(start, middle) == [True, True, False]
    model.compile("adam", entropy(), run_eagerly=True)
    model.fit(views, labels, batch_size=120, verbose=0)
    assert moved(middle, snapshot()) == [False, False, True]
    assert len(model.trainable_variables) == 4


def test_pretraining_leaves_frozen_layers_alone(tmp_path):
    views, _ = make_data()
    pairs = [
        [keras.Sequential([Dense(4), Dense(width)]) for width in widths]
        for widths in (CODES[:2], WIDTHS[:2])
    ]
    for pair in pairs:
        pair[0].layers[0].trainable = False  # a part
        pair[1].trainable = False  # the whole
    model = eager(DCCAE(*pairs, predictors()))
    model.build([x.shape for x in views])
    model.save(tmp_path / "model.keras")
    for trained in (model, keras.saving.load_model(tmp_path / "model.keras")):
        for _ in range(2):
            parts = [layer for f in (*trained.encoders, *trained.decoders) for layer in f.layers]
            before = [part.kernel.numpy() for part in parts]
            trained.pretrain(views, batch_size=120, verbose=0)
            moved = [bool(np.any(p.kernel != k)) for p, k in zip(parts, before, strict=True)]
            assert moved == [False, True, False, False] * 2
            assert not any(f.trainable for f in (*trained.encoders, *trained.decoders))


def make():
    keras.utils.set_random_seed(0)
    views, labels = make_data(24)
    model = eager(MODELS["dccae"]())
    model.compile("sgd", entropy(), run_eagerly=True)
    return model, views, labels


def test_training_before_pretraining_is_refused():
    model, views, labels = make()
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=r"call `pretrain\(views\)` before `fit`"):
            train(views, labels)
    assert float(model.evaluate(views, labels, verbose=0)) > 0


def test_weights_are_refused_in_pretraining():
    model, views, labels = make()
    weights = np.ones(len(labels), "float32")
    batches = tf.data.Dataset.from_tensor_slices((tuple(views), labels, weights)).batch(12)
    for arguments in (
        {"x": views, "sample_weight": weights},
        {"x": views, "y": labels, "class_weight": {0: 1.0, 1: 2.0}},
        {"x": batches},
        {"x": views, "validation_data": (views, labels, weights)},
    ):
        with pytest.raises(
            ValueError, match=r"cannot weight its rows; leave the weights .* out of"
        ):
            model.pretrain(**arguments, shuffle=False, verbose=0)


def test_callbacks_of_pretraining_save_the_model_and_continue(tmp_path):
    model, views, labels = make()
    model(views)
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss")
    settings = {"batch_size": 12, "shuffle": False, "verbose": 0}
    model.pretrain(views, epochs=2, callbacks=[saved], **settings)
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_allclose(loaded(views), model(views), rtol=1e-6)
    loaded.compile("sgd", entropy(), run_eagerly=True)
    loaded.fit(views, labels, verbose=0)  # it counts as pretrained

    def run(epochs, callbacks=()):
        one, _, _ = make()
        one(views)
        one.pretrain(views, epochs=epochs, callbacks=list(callbacks), **settings)
        return one(views)

    whole = run(3)

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        run(3, [keras.callbacks.BackupAndRestore(tmp_path / "backup"), Stop()])
    continued = run(3, [keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    np.testing.assert_allclose(continued, whole, rtol=1e-5)


def test_parts_of_the_loss_are_means_over_the_rows():
    """Batches of 32 and 8 rows count as `loss` counts them; one of 1 has no correlation."""
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(40, d)).astype("float32") for d in (5, 4)]
    layers = [[Dense(d) for d in widths] for widths in ((3, 3), (5, 4), (2, 2))]
    model = eager(DCCAE(*layers, reconstruction_weight=0.5))
    frozen = dict(optimizer=keras.optimizers.SGD(0.0), shuffle=False, verbose=0)
    history = model.pretrain(views, **frozen).history
    parts = history["correlation_loss"][0] + 0.5 * history["reconstruction_loss"][0]
    assert history["loss"][0] == pytest.approx(parts, abs=1e-5)
    halves = [
        cca_loss(*model.encode([x[rows] for x in views])) for rows in (slice(32), slice(32, 40))
    ]
    wanted = (32 * float(halves[0]) + 8 * float(halves[1])) / 40
    assert history["correlation_loss"][0] == pytest.approx(wanted, abs=1e-5)

    odd = [x[:33] for x in views]
    found = model.pretrain(odd, **frozen).history["correlation_loss"][0]
    assert found == pytest.approx(float(halves[0]), abs=1e-5)


def test_pretraining_with_missing_views():
    data, _ = make_data(40)
    holes = [x.copy() for x in data]
    holes[0][:5] = np.nan
    holes[1][5:10, 0] = np.nan
    options = dict(reconstruction_weight=0.5, epsilon=0.1, nan_is_missing=True)
    model = eager(DCCAE(encoders(), decoders(), predictors(), **options))
    history = model.pretrain(holes, batch_size=40, verbose=0).history
    assert np.isfinite([v for values in history.values() for v in values]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())


def variates(codes, k, epsilon=EPSILON):
    """Correlations and variates by the generalised eigenproblem of the joint covariance."""
    codes = [np.float64(c) for c in codes]
    sizes = [c.shape[1] for c in codes]
    covariance = np.cov(np.hstack(codes), rowvar=False)
    own = scipy.linalg.block_diag(*(np.atleast_2d(np.cov(c, rowvar=False)) for c in codes))
    values, vectors = scipy.linalg.eigh(covariance - own, own + epsilon * np.eye(len(own)))
    values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k] * np.sqrt(2)
    first = vectors[: sizes[0]]
    vectors = vectors * np.sign(first[np.abs(first).argmax(0), np.arange(k)])
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    return values, [(c - c.mean(0)) @ u for c, u in zip(codes, parts, strict=True)]


def model_of(kind=DCCA):
    keras.utils.set_random_seed(1)
    parts = (encoders(), *([decoders()] if kind is DCCAE else []), predictors())
    model = eager(kind(*parts, num_components=2, epsilon=EPSILON))
    data, _ = make_data(150)
    model.build([x.shape for x in data])
    return model, data


@pytest.fixture(scope="module")
def fitted():
    """A model in float64 with its maps, views, codes and correlations."""
    with policy("float64"):
        model, views = model_of(DCCAE)
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
    for index, joint in enumerate(map(linear.project, codes, range(2))):
        found = model.project(views[index], index)
        np.testing.assert_allclose(found, wanted[index], atol=1e-8)
        np.testing.assert_allclose(found, joint, atol=1e-6)
        np.testing.assert_allclose(model.project(views[index][:3], index), joint[:3], atol=1e-6)


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
    model = eager(DCCA([masked, Dense(4)], predictors(), epsilon=EPSILON, nan_is_missing=True))
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
    model = eager(DCCA([wide, Dense(3)], predictors(), epsilon=0.0, dtype="float64"))
    data = tf.data.Dataset.from_tensor_slices((tuple(views), np.zeros(150))).batch(60)
    model.build([x.shape for x in views])
    values = model.fit_projections(data)
    codes = [c.numpy() for c in model.encode(views)]
    linear = LinearCCA(3).fit(*codes)
    np.testing.assert_allclose(values, linear.correlations_, atol=1e-4)
    assert values[2] == 0.0 and values[1] > 0.1
    for index, joint in enumerate(map(linear.project, codes, range(2))):
        np.testing.assert_allclose(model.project(views[index], index), joint, atol=1e-3)


def test_maps_are_saved(fitted, tmp_path):
    model, views, *_ = fitted
    wanted = [model.project(x, j) for j, x in enumerate(views)]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for index, view in enumerate(views):
        np.testing.assert_allclose(again.project(view, index), wanted[index], atol=1e-6)
    assert not {"mean_0", "vectors_1"} & {v.name for v in model.trainable_variables}


def test_before_the_maps_are_fitted():
    model, views = model_of()
    model.fit_projections(views)
    model.project(views[0], 0)
    model.pretrain(views, batch_size=150, verbose=0)  # which changes the codes
    with pytest.raises(ValueError, match="call `fit_projections"):
        model.project(views[0], 0)
    in_graph = tf.function(lambda x: model.project(x, 0))(tf.constant(views[0]))
    assert in_graph.shape == (150, 2) and np.isnan(in_graph).all()
    with pytest.raises(ValueError, match="call `pretrain"):
        DCCA(encoders(), predictors()).fit_projections(views)
    with pytest.raises(ValueError, match=r"a model of two views that is built.*one of 3 views"):
        DCCA(encoders(3), predictors(3), num_components=2).fit_projections(make_data(9, 3)[0])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m, x: m.project(x[0], 2), "`index` must be 0 or 1. Received: index=2"),
        (lambda m, x: m.fit_projections([v[:1] for v in x]), "rows in both views, at least 2"),
        (lambda m, x: m.fit_projections([x[0] * np.nan, x[1]]), "`x` must .*finite numbers"),
        (lambda m, x: m.fit_projections(x[0]), "takes a list of 2 views"),
    ],
)
def test_bad_input(fitted, call, message):
    with pytest.raises(ValueError, match=message):
        call(*fitted[:2])


def test_a_missing_query_is_nan():
    views, _ = make_data(40)
    model = eager(MODELS["dcca"](nan_is_missing=True))
    model.pretrain(views, batch_size=40, verbose=0)
    model.fit_projections(views)
    query = views[0][:3].copy()
    before = model.project(query, 0).numpy()
    query[1] = np.nan
    found = model.project(query, 0).numpy()
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], before[[0, 2]], rtol=1e-6)
