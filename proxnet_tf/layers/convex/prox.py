"""Any convex regulariser as a layer without weights."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    HasLam,
    add_lam,
    at_least_float32,
    check_choice,
    check_integer,
    check_number,
    lam_of,
    nan_without,
)
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.ops.convex.smooth import default_tolerance, smooth_prox

_SMOOTH = ("squared_l2", "quadratic")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class Prox(HasLam, keras.layers.Layer):
    """The proximal map of any regulariser: argmin_{z in C} R(z) + lam/2 ||z - x||^2.

    R by name or as a `Regularizer` is exact, in closed form. R as a function is solved by L-BFGS
    and Newton (with a constraint: by accelerated projected gradient) and differentiated
    implicitly: x, the context, and every variable or tensor that R uses get their gradient.
    The layer has no trainable weight of its own; if R is a Keras layer, its weights are tracked.

    Args:
        regularizer: a name or a `Regularizer` (see there); or a callable R, smooth and convex
            (its curvature above -lam at least), made of TensorFlow or Keras operations, keeping
            the dtype and +inf outside its domain; or None for R = 0 under a `constraint`. To be
            saved, a function needs `keras.saving.register_keras_serializable`.
        lam: weight of the distance, > 0; 1 by default. The larger, the nearer the output is to
            the input. A variable that is read at every call: `LambdaSchedule` drives it.
        constraint: the set C, a name or a `Regularizer` of a set (`"simplex"`, `"box"`, ...); for
            a callable R it must be finite and smooth on C. None by default.
        axis: the axis of one vector with over="example"; the last by default.
        over: what one R sees: `"example"` one vector along `axis` (the default); `"time"` one
            whole sequence (batch, time, features); `"batch"` the whole batch. A closed form with
            `"time"` or `"batch"` acts along that axis for every feature, the nuclear norm on the
            whole matrix. A callable gets (rows, n) and returns (rows,) with `"example"`;
            (batch, time, features) and returns (batch,) with `"time"`; the batch and returns a
            scalar with `"batch"`.
        start: where the solver for a callable R starts: a number, or a callable x -> z; needed
            if R is +inf at x. The input itself by default.
        tolerance: bound on the solver's relative residual; by default 1e-9 in float64, 1e-5 in
            float32.
        max_iterations: bound on the solver's iterations; 200 by default.
        monitor: for a callable R, report `<name>_residual`, `<name>_unconverged` (fraction of the
            problems) and `<name>_iterations` as metrics; True by default. `status` reads them.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: tensor of shape (batch, ..., n), or [x, context] for an R(z, context) that couples
            z with another layer. The context has the leading axes of x.
        mask: with over="time", steps with False are returned unchanged and left out of R, for the
            regularisers that allow it.

    Output:
        Tensor in the shape of x and the layer's compute dtype; computed in float32 at least.
        Where a closed form has kinks, the gradient is the choice documented at its function.
        A row that the solver did not solve is its last iterate, counted in `status`.

    Raises:
        ValueError: an unknown name, a value out of range, a constraint that is not a set, R that
            returns another shape or has no gradient, a mask that R cannot respect.

    Example:
        model = keras.Sequential([
            keras.layers.Dense(64),
            Prox("l1", lam=4.0),
            Prox(lambda z: tf.reduce_sum(tf.math.log(tf.cosh(z)), axis=-1), lam=2.0),
        ])

    Reference: Li, Ma, Zhang (2020), section 1, equation (2), and section 2.
    """

    def __init__(
        self,
        regularizer: str | Regularizer | Callable[..., tf.Tensor] | None = None,
        *,
        lam: float = 1.0,
        constraint: str | Regularizer | None = None,
        axis: int = -1,
        over: str = "example",
        start: float | Callable[[tf.Tensor], tf.Tensor] | None = None,
        tolerance: float | None = None,
        max_iterations: int = 200,
        monitor: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.regularizer = _resolve("regularizer", regularizer)
        self.initial_lam = check_number("lam", lam, above=0.0)
        self.constraint = _resolve("constraint", constraint)
        self.axis = axis
        self.over = check_choice("over", over, ("example", "time", "batch"))
        self.start = start if start is None or callable(start) else check_number("start", start)
        self.tolerance = (
            None if tolerance is None else check_number("tolerance", tolerance, above=0.0)
        )
        self.max_iterations = check_integer("max_iterations", max_iterations)
        self.monitor = bool(monitor)
        self._closed_form = self._find_closed_form()
        self._check_combination()
        self.supports_masking = True
        self.supports_jit = self._closed_form is not None and self._closed_form.operator.jit
        self.lam = add_lam(self, self.initial_lam)
        self._monitors: dict[str, keras.metrics.Metric] = {}
        if self.monitor and self._closed_form is None:
            for name in ("residual", "unconverged", "iterations"):
                self._monitors[name] = keras.metrics.Mean(name=f"{self.name}_{name}")

    def _find_closed_form(self) -> Regularizer | None:
        if self.constraint is None:
            return self.regularizer if isinstance(self.regularizer, Regularizer) else None
        return self.constraint if self.regularizer is None else None

    def _check_combination(self) -> None:
        if self.regularizer is None and self.constraint is None:
            raise ValueError(
                "Prox needs a `regularizer`, a `constraint` or both. Received: neither; for "
                "example Prox('l1') or Prox(constraint='simplex')."
            )
        if self.constraint is not None:
            if not isinstance(self.constraint, Regularizer) or not self.constraint.is_set:
                raise ValueError(
                    "`constraint` must be the name or the Regularizer of a set, such as 'simplex' "
                    f"or 'box'. Received: constraint={self.constraint!r}"
                )
            if isinstance(self.regularizer, Regularizer) and self.regularizer.name not in _SMOOTH:
                raise ValueError(
                    "With a `constraint`, `regularizer` must be smooth: a callable, "
                    f"{' or '.join(map(repr, _SMOOTH))}. Received: {self.regularizer.name!r}; its "
                    "proximal map under a constraint has no closed form."
                )
        if self.over != "example" and self.axis != -1:
            raise ValueError(
                f"`axis` applies to over='example' only. Received: over={self.over!r} with "
                f"axis={self.axis!r}"
            )

    def build(self, input_shape: Any) -> None:
        # The variables of an R that is a layer cannot be made inside the solver's loop.
        if isinstance(self.regularizer, keras.layers.Layer) and not self.regularizer.built:
            shape = self.compute_output_shape(input_shape)
            if self.over == "example":
                shape = (None, shape[self.axis])
            self.regularizer.build(shape)
        self.built = True

    def call(self, inputs: Any, mask: Any = None) -> tf.Tensor:
        x, context = self._split_inputs(inputs)
        mask = mask[0] if isinstance(mask, list | tuple) else mask
        dtype = at_least_float32(self.compute_dtype)
        x = tf.cast(x, dtype)
        lam = lam_of(self, dtype)
        if self._closed_form is not None and context is None:
            z = self._apply_closed_form(self._closed_form, x, lam, mask)
        else:
            z = self._solve(x, context, lam, mask)
        z = nan_without(lam, tf.ensure_shape(z, x.shape))
        return tf.cast(z, self.compute_dtype)

    def _split_inputs(self, inputs):
        if not isinstance(inputs, list | tuple):
            return inputs, None
        if len(inputs) != 2:
            raise ValueError(
                "Prox takes x, or [x, context] for an R(z, context). Received: a list of "
                f"{len(inputs)} inputs."
            )
        if isinstance(self.regularizer, Regularizer) or self.regularizer is None:
            raise ValueError(
                "Only a callable R(z, context) takes a context. Received: [x, context] for a "
                "regularizer in closed form."
            )
        return tuple(inputs)

    # Closed forms --------------------------------------------------------------------------

    def _apply_closed_form(self, form, x, lam, mask):
        if self.over == "example":
            if form.operator.matrix:
                self._check_rank(x, 3, "(batch, rows, columns)")
                return form.prox(x, lam)
            moved = _last_axis(x, self.axis)
            return _last_axis_back(form.prox(moved, lam), self.axis)
        if self.over == "time":
            self._check_rank(x, 3, "(batch, time, features)")
            valid = None if mask is None else tf.broadcast_to(mask[..., tf.newaxis], tf.shape(x))
            if form.operator.matrix:
                return form.prox(x, lam, valid)
            swapped = tf.transpose(x, [0, 2, 1])
            valid = None if valid is None else tf.transpose(valid, [0, 2, 1])
            return tf.transpose(form.prox(swapped, lam, valid), [0, 2, 1])
        self._refuse_mask(mask)
        rows = tf.reshape(x, [tf.shape(x)[0], -1])
        z = (
            form.prox(rows, lam)
            if form.operator.matrix
            else tf.transpose(form.prox(tf.transpose(rows), lam))
        )
        return tf.reshape(z, tf.shape(x))

    def _check_rank(self, x, rank, meaning):
        if len(x.shape) < rank:
            raise ValueError(
                f"This Prox needs inputs of shape {meaning}. Received: shape {tuple(x.shape)}"
            )

    def _refuse_mask(self, mask):
        if mask is not None:
            raise ValueError(
                "A mask cannot be respected here: R sees the masked steps too. Received: a mask "
                f"with over={self.over!r}; remove it, or hand it to R(z, context) as the context."
            )

    # Solved --------------------------------------------------------------------------------

    def _solve(self, x, context, lam, mask):
        if self.over != "example":
            self._refuse_mask(mask)
        moved = _last_axis(x, self.axis) if self.over == "example" else x
        seen = tf.shape(moved)  # the shape in which R sees z
        if self.over == "example":
            rows = tf.reshape(moved, [-1, moved.shape[-1] or seen[-1]])
            if context is not None:
                context = tf.reshape(context, tf.concat([[-1], tf.shape(context)[-1:]], axis=0))
        elif self.over == "time":
            self._check_rank(x, 3, "(batch, time, features)")
            rows = tf.reshape(x, [seen[0], -1])
        else:
            rows = tf.reshape(x, [1, -1])
        if context is not None and context.dtype.is_floating:
            context = tf.cast(context, x.dtype)

        def regularizer(z):
            example = self.over == "example"
            whole = z if example else tf.ensure_shape(tf.reshape(z, seen), x.shape)
            value = tf.convert_to_tensor(
                self.regularizer(whole) if context is None else self.regularizer(whole, context)
            )
            if self.over == "batch" and value.shape.rank == 0:
                value = value[tf.newaxis]
            return value

        constraint = self.constraint
        found = smooth_prox(
            regularizer,
            rows,
            lam,
            projection=None if constraint is None else self._projection(seen, lam),
            start=None if self.start is None else tf.reshape(self._start(moved), tf.shape(rows)),
            tolerance=self.tolerance or default_tolerance(rows.dtype),
            max_iterations=self.max_iterations,
        )
        self._report(found)
        z = tf.reshape(found.point, tf.shape(moved))
        return _last_axis_back(z, self.axis) if self.over == "example" else z

    def _projection(self, seen, lam):
        """The projection onto C along the axis that R sees: the last, time, or the batch."""
        if self.over == "example":
            return lambda z: self.constraint.prox(z, lam)
        order = [0, 2, 1] if self.over == "time" else [1, 0]

        def project(z):
            whole = tf.reshape(z, seen if self.over == "time" else [seen[0], -1])
            whole = self.constraint.prox(tf.transpose(whole, order), lam)
            return tf.reshape(tf.transpose(whole, order), tf.shape(z))

        return project

    def _start(self, x):
        if callable(self.start):
            return self.start(x)
        return tf.fill(tf.shape(x), tf.cast(self.start, x.dtype))

    def _report(self, found):
        for name, value in (
            ("residual", found.residual),
            ("unconverged", ~found.converged),
            ("iterations", found.iterations),
        ):
            if self._monitors:
                self._monitors[name].update_state(tf.stop_gradient(tf.cast(value, "float32")))

    @property
    def status(self) -> dict[str, float]:
        """Means since the metrics were last reset: residual, unconverged (fraction), iterations.

        Empty for a closed form, which is exact, and with `monitor=False`.
        """
        return {name: float(metric.result()) for name, metric in self._monitors.items()}

    def compute_output_shape(self, input_shape: Any) -> Any:
        if isinstance(input_shape, list) or (
            isinstance(input_shape, tuple) and input_shape and isinstance(input_shape[0], tuple)
        ):
            return tuple(input_shape[0])
        return tuple(input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return mask[0] if isinstance(mask, list | tuple) else mask

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "regularizer": _serialize(self.regularizer),
            "lam": self.initial_lam,
            "constraint": _serialize(self.constraint),
            "axis": self.axis,
            "over": self.over,
            "start": _serialize(self.start),
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
            "monitor": self.monitor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Prox":
        config = dict(config)
        for key in ("regularizer", "constraint", "start"):
            if isinstance(config.get(key), dict):
                config[key] = keras.saving.deserialize_keras_object(config[key])
        return cls(**config)


def _resolve(argument, value):
    """A name becomes its Regularizer; objects, callables and None stay."""
    if isinstance(value, str):
        return Regularizer(value)
    if value is None or callable(value):
        return value
    raise ValueError(
        f"`{argument}` must be a name, a Regularizer, a callable or None. "
        f"Received: {argument}={value!r}"
    )


def _serialize(value):
    return keras.saving.serialize_keras_object(value) if callable(value) else value


def _last_axis(x, axis):
    order = _order(x, axis)
    return x if order is None else tf.transpose(x, order)


def _last_axis_back(x, axis):
    order = _order(x, axis)
    return x if order is None else tf.transpose(x, [order.index(i) for i in range(len(order))])


def _order(x, axis):
    rank = len(x.shape)
    if not -rank < axis < rank or axis % rank == 0:
        raise ValueError(
            f"`axis` must name an axis of the input other than the batch's. Received: axis={axis} "
            f"for shape {tuple(x.shape)}"
        )
    if axis % rank == rank - 1:
        return None
    return [i for i in range(rank) if i != axis % rank] + [axis % rank]
