"""Files that version 0.1.0 wrote still load, and give the numbers that they gave there.

`tests/data/make_saved_0_1_0.py` says how they were made. Only public names of the package are
used, and nothing but `import proxnet_tf` makes Keras know its classes.
"""

import json
import pathlib
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import proxnet_tf
from proxnet_tf import DCCA, LinearCCA
from tests.helpers.saved_numbers import (
    arguments_of,
    call,
    numbers_of,
    outputs_and_gradients,
    weights_of,
)

FOLDER = pathlib.Path(__file__).parent / "data" / "saved_0_1_0"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
# Keys of configs that need not be kept: modules, numbers that Keras gives when it writes a file,
# and that a kernel layer was adapted, which its weights tell.
CHANGED = {"module", "shared_object_id", "adapted"}
FILES = {file: name for name, case in MANIFEST["cases"].items() for file in case["files"]}


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


# Keras and TensorFlow read what older versions of theirs wrote, not what newer ones did.
pytestmark = pytest.mark.skipif(
    version(keras.__version__) < version(MANIFEST["keras"])
    or version(tf.__version__) < version(MANIFEST["tensorflow"]),
    reason=f"the files were written by Keras {MANIFEST['keras']} and TensorFlow "
    f"{MANIFEST['tensorflow']}",
)


def recorded(name):
    with np.load(FOLDER / f"{name}.npz") as data:
        return dict(data)


def numbered(numbers, prefix):
    return [numbers[f"{prefix}_{i}"] for i in range(len(numbers)) if f"{prefix}_{i}" in numbers]


# What monitored closed forms report in training, which they did not in version 0.1.0.
REPORTED = {"residual", "unsolved", "iterations", "backward_residual", "backward_unsolved"}


def assert_same_numbers(found, wanted, tolerance, model=None):
    """The tolerance is relative to the largest number of an array, or to 1; NaN stay NaN."""
    new = found.keys() - wanted.keys() - {f"step_{key}" for key in REPORTED}
    if isinstance(model, DCCA):  # the maps of `project` came later; they are not fitted
        new = {key for key in new if "weight_" not in key or found[key].any()}
    assert not new
    assert wanted.keys() <= found.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype, key
        largest = np.abs(value[np.isfinite(value)]).max(initial=1.0)
        # Learning rates of Keras are float32.
        bound = max(tolerance, 1e-6) if key.startswith("step_") else tolerance
        np.testing.assert_allclose(found[key], value, rtol=0, atol=bound * largest, err_msg=key)


# Arguments of the multiview layers that belong to a solver now.
MOVED = {
    "tolerance": "tolerance",
    "max_iterations": "max_iterations",
    "jit_solver": "jit_compile",
    "solver_device": "device",
}
SOLVERS = {"newton": "Newton", "lbfgs": "LBFGS"}


def upgraded(old):
    """A config of version 0.1.0 with the names that its arguments have now."""
    if isinstance(old, list):
        return [upgraded(one) for one in old]
    if not isinstance(old, dict):
        return old
    old = {key: upgraded(value) for key, value in old.items()}
    options = old.pop("prox_options", None) or {}
    old |= options
    if "output_prox" in old:
        old["output_from_prox"] = old.pop("output_prox")
    if "jit_solver" in old or options:
        solver = {new: old.pop(name) for name, new in MOVED.items() if name in old}
        if solver.get("jit_compile"):
            solver["jit_compile"] = "auto"  # it meant: where XLA is available
        if "device" in solver:
            solver["device"] = solver["device"] or "auto"
        name = old.get("solver", "newton")
        if isinstance(name, str):
            old["solver"] = {"class_name": SOLVERS[name], "config": solver}
    return old


def assert_config_kept(new, old):
    """Everything of the old config is in the new one, but for what is `CHANGED`."""
    assert_contains(new, upgraded(old))


def assert_contains(new, old):
    if isinstance(old, dict):
        for key in old.keys() - CHANGED:
            assert key in new, key
            assert_contains(new[key], old[key])
    elif isinstance(old, list):
        assert len(new) == len(old)
        for a, b in zip(new, old, strict=True):
            assert_contains(a, b)
    else:
        assert new == old


def config_of(file):
    with zipfile.ZipFile(FOLDER / file) as archive:
        return json.loads(archive.read("config.json"))


def serialized(instance):
    """The config with the types that it has in a file."""
    return json.loads(json.dumps(keras.saving.serialize_keras_object(instance)))


def check_numbers(model, name):
    case, wanted = MANIFEST["cases"][name], recorded(name)
    found = numbers_of(
        model,
        numbered(wanted, "input"),
        numbered(wanted, "cotangent"),
        wanted.get("target"),
        training=case["training"],
        graph=case["graph"],
    )
    assert_same_numbers(found, wanted, case["tolerance"], model)


def fresh(name):
    """The model of a file from its config alone, not compiled."""
    config = config_of(f"{name}.keras")
    config.pop("compile_config", None)
    return keras.saving.deserialize_keras_object(config)


