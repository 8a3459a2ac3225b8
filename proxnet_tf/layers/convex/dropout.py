"""Dropout as a proximal map."""

from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam, at_least_float32
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.convex.dropout import prox_dropout
from proxnet_tf.ops.linear.number import check_real


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxDropout(HasLam, keras.layers.Layer):
    """The proximal map of dropout's adaptive regulariser, example by example.

        c_x = argmin_c 1/2 p (1 - p) sum_i x_i^2 c_i^2 + lam/2 ||c - x||^2,  p = sigmoid(x^T c)

    Dropout on the inputs of a logistic model penalises weight i by p (1 - p) x_i^2; here each
    representation carries that penalty itself. Deterministic, the same in training and inference.
    The solution is exact up to a search in one dimension (a grid, then a root finder in its best
    bracket). The objective has several local minima. Where two tie the map jumps, and the gradient
    is that of the minimum taken.

    Args:
        lam: > 0; 1 by default; the larger, the nearer the output is to the input. A variable that
            is read at every call: `LambdaSchedule` sets it.
        monitor: True for the metric `unsolved`: the share of searches that missed the tolerance,
            plus minima without curvature, whose gradient holds p fixed. "all" adds `residual`,
            `iterations` and `backward_residual`; another string is a prefix of the names. False by
            default: `status` reads the last eager call.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: (batch, ..., n); one problem for each vector along the last axis.

    Output:
        Tensor in the shape of the inputs and the layer's compute dtype; computed in float32 at
        least. Vectors of zeros come out unchanged with gradient 1.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> layer = ProxDropout(lam=0.5)
        >>> layer(tf.constant([[0.0, 0.0]])).numpy().tolist()
        [[0.0, 0.0]]

    Reference: Li, Ma, Zhang (2020), section 3, equation (7); here a_s lacks the printed factor 2.
    """

    def __init__(self, lam: float = 1.0, *, monitor: bool | str = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.monitor = check_monitor(monitor)
        self.supports_masking = True
        self.supports_jit = False  # because of TensorFlow Probability's root finder
        self.add_lam(lam)
        self._monitor = Monitor(
            self, self.monitor, advice="Two minima lie close together there: raise `lam`."
        )

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        dtype = at_least_float32(self.compute_dtype)
        lam = self.lam_in(dtype)
        found = prox_dropout(
            tf.cast(check_real("The input", inputs), dtype), lam, self._monitor.backward(training)
        )
        self._monitor.forward(found.report, None, lambda: {"the input": inputs, "lam": lam})
        outputs = self.nan_without(lam, tf.ensure_shape(found.point, inputs.shape))
        return tf.cast(outputs, self.compute_dtype)

    @property
    def status(self) -> dict[str, float]:
        """How well the problems were solved: see `monitor`."""
        return self._monitor.status

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "lam": self.initial_lam, "monitor": self.monitor}
