"""Settings of all tests."""

import gc
import os
import re
from pathlib import Path

import pytest

# XLA compiles much and runs little here: without optimisation the whole takes a fifth less.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def _patterns():
    """Those of `on_request.txt`, as regular expressions by test."""
    lines = Path(__file__).with_name("on_request.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            test, _, case = line.partition("[")
            pattern = re.escape(case.removesuffix("]")).replace(r"\*", ".*") if case else ".*"
            found.setdefault(test, []).append(re.compile(pattern))
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    patterns, seen, met = _patterns(), set(), set()
    for item in items:
        test, _, case = item.nodeid.removeprefix("tests/").partition("[")
        for pattern in patterns.get(test, ()):
            seen.add((test, pattern.pattern))
            if pattern.fullmatch(case.removesuffix("]")):
                met.add((test, pattern.pattern))
                item.add_marker(pytest.mark.slow)
    whole = not any("::" in argument for argument in config.args)  # no case is asked for by name
    if whole and seen - met:
        raise pytest.UsageError(f"on_request.txt has what is no test: {sorted(seen - met)}")


@pytest.fixture(autouse=True, scope="module")
def memory():
    """Models and traced functions are cycles, which would stay until memory is short."""
    yield
    gc.collect()
    gc.freeze()  # what stays is not looked through again


@pytest.fixture
def eager_fit(request, monkeypatch):
    """`fit` and its like run step by step, as with `compile(run_eagerly=True)`.

    For modules that compare numbers: tracing a graph takes most of the time of a short fit. What
    such a module must show of graphs is marked `in_graph`.
    """
    if "in_graph" in request.keywords:
        return
    import keras

    eagerly = property(lambda model: True, lambda model, value: None)
    monkeypatch.setattr(keras.Model, "run_eagerly", eagerly)
