"""A proximal GRU in NumPy, dense and slow: shares no formula with `proxnet_tf.ops.recurrent`."""

import numpy as np

from tests.helpers.prox_lstm_reference import jacobian, prox, sigmoid


def state(
    x,
    c,
    weights,
    reset_after=True,
    activation=np.tanh,
    recurrent_activation=sigmoid,
    scale=1.0,
    hidden_scale=1.0,
):
    """s of one step; `scale` multiplies x, `hidden_scale` c: (batch, 1 or 3 gates, size).

    The bias is (2, 3 units), of x and of c; with the reset gate before U only the first counts.
    """
    kernel, recurrent_kernel, bias = weights
    units = c.shape[1]
    scale = np.broadcast_to(scale, (len(x), 3, x.shape[1]))
    hidden_scale = np.broadcast_to(hidden_scale, (len(x), 3, units))
    w, u = (m.reshape(len(m), 3, units) for m in (kernel, recurrent_kernel))
    b, d = bias.reshape(2, 3, units)
    x = [(x * scale[:, k]) @ w[:, k] + b[k] for k in range(3)]
    c_in = [c * hidden_scale[:, k] for k in range(3)]
    d = d if reset_after else 0.0 * d
    z, r = (recurrent_activation(x[k] + c_in[k] @ u[:, k] + d[k]) for k in (0, 1))
    if reset_after:
        n = activation(x[2] + r * (c_in[2] @ u[:, 2] + d[2]))
    else:
        n = activation(x[2] + (r * c_in[2]) @ u[:, 2])
    return z * c + (1 - z) * n


def prox_gru(
    x, c, weights, rho, *, mask=None, scale=None, output_from_prox=False, start=None, **functions
):
    """All outputs (batch, time, units) and the last c; masked steps keep c and repeat the output.

    `scale`: the dropout mask, (batch, features) or `None`. `start`: the output before the first
    step, zeros by default.
    """
    scale = 1.0 if scale is None else scale[:, None, :]
    output = np.zeros_like(c) if start is None else start
    outputs = []
    for t in range(x.shape[1]):

        def new_state(xt, c=c):
            return state(xt, c, weights, scale=scale, **functions)

        s = new_state(x[:, t])
        moved = prox(s, jacobian(new_state, x[:, t]), rho)
        valid = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        output = np.where(valid, moved if output_from_prox else s, output)
        c = np.where(valid, moved, c)
        outputs.append(output)
    return np.stack(outputs, axis=1), c
