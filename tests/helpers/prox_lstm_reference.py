"""A proximal LSTM in NumPy, dense and slow: shares no formula with `proxnet_tf.ops.recurrent`.

The Jacobian G of the state in the input comes from complex steps, c from a dense solve.
"""

import numpy as np


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def softplus(z):
    return np.log(1.0 + np.exp(z))


def state(x, h, c, weights, activation, recurrent_activation, scale, hidden_scale=1.0):
    """s and the output gate o of one step; `scale` multiplies x: (batch, 1 or 4 gates, m)."""
    kernel, recurrent_kernel, bias = weights
    units = h.shape[1]
    scale = np.broadcast_to(scale, (len(x), 4, x.shape[1]))
    z = [
        (x * scale[:, k]) @ kernel[:, k * units : (k + 1) * units]
        + (h * hidden_scale) @ recurrent_kernel[:, k * units : (k + 1) * units]
        + bias[k * units : (k + 1) * units]
        for k in range(4)
    ]
    i, f, o = (recurrent_activation(z[k]) for k in (0, 1, 3))
    return f * c + i * activation(z[2]), o


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


def prox_lstm(
    x,
    h,
    c,
    weights,
    rho,
    *,
    mask=None,
    scale=None,
    activation=np.tanh,
    recurrent_activation=sigmoid,
    output_from_prox=False,
):
    """All hidden states (batch, time, units) and the last c; masked steps keep both states.

    `scale`: the dropout mask, (batch, features) or `None`.
    """
    scale = np.ones((len(x), 1, x.shape[2])) if scale is None else scale[:, None, :]
    hiddens = []
    for t in range(x.shape[1]):

        def new_state(xt, h=h, c=c):
            return state(xt, h, c, weights, activation, recurrent_activation, scale)

        s, o = new_state(x[:, t])
        c_new = prox(s, jacobian(lambda xt, f=new_state: f(xt)[0], x[:, t]), rho)
        h_new = o * activation(c_new if output_from_prox else s)
        valid = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        h, c = np.where(valid, h_new, h), np.where(valid, c_new, c)
        hiddens.append(h)
    return np.stack(hiddens, axis=1), c
