"""Correlation of views as a penalty inside a model (RRM): CCARegularizer and GCCARegularizer."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf import solvers
from proxnet_tf.checks import check_number
from proxnet_tf.layers.monitor import Monitor
from proxnet_tf.layers.multiview.base import MultiviewLayer
from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.ops.multiview.correlation import CCA, GCCA, Correlation
from proxnet_tf.ops.multiview.gram import gram_of
from proxnet_tf.ops.multiview.of_gram import loss_of_gram, map_of_gram


class _Penalty(MultiviewLayer):
    """What CCARegularizer and GCCARegularizer share: everything but the objective."""

    _kind: type[Correlation]

    def __init__(
        self,
        weight: float = 1.0,
        *,
        num_components: int | None = None,
        epsilon: float = 1e-4,
        envelope: float | None = None,
        solver: str | solvers.MultiviewSolver = "newton",
        split: Sequence[int] | None = None,
        nan_is_missing: bool = False,
        synchronized: bool = False,
        **kwargs: Any,
    ):
        border = Border(
            type(self).__name__,
            self._kind,
            num_components,
            epsilon=epsilon,
            split=split,
            nan_is_missing=nan_is_missing,
            synchronized=synchronized,
        )
        super().__init__(border, **kwargs)
        self.weight = check_number("weight", weight, at_least=0.0)
        if envelope is not None:
            envelope = check_number("envelope", envelope, above=0.0)
        self.envelope = envelope
        self.solver = solvers.get(solver)
        self._monitor = Monitor(
            self, False, advice="Raise `epsilon`, or give `solver` more iterations."
        )

    def call(self, inputs: Any, mask: Any = None) -> Any:
        views = self.border.enter(inputs, mask, self.compute_dtype, built=self.correlation)
        self.border.warn_of_few_rows(views)
        sample = gram_of(views.rows, views.valid, self.border.all_reduce)
        if self.envelope is None:
            value = loss_of_gram(views.correlation, sample, self.epsilon)
        else:
            problem = views.correlation, sample, self.envelope, self.epsilon, self.solver
            found = map_of_gram(*problem, envelope_only=True)
            self._monitor.forward(found.report)
            value = found.envelope
        self.add_loss(self.weight * tf.cast(value, views.rows.dtype))
        return inputs

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "weight": self.weight,
            "envelope": self.envelope,
            "solver": keras.saving.serialize_keras_object(self.solver),
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class CCARegularizer(_Penalty):
    """Returns two views unchanged and adds minus their correlation to the model's loss (RRM).

        add_loss( - weight * sum_{i<=k} sigma_i(T) )        (see `cca_loss`)

    This is regularised risk minimisation, with which the paper compares the proximal layer. First
    derivatives only; not differentiable where sigma_k = sigma_{k+1}. `ProxCCA` says what counts as
    rounding, what a first call costs and why Keras does not compile the whole model.

    With `envelope=lam` it adds the Moreau envelope of L = - sum_{i<=k} sigma_i instead,

        weight * min_P lam/(2n) ||P - X||_F^2 + L(P),

    whose gradient is lam/n (X - P), with P the output of `ProxCCA` for this lam. A step costs a
    forward pass of `ProxCCA`; the gradient needs no solve. As lam grows the envelope nears L.

    Args:
        weight: factor >= 0 of the added loss; 1 by default.
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        epsilon: ridge >= 0 on each view's covariance; 1e-4 by default.
        envelope: None (the default) for L itself; the number lam > 0 for its Moreau envelope.
        solver: of the envelope, as for `ProxCCA`.
        split: (d1, d2) when the views come side by side in one tensor; halves by default.
        nan_is_missing: as for `ProxCCA`.
        synchronized: under a `tf.distribute` strategy, whether the correlation is that of the rows
            of all replicas (as on one device) or, by default, of each replica by itself.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: the two views, as for `ProxCCA`.
        mask: as for `ProxCCA`; the rows that it leaves out take no part.

    Output: the input.

    Raises:
        ValueError: weight < 0, and as `ProxCCA`.

    Example:

    >>> x, y = keras.random.normal((32, 4), seed=0), keras.random.normal((32, 6), seed=1)
    >>> layer = CCARegularizer(0.1)
    >>> x, y = layer([x, y])
    >>> [0 <= float(-loss) <= 0.1 * 4 for loss in layer.losses]
    [True]

    Reference: Li, Ma, Zhang (2020), sections 1 and 6 (RRM).
    """

    _kind = CCA


@keras.saving.register_keras_serializable(package="proxnet_tf")
class GCCARegularizer(_Penalty):
    """Returns two or more views unchanged and adds their distance from a common core to the loss.

        add_loss( weight * (J k - sum_{i<=k} mu_i) )        (see `gcca_loss`)

    Args:
        weight, envelope, solver: as for `CCARegularizer`.
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J; it must be given.
        split: widths of the views when they come side by side; two halves by default.
        epsilon, nan_is_missing, synchronized, **kwargs: as for `CCARegularizer`.

    Call arguments and output: as for `CCARegularizer`, with any number of views >= 2.

    Raises:
        ValueError: weight < 0, and as `ProxGCCA`.

    Example:

    >>> views = [keras.random.normal((32, width), seed=width) for width in (4, 6, 3)]
    >>> layer = GCCARegularizer(0.1, num_components=2)
    >>> views = layer(views)
    >>> [0 <= float(loss) <= 0.1 * 3 * 2 for loss in layer.losses]
    [True]

    Reference: Li, Ma, Zhang (2020), appendix on multiview learning, and section 6 (RRM).
    """

    _kind = GCCA
