"""ProxLSTMCell and ProxLSTM: an LSTM whose cell state is pulled towards invariance to its input."""

from typing import Any

import keras

from proxnet_tf.layers.recurrent.gated import GatedRNN
from proxnet_tf.layers.recurrent.gated_cell import GatedCell
from proxnet_tf.ops.recurrent.equations import LSTMEquations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxLSTMCell(GatedCell, keras.layers.LSTMCell):
    """LSTM cell with a proximal cell state, for `keras.layers.RNN`.

    With s_t = f_t o c_{t-1} + i_t o g_t, the new cell state of an LSTM, and G_t = ds_t/dx_t,

        c_t = argmin_c lam ||c - s_t||^2 + delta^2 ||c^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t,         h_t = o_t o activation(s_t).

    c_t stays near s_t and is small in the directions in which a change of x_t, of norm at most
    delta, moves the state. Gradients are exact, of every order, and go through G_t too. lam and
    delta are constants of the map. G_t is never formed.

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, the weight on staying near s_t; a scalar non-trainable weight, saved
            with the layer and set by `LambdaSchedule`. Only delta^2/lam matters.
        delta: Float >= 0, bound on the perturbation of the input. At 0, or as lam grows, the cell
            is `keras.layers.LSTMCell`.
        output_from_prox: Boolean. If `True`, h_t = o_t o activation(c_t). The paper's recursions,
            and the default, take h_t from s_t, so that c_t acts from the next step on.
        tolerance: Positive float or `None`. An example's iteration stops when the error of c_t is
            known to be below `tolerance * ||s_t||`. `None` is 1e-5, or 1e-12 in float64.
        max_iterations: Positive integer or `None`, bound on the products with G_t; `None` is
            `2 * min(units, input_dim) + 10`. Monitor what a small bound leaves unsolved.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles a step and its gradient,
            once for every size of the batch: the first training step takes about a second
            longer, and the others less than half the time. `"auto"`: in training, in graphs.
        monitor: `True` for the metric `unsolved`: the share of examples and steps, forward and
            backward, above the tolerance. "all" adds `residual` (the worst bound on the error of
            c_t relative to s_t), `iterations` and `backward_residual`. Another string is a prefix
            of the names. (Keras runs a first step twice, to find its shape; the metrics count
            both.) `False` by default: eager calls then warn once of an unsolved problem.
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
        ValueError: for lam <= 0, delta < 0, an activation that does not act elementwise or
            cannot be differentiated twice.

    Example:

    >>> cell = ProxLSTMCell(4, lam=2.0)
    >>> keras.layers.RNN(cell)(keras.random.normal((2, 5, 3))).shape
    TensorShape([2, 4])

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4 and the
        appendix "Backpropagation Through Time for Adversarial LSTM". The gradient in the weights
        also contains the dependence of G_t on them.
    """

    plain_class = keras.layers.LSTMCell
    equations_class = LSTMEquations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxLSTM(GatedRNN):
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
        tolerance: Positive float or `None`, see `ProxLSTMCell`.
        max_iterations: Positive integer or `None`, see `ProxLSTMCell`.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles the loop over time, also
            where the model around it is not compiled. The layer is then about twice as fast, but
            the first training step of every new shape of the input takes two to four seconds longer
            (on a busy machine ten or more). The last, smaller batch of an epoch is a new shape:
            drop it or fill it up. Layers of equal sizes and options, such as the two of
            `Bidirectional`, share the compiled loop. `"auto"`: in graphs, if the number of time
            steps is fixed. Use `False` for a first epoch without delay, or to convert the layer for
            a runtime without XLA; LiteRT takes the layer with `unroll=True` (the loop over time
            needs the select operations of TensorFlow).
        monitor: `True`, `False`, "all" or a prefix of the metrics' names, see `ProxLSTMCell`.
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

    cell_class = ProxLSTMCell
    plain_class = keras.layers.LSTM
    short_name = "prox_lstm"
    num_states = 2

    @classmethod
    def from_lstm(
        cls, layer: keras.layers.LSTM | keras.layers.Bidirectional, **arguments: Any
    ) -> Any:
        """A `ProxLSTM` with the weights and the configuration (but the name) of a Keras LSTM.

        Args:
            layer: A `keras.layers.LSTM`, built or not, or a `keras.layers.Bidirectional` of one.
            **arguments: Arguments of `ProxLSTM` to set or replace, such as `lam` and `delta`.

        Returns:
            A new `ProxLSTM`, or a new `Bidirectional` of two with the weights of both.

        Raises:
            ValueError: if `layer` is neither.
        """
        return cls._from_keras(layer, arguments)
