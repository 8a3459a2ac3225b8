"""What the cells with a proximal state in closed form share: arguments, dropout, one step."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    HasLam,
    at_least_float32,
    check_bool,
    check_choice,
    check_integer,
    check_number,
)
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.recurrent.cotangent import prox_step
from proxnet_tf.ops.recurrent.equations import (
    GATES,
    Coupling,
    Equations,
    masked_product,
    value_slope_curvature,
)
from proxnet_tf.ops.recurrent.solve import Solver
from proxnet_tf.ops.recurrent.step import GateKernels, solve_gates


def check_solver(solver: str, tolerance: float | None, max_iterations: int | None) -> Solver:
    """The `Solver` of the arguments of a layer, checked."""
    check_choice("solver", solver, ("cg", "cholesky"))
    if tolerance is not None:
        tolerance = check_number("tolerance", tolerance, above=0.0)
    if max_iterations is not None:
        max_iterations = check_integer("max_iterations", max_iterations)
    return Solver(solver, tolerance, max_iterations)


def check_jit_compile(jit_compile: Any) -> bool | str:
    """A `jit_compile` (True, False or "auto"), or a `ValueError`."""
    return jit_compile if jit_compile == "auto" else check_bool("jit_compile", jit_compile)


def _softsign(z: tf.Tensor) -> tf.Tensor:
    """z / (1 + |z|); TensorFlow's own has no second derivative."""
    return z / (1 + tf.abs(z))


