"""The proximal LSTM over a whole sequence, with the gradient through time written out.

Equation numbers are those of `recurrent.py`.
"""

from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.recurrent.step import (
    GateKernels,
    LSTMOptions,
    candidate_last,
    lstm_gates,
    prox_lstm_step,
    side_by_side,
    solve_gates,
    value_and_slope,
    value_slope_curvature,
)

TANH_SIGMOID = LSTMOptions()
# At delta^2/lam near 1 this many CG steps reach the precision of float32. They are taken without
# a test at every time step; only if one example missed the tolerance, all is solved again with it.
FIXED_STEPS = 4


class LSTMStates(NamedTuple):
    """States of a proximal LSTM over a sequence.

    Attributes:
        hidden: h of every step, (time, batch, units); carried over masked steps.
        carry: c after the last step, (batch, units).
    """

    hidden: tf.Tensor
    carry: tf.Tensor


def prox_lstm(
    inputs: tf.Tensor,
    hidden: tf.Tensor,
    carry: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    sqrt_rho: tf.Tensor,
    options: LSTMOptions = TANH_SIGMOID,
    mask: tf.Tensor | None = None,
    scale: tf.Tensor | None = None,
    jit_compile: bool = False,
) -> LSTMStates:
    """A proximal LSTM over a whole sequence, differentiable to every order.

    In the first derivative, written out, the loop over time holds only what depends on later
    steps; the weights' gradients are products over all steps at once. Higher derivatives
    differentiate the loop over `prox_lstm_step`.

    Args:
        inputs: (time, batch, features).
        hidden: h before the first step, (batch, units).
        carry: c before the first step, (batch, units).
        kernel: (features, 4 units), gates in the order i, f, g, o of Keras.
        recurrent_kernel: (units, 4 units).
        bias: (4 units,).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        options: activations and solver.
        mask: boolean (time, batch), false where the states are carried over.
        scale: the dropout mask of the inputs, (batch, features), the same at every step.
        jit_compile: compile both loops by XLA, once for every shape of the inputs.

    Returns:
        The states.
    """
    if mask is not None:
        mask = mask[..., None]
        inputs = tf.where(mask, inputs, tf.zeros_like(inputs))  # padding may be anything
    constants = {"sqrt_rho": sqrt_rho, "options": options, "mask": mask, "scale": scale}

    def run(scan, tensors):
        def solve(*tensors):
            return _twice_if_needed(scan, tensors, constants)

        if jit_compile:
            solve = tf.function(solve, jit_compile=True, autograph=False)
        return solve(*(tf.stop_gradient(t) for t in tensors))

    @tf.autograph.experimental.do_not_convert
    @tf.custom_gradient
    def forward(*args):
        hiddens, carry, *residuals = run(_scan, args)

        def grad(d_hiddens, d_carry):
            return backward(*args, d_hiddens, d_carry, hiddens, *residuals)

        return (hiddens, carry), grad

    @tf.autograph.experimental.do_not_convert
    @tf.custom_gradient
    def backward(*tensors):
        cotangents = run(_scan_gradient, tensors)

        def grad(*upstream):
            args, outer = tensors[:6], tensors[6:8]
            with tf.GradientTape() as tape:
                tape.watch(tensors[:8])
                with tf.GradientTape() as inner:
                    inner.watch(args)
                    outputs = _differentiable_scan(*args, **constants)
                values = inner.gradient(outputs, args, outer, unconnected_gradients="zero")
            second = tape.gradient(values, tensors[:8], upstream, unconnected_gradients="zero")
            return *second, *[None] * len(tensors[8:])

        return cotangents, grad

    return LSTMStates(*forward(inputs, hidden, carry, kernel, recurrent_kernel, bias))


def _twice_if_needed(scan, tensors, constants):
    """`scan` with `FIXED_STEPS`, and again with tests of convergence if it was not solved."""
    solver = constants["options"].solver
    if solver.method != "cg" or solver.tolerance_for(tensors[0].dtype) < 1e-6:
        return scan(*tensors, **constants, fixed_steps=0)[1:]
    converged, *values = scan(*tensors, **constants, fixed_steps=FIXED_STEPS)
    return tf.cond(
        converged, lambda: tuple(values), lambda: scan(*tensors, **constants, fixed_steps=0)[1:]
    )


