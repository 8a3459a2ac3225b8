"""Two views and few labels: does asking the views to agree help?

Digits seen through two feature extractors, 1200 of them, of which 5 of each class have a label.
Rows without a label get the weight 0: the classification loss leaves them out, and the correlation
of the two codes uses them. Four ways: neither, the correlation of the codes in the loss ("rrm"),
the proximal layer between codes and predictors ("prox"), and both, as published. The correlation in
the loss is what helps here (10 points); the layer alone does not: once it is off at test time,
little of it is left in the codes.

To copy: `sample_weight` for unlabelled rows, `MultiviewClassifier(correlation_weight=...)`.
"""

import keras
import numpy as np
import show
from keras.layers import BatchNormalization, Dense

from proxnet_tf import LambdaSchedule, MultiviewClassifier, linear_lambda
from proxnet_tf.datasets import load_multiple_features

METHODS = {
    "plain": {"method": "vanilla"},
    "correlation in the loss": {"method": "rrm", "correlation_weight": 0.1},
    "proximal layer": {"method": "prox", "lam": 0.3},
    "both": {"method": "prox", "lam": 0.3, "correlation_weight": 0.1},
}


def data(seed, labels_per_class):
    views, labels = load_multiple_features(["fou", "zer"])
    views = [(x - x.mean(0)) / x.std(0) for x in views.values()]
    order = np.random.default_rng(seed).permutation(2000)
    train, test = order[:1200], order[1200:]
    weights = np.zeros(1200, "float32")
    for label in range(10):
        weights[np.flatnonzero(labels[train] == label)[:labels_per_class]] = 1.0
    weights /= weights.mean()
    parts = [([x[rows] for x in views], labels[rows]) for rows in (train, test)]
    return (*parts[0], weights), parts[1]


def make_model(options):
    def encoder():
        norm = BatchNormalization(center=False, scale=False, momentum=0.9)
        return keras.Sequential([Dense(128, "relu"), Dense(10), norm])

    def predictor():
        return keras.Sequential([Dense(128, "relu"), Dense(10)])

    model = MultiviewClassifier([encoder(), encoder()], [predictor(), predictor()], **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False)
    return model


def main(arguments=None):
    options = show.options(__doc__, arguments)
    seeds, epochs = (1, 2) if options.small else (2, 20)
    errors = {name: [] for name in METHODS}
    for seed in range(seeds):
        (views, labels, weights), test = data(seed, labels_per_class=5)
        for name, method in METHODS.items():
            keras.utils.set_random_seed(seed)
            model = make_model(method)
            schedule = [LambdaSchedule(linear_lambda(0.3, 0.5))] if "lam" in method else []
            fit = {"epochs": epochs, "batch_size": 100, "callbacks": schedule, "verbose": 0}
            model.fit(views, labels, sample_weight=weights, **fit)
            errors[name].append(100 * (1 - model.evaluate(*test, verbose=0)[1]))
    rows = [(name, *(f"{f(e):.1f}" for f in (np.mean, min, max))) for name, e in errors.items()]
    show.table((f"test error, %, {seeds} seeds", "mean", "least", "most"), rows, options.output)
    return errors


if __name__ == "__main__":
    main()
