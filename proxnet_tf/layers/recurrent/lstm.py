"""ProxLSTM: an LSTM whose cell state is pulled towards invariance to its input."""

import inspect

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
from proxnet_tf.ops.linear.least_squares import LeastSquaresResult
from proxnet_tf.ops.recurrent.scan import prox_lstm
from proxnet_tf.ops.recurrent.step import (
    GateKernels,
    LSTMOptions,
    Solver,
    candidate_last,
    lstm_gates,
    prox_lstm_step,
    solve_gates,
)

_LSTM_CELL_ARGUMENTS = {
    *inspect.signature(keras.layers.LSTMCell.__init__).parameters,
    "implementation",
} - {"self", "units", "kwargs"}


def check_solver(solver: str, tolerance: float | None, max_iterations: int | None) -> Solver:
    """The `Solver` of the arguments of a layer, checked."""
    check_choice("solver", solver, ("cg", "cholesky"))
    if tolerance is not None:
        tolerance = check_number("tolerance", tolerance, above=0.0)
    if max_iterations is not None:
        max_iterations = check_integer("max_iterations", max_iterations)
    return Solver(solver, tolerance, max_iterations)


def _elementwise(name, function):
    """The activation for `ops`: TensorFlow's own where its derivatives are known in closed form."""
    for excluded in ("softmax", "log_softmax", "sparsemax", "glu"):
        if function is getattr(keras.activations, excluded, None):
            raise ValueError(
                f"`{name}` must act elementwise: the Jacobian of the state is taken gate by gate. "
                f"Received: {name}={excluded!r}. Wrap the cell in `ProxRNNCell` instead."
            )
    known = {keras.activations.tanh: tf.tanh, keras.activations.sigmoid: tf.sigmoid}
    return known.get(function, function)


