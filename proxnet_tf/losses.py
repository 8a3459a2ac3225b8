"""Canonical correlation as a loss: of a model's output, of two tensors, or inside a model."""

from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.layers import views
from proxnet_tf.layers.common import at_least_float32, check_integer, check_number
from proxnet_tf.ops.multiview import correlation_loss
from proxnet_tf.ops.spectral import Correlation


def _cca(sizes, num_components, epsilon):
    return Correlation(sizes, views.cca_components(num_components, sizes), epsilon)


def _sizes_of(inputs, split, name):
    views.check_dtypes(inputs, name)
    return views.view_sizes(views.shape_of(inputs), split, max_views=2, name=name)


def _loss_of(inputs, num_components, epsilon, split, name, mask=None):
    sizes = _sizes_of(inputs, split, name)
    dtypes = [at_least_float32(x.dtype) for x in (inputs if views.is_list(inputs) else [inputs])]
    rows = views.join(inputs, max(dtypes, key=lambda dtype: dtype.size))
    return correlation_loss(
        rows, _cca(sizes, num_components, epsilon), valid=views.join_masks(mask)
    )


def cca_loss(
    x: tf.Tensor, y: tf.Tensor, num_components: int | None = None, epsilon: float = 1e-4
) -> tf.Tensor:
    """Minus the sum of the top canonical correlations of two views, - sum_{i<=k} sigma_i(T).

    Differentiable in closed form without divisions by spectral gaps (not where
    sigma_k = sigma_{k+1}); first derivatives only. Fewer than two rows give 0.

    Args:
        x: first view, `(batch, d1)` or `(batch, time, d1)`.
        y: second view, `(batch, d2)` or `(batch, time, d2)`.
        num_components: k, 1 <= k <= min(d1, d2); None is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0.

    Returns:
        A scalar in [-k, 0], float32 or float64.

    Raises:
        ValueError: as `ProxCCA`.

    Example:
        loss = cca_loss(encode_audio(a), encode_video(v), num_components=10)

    Reference: Andrew, Arora, Bilmes, Livescu, Deep canonical correlation analysis (2013).
    """
    if num_components is not None:
        num_components = check_integer("num_components", num_components)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    return _loss_of([x, y], num_components, epsilon, None, "cca_loss")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCALoss(keras.losses.Loss):
    """Minus the sum of the top canonical correlations of the two views in `y_pred`.

        loss = - sum_{i<=k} sigma_i(T),  T = (Sxx + eps I)^(-1/2) Sxy (Syy + eps I)^(-1/2)

    A Keras loss sees one output at a time, so the model must concatenate its two views along the
    last axis. `y_true` is ignored (pass zeros of any shape with the batch's length). The loss
    belongs to the batch, not to an example: sample weights are refused. First derivatives only;
    not differentiable where sigma_k = sigma_{k+1}.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0.
        split: (d1, d2); halves by default.
        name: name of the loss.

    Call arguments:
        y_true: ignored.
        y_pred: `(batch, d1 + d2)` or `(batch, time, d1 + d2)`, or a list of two views; a Keras
            mask of one tensor is respected.

    Returns a scalar.

    Raises:
        ValueError: for sample weights, and as `ProxCCA`.

    Example:
        model.compile("adam", loss=CCALoss(10))

    Reference: Andrew, Arora, Bilmes, Livescu (2013); the paper's section 5.
    """

    def __init__(
        self,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        split: tuple[int, int] | None = None,
        name: str = "cca_loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.split = views.check_split(split)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if sample_weight is not None:
            raise ValueError(
                "CCALoss is one number for the whole batch and cannot weight its rows; leave "
                "`sample_weight` and `class_weight` out."
            )
        mask = getattr(y_pred, "_keras_mask", None)
        return _loss_of(
            views.standardize(y_pred),
            self.num_components,
            self.epsilon,
            self.split,
            type(self).__name__,
            mask,
        )

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return self(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCARegularizer(keras.layers.Layer):
    """Passes two views on unchanged and adds minus their correlation to the model's loss (RRM).

        add_loss( - weight * sum_{i<=k} sigma_i(T) )

    This is regularised risk minimisation, what the paper compares the proximal layer with. First
    derivatives only; not differentiable where sigma_k = sigma_{k+1}.

    Args:
        weight: >= 0, factor of the added loss.
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0.
        split: (d1, d2) when the views come side by side in one tensor; halves by default.

    Call arguments:
        inputs: list of two views `(batch, d_j)` or `(batch, time, d_j)`, or one tensor with the
            views side by side.
        mask: as for `ProxCCA`.

    Output: the input.

    Raises:
        ValueError: as `ProxCCA`, and for weight < 0.

    Example:
        f, g = CCARegularizer(0.1)([f, g])

    Reference: Li, Ma, Zhang (2020), sections 1 and 6 (RRM).
    """

    def __init__(
        self,
        weight: float = 1.0,
        *,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        split: tuple[int, int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.weight = check_number("weight", weight, at_least=0.0)
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.split = views.check_split(split)
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape: Any) -> None:
        sizes = views.view_sizes(input_shape, self.split, max_views=2, name=type(self).__name__)
        _cca(sizes, self.num_components, self.epsilon)
        self.built = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        loss = _loss_of(
            inputs, self.num_components, self.epsilon, self.split, type(self).__name__, mask
        )
        self.add_loss(self.weight * loss)
        return inputs

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        _sizes_of(inputs, self.split, type(self).__name__)  # Keras does not run `call` here
        return super().compute_output_spec(inputs, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "weight": self.weight,
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
        }
