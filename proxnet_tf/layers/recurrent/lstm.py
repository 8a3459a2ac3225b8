"""ProxLSTM: an LSTM whose cell state is pulled towards invariance to its input."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell, with_lam
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.recurrent.scan import prox_lstm

_LSTM_CELL_ARGUMENTS = {
    *inspect.signature(keras.layers.LSTMCell.__init__).parameters,
    "implementation",
} - {"self", "units", "kwargs"}


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
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles the loop over time, also
            where the model around it is not compiled so: about twice as fast, but the first
            training step of every new shape of the input takes some seconds longer (two to four;
            on a busy machine ten or more). The last, smaller batch of an epoch is a new shape:
            drop it or fill it up. Layers of equal sizes and options, such as the two of
            `Bidirectional`, share what is compiled. `"auto"`: in graphs, if the number of time
            steps is fixed. Use `False` for a first epoch without delay, or to convert the layer
            for a runtime without XLA; LiteRT takes it with `unroll=True` (the loop over time needs
            the select operations of TensorFlow).
        monitor: `True`, `False` or a string that metric names start with, see `ProxLSTMCell`.
            Masked steps do not count.
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
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        activity_regularizer: Any = None,
        **kwargs: Any,
    ):
        cell_arguments = {k: kwargs.pop(k) for k in _LSTM_CELL_ARGUMENTS & set(kwargs)}
        cell = ProxLSTMCell(
            units,
            lam=lam,
            delta=delta,
            output_from_prox=output_from_prox,
            solver=solver,
            tolerance=tolerance,
            max_iterations=max_iterations,
            jit_compile=jit_compile,
            monitor=monitor,
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
        cell.solves.owner = self.name

    @classmethod
    def from_lstm(cls, layer: keras.layers.LSTM, **arguments: Any) -> "ProxLSTM":
        """A `ProxLSTM` with the weights and the configuration (but the name) of a Keras LSTM.

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
    def units(self) -> int:
        """Size of the state."""
        return self.cell.units

    @property
    def lam(self) -> keras.Variable:
        """The scalar weight lambda."""
        return self.cell.lam

    @property
    def delta(self) -> float:
        """The bound on the perturbation."""
        return self.cell.delta

    @property
    def jit_compile(self) -> bool | str:
        """Whether XLA compiles the loop over time."""
        return self.cell.jit_compile

    @property
    def status(self) -> dict[str, float]:
        """How the problems were solved: the metrics of `monitor`, else of the last eager call."""
        return self.cell.status

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the weights, from this class or from `keras.layers.LSTM` (lam is kept)."""
        super().set_weights(with_lam(self, weights))

    def call(
        self,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: tf.Tensor | None = None,
        training: bool = False,
    ) -> Any:
        expected = self.states[0].shape[0] if self.stateful and self.states else None
        if expected is not None and sequences.shape[0] not in (None, expected):
            raise ValueError(
                "A stateful layer keeps one state an example, so every batch must have the size "
                f"it was built with, {expected}. Received: sequences.shape={sequences.shape}. "
                "Drop or pad the last batch, or use `stateful=False`."
            )
        if initial_state is not None:
            states = tf.nest.flatten(initial_state)
            if len(states) != 2 or any(s.shape[-1] != self.cell.units for s in states):
                raise ValueError(
                    f"`initial_state` must be [h, c], each of shape (batch, {self.cell.units}). "
                    f"Received: tensors of the shapes {[tuple(s.shape) for s in states]}"
                )
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def __call__(self, sequences: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sequences, tf.RaggedTensor):
            raise ValueError(
                "Ragged input is not supported. Received a RaggedTensor of shape "
                f"{sequences.shape}. Pad it, `sequences.to_tensor()`, and pass `mask=`."
            )
        check_real("The input", sequences)
        return super().__call__(sequences, *args, **kwargs)

    def inner_loop(
        self, sequences: tf.Tensor, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
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
        shape = [tf.shape(sequences)[0], cell.units]  # a state may be one row for all examples
        hidden, carry = (
            tf.broadcast_to(tf.cast(state, kernel.dtype), shape) for state in initial_state
        )
        solves, valid = cell.solves, mask
        observer = solves.backward(training)
        hidden, carry, report = prox_lstm(
            time_major,
            hidden,
            carry,
            kernel,
            recurrent_kernel,
            bias,
            sqrt_rho,
            cell.options,
            mask,
            None if scale is None else scale[0],
            lambda report: observer(report, valid),
            bool(jit_compile),
        )

        def given() -> dict[str, Any]:
            counted = time_major if valid is None else time_major[valid]
            return {
                "the input": counted,
                "the initial state": initial_state,
                "lam": sqrt_rho,
                "a weight": [kernel, recurrent_kernel, bias],
            }

        solves.forward(report, valid, given)
        outputs = hidden
        if mask is not None:
            # Keras repeats the last output at masked steps, and zeros before the first one.
            shown = mask
            if not self.zero_output_for_mask:
                shown = tf.cumsum(tf.cast(mask, tf.int32)) > 0
            outputs = tf.where(shown[..., None], hidden, tf.zeros_like(hidden))
        outputs = outputs if self.return_sequences else outputs[-1:]
        return outputs[-1], tf.transpose(outputs, [1, 0, 2]), [hidden[-1], carry]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["cell"]
        cell = self.cell.get_config()
        for name in ("name", "trainable", "dtype"):
            cell.pop(name, None)
        return {
            **config,
            **cell,
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ProxLSTM":
        return cls(**config)
