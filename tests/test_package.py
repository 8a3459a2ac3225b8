import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import proxnet_tf

ROOT = pathlib.Path(proxnet_tf.__file__).parents[1]
PACKAGE = ROOT / "proxnet_tf"
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_public_names():
    for name in proxnet_tf.__all__:
        assert getattr(proxnet_tf, name).__doc__
    assert len(set(proxnet_tf.__all__)) == len(proxnet_tf.__all__)
    expected = {"ProxCCA", "LambdaSchedule", "linear_lambda", "CCALoss", "CCARegularizer"}
    assert expected | {"cca_loss", "CanonicalCorrelation"} <= set(proxnet_tf.__all__)
    classes = [getattr(proxnet_tf, n) for n in proxnet_tf.__all__]
    public = {n for n in vars(proxnet_tf) if not n.startswith("_")}
    modules = {n for n in public if inspect.ismodule(getattr(proxnet_tf, n))}
    assert public - modules == set(proxnet_tf.__all__)
    assert all(c.__module__.startswith("proxnet_tf.") for c in classes)


def test_version_has_one_source():
    assert proxnet_tf.__version__.count(".") == 2
    text = (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "proxnet_tf.__version__" }' in text
    holders = [m.name for m in MODULES if f'"{proxnet_tf.__version__}"' in m.read_text()]
    assert holders == ["__init__.py"]
    assert proxnet_tf.__version__ not in (ROOT / "setup.cfg").read_text()


def test_import_is_light():
    heavy = ["tensorflow_probability", "keras_tuner", "matplotlib", "scipy", "sklearn", "tf_keras"]
    # Only what the package adds to TensorFlow and Keras counts.
    code = (
        "import sys, tensorflow, keras; before = set(sys.modules); import proxnet_tf; "
        f"print([m for m in {heavy} if m in set(sys.modules) - before])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def imported(path, top_level_only=False):
    """Absolute names of all modules that a file imports, inside functions too."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by absolute names"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def floor(name):
    """1: ops, 2: layers and the like, 3: models and what builds on them."""
    part = name.split(".")[1] if "." in name else ""
    return {"ops": 1, "layers": 2, "losses": 2, "metrics": 2, "callbacks": 2}.get(part, 3)


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


ALLOWED = {
    1: {"tensorflow", "tensorflow_probability", "numpy"},
    2: {"tensorflow", "tensorflow_probability", "numpy", "keras"},
}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_or_sideways(path):
    name = module_name(path)
    if path == PACKAGE / "__init__.py":
        return
    own = floor(name)
    for other in imported(path):
        root = other.split(".")[0]
        if root == "proxnet_tf":
            assert floor(other) <= own, f"{name} imports {other} from a floor above"
            if own < 3:
                assert other.split(".")[1] != "datasets", f"{name} imports {other}"
            if name.startswith("proxnet_tf.datasets"):
                assert other.startswith("proxnet_tf.datasets"), f"{name} imports {other}"
        elif own in ALLOWED:
            allowed = ALLOWED[own] | set(sys.stdlib_module_names)
            assert root in allowed, f"{name} imports {other}"
        if root == "keras_tuner":
            assert name == "proxnet_tf.tuning"
        assert not other.startswith(("keras.src", "tensorflow.python")), f"{name} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_slow_imports_happen_where_they_are_used(path):
    if path.name == "tuning.py":
        return
    roots = {name.split(".")[0] for name in imported(path, top_level_only=True)}
    assert not roots & {"tensorflow_probability", "keras_tuner", "matplotlib", "scipy", "sklearn"}


@pytest.mark.parametrize("name", proxnet_tf.__all__)
def test_docstrings_name_every_argument(name):
    public = getattr(proxnet_tf, name)
    text = inspect.getdoc(public)
    arguments = text.split("Args:")[1].split("\n\n")[0]
    for parameter in inspect.signature(public).parameters.values():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            named = rf"\s{parameter.name}(,\s+\w+)*:"  # alone or in a list of names
            assert re.search(named, arguments), (name, parameter.name)
    assert "Raises:" in text and "Example:" in text
