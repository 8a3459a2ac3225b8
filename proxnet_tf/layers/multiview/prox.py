"""Proximal layers for views of the same thing: ProxCCA and ProxGCCA."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf import solvers
from proxnet_tf.checks import HasLam, at_least_float32, check_choice, check_number
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.layers.multiview.base import MultiviewLayer
from proxnet_tf.layers.multiview.views import Border, Views
from proxnet_tf.ops.linear.report import Observer
from proxnet_tf.ops.multiview.correlation import CCA, GCCA, Correlation
from proxnet_tf.ops.multiview.finite_difference import by_finite_difference
from proxnet_tf.ops.multiview.gram import Sample, apply_step, gram_of, masked
from proxnet_tf.ops.multiview.of_gram import Map, correlations_of_gram, map_of_gram


class _MultiviewProx(HasLam, MultiviewLayer):
    """What ProxCCA and ProxGCCA share: everything but the objective."""

    _kind: type[Correlation]

    def __init__(
        self,
        num_components: int | None = None,
        *,
        lam: float = 1.0,
        weight: float = 0.0,
        epsilon: float = 1e-4,
        solver: str | solvers.MultiviewSolver = "newton",
        gradient: str = "implicit",
        inference: str = "identity",
        momentum: float = 0.99,
        monitor: bool | str = False,
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
        self.solver = solvers.get(solver)
        self.gradient = check_choice("gradient", gradient, ("implicit", "finite_difference"))
        if synchronized and gradient != "implicit":
            raise ValueError(
                f"`synchronized=True` needs gradient='implicit'. Received: gradient={gradient!r}"
            )
        self.inference = check_choice("inference", inference, ("identity", "batch", "moving"))
        self.momentum = check_number("momentum", momentum, at_least=0.0)
        if self.momentum >= 1.0:
            raise ValueError(f"`momentum` must be in [0, 1). Received: momentum={momentum!r}")
        self.monitor = check_monitor(monitor)
        self.add_lam(lam)
        self._monitor = Monitor(
            self,
            self.monitor,
            ["correlation_before", "correlation", *(["envelope"] if self.weight else [])],
            advice="Raise `epsilon` or `lam`, or give `solver` more iterations.",
        )

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        if self.inference == "moving":
            width = self.border.correlation_of(input_shape).width
            options = dict(
                trainable=False,
                dtype=at_least_float32(self.variable_dtype).name,
                autocast=False,
                aggregation="mean",  # over replicas; equal on all when synchronized
            )
            self.moving_mean = self.add_weight(
                name="moving_mean", shape=(width,), initializer="zeros", **options
            )
            self.moving_map = self.add_weight(
                name="moving_map",
                shape=(width, width),
                initializer=keras.initializers.Identity(),
                **options,
            )
            self.moving_count = self.add_weight(
                name="moving_count", shape=(), initializer="zeros", **options
            )

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        views = self.border.enter(inputs, mask, self.compute_dtype, built=self.correlation)
        frozen = self.inference == "moving" and not self.trainable
        training = training and not frozen
        if training:
            self.border.warn_of_few_rows(views)
        if training or self.inference == "batch":
            output = self._solve(views, training)
        else:
            output = views.rows
            if self.inference == "moving":
                step = self.moving_map - tf.eye(*self.moving_map.shape, dtype=self.moving_map.dtype)
                output = apply_step(views.rows, views.valid, self.moving_mean, step)
            if self._monitor:
                values = []
                for rows in [views.rows, output][: 1 + (output is not views.rows)]:
                    sample = gram_of(rows, views.valid, self.border.all_reduce)
                    found = correlations_of_gram(views.correlation, sample, self.epsilon)
                    values.append(tf.reduce_sum(found))
                self._monitor.watch("correlation_before", values[0], sample.count)
                self._monitor.watch("correlation", values[-1], sample.count)
        return views.leave(output, self.compute_dtype)

    def _solve(self, views: Views, training: bool) -> tf.Tensor:
        lam, observer = self.lam_in(tf.float64), self._monitor.backward(training)
        output, sample, found = self._moved(views, lam, views.rows, observer)
        if self.gradient == "finite_difference":
            prox = functools.partial(self._moved, views, lam)
            output = by_finite_difference(output, prox, views.rows, views.valid, observer)
        if training:
            if self.weight:
                self.add_loss(self.weight * tf.cast(found.envelope, views.rows.dtype))
                self._monitor.watch("envelope", found.envelope, sample.count)
            if self.inference == "moving":
                self._update_moving(sample, found)

        def given() -> dict[str, Any]:
            rows = masked(views.valid, views.rows)
            return {
                "the input": rows,
                "lam": lam,
                "the sums of squares of the input": tf.reduce_sum(rows**2, 0),
            }

        self._monitor.forward(found.report, None, given)
        self._monitor.watch("correlation_before", found.correlation_before, sample.count)
        self._monitor.watch("correlation", found.correlation_after, sample.count)
        return output

    def _moved(
        self, views: Views, lam: tf.Tensor, rows: tf.Tensor, observer: Observer | None = None
    ) -> tuple[tf.Tensor, Sample, Map]:
        """P = X + (X - m)(M - I) of the rows X, and its ingredients."""
        sample = gram_of(rows, views.valid, self.border.all_reduce)
        found = map_of_gram(
            views.correlation,
            sample,
            lam,
            self.epsilon,
            self.solver,
            dtype=rows.dtype,
            observer=observer,
        )
        return apply_step(rows, views.valid, sample.mean, found.step), sample, found

    def _update_moving(self, sample: Sample, found: Map) -> None:
        """Moves the mean and the linear map towards those of a batch that has two rows or more.

        The t-th batch counts 1/t as long as that is more than 1 - momentum, so both begin as the
        mean over the batches. Over replicas the weights become the mean of what each replica
        assigns. A replica without rows keeps the old value, and the others move so much further
        that this replica does not count.
        """
        dtype = self.moving_map.dtype
        mean, step = tf.cast(sample.mean, dtype), tf.cast(found.step, dtype)
        finite = tf.reduce_all(tf.math.is_finite(mean)) & tf.reduce_all(tf.math.is_finite(step))
        usable = tf.cast(finite & (sample.count > 1.0), dtype)
        replica = tf.distribute.get_replica_context()
        replicas, together = 1, usable
        if replica is not None and replica.num_replicas_in_sync > 1:
            replicas = replica.num_replicas_in_sync
            together = replica.all_reduce(tf.distribute.ReduceOp.SUM, usable)
        seen = self.moving_count + tf.minimum(together, 1.0)
        rate = tf.maximum(1.0 / tf.maximum(seen, 1.0), 1.0 - self.momentum)
        rate *= replicas / tf.maximum(together, 1.0)
        linear = step + tf.eye(step.shape[0], dtype=dtype)
        for weight, value in ((self.moving_mean, mean), (self.moving_map, linear)):
            moved = weight + rate * (value - weight)
            weight.assign(tf.where(usable > 0, moved, weight))
        self.moving_count.assign(seen)

    @property
    def status(self) -> dict[str, float]:
        """How well the problems were solved: see `monitor`; without it, for the last eager call."""
        return self._monitor.status

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "lam": self.initial_lam,
            "weight": self.weight,
            "solver": keras.saving.serialize_keras_object(self.solver),
            "gradient": self.gradient,
            "inference": self.inference,
            "momentum": self.momentum,
            "monitor": self.monitor,
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxCCA(_MultiviewProx):
    """Moves the features of two views towards high canonical correlation (ProxNet).

    A view is one of two descriptions of the same examples, row by row. In training the layer
    returns, for the n rows of a batch,

        P, Q = argmin  lam/(2n) (||P - X||_F^2 + ||Q - Y||_F^2) - sum_{i<=k} sigma_i(T(P, Q)),

    with T = (P^T P + eps I)^(-1/2) P^T Q (Q^T Q + eps I)^(-1/2) of the centred views, products
    divided by n - 1: equation (8) of the paper. It has no trainable weights. Its cost depends on
    the number of columns, hardly on n. Its gradient is exact.

    The layer supplies the correlation, so its encoders have no reason to seek it. `weight` adds
    the envelope, the value of this problem, to the loss. The envelope's gradient lam/n (X - P)
    makes the encoders seek it, without another solve. As lam grows the envelope nears minus the
    correlation of the inputs. A small lam bounds the gradient.

    Args:
        num_components: k, 1 <= k <= min(d1, d2); None (the default) is min(d1, d2).
        lam: weight of the displacement, > 0; 1 by default. Large values leave the views alone. A
            non-trainable weight: set it by `LambdaSchedule`, or `layer.lam = 0.5`.
        weight: factor >= 0 of the envelope in the training loss; 0 (default) is the paper's
            layer.
        epsilon: ridge eps >= 0 on each view's covariance; 1e-4 by default.
        solver: "newton" (default), "lbfgs", or a value of `proxnet_tf.solvers`.
        gradient: "implicit" (default, exact) or "finite_difference" (the paper's, after Domke).
        inference: what `training=False` does. "identity" (default, as in the paper): views pass
            unchanged; "batch": solve on the batch; "moving": apply the moving mean and linear map
            of the training batches (in training, too, with `trainable=False`).
        momentum: of the moving mean and map, in [0, 1); 0.99 by default. They start as the mean
            over the batches so far.
        monitor: True for the metrics `correlation_before`, `correlation` (sums of k correlations),
            `unsolved` (share of maps and gradients that missed the tolerance) and, with a weight,
            `envelope`. "all" adds `residual`, `iterations`, `backward_residual`. Another string is
            a prefix of the names, for several layers in one model. False by default.
        split: (d1, d2) when the views come side by side in one tensor; halves by default.
        nan_is_missing: whether a NaN marks its view as missing in the row; False by default.
        synchronized: whether the replicas of a `tf.distribute` strategy solve for all their rows
            together (gradient="implicit" only); by default each solves for its own.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: two views `(batch, d_j)` or `(batch, time, d_j)` in a list, tuple or dict (in the
            order of its sorted keys), or one such tensor with the views side by side. Time steps
            count as rows.
        training: whether to solve (True) or to do what `inference` says.
        mask: boolean `(batch,)` (for sequences `(batch, time)`), or one per view with None
            entries, False where a view is missing. Rows that lack a view, and their gradients,
            pass unchanged.

    Output: the structure, shapes and masks of the input, in the layer's compute dtype.

    Raises:
        ValueError: not two views, batch sizes or lengths that differ, a dtype that is not floating
            point, a mask of another shape, or an argument outside its range.

    Example:

    >>> from proxnet_tf import cca_loss
    >>> x, y = keras.random.normal((32, 4), seed=0), keras.random.normal((32, 6), seed=1)
    >>> p, q = ProxCCA(2, lam=0.5)([x, y], training=True)
    >>> p.shape, q.shape
    (TensorShape([32, 4]), TensorShape([32, 6]))
    >>> bool(cca_loss(p, q, 2) < cca_loss(x, y, 2))
    True

    Reference: Li, Ma, Zhang (2020), section 5.

    Notes:
        The problem is not convex: the result is what descent from the inputs reaches. Where
        sigma_k = sigma_{k+1} the gradient ignores the tie. First derivatives only. Fewer than two
        rows, or equal ones, pass unchanged. A value that is not finite makes the batch NaN.

        Each view stays in its own row space: constant columns pass unchanged, duplicated ones
        stay equal. A direction whose variance is rounding passes unchanged: at most 1e-10 (1e-6
        for more than 4,096 float32 rows) with each column scaled to variance one.

        The first call for views of new widths compiles the solver (some seconds). Keras does not
        compile a model with this layer by XLA (`supports_jit` is False).
    """

    _kind = CCA


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxGCCA(_MultiviewProx):
    """Moves the features of two or more views towards a common core (generalised CCA).

    In training the layer returns, for the n rows of a batch and their J views,

        {P_j} = argmin  lam/(2n) sum_j ||P_j - X_j||_F^2
                + min_{G, U_j} sum_j ||G - P_j U_j||_F^2 + (n - 1) eps ||U_j||_F^2,  G^T G = I,

    over the centred views: equation (8) of the paper with the objective of its appendix on
    multiview learning. The inner minimum is J k minus the sum of the k largest eigenvalues mu of
    S v = mu (blockdiag(S) + eps I) v for the covariance S of all views side by side.

    For two views and eps -> 0 those eigenvalues are 1 + sigma_i, with sigma_i the canonical
    correlations. So for k <= min(d1, d2) the layer equals `ProxCCA` with the same k and lam: the
    objectives differ by the constant k.

    Everything else (row spaces, ties, single rows, values that are not finite, the first call,
    `jit_compile`) is as in `ProxCCA`.

    Args:
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J; it must be given.
            Directions with mu <= 1e-7 take no part.
        split: widths of the views when they come side by side in one tensor; two halves by
            default.
        lam, weight, epsilon, solver, gradient, inference, momentum, monitor, nan_is_missing,
            synchronized, **kwargs: as for `ProxCCA`; the monitored correlation is the sum of the k
            values mu.

    Call arguments and output: as for `ProxCCA`, with any number of views >= 2.

    Raises:
        ValueError: fewer than two views, more components than all views have columns, and as
            `ProxCCA`.

    Example:

    >>> from proxnet_tf import gcca_loss
    >>> views = [keras.random.normal((32, width), seed=width) for width in (4, 6, 3)]
    >>> moved = ProxGCCA(2, lam=2.0)(views, training=True)
    >>> [tuple(p.shape) for p in moved]
    [(32, 4), (32, 6), (32, 3)]
    >>> bool(gcca_loss(moved, 2) < gcca_loss(views, 2))
    True

    Reference: Li, Ma, Zhang, Proximal Mapping for Deep Regularization (2020), appendix on
    multiview learning.
    """

    _kind = GCCA
