"""Vanilla, RRM and ProxNet: an encoder and a predictor per view, trained end to end."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from proxnet_tf.checks import HasLam, LamWeight, check_choice, check_integer, check_number
from proxnet_tf.layers.multiview.prox import ProxCCA
from proxnet_tf.models.base import MultiviewModel, build_and_infer, family_of

# Arguments that one method, or two, have; with their defaults.
_OF_PROX = {"lam": 1.0, "inference": "identity", "monitor": False}
OF_CORRELATION = {"num_components": None, "epsilon": 1e-4}
_KERAS_ARGUMENTS = ("name", "dtype", "trainable", "activity_regularizer")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class MultiviewClassifier(HasLam, MultiviewModel):
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
        lam: weight of the displacement, > 0 ("prox"); 1 by default. `model.lam` is the layer's
            weight: drive it with `LambdaSchedule`, or `model.lam = 0.5`.
        epsilon: ridge on each view's covariance, >= 0; 1e-4 by default.
        inference: of the proximal layer when `training=False`: "identity" (default), "batch" or
            "moving".
        correlation_weight: weight >= 0 of L of the codes in the training loss. "rrm": its
            regularizer, default 1. "prox": the term of the published code beside the layer (there
            1/d), default 0. "vanilla": must be 0.
        monitor: of the proximal layer, see `ProxCCA`; False by default.
        predict_with: "average" (default) or the index of a view, 0 <= index < J.
        nan_is_missing: whether a NaN in a view marks it as missing, in the whole example or, for
            codes with time steps, in that step; False by default. The encoder then sees zeros, the
            proximal layer and L leave the row out (with missing="pairwise" they use the views
            that are there), the average is over the views that are there, and a view has no loss
            where it is missing.
        **kwargs: further arguments of `ProxCCA` or `ProxGCCA` ("prox": `solver`, `gradient`,
            `momentum`, `synchronized`, `missing` and so on) and of the regularizer ("rrm"); `name`
            and `dtype` of a Keras model.

    Call arguments:
        inputs: list or tuple of J views, in the order of `encoders`. A dict is refused.
        training: whether the proximal layer acts; with a view index, `call` then returns the list
            of the logits of all views.

    Output:
        Logits in the shape of a predictor's output, with its Keras mask. In the average a step is
        masked that is masked in every view.

    Sample weights weight the classification loss; L takes every row. A row of weight 0 is thus an
    unlabelled example that still feeds the proximal layer.

    Raises:
        ValueError: fewer than two encoders, more than two with a correlation and without
            `num_components`, not as many predictors, predictors with outputs of different shapes,
            arguments outside their ranges or without a layer that takes them, inputs that are not
            a list of J views.

    Example:

    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> predictors = [keras.layers.Dense(3), keras.layers.Dense(3)]
    >>> model = MultiviewClassifier(encoders, predictors, lam=0.1)
    >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> x, y = keras.random.normal((8, 5)), keras.random.normal((8, 4))
    >>> schedule = LambdaSchedule(linear_lambda(0.1, 0.5))
    >>> _ = model.fit([x, y], keras.ops.arange(8) % 3, callbacks=[schedule], verbose=0)
    >>> model([x, y]).shape
    TensorShape([8, 3])

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
        monitor: bool | str = False,
        predict_with: str | int = "average",
        nan_is_missing: bool = False,
        **kwargs: Any,
    ):
        if kwargs.pop("prox_options", None):
            raise ValueError(
                "`prox_options` is no longer an argument: pass what it held by itself, such as "
                "MultiviewClassifier(..., synchronized=True)."
            )
        own = {name: kwargs.pop(name) for name in _KERAS_ARGUMENTS if name in kwargs}
        super().__init__(encoders, predictors, predict_with, nan_is_missing, **own)
        self.method = check_choice("method", method, ("vanilla", "rrm", "prox"))
        self.num_components = (
            None if num_components is None else check_integer("num_components", num_components)
        )
        self.initial_lam = check_number("lam", lam, above=0.0)
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
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
        given = {
            "lam": self.initial_lam, "inference": inference, "monitor": monitor,
            "num_components": self.num_components, "epsilon": self.epsilon,
        }  # fmt: skip
        unused = {
            name: given[name]
            for name, default in _arguments_without_layer(method).items()
            if given[name] != default
        }
        unused |= kwargs if method == "vanilla" else {}
        if unused:
            raise ValueError(
                f"method={method!r} has no layer that takes {', '.join(sorted(unused))}. "
                f"Received: {unused}"
            )
        self.regularizer = self.prox = None
        self._options = sorted(kwargs)
        if method != "vanilla":
            self._make_layers(kwargs)

    def _make_layers(self, options: dict[str, Any]) -> None:
        family = family_of(len(self.encoders), self.num_components)
        shared: dict[str, Any] = dict(
            num_components=self.num_components, epsilon=self.epsilon, dtype=self.dtype_policy
        )
        if self.method == "prox":
            self.prox = family.prox(
                lam=self.initial_lam,
                inference=self.inference,
                monitor=self.monitor,
                **shared,
                **options,
            )
            taken = inspect.signature(family.regularizer).parameters
            options = {name: value for name, value in options.items() if name in taken}
        if self.correlation_weight or self.method == "rrm":
            self.regularizer = family.regularizer(self.correlation_weight, **shared, **options)

    @property
    def lam(self) -> LamWeight | None:
        """The weight lam of the proximal layer; None without one."""
        return None if self.prox is None else self.prox.lam

    @lam.setter
    def lam(self, value: Any) -> None:
        # Where there is a weight, `HasLam` assigns.
        raise ValueError(
            f'The method "{self.method}" has no proximal layer, and no lam. Received: lam={value!r}'
        )

    def _build_between(self, codes: list[Any], input_shape: list[Any]) -> None:
        for layer in (self.regularizer, self.prox):
            if layer is not None:
                build_and_infer(layer, codes)

    def call(self, inputs: Any, training: bool = False) -> Any:
        features = self.encode(inputs)
        for layer in (self.regularizer, self.prox):
            if layer is not None:
                features = layer(features)
        return self._logits(features, training)

    def get_config(self) -> dict[str, Any]:
        layer: Any = self.prox or self.regularizer
        options = layer.get_config() if self._options else {}
        return {
            **super().get_config(),
            "method": self.method,
            "num_components": self.num_components,
            "lam": self.initial_lam,
            "epsilon": self.epsilon,
            "inference": self.inference,
            "correlation_weight": self.correlation_weight,
            "monitor": self.monitor,
            **{name: options[name] for name in self._options},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        method = config.get("method", "prox")
        unused = _arguments_without_layer(method)  # 0.1.0 saved what it ignored
        config = {name: value for name, value in config.items() if name not in unused}
        old = config.pop("prox_options", None)
        config |= _layer_arguments(old) if method == "prox" else {}
        if isinstance(config.get("solver"), dict):
            config["solver"] = keras.saving.deserialize_keras_object(
                config["solver"], custom_objects=custom_objects
            )
        return super().from_config(config, custom_objects)


def _arguments_without_layer(method: str) -> dict[str, Any]:
    """The arguments that no layer of this method takes, with their defaults."""
    unused = {} if method == "prox" else _OF_PROX
    return {**unused, **OF_CORRELATION} if method == "vanilla" else dict(unused)


def _layer_arguments(old: dict[str, Any] | None) -> dict[str, Any]:
    """Arguments of the proximal layer from the `prox_options` of a model saved by 0.1."""
    if not old:
        return {}
    layer = ProxCCA.from_config(dict(old)).get_config()
    plain = ProxCCA().get_config()
    return {name: value for name, value in layer.items() if name != "name" and value != plain[name]}
