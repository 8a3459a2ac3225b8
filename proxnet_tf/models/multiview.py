"""The paper's multiview methods as Keras models: Vanilla, RRM, ProxNet, DCCA, DCCAE."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_choice, check_integer, check_number
from proxnet_tf.layers.multiview.penalty import CCARegularizer, GCCARegularizer
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.losses import cca_loss, gcca_loss

_PROX_OPTIONS = (
    "solver",
    "gradient",
    "momentum",
    "max_iterations",
    "tolerance",
    "jit_solver",
    "synchronized",
    "solver_device",
)


class _MultiviewModel(keras.Model):
    """An encoder and a predictor per view; the prediction averages the logits or takes one view's.

    With a view index every view has its loss: in training `call` returns the logits of all views,
    and `compute_loss` takes the mean of their losses.
    """

    def __init__(
        self,
        encoders: Sequence[keras.layers.Layer],
        predictors: Sequence[keras.layers.Layer],
        predict_with: str | int,
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

    def build(self, input_shape: Any) -> None:
        check_views(input_shape, len(self.encoders), type(self).__name__, "shapes")
        input_shape = [(None, *shape[1:]) for shape in input_shape]
        codes = [
            build_and_infer(encoder, shape)
            for encoder, shape in zip(self.encoders, input_shape, strict=True)
        ]
        features = self._build_features(codes, input_shape)
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

    def _build_features(self, codes, input_shape):
        raise NotImplementedError

    def encode(self, inputs: Any) -> list[tf.Tensor]:
        """The codes of a list of views, a list of tensors: what the encoders make of them."""
        check_views(inputs, len(self.encoders), type(self).__name__, "views")
        return [encoder(x) for encoder, x in zip(self.encoders, inputs, strict=True)]

    def _logits(self, features, training):
        logits = [p(x) for p, x in zip(self.predictors, features, strict=True)]
        if self.predict_with == "average":
            return tf.add_n(logits) / len(logits)
        return logits if training else logits[self.predict_with]

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ) -> tf.Tensor:
        """The compiled loss; with a view index in training, the mean of those of all views."""
        if isinstance(y_pred, list):  # the mean over all rows of all views
            y = tf.concat([y] * len(y_pred), 0)
            if sample_weight is not None:
                sample_weight = tf.concat([sample_weight] * len(y_pred), 0)
            y_pred = tf.concat(y_pred, 0)
        return super().compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )

    def compute_metrics(self, x, y, y_pred, sample_weight=None) -> dict:
        """The compiled metrics, of the prediction."""
        if isinstance(y_pred, list):
            y_pred = y_pred[self.predict_with]
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "encoders": [keras.saving.serialize_keras_object(e) for e in self.encoders],
            "predictors": [keras.saving.serialize_keras_object(p) for p in self.predictors],
            "predict_with": self.predict_with,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        for name in ("encoders", "predictors", "decoders"):
            if name in config:
                config[name] = [
                    keras.saving.deserialize_keras_object(layer, custom_objects=custom_objects)
                    for layer in config[name]
                ]
        return cls(**config)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class MultiviewClassifier(_MultiviewModel):
    """An encoder and a predictor per view, trained end to end.

        vanilla:  min  loss(h(F), c)                      F = (f_1(x_1), ..., f_J(x_J)), the codes
        rrm:      min  loss(h(F), c) + weight L(F)        L: see `CCALoss` and `GCCALoss`
        prox:     min  loss(h(P), c),  P = argmin lam/(2n) ||P - F||^2 + L(P)     (ProxNet, eq. 8)

    over the weights of the encoders f and the predictors h, by `CCARegularizer` and `ProxCCA`, or
    `GCCARegularizer` and `ProxGCCA` for more than two views. The prediction is the average of the
    views' logits, or one view's logits (the paper's "acoustic" mode); then the training loss is
    the mean of the losses of the views, each against the same target.

    Args:
        encoders: a layer or model per view, from the view to its code `(batch, d_j)` or
            `(batch, time, d_j)`.
        predictors: a layer or model per view, from the code to the output, all of one shape.
        method: "prox" (default), "rrm" or "vanilla".
        num_components: k of the correlation, None (the default) is min(d1, d2); needed for more
            than two views, where it is the width of the common core.
        lam: weight of the displacement, > 0 ("prox"); drive it with `LambdaSchedule`.
        epsilon: ridge on each view's covariance, >= 0.
        inference: of the proximal layer when `training=False`: "identity", "batch" or "moving".
        correlation_weight: weight >= 0 of L of the codes in the training loss. "rrm": its
            regularizer, default 1. "prox": the term of the published code beside the layer (there
            1/d), default 0. "vanilla": must be 0.
        monitor: whether the proximal layer reports its correlations (see `ProxCCA`).
        prox_options: further arguments of the proximal layer, such as `{"synchronized": True}`
            ("prox"): `solver`, `gradient`, `momentum`, `max_iterations`, `tolerance`,
            `jit_solver`, `synchronized`, `solver_device`; see `ProxCCA`.
        predict_with: "average" (default) or the index of a view, 0 <= index < J.

    Call arguments:
        inputs: list or tuple of J views, in the order of `encoders`. A dict is refused.
        training: whether the proximal layer acts; with a view index, `call` then returns the list
            of the logits of all views.

    Output: logits in the shape of a predictor's output.

    Sample weights weight the classification loss; L takes every row. A row of weight 0 is thus an
    unlabelled example that still feeds the proximal layer.

    Raises:
        ValueError: fewer than two encoders, more than two with a correlation and without
            `num_components`, not as many predictors, predictors with outputs of different shapes,
            arguments outside their ranges, inputs that are not a list of J views.

    Example:
        model = MultiviewClassifier(
            [keras.layers.Dense(10), keras.layers.Dense(10)],
            [keras.layers.Dense(3), keras.layers.Dense(3)],
            lam=0.1,
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit([x, y], labels, callbacks=[LambdaSchedule(linear_lambda(0.1, 0.5))])

    Reference: Li, Ma, Zhang (2020), sections 5 and 6, eqs. (2) and (8).
    """

    def __init__(
        self,
        encoders: Sequence[keras.layers.Layer],
        predictors: Sequence[keras.layers.Layer],
        *,
        method: str = "prox",
        num_components: int | None = None,
        lam: float = 1.0,
        epsilon: float = 1e-4,
        inference: str = "identity",
        correlation_weight: float | None = None,
        monitor: bool = False,
        prox_options: Mapping[str, Any] | None = None,
        predict_with: str | int = "average",
        **kwargs: Any,
    ):
        super().__init__(encoders, predictors, predict_with, **kwargs)
        self.method = check_choice("method", method, ("vanilla", "rrm", "prox"))
        self.num_components = num_components
        self.lam = lam
        self.epsilon = epsilon
        self.inference = inference
        self.monitor = monitor
        if correlation_weight is None:
            correlation_weight = 1.0 if method == "rrm" else 0.0
        self.correlation_weight = check_number(
            "correlation_weight", correlation_weight, at_least=0.0
        )
        if method == "vanilla" and self.correlation_weight:
            raise ValueError(
                "`correlation_weight` must be 0 or None for method='vanilla'; use method='rrm' "
                f"for a correlation term. Received: correlation_weight={correlation_weight!r}"
            )
        self.prox_options = dict(prox_options or {})
        allowed = _PROX_OPTIONS if method == "prox" else ()
        if not set(self.prox_options) <= set(allowed):
            raise ValueError(
                f"`prox_options` may have the keys {list(allowed)} with method={method!r}. "
                f"Received: prox_options={prox_options}"
            )
        self.regularizer = self.prox = None
        if self.correlation_weight or method == "prox":
            check_components(num_components, self.encoders)
        two = len(self.encoders) == 2
        if self.correlation_weight:
            regularizer: Any = CCARegularizer if two else GCCARegularizer
            self.regularizer = regularizer(
                self.correlation_weight,
                num_components=num_components,
                epsilon=epsilon,
                dtype=self.dtype_policy,
            )
        if method == "prox":
            layer: Any = ProxCCA if two else ProxGCCA
            self.prox = layer(
                num_components,
                lam=lam,
                epsilon=epsilon,
                inference=inference,
                monitor=monitor,
                dtype=self.dtype_policy,
                **self.prox_options,
            )

    def _build_features(self, codes, input_shape):
        for layer in (self.regularizer, self.prox):
            if layer is not None:
                build_and_infer(layer, codes)
        return codes

    def call(self, inputs: Any, training: bool = False) -> Any:
        features = self.encode(inputs)
        for layer in (self.regularizer, self.prox):
            if layer is not None:
                features = layer(features)
        return self._logits(features, training)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "method": self.method,
            "num_components": self.num_components,
            "lam": self.lam,
            "epsilon": self.epsilon,
            "inference": self.inference,
            "correlation_weight": self.correlation_weight,
            "monitor": self.monitor,
            "prox_options": self.prox_options,
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class DCCA(_MultiviewModel):
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
        epsilon: ridge on each view's covariance, >= 0.
        concatenate_inputs: whether the predictors get the code and the original view side by side
            (the paper does this for speech).
        predict_with: "average" (default) or the index of a view, as in `MultiviewClassifier`.

    Call arguments:
        inputs: list or tuple of J views, in the order of `encoders`. A dict is refused.

    Output: logits in the shape of a predictor's output.

    The encoders are fixed outside `pretrain`, where Keras masks of the codes are respected. Batches
    of `pretrain` should hold several times as many rows as a code has columns. Sample weights are
    honoured by `fit` and refused by `pretrain`.

    Raises:
        ValueError: as `MultiviewClassifier`; `fit` before `pretrain`.

    Example:
        model = DCCA(encoders, predictors)
        model.pretrain([x, y], epochs=50, batch_size=400)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit([x, y], labels, epochs=50)

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
        **kwargs: Any,
    ):
        super().__init__(encoders, predictors, predict_with, **kwargs)
        check_components(num_components, self.encoders)
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.concatenate_inputs = bool(concatenate_inputs)
        for encoder in self.encoders:
            encoder.trainable = False
        self.pretrained = self.add_weight(
            name="pretrained", shape=(), initializer="zeros", trainable=False
        )

    def _build_features(self, codes, input_shape):
        if not self.concatenate_inputs:
            return codes
        return [(*c[:-1], c[-1] + x[-1]) for c, x in zip(codes, input_shape, strict=True)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        check_views(inputs, len(self.encoders), type(self).__name__, "views")
        # The encoders are fixed: their dropout and their moving statistics rest too.
        codes = [
            encoder(x, training=False) for encoder, x in zip(self.encoders, inputs, strict=True)
        ]
        if self.concatenate_inputs:
            codes = [
                tf.concat([c, tf.cast(x, c.dtype)], -1) for c, x in zip(codes, inputs, strict=True)
            ]
        return self._logits(codes, training)

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
                `verbose` and so on, as in `fit`; no `sample_weight` or `class_weight`.

        The History has `correlation_loss` (L) and, for `DCCAE`, `reconstruction_loss`.
        """
        refused = {"sample_weight", "class_weight"} & fit_arguments.keys()
        if refused:
            raise ValueError(
                "The correlation belongs to the batch and cannot weight its rows; leave "
                f"{' and '.join(sorted(refused))} out of `pretrain`."
            )
        stage = self._pretraining()
        for encoder in self.encoders:
            encoder.trainable = True
        try:
            stage.compile(optimizer)
            history = stage.fit(x, **fit_arguments)
        finally:
            for encoder in self.encoders:
                encoder.trainable = False
        self.pretrained.assign(1.0)
        return history

    def _pretraining(self):
        return _Pretraining(self, None, 0.0)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains the predictors on the codes, as `keras.Model.fit`; after `pretrain`."""
        if not bool(tf.convert_to_tensor(self.pretrained) > 0):
            raise ValueError(
                f"{type(self).__name__} trains in two stages: call `pretrain(views)` before `fit`."
            )
        return super().fit(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "concatenate_inputs": self.concatenate_inputs,
        }


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
        num_components: as for `DCCA`.
        epsilon: as for `DCCA`.
        concatenate_inputs: as for `DCCA`.
        predict_with: as for `DCCA`.

    Raises:
        ValueError: as `DCCA`; not a decoder per view, decoders of another shape than the views.

    Example:
        model = DCCAE(encoders, decoders, predictors, reconstruction_weight=0.1)
        model.pretrain([x, y], epochs=50, batch_size=400)

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
        num_components: int | None = None,
        epsilon: float = 1e-4,
        concatenate_inputs: bool = False,
        predict_with: str | int = "average",
        **kwargs: Any,
    ):
        super().__init__(
            encoders,
            predictors,
            num_components=num_components,
            epsilon=epsilon,
            concatenate_inputs=concatenate_inputs,
            predict_with=predict_with,
            **kwargs,
        )
        self.decoders = check_layers("decoders", decoders, len(self.encoders))
        self.reconstruction_weight = check_number(
            "reconstruction_weight", reconstruction_weight, at_least=0.0
        )
        for decoder in self.decoders:
            decoder.trainable = False

    def _build_features(self, codes, input_shape):
        for decoder, code, view in zip(self.decoders, codes, input_shape, strict=True):
            shape = build_and_infer(decoder, code)
            if tuple(shape)[1:] != tuple(view)[1:]:
                raise ValueError(
                    f"A decoder must return the shape of its view, {tuple(view)}. Received: "
                    f"{tuple(shape)}"
                )
        return super()._build_features(codes, input_shape)

    def pretrain(self, x, y=None, *, optimizer="adam", **fit_arguments) -> keras.callbacks.History:
        """As `DCCA.pretrain`, on correlation and reconstruction."""
        for decoder in self.decoders:
            decoder.trainable = True
        try:
            return super().pretrain(x, y, optimizer=optimizer, **fit_arguments)
        finally:
            for decoder in self.decoders:
                decoder.trainable = False

    def _pretraining(self):
        return _Pretraining(self, self.decoders, self.reconstruction_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "decoders": [keras.saving.serialize_keras_object(d) for d in self.decoders],
            "reconstruction_weight": self.reconstruction_weight,
        }


class _Pretraining(keras.Model):
    """The first stage of DCCA and DCCAE as a model without targets; shares their layers."""

    def __init__(self, model, decoders, reconstruction_weight):
        super().__init__(name="pretraining")
        self.encoders = model.encoders
        self.decoders = decoders
        self.num_components = model.num_components
        self.epsilon = model.epsilon
        self.build_model = model.build  # not the model itself: its predictors do not take part
        self.reconstruction_weight = reconstruction_weight
        self.supports_jit = False
        self.correlation_tracker = keras.metrics.Mean(name="correlation_loss")
        if decoders:
            self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")

    def build(self, input_shape: Any) -> None:
        self.build_model(input_shape)
        self.built = True

    def call(self, inputs: Any) -> Any:
        check_views(inputs, len(self.encoders), "pretrain", "views")
        codes = [encoder(x) for encoder, x in zip(self.encoders, inputs, strict=True)]
        masks = [getattr(code, "_keras_mask", None) for code in codes]
        if len(codes) == 2:
            correlation = cca_loss(codes[0], codes[1], self.num_components, self.epsilon, masks)
        else:
            correlation = gcca_loss(codes, self.num_components, self.epsilon, masks)
        self.add_loss(correlation)
        self.correlation_tracker.update_state(correlation)
        if self.decoders:
            error = tf.add_n(
                [
                    mean_square(tf.cast(x, code.dtype) - decoder(code), mask)
                    for x, code, decoder, mask in zip(
                        inputs, codes, self.decoders, masks, strict=True
                    )
                ]
            )
            self.add_loss(self.reconstruction_weight * error)
            self.reconstruction_tracker.update_state(error)
        return codes


def mean_square(difference, mask):
    """Mean of the squares over the examples or steps that a mask leaves in."""
    square = tf.square(difference)
    if mask is None:
        return tf.reduce_mean(square)
    rows = tf.reduce_mean(square, axis=list(range(len(mask.shape), len(square.shape))))
    kept = tf.where(mask, rows, tf.zeros_like(rows))
    return tf.math.divide_no_nan(tf.reduce_sum(kept), tf.reduce_sum(tf.cast(mask, rows.dtype)))


def check_components(num_components, encoders):
    """More than two views have no default number of components."""
    if len(encoders) > 2 and num_components is None:
        raise ValueError(
            "`num_components` is needed for more than two views: the width of their common core. "
            f"Received: num_components=None, {len(encoders)} views"
        )


def check_layers(name, layers, count=None):
    """`layers` as a list of `count` (or at least two) Keras layers, or a `ValueError`."""
    wanted = f"{count} Keras layers, one per view" if count else "two or more Keras layers"
    ok = isinstance(layers, list | tuple) and all(isinstance(x, keras.layers.Layer) for x in layers)
    if not ok or (len(layers) != count if count else len(layers) < 2):
        raise ValueError(f"`{name}` must be a list of {wanted}. Received: {name}={layers!r}")
    return list(layers)


def check_views(inputs, count, name, what):
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


def build_and_infer(layer, shape):
    """Builds `layer` for an input shape; returns its output shape."""
    if not layer.built:
        layer.build(shape)
    return layer.compute_output_shape(shape)
