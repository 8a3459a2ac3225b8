"""What the metrics of two views cost.

python examples/benchmarks/metrics.py
"""

import argparse

import numpy as np
import tensorflow as tf
import timing

from proxnet_tf import CanonicalCorrelation, RecallAtK


def views(n, d):
    signal, *noise = np.random.default_rng(0).standard_normal((3, n, d)).astype("float32")
    return [tf.constant(signal + part) for part in noise]


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
    metrics = (RecallAtK(10), CanonicalCorrelation(10))
    return [updates(metric, n, 10) for metric in metrics for n in (32, 256)]


def main(arguments=None):
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
    for cells in (timing.HEADER, *benchmark()):
        print("|", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
