"""Query by sketch: does a drawing find the one digit that it was made from?

A photo is a digit of 16 x 15 pixels. Its sketch is the outline, shifted by at most one pixel,
without a fifth of its points. `LinearCCA` and `DCCA` learn from 1200 pairs; then 800 new sketches
and photos look for their partners, by the cosine. With the canonical variates of linear CCA 51 %
find their partner among the first ten of 800, with those of DCCA 61 %, with the pixels 24 %. The
settings were tried by hand on these data. The figure shows six sketches and what is most similar to
them; a frame marks the photo that a sketch was made from.

To copy: `RecallAtK`; `LinearCCA` of the codes of a `DCCA`, and `project` for a query of one view.
"""

import keras
import numpy as np
import show
from keras.layers import Dense, Dropout

from proxnet_tf import DCCA, LinearCCA, RecallAtK
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
    return model.encode


def variates(cca, views):
    return [cca.project(np.asarray(view), j) for j, view in enumerate(views)]


def main(arguments=None):
    options = show.options(__doc__, arguments)
    images = data()
    train, test = ([x[part].reshape(-1, 306) for x in images] for part in (TRAIN, TEST))
    encode = learnt(train, 2 if options.small else 60)
    # The codes of two views agree only up to a linear map of each, which linear CCA finds.
    linear, deep = LinearCCA(16, ridge=1.0), LinearCCA(16, ridge=0.1)
    codes = {"pixels": test, "LinearCCA": variates(linear.fit(*train), test)}
    codes["DCCA"] = variates(deep.fit(*encode(train)), encode(test))
    header = ("compared by", "recall at 1", "recall at 10", "recall at 100")
    rows = [
        (name, *(float(RecallAtK(k)(None, pair)) for k in (1, 10, 100)))
        for name, pair in codes.items()
    ]
    show.table(header, rows, options.output)
    sketches, photos = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in codes["DCCA"])
    return images[0][TEST], images[1][TEST], sketches @ photos.T


if __name__ == "__main__":
    main()
