"""The first stage of DCCA and DCCAE: what trains in it, and the model that `fit` trains."""

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32
from proxnet_tf.losses import cca_loss, gcca_loss
from proxnet_tf.models.base import apply, mask_of

UNWEIGHTED = (
    "The correlation belongs to the batch and cannot weight its rows; leave the weights (of "
    "samples, classes, the third part of a batch) out of `pretrain`."
)


class Pretraining(keras.Model):
    """The first stage of a DCCA or DCCAE as a model without targets, which shares their layers."""

    def __init__(self, model: Any):
        super().__init__(name="pretraining", dtype=model.dtype_policy)
        # A weak reference, so that Keras does not count the predictors as part of this stage.
        self.owner: Any = weakref.ref(model)
        self.encoders, self.decoders = model.encoders, getattr(model, "decoders", [])
        self.supports_jit = False
        self.built = model.built
        self.correlation_tracker = keras.metrics.Mean(name="correlation_loss")
        if self.decoders:
            self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")

    def build(self, input_shape: Any) -> None:
        self.owner().build(input_shape)
        self.built = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.owner().pretrained.assign(1.0)
        self.owner().save(*args, **kwargs)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            raise ValueError(UNWEIGHTED)
        return super().compute_loss(x, y, y_pred)

    def call(self, inputs: Any) -> list[tf.Tensor]:
        model = self.owner()
        codes, views = model._encode(inputs)
        everywhere = tf.ones(tf.shape(codes[0])[:-1], tf.bool)
        masks = [everywhere if mask_of(code) is None else mask_of(code) for code in codes]
        complete = functools.reduce(tf.logical_and, masks)
        settings: Any = (model.num_components, model.epsilon, masks)
        loss = gcca_loss(codes, *settings) if len(codes) > 2 else cca_loss(*codes[:2], *settings)
        self.add_loss(loss)
        rows = tf.math.count_nonzero(complete, dtype=tf.int32)
        # Fewer than two rows have no correlation.
        self.correlation_tracker.update_state(loss, tf.where(rows < 2, 0, rows))
        if self.decoders:
            triples = zip(views, codes, self.decoders, strict=True)
            differences = [tf.cast(x, c.dtype) - apply(decoder, c) for x, c, decoder in triples]
            error = tf.add_n(list(map(mean_square, differences, masks)))
            self.add_loss(model.reconstruction_weight * tf.cast(error, loss.dtype))
            rows = tf.math.count_nonzero(tf.stack(masks), dtype=tf.int32)
            self.reconstruction_tracker.update_state(error, rows)
        return codes


def mean_square(difference: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of the squares over the examples or steps that a mask leaves in, at least float32."""
    kept = tf.boolean_mask(tf.cast(difference, at_least_float32(difference.dtype)), mask)
    return tf.math.divide_no_nan(tf.reduce_sum(kept**2), tf.cast(tf.size(kept), kept.dtype))


class FirstStage:
    """The layers that train in the first stage only, except those that were not trainable.

    If none of the layers added together was trainable, another model has fixed them, and all of
    them train.
    """

    def __init__(self) -> None:
        self.layers: list[keras.layers.Layer] = []
        self.frozen: list[keras.layers.Layer] = []

    def add(self, layers: Sequence[keras.layers.Layer]) -> None:
        """Makes layers untrainable outside of `training`."""
        if any(layer.trainable for layer in layers):
            self.frozen += [part for part in _parts(layers) if not part.trainable]
        self.layers += layers
        for layer in layers:
            layer.trainable = False

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Inside this context the layers are as trainable as they were given."""
        before = [(part, part.trainable) for part in _parts(self.layers)]
        for layer in self.layers:
            layer.trainable = True
        for part in self.frozen:
            part.trainable = False
        try:
            yield
        finally:
            for part, trainable in before:
                part.trainable = trainable


def _parts(layers: Sequence[keras.layers.Layer]) -> list[keras.layers.Layer]:
    return [part for layer in layers for part in layer._flatten_layers()]
