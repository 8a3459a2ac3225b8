"""Query by sketch: does a drawing find the digit that it was made from?

The photo is a digit of 16 x 15 pixels. The sketch is its outline, moved and with strokes missing.
`LinearCCA` on the two, and `DCCA` with a network for each, learn from 1200 pairs; then each of 800
new sketches looks for its own photo among 800, by the cosine. The pixels themselves, linear
projections and learnt ones are compared by three metrics. The figure of `--output` shows hits.

To copy: `RecallAtK`, `MedianRank`, and `DCCA.fit_projections` and `project` for one view alone.
"""

import keras
import numpy as np
from keras.layers import Dense

from proxnet_tf import DCCA


def sketches_of(photos, rng):
    """The outline of each digit, a pixel up or down and left or right, with a fifth missing."""
    dark = np.pad(photos.reshape(-1, 16, 15) > 2, [(0, 0), (2, 2), (2, 2)])
    inside = dark[:, :-2, 1:-1] & dark[:, 2:, 1:-1] & dark[:, 1:-1, :-2] & dark[:, 1:-1, 2:]
    outline = dark[:, 1:-1, 1:-1] & ~inside
    moved = [np.roll(x, rng.integers(-1, 2, 2), (0, 1)) for x in outline]
    drawn = np.stack(moved) & (rng.random((len(photos), 18, 17)) > 0.2)
    return drawn.reshape(len(photos), -1)[:, :].astype("float32")


def learnt(sketches, photos, epochs):
    keras.utils.set_random_seed(0)
    encoders = [keras.Sequential([Dense(256, "relu"), Dense(32)]) for _ in range(2)]
    model = DCCA(encoders, [Dense(10), Dense(10)], epsilon=1e-2)
    fit = {"epochs": epochs, "batch_size": 400, "verbose": 0}
    model.pretrain([sketches, photos], optimizer=keras.optimizers.Adam(1e-3), **fit)
    model.fit_projections([sketches, photos])
    return model
