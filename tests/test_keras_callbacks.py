"""Keras's own callbacks around a model with a proximal layer and a lam schedule."""

import keras
import numpy as np
import pytest

from proxnet_tf import LambdaSchedule, ProxCCA, linear_lambda
from proxnet_tf.solvers import Newton
from tests.helpers.data import COMPONENTS, SIZES, shared_views

X = shared_views(48, SIZES, seed=1).astype("float32")
TARGET = X[:, :1] - X[:, 3:4]


def make_model():
    keras.utils.set_random_seed(0)
    layer = ProxCCA(
        COMPONENTS,
        lam=7.0,
        inference="moving",
        momentum=0.5,
        monitor=True,
        split=SIZES,
        solver=Newton(jit_compile=False),
    )
    model = keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(7), layer, keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    return model


def fit(model, *callbacks, epochs=5):
    return model.fit(
        X[:32],
        TARGET[:32],
        validation_data=(X[32:], TARGET[32:]),
        batch_size=16,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[LambdaSchedule(linear_lambda(0.5, 1.0)), *callbacks],
    ).history


def lam_of(model):
    return float(model.layers[1].lam)


@pytest.fixture(scope="module")
def uninterrupted():
    model = make_model()
    return fit(model), model.get_weights()


@pytest.mark.slow
def test_checkpoint_of_the_best_epoch_has_its_lam(tmp_path, uninterrupted):
    path = tmp_path / "best.keras"
    history = fit(
        make_model(),
        keras.callbacks.ModelCheckpoint(
            path, monitor="val_correlation", mode="min", save_best_only=True
        ),
    )
    np.testing.assert_allclose(history["loss"], uninterrupted[0]["loss"], rtol=1e-4)
    best = int(np.argmin(history["val_correlation"]))
    reloaded = keras.saving.load_model(path)
    assert lam_of(reloaded) == history["lam"][best] == 0.5 * (best + 1)
    value = reloaded.evaluate(X[32:], TARGET[32:], batch_size=16, verbose=0, return_dict=True)
    np.testing.assert_allclose(value["loss"], history["val_loss"][best], rtol=1e-4)


def test_early_stopping_restores_the_best_epoch():
    stop = keras.callbacks.EarlyStopping(
        monitor="val_correlation", mode="max", patience=1, restore_best_weights=True
    )
    model = make_model()
    best = int(np.argmax(fit(model, stop)["val_correlation"]))
    assert stop.best_epoch == best
    assert lam_of(model) == 0.5 * (best + 1)


@pytest.mark.slow
def test_backup_and_restore_continue_an_interrupted_run(tmp_path, uninterrupted):
    history, weights = uninterrupted

    class Killed(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if len(self.model.history.epoch) == 3 and batch == 1:  # in the fourth epoch
                raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(make_model(), keras.callbacks.BackupAndRestore(tmp_path / "backup"), Killed())
    model = make_model()
    resumed = fit(model, keras.callbacks.BackupAndRestore(tmp_path / "backup"))
    assert resumed["lam"] == history["lam"][3:] == [2.0, 2.5]
    for name in ("loss", "val_loss", "correlation", "val_correlation"):
        np.testing.assert_allclose(resumed[name], history[name][3:], rtol=1e-4)
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
