"""Every example that a docstring writes as an interpreter's session runs and gives what it says."""

import doctest
import importlib
import pathlib

import pytest

import proxnet_tf

PACKAGE = pathlib.Path(proxnet_tf.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


def test_there_are_examples():
    assert "proxnet_tf.datasets.japanese_vowels" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert found.attempted > 0, f"no session in {name} is in a docstring"
    assert found.failed == 0
