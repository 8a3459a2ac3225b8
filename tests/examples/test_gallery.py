"""Every script of the gallery runs, is short, and imports nothing but the public API."""

import ast
import sys
from pathlib import Path

import pytest

import proxnet_tf
from tests.helpers.markdown import table_rows

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.stem != "show"}


LOOPS = ("convex_prior", "prox_lstm_swap")  # faster in a graph than step by step


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


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:getName:DeprecationWarning")
@pytest.mark.usefixtures("without_xla")
def test_runs(name, tmp_path, monkeypatch, capsys, request):
    """As its notebook does: without the file and its docstring, and then `main` is called."""
    if name not in LOOPS:
        request.getfixturevalue("eager_fit")
    source = SCRIPTS[name].read_text(encoding="utf-8")
    lines = source.splitlines()[ast.parse(source).body[0].end_lineno :]
    code = "\n".join(lines).split("if __name__")[0]
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name])])
    monkeypatch.syspath_prepend(str(FOLDER))
    cells = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), cells)
    cells["main"](["--small", "--output", str(tmp_path / "out")])
    text = (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    rows = table_rows(text)
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1
    assert "nan" not in text and "inf " not in text
