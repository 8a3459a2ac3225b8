"""ProxLSTM: an LSTM whose cell state is pulled towards invariance to its input."""

from typing import Any

import keras

from proxnet_tf.layers.recurrent.gated import GatedRNN
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell


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

    cell_class = ProxLSTMCell
    plain_class = keras.layers.LSTM
    short_name = "prox_lstm"
    num_states = 2

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
        return cls._from_keras(layer, arguments)
