"""The wheel has all that the package needs; `make wheel` installs it into a fresh environment."""

import configparser
import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[1]


def has_setuptools():
    """Whether the environment has the setuptools that pyproject.toml asks for."""
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A wheel built from a copy of the checkout, and the folder it is unpacked in."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("proxnet_tf", "examples", "tests"):
        shutil.copytree(ROOT / folder, source / folder)
    options = ["--no-deps", "--disable-pip-version-check"]
    if has_setuptools():  # else pip fetches them
        options.append("--no-build-isolation")
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
        path.relative_to(unpacked) for path in unpacked.rglob("proxnet_tf/**/*") if path.is_file()
    }
    wanted = {
        path.relative_to(ROOT)
        for pattern in ("*.py", "*.npz", "py.typed")
        for path in (ROOT / "proxnet_tf").rglob(pattern)
    }
    assert files == wanted


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
