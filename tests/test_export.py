"""Every layer and model as a SavedModel in a process without the package, and as LiteRT."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.helpers.layer_checks import length, map_inputs, randomize, symbolic
from tests.helpers.registry import LAYERS, MODELS

# Runs in a process that cannot import the package: outputs and gradients for all rows, and the
# output for the first one.
CLIENT = """
import sys
sys.modules["proxnet_tf"] = None
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
answers = {}



def ask(name, differentiated):
    inputs = list(np.load(f"{folder}/{name}.npz").values())
    model = tf.saved_model.load(f"{folder}/{name}")
    for rows in (len(inputs[0]), 1):
        given = [tf.constant(x[:rows]) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = model.serve(given if given[1:] else given[0])
            total = tf.reduce_sum(tf.sin(output))
        answers[f"{name} {rows}"] = output.numpy()
        if rows > 1 and differentiated:
            gradients = tape.gradient(total, given, unconnected_gradients="zero")
            for index, gradient in enumerate(gradients):
                answers[f"{name} gradient {index}"] = gradient.numpy()


for name, differentiated in zip(sys.argv[2::2], sys.argv[3::2]):
    try:
        ask(name, differentiated == "True")
    except Exception as error:
        answers[f"{name} error"] = np.array(f"{type(error).__name__}: {error}")
np.savez(f"{folder}/answers.npz", **answers)
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


NAMES = [*LAYERS, *MODELS]


def differentiable(name):
    """Whether the SavedModel keeps the gradient: no custom gradient inside another one."""
    return name.startswith(("ProxCCA", "ProxGCCA", "CCA", "GCCA", "Prox "))


@pytest.fixture(scope="module")
def exported(tmp_path_factory, request):
    """The folder of SavedModels, what the models return, and what the other process got."""
    folder = tmp_path_factory.mktemp("exported")
    tests = [i for i in request.session.items if i.path == Path(__file__)]
    asked = {i.callspec.params["name"] for i in tests if "exported" in i.fixturenames}
    names = [name for name in NAMES if name in asked]
    wanted = {}
    for name in names:
        model, inputs = prepared(name)
        np.savez(folder / f"{name}.npz", *tf.nest.flatten(inputs))
        outputs, gradients = outputs_and_gradients(model, inputs)
        wanted[f"{name} {len(outputs)}"] = outputs
        wanted[f"{name} 1"] = model(map_inputs(lambda x: x[:1], inputs)).numpy()
        if differentiable(name):
            wanted |= {f"{name} gradient {k}": gradient for k, gradient in enumerate(gradients)}
        model.export(folder / name, verbose=False)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    arguments = [part for name in names for part in (name, str(differentiable(name)))]
    command = [sys.executable, "-c", CLIENT, str(folder), *arguments]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    with np.load(folder / "answers.npz") as answers:
        return folder, wanted, dict(answers)


@pytest.mark.parametrize("name", NAMES)
def test_same_values_and_gradients_without_the_package(exported, name):
    _, wanted, answers = exported
    assert f"{name} error" not in answers, answers[f"{name} error"]
    keys = [f"{name} {length(case_of(name).inputs)}", f"{name} 1"]
    keys += [key for key in wanted if key.startswith(f"{name} gradient ")]
    for key in keys:
        assert np.isfinite(answers[key]).all()
        np.testing.assert_allclose(answers[key], wanted[key], atol=1e-4, rtol=1e-4)


def operations(path):
    """Names of all operations in a SavedModel, functions included."""
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta,) = saved.meta_graphs
    functions = meta.graph_def.library.function
    return {n.op for n in meta.graph_def.node} | {n.op for f in functions for n in f.node_def}


SOLVER = {"Svd", "SelfAdjointEigV2", "Cholesky", "While", "StatelessWhile", "If", "StatelessIf"}
SOLVED = ("ProxCCA", "ProxGCCA", "MultiviewClassifier, three views")  # with inference="batch"
APPLIED = (
    "ProxCCA, in training",
    "ProxCCA, moving, sequences",
    "ProxGCCA, moving",
    "MultiviewClassifier, prox",
)


