"""A user's R in the dtype of the solver."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import AutocastScope


class _ComputeIn(keras.DTypePolicy):
    """Computes in `dtype` with variables of the dtype that they have."""

    def __init__(self, dtype: str, variable_dtype: str):
        super().__init__(dtype)
        self._variable_dtype = variable_dtype


@contextlib.contextmanager
def computing_in(function: Any, dtype: tf.DType) -> Iterator[None]:
    """Makes a function, or a Keras layer with all layers inside it, compute in `dtype`.

    A 16-bit policy would round the values that a solver compares. Variables read by a function
    are not cast either.

    Raises:
        ValueError: a functional model whose inputs are narrower, which would round its argument.
    """
    layers = []
    if isinstance(function, keras.layers.Layer):
        layers = function._flatten_layers()
    kept = []
    for layer in layers:
        inputs = getattr(layer, "inputs", None) if isinstance(layer, keras.Model) else None
        for tensor in inputs or []:
            given = tf.as_dtype(tensor.dtype)
            if given.is_floating and given.size < dtype.size:
                raise ValueError(
                    f"The inputs of a model R must have the dtype of the solver, {dtype.name}. "
                    f"Received: {given.name}; use keras.Input(..., dtype={dtype.name!r})."
                )
        kept.append((layer, layer.dtype_policy))
    try:
        for layer, policy in kept:
            if tf.as_dtype(policy.compute_dtype).is_floating:
                layer.dtype_policy = _ComputeIn(dtype.name, policy.variable_dtype)
        with AutocastScope(None):
            yield
    finally:
        for layer, policy in kept:
            layer.dtype_policy = policy
