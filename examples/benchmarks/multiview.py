"""What comes around the proximal layer of two views: rows that lack a view, and metrics.

python examples/benchmarks/multiview.py
"""

import argparse

import numpy as np
import tensorflow as tf
import timing

from proxnet_tf import CanonicalCorrelation, ProxCCA, RecallAtK
from proxnet_tf.metrics import MeanReciprocalRank, MedianRank


def step_of(layer, views, mask=None):
    """A training step of a layer, forward and backward, of two views."""

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            outputs = layer([x, y], training=True, mask=mask)
            loss = tf.add_n([tf.reduce_sum(z**2) for z in outputs])
        return tape.gradient(loss, [x, y])

    return lambda: step(*views)


def views(n, d):
    signal, *noise = np.random.default_rng(0).standard_normal((3, n, d)).astype("float32")
    return [tf.constant(signal + part) for part in noise]


def missing(n, d, share=0.5):
    """A step on rows of which a share lacks a view, by pairs of views and without those rows."""
    draw = np.random.default_rng(1).random((n, 2))
    lacking = draw[:, 0] < share
    masks = [~lacking | (draw[:, 1] < 0.5), ~lacking | (draw[:, 1] >= 0.5)]
    masks = [tf.constant(mask) for mask in masks]
    ways = ("pairwise", "drop")
    layers = [ProxCCA(lam=1.0, epsilon=1e-2, missing=way) for way in ways]
    ours, reference = (step_of(layer, views(n, d), masks) for layer in layers)
    case = (
        f"missing='pairwise' against 'drop', n = {n}, d = {d}, {share:.0%} of the rows lack a view"
    )
    return timing.row(case, timing.compare(ours, reference))


def updates(metric, n, d, filled=4096):
    """An update of a metric by n rows, with its memory full, against the product of the views."""
    pair = views(n, d)
    for _ in range(filled // n):
        metric.update_state(None, pair)
    update = tf.function(lambda x, y: metric.update_state(None, [x, y]))
    product = tf.function(lambda x, y: tf.matmul(x, y, transpose_b=True))
    found = timing.compare(lambda: update(*pair), lambda: product(*pair), repeats=15)
    return timing.row(f"{type(metric).__name__}, an update by n = {n}, d = {d}", found)


def benchmark():
    """Every row of the table; see timing.py."""
    metrics = (RecallAtK(10), MeanReciprocalRank(), MedianRank(), CanonicalCorrelation(10))
    return [
        *(missing(n, d) for n, d in ((100, 20), (32_000, 20))),
        *(updates(metric, n, 10) for metric in metrics for n in (32, 256)),
    ]


def main(arguments=None):
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
    for cells in (timing.HEADER, *benchmark()):
        print("|", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
