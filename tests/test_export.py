"""Every layer and model as a SavedModel in a process without the package, and as LiteRT."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense
from tensorflow.core.protobuf import saved_model_pb2

from proxnet_tf import (
    DCCA,
    DCCAE,
    AdversarialModel,
    CCARegularizer,
    MultiviewClassifier,
    Prox,
    ProxCCA,
    ProxDropout,
    ProxGCCA,
    ProxKernelFeatures,
    ProxLSTM,
    ProxLSTMCell,
    ProxRNNCell,
    Regularizer,
    prox_of_activation,
)
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views

WIDTHS = (4, 3, 5)
ROWS = shared_views(24, WIDTHS).astype("float32")
VIEWS = tuple(np.split(ROWS, np.cumsum(WIDTHS)[:-1], axis=1))
STEPS = np.random.default_rng(1).normal(size=(24, 5, 3)).astype("float32")
STEPS[::2, 3:] = 0.0  # padding

# Runs in a process that cannot import the package: outputs for all rows and for the first one.
CLIENT = """
import sys
sys.modules["proxnet_tf"] = None
import numpy as np
import tensorflow as tf

folder = sys.argv[1]
answers = {}
for name in sys.argv[2:]:
    inputs = list(np.load(f"{folder}/{name}.npz").values())
    model = tf.saved_model.load(f"{folder}/{name}")
    for rows in (len(inputs[0]), 1):
        given = [tf.constant(x[:rows]) for x in inputs]
        answers[f"{name} {rows}"] = model.serve(given if given[1:] else given[0]).numpy()
np.savez(f"{folder}/answers.npz", **answers)
"""


def multiview(layer, count):
    inputs = [keras.Input((width,)) for width in WIDTHS[:count]]
    return keras.Model(inputs, keras.layers.Concatenate()(layer(inputs)))


def parts():
    return [Dense(3, "tanh") for _ in range(2)], [Dense(2) for _ in range(2)]


def sequence(*layers):
    return keras.Sequential([keras.Input((5, 3)), keras.layers.Masking(), *layers])


def flat(*layers):
    return keras.Sequential([keras.Input((12,)), *layers])


def kernel_features(**arguments):
    landmarks = ROWS[:6].astype("float64")
    return ProxKernelFeatures("gaussian", landmarks=landmarks, **arguments)


def classifier(inference):
    return MultiviewClassifier(*parts(), num_components=2, inference=inference, lam=0.2)


def dccae():
    encoders, predictors = parts()
    return DCCAE(encoders, [Dense(width) for width in WIDTHS[:2]], predictors)


def adversarial():
    return AdversarialModel(sequence(keras.layers.LSTM(3, name="lstm"), Dense(2)), layer="lstm")


QUICK = {"lam": 0.2, "momentum": 0.5, "solver": Newton(jit_compile=False)}
MODES = ("identity", "batch", "moving")
MODELS = {
    **{f"cca-{m}": lambda m=m: multiview(ProxCCA(2, inference=m, **QUICK), 2) for m in MODES},
    **{f"gcca-{m}": lambda m=m: multiview(ProxGCCA(2, inference=m, **QUICK), 3) for m in MODES},
    "classifier-identity": lambda: classifier("identity"),
    "classifier-moving": lambda: classifier("moving"),
    "rrm": lambda: MultiviewClassifier(*parts(), method="rrm", predict_with=1),
    "dcca": lambda: DCCA(*parts(), concatenate_inputs=True),
    "dccae": dccae,
    "regularizer": lambda: multiview(CCARegularizer(0.1), 2),
    "lstm": lambda: sequence(ProxLSTM(4, lam=0.2)),
    "lstm-loop": lambda: sequence(ProxLSTM(4, return_sequences=True, jit_compile=False)),
    "lstm-unrolled": lambda: sequence(ProxLSTM(4, lam=0.2, unroll=True)),
    "lstm-cell": lambda: sequence(keras.layers.RNN(ProxLSTMCell(4))),
    "gru-cell": lambda: sequence(keras.layers.RNN(ProxRNNCell(keras.layers.GRUCell(3)))),
    "l1": lambda: flat(Prox("l1", lam=4.0)),
    "group": lambda: flat(Prox(Regularizer("group_l2", weight=0.5, group_size=4), lam=2.0)),
    "sigmoid": lambda: flat(Prox(**prox_of_activation("sigmoid"))),
    "relu": lambda: flat(Prox(**prox_of_activation("relu"))),
    "dropout": lambda: flat(ProxDropout(0.5)),
    "kernel": lambda: flat(kernel_features(invariances=("gradient_flatness",))),
    "adversarial": adversarial,
}


def inputs_of(name):
    """One array or a list of views."""
    if "lstm" in name or name in ("gru-cell", "adversarial"):
        return STEPS
    if name.startswith("gcca"):
        return list(VIEWS)
    two = ("cca", "classifier", "rrm", "dcca", "regularizer")
    return list(VIEWS[:2]) if name.startswith(two) else ROWS


def prepared(name):
    """A model with weights (and, for "moving", statistics), and its inputs."""
    keras.utils.set_random_seed(0)
    model, inputs = MODELS[name](), inputs_of(name)
    if getattr(model, "prox", None) is not None:
        model.prox.solver = Newton(jit_compile=False)
    model(inputs, training=name.endswith("moving"))
    return model, inputs


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of all SavedModels, what the models return, and what the other process got."""
    folder = tmp_path_factory.mktemp("exported")
    wanted = {}
    for name in MODELS:
        model, inputs = prepared(name)
        np.savez(folder / f"{name}.npz", *tf.nest.flatten(inputs))
        wanted[f"{name} 24"] = np.asarray(model(inputs))
        if name.endswith("batch"):  # one row comes back as it is
            wanted[f"{name} 1"] = np.concatenate([x[:1] for x in inputs], axis=1)
        else:
            wanted[f"{name} 1"] = wanted[f"{name} 24"][:1]
        model.export(folder / name, verbose=False)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", CLIENT, str(folder), *MODELS]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    with np.load(folder / "answers.npz") as answers:
        return folder, wanted, dict(answers)


