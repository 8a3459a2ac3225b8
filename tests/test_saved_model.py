import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views

ROOT = pathlib.Path(__file__).parents[1]

# Runs in a process of its own, without the package: values and gradients of every saved model.
CLIENT = """
import sys
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
data = np.load(folder + "/data.npz")
answers = {}
for name in sys.argv[2:]:
    model = tf.saved_model.load(f"{folder}/{name}")
    call = model.serve if hasattr(model, "serve") else model.__call__
    x = tf.constant(data["x"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = call(x)
    answers[name + " output"] = output.numpy()
    answers[name + " gradient"] = tape.gradient(output, x, tf.constant(data["cotangent"])).numpy()
    answers[name + " one row"] = call(x[:1]).numpy()
assert not any(name.split(".")[0] == "proxnet_tf" for name in sys.modules)
np.savez(folder + "/answers.npz", **answers)
"""


def build(inference, monitor=False):
    keras.utils.set_random_seed(0)
    layer = ProxCCA(
        2, lam=0.1, inference=inference, momentum=0.5, split=(3, 4), monitor=monitor,
        solver=Newton(jit_compile=inference == "batch"),
    )  # fmt: skip
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7), layer])
    model(np.random.default_rng(1).normal(size=(12, 5)).astype("float32"), training=True)
    return model


class Served(tf.Module):
    """The model as a plain TensorFlow module with one signature."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.parts = [v.value for v in model.variables]  # what TensorFlow has to track

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.float32)])
    def serve(self, x):
        return self.model(x, training=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models, inputs, and what the process without the package made of them."""
    folder = tmp_path_factory.mktemp("saved")
    rng = np.random.default_rng(0)
    x = shared_views(9, (2, 3)).astype("float32")
    cotangent = rng.normal(size=(9, 7)).astype("float32")
    np.savez(folder / "data.npz", x=x, cotangent=cotangent)
    models = {}
    for inference in ("identity", "batch", "moving"):
        model = build(inference)
        models[f"{inference}-export"] = models[f"{inference}-save"] = model
        model.export(str(folder / f"{inference}-export"), verbose=False)
        tf.saved_model.save(Served(model), str(folder / f"{inference}-save"))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", CLIENT, str(folder), *models]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    with np.load(folder / "answers.npz") as answers:
        return models, x, cotangent, dict(answers), folder


NAMES = [f"{i}-{how}" for i in ("identity", "batch", "moving") for how in ("export", "save")]


@pytest.mark.parametrize("name", NAMES)
def test_same_values_and_gradient_without_the_package(saved, name):
    models, x, cotangent, answers, _ = saved
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = models[name](variable)
    gradient = tape.gradient(output, variable, tf.constant(cotangent))
    np.testing.assert_allclose(answers[name + " output"], output, atol=1e-5)
    np.testing.assert_allclose(answers[name + " gradient"], gradient, atol=1e-4)
    np.testing.assert_allclose(answers[name + " one row"], models[name](x[:1]), atol=1e-5)
    features = models[name].layers[0](x)
    assert (np.abs(output - features).max() > 1e-3) == ("identity" not in name)


def operations(graph):
    return {n.op for n in graph.node} | {n.op for f in graph.library.function for n in f.node_def}


SOLVER = {"Svd", "SelfAdjointEigV2", "While", "StatelessWhile", "Cholesky"}


@pytest.mark.parametrize("name", NAMES)
def test_solver_only_where_it_is_needed(saved, name):
    loaded = tf.saved_model.load(str(saved[-1] / name))
    graph = loaded.serve.get_concrete_function(tf.TensorSpec([None, 5], tf.float32)).graph
    found = operations(graph.as_graph_def()) & SOLVER
    assert bool(found) == ("batch" in name)
