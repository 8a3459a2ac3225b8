"""One of two processes of `MultiWorkerStrategy` (TF_CONFIG is set): a loop of its own, and `fit`.

Prints the largest differences to one device that has the rows of both as JSON.
"""

import json
import os

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import MultiWorkerStrategy, ProxCCA
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views
from tests.helpers.mirrored import error, steps_of

OPTIONS = dict(lam=0.5, split=(3, 4), solver=Newton(1e-11, jit_compile=False))


def loop(strategy, rank):
    """A step of `strategy.run` with an uneven share of the rows."""
    x = shared_views(50, (3, 4), seed=5)
    cotangent = np.random.default_rng(6).normal(size=x.shape)
    alone = ProxCCA(dtype="float64", **OPTIONS)
    expected = steps_of(alone)(tf.constant(x), tf.constant(cotangent))
    rows = slice(20) if rank == 0 else slice(20, None)
    with strategy.scope():
        layer = ProxCCA(synchronized=True, dtype="float64", **OPTIONS)
        layer.build(x.shape)

    @tf.function
    def step(x, cotangent):
        return strategy.run(steps_of(layer), args=(x, cotangent))

    found = step(tf.constant(x[rows]), tf.constant(cotangent[rows]))
    return error([t.numpy() for t in found], [t.numpy()[rows] for t in expected])


def fitted(scope):
    """Weights and history of a model whose last batch of validation does not divide evenly."""
    x = shared_views(40, (3, 4), seed=7).astype("float32")
    y = x[:, :1] - x[:, 3:4]
    with scope:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(7), ProxCCA(synchronized=True, **OPTIONS)]
        model = keras.Sequential([keras.Input((7,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    start = model.get_weights()
    fit = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x[:15], y[:15]), **fit).history
    moved = error(model.get_weights(), start)
    return model.get_weights(), {name: np.array(values) for name, values in history.items()}, moved


def main():
    strategy = MultiWorkerStrategy()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    found = {"replicas": strategy.num_replicas_in_sync, "chief": strategy.is_chief}
    found["loop"] = loop(strategy, rank)
    weights, history, found["moved"] = fitted(strategy.scope())
    found["history"] = {name: values.tolist() for name, values in history.items()}
    if rank == 0:
        expected, other, _ = fitted(tf.device("CPU:0"))
        found["weights"] = error(weights, expected)
        found["other history"] = {name: values.tolist() for name, values in other.items()}
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
