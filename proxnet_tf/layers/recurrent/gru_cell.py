"""ProxGRUCell: a GRU cell whose state is pulled towards invariance to its input."""

import keras
import tensorflow as tf

from proxnet_tf.layers.recurrent.gated_cell import GatedCell
from proxnet_tf.ops.recurrent.gru import GRUBeforeEquations, GRUEquations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxGRUCell(GatedCell, keras.layers.GRUCell):
    """GRU cell with a proximal state, for `keras.layers.RNN`.

    With s_t = z_t o h_{t-1} + (1 - z_t) o n_t, the new state of a GRU with the update gate z_t and
    the candidate n_t, and G_t = ds_t/dx_t,

        h_t = argmin_h lam ||h - s_t||^2 + delta^2 ||h^T G_t||^2
            = (I + delta^2/lam G_t G_t^T)^-1 s_t.

    h_t stays near s_t and moves towards the directions that a change of x_t, of norm at most
    delta, does not reach. The output of the step is s_t, and h_t acts from the next step on
    (see `output_from_prox`). Gradients are exact, of every order, and go through G_t too. lam and
    delta are constants of the map. G_t is never formed, except by `solver="cholesky"`. The cell
    computes the same as `ProxRNNCell(keras.layers.GRUCell(...))`, several times faster.

    Args:
        units: Positive integer, size of the state.
        lam: Positive float, the weight on staying near s_t; a scalar non-trainable weight, saved
            with the layer and driven by `LambdaSchedule`. Only delta^2/lam matters.
        delta: Float >= 0, bound on the perturbation of the input. At 0, or as lam grows, the cell
            is `keras.layers.GRUCell`.
        output_from_prox: Boolean. If `True`, the output of the step is h_t. By default it is s_t,
            as in `ProxLSTMCell` and `ProxRNNCell`.
        solver: `"cg"`, conjugate gradients on products with G_t, or `"cholesky"` of
            I + delta^2/lam G_t G_t^T, which costs batch x units x input_dim memory and serves as
            a check.
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
            piecewise linear one the curvature is 0 and the layer is not smooth at its kinks. With
            `reset_after=False` the reset gate reaches the state through the recurrent kernel, and
            every product with G_t costs one more product with a units x units matrix.

    Call arguments:
        inputs: `(batch, input_dim)`.
        states: `[h]` or h, `(batch, units)`.
        training: Whether dropout is on. With dropout, G_t is the derivative in the input before
            its dropout mask.

    Output:
        `s_t, [h_t]`, or `h_t, [h_t]` with `output_from_prox`. 16-bit policies compute in float32
        and cast back.

    Raises:
        ValueError: for lam <= 0, delta < 0, an unknown solver, an activation that does not act
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

    def _equations_class(self) -> type[GRUEquations]:
        return GRUEquations if self.reset_after else GRUBeforeEquations

    def input_bias(self, dtype: str) -> tf.Tensor:
        """The bias of the four pre-activations, or of the three of `reset_after=False`."""
        if not self.use_bias:
            return tf.zeros([(4 if self.reset_after else 3) * self.units], dtype)
        bias = tf.cast(self.bias, dtype)
        if not self.reset_after:
            return bias
        gates, candidate = tf.split(bias, [2 * self.units, self.units], axis=-1)
        return tf.concat([gates[0] + gates[1], candidate[0], candidate[1]], axis=0)
