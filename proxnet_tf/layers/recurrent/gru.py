"""ProxGRUCell and ProxGRU: a GRU whose state is pulled towards invariance to its input."""

from typing import Any

import keras

from proxnet_tf.layers.recurrent.gated import GatedRNN
from proxnet_tf.layers.recurrent.gated_cell import GatedCell
from proxnet_tf.ops.recurrent.equations import GRUEquations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxGRUCell(GatedCell, keras.layers.GRUCell):
    """GRU cell with a proximal state, for `keras.layers.RNN`.

    With s_t = z_t o h_{t-1} + (1 - z_t) o n_t, the new state of a GRU with the update gate z_t and
    the candidate n_t, and G_t = ds_t/dx_t,

        h_t = argmin_h lam ||h - s_t||^2 + delta^2 ||h^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t.

    h_t stays near s_t and is small in the directions in which a change of x_t, of norm at most
    delta, moves the state. The output of the step is s_t, and h_t acts from the next step on
    (see `output_from_prox`). Gradients are exact, of every order, and go through G_t too. lam and
    delta are constants of the map. G_t is never formed. The cell computes the same as
    `ProxRNNCell(keras.layers.GRUCell(...))`, several times faster.

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, the weight on staying near s_t; a scalar non-trainable weight, saved
            with the layer and set by `LambdaSchedule`. Only delta^2/lam matters.
        delta: Float >= 0, bound on the perturbation of the input. At 0, or as lam grows, the cell
            is `keras.layers.GRUCell`.
        output_from_prox: Boolean. If `True`, the output of the step is h_t. By default it is s_t,
            as in `ProxLSTMCell` and `ProxRNNCell`.
        tolerance: Positive float or `None`. An example's iteration stops when the error of h_t is
            known to be below `tolerance * ||s_t||`. `None` is 1e-5, or 1e-12 in float64.
        max_iterations: Positive integer or `None`, bound on the products with G_t; `None` is
            `2 * min(units, input_dim) + 10`. Monitor what a small bound leaves unsolved.
        jit_compile: `True`, `False` or `"auto"`. Whether XLA compiles a step and its gradient,
            see `ProxLSTMCell`.
        monitor: `True`, `False` or a string that the names of the metrics start with, see
            `ProxLSTMCell`.
        **kwargs: Every argument of `keras.layers.GRUCell`. Activations must be elementwise and
            are differentiated twice (once more for each further order of derivative): with a
            piecewise linear one the curvature is 0 and the layer is not smooth at its kinks.
            `reset_after=False` is refused: `ProxRNNCell` wraps such a cell.

    Call arguments:
        inputs: `(batch, input_dim)`.
        states: `[h]` or h, `(batch, units)`.
        training: Whether dropout is on. With dropout, G_t is the derivative in the input before
            its dropout mask.

    Output:
        `s_t, [h_t]`, or `h_t, [h_t]` with `output_from_prox`. 16-bit policies compute in float32
        and cast back.

    Raises:
        ValueError: for lam <= 0, delta < 0, `reset_after=False`, an activation that does not act
            elementwise or cannot be differentiated twice.

    Example:

    >>> cell = ProxGRUCell(4, lam=2.0)
    >>> keras.layers.RNN(cell)(keras.random.normal((2, 5, 3))).shape
    TensorShape([2, 4])

    Reference:
        Li, Ma, Zhang (2020), "Proximal Mapping for Deep Regularization", section 4, which has the
        LSTM.
    """

    plain_class = keras.layers.GRUCell
    equations_class = GRUEquations


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
            initializers, regularizers, constraints, dropout, seed, implementation, name, dtype.

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
    def from_gru(
        cls, layer: keras.layers.GRU | keras.layers.Bidirectional, **arguments: Any
    ) -> Any:
        """A `ProxGRU` with the weights and the configuration (but the name) of a Keras GRU.

        Args:
            layer: A `keras.layers.GRU`, built or not, or a `keras.layers.Bidirectional` of one.
            **arguments: Arguments of `ProxGRU` to set or replace, such as `lam` and `delta`.

        Returns:
            A new `ProxGRU`, or a new `Bidirectional` of two with the weights of both.

        Raises:
            ValueError: if `layer` is neither; if it has `reset_after=False`.
        """
        return cls._from_keras(layer, arguments)
