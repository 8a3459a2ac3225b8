"""Proximal layers for views of the same thing: ProxCCA and ProxGCCA."""

from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    HasLam,
    add_lam,
    at_least_float32,
    check_choice,
    check_device,
    check_integer,
    check_number,
    lam_of,
    nan_without,
)
from proxnet_tf.layers.multiview import border as views
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.prox import correlations, gram_of, multiview_prox


class _MultiviewProx(HasLam, keras.layers.Layer):
    """What the multiview proximal layers share: everything but the objective."""

    _objective: str
    _max_views: int | None

    def __init__(
        self,
        num_components: int | None,
        *,
        lam: float,
        epsilon: float,
        solver: str,
        gradient: str,
        inference: str,
        momentum: float,
        max_iterations: int,
        tolerance: float,
        monitor: bool,
        split: tuple[int, ...] | None,
        jit_solver: bool,
        nan_is_missing: bool,
        synchronized: bool,
        solver_device: str | None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.initial_lam = check_number("lam", lam, above=0.0)
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.solver = check_choice("solver", solver, ("newton", "lbfgs"))
        self.gradient = check_choice("gradient", gradient, ("implicit", "finite_difference"))
        self.inference = check_choice("inference", inference, ("identity", "batch", "moving"))
        self.momentum = check_number("momentum", momentum, at_least=0.0)
        if self.momentum >= 1.0:
            raise ValueError(f"`momentum` must be in [0, 1). Received: momentum={momentum!r}")
        self.max_iterations = check_integer("max_iterations", max_iterations)
        self.tolerance = check_number("tolerance", tolerance, above=0.0)
        self.monitor = bool(monitor)
        self.split = views.check_split(split)
        self.jit_solver = bool(jit_solver)
        self.nan_is_missing = bool(nan_is_missing)
        self.synchronized = bool(synchronized)
        if self.synchronized and self.gradient != "implicit":
            raise ValueError(
                f"`synchronized=True` needs gradient='implicit'. Received: gradient={gradient!r}"
            )
        self.solver_device = check_device(solver_device)
        self.supports_masking = True
        self.supports_jit = False  # eigh and svd have no good XLA kernels
        self.lam = add_lam(self, self.initial_lam)
        self._monitors: dict[str, keras.metrics.Metric] = {}
        if self.monitor:
            for name in ("correlation_before", "correlation", "residual", "iterations"):
                self._monitors[name] = keras.metrics.Mean(name=name)

    def build(self, input_shape: Any) -> None:
        sizes = views.view_sizes(
            input_shape, self.split, max_views=self._max_views, name=type(self).__name__
        )
        self._correlation = Correlation(
            sizes, self._components(sizes), self.epsilon, self._objective
        )
        if self.inference == "moving":
            width = sum(sizes)
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
        self.built = True

    def _components(self, sizes):
        raise NotImplementedError

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        sizes = self._checked_sizes(inputs)
        rows = views.join(inputs, at_least_float32(self.compute_dtype))
        valid = views.valid_rows(inputs, mask, self.nan_is_missing)
        if training or self.inference == "batch":
            output = self._solve(rows, valid, training)
        elif self.inference == "moving":
            output = self._apply_moving(rows, valid)
        else:
            output = rows
        if self._monitors and not (training or self.inference == "batch"):
            self._watch("correlation_before", rows, valid)
            self._watch("correlation", output, valid)
        return views.separate(output, inputs, sizes, self.compute_dtype)

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._checked_sizes(inputs)  # Keras does not run `call` on symbolic inputs
        return super().compute_output_spec(inputs, *args, **kwargs)

    def _checked_sizes(self, inputs):
        name = type(self).__name__
        views.check_dtypes(inputs, name)
        shape = views.shape_of(inputs)
        sizes = views.view_sizes(shape, self.split, max_views=self._max_views, name=name)
        if sizes != self._correlation.sizes:
            raise ValueError(
                f"{name} was built for views of the widths {self._correlation.sizes}. "
                f"Received: {sizes}"
            )
        return sizes

    def _solve(self, rows, valid, training):
        lam = lam_of(self, tf.float64)
        found = multiview_prox(
            rows,
            lam,
            self._correlation,
            valid=valid,
            solver=self.solver,
            gradient=self.gradient,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            jit=self.jit_solver and tf.test.is_built_with_xla(),
            all_reduce=self._all_reduce,
            solver_device=self.solver_device,
        )
        if training and self.inference == "moving":
            mean = nan_without(lam, tf.cast(found.mean, self.moving_mean.dtype))
            step = nan_without(lam, tf.cast(found.map, self.moving_map.dtype))
            batch_map = step + tf.eye(self._correlation.width, dtype=step.dtype)
            some = True if valid is None else tf.reduce_any(valid)
            for weight, value in ((self.moving_mean, mean), (self.moving_map, batch_map)):
                usable = some & tf.reduce_all(tf.math.is_finite(value))
                moved = self.momentum * weight + (1.0 - self.momentum) * value
                weight.assign(tf.where(usable, moved, weight))
        for name, value in (
            ("correlation_before", found.correlation_before),
            ("correlation", found.correlation_after),
            ("residual", found.residual),
            ("iterations", found.iterations),
        ):
            if self._monitors:
                self._monitors[name].update_state(tf.stop_gradient(tf.cast(value, "float32")))
        return nan_without(lam, found.output)

    def _all_reduce(self, *sums):
        replica = tf.distribute.get_replica_context()  # None while a model is built under a scope
        if not self.synchronized or replica is None or replica.num_replicas_in_sync == 1:
            return sums
        return tuple(replica.all_reduce(tf.distribute.ReduceOp.SUM, list(sums)))

    def _apply_moving(self, rows, valid):
        mean = tf.cast(self.moving_mean, rows.dtype)
        moved = mean + tf.matmul(rows - mean, tf.cast(self.moving_map, rows.dtype))
        return moved if valid is None else tf.where(valid, moved, rows)

    def _watch(self, name, rows, valid):
        gram, count = gram_of(tf.stop_gradient(rows), valid, self._all_reduce)
        value = tf.reduce_sum(correlations(self._correlation, gram, count))
        self._monitors[name].update_state(tf.cast(value, "float32"))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_components": self.num_components,
            "lam": self.initial_lam,
            "epsilon": self.epsilon,
            "solver": self.solver,
            "gradient": self.gradient,
            "inference": self.inference,
            "momentum": self.momentum,
            "max_iterations": self.max_iterations,
            "tolerance": self.tolerance,
            "monitor": self.monitor,
            "split": self.split,
            "jit_solver": self.jit_solver,
            "nan_is_missing": self.nan_is_missing,
            "synchronized": self.synchronized,
            "solver_device": self.solver_device,
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxCCA(_MultiviewProx):
    """Moves the features of two views towards high canonical correlation (ProxNet).

    In training the layer returns, for the rows of the mini-batch,

        P, Q = argmin  lam/(2n) (||P - X||_F^2 + ||Q - Y||_F^2) - sum_{i<=k} sigma_i(T(P, Q)),

    with T = (P^T P + eps I)^(-1/2) P^T Q (Q^T Q + eps I)^(-1/2) of the centred views, P^T P and
    so on divided by n - 1: equation (8) of the paper. The gradient is exact (implicit
    differentiation of a 2d x 2d system); the solver never iterates over the batch. It has no
    trainable weights.

    The problem is not convex: the layer returns the minimiser that descent from the inputs
    reaches, a deterministic function of the batch. Each view stays in its own row space, so
    constant columns come out unchanged and duplicated columns stay equal. With fewer than two
    rows, or all rows equal, the output is the input. Where sigma_k = sigma_{k+1} the map is not
    differentiable and the gradient ignores the tie. A second derivative raises
    `NotImplementedError`. A batch with a value that is not finite comes out as NaN.

    Args:
        num_components: k, number of canonical correlations, 1 <= k <= min(d1, d2); None (the
            default) is min(d1, d2).
        lam: weight of the displacement, > 0. It is kept as the scalar non-trainable weight
            `layer.lam`, read at every call: drive it with `LambdaSchedule` or
            `layer.lam.assign(...)`, and keep it > 0. Large values leave the views alone, small
            ones move them far.
        epsilon: ridge eps >= 0 on each view's covariance.
        solver: "newton" (default) or "lbfgs" (TensorFlow Probability's, falling back to Newton).
        gradient: "implicit" (default, exact) or "finite_difference" (the paper's, after Domke).
        inference: what `training=False` does. "identity" (default, as in the paper): views pass
            unchanged; "batch": solve on the batch; "moving": apply the moving mean and moving
            linear map of the training batches, example by example.
        momentum: of the moving mean and map, in [0, 1).
        max_iterations: bound on the solver's iterations, >= 1.
        tolerance: on the relative residual of the solve and of the gradient's linear system.
        monitor: whether to report `correlation_before`, `correlation`, `residual` and
            `iterations` as metrics of the layer (means over the epoch's batches; `residual`
            above `tolerance` tells that `max_iterations` was too small). When nothing is solved
            the last two are 0. The names are fixed: monitor one layer of a model.
        split: (d1, d2) when the views come side by side in one tensor; halves by default.
        jit_solver: whether XLA compiles the solver's inner loop (where XLA is available). The
            results are equal up to the tolerance.
        nan_is_missing: whether a NaN marks its view as missing in that row, as a mask does; False
            by default.
        synchronized: under a `tf.distribute` strategy, whether to solve for the rows of all
            replicas together (exactly as one device would; n, sums and D x D matrices travel)
            or, by default, for those of each replica. Needs gradient="implicit".
        solver_device: such as "CPU:0", where the D x D problem is solved; None (the default)
            leaves it to TensorFlow. Only D x D matrices travel. With a GPU and small D the host
            is often faster.

    Call arguments:
        inputs: list or tuple of two views `(batch, d_j)` or `(batch, time, d_j)`, or one such
            tensor with the views side by side. Time steps count as rows.
        training: whether to solve (True) or to do what `inference` says.
        mask: boolean `(batch,)` (for sequences `(batch, time)`), or a list of one per view with
            None entries, False where a view is missing. A row takes part if no view is missing;
            the others pass unchanged, and so do their gradients.

    Output: the structure, shapes and masks of the input, in the layer's compute dtype.

    Raises:
        ValueError: not two views, views of different batch sizes or lengths, more components
            than the smaller view has columns, a dtype that is not floating point, a mask of
            another shape, or an argument outside its range.

    Example:
        x, y = keras.Input((64,)), keras.Input((32,))
        p, q = ProxCCA(10, lam=0.5)([keras.layers.Dense(10)(x), keras.layers.Dense(10)(y)])

    Reference: Li, Ma, Zhang, Proximal Mapping for Deep Regularization (2020), section 5.
    """

    _objective = "cca"
    _max_views = 2

    def __init__(
        self,
        num_components: int | None = None,
        *,
        lam: float = 1.0,
        epsilon: float = 1e-4,
        solver: str = "newton",
        gradient: str = "implicit",
        inference: str = "identity",
        momentum: float = 0.99,
        max_iterations: int = 200,
        tolerance: float = 1e-8,
        monitor: bool = False,
        split: tuple[int, int] | None = None,
        jit_solver: bool = True,
        nan_is_missing: bool = False,
        synchronized: bool = False,
        solver_device: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            num_components,
            lam=lam,
            epsilon=epsilon,
            solver=solver,
            gradient=gradient,
            inference=inference,
            momentum=momentum,
            max_iterations=max_iterations,
            tolerance=tolerance,
            monitor=monitor,
            split=split,
            jit_solver=jit_solver,
            nan_is_missing=nan_is_missing,
            synchronized=synchronized,
            solver_device=solver_device,
            **kwargs,
        )

    def _components(self, sizes):
        return views.cca_components(self.num_components, sizes)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxGCCA(_MultiviewProx):
    """Moves the features of two or more views towards a common core (generalised CCA).

    In training the layer returns, for the rows of the mini-batch,

        {P_j} = argmin  lam/(2n) sum_j ||P_j - X_j||_F^2
                + min_{G, U_j} sum_j ||G - P_j U_j||_F^2 + (n - 1) eps ||U_j||_F^2,  G^T G = I,

    over the centred views: equation (8) of the paper with the objective of its appendix on
    multiview learning. Its value is J k minus the sum of the k largest eigenvalues mu of
    S v = mu (blockdiag(S) + eps I) v for the covariance S of all views side by side.

    For two views and eps -> 0 those eigenvalues are 1 + sigma_i, with sigma_i the canonical
    correlations, so that for k <= min(d1, d2) the layer equals `ProxCCA` with the same k and lam:
    the objectives differ by the constant k.

    Everything else (row spaces, ties, single rows, values that are not finite) is as in `ProxCCA`.

    Args:
        num_components: k, the width of the core, 1 <= k <= d_1 + .. + d_J. Directions with
            mu <= 1e-9 take no part.
        lam, epsilon, solver, gradient, inference, momentum, max_iterations, tolerance, monitor,
        jit_solver, nan_is_missing, synchronized, solver_device: as for `ProxCCA`; the monitored
            correlation is the sum of the k values mu.
        split: widths of the views when they come side by side in one tensor; two halves by
            default.

    Call arguments and output: as for `ProxCCA`, with any number of views >= 2.

    Raises:
        ValueError: fewer than two views, views of different batch sizes or lengths, more
            components than all views have columns, a dtype that is not floating point, or an
            argument outside its range.

    Example:
        a, b, c = ProxGCCA(10, lam=2.0)([encode(x), encode_other(y), encode_third(z)])

    Reference: Li, Ma, Zhang, Proximal Mapping for Deep Regularization (2020), appendix on
    multiview learning.
    """

    _objective = "gcca"
    _max_views = None

    def __init__(
        self,
        num_components: int,
        *,
        lam: float = 1.0,
        epsilon: float = 1e-4,
        solver: str = "newton",
        gradient: str = "implicit",
        inference: str = "identity",
        momentum: float = 0.99,
        max_iterations: int = 200,
        tolerance: float = 1e-8,
        monitor: bool = False,
        split: tuple[int, ...] | None = None,
        jit_solver: bool = True,
        nan_is_missing: bool = False,
        synchronized: bool = False,
        solver_device: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            check_integer("num_components", num_components),
            lam=lam,
            epsilon=epsilon,
            solver=solver,
            gradient=gradient,
            inference=inference,
            momentum=momentum,
            max_iterations=max_iterations,
            tolerance=tolerance,
            monitor=monitor,
            split=split,
            jit_solver=jit_solver,
            nan_is_missing=nan_is_missing,
            synchronized=synchronized,
            solver_device=solver_device,
            **kwargs,
        )

    def _components(self, sizes):
        return views.gcca_components(self.num_components, sizes)
