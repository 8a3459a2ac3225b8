"""Correlation of views as a loss: of a model's output, of tensors, or inside a model."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32, check_integer, check_number
from proxnet_tf.layers.multiview import border as views
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.prox import correlation_loss


class _Objective:
    """L of views: which one, and its options; shared by the functions, losses and regularizers."""

    def __init__(self, name, owner, num_components, epsilon, split=None, nan_is_missing=False):
        if name == "gcca" or num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.name = name
        self.owner = owner
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.split = views.check_split(split)
        self.nan_is_missing = bool(nan_is_missing)

    def correlation(self, shape):
        """The correlation for views of a shape, or a `ValueError`."""
        most = 2 if self.name == "cca" else None
        sizes = views.view_sizes(shape, self.split, max_views=most, name=self.owner)
        components = views.cca_components if self.name == "cca" else views.gcca_components
        return Correlation(sizes, components(self.num_components, sizes), self.epsilon, self.name)

    def check(self, inputs):
        """The correlation for views, or a `ValueError`."""
        views.check_dtypes(inputs, self.owner)
        return self.correlation(views.shape_of(inputs))

    def __call__(self, inputs, mask=None):
        correlation = self.check(inputs)
        parts = inputs if views.is_list(inputs) else [inputs]
        dtype = max((at_least_float32(x.dtype) for x in parts), key=lambda dtype: dtype.size)
        valid = views.valid_rows(inputs, mask, self.nan_is_missing)
        return correlation_loss(views.join(inputs, dtype), correlation, valid=valid)

    def get_config(self):
        return {
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
            "nan_is_missing": self.nan_is_missing,
        }


def cca_loss(
    x: tf.Tensor,
    y: tf.Tensor,
    num_components: int | None = None,
    epsilon: float = 1e-4,
    mask: Any = None,
) -> tf.Tensor:
    """Minus the sum of the top canonical correlations of two views, - sum_{i<=k} sigma_i(T).

    Differentiable in closed form without divisions by spectral gaps (not where
    sigma_k = sigma_{k+1}); first derivatives only. Fewer than two rows give 0.

    Args:
        x: first view, `(batch, d1)` or `(batch, time, d1)`.
        y: second view, `(batch, d2)` or `(batch, time, d2)`.
        num_components: k, 1 <= k <= min(d1, d2); None is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0.
        mask: as for `ProxCCA`; the rows that it leaves out take no part.

    Returns:
        A scalar in [-k, 0], float32 or float64.

    Raises:
        ValueError: as `ProxCCA`.

    Example:
        loss = cca_loss(encode_audio(a), encode_video(v), num_components=10)

    Reference: Andrew, Arora, Bilmes, Livescu, Deep canonical correlation analysis (2013).
    """
    return _Objective("cca", "cca_loss", num_components, epsilon)([x, y], mask)


def gcca_loss(
    inputs: Sequence[tf.Tensor], num_components: int, epsilon: float = 1e-4, mask: Any = None
) -> tf.Tensor:
    """How far two or more views are from a common core, J k - sum_{i<=k} mu_i.

    It is min over G, U_j of sum_j ||G - X_j U_j||^2 + (n - 1) eps ||U_j||^2 with k orthonormal
    columns in G, for the centred views X_j; mu_i are the largest eigenvalues of
    S v = mu (blockdiag(S) + eps I) v. Differentiable in closed form (not where mu_k = mu_{k+1});
    first derivatives only. Fewer than two rows give J k.

    Args:
        inputs: list of J >= 2 views, `(batch, d_j)` or `(batch, time, d_j)`.
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J.
        epsilon: ridge on each view's covariance, >= 0.
        mask: as for `cca_loss`.

    Returns:
        A scalar in [0, J k], float32 or float64.

    Raises:
        ValueError: as `ProxGCCA`.

    Example:
        loss = gcca_loss([encode(x), encode_other(y), encode_third(z)], num_components=10)

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning.
    """
    return _Objective("gcca", "gcca_loss", num_components, epsilon)(inputs, mask)


class _CorrelationLoss(keras.losses.Loss):
    _objective_name: str

    def __init__(self, num_components, epsilon, split, nan_is_missing, name, **kwargs):
        super().__init__(name=name, **kwargs)
        self._objective = _Objective(
            self._objective_name,
            type(self).__name__,
            num_components,
            epsilon,
            split,
            nan_is_missing,
        )

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if sample_weight is not None:
            raise ValueError(
                f"{type(self).__name__} is one number for the whole batch and cannot weight its "
                "rows; leave `sample_weight` and `class_weight` out."
            )
        mask = getattr(y_pred, "_keras_mask", None)
        return self._objective(views.standardize(y_pred), mask)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return self(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._objective.get_config()}


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCALoss(_CorrelationLoss):
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
        nan_is_missing: whether a NaN marks its row as missing; such rows take no part.
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

    _objective_name = "cca"

    def __init__(
        self,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        split: tuple[int, int] | None = None,
        nan_is_missing: bool = False,
        name: str = "cca_loss",
        **kwargs: Any,
    ):
        super().__init__(num_components, epsilon, split, nan_is_missing, name, **kwargs)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class GCCALoss(_CorrelationLoss):
    """How far the two or more views in `y_pred` are from a common core (see `gcca_loss`).

        loss = J k - sum_{i<=k} mu_i,  S v = mu (blockdiag(S) + eps I) v

    For two views and eps -> 0 it is `CCALoss` with the same k, plus k.

    Args:
        num_components: k, 1 <= k <= d_1 + .. + d_J.
        epsilon: as for `CCALoss`.
        split: widths of the views; two halves by default.
        nan_is_missing: as for `CCALoss`.
        name: name of the loss.

    Call arguments and restrictions: as for `CCALoss`, with all views side by side.

    Raises:
        ValueError: for sample weights, and as `ProxGCCA`.

    Example:
        model.compile("adam", loss=GCCALoss(10, split=(10, 10, 12)))

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning.
    """

    _objective_name = "gcca"

    def __init__(
        self,
        num_components: int,
        epsilon: float = 1e-4,
        split: tuple[int, ...] | None = None,
        nan_is_missing: bool = False,
        name: str = "gcca_loss",
        **kwargs: Any,
    ):
        super().__init__(num_components, epsilon, split, nan_is_missing, name, **kwargs)


class _CorrelationRegularizer(keras.layers.Layer):
    _objective_name: str

    def __init__(self, weight, num_components, epsilon, split, nan_is_missing, **kwargs):
        super().__init__(**kwargs)
        self.weight = check_number("weight", weight, at_least=0.0)
        self._objective = _Objective(
            self._objective_name,
            type(self).__name__,
            num_components,
            epsilon,
            split,
            nan_is_missing,
        )
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape: Any) -> None:
        self._objective.correlation(input_shape)
        self.built = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        self.add_loss(self.weight * self._objective(inputs, mask))
        return inputs

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._objective.check(inputs)  # Keras does not run `call` here
        return super().compute_output_spec(inputs, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight": self.weight, **self._objective.get_config()}


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCARegularizer(_CorrelationRegularizer):
    """Passes two views on unchanged and adds minus their correlation to the model's loss (RRM).

        add_loss( - weight * sum_{i<=k} sigma_i(T) )

    This is regularised risk minimisation, what the paper compares the proximal layer with. First
    derivatives only; not differentiable where sigma_k = sigma_{k+1}.

    Args:
        weight: >= 0, factor of the added loss.
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge on each view's covariance, >= 0.
        split: (d1, d2) when the views come side by side in one tensor; halves by default.
        nan_is_missing: as for `ProxCCA`.

    Call arguments:
        inputs: list of two views `(batch, d_j)` or `(batch, time, d_j)`, or one tensor with the
            views side by side.
        mask: as for `ProxCCA`; the rows that it leaves out take no part.

    Output: the input.

    Raises:
        ValueError: as `ProxCCA`, and for weight < 0.

    Example:
        f, g = CCARegularizer(0.1)([f, g])

    Reference: Li, Ma, Zhang (2020), sections 1 and 6 (RRM).
    """

    _objective_name = "cca"

    def __init__(
        self,
        weight: float = 1.0,
        *,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        split: tuple[int, int] | None = None,
        nan_is_missing: bool = False,
        **kwargs: Any,
    ):
        super().__init__(weight, num_components, epsilon, split, nan_is_missing, **kwargs)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class GCCARegularizer(_CorrelationRegularizer):
    """Passes two or more views on and adds their distance from a common core to the loss (RRM).

        add_loss( weight * (J k - sum_{i<=k} mu_i) )        (see `gcca_loss`)

    Args:
        weight: >= 0, factor of the added loss.
        num_components: k, 1 <= k <= d_1 + .. + d_J.
        epsilon: as for `CCARegularizer`.
        split: widths of the views when they come side by side; two halves by default.
        nan_is_missing: as for `ProxCCA`.

    Call arguments and output: as for `CCARegularizer`, with any number of views >= 2.

    Raises:
        ValueError: as `ProxGCCA`, and for weight < 0.

    Example:
        f, g, h = GCCARegularizer(0.1, num_components=10)([f, g, h])

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning, and section 6 (RRM).
    """

    _objective_name = "gcca"

    def __init__(
        self,
        weight: float = 1.0,
        *,
        num_components: int,
        epsilon: float = 1e-4,
        split: tuple[int, ...] | None = None,
        nan_is_missing: bool = False,
        **kwargs: Any,
    ):
        super().__init__(weight, num_components, epsilon, split, nan_is_missing, **kwargs)
