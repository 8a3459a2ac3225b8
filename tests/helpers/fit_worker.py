"""One of two processes that fit a classifier and back it up in the directory BACKUP.

TF_CONFIG says which. With KILL=1 the second worker is killed in the second batch of the third of
four epochs. The chief prints the largest differences to one device that was never interrupted.
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import (
    LambdaSchedule,
    MultiviewClassifier,
    MultiWorkerStrategy,
    ProxCCA,
    linear_lambda,
)
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views
from tests.helpers.mirrored import error, steps_of

DATA = shared_views(40, (3, 4), seed=3).astype("float32")
VIEWS = [DATA[:, :3], DATA[:, 3:]]
LABELS = (DATA[:, 0] > DATA[:, 4]).astype("int64")
EPOCHS = 4


def loop(strategy):
    """Error of a step of `strategy.run` with an uneven share of the rows."""
    x = shared_views(50, (3, 4), seed=5)
    cotangent = np.random.default_rng(6).normal(size=x.shape)
    options = dict(lam=0.5, split=(3, 4), solver=Newton(1e-11, jit_compile=False))
    alone = ProxCCA(dtype="float64", **options)
    expected = steps_of(alone)(tf.constant(x), tf.constant(cotangent))
    rows = slice(20) if strategy.is_chief else slice(20, None)
    with strategy.scope():
        layer = ProxCCA(synchronized=True, dtype="float64", **options)
        layer.build(x.shape)

    @tf.function
    def step(x, cotangent):
        return strategy.run(steps_of(layer), args=(x, cotangent))

    found = step(tf.constant(x[rows]), tf.constant(cotangent[rows]))
    return error([t.numpy() for t in found], [t.numpy()[rows] for t in expected])


class Killed(keras.callbacks.Callback):
    """The process gets a signal that it cannot catch."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch == 2 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def fitted(scope, callbacks):
    keras.utils.set_random_seed(0)
    with scope:
        model = MultiviewClassifier(
            [keras.layers.Dense(3), keras.layers.Dense(3)],
            [keras.layers.Dense(2), keras.layers.Dense(2)],
            ProxCCA(
                lam=0.5,
                synchronized=True,
                inference="moving",
                monitor=True,  # Keras reads the monitor's values when one worker saves
                solver=Newton(jit_compile=False),
            ),
        )
        model.build([(None, 3), (None, 4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    validation = [view[:15] for view in VIEWS], LABELS[:15]
    history = model.fit(
        VIEWS,
        LABELS,
        batch_size=20,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=validation,
        callbacks=[LambdaSchedule(linear_lambda(0.5, 1.0)), *callbacks],
    )
    prediction = model.predict(VIEWS, batch_size=20, verbose=0)
    return model, history, prediction


def main():
    strategy = MultiWorkerStrategy()
    chief, directory = strategy.is_chief, Path(os.environ["BACKUP"])
    save_freq = "epoch" if chief else sys.maxsize
    callbacks = [
        keras.callbacks.BackupAndRestore(
            directory / "backup", save_freq=save_freq, delete_checkpoint=chief
        )
    ]
    found = {}
    if os.environ.get("KILL"):
        callbacks += [] if chief else [Killed()]
    else:
        found["loop"] = loop(strategy)
        if chief:
            alone, whole, expected = fitted(tf.device("CPU:0"), [])
    if chief:
        callbacks.append(keras.callbacks.ModelCheckpoint(directory / "model.keras"))
    model, history, prediction = fitted(strategy.scope(), callbacks)
    found |= {"epochs": history.epoch, "backup": (directory / "backup").exists()}
    if chief:
        saved = keras.models.load_model(directory / "model.keras")
        found["checkpoint"] = error(saved.get_weights(), model.get_weights())
        found["weights"] = error(model.get_weights(), alone.get_weights())
        found["prediction"] = error([prediction], [expected])
        found["history"] = {
            name: error([np.array(values[2:])], [np.array(history.history[name])])
            for name, values in whole.history.items()
        }
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
