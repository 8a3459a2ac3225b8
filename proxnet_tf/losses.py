"""Correlation of views as a loss: of a model's output, or of tensors."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.ops.multiview.correlation import CCA, GCCA, Correlation
from proxnet_tf.ops.multiview.gram import gram_of
from proxnet_tf.ops.multiview.of_gram import loss_of_gram


def cca_loss(
    x: tf.Tensor,
    y: tf.Tensor,
    num_components: int | None = None,
    epsilon: float = 1e-4,
    mask: Any = None,
    synchronized: bool = False,
) -> tf.Tensor:
    """Minus the sum of the top canonical correlations of two views.

        L = - sum_{i<=k} sigma_i(T),  T = (Sxx + eps I)^(-1/2) Sxy (Syy + eps I)^(-1/2)

    with the covariances Sxx, Sxy, Syy of the rows and the singular values sigma_i(T). The gradient
    is exact, without divisions by gaps between the sigma_i. There is none where
    sigma_k = sigma_{k+1}, and no second derivative. Fewer than two rows give 0.

    Args:
        x: first view, `(batch, d1)` or `(batch, time, d1)`.
        y: second view, `(batch, d2)` or `(batch, time, d2)`.
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge >= 0 on each view's covariance, in the units of its columns; 1e-4 by
            default. With a smaller one, views of deficient rank are compared in their row spaces;
            see `ProxCCA` for what counts as rounding.
        mask: boolean `(batch,)` (for sequences `(batch, time)`), or one per view with None
            entries; rows with False take no part. By default the masks that Keras attached to the
            views.
        synchronized: in the replicas of a `tf.distribute` strategy, whether the rows of all
            replicas count together, as on one device; False by default. Every replica then
            returns the same number.

    Returns:
        A scalar in [-k, 0], of the wider dtype of the views, float32 at least.

    Raises:
        ValueError: as `ProxCCA`.

    Example:

    >>> x = keras.random.normal((32, 3), seed=0)
    >>> float(cca_loss(x, 2 * x - 1, epsilon=0.0))
    -3.0

    Reference: Andrew, Arora, Bilmes, Livescu, Deep canonical correlation analysis (2013).
    """
    border = Border("cca_loss", CCA, num_components, epsilon=epsilon, synchronized=synchronized)
    return _loss(border, [x, y], mask)


def gcca_loss(
    inputs: Sequence[tf.Tensor],
    num_components: int,
    epsilon: float = 1e-4,
    mask: Any = None,
    synchronized: bool = False,
) -> tf.Tensor:
    """How far two or more views are from a common core, L = J k - sum_{i<=k} mu_i.

    L is the minimum over G, U_j of sum_j ||G - X_j U_j||^2 + (n - 1) eps ||U_j||^2, with k
    orthonormal columns in the core G, for the centred views X_j with covariance S. The mu_i are the
    largest eigenvalues of S v = mu (blockdiag(S) + eps I) v. The gradient is exact (there is none
    where mu_k = mu_{k+1}); first derivatives only. Fewer than two rows give J k.

    Args:
        inputs: J >= 2 views, `(batch, d_j)` or `(batch, time, d_j)`, as for `ProxGCCA`.
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J.
        epsilon: as for `cca_loss`.
        mask: as for `cca_loss`.
        synchronized: as for `cca_loss`.

    Returns:
        A scalar in [0, J k], of the widest dtype of the views, float32 at least.

    Raises:
        ValueError: as `ProxGCCA`.

    Example:

    >>> x = keras.random.normal((32, 3), seed=0)
    >>> print(f"{float(gcca_loss([x, 2 * x, x - 1], 3, epsilon=0.0)):.3f}")
    0.000

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning.
    """
    border = Border("gcca_loss", GCCA, num_components, epsilon=epsilon, synchronized=synchronized)
    return _loss(border, inputs, mask)


def _loss(border: Border, inputs: Any, mask: Any = None, dtype: Any = None) -> tf.Tensor:
    """L of views, a scalar of the dtype of the rows; see `Border.enter`."""
    views = border.enter(inputs, mask, dtype)
    border.warn_of_few_rows(views)
    sample = gram_of(views.rows, views.valid, border.all_reduce)
    value = loss_of_gram(views.correlation, sample, border.epsilon)
    return tf.cast(value, views.rows.dtype)


class _CorrelationLoss(keras.losses.Loss):
    """What CCALoss and GCCALoss share: everything but the objective."""

    _kind: type[Correlation]

    def __init__(
        self,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        split: Sequence[int] | None = None,
        nan_is_missing: bool = False,
        name: str | None = None,
        *,
        synchronized: bool = False,
        **kwargs: Any,
    ):
        super().__init__(name=name or f"{self._kind.__name__.lower()}_loss", **kwargs)
        self.border = Border(
            type(self).__name__,
            self._kind,
            num_components,
            epsilon=epsilon,
            split=split,
            nan_is_missing=nan_is_missing,
            synchronized=synchronized,
        )

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        if sample_weight is not None:
            raise ValueError(
                f"{type(self).__name__} is one number for the whole batch and cannot weight its "
                "rows; leave `sample_weight` and `class_weight` out."
            )
        value = tf.cast(_loss(self.border, y_pred, dtype=self.dtype), self.dtype)
        # Keras sums the gradients of the replicas, and reports this value times their number.
        return value / tf.distribute.get_strategy().num_replicas_in_sync

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return self(y_true, y_pred)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dtype": self.dtype, **self.border.get_config()}


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCALoss(_CorrelationLoss):
    """Minus the sum of the top canonical correlations of the two views in `y_pred`.

        loss = - sum_{i<=k} sigma_i(T)        (see `cca_loss`)

    A Keras loss sees one output at a time, so the model must concatenate its two views along the
    last axis. `y_true` is ignored (pass zeros of any shape with the batch's length). The loss
    belongs to the batch, not to an example: sample weights are refused. First derivatives only;
    not differentiable where sigma_k = sigma_{k+1}.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: as for `cca_loss`.
        split: (d1, d2); halves by default.
        nan_is_missing: whether a NaN marks its view as missing in that row; False by default.
        name: name of the loss.
        synchronized: under a `tf.distribute` strategy, whether the loss is that of the rows of all
            replicas (as on one device) or, by default, the mean of those of each replica.
        **kwargs: of `keras.losses.Loss`: `dtype`, of the result and, at least float32, of the
            computation (`keras.backend.floatx()` by default).

    Call arguments:
        y_true: ignored.
        y_pred: `(batch, d1 + d2)` or `(batch, time, d1 + d2)`, or two views as for `ProxCCA`.
            Keras masks are respected.

    Returns:
        A scalar. Under a strategy each replica returns it divided by the number of replicas, as
        Keras's losses do: the sum over replicas is the loss.

    Raises:
        ValueError: for sample weights, and as `ProxCCA`.

    Example:

    >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8)])
    >>> model.compile("adam", CCALoss(2, split=(4, 4)))

    Reference: Andrew, Arora, Bilmes, Livescu (2013); the paper's section 5.
    """

    _kind = CCA


@keras.saving.register_keras_serializable(package="proxnet_tf")
class GCCALoss(_CorrelationLoss):
    """How far the two or more views in `y_pred` are from a common core.

        loss = J k - sum_{i<=k} mu_i        (see `gcca_loss`)

    For two views and eps -> 0 it is `CCALoss` with the same k, plus k.

    Args:
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J; it must be given.
        split: widths of the views; two halves by default.
        epsilon, nan_is_missing, name, synchronized, **kwargs: as for `CCALoss`.

    Call arguments, returns and restrictions: as for `CCALoss`, with all views side by side.

    Raises:
        ValueError: for sample weights, and as `ProxGCCA`.

    Example:

    >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(9)])
    >>> model.compile("adam", GCCALoss(2, split=(3, 4, 2)))

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning.
    """

    _kind = GCCA
