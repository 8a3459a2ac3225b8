"""Rows that lack a view: drop them, keep them, or use the pairs of views that they have?

Digits seen through two feature extractors; a share of the 400 training rows lacks one of the views.
A classifier with `ProxCCA` between codes and predictors learns from the complete rows alone, or
from all rows. In the second case each predictor learns from the rows that have its view, and the
layer either leaves incomplete rows alone (missing="drop") or uses them, too (missing="pairwise").
Keeping the rows matters most; which of the two ways the layer takes matters little here.

To copy: NaN for what is missing, `nan_is_missing=True`, and prediction from one view.
"""

import keras
import numpy as np
import show
from keras.layers import Dense

from proxnet_tf import MultiviewClassifier
from proxnet_tf.datasets import load_multiple_features

SHARES = (0.0, 0.25, 0.5, 0.75)
WAYS = {  # which rows, and what the layer makes of incomplete ones
    "complete rows": (True, "drop"),
    "all rows, drop": (False, "drop"),
    "all rows, pairwise": (False, "pairwise"),
}


def make_model(missing, widths):
    encoders = [keras.Sequential([Dense(64, "relu"), Dense(6)]) for _ in widths]
    predictors = [Dense(10) for _ in widths]
    model = MultiviewClassifier(encoders, predictors, nan_is_missing=True, missing=missing)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
    model.build([(None, width) for width in widths])
    return model


def start_again(model, seed):
    """Other first weights, without compiling the model again."""
    keras.utils.set_random_seed(seed)
    other = make_model("drop", [encoder.input_shape[-1] for encoder in model.encoders])
    model.set_weights(other.get_weights())
    for state in model.optimizer.variables[2:]:  # the first two: steps and learning rate
        state.assign(keras.ops.zeros_like(state))
    model.optimizer.iterations.assign(0)


def main(arguments=None, names=("fou", "zer"), seeds=3):
    options = show.options(__doc__, arguments)
    seeds, steps, shares = (1, 2, (0.5,)) if options.small else (seeds, 100, SHARES)
    views, labels = load_multiple_features(names)
    views = [(x - x.mean(0)) / x.std(0) for x in views.values()]
    models = {how: make_model(how, [x.shape[1] for x in views]) for how in ("drop", "pairwise")}
    errors = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        order, place, which = rng.permutation(2000), rng.random(400), rng.integers(0, 2, 400)
        train, test = order[:400], order[400:]
        for share in shares:
            lacks = place < share
            known = [x[train].copy() for x in views]
            for j, x in enumerate(known):
                x[lacks & (which == j)] = np.nan
            for way, (complete_only, missing) in WAYS.items():
                rows, model = ~lacks if complete_only else slice(None), models[missing]
                start_again(model, seed)
                given = [x[rows] for x in known], labels[train][rows]
                per_epoch = -(-len(given[1]) // 100)
                model.fit(*given, batch_size=100, epochs=-(-steps // per_epoch), verbose=0)
                for case, lost in (("both views", ()), ("one view", (0,)), ("one view", (1,))):
                    shown = [x[test] * (np.nan if j in lost else 1) for j, x in enumerate(views)]
                    wrong = np.argmax(model(shown), axis=1) != labels[test]
                    errors.setdefault((way, case, share), []).append(100 * np.mean(wrong))
    header = (
        "test error, %, predicted from",
        *(f"{share:.0%} of rows lack one" for share in shares),
    )
    rows = [
        (f"{case}: {way}", *(f"{np.mean(errors[way, case, share]):.1f}" for share in shares))
        for case in ("both views", "one view")
        for way in WAYS
    ]
    show.table(header, rows, options.output)
    return errors


if __name__ == "__main__":
    main()
