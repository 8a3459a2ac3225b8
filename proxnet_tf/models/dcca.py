"""DCCA and DCCAE: codes that correlate first, then a classifier on the fixed codes."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_bool, check_integer, check_number
from proxnet_tf.models.base import MultiviewModel, check_layers, mask_of, with_mask
from proxnet_tf.models.pretraining import UNWEIGHTED, FirstStage, Pretraining


@keras.saving.register_keras_serializable(package="proxnet_tf")
class DCCA(MultiviewModel):
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

    The encoders are fixed outside `pretrain`, which trains their layers except those that were not
    trainable when the encoders were given; if no encoder was trainable, it trains all of them.
    Keras masks of the codes are respected in both stages. Batches of `pretrain` should hold several
    times as many rows as a code has columns. Sample weights are honoured by `fit` and refused by
    `pretrain`. Under a `tf.distribute` strategy each replica has its own correlation in `pretrain`.

    The codes of two views agree only up to a linear map of each, which `LinearCCA` of the codes
    finds (example below). It maps one view to canonical variates without the other: in these a
    query with one view finds the other by the cosine (`RecallAtK`).

    Raises:
        ValueError: as `MultiviewClassifier`; `fit` or `train_on_batch` before `pretrain`.

    Example:

    >>> from proxnet_tf import LinearCCA
    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> model = DCCA(encoders, [keras.layers.Dense(3), keras.layers.Dense(3)])
    >>> x, y = keras.random.normal((8, 5)), keras.random.normal((8, 4))
    >>> _ = model.pretrain([x, y], epochs=2, verbose=0)
    >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> _ = model.fit([x, y], keras.ops.arange(8) % 3, verbose=0)
    >>> cca = LinearCCA(2, ridge=1e-4).fit(*model.encode([x, y]))
    >>> cca.project(model.encoders[0](x[:1]), 0).shape
    (1, 2)

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
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        elif len(self.encoders) > 2:
            raise ValueError(
                "`num_components` is needed for more than two views: the width of their common "
                f"core. Received: num_components=None, {len(self.encoders)} views"
            )
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.concatenate_inputs = check_bool("concatenate_inputs", concatenate_inputs)
        self._first_stage = FirstStage()
        self._first_stage.add(self.encoders)
        self.pretrained = self.add_weight(
            name="pretrained", shape=(), initializer="zeros", trainable=False
        )

    def build(self, input_shape: Any) -> None:
        with self._first_stage.training():  # so that the encoders' variables can train
            super().build(input_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        # The encoders are fixed: no dropout, and no change of their moving statistics.
        features, views = self._encode(inputs, training=False)
        if self.concatenate_inputs:
            features = [
                with_mask(tf.concat([code, tf.cast(x, code.dtype)], -1), mask_of(code), mask_of(x))
                for code, x in zip(features, views, strict=True)
            ]
        return self._logits(features, training)

    def pretrain(
        self, x: Any, *, optimizer: Any = "adam", **fit_arguments: Any
    ) -> keras.callbacks.History:
        """Trains the encoders on the correlation objective; returns the History.

        Args:
            x: list of J views, or what else `fit` takes with batches `(views,)` or `(views, y)`.
            optimizer: a Keras optimizer or its name.
            **fit_arguments: `epochs`, `batch_size`, `validation_data=(views,)`, `callbacks`,
                `verbose` and so on, as in `fit`. Sample weights and class weights are refused,
                also in batches of three parts. The model of the callbacks is this stage. If they
                save it as a whole, as `ModelCheckpoint("best.keras")` does, they save the `DCCA`. A
                file of weights, as `BackupAndRestore` writes, can only continue `pretrain`, on a
                model that is built.

        The History has `correlation_loss` (L) and, for `DCCAE`, `reconstruction_loss` (also part
        of its objective): means over the batches, weighted by their rows. A batch with fewer than
        two rows has no correlation and does not count in `correlation_loss`.
        """
        if {"sample_weight", "class_weight"} & fit_arguments.keys():  # Keras ignores them without y
            raise ValueError(UNWEIGHTED)
        stage = Pretraining(self)
        with self._first_stage.training():
            stage.compile(optimizer, run_eagerly=self.run_eagerly)
            history = stage.fit(x, **fit_arguments)
        self.pretrained.assign(1.0)
        return history

    def make_train_function(self, force: bool = False) -> Any:
        """As in `keras.Model`; `fit` and `train_on_batch` call it first."""
        if not bool(tf.convert_to_tensor(self.pretrained) > 0):
            raise ValueError(
                f"{type(self).__name__} trains in two stages: call `pretrain(views)` before `fit`."
            )
        return super().make_train_function(force)

    def get_config(self) -> dict[str, Any]:
        with self._first_stage.training():  # as the layers were given
            config = super().get_config()
        return {
            **config,
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
        self._first_stage.add(self.decoders)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        codes = [keras.KerasTensor(shape, self.compute_dtype) for shape in self._code_shapes]
        with self._first_stage.training():
            decoded = [g(code).shape for g, code in zip(self.decoders, codes, strict=True)]
        for shape, view in zip(decoded, input_shape, strict=True):
            if shape[1:] != tuple(view[1:]):
                raise ValueError(
                    f"A decoder must return the shape of its view, {view}. Received: {shape}"
                )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "reconstruction_weight": self.reconstruction_weight}
