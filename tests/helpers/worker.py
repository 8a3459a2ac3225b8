"""One of two processes of `MultiWorkerStrategy` with `fit` (TF_CONFIG is set).

Prints what it found, and the first worker the difference to one device, as JSON.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import MultiWorkerStrategy, ProxCCA
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views
from tests.helpers.mirrored import error

OPTIONS = dict(lam=0.5, split=(3, 4), solver=Newton(1e-11, jit_compile=False))


def fitted(scope, eagerly=False):
    """Weights and history of a model whose last batch of validation does not divide evenly."""
    x = shared_views(40, (3, 4), seed=7).astype("float32")
    y = x[:, :1] - x[:, 3:4]
    with scope:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(7), ProxCCA(synchronized=True, **OPTIONS)]
        model = keras.Sequential([keras.Input((7,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=eagerly)
    start = model.get_weights()
    fit = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x[:15], y[:15]), **fit).history
    moved = error(model.get_weights(), start)
    return model.get_weights(), {name: np.array(values) for name, values in history.items()}, moved


def main():
    strategy = MultiWorkerStrategy()
    found = {"replicas": strategy.num_replicas_in_sync, "chief": strategy.is_chief}
    if strategy.is_chief:
        expected, whole, _ = fitted(tf.device("CPU:0"), eagerly=True)
    weights, history, found["moved"] = fitted(strategy.scope())
    found["names"] = sorted(history)
    if strategy.is_chief:
        found["weights"] = error(weights, expected)
        found["history"] = error([history[name] for name in whole], whole.values())
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
