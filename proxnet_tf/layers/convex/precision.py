"""A user's R in the dtype of the solver."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


class _ComputeIn(keras.DTypePolicy):
    """Computes in `dtype` with variables of the dtype that they have."""

    def __init__(self, dtype: str, variable_dtype: str):
        super().__init__(dtype)
        self._variable_dtype = variable_dtype


class _Uncast(keras.layers.Layer):
    """A function as a layer without autocast: it reads variables as they are."""

    def __init__(self, function: Callable[..., Any], dtype: str):
        super().__init__(dtype=dtype, autocast=False)
        self._function = function
        self.built = True

    def call(self, z: tf.Tensor, context: tf.Tensor | None = None) -> Any:
        return self._function(z) if context is None else self._function(z, context)


def in_precision(function: Callable[..., Any], dtype: tf.DType) -> Callable[..., Any]:
    """A function, or a Keras layer with all layers inside it, computing in `dtype`.

    A 16-bit policy would round the values that a solver compares.

    Raises:
        ValueError: a functional model whose inputs are narrower, which would round its argument.
    """
    if not isinstance(function, keras.layers.Layer):
        return _Uncast(function, dtype.name)

    def computed(*arguments: tf.Tensor) -> Any:
        with _computing_in(function, dtype):
            return function(*arguments)

    return computed


@contextlib.contextmanager
def _computing_in(function: keras.layers.Layer, dtype: tf.DType) -> Iterator[None]:
    kept = []
    for layer in function._flatten_layers():
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
        yield
    finally:
        for layer, policy in kept:
            layer.dtype_policy = policy