def _with_lam(layer, weights):
    """`weights`, completed by the layer's `lam` if they come from a plain LSTM."""
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
        tolerance: Positive float or `None`. An example's iteration stops when the estimated error
            of c_t is below `tolerance * ||s_t||`. `None` is 1e-5, or 1e-12 in float64.
        max_iterations: Positive integer or `None`, bound on the products with G_t; `None` is
            `2 * min(units, input_dim) + 10`.
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
        ValueError: for lam <= 0, delta < 0, an unknown solver, a softmax as an activation.

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
        units,
        *,
        lam=1.0,
        delta=1.0,
        output_from_prox=False,
        solver="cg",
        tolerance=None,
        max_iterations=None,
        **kwargs,
    ):
        units = check_integer("units", units)
        lam = check_number("lam", lam, above=0.0)
        delta = check_number("delta", delta, at_least=0.0)
        output_from_prox = check_bool("output_from_prox", output_from_prox)
        self._solver = check_solver(solver, tolerance, max_iterations)
        super().__init__(units, **kwargs)
        self.initial_lam = lam
        self.delta = delta
        self.output_from_prox = output_from_prox
        self.lam = add_lam(self, lam)
        self._options = LSTMOptions(
            _elementwise("activation", self.activation),
            _elementwise("recurrent_activation", self.recurrent_activation),
            output_from_prox,
            self._solver,
        )

    def set_weights(self, weights):
        """Sets the weights, from this class or from `keras.layers.LSTMCell` (lam is kept)."""
        super().set_weights(_with_lam(self, weights))

    def call(self, inputs, states, training=False):
        z, carry, kernel, scale = self._pre_activations(inputs, states, training)
        h, c = prox_lstm_step(z, carry, kernel, scale, self._options)
        h, c = tf.cast(h, self.compute_dtype), tf.cast(c, self.compute_dtype)
        return h, [h, c]

    def diagnose(self, inputs, states, training=False) -> LeastSquaresResult:
        """How well one step is solved: iterations, estimated error and convergence, by example.

        Args:
            inputs: `(batch, input_dim)`.
            states: `[h, c]`, each `(batch, units)`.
            training: Whether dropout is on.
        """
        inputs = tf.convert_to_tensor(inputs, self.compute_dtype)
        states = [tf.convert_to_tensor(s, self.compute_dtype) for s in states]
        z, carry, kernel, scale = self._pre_activations(inputs, states, training)
        s, _, slopes = lstm_gates(z, carry, self._options)
        return solve_gates(s, slopes, GateKernels(kernel, scale=scale), self._solver)

    def tensors(self):
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

    def input_scale(self, inputs, training):
        """The dropout mask of the inputs: `None`, or a list of one mask or of one a gate."""
        if not (training and 0.0 < self.dropout < 1.0):
            return None
        masks = self.get_dropout_mask(inputs)
        masks = masks if isinstance(masks, list) else [masks]
        return [tf.cast(mask, at_least_float32(self.compute_dtype)) for mask in masks]

    def _pre_activations(self, inputs, states, training):
        """z = x W + h U + b with the candidate last, c, and the kernels and masks of the gates."""
        kernel, recurrent_kernel, bias, sqrt_rho = self.tensors()
        x, h, c = (tf.cast(t, kernel.dtype) for t in (inputs, states[0], states[1]))
        masks = self.input_scale(inputs, training)
        hidden_masks = None
        if training and 0.0 < self.recurrent_dropout < 1.0:
            hidden_masks = self.get_recurrent_dropout_mask(states[0])
        z = self._masked_product(x, kernel, masks)
        z += self._masked_product(h, recurrent_kernel, hidden_masks) + bias
        scale = None
        if masks is not None:
            scale = masks[0] if len(masks) == 1 else tf.stack(masks[:3], axis=1)
        return candidate_last(z), c, sqrt_rho * kernel[:, : 3 * self.units], scale

    def _masked_product(self, x, kernel, masks):
        """x W with no mask, with one, or with one mask a gate."""
        if masks is None:
            return x @ kernel
        if len(masks) == 1:
            return (x * tf.cast(masks[0], x.dtype)) @ kernel
        parts = zip(masks, tf.split(kernel, 4, axis=-1), strict=True)
        return tf.concat([(x * tf.cast(mask, x.dtype)) @ k for mask, k in parts], axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "implementation": self.implementation,
            "lam": self.initial_lam,
            "delta": self.delta,
            "output_from_prox": self.output_from_prox,
            "solver": self._solver.method,
            "tolerance": self._solver.tolerance,
            "max_iterations": self._solver.max_iterations,
        }


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxLSTM(HasLam, keras.layers.RNN):
    """LSTM layer with a proximal cell state, to be used as `keras.layers.LSTM` is.

    At every time step, with s_t = f_t o c_{t-1} + i_t o g_t and G_t = ds_t/dx_t,

        c_t = argmin_c lam ||c - s_t||^2 + delta^2 ||c^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t,         h_t = o_t o activation(s_t).

    See `ProxLSTMCell`. The layer computes the same as `keras.layers.RNN(ProxLSTMCell(...))`, with
    the gradient through time written out, which makes a training step a small multiple of one of
    a plain LSTM. (With `unroll=True`, `recurrent_dropout` or `implementation=1` it runs the cell.)

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, see `ProxLSTMCell`.
        delta: Float >= 0, see `ProxLSTMCell`.
        output_from_prox: Boolean, see `ProxLSTMCell`.
        solver: `"cg"` or `"cholesky"`, see `ProxLSTMCell`.
        tolerance: Positive float or `None`, see `ProxLSTMCell`.
        max_iterations: Positive integer or `None`, see `ProxLSTMCell`.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles the loop over time (about
            twice as fast, a few seconds for every new shape of the input), also where the model
            around it is not compiled so. `"auto"`: in graphs, if the number of time steps is
            fixed. Use `False` to convert the layer for a runtime without XLA; LiteRT takes it
            with `unroll=True` (the loop over time needs the select operations of TensorFlow).
        return_sequences: Boolean, return h_t of every step rather than of the last one.
        return_state: Boolean, return h and c after the last step too.
        go_backwards: Boolean, process the sequence backwards, return it reversed.
        stateful: Boolean, start a batch from the last states of the batch before.
        unroll: Boolean, unroll the loop over time.
        zero_output_for_mask: Boolean, output zeros at masked steps rather than the last output.
        activity_regularizer: Regularizer of the output.
        **kwargs: Every other argument of `keras.layers.LSTM` but `use_cudnn`: activation,
            initializers, regularizers, constraints, dropout, seed, implementation, name, dtype.

    Call arguments:
        sequences: `(batch, timesteps, input_dim)`.
        initial_state: `[h, c]`, each `(batch, units)`; zeros by default.
        mask: Boolean `(batch, timesteps)`; masked steps keep the state.
        training: Whether dropout is on.

    Output:
        `(batch, units)`, or `(batch, timesteps, units)` with `return_sequences`; followed by h
        and c with `return_state`.

    Raises:
        ValueError: for the arguments of `ProxLSTMCell`; for ragged input; if stateful, for a
            batch of another size.

    Example:

    >>> layer = ProxLSTM(8, lam=0.5)
    >>> layer(keras.random.normal((2, 10, 3))).shape
    TensorShape([2, 8])
    >>> lstm = keras.layers.LSTM(8)
    >>> _ = lstm(keras.random.normal((2, 10, 3)))
    >>> layer.set_weights(lstm.get_weights())  # or ProxLSTM.from_lstm(lstm, lam=0.5)

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4.
    """

    def __init__(
        self,
        units,
        *,
        lam=1.0,
        delta=1.0,
        output_from_prox=False,
        solver="cg",
        tolerance=None,
        max_iterations=None,
        jit_compile="auto",
        return_sequences=False,
        return_state=False,
        go_backwards=False,
        stateful=False,
        unroll=False,
        zero_output_for_mask=False,
        activity_regularizer=None,
        **kwargs,
    ):
        if jit_compile != "auto":
            jit_compile = check_bool("jit_compile", jit_compile)
        cell_arguments = {k: kwargs.pop(k) for k in _LSTM_CELL_ARGUMENTS & set(kwargs)}
        cell = ProxLSTMCell(
            units,
            lam=lam,
            delta=delta,
            output_from_prox=output_from_prox,
            solver=solver,
            tolerance=tolerance,
            max_iterations=max_iterations,
            dtype=kwargs.get("dtype"),
            trainable=kwargs.get("trainable", True),
            name="prox_lstm_cell",
            **cell_arguments,
        )
        super().__init__(
            cell,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            zero_output_for_mask=zero_output_for_mask,
            activity_regularizer=activity_regularizer,
            **kwargs,
        )
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.jit_compile = jit_compile

    @classmethod
    def from_lstm(cls, layer, **arguments):
        """A `ProxLSTM` with the configuration and the weights of a `keras.layers.LSTM`.

        Args:
            layer: A `keras.layers.LSTM`, built or not.
            **arguments: Arguments of `ProxLSTM` to set or replace, such as `lam` and `delta`.

        Returns:
            A new layer.

        Raises:
            ValueError: if `layer` is not a `keras.layers.LSTM`.
        """
        if not isinstance(layer, keras.layers.LSTM):
            raise ValueError(
                "`layer` must be a `keras.layers.LSTM`. For another cell use "
                f"`keras.layers.RNN(ProxRNNCell(cell))`. Received: layer={layer!r}"
            )
        config = layer.get_config()
        del config["name"]
        config["implementation"] = layer.cell.implementation
        prox = cls(**{**config, **arguments})
        if layer.built:
            batch = layer.states[0].shape[0] if layer.stateful else None
            prox.build((batch, None, layer.cell.kernel.shape[0]))
            prox.set_weights(layer.get_weights())
        return prox

    @property
    def units(self):
        """Size of the state."""
        return self.cell.units

    @property
    def lam(self):
        """The scalar weight lambda."""
        return self.cell.lam

    @property
    def delta(self):
        """The bound on the perturbation."""
        return self.cell.delta

    def set_weights(self, weights):
        """Sets the weights, from this class or from `keras.layers.LSTM` (lam is kept)."""
        super().set_weights(_with_lam(self, weights))

    def call(self, sequences, initial_state=None, mask=None, training=False):
        expected = self.states[0].shape[0] if self.stateful and self.states else None
        if expected is not None and sequences.shape[0] not in (None, expected):
            raise ValueError(
                "A stateful layer keeps one state an example, so every batch must have the size "
                f"it was built with, {expected}. Received: sequences.shape={sequences.shape}. "
                "Drop or pad the last batch, or use `stateful=False`."
            )
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def __call__(self, sequences, *args, **kwargs):
        if isinstance(sequences, tf.RaggedTensor):
            raise ValueError(
                "Ragged input is not supported. Received a RaggedTensor of shape "
                f"{sequences.shape}. Pad it, `sequences.to_tensor()`, and pass `mask=`."
            )
        return super().__call__(sequences, *args, **kwargs)

    def inner_loop(self, sequences, initial_state, mask, training=False):
        cell = self.cell
        dropout = training and cell.recurrent_dropout > 0.0
        if self.unroll or dropout or cell.implementation == 1:
            return super().inner_loop(sequences, initial_state, mask=mask, training=training)
        kernel, recurrent_kernel, bias, sqrt_rho = cell.tensors()
        scale = cell.input_scale(sequences[:, 0, :], training)
        if mask is not None:
            mask = tf.nest.flatten(mask)[0]
            mask = tf.transpose(tf.cast(mask, tf.bool))
        time_major = tf.transpose(tf.cast(sequences, kernel.dtype), [1, 0, 2])
        if self.go_backwards:
            time_major = tf.reverse(time_major, [0])
            mask = None if mask is None else tf.reverse(mask, [0])
        jit_compile = self.jit_compile
        if jit_compile == "auto":
            jit_compile = not tf.executing_eagerly() and sequences.shape[1] is not None
        hidden, carry = (tf.cast(state, kernel.dtype) for state in initial_state)
        hidden, carry = prox_lstm(
            time_major,
            hidden,
            carry,
            kernel,
            recurrent_kernel,
            bias,
            sqrt_rho,
            cell._options,
            mask,
            None if scale is None else scale[0],
            jit_compile,
        )
        outputs = hidden
        if mask is not None:
            # Keras repeats the last output at masked steps, and zeros before the first one.
            shown = mask
            if not self.zero_output_for_mask:
                shown = tf.cumsum(tf.cast(mask, tf.int32)) > 0
            outputs = tf.where(shown[..., None], hidden, tf.zeros_like(hidden))
        outputs = outputs if self.return_sequences else outputs[-1:]
        return outputs[-1], tf.transpose(outputs, [1, 0, 2]), [hidden[-1], carry]

    def get_config(self):
        config = super().get_config()
        del config["cell"]
        cell = self.cell.get_config()
        for name in ("name", "trainable", "dtype"):
            cell.pop(name, None)
        return {
            **config,
            **cell,
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "jit_compile": self.jit_compile,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)
