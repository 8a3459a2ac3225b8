"""A proximal gated cell over a whole sequence, with the gradient through time written out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.equations import GATES, Equations, gather, spread
from proxnet_tf.ops.recurrent.implicit import Explained, Tensors, by_tape, with_gradient
from proxnet_tf.ops.recurrent.step import (
    GateKernels,
    cell_step,
    composed_step,
    kernel_cotangent,
    step_cotangent,
)


class States(NamedTuple):
    """States of a proximal cell over a sequence.

    Attributes:
        hidden: the output h of every step, (time, batch, units); repeated at masked steps.
        carry: c after the last step, (batch, units).
        report: how well each step's problem was solved, (time, batch); masked steps count as
            solved.
    """

    hidden: tf.Tensor
    carry: tf.Tensor
    report: Report


def prox_sequence(
    inputs: tf.Tensor,
    hidden: tf.Tensor,
    carry: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    sqrt_rho: tf.Tensor,
    equations: Equations,
    mask: tf.Tensor | None = None,
    scale: tf.Tensor | None = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> States:
    """A proximal gated cell over a whole sequence, differentiable to every order.

    The first derivative is written out. Its loop over time computes only what depends on later
    steps; the gradients of the weights are products over all steps at once. Higher derivatives
    differentiate the loop over single steps.

    Args:
        inputs: (time, batch, features).
        hidden: h before the first step, (batch, units). If the output is not fed back, it is only
            repeated at masked steps before the first valid one.
        carry: c before the first step, (batch, units).
        kernel: (features, blocks * units), see `Equations`.
        recurrent_kernel: (units, blocks * units).
        bias: of the pre-activations, (4 units,).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        equations: of the cell.
        mask: boolean (time, batch), false where the states are carried over.
        scale: the dropout mask of the inputs, (batch, features), the same at every step.
        observer: sees the report, (time, batch), of the solves in the first derivative.
        jit_compile: compile both loops by XLA, once for every shape of the inputs.

    Returns:
        The states.
    """
    if mask is not None:
        mask = mask[..., None]
        inputs = tf.where(mask, inputs, tf.zeros_like(inputs))  # padding may hold any values
    (hidden, carry), report = with_gradient(
        _scan,
        _scan_gradient,
        _composed_scan,
        [inputs, hidden, carry, kernel, recurrent_kernel, bias],
        [sqrt_rho, mask, scale],
        equations,
        observer,
        jit_compile,
    )
    return States(hidden, carry, report)


def _length(x: tf.Tensor) -> Any:
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def _loop(
    step: Any, inputs: Sequence[tf.Tensor | None], start: Any, like: Tensors, reverse: bool = False
) -> Any:
    """A loop over time, or backwards: returns the last state, and all values by time.

    Args:
        step: maps a state and the `inputs` of a time step to the next state and a list of values.
        inputs: tensors (time, ...) and `None`.
        start: the first state, a tuple of tensors.
        like: the values have the shapes and dtypes of these.
        reverse: whether time runs back.
    """
    steps = _length(inputs[0])

    def array(dtype: tf.DType, shape: tf.TensorShape) -> tf.TensorArray:
        return tf.TensorArray(dtype, size=steps, element_shape=shape)

    given = [None if x is None else array(x.dtype, x.shape[1:]).unstack(x) for x in inputs]

    def body(n: tf.Tensor, state: Any, arrays: Any) -> Any:
        t = steps - 1 - n if reverse else n
        state, values = step(state, *[None if a is None else a.read(t) for a in given])
        return n + 1, state, tuple(a.write(t, v) for a, v in zip(arrays, values, strict=True))

    first = tf.constant(0), start, tuple(array(x.dtype, x.shape) for x in like)
    _, last, arrays = tf.while_loop(lambda n, *_: n < steps, body, first, maximum_iterations=steps)
    return last, [a.stack() for a in arrays]


def _held(valid: tf.Tensor | None, new: Tensors, old: Tensors) -> Tensors:
    """`new`, and `old` where a step is masked."""
    if valid is None:
        return new
    return [tf.where(valid, n, o) for n, o in zip(new, old, strict=True)]


def _inputs(
    x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, scale: tf.Tensor | None, equations: Equations
) -> tf.Tensor:
    """The part of input and bias in the pre-activations, for all steps at once."""
    xw = tf.tensordot(x if scale is None else x * scale, kernel, 1)
    return spread(xw, equations.input_blocks) + bias


def _fed(h: tf.Tensor, c: tf.Tensor, kernel: tf.Tensor, equations: Equations) -> tf.Tensor:
    """The part of the previous step in the pre-activations."""
    return spread((h if equations.feeds_output else c) @ kernel, equations.recurrent_blocks)


def _kernels(
    kernel: tf.Tensor, sqrt_rho: tf.Tensor, scale: tf.Tensor | None, equations: Equations
) -> GateKernels:
    return GateKernels.of(kernel, equations, sqrt_rho, None if scale is None else [scale])


def _report(residual: tf.Tensor, iterations: tf.Tensor, equations: Equations) -> Report:
    tolerance = equations.solver.tolerance_for(residual.dtype)
    return Report(residual, iterations, residual <= tf.cast(tolerance, residual.dtype))


def _rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, x.shape[-1]])


@by_tape
def _composed_scan(arguments: Tensors, constants: Any, equations: Equations) -> Tensors:
    """`prox_sequence` by a loop over `composed_step`, for a tape to differentiate."""
    x, hidden, carry, kernel, recurrent_kernel, bias = arguments
    sqrt_rho, mask, scale = constants
    kernels = _kernels(kernel, sqrt_rho, scale, equations)
    xw = _inputs(x, kernel, bias, scale, equations)

    def step(state: Any, xw: tf.Tensor, valid: tf.Tensor | None) -> Any:
        h, c = state
        z = xw + _fed(h, c, recurrent_kernel, equations)
        h, c = _held(valid, composed_step(z, c, kernels, equations), (h, c))
        return (h, c), [h]

    (_, carry), (hiddens,) = _loop(step, [xw, mask], (hidden, carry), [hidden])
    return hiddens, carry


def _scan(arguments: Tensors, constants: Any, equations: Equations) -> Explained:
    """The states, and what `_scan_gradient` needs of the forward pass."""
    x, hidden, carry, kernel, recurrent_kernel, bias = arguments
    sqrt_rho, mask, scale = constants
    kernels = _kernels(kernel, sqrt_rho, scale, equations)
    kernels.preconditioner = kernels.shared_preconditioner()
    xw = _inputs(x, kernel, bias, scale, equations)

    def step(state: Any, xw: tf.Tensor, valid: tf.Tensor | None) -> Any:
        h, c, most = state
        z = xw + _fed(h, c, recurrent_kernel, equations)
        h_new, solved = cell_step(z, c, kernels, equations, valid)
        h, c = _held(valid, (h_new, solved.c), (h, c))
        most = tf.maximum(most, solved.report.iterations)
        return (h, c, most), [h, c, z, solved.u, solved.products, solved.report.residual]

    slopes = xw[0, :, : GATES * hidden.shape[-1]]
    like = [hidden, carry, xw[0], x[0], slopes, slopes[:, 0]]
    state, found = _loop(step, [xw, mask], (hidden, carry, tf.constant(0)), like)
    _, carry, iterations = state
    *residuals, residual = found
    report = _report(residual, iterations, equations)
    return Explained((residuals[0], carry), (*residuals, kernels.preconditioner), report)


def _scan_gradient(tensors: Tensors, constants: Any, equations: Equations) -> Explained:
    """The cotangents of the arguments."""
    x, hidden, carry, kernel, recurrent_kernel, _, d_hiddens, d_carry, *saved = tensors
    hiddens, carries, z, u, products, preconditioner = saved
    sqrt_rho, mask, scale = constants
    kernels = _kernels(kernel, sqrt_rho, scale, equations)
    kernels.preconditioner = preconditioner
    c_prev = tf.concat([carry[None], carries[:-1]], 0)
    recurrent_t = tf.transpose(recurrent_kernel)

    def step(state: Any, d_hidden: tf.Tensor, *given: Any) -> Any:
        (dh, dc, most), (z, c_prev, c, products, valid) = state, given
        dh += d_hidden
        dh_in, dc_in = _held(valid, (dh, dc), (tf.zeros_like(dh), tf.zeros_like(dc)))
        found = step_cotangent(z, c_prev, c, products, dh_in, dc_in, kernels, equations)
        d_fed = gather(found.z, equations.recurrent_blocks) @ recurrent_t
        if equations.feeds_output:
            d_prev = d_fed, found.c_prev
        else:
            d_prev = tf.zeros_like(dh), found.c_prev + d_fed
        dh, dc = _held(valid, d_prev, (dh, dc))
        most = tf.maximum(most, found.report.iterations)
        values = [found.z, found.w, found.slopes_a, found.slopes_c, found.report.residual]
        return (dh, dc, most), values

    state, found = _loop(
        step,
        [d_hiddens, z, c_prev, carries, products, mask],
        (tf.zeros_like(hidden), d_carry, tf.constant(0)),
        [z[0], x[0], products[0], products[0], z[0, :, 0]],
        reverse=True,
    )
    (dh, dc, iterations), (dz, w, slopes_a, slopes_c, residual) = state, found
    fed = tf.concat([hidden[None], hiddens[:-1]], 0) if equations.feeds_output else c_prev
    d_fed = gather(_rows(dz), equations.recurrent_blocks)
    d_recurrent = tf.matmul(_rows(fed), d_fed, transpose_a=True)
    d_inputs, d_bias = gather(dz, equations.input_blocks), tf.reduce_sum(_rows(dz), axis=0)
    dx = tf.tensordot(d_inputs, tf.transpose(kernel), 1)
    if scale is not None:
        dx, x, scale = dx * scale, x * scale, _rows(tf.broadcast_to(scale, tf.shape(x)))
    d_kernel = tf.matmul(_rows(x), _rows(d_inputs), transpose_a=True)
    d_kernel += kernel_cotangent(
        _kernels(kernel, sqrt_rho, scale, equations),
        sqrt_rho,
        kernel.shape[-1],
        *(_rows(t) for t in (slopes_a, w, slopes_c, u)),
    )
    report = _report(residual, iterations, equations)
    return Explained((dx, dh, dc, d_kernel, d_recurrent, d_bias), (), report)
