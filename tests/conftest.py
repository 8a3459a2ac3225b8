"""Settings of all tests."""

import gc
import os

import pytest

# XLA compiles much and runs little here: without optimisation the whole takes a fifth less.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(autouse=True, scope="module")
def memory():
    """Models and traced functions are cycles, which would stay until memory is short."""
    yield
    gc.collect()
    gc.freeze()  # what stays is not looked through again
