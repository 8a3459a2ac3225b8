"""Proximal LSTM and GRU in NumPy, dense and slow: no formula of `proxnet_tf.ops.recurrent`.

The Jacobian G of the state in the input comes from complex steps, c from a dense solve.
"""

import numpy as np


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def softplus(z):
    return np.log(1.0 + np.exp(z))


def products(x, kernel, units, scale):
    """(x scale_k) W_k, one for each block of the kernel; `scale`: (batch, 1 or blocks, size)."""
    blocks = kernel.shape[1] // units
    scale = np.broadcast_to(scale, (len(x), blocks, x.shape[1]))
    w = kernel.reshape(len(kernel), blocks, units)
    return [(x * scale[:, k]) @ w[:, k] for k in range(blocks)]


def lstm(
    x, h, c, weights, activation=np.tanh, recurrent_activation=sigmoid, scale=1.0, hidden_scale=1.0
):
    """s of one step, and the output as a function of s or c; `scale` multiplies x, the other h."""
    kernel, recurrent_kernel, bias = weights
    units = c.shape[1]
    z = zip(
        products(x, kernel, units, scale),
        products(h, recurrent_kernel, units, hidden_scale),
        np.split(bias, 4),
        strict=True,
    )
    i, f, g, o = (sum(parts) for parts in z)
    i, f, o = (recurrent_activation(gate) for gate in (i, f, o))
    return f * c + i * activation(g), lambda state: o * activation(state)


def gru(
    x, h, c, weights, activation=np.tanh, recurrent_activation=sigmoid, scale=1.0, hidden_scale=1.0
):
    """As `lstm`. The bias is that of Keras, of x and of c, or four in a row, see `GRUEquations`."""
    kernel, recurrent_kernel, bias = weights
    units = c.shape[1]
    if bias.ndim == 1:
        bias = np.stack([bias[: 3 * units], np.r_[np.zeros(2 * units), bias[3 * units :]]])
    b, d = bias.reshape(2, 3, units)
    x = products(x, kernel, units, scale)
    u = products(c, recurrent_kernel, units, hidden_scale)
    z, r = (recurrent_activation(x[k] + b[k] + u[k] + d[k]) for k in (0, 1))
    n = activation(x[2] + b[2] + r * (u[2] + d[2]))
    return z * c + (1 - z) * n, lambda state: state


def jacobian(function, x):
    """d function(x)/dx, (batch, units, features), exact to rounding for analytic functions."""
    step = 1e-30
    columns = []
    for j in range(x.shape[1]):
        shifted = x.astype(complex)
        shifted[:, j] += 1j * step
        columns.append(function(shifted).imag / step)
    return np.stack(columns, axis=-1)


def prox(s, g, rho):
    """(I + rho G G^T)^-1 s, example by example."""
    eye = np.eye(s.shape[1])
    return np.stack(
        [np.linalg.solve(eye + rho * gi @ gi.T, si) for si, gi in zip(s, g, strict=True)]
    )


def step(cell, x, h, c, weights, rho, output_from_prox=False, **options):
    """h and c after one step of `cell`, which is `lstm` or `gru`."""
    s, output = cell(x, h, c, weights, **options)
    g = jacobian(lambda x: cell(x, h, c, weights, **options)[0], x)
    moved = prox(s, g, rho)
    return output(moved if output_from_prox else s), moved


def sequence(cell, x, h, c, weights, rho, *, mask=None, scale=None, **options):
    """All outputs (batch, time, units) and the last c; masked steps keep c and repeat the output.

    `scale`: the dropout mask, (batch, features) or `None`.
    """
    scale = 1.0 if scale is None else scale[:, None, :]
    hiddens = []
    for t in range(x.shape[1]):
        h_new, c_new = step(cell, x[:, t], h, c, weights, rho, scale=scale, **options)
        valid = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        h, c = np.where(valid, h_new, h), np.where(valid, c_new, c)
        hiddens.append(h)
    return np.stack(hiddens, axis=1), c
