"""Rows that lack a view: drop them or keep them?

Digits seen through two feature extractors; a share of the 400 training rows lacks one of the views.
A classifier with `ProxCCA` between codes and predictors learns from the complete rows alone, or
from all rows. Then each predictor learns from the rows that have its view, and the layer passes
incomplete rows unchanged. Keeping the rows is what matters.

To copy: NaN for what is missing, `nan_is_missing=True`, and prediction from one view.
"""

import keras
import numpy as np
import show
from keras.layers import Dense

from proxnet_tf import MultiviewClassifier, ProxCCA
from proxnet_tf.datasets import load_multiple_features

SHARES = (0.0, 0.25, 0.5, 0.75)
WAYS = {"complete rows": True, "all rows": False}  # whether a row must have both views


def make_model(widths):
    encoders = [keras.Sequential([Dense(64, "relu"), Dense(6)]) for _ in widths]
    predictors = [Dense(10) for _ in widths]
    model = MultiviewClassifier(encoders, predictors, ProxCCA(), nan_is_missing=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
    model.build([(None, width) for width in widths])
    return model


def start_again(model, weights):
    """Sets the model back to its start, without compiling it again."""
    model.set_weights(weights)
    model.optimizer.iterations.assign(0)
    for state in model.optimizer.variables[2:]:  # after the steps and the learning rate
        state.assign(keras.ops.zeros_like(state))


def main(arguments=None, names=("fou", "zer"), seeds=3):
    options = show.options(__doc__, arguments)
    seeds, steps, shares = (1, 2, (0.5,)) if options.small else (seeds, 100, SHARES)
    views, labels = load_multiple_features(names)
    views = [(x - x.mean(0)) / x.std(0) for x in views.values()]
    model = make_model([x.shape[1] for x in views])
    errors = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        order, place, which = rng.permutation(2000), rng.random(400), rng.integers(0, 2, 400)
        train, test = order[:400], order[400:]
        keras.utils.set_random_seed(seed)
        weights = make_model([x.shape[1] for x in views]).get_weights()
        for share, (way, complete) in [(s, w) for s in shares for w in WAYS.items()]:
            lacks = [(place < share) & (which == j) for j in range(2)]
            pairs = zip(lacks, views, strict=True)
            known = [np.where(gone[:, None], np.nan, x[train]) for gone, x in pairs]
            rows = ~(lacks[0] | lacks[1]) | (not complete)
            start_again(model, weights)
            epochs = round(steps / np.ceil(rows.sum() / 100))  # of batches of 100
            given = [x[rows] for x in known], labels[train][rows]
            model.fit(*given, batch_size=100, epochs=epochs, verbose=0)
            for case, lost in (("both views", ()), ("one view", (0,)), ("one view", (1,))):
                shown = [x[test] * (np.nan if j in lost else 1) for j, x in enumerate(views)]
                wrong = np.argmax(model(shown), axis=1) != labels[test]
                errors.setdefault((way, case, share), []).append(100 * np.mean(wrong))
    header = ("test error, % (share lacking a view)", *(f"share {share:g}" for share in shares))
    keys = [(way, case) for case in ("both views", "one view") for way in WAYS]
    means = [[f"{np.mean(errors[(*key, share)]):.1f}" for share in shares] for key in keys]
    rows = [(f"{case}: {way}", *row) for (way, case), row in zip(keys, means, strict=True)]
    show.table(header, rows, options.output)
    return errors


if __name__ == "__main__":
    main()
