"""Every script of the gallery runs, is short, and imports nothing but the public API."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import proxnet_tf
from tests.helpers.markdown import table_rows

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.stem != "show"}
ALONE = ("more_devices",)  # sets up devices before TensorFlow starts


def test_there_are_enough():
    wanted = {"few_labels", "missing_views", "prox_lstm_swap", "convex_prior"}
    wanted |= {"invariant_kernel", "search", "export_and_serve", "more_devices", "retrieval"}
    assert wanted <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_short_public_and_a_question(name):
    source = SCRIPTS[name].read_text(encoding="utf-8")
    assert source.count("\n") <= 80
    tree = ast.parse(source)
    text = ast.get_docstring(tree)
    assert "?" in text and "To copy: " in text
    others = {path.stem for path in FOLDER.rglob("*.py")} - {"show"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & others
        elif isinstance(node, ast.ImportFrom):
            assert node.module not in others
            if node.module == "proxnet_tf":
                assert {alias.name for alias in node.names} <= set(proxnet_tf.__all__)
            elif node.module.startswith("proxnet_tf"):
                assert node.module == "proxnet_tf.datasets"


# The others run on request.
ALWAYS = {"export_and_serve", "own_prior"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ALWAYS else pytest.mark.slow) for n in SCRIPTS],
)
@pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:getName:DeprecationWarning")
def test_runs(name, tmp_path, monkeypatch, capsys):
    arguments = ["--small", "--output", str(tmp_path / "out")]
    if name in ALONE:
        command = [sys.executable, str(SCRIPTS[name]), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name])])
        monkeypatch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location(f"gallery_{name}", SCRIPTS[name])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.main(arguments)
        printed = capsys.readouterr().out
    text = (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8")
    assert text in printed
    rows = table_rows(text)
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1
    assert "nan" not in text and "inf " not in text
