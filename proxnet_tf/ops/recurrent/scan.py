"""A proximal gated cell over a whole sequence, with the gradient through time written out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.cotangent import (
    composed_step,
    coupling_cotangent,
    gate_kernels,
    kernel_cotangent,
    step_cotangent,
    with_coupling,
)
from proxnet_tf.ops.recurrent.equations import GATES, Equations
from proxnet_tf.ops.recurrent.implicit import Explained, Tensors, with_gradient
from proxnet_tf.ops.recurrent.step import cell_step


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
    u_n: tf.Tensor | None = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> States:
    """A proximal gated cell over a whole sequence, differentiable to every order.

    In the first derivative, written out, the loop over time holds only what depends on later
    steps; the weights' gradients are products over all steps at once. Higher derivatives
    differentiate the loop over single steps.

    Args:
        inputs: (time, batch, features).
        hidden: h before the first step, (batch, units). Where the output is not fed back, what
            masked steps before the first valid one repeat.
        carry: c before the first step, (batch, units).
        kernel: (features, blocks * units), see `Equations`.
        recurrent_kernel: (units, blocks * units), without the last block where that is `u_n`.
        bias: of the pre-activations.
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        equations: of the cell.
        mask: boolean (time, batch), false where the states are carried over.
        scale: the dropout mask of the inputs, (batch, features), the same at every step.
        u_n: the kernel of the coupling, where the cell has one.
        observer: sees the report, (time, batch), of the solves in the first derivative.
        jit_compile: compile both loops by XLA, once for every shape of the inputs.

    Returns:
        The states.
    """
    if mask is not None:
        mask = mask[..., None]
        inputs = tf.where(mask, inputs, tf.zeros_like(inputs))  # padding may be anything
    (hidden, carry), report = with_gradient(
        _scan,
        _scan_gradient,
        _composed_scan,
        [inputs, hidden, carry, kernel, recurrent_kernel, bias, *([] if u_n is None else [u_n])],
        [sqrt_rho, mask, scale],
        equations,
        observer,
        jit_compile,
    )
    return States(hidden, carry, report)


def _length(x: tf.Tensor) -> Any:
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def _unstack(*tensors: tf.Tensor | None) -> list[tf.TensorArray | None]:
    """One TensorArray a tensor, along its first axis."""

    def array(x: tf.Tensor) -> tf.TensorArray:
        ta = tf.TensorArray(x.dtype, size=_length(x), element_shape=x.shape[1:])
        return ta.unstack(x)

    return [None if x is None else array(x) for x in tensors]


def _read(arrays: list[tf.TensorArray | None], t: tf.Tensor) -> list[Any]:
    return [None if a is None else a.read(t) for a in arrays]


def _write(arrays: tuple[tf.TensorArray, ...], t: tf.Tensor, *values: tf.Tensor) -> Any:
    return tuple(array.write(t, value) for array, value in zip(arrays, values, strict=True))


def _for_results(steps: Any, *like: tf.Tensor) -> tuple[tf.TensorArray, ...]:
    """Empty TensorArrays for the results of `steps` steps, elements shaped as `like`."""
    return tuple(tf.TensorArray(x.dtype, size=steps, element_shape=x.shape) for x in like)


def _project(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    scale: tf.Tensor | None,
    equations: Equations,
) -> tf.Tensor:
    """What the input and the bias have in the pre-activations, for all steps at once."""
    return equations.from_input(tf.tensordot(x if scale is None else x * scale, kernel, 1)) + bias


def _report(residual: tf.Tensor, iterations: tf.Tensor, equations: Equations) -> Report:
    tolerance = equations.solver.tolerance_for(residual.dtype)
    return Report(residual, iterations, residual <= tf.cast(tolerance, residual.dtype))


def _rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, x.shape[-1]])


def _composed_scan(
    arguments: Tensors, constants: Sequence[tf.Tensor | None], equations: Equations
) -> tuple[tf.Tensor, tf.Tensor]:
    """`prox_sequence` by a loop over `composed_step`, for a tape to differentiate."""
    (x, hidden, carry, kernel, recurrent_kernel, bias), u_n, _ = with_coupling(
        arguments, 6, equations
    )
    sqrt_rho, mask, scale = constants
    steps, kernels = _length(x), gate_kernels(kernel, u_n, (sqrt_rho, scale), equations)
    inputs = _unstack(_project(x, kernel, bias, scale, equations), mask)

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, hiddens: tf.TensorArray) -> Any:
        z, valid = _read(inputs, t)
        z += equations.from_recurrent((h if equations.feeds_output else c) @ recurrent_kernel)
        h_new, c_new = composed_step(z, c, kernels, equations)
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
    arguments: Tensors, constants: Sequence[tf.Tensor | None], equations: Equations
) -> Explained:
    """The states, and what `_scan_gradient` needs of the forward pass."""
    (x, hidden, carry, kernel, recurrent_kernel, bias), u_n, _ = with_coupling(
        arguments, 6, equations
    )
    sqrt_rho, mask, scale = constants
    steps, kernels = _length(x), gate_kernels(kernel, u_n, (sqrt_rho, scale), equations)
    z = _project(x, kernel, bias, scale, equations)
    inputs = _unstack(z, mask)

    def step(t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, most: tf.Tensor, arrays: Any) -> Any:
        z, valid = _read(inputs, t)
        z += equations.from_recurrent((h if equations.feeds_output else c) @ recurrent_kernel)
        h_new, solved = cell_step(z, c, kernels, equations, valid)
        c_new = solved.c
        if valid is not None:
            h_new, c_new = tf.where(valid, h_new, h), tf.where(valid, c_new, c)
        report = solved.report
        arrays = _write(arrays, t, h_new, c_new, z, solved.u, solved.products, report.residual)
        return t + 1, h_new, c_new, tf.maximum(most, report.iterations), arrays

    slopes = z[0, :, : GATES * hidden.shape[-1]]
    arrays = _for_results(steps, hidden, carry, z[0], x[0], slopes, slopes[:, 0])
    _, _, carry, iterations, arrays = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (tf.constant(0), hidden, carry, tf.constant(0), arrays),
        maximum_iterations=steps,
    )
    hiddens, carries, z, u, products, residual = (a.stack() for a in arrays)
    residuals = (hiddens, carries, z, u, products)
    return Explained((hiddens, carry), residuals, _report(residual, iterations, equations))


def _scan_gradient(
    tensors: Tensors, constants: Sequence[tf.Tensor | None], equations: Equations
) -> Explained:
    """The cotangents of the arguments."""
    arguments, u_n, (d_hiddens, d_carry, *saved) = with_coupling(tensors, 6, equations)
    x, hidden, carry, kernel, recurrent_kernel, _ = arguments
    hiddens, carries, z, u, products = saved
    sqrt_rho, mask, scale = constants
    steps, kernels = _length(x), gate_kernels(kernel, u_n, (sqrt_rho, scale), equations)
    c_prev = tf.concat([carry[None], carries[:-1]], 0)
    inputs = _unstack(d_hiddens, z, c_prev, carries, products, mask)
    recurrent_t = tf.transpose(recurrent_kernel)

    def step(n: tf.Tensor, dh: tf.Tensor, dc: tf.Tensor, most: tf.Tensor, arrays: Any) -> Any:
        t = steps - 1 - n
        d_hidden, z, c_prev, c, products, valid = _read(inputs, t)
        dh += d_hidden
        dh_in, dc_in = dh, dc
        if valid is not None:
            dh_in = tf.where(valid, dh, tf.zeros_like(dh))
            dc_in = tf.where(valid, dc, tf.zeros_like(dc))
        found = step_cotangent(z, c_prev, c, products, dh_in, dc_in, kernels, equations)
        d_fed, dc_prev = equations.to_recurrent(found.z) @ recurrent_t, found.c_prev
        if equations.feeds_output:
            dh_prev = d_fed
        else:
            dh_prev, dc_prev = tf.zeros_like(dh), dc_prev + d_fed
        if valid is not None:
            dh_prev, dc_prev = tf.where(valid, dh_prev, dh), tf.where(valid, dc_prev, dc)
        results = [found.z, found.w, found.slopes_a, found.slopes_c, found.report.residual]
        if u_n is not None:
            results.append(found.coupled)
        most = tf.maximum(most, found.report.iterations)
        return n + 1, dh_prev, dc_prev, most, _write(arrays, t, *results)

    like = [z[0], x[0], products[0], products[0], z[0, :, 0]]
    if u_n is not None:
        like.append(products[0])
    arrays = _for_results(steps, *like)
    _, dh, dc, iterations, arrays = tf.while_loop(
        lambda n, *_: n < steps,
        step,
        (tf.constant(0), tf.zeros_like(hidden), d_carry, tf.constant(0), arrays),
        maximum_iterations=steps,
    )
    dz, w, slopes_a, slopes_c, residual, *coupled = (array.stack() for array in arrays)
    d_coupling = [
        coupling_cotangent(*(_rows(t) for t in (factors, dz, slopes_a, slopes_c)))
        for factors in coupled
    ]
    if equations.feeds_output:
        fed = tf.concat([hidden[None], hiddens[:-1]], 0)
    else:
        fed = c_prev
    d_recurrent = tf.matmul(_rows(fed), equations.to_recurrent(_rows(dz)), transpose_a=True)
    dz, d_bias = equations.to_input(dz), tf.reduce_sum(_rows(dz), axis=0)
    dx = tf.tensordot(dz, tf.transpose(kernel), 1)
    if scale is not None:
        all_scales = tf.reshape(tf.broadcast_to(scale, tf.shape(x)), [-1, x.shape[-1]])
        kernels = kernels._replace(scale=all_scales)
        dx, x = dx * scale, x * scale
    d_kernel = tf.matmul(_rows(x), _rows(dz), transpose_a=True)
    rows = (_rows(t) for t in (slopes_a, w, slopes_c, u))
    d_kernel += kernel_cotangent(kernels, sqrt_rho, kernel.shape[-1], *rows)
    return Explained(
        (dx, dh, dc, d_kernel, d_recurrent, d_bias, *d_coupling),
        (),
        _report(residual, iterations, equations),
    )
