"""The package as a user gets it: its public names, its wheel, and which module imports which."""

import ast
import configparser
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import proxnet_tf

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

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


# --- the wheel, unpacked and imported in a process of its own -------------------------------------


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A wheel built from a copy of the checkout, and the folder it is unpacked in."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("proxnet_tf", "examples", "tests"):
        shutil.copytree(ROOT / folder, source / folder)
    options = ["--no-deps", "--disable-pip-version-check", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(target), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Deprecat" not in done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "unpacked")
    return target / "unpacked"


def test_the_wheel_holds_the_package_and_nothing_else(unpacked):
    assert {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"} == {
        "proxnet_tf"
    }
    files = {
        path.relative_to(unpacked)
        for path in unpacked.rglob("proxnet_tf/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wanted = {
        path.relative_to(ROOT)
        for pattern in ("*.py", "*.npz", "py.typed")
        for path in PACKAGE.rglob(pattern)
    }
    assert files == wanted


NAMES = [p.stem for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"]
NAMES = sorted(name for name in NAMES if not name.startswith("_"))
# What Keras and TensorFlow load by themselves does not count.
IMPORT = f"""
import json, sys, time, tensorflow, keras
before, start = set(sys.modules), time.process_time()
import proxnet_tf as p
seconds = time.process_time() - start
loaded = sorted(set(sys.modules) - before)
homes = {{n: getattr(p, n).__name__ for n in {NAMES}}}
print(json.dumps(dict(
    seconds=seconds, loaded=loaded, homes=homes, listed=dir(p), file=p.__file__,
    same=[p.layers.ProxCCA is p.ProxCCA, p.losses.CCALoss is p.CCALoss,
          p.metrics.CanonicalCorrelation is p.CanonicalCorrelation, p.models.DCCA is p.DCCA,
          p.callbacks.LambdaSchedule is p.LambdaSchedule],
    late=[p.datasets.load_multiple_features.__name__, p.tuning.MultiviewHyperModel.__name__],
)))
"""


def import_alone(folder):
    """What `import proxnet_tf` does in a process that has imported nothing else of it."""
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", IMPORT]
    output = subprocess.check_output(command, env=os.environ | bytecode, cwd=folder, text=True)
    found = json.loads(output.splitlines()[-1])
    assert pathlib.Path(found["file"]).is_relative_to(folder)
    return found


@pytest.fixture(scope="module")
def imported_alone(unpacked):
    return import_alone(unpacked)


def test_modules_are_attributes(imported_alone):
    public = {"callbacks", "datasets", "layers", "losses", "metrics", "models", "tuning"}
    assert public < set(NAMES) <= set(imported_alone["listed"])
    assert imported_alone["homes"] == {name: f"proxnet_tf.{name}" for name in NAMES}
    assert imported_alone["same"] == [True] * 5
    assert imported_alone["late"] == ["load_multiple_features", "MultiviewHyperModel"]


def test_import_is_light(imported_alone):
    loaded = set(imported_alone["loaded"])
    assert {"proxnet_tf.layers.convex.prox", "proxnet_tf.layers.kernels"} < loaded
    heavy = {"tensorflow_probability", "tf_keras", "keras_tuner", "matplotlib", "scipy", "sklearn"}
    assert not loaded & {*heavy, "proxnet_tf.datasets", "proxnet_tf.tuning"}


@pytest.mark.slow
def test_import_takes_at_most_a_tenth_of_a_second(imported_alone, unpacked):
    """Beyond TensorFlow and Keras, in the time of the processor, with bytecode as installed."""
    assert min(import_alone(unpacked)["seconds"] for _ in range(3)) < 0.1


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(unpacked, tmp_path):
    command = [sys.executable, "-I", str(ROOT / ".ci" / "use_wheel.py"), str(unpacked)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"in {unpacked / 'proxnet_tf'} works" in done.stdout


def test_no_setting_stands_twice():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert {name.split(".")[0] for name in config.sections()} == {"options"}
    assert set(project["tool"]["setuptools"]) == {"dynamic"}
    assert not set(config["options"]) & set(project["project"])


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ProxNet'"):
        proxnet_tf.ProxNet  # noqa: B018
    assert not hasattr(proxnet_tf, "__wrapped__")


# --- who imports whom -----------------------------------------------------------------------------


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


def is_module(name):
    return (ROOT / name.replace(".", "/")).is_dir() or name in map(module_name, MODULES)


def module_name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def home(name):
    """The floor (1: ops; 2: layers and the like; 3: models and what builds on them) and the wing.

    The wing is None for what a floor shares. Losses, metrics and solvers are of the multiview wing.
    """
    parts = name.split(".")[1:]
    first = parts[0] if parts else ""
    if first in ("ops", "layers"):
        inner = parts[1] if len(parts) > 1 and is_module(".".join(name.split(".")[:3])) else None
        shared = inner in (None, "linear", "monitor")
        return (1 if first == "ops" else 2), (None if shared else inner)
    if first in ("checks", "callbacks"):
        return 2, None
    if first in ("losses", "metrics", "solvers"):
        return 2, "multiview"
    return 3, None


ALLOWED = {
    1: {"tensorflow", "tensorflow_probability", "numpy"},
    2: {"tensorflow", "tensorflow_probability", "numpy", "keras"},
    3: {"tensorflow", "numpy", "keras", "keras_tuner", "tensorboard", "sklearn"},
}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_or_sideways(path):
    """Down a floor, or on the same floor within a wing or to what the floor shares."""
    name = module_name(path)
    floor, wing = home(name)
    shows = path.name == "__init__.py"  # it lists what is public
    for other in imported(path):
        root = other.split(".")[0]
        if root == "proxnet_tf":
            other_floor, other_wing = home(other)
            assert other_floor <= floor, f"{name} imports {other} from a floor above"
            if other_floor == floor and other_wing is not None and not shows:
                assert other_wing == wing, f"{name} imports {other} from another wing"
            assert other.split(".")[1] != "datasets" or name.startswith("proxnet_tf.datasets")
            own = name.startswith("proxnet_tf.tuning")
            assert own or other.split(".")[1] != "tuning", f"{name} imports {other}"
        else:
            allowed = ALLOWED[floor] | set(sys.stdlib_module_names)
            assert root in allowed, f"{name} imports {other}"
        if root == "keras_tuner":
            assert name.startswith("proxnet_tf.tuning")
        assert not other.startswith(("keras.src", "tensorflow.python")), f"{name} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_length_of_files(path):
    """A file over about 400 lines wants splitting, one of 20 a neighbour."""
    lines = len(path.read_text().splitlines())
    assert lines <= 430
    assert lines >= 20 or path.name == "__init__.py"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_slow_imports_happen_where_they_are_used(path):
    if path.parent.name == "tuning":
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
            named = rf"\s{parameter.name}(,\s+[\w*]+)*:"  # alone or in a list of names
            assert re.search(named, arguments), (name, parameter.name)
    assert "Raises:" in text and "Example:" in text
