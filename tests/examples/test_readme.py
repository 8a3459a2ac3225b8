"""What README.md and RESULTS.md show runs: Python is run, commands name files and options."""

import argparse
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import proxnet_tf
from tests.helpers.markdown import commands, fenced_blocks

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "RESULTS.md")}
BLOCKS = [block for text in TEXTS.values() for block in fenced_blocks(text)]
PYTHON = [content for language, content in BLOCKS if language == "python"]
COMMANDS = sorted({command for text in TEXTS.values() for command in commands(text)})


def names():
    """What a reader has at hand where a block does not define it, besides the package's names."""
    rng = np.random.default_rng(0)
    f, g, h = (rng.normal(size=(64, d)).astype("float32") for d in (10, 12, 8))
    sequence = rng.normal(size=(4, 6, 3)).astype("float32")
    lstm = keras.layers.LSTM(5)
    lstm(sequence)
    return vars(proxnet_tf) | {
        "f": f,
        "g": g,
        "h": h,
        "x": f,
        "has_f": np.arange(64) % 5 > 0,
        "has_g": np.arange(64) % 7 > 0,
        "side_by_side": np.concatenate([f, g], 1),
        "sequence": sequence,
        "trained_lstm": lstm,
    }


def test_every_block_says_what_it_is():
    assert {language for language, _ in BLOCKS} <= {"python", "sh", "text"}
    assert len(PYTHON) >= 2 and len(COMMANDS) > 10


def test_blocks_are_found_whatever_their_language():
    text = "a\n```\nb\n```\n`python c.py\n--d` e\n```sh\nmake f # g\npython h \\\n  i\n```\n"
    assert fenced_blocks(text) == [("", "b\n"), ("sh", "make f # g\npython h \\\n  i\n")]
    assert commands(text) == ["make f", "python h    i", "python c.py --d"]


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.strip().splitlines()[0])
def test_python_runs(code):
    found = names()
    exec(re.sub(r"epochs=\d+", "epochs=1, verbose=0", code), found)
    if "model.fit(" in code:
        history = found["model"].history.history
        assert np.isfinite(history["loss"]).all() and history["lam"] == [0.5]
        assert history["correlation"][0] > history["correlation_before"][0]


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
