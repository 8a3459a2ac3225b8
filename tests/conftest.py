"""Settings of all tests."""

import gc
import os

# XLA compiles much and runs little here: without optimisation the whole takes a fifth less.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import pytest
import tensorflow as tf

# Two logical devices, for the tests of replicas; they cannot be made once TensorFlow has started.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True, scope="module")
def memory():
    """Models and traced functions are cycles, which would stay until memory is short."""
    yield
    gc.collect()
    gc.freeze()  # what stays is not looked through again


@pytest.fixture
def without_xla(monkeypatch):
    """TensorFlow says that it was built without XLA: solvers are not compiled by default.

    For what runs once with the default solver, where compiling takes most of the time.
    """
    monkeypatch.setattr(tf.test, "is_built_with_xla", lambda: False)


@pytest.fixture
def eager_fit(monkeypatch):
    """`fit` and its like run step by step, as with `compile(run_eagerly=True)`.

    For scripts and pages, whose code compiles as a user's does: tracing a graph takes most of the
    time of a short fit.
    """
    import keras

    eagerly = property(lambda model: True, lambda model, value: None)
    monkeypatch.setattr(keras.Model, "run_eagerly", eagerly)