def check_keras(file, name, folder):
    model = keras.saving.load_model(FOLDER / file)
    assert type(model).__name__ == MANIFEST["cases"][name]["class"]
    check_numbers(model, name)


def weights_in(numbers):
    return {key: value for key, value in numbers.items() if key.startswith("weight_")}


def check_weights(file, name, folder):
    keras.utils.set_random_seed(99)
    model = fresh(name)
    with zipfile.ZipFile(FOLDER / file) as archive:
        archive.extractall(folder)
    model.load_weights(folder / "model.weights.h5")
    case, wanted = MANIFEST["cases"][name], recorded(name)
    if case["graph"]:  # solvers take long to trace, and the other file has run them
        assert_same_numbers(weights_of(model), weights_in(wanted), 0.0, model)
        return
    wanted = {k: v for k, v in wanted.items() if not k.startswith(("step", "target", "training"))}
    found = numbers_of(model, numbered(wanted, "input"), numbered(wanted, "cotangent"))
    assert_same_numbers(found, wanted, case["tolerance"], model)


def check_export(file, name, folder):
    with zipfile.ZipFile(FOLDER / file) as archive:
        archive.extractall(folder)
    wanted = recorded(name)
    inputs = [tf.constant(x) for x in numbered(wanted, "input")]
    loaded = tf.saved_model.load(folder)
    (function,) = loaded.serve.concrete_functions
    ((given,), _) = function.structured_input_signature
    served = loaded.serve(tf.nest.pack_sequence_as(given, inputs))
    found = {f"output_{i}": np.asarray(x) for i, x in enumerate(tf.nest.flatten(served))}
    wanted = {key: value for key, value in wanted.items() if key.startswith("output_")}
    assert_same_numbers(found, wanted, MANIFEST["cases"][name]["tolerance"])


CHECKS = {".keras": check_keras, ".weights.zip": check_weights, ".export.zip": check_export}


# An exported model holds its graph, and runs nothing of the package.
@pytest.mark.parametrize(
    "file",
    [pytest.param(f, marks=[pytest.mark.slow][: f.endswith(".export.zip")]) for f in FILES],
)
def test_file_gives_the_same_numbers(file, tmp_path):
    name = FILES[file]
    CHECKS[file.removeprefix(name)](file, name, tmp_path)


@pytest.mark.parametrize("name", MANIFEST["cases"])
def test_config_of_a_file_is_kept(name):
    assert_config_kept(serialized(fresh(name))["config"], config_of(f"{name}.keras")["config"])


def marked(name, reference):
    """Solvers take long to trace, and files above have run them."""
    return pytest.param(name, marks=pytest.mark.slow if reference["graph"] else ())


@pytest.mark.parametrize("name", [marked(*item) for item in MANIFEST["references"].items()])
def test_reference_outputs(name):
    reference = MANIFEST["references"][name]
    with np.load(FOLDER / "reference_outputs.npz") as data:
        prefix = f"{name}/"
        wanted = {k.removeprefix(prefix): data[k] for k in data.files if k.startswith(prefix)}
    layer = keras.saving.deserialize_keras_object(reference["config"])
    inputs, cotangents = numbered(wanted, "input"), numbered(wanted, "cotangent")
    mode = arguments_of(reference["mode"])
    if reference["adapt"] is not None:
        layer.adapt(reference["adapt"])
    call(layer, inputs, **mode)
    layer.set_weights(numbered(wanted, "weight"))
    found = outputs_and_gradients(layer, inputs, cotangents, graph=reference["graph"], **mode)
    results = ("output", "gradient", "loss")
    wanted = {key: value for key, value in wanted.items() if key.startswith(results)}
    assert_same_numbers(found, wanted, reference["tolerance"])


@pytest.mark.parametrize("name", MANIFEST["objects"])
def test_object_from_its_config(name):
    config = MANIFEST["objects"][name]
    instance = keras.saving.deserialize_keras_object(config)
    assert type(instance) is getattr(proxnet_tf, config["class_name"])
    assert_config_kept(serialized(instance), config)
    again = type(instance).from_config(instance.get_config())
    assert_config_kept(serialized(again), config)


def test_linear_cca_from_its_attributes():
    data = recorded("linear_cca")
    fitted = LinearCCA(2, ridge=0.1).fit(data["x"], data["y"])
    restored = LinearCCA(2, ridge=0.1)
    restored.correlations_ = data["correlations"]
    restored.weights_ = tuple(numbered(data, "weights"))
    restored.means_ = tuple(numbered(data, "means"))
    for cca in (fitted, restored):
        np.testing.assert_allclose(cca.correlations_, data["correlations"], rtol=1e-10)
        projections = cca.transform(data["x"], data["y"])
        np.testing.assert_allclose(projections, numbered(data, "projections"), atol=1e-10)


def test_every_file_is_listed():
    others = {"manifest.json", "linear_cca.npz", "reference_outputs.npz"}
    others |= {f"{name}.npz" for name in MANIFEST["cases"]}
    assert {f.name for f in FOLDER.iterdir()} == others | FILES.keys()
