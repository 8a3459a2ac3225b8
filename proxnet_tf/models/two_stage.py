"""DCCA and DCCAE: codes that correlate first, then a classifier on the fixed codes."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32, check_bool, check_integer, check_number
from proxnet_tf.models.base import (
    apply,
    build_and_infer,
    check_layers,
    family_of,
    mask_of,
    over_last_axes,
    serialized,
    with_mask,
)
from proxnet_tf.models.first_step import BuiltModel
from proxnet_tf.models.projection import ProjectingModel

UNWEIGHTED = (
    "The correlation belongs to the batch and cannot weight its rows; leave {} out of `pretrain`."
)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class DCCA(ProjectingModel):
    """Deep canonical correlation analysis: codes that correlate, then a classifier on the codes.

        pretrain:  min over f  L(f_1(x_1), ..., f_J(x_J)),  L = - sum_{i<=k} sigma_i for two views
        fit:       min over h  loss(h(F), c),  the encoders f fixed

    For more than two views L is that of `GCCALoss` (deep generalised CCA).

    Args:
        encoders: a layer or model per view, from the view to its code.
        predictors: a layer or model per view, from the code (or the code and the view, see
            `concatenate_inputs`) to the output, all of one shape.
        num_components: k of the correlation, None (the default) is min(d1, d2); needed for more
            than two views.
        epsilon: ridge on each view's covariance, >= 0; 1e-4 by default.
        concatenate_inputs: whether the predictors get the code and the original view side by side
            (the paper does this for speech); False by default.
        predict_with: "average" (default) or the index of a view, as in `MultiviewClassifier`.
        nan_is_missing: whether a NaN in a view marks it as missing, as in `MultiviewClassifier`;
            False by default.
        **kwargs: `name`, `dtype` of a Keras model.

    Call arguments:
        inputs: list or tuple of J views, in the order of `encoders`. A dict is refused.

    Output:
        Logits in the shape of a predictor's output, masked as those of `MultiviewClassifier`.

    The encoders are fixed outside `pretrain`. It trains them but for the layers in them that were
    not trainable when they were given; if no encoder was trainable, it trains all of them. Keras
    masks of the codes are respected in both stages. Batches of `pretrain` should hold several times
    as many rows as a code has columns. Sample weights are honoured by `fit` and refused by
    `pretrain`. Under a `tf.distribute` strategy each replica has its own correlation in `pretrain`.

    The codes correlate up to a linear map of each view. `fit_projections` finds these maps, after
    which `project` gives the canonical variates of one view without the others: in them a query
    with one view finds the other by the cosine (`RecallAtK`). The maps are saved with the model;
    `pretrain` drops them.

    Raises:
        ValueError: as `MultiviewClassifier`; `fit` or `train_on_batch` before `pretrain`,
            `project` before `fit_projections`.

    Example:

    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> model = DCCA(encoders, [keras.layers.Dense(3), keras.layers.Dense(3)])
    >>> x, y = keras.random.normal((8, 5)), keras.random.normal((8, 4))
    >>> _ = model.pretrain([x, y], epochs=2, verbose=0)
    >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> _ = model.fit([x, y], keras.ops.arange(8) % 3, verbose=0)
    >>> correlations = model.fit_projections([x, y])
    >>> model.project(x, 0).shape, model.project(y[:1], 1).shape
    (TensorShape([8, 2]), TensorShape([1, 2]))

    Reference: Andrew, Arora, Bilmes, Livescu, Deep canonical correlation analysis (2013); the
    paper's section 6.
    """

    def __init__(
        self,
        encoders: Sequence[keras.layers.Layer],
        predictors: Sequence[keras.layers.Layer],
        *,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        concatenate_inputs: bool = False,
        predict_with: str | int = "average",
        nan_is_missing: bool = False,
        **kwargs: Any,
    ):
        super().__init__(encoders, predictors, predict_with, nan_is_missing, **kwargs)
        family_of(len(self.encoders), num_components)
        self.num_components = (
            None if num_components is None else check_integer("num_components", num_components)
        )
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.concatenate_inputs = check_bool("concatenate_inputs", concatenate_inputs)
        self._frozen_in_encoders = fix(self.encoders)
        self.pretrained = self.add_weight(
            name="pretrained", shape=(), initializer="zeros", trainable=False
        )

    def _feature_shapes(self, codes: list[Any], input_shape: list[Any]) -> list[Any]:
        if not self.concatenate_inputs:
            return codes
        return [(*c[:-1], c[-1] + x[-1]) for c, x in zip(codes, input_shape, strict=True)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        # The encoders are fixed: their dropout and their moving statistics rest too.
        features, views = self._encode(inputs, training=False)
        if self.concatenate_inputs:
            features = [
                with_mask(tf.concat([code, tf.cast(x, code.dtype)], -1), mask_of(code), mask_of(x))
                for code, x in zip(features, views, strict=True)
            ]
        return self._logits(features, training)

    def pretrain(
        self,
        x: Any,
        y: Any = None,
        *,
        optimizer: Any = "adam",
        **fit_arguments: Any,
    ) -> keras.callbacks.History:
        """Trains the encoders on the correlation objective; returns the History.

        Args:
            x: list of J views, or what else `fit` takes with batches `(views,)` or `(views, y)`.
            y: ignored; there for interfaces that always pass a target.
            optimizer: a Keras optimizer or its name.
            **fit_arguments: `epochs`, `batch_size`, `validation_data=(views,)`, `callbacks`,
                `verbose` and so on, as in `fit`. Sample weights and class weights are refused,
                also in batches of three parts. Callbacks get this stage as their model: what it
                saves as a whole, as `ModelCheckpoint("best.keras")` does, is the `DCCA`; a file of
                its weights, as `BackupAndRestore` writes, continues `pretrain` alone.

        The History has `correlation_loss` (L) and, for `DCCAE`, `reconstruction_loss`.
        """
        refused = {"sample_weight", "class_weight"} & fit_arguments.keys()
        if refused:
            raise ValueError(UNWEIGHTED.format(" and ".join(sorted(refused))))
        if not self.built and (shapes := shapes_of(x)):  # some callbacks need it
            self.build(shapes)
        stage = self._pretraining()
        release(self.encoders, self._frozen_in_encoders)
        try:
            stage.compile(optimizer)
            history = stage.fit(x, **fit_arguments)
        finally:
            fix(self.encoders)
        self.pretrained.assign(1.0)
        for projection in self.projections:
            projection.fitted.assign(0.0)  # the codes have changed
        return history

    def _pretraining(self) -> keras.Model:
        return _Pretraining(self, None, 0.0)

    def make_train_function(self, force: bool = False) -> Any:
        """As in `keras.Model`; `fit` and `train_on_batch` call it first."""
        if not bool(tf.convert_to_tensor(self.pretrained) > 0):
            raise ValueError(
                f"{type(self).__name__} trains in two stages: call `pretrain(views)` before `fit`."
            )
        return super().make_train_function(force)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "concatenate_inputs": self.concatenate_inputs,
            "frozen_in_encoders": self._frozen_in_encoders,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        # Files of version 0.1 have no such keys.
        frozen = {key: config.pop(key) for key in tuple(config) if key.startswith("frozen_in_")}
        model = super().from_config(config, custom_objects)
        for key, names in frozen.items():
            setattr(model, f"_{key}", tuple(map(tuple, names)))
        return model


@keras.saving.register_keras_serializable(package="proxnet_tf")
class DCCAE(DCCA):
    """Deep CCA with autoencoders: the codes correlate and reconstruct their views.

        pretrain:  min over f, g  L(F) + weight sum_j mean_i ||x_ij - g_j(f_j(x_ij))||^2 / D_j
        fit:       as `DCCA`

    with the decoders g and the widths D_j of the views.

    Args:
        encoders: as for `DCCA`.
        decoders: a layer or model per view, from the code to the view's shape.
        predictors: as for `DCCA`.
        reconstruction_weight: >= 0, default 1.
        **kwargs: every other argument of `DCCA`.

    Raises:
        ValueError: as `DCCA`; not a decoder per view, decoders of another shape than the views.

    Example:

    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> decoders = [keras.layers.Dense(5), keras.layers.Dense(4)]
    >>> predictors = [keras.layers.Dense(3), keras.layers.Dense(3)]
    >>> model = DCCAE(encoders, decoders, predictors, reconstruction_weight=0.1)
    >>> x, y = keras.random.normal((8, 5)), keras.random.normal((8, 4))
    >>> sorted(model.pretrain([x, y], verbose=0).history)
    ['correlation_loss', 'loss', 'reconstruction_loss']

    Reference: Wang, Arora, Livescu, Bilmes, On deep multi-view representation learning (2015); the
    paper's section 6.
    """

    def __init__(
        self,
        encoders: Sequence[keras.layers.Layer],
        decoders: Sequence[keras.layers.Layer],
        predictors: Sequence[keras.layers.Layer],
        *,
        reconstruction_weight: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(encoders, predictors, **kwargs)
        self.decoders = check_layers("decoders", decoders, len(self.encoders))
        self.reconstruction_weight = check_number(
            "reconstruction_weight", reconstruction_weight, at_least=0.0
        )
        self._frozen_in_decoders = fix(self.decoders)

    def _build_between(self, codes: list[Any], input_shape: list[Any]) -> None:
        for decoder, code, view in zip(self.decoders, codes, input_shape, strict=True):
            shape = build_and_infer(decoder, code)
            if tuple(shape)[1:] != tuple(view)[1:]:
                raise ValueError(
                    f"A decoder must return the shape of its view, {tuple(view)}. Received: "
                    f"{tuple(shape)}"
                )

    def pretrain(
        self, x: Any, y: Any = None, *, optimizer: Any = "adam", **fit_arguments: Any
    ) -> keras.callbacks.History:
        """As `DCCA.pretrain`, on correlation and reconstruction."""
        release(self.decoders, self._frozen_in_decoders)
        try:
            return super().pretrain(x, y, optimizer=optimizer, **fit_arguments)
        finally:
            fix(self.decoders)

    def _pretraining(self) -> keras.Model:
        return _Pretraining(self, self.decoders, self.reconstruction_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "decoders": serialized(self.decoders),
            "reconstruction_weight": self.reconstruction_weight,
            "frozen_in_decoders": self._frozen_in_decoders,
        }


class _Pretraining(BuiltModel):
    """The first stage of DCCA and DCCAE as a model without targets; shares their layers."""

    def __init__(
        self, model: DCCA, decoders: list[keras.layers.Layer] | None, reconstruction_weight: float
    ):
        super().__init__(name="pretraining")
        self.encoders = model.encoders
        self.decoders = decoders
        # Not the model itself: its predictors do not take part.
        self.build_model, self.encode_views = model.build, model._encode
        self.save_model = model.save
        self.mark_pretrained = functools.partial(model.pretrained.assign, 1.0)
        self.loss_of = family_of(len(model.encoders), model.num_components).loss
        self.options = model.num_components, model.epsilon
        self.reconstruction_weight = reconstruction_weight
        self.supports_jit = False
        self.correlation_tracker = keras.metrics.Mean(name="correlation_loss")
        if decoders:
            self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.built = model.built

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.mark_pretrained()
        self.save_model(*args, **kwargs)

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

    def build(self, input_shape: Any) -> None:
        self.build_model(input_shape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        codes, views = self.encode_views(inputs)
        masks = [mask_of(code) for code in codes]
        correlation = self.loss_of(codes, *self.options, masks)
        self.add_loss(correlation)
        # As `loss`, the mean over the examples of the batches.
        size = tf.shape(codes[0])[0]
        self.correlation_tracker.update_state(correlation, sample_weight=size)
        if self.decoders:
            error = sum(
                [
                    mean_square(tf.cast(x, code.dtype) - apply(decoder, code), mask)
                    for x, code, decoder, mask in zip(
                        views, codes, self.decoders, masks, strict=True
                    )
                ]
            )
            error = tf.cast(error, correlation.dtype)
            self.add_loss(self.reconstruction_weight * error)
            self.reconstruction_tracker.update_state(error, sample_weight=size)
        return codes


def shapes_of(x: Any) -> tuple[Any, ...]:
    """The shapes of views in a list or in the batches of a dataset; none where they do not show.

    A tuple, as in the batches of `fit`: an exported model takes the structure it was built for.
    """
    if isinstance(x, tf.data.Dataset):
        x = x.element_spec[0] if isinstance(x.element_spec, tuple) else x.element_spec
    views: list[Any] = list(x) if isinstance(x, list | tuple) else [None]
    known = all(hasattr(v, "shape") for v in views)
    return tuple((None, *v.shape[1:]) for v in views) if known else ()


Names = tuple[tuple[str, ...], ...]


def fix(layers: Sequence[keras.layers.Layer]) -> Names:
    """Makes layers untrainable; returns what `release` must leave so.

    That is, for each of them, the names of its outermost parts that were untrainable before. Where
    no layer was trainable another model has fixed them, and the names are none.
    """
    names: Names = tuple(() for _ in layers)
    if any(layer.trainable for layer in layers):
        names = tuple(tuple(_untrainable(layer)) for layer in layers)
    for layer in layers:
        layer.trainable = False
    return names


def release(layers: Sequence[keras.layers.Layer], names: Names) -> None:
    """Makes layers trainable, but for their parts of these names, see `fix`."""
    for layer, left in zip(layers, names, strict=True):
        layer.trainable = True
        for part in layer._flatten_layers():
            if part.name in left:
                part.trainable = False


def _untrainable(layer: keras.layers.Layer) -> list[str]:
    if not layer.trainable:
        return [layer.name]
    parts = layer._flatten_layers(recursive=False, include_self=False)
    return [name for part in parts for name in _untrainable(part)]


def mean_square(difference: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Mean of the squares over the examples or steps that a mask leaves in, at least float32."""
    difference = tf.cast(difference, at_least_float32(difference.dtype))
    if mask is None:
        return tf.reduce_mean(tf.square(difference))
    # Selected before the square: the gradient of NaN squared would be NaN at masked steps too.
    kept = tf.where(over_last_axes(mask, difference), difference, tf.zeros_like(difference))
    entries = tf.size(difference) // tf.maximum(tf.size(mask), 1)
    count = tf.reduce_sum(tf.cast(mask, tf.int32)) * entries
    return tf.math.divide_no_nan(tf.reduce_sum(tf.square(kept)), tf.cast(count, kept.dtype))
