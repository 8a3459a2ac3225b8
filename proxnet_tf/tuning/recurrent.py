"""The search over networks with ProxLSTM."""

from collections.abc import Callable
from typing import Any

import keras
import keras_tuner

from proxnet_tf.checks import check_integer
from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.tuning.base import ProxHyperModel


class ProxLSTMHyperModel(ProxHyperModel):
    """A KerasTuner search over a network with `ProxLSTM`, for sequence classification.

    The network is the paper's: Conv1D, ProxLSTM, Dense. Steps whose features are all 0 are padding
    and masked. The search space:

        filters, kernel_size     {32, 64} and {3, 8}, of Conv1D
        units                    {64, 128}, of ProxLSTM
        delta                    0.1 .. 10, log scale, default 1
        lam_schedule, alpha0, k, lam, learning_rate, weight_decay, batch_size
                                 as in `MultiviewHyperModel`

    Args:
        input_shape: `(timesteps, features)`, timesteps may be None.
        num_classes: width of the output, >= 2.
        encoder: callable `(hp, input_shape)` that returns the layer before ProxLSTM, from
            `(batch, timesteps, features)` to the same number of steps, as a new Keras layer; None
            (the default) is Conv1D.
        name: name of the HyperModel.
        **layer_arguments: further arguments of `ProxLSTM`, such as `output_from_prox` or
            `jit_compile`.

    Objectives, failed trials, resuming and the rest are as in `MultiviewHyperModel`.

    Raises:
        ValueError: as `MultiviewHyperModel`; an input shape that is not (timesteps, features).

    Example:
        hypermodel = ProxLSTMHyperModel((29, 12), num_classes=9)
        tuner = keras_tuner.Hyperband(hypermodel, "val_accuracy", max_epochs=50)
        tuner.search(x, labels, validation_data=(x2, labels2))

    Reference: Li, Ma, Zhang (2020), section 6 and the appendix on the experiments.
    """

    def __init__(
        self,
        input_shape: tuple[int | None, int],
        num_classes: int,
        *,
        encoder: Callable | None = None,
        name: str | None = None,
        **layer_arguments: Any,
    ):
        super().__init__(num_classes, encoder, name)
        if not isinstance(input_shape, list | tuple) or len(input_shape) != 2:
            raise ValueError(
                "`input_shape` must be (timesteps, features). Received: "
                f"input_shape={input_shape!r}"
            )
        steps, features = input_shape
        self.input_shape = (
            None if steps is None else check_integer("input_shape[0]", steps),
            check_integer("input_shape[1]", features),
        )
        self.layer_arguments = layer_arguments

    def build_encoder(self, hp: keras_tuner.HyperParameters) -> keras.layers.Layer:
        """The layer before ProxLSTM."""
        if self.encoder is not None:
            return self.encoder(hp, self.input_shape)
        return keras.layers.Conv1D(
            hp.Choice("filters", [32, 64]),
            hp.Choice("kernel_size", [3, 8]),
            padding="same",
            activation="relu",
        )

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The compiled model of a trial."""
        inputs = keras.Input(self.input_shape)
        mask = keras.ops.any(keras.ops.not_equal(inputs, 0.0), axis=-1)
        tuned = {
            "units": hp.Choice("units", [64, 128]),
            "lam": self.schedule(hp)(0),
            "delta": hp.Float("delta", 0.1, 10.0, sampling="log", default=1.0),
        }
        layer = ProxLSTM(**self._with(tuned, self.layer_arguments))
        outputs = layer(self.build_encoder(hp)(inputs), mask=mask)
        model = keras.Model(inputs, keras.layers.Dense(self.num_classes)(outputs))
        return self._compiled(hp, model)
