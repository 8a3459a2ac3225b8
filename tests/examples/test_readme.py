"""What README.md, RESULTS.md and the site show runs: Python is run, commands name real files.

The blocks of a page of the site run one after the other, as a reader would run them.
"""

import argparse
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.markdown import commands, fenced_blocks

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if path.parent.name != "tables"
)
TEXTS = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "RESULTS.md", *PAGES)
}
BLOCKS = [block for text in TEXTS.values() for block in fenced_blocks(text)]


def python_of(name):
    return [content for language, content in fenced_blocks(TEXTS[name]) if language == "python"]


PAGES_WITH_PYTHON = [name for name in PAGES if python_of(name)]
COMMANDS = sorted({command for text in TEXTS.values() for command in commands(text)})


def test_every_block_says_what_it_is():
    assert {language for language, _ in BLOCKS} <= {"python", "sh", "text"}
    assert len(PAGES_WITH_PYTHON) >= 9 and len(COMMANDS) > 10


def test_blocks_are_found_whatever_their_language():
    text = "a\n```\nb\n```\n`python c.py\n--d` e\n```sh\nmake f # g\npython h \\\n  i\n```\n"
    assert fenced_blocks(text) == [("", "b\n"), ("sh", "make f # g\npython h \\\n  i\n")]
    assert commands(text) == ["make f", "python h    i", "python c.py --d"]


def test_code_outside_of_the_site_is_on_its_start_page():
    for name in ("README.md", "RESULTS.md"):
        assert set(python_of(name)) <= set(python_of("docs/index.md"))
    assert python_of("README.md")


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
@pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:getName:DeprecationWarning")
@pytest.mark.usefixtures("without_xla")
def test_page_runs(page, tmp_path, monkeypatch, request):
    """All blocks of a page of the site, in their order, on one set of variables."""
    loops = ("docs/guides/recurrent.md", "docs/guides/text.md")
    if page not in loops:  # a loop over time is faster in a graph than step by step
        request.getfixturevalue("eager_fit")
    monkeypatch.chdir(tmp_path)  # for what a page writes
    found = {}
    for code in python_of(page):
        exec(compile(re.sub(r"epochs=\d+", "epochs=1", code), page, "exec"), found)
        record = found["history"].history if "history = " in code else {}
        assert all(np.isfinite(values).all() for values in record.values())
        if "correlation_before" in record:
            assert record["correlation"][0] > record["correlation_before"][0]
            assert record["lam"] == [0.5]
        if "accuracy = " in code:
            assert 0 < found["accuracy"] < 1


class Parsed(Exception):
    pass


def load(path):
    spec = importlib.util.spec_from_file_location(f"shown_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_files_and_options(command, monkeypatch):
    words = shlex.split(command)
    while re.fullmatch(r"(export|[A-Z_]+=\S*)", words[0]):
        words = words[1:]
        if not words:
            return
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert len(words) > 1 and set(words[1:]) <= set(targets)
    elif words[0] == "pip":
        assert words[1] == "install" and words[-1].split("[")[0] in (".", "proxnet-tf")
    else:
        assert words[0] == "python"
        path = ROOT / words[1]
        assert path.exists()
        parse = argparse.ArgumentParser.parse_args

        def stop(self, arguments=None, namespace=None):
            raise Parsed(parse(self, arguments, namespace))

        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
        monkeypatch.setattr(sys, "argv", words[1:])
        monkeypatch.syspath_prepend(str(path.parent))
        with pytest.raises(Parsed):
            load(path).main()
