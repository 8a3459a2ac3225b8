"""Every example that a docstring writes as an interpreter's session runs and gives what it says.

The public names of the package are at hand there, as after `from proxnet_tf import *`.
"""

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


@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    public = {name: getattr(proxnet_tf, name) for name in proxnet_tf.__all__}
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs=public, optionflags=flags)
    assert found.attempted > 0, f"no session in {name} is in a docstring"
    assert found.failed == 0
