"""A search with a build function of one's own: which lam, which width?

KerasTuner calls `build` with the hyperparameters of a trial. The proximal layer is part of the
model, so lam and the width of the codes are hyperparameters like any other.
(`proxnet_tf.tuning` has ready-made HyperModels that search the schedule of lam and the batch, too.)

To copy: `hp.Float("lam", ..., sampling="log")`, the plain `RandomSearch`. Needs the extra `tuner`.
"""

import tempfile

import keras
import keras_tuner
import numpy as np
import show
from keras.layers import Average, BatchNormalization, Dense

from proxnet_tf import ProxCCA
from proxnet_tf.datasets import load_multiple_features


def build(hp):
    width = hp.Choice("codes", [5, 10])
    lam = hp.Float("lam", 0.1, 100.0, sampling="log")
    inputs = [keras.Input((76,)), keras.Input((47,))]
    codes = [Dense(width)(Dense(128, "relu")(BatchNormalization()(x))) for x in inputs]
    codes = ProxCCA(width, lam=lam)(codes)
    model = keras.Model(inputs, Average()([Dense(10)(code) for code in codes]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(hp.Choice("learning_rate", [3e-3, 1e-2]))
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    return model


def main(arguments=None):
    options = show.options(__doc__, arguments)
    trials, epochs = (1, 1) if options.small else (6, 10)
    views, labels = load_multiple_features(["fou", "zer"])
    order = np.random.default_rng(0).permutation(2000)
    parts = [
        ([x[rows] for x in views.values()], labels[rows]) for rows in np.split(order, [1200, 1600])
    ]
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            build, "val_accuracy", max_trials=trials, seed=0, directory=folder
        )
        fit = {"epochs": epochs, "batch_size": 100, "verbose": 0}
        tuner.search(*parts[0], validation_data=parts[1], **fit)
        found = tuner.oracle.get_best_trials(trials)
    best = build(found[0].hyperparameters)
    best.fit(*parts[0], **fit)
    error = 100 * (1 - best.evaluate(*parts[2], verbose=0)[1])
    rows = [(*trial.hyperparameters.values.values(), 100 * (1 - trial.score)) for trial in found]
    header = (*found[0].hyperparameters.values, "validation error, %")
    show.table(header, rows, options.output)
    print(f"test error of the best, trained again: {error:.1f} %")
    return rows


if __name__ == "__main__":
    main()
