"""What the multiview models share: encoders and predictors, masks, CCA or GCCA."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from proxnet_tf.checks import check_bool, check_choice, check_integer
from proxnet_tf.layers.multiview.penalty import CCARegularizer, GCCARegularizer
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.losses import cca_loss, gcca_loss
from proxnet_tf.models.first_step import BuiltModel


class Family(NamedTuple):
    """What belongs to one correlation: the layers, and the loss of (codes, k, epsilon, masks)."""

    prox: type[keras.layers.Layer]
    regularizer: type[keras.layers.Layer]
    loss: Callable[..., tf.Tensor]


def family_of(views: int, num_components: int | None) -> Family:
    """CCA for two views, GCCA for more, which has no default number of components.

    Args:
        views: the number of views.
        num_components: None where the user gave none.
    """
    if views == 2:
        return Family(ProxCCA, CCARegularizer, lambda codes, *rest: cca_loss(*codes, *rest))
    if num_components is None:
        raise ValueError(
            "`num_components` is needed for more than two views: the width of their common core. "
            f"Received: num_components=None, {views} views"
        )
    return Family(ProxGCCA, GCCARegularizer, gcca_loss)


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The Keras mask of a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: tf.Tensor, *masks: tf.Tensor | None) -> tf.Tensor:
    """`tensor` with the Keras mask that all of `masks` leave in; as it is if all are None."""
    known = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
    if known:
        tensor._keras_mask = functools.reduce(tf.logical_and, known)
    return tensor


def unmasked(tensor: tf.Tensor) -> tf.Tensor:
    """`tensor` without its Keras mask, which `tf.identity` would keep."""
    return tf.raw_ops.Identity(input=tensor)


def average(tensors: Sequence[tf.Tensor], valid_only: bool = False) -> tf.Tensor:
    """The mean of tensors of one shape, masked where all of them are.

    It is `keras.layers.Average`, mask included: one tensor without a mask has nothing masked.

    Args:
        tensors: list of tensors.
        valid_only: whether a tensor counts only where its mask is True; where none counts the mean
            is 0.
    """
    masks = [mask_of(x) for x in tensors]
    dtype = keras.backend.result_type(*(x.dtype for x in tensors))
    tensors = [tf.cast(x, dtype) for x in tensors]
    if not valid_only or all(mask is None for mask in masks):
        mean = tf.add_n(list(tensors)) / len(tensors)
    else:
        total, count = tf.zeros_like(tensors[0]), tf.zeros_like(tensors[0])
        for x, mask in zip(tensors, masks, strict=True):
            kept = True if mask is None else over_last_axes(mask, x)
            total += tf.where(kept, x, tf.zeros_like(x))
            count += tf.cast(kept, x.dtype)
        mean = tf.math.divide_no_nan(total, count)
    if any(mask is None for mask in masks):
        return mean
    return with_mask(mean, functools.reduce(tf.logical_or, masks))


def over_last_axes(mask: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A mask of the leading axes of `x`, with ones for the others."""
    ones = tf.ones([len(x.shape) - len(mask.shape)], tf.int32)
    return tf.reshape(tf.cast(mask, tf.bool), tf.concat([tf.shape(mask), ones], 0))


def apply(layer: keras.layers.Layer, x: tf.Tensor, **mode: Any) -> tf.Tensor:
    """`layer(x)`, masked where x is.

    A mask of whole examples, `(batch,)`, is one of the output whatever the layer is, and a layer
    that knows no masks need not see it.
    """
    mask = mask_of(x)
    if mask is None or len(mask.shape) > 1:
        return layer(x, **mode)
    output = layer(x if layer.supports_masking else unmasked(x), **mode)
    return with_mask(tf.identity(output), mask) if mask_of(output) is None else output