def _length(x):
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def _unstack(*tensors):
    """One TensorArray a tensor, along its first axis."""

    def array(x):
        ta = tf.TensorArray(x.dtype, size=_length(x), element_shape=x.shape[1:])
        return ta.unstack(x)

    return [None if x is None else array(x) for x in tensors]


def _read(arrays, t):
    return [None if a is None else a.read(t) for a in arrays]


def _for_results(steps, *like):
    """Empty TensorArrays for the results of `steps` steps, elements shaped as `like`."""
    return tuple(tf.TensorArray(x.dtype, size=steps, element_shape=x.shape) for x in like)


def _project(x, kernel, bias, scale):
    """x W + b for all steps at once, the candidate last."""
    scaled = x if scale is None else x * scale
    return tf.tensordot(scaled, candidate_last(kernel), 1) + candidate_last(bias)


def _gate_kernels(kernel, sqrt_rho, scale):
    gates = sqrt_rho * kernel[:, : 3 * (kernel.shape[-1] // 4)]
    return GateKernels(gates, tf.transpose(gates), scale)


def _differentiable_scan(
    x, hidden, carry, kernel, recurrent_kernel, bias, sqrt_rho, options, mask, scale
):
    """`prox_lstm` by a loop over `prox_lstm_step`, for a tape to differentiate."""
    steps = _length(x)
    z, recurrent = _project(x, kernel, bias, scale), candidate_last(recurrent_kernel)
    kernels = _gate_kernels(kernel, sqrt_rho, scale)
    inputs = _unstack(z, mask)

    def step(t, h, c, hiddens):
        z, valid = _read(inputs, t)
        h_new, c_new = prox_lstm_step(z + h @ recurrent, c, kernels.kernel, scale, options)
        if valid is not None:
            h_new, c_new = tf.where(valid, h_new, h), tf.where(valid, c_new, c)
        return t + 1, h_new, c_new, hiddens.write(t, h_new)

    _, _, carry, hiddens = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (tf.constant(0), hidden, carry, *_for_results(steps, hidden)),
        maximum_iterations=steps,
    )
    return hiddens.stack(), carry


def _scan(
    x, hidden, carry, kernel, recurrent_kernel, bias, sqrt_rho, options, mask, scale, fixed_steps
):
    """Whether all was solved, the states, and what `_scan_gradient` needs of the forward pass."""
    steps = _length(x)
    z, recurrent = _project(x, kernel, bias, scale), candidate_last(recurrent_kernel)
    kernels = _gate_kernels(kernel, sqrt_rho, scale)
    inputs = _unstack(z, mask)

    def step(t, h, c, converged, arrays):
        z, valid = _read(inputs, t)
        z += h @ recurrent
        s, o, slopes = lstm_gates(z, c, options)
        if valid is not None:
            s = tf.where(valid, s, tf.zeros_like(s))  # nothing to solve where masked
        solved = solve_gates(s, slopes, kernels, options.solver, fixed_steps)
        c_new = solved.remainder
        h_new = o * options.activation(c_new if options.output_from_prox else s)
        if valid is not None:
            h_new, c_new = tf.where(valid, h_new, h), tf.where(valid, c_new, c)
        converged &= tf.reduce_all(solved.converged)
        results = (h_new, c_new, z, solved.solution)
        arrays = tuple(a.write(t, r) for a, r in zip(arrays, results, strict=True))
        return t + 1, h_new, c_new, converged, arrays

    arrays = _for_results(steps, hidden, carry, z[0], x[0])
    _, _, carry, converged, arrays = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (tf.constant(0), hidden, carry, tf.constant(True), arrays),
        maximum_iterations=steps,
    )
    hiddens, carries, z, u = (a.stack() for a in arrays)
    return converged, hiddens, carry, carries, z, u


