"""Swap an LSTM for a ProxLSTM: does it stand noise in its input better?

Nine speakers are told apart by a vowel. An LSTM is trained. Then the training goes on as long
again, once with the LSTM and once with `ProxLSTM.from_lstm(lstm, lam)` in its place. The proximal
layer has the same weights and moves each cell state towards one that changes less with the input.

To copy: `ProxLSTM.from_lstm`, masks included; the rest of the network stays.
"""

import keras
import numpy as np
import show
from keras.layers import LSTM, Dense, Masking

from proxnet_tf import ProxLSTM
from proxnet_tf.datasets import load_japanese_vowels

NOISES = (0.0, 0.5, 1.0)  # standard deviation, in units of a feature's own


def network(recurrent, head):
    inputs = keras.Input((29, 12))
    model = keras.Model(inputs, head(recurrent(Masking()(inputs))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False)
    return model


def main(arguments=None):
    options = show.options(__doc__, arguments)
    seeds, epochs = (1, 1) if options.small else (2, 20)
    train, test = load_japanese_vowels()
    steps = train.values[train.mask]
    mean, std = steps.mean(0), steps.std(0)
    x, x_test = (np.where(p.mask[..., None], (p.values - mean) / std, 0) for p in (train, test))
    found = {"LSTM": [], "ProxLSTM": []}
    for seed in range(seeds):
        keras.utils.set_random_seed(seed)
        lstm, head = LSTM(32, use_cudnn=False), Dense(9)
        fit = {"epochs": epochs, "batch_size": 30, "verbose": 0}
        model = network(lstm, head)
        model.fit(x, train.labels, **fit)
        start = model.get_weights()
        noise = np.random.default_rng(seed).normal(size=x_test.shape) * test.mask[..., None]
        for name in found:
            model.set_weights(start)
            layer = lstm if name == "LSTM" else ProxLSTM.from_lstm(lstm, lam=0.1)
            keras.utils.set_random_seed(seed)
            swapped = network(layer, head)
            swapped.fit(x, train.labels, **fit)
            scores = [
                swapped.evaluate(x_test + sigma * noise, test.labels, verbose=0)[1]
                for sigma in NOISES
            ]
            found[name].append([100 * score for score in scores])
    rows = [(name, *(f"{v:.1f}" for v in np.mean(runs, 0))) for name, runs in found.items()]
    header = (f"test accuracy, %, {seeds} seeds", *(f"noise {sigma}" for sigma in NOISES))
    show.table(header, rows, options.output)
    return found


if __name__ == "__main__":
    main()
