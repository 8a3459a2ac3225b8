"""ProxLSTMCell: an LSTM cell whose state is pulled towards invariance to its input."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    HasLam,
    add_lam,
    at_least_float32,
    check_bool,
    check_choice,
    check_integer,
    check_number,
    lam_of,
)
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.recurrent.cotangent import prox_lstm_step
from proxnet_tf.ops.recurrent.solve import Solver
from proxnet_tf.ops.recurrent.step import (
    GATES,
    GateKernels,
    LSTMOptions,
    lstm_gates,
    solve_gates,
    value_slope_curvature,
)


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


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxLSTMCell(HasLam, keras.layers.LSTMCell):
    """LSTM cell with a proximal cell state, for `keras.layers.RNN`.

    With s_t = f_t o c_{t-1} + i_t o g_t, the new cell state of an LSTM, and G_t = ds_t/dx_t,

        c_t = argmin_c lam ||c - s_t||^2 + delta^2 ||c^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t,         h_t = o_t o activation(s_t).

    c_t stays near s_t and moves towards the directions that a change of x_t, of norm at most
    delta, does not reach. Gradients are exact, of every order, and go through G_t too. lam and
    delta are constants of the map. G_t is never formed, except by `solver="cholesky"`.

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, the weight on staying near s_t; a scalar non-trainable weight, saved
            with the layer and driven by `LambdaSchedule`. Only delta^2/lam matters.
        delta: Float >= 0, bound on the perturbation of the input. At 0, or as lam grows, the cell
            is `keras.layers.LSTMCell`.
        output_from_prox: Boolean. If `True`, h_t = o_t o activation(c_t). The paper's recursions,
            and the default, take h_t from s_t, so that c_t acts from the next step on.
        solver: `"cg"`, conjugate gradients on products with G_t, or `"cholesky"` of
            I + delta^2/lam G_t G_t^T, which costs batch x units x input_dim memory and serves as
            a check.
        tolerance: Positive float or `None`. An example's iteration stops when the error of c_t is
            known to be below `tolerance * ||s_t||`. `None` is 1e-5, or 1e-12 in float64.
        max_iterations: Positive integer or `None`, bound on the products with G_t; `None` is
            `2 * min(units, input_dim) + 10`. Monitor what a small bound leaves unsolved.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles a step and its gradient,
            once for every size of the batch: the first training step takes about a second
            longer, and the others less than half the time. `"auto"`: in training, in graphs.
        monitor: `True`, `False` or a string that the names of the metrics start with. Whether
            `fit` logs how well the problems of the steps and of their gradients were solved:
            `residual` (the worst bound on the error of c_t relative to s_t), `unsolved` (the share
            of examples and steps above the tolerance), `iterations`, `backward_residual`,
            `backward_unsolved`. (Keras runs a first step twice, to see its shape; metrics see
            both.) Without it, eager calls warn once of an unsolved problem.
        **kwargs: Every argument of `keras.layers.LSTMCell`. Activations must be elementwise and
            are differentiated twice (once more for each further order of derivative): with a
            piecewise linear one the curvature is 0 and the layer is not smooth at its kinks.

    Call arguments:
        inputs: `(batch, input_dim)`.
        states: `[h, c]`, each `(batch, units)`.
        training: Whether dropout is on. With dropout, G_t is the derivative in the input before
            its dropout mask.

    Output:
        `h_t, [h_t, c_t]`. 16-bit policies compute in float32 and cast back.

    Raises:
        ValueError: for lam <= 0, delta < 0, an unknown solver, an activation that does not act
            elementwise or cannot be differentiated twice.

    Example:

    >>> cell = ProxLSTMCell(4, lam=2.0)
    >>> keras.layers.RNN(cell)(keras.random.normal((2, 5, 3))).shape
    TensorShape([2, 4])

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4 and the
        appendix "Backpropagation Through Time for Adversarial LSTM". The gradient in the weights
        also contains the dependence of G_t on them.
    """

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
        lam = check_number("lam", lam, above=0.0)
        delta = check_number("delta", delta, at_least=0.0)
        output_from_prox = check_bool("output_from_prox", output_from_prox)
        self._solver = check_solver(solver, tolerance, max_iterations)
        self.jit_compile = check_jit_compile(jit_compile)
        self.monitor = check_monitor(monitor)
        super().__init__(units, **kwargs)
        self.initial_lam = lam
        self.delta = delta
        self.output_from_prox = output_from_prox
        self.lam = add_lam(self, lam)
        self.solves = Monitor(self, monitor)
        self.options = LSTMOptions(
            _elementwise("activation", self.activation),
            _elementwise("recurrent_activation", self.recurrent_activation),
            output_from_prox,
            self._solver,
        )

    @property
    def status(self) -> dict[str, float]:
        """How the problems were solved: the metrics of `monitor`, else of the last eager call."""
        return self.solves.status

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the weights, from this class or from `keras.layers.LSTMCell` (lam is kept)."""
        super().set_weights(with_lam(self, weights))

    def call(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], training: bool = False
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        z, carry, kernel, sqrt_rho, scale = self._pre_activations(inputs, states, training)
        jit_compile = self.jit_compile
        if jit_compile == "auto":
            jit_compile = training and not tf.executing_eagerly()
        observer = self.solves.backward(training)
        h, c, report = prox_lstm_step(
            z, carry, kernel, sqrt_rho, scale, self.options, observer, bool(jit_compile)
        )
        self.solves.forward(
            report,
            None,
            lambda: step_given(
                inputs, states, sqrt_rho, [w.value for w in self.trainable_variables]
            ),
        )
        h, c = tf.cast(h, self.compute_dtype), tf.cast(c, self.compute_dtype)
        return h, [h, c]

    def diagnose(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], training: bool = False
    ) -> Report:
        """How well one step is solved, by example.

        Args:
            inputs: `(batch, input_dim)`.
            states: `[h, c]`, each `(batch, units)`.
            training: Whether dropout is on.

        Returns:
            A `Report`; its `residual` bounds the error of c_t relative to the norm of s_t.
        """
        inputs = tf.convert_to_tensor(inputs, self.compute_dtype)
        states = [tf.convert_to_tensor(s, self.compute_dtype) for s in states]
        z, carry, kernel, sqrt_rho, scale = self._pre_activations(inputs, states, training)
        s, _, slopes = lstm_gates(z, carry, self.options)
        return solve_gates(s, slopes, GateKernels.of(kernel, sqrt_rho, scale), self._solver).report

    def tensors(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """kernel, recurrent kernel, bias and sqrt(delta^2/lam), in at least float32."""
        dtype = at_least_float32(self.compute_dtype)
        kernel = tf.cast(self.kernel, dtype)
        recurrent_kernel = tf.cast(self.recurrent_kernel, dtype)
        if self.use_bias:
            bias = tf.cast(self.bias, dtype)
        else:
            bias = tf.zeros([4 * self.units], dtype)
        sqrt_rho = tf.stop_gradient(self.delta / tf.sqrt(lam_of(self, dtype)))
        return kernel, recurrent_kernel, bias, sqrt_rho

    def input_scale(self, inputs: tf.Tensor, training: bool) -> list[tf.Tensor] | None:
        """The dropout mask of the inputs: `None`, or a list of one mask or of one a gate."""
        if not (training and 0.0 < self.dropout < 1.0):
            return None
        masks = self.get_dropout_mask(inputs)
        masks = masks if isinstance(masks, list) else [masks]
        return [tf.cast(mask, at_least_float32(self.compute_dtype)) for mask in masks]

    def _pre_activations(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """z = x W + h U + b, c, W, sqrt(rho) and the dropout masks of the gates."""
        kernel, recurrent_kernel, bias, sqrt_rho = self.tensors()
        check_real("The input", inputs)
        x, h, c = (tf.cast(t, kernel.dtype) for t in (inputs, states[0], states[1]))
        if h.shape[0] == c.shape[0] == 1 != x.shape[0]:  # one state for all examples
            h, c = (tf.repeat(t, tf.shape(x)[0], axis=0) for t in (h, c))
        masks = self.input_scale(inputs, training)
        hidden_masks = None
        if training and 0.0 < self.recurrent_dropout < 1.0:
            hidden_masks = self.get_recurrent_dropout_mask(states[0])
        z = self._masked_product(x, kernel, masks)
        z += self._masked_product(h, recurrent_kernel, hidden_masks) + bias
        scale = None
        if masks is not None:
            scale = masks[0] if len(masks) == 1 else tf.stack(masks[:GATES], axis=1)
        return z, c, kernel, sqrt_rho, scale

    def _masked_product(self, x: tf.Tensor, kernel: tf.Tensor, masks: Any) -> tf.Tensor:
        """x W with no mask, with one, or with one mask a gate."""
        if masks is None:
            return x @ kernel
        masks = masks if isinstance(masks, list) else [masks]
        if len(masks) == 1:
            return (x * tf.cast(masks[0], x.dtype)) @ kernel
        parts = zip(masks, tf.split(kernel, 4, axis=-1), strict=True)
        return tf.concat([(x * tf.cast(mask, x.dtype)) @ k for mask, k in parts], axis=-1)

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