def _scan_gradient(
    x,
    hidden,
    carry,
    kernel,
    recurrent_kernel,
    bias,
    d_hiddens,
    d_carry,
    hiddens,
    carries,
    z,
    u,
    sqrt_rho,
    options,
    mask,
    scale,
    fixed_steps,
):
    """Whether all was solved, and the cotangents of the first six arguments."""
    steps, units, features = _length(x), hidden.shape[-1], x.shape[-1]
    kernels = _gate_kernels(kernel, sqrt_rho, scale)
    all_steps = kernels
    if scale is not None:
        flat = tf.reshape(tf.broadcast_to(scale, tf.shape(x)), [-1, features])
        all_steps = kernels._replace(scale=flat)
    c_prev = tf.concat([carry[None], carries[:-1]], 0)
    h_prev = tf.concat([hidden[None], hiddens[:-1]], 0)
    products_u = tf.reshape(
        all_steps.products(_rows(u)), tf.concat([tf.shape(u)[:2], [3 * units]], 0)
    )
    inputs = _unstack(d_hiddens, z, c_prev, carries, products_u, mask)
    recurrent_t = tf.transpose(recurrent_kernel)

    def step(n, dh, dc, converged, arrays):
        t = steps - 1 - n
        d_hidden, z, c_prev, c, products_u, valid = _read(inputs, t)
        dh += d_hidden
        dh_in, dc_in = dh, dc
        if valid is not None:
            dh_in = tf.where(valid, dh, tf.zeros_like(dh))
            dc_in = tf.where(valid, dc, tf.zeros_like(dc))
        z_gates, z_candidate = tf.split(z, [3 * units, units], axis=-1)
        gates, d_gates, dd_gates = value_slope_curvature(options.recurrent_activation, z_gates)
        g, dg, ddg = value_slope_curvature(options.activation, z_candidate)
        i, f, o = tf.split(gates, 3, axis=-1)
        di, df, do = tf.split(d_gates, 3, axis=-1)
        ddi, ddf, _ = tf.split(dd_gates, 3, axis=-1)
        factors = tf.concat([g, c_prev, i], axis=-1)
        slopes = factors * tf.concat([di, df, dg], axis=-1)  # ds/dz, (9)

        y, dy = value_and_slope(
            options.activation, c if options.output_from_prox else f * c_prev + i * g
        )
        d_state = dh_in * o * dy
        if options.output_from_prox:
            dc_in += d_state
        solved = solve_gates(dc_in, slopes, kernels, options.solver, fixed_steps)
        a, w = solved.remainder, solved.solution
        ds = a if options.output_from_prox else a + d_state
        a3, c3 = side_by_side(a), side_by_side(c)
        e = a3 * products_u + c3 * kernels.products(w)  # minus the cotangent of slopes, (8)
        ei, ef, eg = tf.split(e, 3, axis=-1)
        cross = di * dg  # the slope of i depends on z of g, and of g on z of i
        dz = side_by_side(ds) * slopes - e * factors * tf.concat([ddi, ddf, ddg], axis=-1)
        dzi, dzf, dzg = tf.split(dz, 3, axis=-1)
        dz = tf.concat([dzi - eg * cross, dzf, dzg - ei * cross, dh_in * y * do], axis=-1)
        dh_prev, dc_prev = dz @ recurrent_t, ds * f - ef * df
        if valid is not None:
            dh_prev, dc_prev = tf.where(valid, dh_prev, dh), tf.where(valid, dc_prev, dc)
        converged &= tf.reduce_all(solved.converged)
        results = (dz, w, slopes * a3, slopes * c3)
        arrays = tuple(array.write(t, r) for array, r in zip(arrays, results, strict=True))
        return n + 1, dh_prev, dc_prev, converged, arrays

    arrays = _for_results(steps, z[0], x[0], products_u[0], products_u[0])
    _, dh, dc, converged, arrays = tf.while_loop(
        lambda n, *_: n < steps,
        step,
        (tf.constant(0), tf.zeros_like(hidden), d_carry, tf.constant(True), arrays),
        maximum_iterations=steps,
    )
    dz, w, slopes_a, slopes_c = (array.stack() for array in arrays)
    dx = tf.tensordot(dz, tf.transpose(kernel), 1)
    if scale is not None:
        dx, x = dx * scale, x * scale
    # (8) contracted with (9), for all steps at once
    from_prox = all_steps.outer(_rows(u), _rows(slopes_a))
    from_prox += all_steps.outer(_rows(w), _rows(slopes_c))
    dz = _rows(dz)
    d_kernel = tf.matmul(_rows(x), dz, transpose_a=True)
    d_kernel -= sqrt_rho * tf.pad(from_prox, [[0, 0], [0, units]])
    d_recurrent = tf.matmul(_rows(h_prev), dz, transpose_a=True)
    return converged, dx, dh, dc, d_kernel, d_recurrent, tf.reduce_sum(dz, axis=0)


def _rows(x):
    return tf.reshape(x, [-1, x.shape[-1]])
