"""What the multiview models share: encoders and predictors, and the masks between them."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_bool

_LISTS = ("encoders", "between", "decoders", "predictors")


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The Keras mask of a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: tf.Tensor, *masks: tf.Tensor | None) -> tf.Tensor:
    """`tensor`, its Keras mask True where all `masks` are; as it is if all are None."""
    known = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
    if known:
        tensor._keras_mask = functools.reduce(tf.logical_and, known)
    return tensor


def over_last_axes(mask: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A mask of the leading axes of `x`, with axes of size one for the others."""
    ones = tf.ones([len(x.shape) - len(mask.shape)], tf.int32)
    return tf.reshape(tf.cast(mask, tf.bool), tf.concat([tf.shape(mask), ones], 0))


def average(tensors: Sequence[tf.Tensor], valid_only: bool) -> tf.Tensor:
    """The mean of tensors of one shape, masked where all are masked, as in `Average` of Keras.

    With `valid_only` a tensor counts only where its mask is True. Where none counts the mean is 0.
    """
    masks = [mask_of(x) for x in tensors]
    dtype = keras.backend.result_type(*(x.dtype for x in tensors))
    total = count = tf.zeros([], dtype)
    for x, mask in zip(tensors, masks, strict=True):
        kept = over_last_axes(mask, x) if valid_only and mask is not None else True
        total += tf.cast(tf.where(kept, x, tf.zeros_like(x)), dtype)
        count += tf.cast(kept, dtype)
    mean = tf.math.divide_no_nan(total, count)
    if any(mask is None for mask in masks):
        return mean
    return with_mask(mean, functools.reduce(tf.logical_or, masks))


def apply(layer: keras.layers.Layer, x: tf.Tensor, **mode: Any) -> tf.Tensor:
    """`layer(x)`, masked where x is.

    A mask of whole examples, `(batch,)`, is also that of the output, whatever the layer is. So a
    layer that knows no masks need not see it.
    """
    mask = mask_of(x)
    if mask is None or len(mask.shape) > 1:
        return layer(x, **mode)
    # The raw operation drops the mask, which `tf.identity` keeps.
    output = layer(x if layer.supports_masking else tf.raw_ops.Identity(input=x), **mode)
    return with_mask(tf.identity(output), mask) if mask_of(output) is None else output