def _elementwise(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The activation for `ops`, one whose derivatives TensorFlow knows.

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
    """Whether, of two entries of a vector, none depends on the other one."""
    z = tf.constant([[0.3, -0.7]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        y, _, _ = value_slope_curvature(function, z)
        if y.shape != z.shape:
            return False
        parts = tf.split(y, 2, axis=-1)
    slopes = [tape.gradient(part, z, unconnected_gradients="zero")[0] for part in parts]
    return bool((slopes[0][1] == 0) & (slopes[1][0] == 0))


def step_given(inputs: Any, states: Any, lam: Any, weights: Any) -> dict[str, Any]:
    """What the steps of a recurrent layer were made of, by the names that a warning uses."""
    return {"the input": inputs, "the state": states, "lam": lam, "a weight": weights}


def with_lam(layer: keras.layers.Layer, weights: Sequence[Any]) -> list[Any]:
    """`weights`, completed by the layer's `lam` if they come from a layer without it."""
    weights = list(weights)
    if len(weights) == len(layer.weights) - 1:
        weights.append(layer.lam)
    return weights


class GatedCell(HasLam, keras.layers.Layer):
    """The proximal part of a cell; the other base of a class of such cells is that of Keras.

    Attributes of a class:
        plain_class: the cell of Keras.
    """

    plain_class: ClassVar[type[keras.layers.Layer]]

    def __init__(
        self,
        units: int,
        *,
        lam: float = 1.0,
        delta: float = 1.0,
        output_from_prox: bool = False,
        solver: str = "cg",
        tolerance: float | None = None,
        max_iterations: int | None = None,
        jit_compile: bool | str = "auto",
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        units = check_integer("units", units)
        delta = check_number("delta", delta, at_least=0.0)
        output_from_prox = check_bool("output_from_prox", output_from_prox)
        self._solver = check_solver(solver, tolerance, max_iterations)
        self.jit_compile = check_jit_compile(jit_compile)
        self.monitor = check_monitor(monitor)
        super().__init__(units, **kwargs)
        self.delta = delta
        self.output_from_prox = output_from_prox
        self.add_lam(lam)
        self.solves = Monitor(
            self, monitor, advice="Raise `max_iterations`, `tolerance` or `lam`, or lower `delta`."
        )
        self.equations = self._equations_class()(
            _elementwise("activation", self.activation),
            _elementwise("recurrent_activation", self.recurrent_activation),
            output_from_prox,
            self._solver,
        )

    @property
    def status(self) -> dict[str, float]:
        """How the problems were solved: the metrics of `monitor`, else of the last eager call."""
        return self.solves.status

    def _equations_class(self) -> type[Equations]:
        """The equations of the cell."""
        raise NotImplementedError

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the weights, from this class or from the cell of Keras (lam is kept)."""
        super().set_weights(with_lam(self, weights))

    def call(self, inputs: tf.Tensor, states: Any, training: bool = False) -> tuple[tf.Tensor, Any]:
        z, carry, kernel, sqrt_rho, scale, coupling = self._pre_activations(
            inputs, states, training
        )
        jit_compile = self.jit_compile
        if jit_compile == "auto":
            jit_compile = training and not tf.executing_eagerly()
        observer = self.solves.backward(training)
        h, c, report = prox_step(
            z,
            carry,
            kernel,
            sqrt_rho,
            self.equations,
            scale,
            coupling,
            observer,
            bool(jit_compile),
        )
        weights = [w.value for w in self.trainable_variables]
        self.solves.forward(report, None, lambda: step_given(inputs, states, sqrt_rho, weights))
        h, c = tf.cast(h, self.compute_dtype), tf.cast(c, self.compute_dtype)
        if self.equations.feeds_output:
            return h, [h, c]
        return h, ([c] if tf.nest.is_nested(states) else c)

    def diagnose(self, inputs: tf.Tensor, states: Any, training: bool = False) -> Report:
        """How well one step is solved, by example.

        Args:
            inputs: `(batch, input_dim)`.
            states: The states, each `(batch, units)`, as in a call.
            training: Whether dropout is on.

        Returns:
            A `Report`; its `residual` bounds the error of c_t relative to the norm of s_t.
        """
        inputs = tf.convert_to_tensor(inputs, self.compute_dtype)
        states = [tf.convert_to_tensor(s, self.compute_dtype) for s in tf.nest.flatten(states)]
        z, carry, kernel, sqrt_rho, scale, coupling = self._pre_activations(
            inputs, states, training
        )
        s, slopes, _ = self.equations.new_state(z, carry, coupling)
        kernels = GateKernels.of(kernel, self.equations.blocks, sqrt_rho, scale, coupling)
        return solve_gates(s, slopes, kernels, self._solver).report

    def input_bias(self, dtype: str) -> tf.Tensor:
        """The bias of the four pre-activations, (4 units,)."""
        raise NotImplementedError

    def tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """kernel, recurrent kernel, bias and sqrt(delta^2/lam), in at least float32."""
        dtype = at_least_float32(self.compute_dtype)
        kernel = tf.cast(self.kernel, dtype)
        recurrent_kernel = tf.cast(self.recurrent_kernel, dtype)
        sqrt_rho = tf.stop_gradient(self.delta / tf.sqrt(self.lam_in(dtype)))
        return kernel, recurrent_kernel, self.input_bias(dtype), sqrt_rho

    def input_scale(self, inputs: tf.Tensor, training: bool) -> list[tf.Tensor] | None:
        """The dropout mask of the inputs: `None`, or a list of one mask or of one a gate."""
        if not (training and 0.0 < self.dropout < 1.0):
            return None
        masks = self.get_dropout_mask(inputs)
        masks = masks if isinstance(masks, list) else [masks]
        return [tf.cast(mask, at_least_float32(self.compute_dtype)) for mask in masks]

    def _pre_activations(self, inputs: tf.Tensor, states: Any, training: bool) -> tuple[Any, ...]:
        """z of `Equations`, c, W, sqrt(rho), the dropout masks of the gates, the coupling."""
        kernel, recurrent_kernel, bias, sqrt_rho = self.tensors()
        x, fed, c = self._real(inputs, states, kernel.dtype)
        masks = self.input_scale(inputs, training)
        fed_masks = self.recurrent_scale(states, training)
        recurrent_kernel, u_n = self.equations.split_recurrent(recurrent_kernel)
        coupling = None
        if u_n is not None:
            coupling = Coupling(u_n, None if fed_masks is None else fed_masks[-1])
            fed_masks = None if fed_masks is None else fed_masks[:-1]
        z = self.equations.from_input(masked_product(x, kernel, masks))
        z += self.equations.from_recurrent(masked_product(fed, recurrent_kernel, fed_masks)) + bias
        scale = None
        if masks is not None:
            scale = masks[0] if len(masks) == 1 else tf.stack(masks[:GATES], axis=1)
        return z, c, kernel, sqrt_rho, scale, coupling

    def _real(
        self, inputs: tf.Tensor, states: Any, dtype: tf.DType
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The input, what U multiplies, and the state, in `dtype`."""
        check_real("The input", inputs)
        x, *states = (tf.cast(t, dtype) for t in (inputs, *tf.nest.flatten(states)))
        if all(state.shape[0] == 1 != x.shape[0] for state in states):  # one for all examples
            states = [tf.repeat(state, tf.shape(x)[0], axis=0) for state in states]
        return x, states[0], states[-1]

    def recurrent_scale(self, states: Any, training: bool) -> list[tf.Tensor] | None:
        """The dropout masks of what U multiplies: `None`, or a list of one a gate."""
        if not (training and 0.0 < self.recurrent_dropout < 1.0):
            return None
        masks = self.get_recurrent_dropout_mask(tf.nest.flatten(states)[0])
        return [tf.cast(mask, at_least_float32(self.compute_dtype)) for mask in masks]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "implementation": self.implementation,
            "lam": self.initial_lam,
            "delta": self.delta,
            "output_from_prox": self.output_from_prox,
            "solver": self._solver.method,
            "tolerance": self._solver.tolerance,
            "max_iterations": self._solver.max_iterations,
            "jit_compile": self.jit_compile,
            "monitor": self.monitor,
        }
