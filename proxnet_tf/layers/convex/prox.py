"""Any convex regulariser as a layer without weights."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam, at_least_float32, check_choice, check_integer, check_number
from proxnet_tf.layers.convex import axes
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.convex.chain import as_rows
from proxnet_tf.ops.convex.smooth import ProxSolution, default_tolerance, smooth_prox
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.linear.report import exact

_SMOOTH = ("squared_l2", "quadratic")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class Prox(HasLam, keras.layers.Layer):
    """The proximal map of any regulariser: argmin_{z in C} R(z) + lam/2 ||z - x||^2.

    For R by name or as a `Regularizer` the map is exact, in closed form. For R as a function it is
    solved by accelerated gradient, then Newton's method (with a constraint: by accelerated
    projected gradient alone), and differentiated implicitly: x, the context, and every variable
    or tensor that R uses get their gradient.
    The layer has no trainable weight of its own; if R is a Keras layer, its weights are tracked.

    Args:
        regularizer: a name or a `Regularizer` (see there); or a callable R, smooth and convex
            (its curvature above -lam at least), made of TensorFlow or Keras operations, keeping
            the dtype and +inf outside its domain (the solver's dtype is float32 at least: under a
            mixed policy a Keras layer R needs `dtype="float32"`); or None for R = 0 under a
            `constraint`. To be saved, a function needs
            `keras.saving.register_keras_serializable`.
        lam: weight of the distance, > 0; 1 by default. The larger, the nearer the output is to
            the input. A variable that is read at every call: `LambdaSchedule` sets it.
        constraint: the set C, a name or a `Regularizer` of a set (`"simplex"`, `"box"`, ...); for
            a callable R it must be finite and smooth on C. None by default.
        over: what R sees at once: `"example"` one vector along the last axis (the default);
            `"time"` one whole sequence (batch, time, features); `"batch"` the whole batch. A closed
            form with `"time"` or `"batch"` acts along that axis for every feature, the nuclear norm
            on the whole matrix. A callable gets (rows, n) and returns (rows,) with `"example"`;
            (batch, time, features) and returns (batch,) with `"time"`; the batch and returns a
            scalar with `"batch"`.
        start: the value of every entry where the solver for a callable R starts; needed if R is
            +inf at x. The input itself by default.
        tolerance: bound on the solver's relative residual; by default 1e-9 in float64, 1e-5 in
            float32.
        max_iterations: bound on the solver's iterations, and on those of the linear systems of
            the gradient; 200 by default.
        monitor: True for the metric `unsolved`, the share of maps and gradients that missed the
            tolerance. "all" adds `residual`, the number of `iterations`, and `backward_residual`
            for the gradient's linear systems, means over batches. Another string is a prefix
            of the names, which several monitored layers of one model need. False by default. A
            closed form reports zeros.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: tensor of shape (batch, ..., n), or [x, context] for an R(z, context) that couples
            z with another layer. The context has the leading axes of x.
        mask: with over="time", steps with False are returned unchanged and left out of R, for the
            regularisers that allow it.

    Output:
        Tensor in the shape of x and the layer's compute dtype; computed in float32 at least.
        Where a closed form has kinks, the gradient is the choice documented at its function.
        For a row that the solver left unsolved the output is its last iterate: eager calls warn
        once a layer, `monitor` counts it, `status` reads it. NaN affects its own problem only.

    Raises:
        ValueError: an unknown name, a value out of range, a constraint that is not a set, R that
            returns another shape or has no gradient, a mask that R cannot respect.

    Example:
        >>> x = tf.constant([[3.0, -0.5]])
        >>> Prox("l1", lam=1.0)(x).numpy().tolist()
        [[2.0, 0.0]]
        >>> smooth = Prox(lambda z: tf.reduce_sum(tf.math.log(tf.cosh(z)), axis=-1), lam=2.0)
        >>> smooth(x).shape
        TensorShape([1, 2])

    Reference: Li, Ma, Zhang (2020), section 1, equation (2), and section 2.
    """

    def __init__(
        self,
        regularizer: str | Regularizer | Callable[..., tf.Tensor] | None = None,
        *,
        lam: float = 1.0,
        constraint: str | Regularizer | None = None,
        over: str = "example",
        start: float | None = None,
        tolerance: float | None = None,
        max_iterations: int = 200,
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        # No autocast: R reads its variables as they are, for 16 bits would round what it returns.
        super().__init__(autocast=False, **kwargs)
        self.regularizer = _resolve("regularizer", regularizer)
        self.constraint = _resolve("constraint", constraint)
        self.over = check_choice("over", over, ("example", "time", "batch"))
        self.start = None if start is None else check_number("start", start)
        self.tolerance = (
            None if tolerance is None else check_number("tolerance", tolerance, above=0.0)
        )
        self.max_iterations = check_integer("max_iterations", max_iterations)
        self.monitor = check_monitor(monitor)
        self._closed_form = self._find_closed_form()
        self._check_combination()
        self.supports_masking = True
        self.supports_jit = self._closed_form is not None and self._closed_form.operator.jit
        self.add_lam(lam)
        self._monitor = Monitor(
            self,
            self.monitor,
            advice="Raise `max_iterations`, `tolerance` or `lam`, and check that R is convex and "
            "bounded from below.",
        )

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
            if not isinstance(self.constraint, Regularizer) or not self.constraint.operator.is_set:
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

    def build(self, input_shape: Any) -> None:
        # If R is a layer, its variables cannot be made inside the solver's loop.
        if isinstance(self.regularizer, keras.layers.Layer) and not self.regularizer.built:
            shape = self.compute_output_shape(input_shape)
            if self.over == "example":
                shape = (None, shape[-1])
            self.regularizer.build(shape)
        self.built = True

    def call(self, inputs: Any, mask: Any = None, training: bool = False) -> tf.Tensor:
        x, context = self._split_inputs(inputs)
        check_real("The input", x)
        mask = mask[0] if isinstance(mask, list | tuple) else mask
        dtype = at_least_float32(self.compute_dtype)
        x = tf.cast(x, dtype)
        lam = self.lam_in(dtype)
        if self._closed_form is not None and context is None:
            z = axes.apply_closed_form(self._closed_form, x, lam, mask, self.over)
            self._monitor.forward(exact(z))
        else:
            found = self._solve(x, context, lam, mask, training)
            self._monitor.forward(found.report, None, lambda: {"the input": inputs, "lam": lam})
            z = found.point
        z = self.nan_without(lam, tf.ensure_shape(z, x.shape))
        return tf.cast(z, self.compute_dtype)

    def _split_inputs(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
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

    def _solve(
        self,
        x: tf.Tensor,
        context: tf.Tensor | None,
        lam: tf.Tensor,
        mask: tf.Tensor | None,
        training: bool,
    ) -> ProxSolution:
        if self.over == "example":
            rows = as_rows(x)
            context = None if context is None else as_rows(tf.convert_to_tensor(context))
        else:
            axes.refuse_mask(mask, self.over)
            if self.over == "time":
                axes.check_rank(x, "(batch, time, features)")
            count = tf.shape(x)[0] if self.over == "time" else 1
            rows = tf.reshape(x, [count, tf.size(x) // tf.maximum(count, 1)])
        if context is not None and context.dtype.is_floating:
            context = tf.cast(context, x.dtype)

        r = self.regularizer

        def regularizer(z: tf.Tensor) -> tf.Tensor:
            example = self.over == "example"
            whole = z if example else tf.ensure_shape(tf.reshape(z, tf.shape(x)), x.shape)
            value = tf.convert_to_tensor(r(whole) if context is None else r(whole, context))
            if self.over == "batch" and value.shape.rank == 0:
                value = value[tf.newaxis]
            return value

        def project(z: tf.Tensor) -> tf.Tensor:
            whole = tf.reshape(z, tf.shape(x))
            inside = axes.apply_closed_form(self.constraint, whole, lam, None, self.over)
            return tf.reshape(inside, tf.shape(z))

        start = self.start
        found = smooth_prox(
            regularizer,
            rows,
            lam,
            projection=None if self.constraint is None else project,
            start=None if start is None else tf.fill(tf.shape(rows), tf.cast(start, rows.dtype)),
            tolerance=self.tolerance or default_tolerance(rows.dtype),
            max_iterations=self.max_iterations,
            observer=self._monitor.backward(training),
        )
        return found._replace(point=tf.reshape(found.point, tf.shape(x)))

    @property
    def status(self) -> dict[str, float]:
        """The metrics of `monitor` since their last reset; without them, of the last eager call."""
        return self._monitor.status

    def compute_output_shape(self, input_shape: Any) -> Any:
        return axes.shape_of_first(input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return mask[0] if isinstance(mask, list | tuple) else mask

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "regularizer": _serialize(self.regularizer),
            "lam": self.initial_lam,
            "constraint": _serialize(self.constraint),
            "over": self.over,
            "start": self.start,
            "tolerance": self.tolerance,
            "max_iterations": self.max_iterations,
            "monitor": self.monitor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Prox":
        config = dict(config)
        for key in ("regularizer", "constraint"):
            if isinstance(config.get(key), dict):
                config[key] = keras.saving.deserialize_keras_object(config[key])
        return cls(**config)


def _resolve(argument: str, value: Any) -> Any:
    """The Regularizer of a name; objects, callables and None as they are."""
    if isinstance(value, str):
        return Regularizer(value)
    if value is None or callable(value):
        return value
    raise ValueError(
        f"`{argument}` must be a name, a Regularizer, a callable or None. "
        f"Received: {argument}={value!r}"
    )


def _serialize(value: Any) -> Any:
    return keras.saving.serialize_keras_object(value) if callable(value) else value
