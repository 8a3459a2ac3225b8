"""One of two processes of `MultiWorkerMirroredStrategy`, with a custom loop (TF_CONFIG is set).

Prints the largest differences to one device that has the rows of both as JSON.
"""

import json
import os

import numpy as np
import tensorflow as tf

from proxnet_tf import ProxCCA
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views
from tests.helpers.mirrored import error, steps_of

OPTIONS = dict(lam=0.5, split=(3, 4), dtype="float64", solver=Newton(1e-11, jit_compile=False))


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    x = shared_views(50, (3, 4), seed=5)
    cotangent = np.random.default_rng(6).normal(size=x.shape)
    expected = steps_of(ProxCCA(**OPTIONS))(tf.constant(x), tf.constant(cotangent))
    rows = slice(20) if rank == 0 else slice(20, None)
    with strategy.scope():
        layer = ProxCCA(synchronized=True, **OPTIONS)
        layer.build(x.shape)

    @tf.function
    def step(x, cotangent):
        return strategy.run(steps_of(layer), args=(x, cotangent))

    found = step(tf.constant(x[rows]), tf.constant(cotangent[rows]))
    difference = error([t.numpy() for t in found], [t.numpy()[rows] for t in expected])
    print("RESULT", json.dumps({"replicas": strategy.num_replicas_in_sync, "error": difference}))


if __name__ == "__main__":
    main()
