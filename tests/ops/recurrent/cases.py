"""Problems of recurrent steps with dense answers, and derivatives of second order."""

import numpy as np
import tensorflow as tf

from tests.helpers.differences import directional_difference

SIZES = [(3, 4, 2), (4, 1, 3), (3, 2, 5)]  # batch, features, units


def random(rng, *shape, scale=1.0):
    return scale * rng.normal(size=shape)


def gate_problem(batch, features, units, seed=0, scales=None):
    rng = np.random.default_rng(seed)
    s = random(rng, batch, units)
    slopes = random(rng, batch, 3 * units)
    kernel = random(rng, features, 3 * units)
    scale = {None: None, "shared": (batch, features), "gates": (batch, 3, features)}[scales]
    if scale is not None:
        scale = rng.integers(0, 2, size=scale) * 2.0
    return s, slopes, kernel, scale


def dense_jacobian(slopes, kernel, scale):
    """J = sum_k diag(slopes_k) K_k^T diag(scale_k), example by example."""
    units = kernel.shape[1] // 3
    j = np.zeros((len(slopes), units, len(kernel)))
    for n in range(len(slopes)):
        for k in range(3):
            columns = slice(k * units, (k + 1) * units)
            factor = 1.0 if scale is None else scale[n] if scale.ndim == 2 else scale[n, k]
            j[n] += np.diag(slopes[n, columns]) @ (kernel[:, columns].T * factor)
    return j


def dense_prox(s, slopes, kernel, scale):
    """(I + J J^T)^-1 s."""
    j, eye = dense_jacobian(slopes, kernel, scale), np.eye(s.shape[1])
    return np.stack([np.linalg.solve(eye + a @ a.T, b) for a, b in zip(j, s, strict=True)])


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


def sequence_problem(batch=3, steps=4, features=3, units=2, seed=0):
    rng = np.random.default_rng(seed)
    return [
        random(rng, batch, steps, features),
        random(rng, batch, units),
        random(rng, batch, units),
        random(rng, features, 4 * units, scale=0.7),
        random(rng, units, 4 * units, scale=0.7),
        random(rng, 4 * units, scale=0.3),
    ]


def lstm_problem(batch, features, units, seed=0):
    """x, h, c and the weights of one step."""
    x, *others = sequence_problem(batch, 1, features, units, seed)
    return [x[:, 0], *others]
