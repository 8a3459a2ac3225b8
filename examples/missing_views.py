"""Three views, some of them missing: keep the incomplete rows, or drop them?

Digits seen through three feature extractors; each view of a training row is missing with
probability 0.3. A model predicts by the mean of the logits of the views that are there. It is
trained on the complete rows alone, or on all of them, with and without `ProxGCCA`: rows that lack a
view pass the layer unchanged, and it solves for the others as if they were alone. Keeping the rows
halves the error; the layer makes no difference to these views.

To copy: one mask a view, from NaN in the data to the layer and to the mean of the logits.
"""

import keras
import numpy as np
import show
from keras import ops
from keras.layers import Dense

from proxnet_tf import ProxGCCA
from proxnet_tf.datasets import load_multiple_features


class Incomplete(keras.Model):
    """Predicts from the views that are there; NaN marks one that is not."""

    def __init__(self, num_views, prox=None):
        super().__init__()
        hidden = [Dense(128, activation="relu") for _ in range(num_views)]
        self.encoders = [keras.Sequential([h, Dense(8)]) for h in hidden]
        self.heads = [Dense(10) for _ in range(num_views)]
        self.prox = prox

    def call(self, views, training=False):
        there = [ops.logical_not(ops.isnan(x[:, 0])) for x in views]
        codes = [e(ops.nan_to_num(x)) for e, x in zip(self.encoders, views, strict=True)]
        if self.prox is not None:
            codes = self.prox(codes, training=training, mask=there)
        total, count = 0.0, 0.0
        for head, code, has in zip(self.heads, codes, there, strict=True):
            total += ops.where(has[:, None], head(code), 0.0)
            count += ops.cast(has, "float32")[:, None]
        return total / ops.maximum(count, 1.0)


def main(arguments=None):
    options = show.options(__doc__, arguments)
    seeds, epochs = (1, 2) if options.small else (2, 10)
    views, labels = load_multiple_features(["fou", "kar", "zer"])
    views = [(x - x.mean(0)) / x.std(0) for x in views.values()]
    errors = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        order = rng.permutation(2000)
        train, test = order[:1000], order[1000:]
        missing = rng.random((1000, 3)) < 0.3
        missing[missing.all(1), 0] = False  # a row without any view says nothing
        known = [
            np.where(m[:, None], np.nan, x[train]) for m, x in zip(missing.T, views, strict=True)
        ]
        complete = ~missing.any(1)
        for rows, which in (("complete rows", complete), ("all rows", slice(None))):
            for layer in ("", " + ProxGCCA"):
                keras.utils.set_random_seed(seed)
                model = Incomplete(3, ProxGCCA(8, lam=3.0) if layer else None)
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
                fit = {"epochs": epochs, "batch_size": 100, "verbose": 0}
                model.fit([x[which] for x in known], labels[train][which], **fit)
                for case, drop in (("three views", ()), ("one view", (0, 2))):
                    shown = [x[test] * (np.nan if j in drop else 1) for j, x in enumerate(views)]
                    accuracy = model.evaluate(shown, labels[test], verbose=0)[1]
                    errors.setdefault((rows + layer, case), []).append(100 * (1 - accuracy))
    names = dict.fromkeys(name for name, _ in errors)
    cases = ("three views", "one view")
    rows = [(name, *(f"{np.mean(errors[name, case]):.1f}" for case in cases)) for name in names]
    show.table(("test error, %, trained on", *cases), rows, options.output)
    return errors


if __name__ == "__main__":
    main()