class MultiviewModel(keras.Model):
    """An encoder and a predictor per view; the prediction averages the logits or takes one view's.

    If the prediction takes one view's logits, each view has a loss: in training `call` returns the
    logits of all views, and `compute_loss` takes the mean of their losses.
    """

    def __init__(
        self,
        encoders: Sequence[keras.layers.Layer],
        predictors: Sequence[keras.layers.Layer],
        predict_with: str | int,
        nan_is_missing: bool,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.encoders = check_layers("encoders", encoders)
        self.predictors = check_layers("predictors", predictors, len(self.encoders))
        if predict_with != "average" and predict_with not in range(len(self.encoders)):
            raise ValueError(
                f"`predict_with` must be 'average' or the index of one of the "
                f"{len(self.encoders)} views. Received: predict_with={predict_with!r}"
            )
        self.predict_with: Any = predict_with if predict_with == "average" else int(predict_with)
        self.nan_is_missing = check_bool("nan_is_missing", nan_is_missing)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        views = keras.tree.map_shape_structure(
            lambda shape: keras.KerasTensor((None, *shape[1:]), self.compute_dtype), input_shape
        )
        self._check_views(views)
        # First the encoders alone: a frozen layer that the model's call builds can never train.
        self._code_shapes = [f(x).shape for f, x in zip(self.encoders, views, strict=True)]
        self.compute_output_spec(views)
        self.built = True

    def encode(self, inputs: Any) -> list[tf.Tensor]:
        """The codes of a list of views: a list of tensors, the outputs of the encoders.

        The mask of a code is False for padding and, with `nan_is_missing`, for missing views.
        """
        return self._encode(inputs)[0]

    def _encode(self, inputs: Any, **mode: Any) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The codes, and the views with 0 in the place of what is missing."""
        self._check_views(inputs)
        pairs = [self._code(e, x, **mode) for e, x in zip(self.encoders, inputs, strict=True)]
        return [code for code, _ in pairs], [x for _, x in pairs]

    def _check_views(self, inputs: Any) -> None:
        if isinstance(inputs, list | tuple) and len(inputs) == len(self.encoders):
            return
        received = f"one tensor ({inputs!r})"
        if isinstance(inputs, dict):
            received = f"a dict with the keys {list(inputs)}: pass a list"
        elif isinstance(inputs, list | tuple):
            received = f"{len(inputs)} views"
        raise ValueError(
            f"{type(self).__name__} takes a list of {len(self.encoders)} views, one per encoder. "
            f"Received: {received}"
        )

    def _code(
        self, encoder: keras.layers.Layer, x: tf.Tensor, **mode: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The code of one view, and the view with 0 in the place of what is missing."""
        missing = None
        if self.nan_is_missing and tf.as_dtype(x.dtype).is_floating:
            missing = tf.math.is_nan(x)
            x = with_mask(tf.where(missing, tf.zeros_like(x), x), mask_of(x))
        code = apply(encoder, x, **mode)
        if missing is not None:
            # A code (batch, d) is of a whole example, a code (batch, time, d) of its steps.
            axes = list(range(len(code.shape) - 1, len(x.shape)))
            present = ~tf.reduce_any(missing, axis=axes) if axes else ~missing
            code = with_mask(tf.identity(code), mask_of(code), present)
        return code, x

    def _logits(self, features: Sequence[tf.Tensor], training: bool) -> Any:
        logits = [apply(p, x) for p, x in zip(self.predictors, features, strict=True)]
        if not all(logits[0].shape.is_compatible_with(x.shape) for x in logits):
            raise ValueError(
                "The predictors must return outputs of one shape: they predict the same target. "
                f"Received the shapes {[tuple(x.shape) for x in logits]}"
            )
        if self.predict_with == "average":
            return average(logits, valid_only=self.nan_is_missing)
        return logits if training else logits[self.predict_with]

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: `call` gives the outputs their masks."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        """The compiled loss; with a view index in training, the mean of those of all views."""
        loss = super().compute_loss
        if isinstance(y_pred, list):
            return tf.add_n([loss(x, y, logits, sample_weight) for logits in y_pred]) / len(y_pred)
        return loss(x, y, y_pred, sample_weight)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict:
        """The compiled metrics, of the prediction."""
        if isinstance(y_pred, list):
            y_pred = y_pred[self.predict_with]
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **{n: _serialized(getattr(self, n)) for n in _LISTS if hasattr(self, n)},
            "predict_with": self.predict_with,
            "nan_is_missing": self.nan_is_missing,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        lists = {name: _deserialized(config[name]) for name in _LISTS if name in config}
        return cls(**config | lists)


def _serialized(layers: Sequence[keras.layers.Layer]) -> list[Any]:
    """Configs of layers; for a repeated layer its first index, so that it stays shared."""
    first = [next(i for i, one in enumerate(layers) if one is layer) for layer in layers]
    return [
        keras.saving.serialize_keras_object(layer) if place == i else place
        for i, (layer, place) in enumerate(zip(layers, first, strict=True))
    ]


def _deserialized(configs: Sequence[Any]) -> list[Any]:
    layers: list[Any] = []
    for config in configs:
        shared = isinstance(config, int)
        layers.append(layers[config] if shared else keras.saving.deserialize_keras_object(config))
    return layers


def check_layers(name: str, layers: Any, count: int | None = None) -> list[keras.layers.Layer]:
    """`layers` as a list of `count` (or at least two) Keras layers, or a `ValueError`."""
    wanted = f"{count} Keras layers, one per view" if count else "two or more Keras layers"
    ok = isinstance(layers, list | tuple) and all(isinstance(x, keras.layers.Layer) for x in layers)
    if not ok or (len(layers) != count if count else len(layers) < 2):
        raise ValueError(f"`{name}` must be a list of {wanted}. Received: {name}={layers!r}")
    return list(layers)