# The correlation term in the loss of "MultiviewClassifier, prox" decomposes; that its output needs
# no decomposition is what the conversion to LiteRT shows.
@pytest.mark.parametrize("name", SOLVED + APPLIED[:3])
def test_only_batch_holds_a_solver(exported, name):
    found = operations(exported[0] / name) & SOLVER
    assert bool(found) == (name in SOLVED), found


@pytest.mark.parametrize("name", ["ProxGCCA, moving"])
def test_moving_holds_the_map(exported, name):
    loaded = tf.saved_model.load(str(exported[0] / name))
    shapes = sorted(tuple(v.shape) for v in loaded.variables)
    assert shapes == [(), (9,), (9, 9)]  # lam, mean, map


@pytest.mark.parametrize("name", ["ProxGCCA", "ProxGCCA, moving"])
def test_size_does_not_grow_with_the_batch(exported, name, tmp_path):
    model, inputs = prepared(name)
    many = map_inputs(lambda x: np.tile(x, (400, 1)), inputs)
    model(many, training=True)
    model.export(tmp_path / name, verbose=False)

    def size(folder):
        return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())

    before = size(exported[0] / name)
    assert abs(size(tmp_path / name) - before) < 0.02 * before  # the numbers in the names differ
    assert sum(x.nbytes for x in tf.nest.flatten(many)) > 0.2 * before


def run_lite(content, inputs):
    interpreter = tf.lite.Interpreter(model_content=content)
    details = sorted(interpreter.get_input_details(), key=lambda d: d["name"])
    for detail, x in zip(details, inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], x.shape)
    interpreter.allocate_tensors()
    for detail, x in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", [*APPLIED, "ProxLSTM, unrolled"])
def test_lite_with_builtin_operations_only(exported, name):
    folder, wanted, _ = exported
    content = tf.lite.TFLiteConverter.from_saved_model(str(folder / name)).convert()
    with np.load(folder / f"{name}.npz") as data:
        inputs = list(data.values())
    for rows in (len(inputs[0]), 1):
        output = run_lite(content, [x[:rows] for x in inputs])
        np.testing.assert_allclose(output, wanted[f"{name} {rows}"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ProxLSTM, sequences"])
def test_lite_loop_over_time_needs_select_operations(exported, name):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(exported[0] / name))
    with pytest.raises(Exception, match="Select TF ops"):
        converter.convert()
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter._experimental_lower_tensor_list_ops = False
    assert b"FlexTensorListReserve" in converter.convert()


class Served(tf.Module):
    """A model as a plain TensorFlow module."""

    def __init__(self, model, inputs):
        super().__init__()
        self.model = model
        metrics = [w for layer in model.layers for m in layer.metrics for w in m.variables]
        self.parts = [v.value for v in [*model.variables, *metrics]]
        signature = [tf.TensorSpec([None, *inputs.shape[1:]], tf.float32)]
        self.serve = tf.function(lambda x: self.model(x), input_signature=signature)


@pytest.mark.parametrize("name", ["Prox l1", "ProxCCA", "ProxLSTM, sequences"])
@pytest.mark.parametrize("custom", [True, False])
def test_plain_saved_model(name, custom, tmp_path):
    """Without custom gradients only what is made of plain operations keeps its gradient."""
    model, inputs = prepared(name)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=custom)
    tf.saved_model.save(Served(model, inputs), str(tmp_path), options=options)
    loaded, x = tf.saved_model.load(str(tmp_path)), tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = loaded.serve(x)
        total = tf.reduce_sum(tf.sin(output))
    wanted, (gradient,) = outputs_and_gradients(model, inputs)
    np.testing.assert_allclose(output, wanted, atol=1e-4)
    if custom or name == "Prox l1":
        np.testing.assert_allclose(tape.gradient(total, x), gradient, atol=1e-4)
    else:
        with pytest.raises((TypeError, LookupError)):
            tape.gradient(total, x)
