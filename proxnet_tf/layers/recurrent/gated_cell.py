"""What the cells with a proximal state in closed form share: arguments, dropout, one step."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam, at_least_float32, check_bool, check_integer, check_number
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.recurrent.equations import BLOCKS, Equations, spread
from proxnet_tf.ops.recurrent.implicit import Solver
from proxnet_tf.ops.recurrent.step import masked_product, prox_step

ADVICE = "Raise its `max_iterations`, its `tolerance` or `lam`, or lower its `delta`."


def check_solver(tolerance: float | None, max_iterations: int | None) -> Solver:
    """Checks the solver arguments of a layer; returns them as a `Solver`."""
    if tolerance is not None:
        tolerance = check_number("tolerance", tolerance, above=0.0)
    if max_iterations is not None:
        max_iterations = check_integer("max_iterations", max_iterations)
    return Solver(tolerance, max_iterations)


def _softsign(z: tf.Tensor) -> tf.Tensor:
    """z / (1 + |z|); TensorFlow's own has no second derivative."""
    return z / (1 + tf.abs(z))


def _elementwise(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The activation, or TensorFlow's function for it, which has all derivatives.

    Raises:
        ValueError: it does not act elementwise, or cannot be differentiated twice.
    """
    known = {
        keras.activations.tanh: tf.tanh,
        keras.activations.sigmoid: tf.sigmoid,
        keras.activations.softsign: _softsign,
        tf.nn.softsign: _softsign,
    }
    function = known.get(function, function)
    if function in (tf.tanh, tf.sigmoid) or isinstance(function, keras.layers.Layer):
        return function
    received = f"Received: {name}={getattr(function, '__name__', function)!r}"
    try:
        # In a graph there is no number to look at.
        elementwise = not tf.executing_eagerly() or _acts_elementwise(function)
    except (LookupError, TypeError) as error:
        raise ValueError(
            f"`{name}` must be a function of one tensor that TensorFlow differentiates twice: "
            f"the gradient of the state goes through its Jacobian. {received}"
        ) from error
    if not elementwise:
        raise ValueError(
            f"`{name}` must act elementwise: the Jacobian of the state is taken gate by gate. "
            f"{received}. Wrap the cell in `ProxRNNCell` instead."
        )
    return function


def _acts_elementwise(function: Callable[..., Any]) -> bool:
    """Whether a change of one entry of a row changes no other one.

    Raises:
        LookupError: the function has no first or second derivative.
    """
    rows = tf.tile([[-1.5, -0.5, 0.5, 1.5]], [4, 1])
    with tf.GradientTape() as outer:
        outer.watch(rows)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            y = function(rows)
        slopes = tape.gradient(y, rows, unconnected_gradients="zero")
    outer.gradient(slopes, rows)
    if y.shape != rows.shape:
        return False
    changed = function(rows + tf.eye(4)) != y
    return not tf.reduce_any(tf.linalg.set_diag(changed, [False] * 4))


def step_given(inputs: Any, states: Any, lam: Any, weights: Any) -> dict[str, Any]:
    """The inputs of a recurrent layer's steps, by the names that a warning uses."""
    return {"the input": inputs, "the state": states, "lam": lam, "a weight": weights}


def with_lam(layer: keras.layers.Layer, weights: Sequence[Any]) -> list[Any]:
    """`weights`, completed by the layer's `lam` if they come from a layer without it."""
    weights = list(weights)
    if len(weights) == len(layer.weights) - 1:
        weights.append(layer.lam)
    return weights


class GatedCell(HasLam, keras.layers.Layer):
    """The proximal part of a cell. Each such class also inherits from a Keras cell.

    Attributes of a class:
        plain_class: the Keras cell.
        equations_class: the equations of the cell.
    """

    plain_class: ClassVar[type[keras.layers.Layer]]
    equations_class: ClassVar[type[Equations]]

    def __init__(
        self,
        units: int,
        *,
        lam: float = 1.0,
        delta: float = 1.0,
        output_from_prox: bool = False,
        tolerance: float | None = None,
        max_iterations: int | None = None,
        jit_compile: bool | str = "auto",
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        units = check_integer("units", units)
        self.delta = check_number("delta", delta, at_least=0.0)
        self.output_from_prox = check_bool("output_from_prox", output_from_prox)
        solver = check_solver(tolerance, max_iterations)
        if jit_compile != "auto":
            check_bool("jit_compile", jit_compile)
        self.jit_compile = jit_compile
        self.monitor = check_monitor(monitor)
        super().__init__(units, **kwargs)
        if not getattr(self, "reset_after", True):
            raise ValueError(
                "The reset gate of the GRU must act after the recurrent kernel. For the other kind "
                "use `keras.layers.RNN(ProxRNNCell(keras.layers.GRUCell(units, "
                "reset_after=False)))`. Received: reset_after=False"
            )
        self.add_lam(lam)
        self.solves = Monitor(self, monitor, advice=ADVICE)
        self.equations = self.equations_class(
            _elementwise("activation", self.activation),
            _elementwise("recurrent_activation", self.recurrent_activation),
            output_from_prox,
            solver,
        )

    @property
    def status(self) -> dict[str, float]:
        """How the problems were solved: the metrics of `monitor`, else of the last eager call."""
        return self.solves.status

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets weights taken from this class, or from the Keras cell (then lam is kept)."""
        super().set_weights(with_lam(self, weights))

    def call(self, inputs: tf.Tensor, states: Any, training: bool = False) -> tuple[tf.Tensor, Any]:
        check_real("The input", inputs)
        kernel, recurrent_kernel, bias, sqrt_rho = self.tensors()
        x, *flat = (tf.cast(t, kernel.dtype) for t in (inputs, *tf.nest.flatten(states)))
        if all(state.shape[0] == 1 != x.shape[0] for state in flat):  # one for all examples
            flat = [tf.repeat(state, tf.shape(x)[0], axis=0) for state in flat]
        masks = self.input_masks(inputs, training)
        xw = masked_product(x, kernel, masks)
        draw, first = self.get_recurrent_dropout_mask, tf.nest.flatten(states)[0]
        fed_masks = self._masks(self.recurrent_dropout, draw, first, training)
        yu = masked_product(flat[0], recurrent_kernel, fed_masks)
        equations, jit_compile = self.equations, self.jit_compile
        z = spread(xw, equations.input_blocks) + spread(yu, equations.recurrent_blocks) + bias
        if jit_compile == "auto":
            jit_compile = training and not tf.executing_eagerly()
        observer = self.solves.backward(training)
        h, c, report = prox_step(
            z, flat[-1], kernel, sqrt_rho, equations, masks, observer, bool(jit_compile)
        )
        weights = [w.value for w in self.trainable_variables]
        self.solves.forward(report, None, lambda: step_given(inputs, states, sqrt_rho, weights))
        h, c = tf.cast(h, self.compute_dtype), tf.cast(c, self.compute_dtype)
        if equations.feeds_output:
            return h, [h, c]
        return h, ([c] if tf.nest.is_nested(states) else c)

    def tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Kernel, recurrent kernel, bias of z and sqrt(delta^2/lam), in at least float32."""
        dtype, equations = at_least_float32(self.compute_dtype), self.equations
        kernel = tf.cast(self.kernel, dtype)
        bias = tf.zeros([BLOCKS * self.units], dtype)
        if self.use_bias:  # a GRU has two, of the input and of the state
            rows = tf.unstack(tf.reshape(tf.cast(self.bias, dtype), [-1, kernel.shape[-1]]))
            blocks = equations.input_blocks, equations.recurrent_blocks
            bias = tf.add_n([spread(row, b) for row, b in zip(rows, blocks, strict=False)])
        sqrt_rho = tf.stop_gradient(self.delta / tf.sqrt(self.lam_in(dtype)))
        return kernel, tf.cast(self.recurrent_kernel, dtype), bias, sqrt_rho

    def input_masks(self, inputs: tf.Tensor, training: bool) -> list[tf.Tensor] | None:
        """The dropout masks of the inputs: `None`, or a list of one, or one for each block of W."""
        return self._masks(self.dropout, self.get_dropout_mask, inputs, training)

    def _masks(
        self, rate: float, draw: Callable[..., Any], like: tf.Tensor, training: bool
    ) -> list[tf.Tensor] | None:
        if not (training and 0.0 < rate < 1.0):
            return None
        dtype = at_least_float32(self.compute_dtype)
        return [tf.cast(mask, dtype) for mask in tf.nest.flatten(draw(like))]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "implementation": self.implementation,
            "lam": self.initial_lam,
            "delta": self.delta,
            "output_from_prox": self.output_from_prox,
            "tolerance": self.equations.solver.tolerance,
            "max_iterations": self.equations.solver.max_iterations,
            "jit_compile": self.jit_compile,
            "monitor": self.monitor,
        }
