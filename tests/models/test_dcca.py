"""DCCA and DCCAE: their two stages."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import DCCAE, CanonicalCorrelation, cca_loss, gcca_loss
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
