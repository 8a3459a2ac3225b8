"""ProxGRU: a GRU whose state is pulled towards invariance to its input."""

from typing import Any

import keras

from proxnet_tf.layers.recurrent.gated import GatedRNN
from proxnet_tf.layers.recurrent.gru_cell import ProxGRUCell


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxGRU(GatedRNN):
    """GRU layer with a proximal state, to be used as `keras.layers.GRU` is.

    At every time step, with s_t = z_t o h_{t-1} + (1 - z_t) o n_t and G_t = ds_t/dx_t,

        h_t = argmin_h lam ||h - s_t||^2 + delta^2 ||h^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t.

    The output of a step is s_t, or h_t with `output_from_prox`. See `ProxGRUCell`. The layer
    computes the same as `keras.layers.RNN(ProxGRUCell(...))`, with the gradient through time
    written out, which makes a training step a small multiple of one of a plain GRU. (With
    `unroll=True`, `recurrent_dropout` or `implementation=1` it runs the cell.)

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, see `ProxGRUCell`.
        delta: Float >= 0, see `ProxGRUCell`.
        output_from_prox: Boolean, see `ProxGRUCell`.
        solver: `"cg"` or `"cholesky"`, see `ProxGRUCell`.
        tolerance: Positive float or `None`, see `ProxGRUCell`.
        max_iterations: Positive integer or `None`, see `ProxGRUCell`.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles the loop over time, see
            `ProxLSTM`.
        monitor: `True`, `False` or a string that metric names start with, see `ProxLSTMCell`.
            Masked steps do not count.
        return_sequences: Boolean, return the output of every step rather than of the last one.
        return_state: Boolean, return h_t after the last step too.
        go_backwards: Boolean, process the sequence backwards, return it reversed.
        stateful: Boolean, start a batch from the last states of the batch before.
        unroll: Boolean, unroll the loop over time.
        zero_output_for_mask: Boolean, output zeros at masked steps rather than the last output.
        activity_regularizer: Regularizer of the output.
        **kwargs: Every other argument of `keras.layers.GRU` but `use_cudnn`: activation,
            initializers, regularizers, constraints, dropout, reset_after, seed, implementation,
            name, dtype. `reset_after=False` is slower, see `ProxGRUCell`.

    Call arguments:
        sequences: `(batch, timesteps, input_dim)`.
        initial_state: h or `[h]`, `(batch, units)`; zeros by default.
        mask: Boolean `(batch, timesteps)`; masked steps keep the state.
        training: Whether dropout is on.

    Output:
        `(batch, units)`, or `(batch, timesteps, units)` with `return_sequences`; followed by the
        last h_t with `return_state`.

    Raises:
        ValueError: for the arguments of `ProxGRUCell`; for ragged input; if stateful, for a
            batch of another size.

    Example:

    >>> layer = ProxGRU(8, lam=0.5)
    >>> layer(keras.random.normal((2, 10, 3))).shape
    TensorShape([2, 8])
    >>> gru = keras.layers.GRU(8)
    >>> _ = gru(keras.random.normal((2, 10, 3)))
    >>> layer.set_weights(gru.get_weights())  # or ProxGRU.from_gru(gru, lam=0.5)

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4, which has the
        LSTM.
    """

    cell_class = ProxGRUCell
    plain_class = keras.layers.GRU
    short_name = "prox_gru"
    num_states = 1

    @classmethod
    def from_gru(cls, layer: keras.layers.GRU, **arguments: Any) -> "ProxGRU":
        """A `ProxGRU` with the weights and the configuration (but the name) of a Keras GRU.

        Args:
            layer: A `keras.layers.GRU`, built or not.
            **arguments: Arguments of `ProxGRU` to set or replace, such as `lam` and `delta`.

        Returns:
            A new layer.

        Raises:
            ValueError: if `layer` is not a `keras.layers.GRU`.
        """
        return cls._from_keras(layer, arguments)
