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
def pytest_collection_modifyitems(items):
    patterns, known = _patterns(), {}
    for item in items:
        test, _, case = item.nodeid.removeprefix("tests/").partition("[")
        case = case.removesuffix("]")
        for pattern in patterns.get(test, ()):
            known[test, pattern] = known.get((test, pattern), False)
            if pattern.fullmatch(case):
                known[test, pattern] = True
                item.add_marker(pytest.mark.slow)
    for (test, pattern), met in known.items():
        whole = not any("::" in argument or "[" in argument for argument in items[0].config.args)
        if whole and not met:
            raise pytest.UsageError(f"on_request.txt: {test}[{pattern.pattern}] is no test")


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
