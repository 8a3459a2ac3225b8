"""ProxLSTMCell: an LSTM cell whose state is pulled towards invariance to its input."""

import keras
import tensorflow as tf

from proxnet_tf.layers.recurrent.gated_cell import GatedCell
from proxnet_tf.ops.recurrent.lstm import LSTMEquations


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxLSTMCell(GatedCell, keras.layers.LSTMCell):
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

    plain_class = keras.layers.LSTMCell

    def _equations_class(self) -> type[LSTMEquations]:
        return LSTMEquations

    def input_bias(self, dtype: str) -> tf.Tensor:
        """The bias of the four gates, (4 units,)."""
        return tf.cast(self.bias, dtype) if self.use_bias else tf.zeros([4 * self.units], dtype)
