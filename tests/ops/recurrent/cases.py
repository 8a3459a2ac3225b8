"""Problems of recurrent steps with dense answers, and derivatives of second order."""

import numpy as np
import scipy.special
import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import GRUEquations, LSTMEquations
from tests.helpers import prox_recurrent_reference as reference
from tests.helpers.differences import central_difference, directional_difference

SIZES = [(3, 4, 2), (4, 1, 3), (3, 2, 5)]  # batch, features, units
EQUATIONS = {"LSTM": LSTMEquations, "GRU": GRUEquations}
REFERENCES = {"LSTM": reference.lstm, "GRU": reference.gru}
BLOCKS = {"LSTM": 4, "GRU": 3}  # of a kernel
# Activations other than tanh and sigmoid, for both.
OTHERS = {"activation": tf.math.softplus, "recurrent_activation": tf.math.erf}
NUMPY = {"activation": reference.softplus, "recurrent_activation": scipy.special.erf}


def masks_of(rng, batch, features, number):
    """`number` dropout masks, or `None`."""
    return (
        None if number is None else list(rng.integers(0, 2, size=(number, batch, features)) * 2.0)
    )


def check_gradient(function, numpy_function, values, atol=1e-6):
    """Values, and gradients of a random function of them, against differences of NumPy's."""
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        found = function(*tensors)
        rng = np.random.default_rng(3)
        weights = [rng.normal(size=y.shape) for y in found]
        loss = tf.add_n([tf.reduce_sum(w * y) for w, y in zip(weights, found, strict=True)])
    for left, right in zip(found, numpy_function(*values), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)

    def numpy_loss(*values):
        outputs = numpy_function(*values)
        return sum(np.sum(w * y) for w, y in zip(weights, outputs, strict=True))

    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=atol, err_msg=f"argument {index}")


def gradient_norm(function, tensors):
    """sum of squares of the gradients of function(*tensors)."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(*tensors)
    gradients = tape.gradient(value, tensors, unconnected_gradients="zero")
    return tf.add_n([tf.reduce_sum(g**2) for g in gradients])


def check_second_derivative(function, values, graph):
    """Gradient of the gradient's norm along a random direction, against central differences."""
    rng = np.random.default_rng(5)
    direction = [rng.normal(size=np.shape(v)) for v in values]

    def second(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            norm = gradient_norm(function, tensors)
        return tape.gradient(norm, tensors)

    run = tf.function(second) if graph else second
    gradients = run(*[tf.constant(v) for v in values])
    found = sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True))
    numeric = directional_difference(
        lambda *v: float(gradient_norm(function, [tf.constant(x) for x in v])), values, direction
    )
    np.testing.assert_allclose(found, numeric, rtol=1e-6)


def sequence_problem(kind="LSTM", batch=3, steps=4, features=3, units=2, seed=0):
    """x, h, c, the kernels and the bias of the pre-activations."""
    rng, width = np.random.default_rng(seed), BLOCKS[kind] * units
    sizes = [
        ((batch, steps, features), 1.0),
        ((batch, units), 1.0),
        ((batch, units), 1.0),
        ((features, width), 0.7),
        ((units, width), 0.7),
        ((4 * units,), 0.3),
    ]
    return [scale * rng.normal(size=shape) for shape, scale in sizes]
