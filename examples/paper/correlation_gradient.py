"""Whether a training loss asks the encoders for correlation: with and without the proximal layer.

    python examples/paper/correlation_gradient.py

A network for two views of digits is trained without the layer for `--epochs`. On mini-batches of
its codes F it then compares the direction in which a gradient step moves F with the direction that
raises their total canonical correlation: the cosine of - dJ/dF and - dL/dF, for the loss J on F
itself (Vanilla), on the proximal map of F (ProxNet), with the envelope of that map added, and with
L added to the first loss (RRM). Both terms have the weight `--rrm-weight`. It also prints the share
of the squared gradient that reaches the rows without a label.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from digits import (
    Settings,
    add_data_arguments,
    check_data_arguments,
    fit,
    make_model,
    split_data,
    summary,
)
from report import markdown, write

from proxnet_tf import ProxCCA, cca_loss

LAMS = (0.1, 1.0, 10.0)
ROWS = 1200


def risk(model, features, labels, weights):
    """The training loss on given features."""
    logits = [p(f) for p, f in zip(model.predictors, features, strict=True)]
    losses = keras.losses.sparse_categorical_crossentropy(
        labels, tf.add_n(logits) / len(logits), from_logits=True
    )
    return tf.reduce_mean(weights * losses)


def compare(model, codes, labels, weights, layers, rrm_weight):
    """By method: the cosine, and the share of the unlabelled rows, in one mini-batch."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(codes)
        correlation = cca_loss(*codes)
        values = {"Vanilla": risk(model, codes, labels, weights)}
        values["RRM"] = values["Vanilla"] + rrm_weight * correlation
        for lam, layer in layers.items():
            moved = layer(codes, training=True)
            own = risk(model, moved, labels, weights)
            values[f"ProxNet, lam {lam:g}"] = own
            values[f"ProxNet with its envelope, lam {lam:g}"] = own + sum(layer.losses)
    rising = tf.concat(tape.gradient(correlation, codes), 1)
    found = {}
    for name, value in values.items():
        gradient = tf.concat(tape.gradient(value, codes), 1)
        cosine = tf.reduce_sum(gradient * rising) / (tf.norm(gradient) * tf.norm(rising))
        unlabelled = tf.norm(gradient[weights == 0]) ** 2 / tf.norm(gradient) ** 2
        found[name] = float(cosine), float(unlabelled)
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_data_arguments(parser)
    parser.set_defaults(epochs=3, labels_per_class=10)
    parser.add_argument("--rrm-weight", type=float, default=0.1)
    options = check_data_arguments(parser, parser.parse_args(arguments))
    if options.batch_size > ROWS:
        parser.error(f"--batch-size must be at most {ROWS}, the rows of the training part")
    settings = Settings(normalize=1)
    layers = {lam: ProxCCA(lam=lam, weight=options.rrm_weight) for lam in LAMS}
    found = {}
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        data = split_data(options.views[:2], seed, options.labels_per_class)
        views, labels, weights = data["train"]
        model = make_model("vanilla", [x.shape[1] for x in views], settings)
        fit(model, "vanilla", data, settings, options)
        order = np.random.default_rng(seed).permutation(len(labels))
        size = options.batch_size
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            codes = model.encode([x[rows] for x in views])
            one = compare(model, codes, labels[rows], weights[rows], layers, options.rrm_weight)
            for name, values in one.items():
                found.setdefault(name, []).append(values)
    rows = [(name, *map(summary, np.transpose(values))) for name, values in found.items()]
    table = markdown(("loss", "cosine with - dL/dF", "share of the unlabelled"), rows)
    print(table, end="")
    write(options.output / "correlation_gradient.md", table)
    return found


if __name__ == "__main__":
    main()