class MultiviewModel(BuiltModel):
    """An encoder and a predictor per view; the prediction averages the logits or takes one view's.

    With a view index every view has its loss: in training `call` returns the logits of all views,
    and `compute_loss` takes the mean of their losses.

    Args:
        encoders: a layer or model per view.
        predictors: a layer or model per view.
        predict_with: "average" or the index of a view.
        nan_is_missing: whether a NaN in a view marks it as missing.
        **kwargs: `name`, `dtype` of a Keras model.
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
        if predict_with != "average":
            if isinstance(predict_with, str):
                check_choice("predict_with", predict_with, ("average",))
            predict_with = check_integer("predict_with", predict_with, at_least=0)
            if predict_with >= len(self.encoders):
                raise ValueError(
                    f"`predict_with` must be 'average' or the index of one of the "
                    f"{len(self.encoders)} views. Received: predict_with={predict_with}"
                )
        self.predict_with: Any = predict_with
        self.nan_is_missing = check_bool("nan_is_missing", nan_is_missing)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        check_views(input_shape, len(self.encoders), type(self).__name__, "shapes")
        input_shape = [(None, *shape[1:]) for shape in input_shape]
        codes = [
            build_and_infer(encoder, shape)
            for encoder, shape in zip(self.encoders, input_shape, strict=True)
        ]
        self._build_between(codes, input_shape)
        features = self._feature_shapes(codes, input_shape)
        outputs = [
            tuple(build_and_infer(predictor, shape))
            for predictor, shape in zip(self.predictors, features, strict=True)
        ]
        if len(set(outputs)) > 1:
            raise ValueError(
                "The predictors must return outputs of one shape: they predict the same target. "
                f"Received the shapes {outputs}"
            )
        self.built = True

    def _build_between(self, codes: list[Any], input_shape: list[Any]) -> None:
        """Builds what takes the codes beside the predictors."""

    def _feature_shapes(self, codes: list[Any], input_shape: list[Any]) -> list[Any]:
        """Shapes of what the predictors get."""
        return codes

    def compute_output_shape(self, input_shape: Any) -> Any:
        check_views(input_shape, len(self.encoders), type(self).__name__, "shapes")
        shapes = [tuple(shape) for shape in input_shape]
        codes = [
            tuple(encoder.compute_output_shape(shape))
            for encoder, shape in zip(self.encoders, shapes, strict=True)
        ]
        return self.predictors[0].compute_output_shape(self._feature_shapes(codes, shapes)[0])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # As for a model without `compute_output_shape`: by `call`, dtypes and lists included.
        return super(keras.layers.Layer, self).compute_output_spec(*args, **kwargs)

    def encode(self, inputs: Any) -> list[tf.Tensor]:
        """The codes of a list of views, a list of tensors: what the encoders make of them.

        The mask of a code leaves padding out, and with `nan_is_missing` what is missing.
        """
        return self._encode(inputs)[0]

    def _encode(self, inputs: Any, **mode: Any) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The codes, and the views with 0 in the place of what is missing."""
        check_views(inputs, len(self.encoders), type(self).__name__, "views")
        pairs = [self._code(e, x, **mode) for e, x in zip(self.encoders, inputs, strict=True)]
        return [code for code, _ in pairs], [x for _, x in pairs]

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
        if self.predict_with == "average":
            return average(logits, valid_only=self.nan_is_missing)
        return logits if training else logits[self.predict_with]

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: `call` gives the outputs their masks."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """The compiled loss; with a view index in training, the mean of those of all views."""
        views = y_pred if isinstance(y_pred, list) else [y_pred]
        losses = [
            super(MultiviewModel, self).compute_loss(
                x=x, y=y, y_pred=logits, sample_weight=sample_weight, training=training
            )
            for logits in views
        ]
        return losses[0] if len(losses) == 1 else tf.add_n(losses) / len(losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict:
        """The compiled metrics, of the prediction."""
        if isinstance(y_pred, list):
            y_pred = y_pred[self.predict_with]
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "encoders": serialized(self.encoders),
            "predictors": serialized(self.predictors),
            "predict_with": self.predict_with,
            "nan_is_missing": self.nan_is_missing,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        for name in ("encoders", "predictors", "decoders"):
            if name in config:
                config[name] = _deserialized(config[name], custom_objects)
        return cls(**config)


def serialized(layers: Sequence[keras.layers.Layer]) -> list[Any]:
    """Configs of layers; for a layer that came before, its place, so that it stays shared."""
    first = [next(i for i, one in enumerate(layers) if one is layer) for layer in layers]
    return [
        keras.saving.serialize_keras_object(layer) if place == i else place
        for i, (layer, place) in enumerate(zip(layers, first, strict=True))
    ]


def _deserialized(configs: Sequence[Any], custom_objects: Any) -> list[Any]:
    layers: list[Any] = []
    for config in configs:
        layers.append(
            layers[config]
            if isinstance(config, int)
            else keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)
        )
    return layers


def check_layers(name: str, layers: Any, count: int | None = None) -> list[keras.layers.Layer]:
    """`layers` as a list of `count` (or at least two) Keras layers, or a `ValueError`."""
    wanted = f"{count} Keras layers, one per view" if count else "two or more Keras layers"
    ok = isinstance(layers, list | tuple) and all(isinstance(x, keras.layers.Layer) for x in layers)
    if not ok or (len(layers) != count if count else len(layers) < 2):
        raise ValueError(f"`{name}` must be a list of {wanted}. Received: {name}={layers!r}")
    return list(layers)


def check_views(inputs: Any, count: int, name: str, what: str) -> None:
    """Refuses anything but a list or tuple of `count` views (or of their shapes)."""
    if isinstance(inputs, dict):
        raise ValueError(
            f"{name} takes a list of {count} views in the order of its encoders. Received a dict "
            f"with the keys {list(inputs)}: pass a list."
        )
    is_list = isinstance(inputs, list | tuple)
    if is_list and what == "shapes":
        is_list = all(isinstance(shape, list | tuple) for shape in inputs)
    if not is_list or len(inputs) != count:
        received = f"{len(inputs)} {what}" if is_list else f"one tensor ({inputs!r})"
        raise ValueError(
            f"{name} takes a list of {count} views, one per encoder. Received: {received}"
        )


def build_and_infer(layer: keras.layers.Layer, shape: Any) -> Any:
    """Builds `layer` for an input shape; returns its output shape."""
    known = {keras.layers.Layer.compute_output_shape, keras.Model.compute_output_shape}
    if type(layer).compute_output_shape in known:  # Keras finds it, and builds, by a symbolic call
        symbol = keras.KerasTensor((None, *shape[1:]), dtype=layer.compute_dtype)
        return (shape[0], *layer(symbol).shape[1:])
    if not layer.built:
        layer.build(shape)
    return layer.compute_output_shape(shape)
