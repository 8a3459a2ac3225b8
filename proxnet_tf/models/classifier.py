"""An encoder and a predictor per view, with layers between them, trained end to end."""

from collections.abc import Sequence
from typing import Any

import keras

from proxnet_tf.models.base import MultiviewModel


@keras.saving.register_keras_serializable(package="proxnet_tf")
class MultiviewClassifier(MultiviewModel):
    """An encoder and a predictor per view, trained end to end, with layers of your choice between.

        z = between((f_1(x_1), ..., f_J(x_J))),   min  loss(h(z), c) + the losses of the layers

    over the weights of the encoders f and the predictors h. Without layers between it is a plain
    model. The paper's methods, with F the codes and L of `CCALoss` or `GCCALoss`, are

        RRM:     [CCARegularizer(weight)]  min loss(h(F), c) + weight L(F)
        ProxNet: [ProxCCA(k, lam=lam)]     min loss(h(P), c), P = argmin lam/(2n) ||P - F||^2 + L(P)

    and both, as published, with [CCARegularizer(1/d), ProxCCA(k, lam=lam)] for codes of d columns.
    For more than two views take `GCCARegularizer` and `ProxGCCA`. The prediction is the average of
    the views' logits, or one view's logits (the paper's "acoustic" mode). In the second case the
    training loss is the mean of the losses of the views, each against the same target.

    Args:
        encoders: a layer or model per view, from the view to its code `(batch, d_j)` or
            `(batch, time, d_j)`.
        predictors: a layer or model per view, from what comes out of `between` to the output, all
            of one shape.
        between: a layer, a list of layers in the order in which they act, or None (the default).
            Each takes the list of J codes and returns a list of J codes.
        predict_with: "average" (default) or the index of a view, 0 <= index < J.
        nan_is_missing: whether a NaN in a view marks it as missing, in the whole example or, for
            codes with time steps, in that step; False by default. The encoder then sees zeros. The
            layers between get a mask for each code (those of this package leave the row out). The
            average is over the views that are there, and a missing view has no loss.
        **kwargs: `name` and `dtype` of a Keras model. A layer between has a dtype of its own.

    Call arguments:
        inputs: list or tuple of J views, in the order of `encoders`. A dict is refused.
        training: whether the layers act as in training; with a view index, `call` then returns the
            list of the logits of all views.

    Output:
        Logits in the shape of a predictor's output, with its Keras mask. In the average a step is
        masked if it is masked in every view.

    Sample weights weight the classification loss; a correlation uses every row. So a row of weight
    0 is an unlabelled example that still counts in the layers between.

    Raises:
        ValueError: fewer than two encoders, not as many predictors, predictors with outputs of
            different shapes, something between that is not a layer or does not return J codes,
            arguments outside their ranges, inputs that are not a list of J views.

    Example:

    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> predictors = [keras.layers.Dense(3), keras.layers.Dense(3)]
    >>> between = [CCARegularizer(0.1), ProxCCA(2, lam=0.5)]
    >>> model = MultiviewClassifier(encoders, predictors, between)
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
        between: keras.layers.Layer | Sequence[keras.layers.Layer] | None = None,
        *,
        predict_with: str | int = "average",
        nan_is_missing: bool = False,
        **kwargs: Any,
    ):
        super().__init__(encoders, predictors, predict_with, nan_is_missing, **kwargs)
        layers: Any = [] if between is None else between
        layers = list(layers) if isinstance(layers, list | tuple) else [layers]
        if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
            raise ValueError(
                "`between` must be a Keras layer, a list of layers or None, such as "
                f"[CCARegularizer(0.1), ProxCCA(10, lam=0.5)]. Received: between={between!r}"
            )
        self.between = layers

    def call(self, inputs: Any, training: bool = False) -> Any:
        codes = self.encode(inputs)
        for layer in self.between:
            codes = layer(codes)
            if not isinstance(codes, list | tuple) or len(codes) != len(self.encoders):
                raise ValueError(
                    f"A layer in `between` must return a list of {len(self.encoders)} codes, as "
                    f"many as it gets. Received from the layer {layer.name!r}: {codes!r}"
                )
        return self._logits(codes, training)