@pytest.mark.parametrize("rows", [24, 1])
@pytest.mark.parametrize("name", MODELS)
def test_same_outputs_without_the_package(exported, name, rows):
    _, wanted, answers = exported
    key = f"{name} {rows}"
    assert np.isfinite(answers[key]).all() and len(answers[key]) == rows
    np.testing.assert_allclose(answers[key], wanted[key], atol=1e-5, rtol=1e-5)


def operations(path):
    """Names of all operations in a SavedModel, functions included."""
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta,) = saved.meta_graphs
    functions = meta.graph_def.library.function
    return {n.op for n in meta.graph_def.node} | {n.op for f in functions for n in f.node_def}


SOLVER = {"Svd", "SelfAdjointEigV2", "Cholesky", "While", "StatelessWhile", "If", "StatelessIf"}
PROXIMAL = ("cca", "gcca", "classifier")


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith(PROXIMAL)])
def test_only_batch_holds_a_solver(exported, name):
    found = operations(exported[0] / name) & SOLVER
    assert bool(found) == name.endswith("batch"), found


def test_moving_holds_the_map(exported):
    loaded = tf.saved_model.load(str(exported[0] / "gcca-moving"))
    shapes = sorted(tuple(v.shape) for v in loaded.variables)
    assert shapes == [(), (12,), (12, 12)]  # lam, mean, map


@pytest.mark.parametrize("name", ["cca-batch", "gcca-moving"])
def test_size_does_not_grow_with_the_batch(exported, name, tmp_path):
    model, inputs = prepared(name)
    many = [np.tile(x, (200, 1)) for x in inputs]
    model(many, training=name.endswith("moving"))
    model.export(tmp_path / name, verbose=False)

    def size(folder):
        return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())

    before = size(exported[0] / name)
    assert abs(size(tmp_path / name) - before) < 0.02 * before  # the numbers in the names differ
    assert sum(x.nbytes for x in many) > 0.2 * before


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


LITE = ("cca-identity", "cca-moving", "gcca-moving", "classifier-moving", "lstm-unrolled")


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", LITE)
def test_lite_with_builtin_operations_only(exported, name):
    folder, wanted, _ = exported
    content = tf.lite.TFLiteConverter.from_saved_model(str(folder / name)).convert()
    with np.load(folder / f"{name}.npz") as data:
        inputs = list(data.values())
    for rows in (24, 1):
        output = run_lite(content, [x[:rows] for x in inputs])
        np.testing.assert_allclose(output, wanted[f"{name} {rows}"], atol=1e-5, rtol=1e-5)


def test_lite_loop_over_time_needs_select_operations(exported):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(exported[0] / "lstm-loop"))
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


@pytest.mark.parametrize("name", ["l1", "lstm-loop"])
def test_gradient_of_a_model_saved_without_custom_gradients(name, tmp_path):
    model, inputs = prepared(name)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(Served(model, inputs), str(tmp_path), options=options)
    loaded, x = tf.saved_model.load(str(tmp_path)), tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = loaded.serve(x)
    np.testing.assert_allclose(output, model(x), atol=1e-5)
    if name == "l1":  # plain operations have their own gradient
        assert np.abs(tape.gradient(output, x)).max() == 1.0
    else:
        with pytest.raises(TypeError, match="out of scope"):
            tape.gradient(output, x)
