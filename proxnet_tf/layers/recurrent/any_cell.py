"""ProxRNNCell: the proximal state for any recurrent cell."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam, at_least_float32, check_bool, check_integer, check_number
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.layers.recurrent.gated_cell import ADVICE, check_solver, step_given
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.recurrent.black_box import prox_black_box

# Keras does not export the class that gives its cells their dropout masks. For a cell of this
# class `keras.layers.RNN` draws the masks before its loop.
DropoutCell = next(c for c in keras.layers.LSTMCell.__mro__ if "get_dropout_mask" in vars(c))


@contextlib.contextmanager
def _fixed_dropout(cell: keras.layers.Layer, masks: list[Any]) -> Iterator[None]:
    """Gives the cell these masks: when gradients are taken it has dropped those of a sequence."""
    if not isinstance(cell, DropoutCell):
        yield
        return
    names = ("get_dropout_mask", "get_recurrent_dropout_mask")
    for name, mask in zip(names, masks, strict=True):
        object.__setattr__(cell, name, lambda step_input, mask=mask: mask)
    try:
        yield
    finally:
        for name in names:
            object.__delattr__(cell, name)


def _of_the_cell(name: str) -> Callable[..., Any]:
    """A method of `DropoutCell` that calls the wrapped cell's; `None` if the cell has no masks."""

    def method(self: Any, *inputs: tf.Tensor) -> Any:
        return getattr(self.cell, name)(*inputs) if isinstance(self.cell, DropoutCell) else None

    return method


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxRNNCell(HasLam, keras.layers.Layer, DropoutCell):  # type: ignore[misc, valid-type]
    """Makes one state of any recurrent cell proximal, for `keras.layers.RNN`.

    The wrapped cell computes its new states from its input x_t. Let s_t be the new state at
    `state_index`, and G_t = ds_t/dx_t. The wrapper replaces s_t by

        c_t = argmin_c lam ||c - s_t||^2 + delta^2 ||c^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t.

    The cell is a black box: nested gradient tapes give products with G_t, which is never formed.
    Gradients are exact, of every order. A training step costs three to seven times one of the
    wrapped cell. A wrapped `keras.layers.LSTMCell` or `GRUCell` computes the same as `ProxLSTMCell`
    or `ProxGRUCell`, which are several times faster.

    Args:
        cell: A Keras layer with `state_size` and `call(inputs, states)`, such as
            `keras.layers.GRUCell(16)`. It must treat examples independently and be twice
            differentiable in its input.
        lam: Positive float, the weight on staying near s_t; a scalar non-trainable weight.
        delta: Float >= 0, bound on the perturbation of the input. At 0 the wrapper changes nothing.
        state_index: Integer, which state of the cell is made proximal. -1, the default, is the
            last: the cell state of an LSTM, the only state of a GRU or a simple RNN.
        output_from_prox: Boolean. If `True`, c_t is the output of the step. By default the output
            is the cell's own, computed from s_t, and c_t acts from the next step on.
        tolerance: Positive float or `None`, on the error of c_t relative to s_t; `None` is 1e-5,
            or 1e-12 in float64, 1e-3 in float16, 1e-2 in bfloat16.
        max_iterations: Positive integer or `None`, bound on the products with G_t; `None` is
            `2 * min(state size, input_dim) + 10`.
        monitor: `True`, `False` or a string, see `ProxLSTMCell`.
        **kwargs: `name`, `dtype`, `trainable` of a Keras layer.

    Call arguments:
        inputs: `(batch, input_dim)`.
        states: The states of the wrapped cell.
        training: Passed on to a cell that takes it; random numbers drawn in the cell are the same
            in s_t and in G_t.

    Output:
        The cell's output (or c_t) and its new states.

    Raises:
        ValueError: for a cell that is no Keras layer or has nested states, a `state_index` out of
            range, lam <= 0, delta < 0, an input that is not `(batch, input_dim)`.

    Example:

    >>> layer = keras.layers.RNN(ProxRNNCell(keras.layers.GRUCell(4), lam=2.0))
    >>> layer(keras.random.normal((2, 5, 3))).shape
    TensorShape([2, 4])

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4: "simply
        invoke the second-order derivatives of the underlying (gated) units as a black box".
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        *,
        lam: float = 1.0,
        delta: float = 1.0,
        state_index: int = -1,
        output_from_prox: bool = False,
        tolerance: float | None = None,
        max_iterations: int | None = None,
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        self.monitor = check_monitor(monitor)
        super().__init__(**kwargs)
        is_cell = isinstance(cell, keras.layers.Layer) and not isinstance(cell, keras.layers.RNN)
        if not is_cell or not hasattr(cell, "state_size"):
            raise ValueError(
                "`cell` must be a Keras layer with a `state_size`, such as "
                f"`keras.layers.GRUCell(16)`. Received: cell={cell!r}"
            )
        state_size = cell.state_size
        sizes = list(state_size) if isinstance(state_size, (list, tuple)) else [state_size]
        stacked = isinstance(cell, keras.layers.StackedRNNCells)
        if stacked or not all(isinstance(size, int) for size in sizes):
            raise ValueError(
                "The states of `cell` must be vectors, not nested. Wrap the cells one by one and "
                f"stack the wrappers. Received: cell.state_size={cell.state_size}"
            )
        state_index = check_integer("state_index", state_index, at_least=-len(sizes))
        if state_index >= len(sizes):
            raise ValueError(
                f"`state_index` must be an integer from {-len(sizes)} to {len(sizes) - 1}: the "
                f"cell has states of sizes {sizes}. Received: state_index={state_index}"
            )
        output_from_prox = check_bool("output_from_prox", output_from_prox)
        output_size = getattr(cell, "output_size", None) or sizes[0]
        if output_from_prox and output_size != sizes[state_index]:
            raise ValueError(
                "With `output_from_prox=True` the state is the output, so both must have one size. "
                f"Received: output size {output_size}, state size {sizes[state_index]}"
            )
        self.cell = cell
        self._takes_training = "training" in inspect.signature(cell.call).parameters
        self.delta = check_number("delta", delta, at_least=0.0)
        self.state_index = state_index
        self.output_from_prox = output_from_prox
        self._solver = check_solver(tolerance, max_iterations)
        self.state_size = state_size
        self.output_size = output_size
        self.add_lam(lam)
        self.solves = Monitor(self, monitor, advice=ADVICE)

    @property
    def status(self) -> dict[str, float]:
        """How the problems were solved: the metrics of `monitor`, else of the last eager call."""
        return self.solves.status

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 2:
            raise ValueError(
                "The input of the cell must be (batch, input_dim): its Jacobian is taken in a "
                f"vector. Received: input_shape={tuple(input_shape)}"
            )
        if not self.cell.built:
            with keras.name_scope(self.name, caller=self):
                self.cell.build(input_shape)
            self.cell.built = True
        self.built = True

    def call(self, inputs: tf.Tensor, states: Any, training: bool = False) -> tuple[Any, Any]:
        check_real("The input", inputs)
        cell = self.cell
        mode = {"training": training} if self._takes_training else {}
        # A stateful layer passes its variables.
        states = tf.nest.map_structure(tf.convert_to_tensor, states)
        structure, states = states, tf.nest.flatten(states)
        variables = cell.trainable_variables
        weights = [tf.convert_to_tensor(v.value) for v in variables]
        # Read before the call below: the Jacobian's calls then draw the same random numbers.
        fixed = cell.non_trainable_variables
        fixed_values = [tf.convert_to_tensor(v.value) for v in fixed]
        masks = [self.get_dropout_mask(inputs), self.get_recurrent_dropout_mask(states[0])]
        output, new_states = cell(inputs, structure, **mode)
        new_structure, new_states = new_states, tf.nest.flatten(new_states)
        s = new_states[self.state_index]

        dtype = at_least_float32(self.compute_dtype)
        floating = [state.dtype.is_floating for state in states]
        count = sum(floating)

        def new_state(x: tf.Tensor, parameters: Any, constants: Any) -> tf.Tensor:
            """s as a function of tensors only: the input, states and weights, and constants."""
            fixed_values, masks, others = constants
            kinds = iter(parameters[:count]), iter(others)
            arguments = [next(kinds[0] if is_floating else kinds[1]) for is_floating in floating]
            arguments = tf.nest.pack_sequence_as(structure, arguments)
            values = [*zip(variables, parameters[count:], strict=True)]
            values += zip(fixed, fixed_values, strict=True)
            with _fixed_dropout(cell, masks), keras.StatelessScope(values):
                # Through `__call__`, which computes in the dtype of the cell.
                _, found = cell(tf.cast(x, cell.compute_dtype), arguments, **mode)
            return tf.cast(tf.nest.flatten(found)[self.state_index], dtype)

        by_kind = [
            [s for s, f in zip(states, floating, strict=True) if f is k] for k in (True, False)
        ]
        sqrt_rho = tf.stop_gradient(self.delta / tf.sqrt(self.lam_in(dtype)))
        c, report = prox_black_box(
            new_state,
            tf.cast(inputs, dtype),
            [*by_kind[0], *weights],
            [fixed_values, masks, by_kind[1]],
            tf.cast(s, dtype),
            sqrt_rho,
            self._solver,
            cell.compute_dtype,
            self.solves.backward(training),
        )
        self.solves.forward(report, None, lambda: step_given(inputs, states, sqrt_rho, weights))
        c = tf.cast(c, s.dtype)
        new_states[self.state_index] = c
        new_states = tf.nest.pack_sequence_as(new_structure, new_states)
        return (c if self.output_from_prox else output), new_states

    def get_initial_state(self, batch_size: int | None = None) -> Any:
        """The initial states of the wrapped cell, zeros if it names none."""
        if hasattr(self.cell, "get_initial_state"):
            return self.cell.get_initial_state(batch_size=batch_size)
        return tf.nest.map_structure(
            lambda size: tf.zeros([batch_size, size], self.compute_dtype), self.state_size
        )

    # The masks are those of the wrapped cell, the same for a whole sequence.
    get_dropout_mask = _of_the_cell("get_dropout_mask")
    get_recurrent_dropout_mask = _of_the_cell("get_recurrent_dropout_mask")
    reset_dropout_mask = _of_the_cell("reset_dropout_mask")
    reset_recurrent_dropout_mask = _of_the_cell("reset_recurrent_dropout_mask")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "lam": self.initial_lam,
            "delta": self.delta,
            "state_index": self.state_index,
            "output_from_prox": self.output_from_prox,
            "tolerance": self._solver.tolerance,
            "max_iterations": self._solver.max_iterations,
            "monitor": self.monitor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ProxRNNCell":
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        return cls(cell, **config)
