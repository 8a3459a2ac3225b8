"""One of two processes of `MultiWorkerStrategy` that fit a model; TF_CONFIG says which.

With a directory BACKUP there are four epochs instead of two, which are backed up there, and with
KILL=1 the second worker is killed in the second batch of the third. Prints as JSON what it found:
the chief the largest differences to one device that was never interrupted.
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import LambdaSchedule, MultiWorkerStrategy, ProxCCA, linear_lambda
from proxnet_tf.solvers import Newton
from tests.helpers.data import COMPONENTS, SIZES, shared_views
from tests.helpers.replicas import alone, error, steps_of

DATA = shared_views(40, SIZES, seed=3).astype("float32")
VIEWS = [DATA[:, :3], DATA[:, 3:]]
LABELS = (DATA[:, 0] > DATA[:, 4]).astype("int64")
BACKUP = os.environ.get("BACKUP")


def uneven_step(strategy):
    """Error of a step of `strategy.run` in which the workers' shares of the rows differ."""
    x = shared_views(50, SIZES, seed=5)
    cotangent = np.random.default_rng(6).normal(size=x.shape)
    options = dict(
        num_components=COMPONENTS, lam=0.5, split=SIZES, solver=Newton(1e-11, jit_compile=False)
    )
    expected = alone(steps_of(ProxCCA(dtype="float64", **options)), x, cotangent)
    rows = slice(20) if strategy.is_chief else slice(20, None)
    with strategy.scope():
        layer = ProxCCA(synchronized=True, dtype="float64", **options)
        layer.build(x.shape)
    step = tf.function(lambda *values: strategy.run(steps_of(layer), args=values))
    found = step(tf.constant(x[rows]), tf.constant(cotangent[rows]))
    return error([t.numpy() for t in found], [value[rows] for value in expected])


class Killed(keras.callbacks.Callback):
    """The process gets a signal that it cannot catch."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch == 2 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def fitted(scope, callbacks=(), eagerly=False):
    """A model and its history; the last batch of validation divides unevenly."""
    keras.utils.set_random_seed(0)
    with scope:
        inputs = [keras.Input((3,)), keras.Input((4,))]
        codes = ProxCCA(
            COMPONENTS,
            lam=0.5,
            synchronized=True,
            inference="moving",
            monitor=True,  # Keras reads the monitor's values when one worker saves
            solver=Newton(jit_compile=False),
        )([keras.layers.Dense(3)(x) for x in inputs])
        logits = keras.layers.Average()([keras.layers.Dense(2)(code) for code in codes])
        model = keras.Model(inputs, logits)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        adam = keras.optimizers.Adam(0.01)
        model.compile(adam, loss, metrics=["accuracy"], run_eagerly=eagerly)
    history = model.fit(
        VIEWS,
        LABELS,
        batch_size=20,
        epochs=4 if BACKUP else 2,
        shuffle=False,
        verbose=0,
        validation_data=([view[:15] for view in VIEWS], LABELS[:15]),
        callbacks=[LambdaSchedule(linear_lambda(0.5, 1.0)), *callbacks],
    )
    return model, history


def predicted(model):
    return model.predict(VIEWS, batch_size=20, verbose=0)


def main():
    strategy = MultiWorkerStrategy()
    chief, callbacks = strategy.is_chief, []
    found = {"replicas": strategy.num_replicas_in_sync, "chief": chief}
    if BACKUP:
        save_freq = "epoch" if chief else sys.maxsize
        backup = keras.callbacks.BackupAndRestore(
            Path(BACKUP, "backup"), save_freq=save_freq, delete_checkpoint=chief
        )
        saved = keras.callbacks.ModelCheckpoint(Path(BACKUP, "model.keras"))
        callbacks = [backup, saved] if chief else [backup]
    if os.environ.get("KILL"):
        callbacks += [] if chief else [Killed()]
    elif chief:
        one, whole = fitted(tf.device("CPU:0"), eagerly=True)
    model, history = fitted(strategy.scope(), callbacks)
    found |= {"epochs": history.epoch, "names": sorted(history.history)}
    if chief:
        found["weights"] = error(model.get_weights(), one.get_weights())
        first = history.epoch[0]
        found["history"] = {
            name: error([np.array(values[first:])], [np.array(history.history[name])])
            for name, values in whole.history.items()
        }
    if BACKUP:
        found["uneven step"] = uneven_step(strategy)
        prediction = predicted(model)
        if chief:
            found["prediction"] = error([prediction], [predicted(one)])
            reloaded = keras.models.load_model(Path(BACKUP, "model.keras"))
            found["checkpoint"] = error(reloaded.get_weights(), model.get_weights())
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
