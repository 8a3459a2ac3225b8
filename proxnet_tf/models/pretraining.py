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
from proxnet_tf.models.base import BuiltModel, apply, mask_of, over_last_axes

UNWEIGHTED = (
    "The correlation belongs to the batch and cannot weight its rows; leave {} out of `pretrain`."
)


class Pretraining(BuiltModel):
    """The first stage of a DCCA or DCCAE as a model without targets, which shares their layers.

    It returns the codes, and which of their rows lack no view.
    """

    def __init__(self, model: Any):
        super().__init__(name="pretraining", dtype=model.dtype_policy)
        # Weak, so that Keras does not take the predictors for a part of this stage.
        self.owner: Any = weakref.ref(model)
        self.encoders, self.decoders = model.encoders, model.decoders
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

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        if sample_weight is not None:
            raise ValueError(UNWEIGHTED.format("the third part of a batch"))
        return super().compute_loss(x, y, y_pred, None, training)

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
        # Fewer than two rows define no correlation.
        self.correlation_tracker.update_state(loss, tf.where(rows < 2, 0, rows))
        if self.decoders:
            triples = zip(views, codes, self.decoders, strict=True)
            differences = [tf.cast(x, c.dtype) - apply(decoder, c) for x, c, decoder in triples]
            error = tf.add_n(list(map(mean_square, differences, masks)))
            self.add_loss(model.reconstruction_weight * tf.cast(error, loss.dtype))
            rows = tf.math.count_nonzero(tf.stack(masks), dtype=tf.int32)
            self.reconstruction_tracker.update_state(error, rows)
        return [*codes, complete]


def mean_square(difference: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of the squares over the examples or steps that a mask leaves in, at least float32."""
    difference = tf.cast(difference, at_least_float32(difference.dtype))
    # Selected before the square: the gradient of NaN squared would be NaN at masked steps too.
    kept = tf.where(over_last_axes(mask, difference), difference, tf.zeros_like(difference))
    entries = tf.size(difference) // tf.maximum(tf.size(mask), 1)
    count = tf.math.count_nonzero(mask, dtype=tf.int32) * entries
    return tf.math.divide_no_nan(tf.reduce_sum(tf.square(kept)), tf.cast(count, kept.dtype))


class FirstStage:
    """The layers that train in the first stage alone, but for what was not trainable before.

    Where none of the layers that come together was trainable, another model has fixed them, and all
    of them train.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]):
        self.layers: list[tuple[keras.layers.Layer, set[str]]] = []
        self.add(layers)

    def add(self, layers: Sequence[keras.layers.Layer]) -> None:
        """Makes layers untrainable outside of `training`."""
        given = any(layer.trainable for layer in layers)
        for layer in layers:
            parts = layer._flatten_layers()
            frozen = {part.name for part in parts if given and not part.trainable}
            self.layers.append((layer, frozen))
        for layer in layers:
            layer.trainable = False

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """The layers are trainable inside, as they were given."""
        before = [
            (part, part.trainable) for layer, _ in self.layers for part in layer._flatten_layers()
        ]
        for layer, frozen in self.layers:
            layer.trainable = True
            for part in layer._flatten_layers():
                if part.name in frozen:
                    part.trainable = False
        try:
            yield
        finally:
            for part, trainable in before:
                part.trainable = trainable
