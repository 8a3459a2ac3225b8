"""Every layer and model as a SavedModel in a process without the package, and as LiteRT."""

import functools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.helpers.layer_checks import length, map_inputs, randomize, symbolic
from tests.helpers.registry import LAYERS, MODELS

# Runs in a process that cannot import the package, and answers for one SavedModel after the other:
# outputs and gradients for all rows, and the output for the first one.
CLIENT = """
import sys
sys.modules["proxnet_tf"] = None
import numpy as np
import tensorflow as tf

def answers(path):
    inputs = list(np.load(f"{path}.npz").values())
    model = tf.saved_model.load(path)
    found = {"one": model.serve([x[:1] for x in inputs] if inputs[1:] else inputs[0][:1]).numpy()}
    given = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = model.serve(given if given[1:] else given[0])
        total = tf.reduce_sum(tf.sin(output))
    found["all"] = output.numpy()
    try:
        gradients = tape.gradient(total, given, unconnected_gradients="zero")
        found |= {f"gradient {k}": g.numpy() for k, g in enumerate(gradients)}
    except (LookupError, TypeError):  # a custom gradient inside another one
        pass
    return found

for path in map(str.strip, sys.stdin):
    np.savez(f"{path}-answers.npz", **answers(path))
    print("answered", flush=True)
"""


def around(case):
    """A model with one output that holds the layer."""
    inputs = symbolic(case.inputs)
    outputs = [keras.layers.Flatten()(o) for o in tf.nest.flatten(case.make()(inputs))]
    return keras.Model(inputs, keras.layers.Concatenate()(outputs) if outputs[1:] else outputs[0])


def case_of(name):
    return LAYERS.get(name) or MODELS[name]


def prepared(name):
    """A model with random weights (and statistics of a batch), and its inputs."""
    case = case_of(name)
    model = around(case) if name in LAYERS else case.make()
    model(case.inputs)
    randomize(model)
    model(case.inputs, training=True)
    return model, case.inputs


def outputs_and_gradients(model, inputs):
    given = tf.nest.map_structure(tf.constant, inputs)
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = model(given)
        total = tf.reduce_sum(tf.sin(output))
    gradients = tape.gradient(total, tf.nest.flatten(given), unconnected_gradients="zero")
    return output.numpy(), [g.numpy() for g in gradients]


def differentiable(name):
    """Whether the SavedModel keeps the gradient: no custom gradient inside another one."""
    return name.startswith(("ProxCCA", "ProxGCCA", "CCA", "GCCA", "Prox "))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A process without the package, which reads paths of SavedModels."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        env=environment,
        cwd=tmp_path_factory.mktemp("client"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a name to the path of the SavedModel; each model is exported once."""
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def export(name):
        model, inputs = prepared(name)
        np.savez(folder / f"{name}.npz", *tf.nest.flatten(inputs))
        model.export(folder / name, verbose=False)
        return folder / name, model

    return export


ALWAYS = ["ProxCCA, in training", "ProxGCCA, moving", "Prox l1", "ProxDropout", "ProxLSTM"]
NAMES = [
    pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow)
    for name in (*LAYERS, *MODELS)
]


@pytest.mark.parametrize("name", NAMES)
def test_same_values_and_gradients_without_the_package(exported, client, name):
    path, model = exported(name)
    print(path, file=client.stdin, flush=True)
    assert client.stdout.readline() == "answered\n"
    inputs = case_of(name).inputs
    outputs, gradients = outputs_and_gradients(model, inputs)
    wanted = {"all": outputs, "one": model(map_inputs(lambda x: x[:1], inputs)).numpy()}
    if differentiable(name):
        wanted |= {f"gradient {k}": gradient for k, gradient in enumerate(gradients)}
    with np.load(f"{path}-answers.npz") as answers:
        for key, value in wanted.items():
            assert np.isfinite(value).all()
            np.testing.assert_allclose(answers[key], value, atol=1e-4, rtol=1e-4)


def operations(path):
    """Names of all operations in a SavedModel, functions included."""
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta,) = saved.meta_graphs
    functions = meta.graph_def.library.function
    return {n.op for n in meta.graph_def.node} | {n.op for f in functions for n in f.node_def}


SOLVER = {"Svd", "SelfAdjointEigV2", "Cholesky", "While", "StatelessWhile", "If", "StatelessIf"}


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


# With inference="batch" the solver is in the file, else what the moving map is.
SOLVED = ("ProxCCA", "ProxGCCA")
APPLIED = ("ProxCCA, in training", "ProxCCA, moving, sequences", "ProxGCCA, moving")


@pytest.mark.parametrize("name", ["ProxCCA", "ProxGCCA, moving", *slow("ProxGCCA", *APPLIED[:2])])
def test_only_batch_holds_a_solver(exported, name):
    path, _ = exported(name)
    found = operations(path) & SOLVER
    assert bool(found) == (name in SOLVED), found


def test_moving_holds_the_map(exported):
    loaded = tf.saved_model.load(str(exported("ProxGCCA, moving")[0]))
    shapes = sorted(tuple(v.shape) for v in loaded.variables)
    assert shapes == [(), (), (9,), (9, 9)]  # lam, count, mean, map


def run_lite(content, inputs):
    interpreter = tf.lite.Interpreter(model_content=content)
    details = sorted(
        interpreter.get_input_details(),
        key=lambda d: [int(digits) for digits in re.findall(r"\d+", d["name"])],
    )
    for detail, x in zip(details, inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], x.shape)
    interpreter.allocate_tensors()
    for detail, x in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize(
    "name",
    # The loss of the classifier decomposes, its output does not.
    ["ProxGCCA, moving", "MultiviewClassifier, prox", *slow(*APPLIED[:2], "ProxLSTM, unrolled")],
)
def test_lite_with_builtin_operations_only(exported, name):
    path, model = exported(name)
    content = tf.lite.TFLiteConverter.from_saved_model(str(path)).convert()
    inputs = case_of(name).inputs
    for rows in (length(inputs), 1):
        some = map_inputs(lambda x, rows=rows: x[:rows], inputs)
        output = run_lite(content, tf.nest.flatten(some))
        np.testing.assert_allclose(output, model(some), atol=1e-5, rtol=1e-5)


def test_lite_loop_over_time_needs_select_operations(exported):
    path, _ = exported("ProxLSTM")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(path))
    with pytest.raises(Exception, match="Select TF ops"):
        converter.convert()
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter._experimental_lower_tensor_list_ops = False
    assert b"FlexTensorListReserve" in converter.convert()
