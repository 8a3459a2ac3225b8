"""Query by sketch: does a drawing find the one digit that it was made from?

A photo is a digit of 16 x 15 pixels. Its sketch is the outline, moved by a pixel or none, without a
fifth of its points. `LinearCCA` and `DCCA` learn from 1200 pairs; then 800 new sketches and photos
look for their partners, by the cosine. Of the canonical variates of linear CCA 51 % have theirs
among the first ten of 800, of those of DCCA 61 %, of the pixels 24 %. The settings were tried by
hand on these data. The figure shows six sketches and what is most similar to them; a frame marks
the photo that a sketch was made from.

To copy: `RecallAtK` and `MedianRank`; `fit_projections`, and `project` for a query of one view.
"""

import keras
import numpy as np
import show
from keras.layers import Dense, Dropout

from proxnet_tf import DCCA, LinearCCA, MeanReciprocalRank, MedianRank, RecallAtK
from proxnet_tf.datasets import load_multiple_features

TRAIN, TEST = slice(1200), slice(1200, None)


def data():
    """Sketches and photos `(2000, 18, 17)`, row by row of the same digit."""
    rng = np.random.default_rng(0)
    pixels = load_multiple_features(["pix"])[0]["pix"][rng.permutation(2000)]
    photos = np.pad(pixels.reshape(-1, 16, 15) / 6, [(0, 0), (1, 1), (1, 1)])
    dark = np.pad(photos > 0.4, [(0, 0), (1, 1), (1, 1)])
    inside = dark[:, :-2, 1:-1] & dark[:, 2:, 1:-1] & dark[:, 1:-1, :-2] & dark[:, 1:-1, 2:]
    outlines = dark[:, 1:-1, 1:-1] & ~inside
    moved = np.stack([np.roll(x, rng.integers(-1, 2, 2), (0, 1)) for x in outlines])
    return (moved & (rng.random(moved.shape) > 0.2)).astype("float32"), photos.astype("float32")


def learnt(views, epochs):
    keras.utils.set_random_seed(0)

    def encoder():
        return keras.Sequential([Dropout(0.3), Dense(512, "relu"), Dropout(0.5), Dense(16)])

    model = DCCA([encoder(), encoder()], [Dense(10), Dense(10)], epsilon=0.1)
    model.pretrain(views, epochs=epochs, batch_size=400, verbose=0)
    model.fit_projections(views)
    return model


def main(arguments=None):
    options = show.options(__doc__, arguments)
    images = data()
    train, test = ([x[part].reshape(-1, 306) for x in images] for part in (TRAIN, TEST))
    linear, networks = (
        LinearCCA(16, ridge=1.0).fit(*train),
        learnt(train, 2 if options.small else 60),
    )
    codes = {"pixels": test}
    for name, model in (("LinearCCA", linear), ("DCCA", networks)):
        codes[name] = [np.asarray(model.project(x, j)) for j, x in enumerate(test)]
    header = ("compared by", "recall at 1", "recall at 10", "mean of 1/rank", "median rank")
    rows = []
    for name, pair in codes.items():
        metrics = RecallAtK(1), RecallAtK(10), MeanReciprocalRank(), MedianRank()
        rows.append((name, *(float(metric(None, pair)) for metric in metrics)))
    show.table(header, rows, options.output)
    sketches, photos = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in codes["DCCA"])
    return images[0][TEST], images[1][TEST], sketches @ photos.T


if __name__ == "__main__":
    main()
