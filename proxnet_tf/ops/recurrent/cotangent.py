"""The adjoint of one step of a proximal LSTM: the one place where it is contracted.

For a cotangent dc of c in (6), with a and w the c and u of (7) for dc in the place of s (paper,
eq. ell_s and ell_G),

    ds = a,    dJ = -(a u^T + c w^T).                              (8)

With J of (9) this becomes, o the elementwise product and k = i, f, g,

    d slopes_k = -(a o (u K_k) + c o (w K_k)),
    dK_k = -(u (slopes_k o a)^T + w (slopes_k o c)^T).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.implicit import Explained, Tensors, implicit_state, with_gradient
from proxnet_tf.ops.recurrent.solve import CG, Solved, Solver
from proxnet_tf.ops.recurrent.step import (
    TANH_SIGMOID,
    GateKernels,
    LSTMOptions,
    lstm_gates,
    lstm_step,
    side_by_side,
    solve_gates,
    value_slope_curvature,
)


def slopes_cotangent(
    a: tf.Tensor, products_w: tf.Tensor, c: tf.Tensor, products_u: tf.Tensor
) -> tf.Tensor:
    """d slopes, (batch, 3 units), from the products w K_k and u K_k side by side."""
    return -(side_by_side(a) * products_u + side_by_side(c) * products_w)


def kernel_cotangent(
    kernels: GateKernels,
    slopes_a: tf.Tensor,
    w: tf.Tensor,
    slopes_c: tf.Tensor,
    u: tf.Tensor,
) -> tf.Tensor:
    """dK, (features, 3 units), summed over the rows; slopes_a is slopes o [a a a]."""
    return -(kernels.outer(u, slopes_a) + kernels.outer(w, slopes_c))


class StepCotangent(NamedTuple):
    """What `step_cotangent` finds.

    Attributes:
        z: cotangent of the pre-activations, (batch, 4 units).
        c_prev: cotangent of the previous state, (batch, units).
        w: u of (7) for the cotangent of c, (batch, features).
        slopes_a: slopes o [a a a], (batch, 3 units).
        slopes_c: slopes o [c c c].
        report: how well the linear system was solved.
    """

    z: tf.Tensor
    c_prev: tf.Tensor
    w: tf.Tensor
    slopes_a: tf.Tensor
    slopes_c: tf.Tensor
    report: Report


def step_cotangent(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    c: tf.Tensor,
    products_u: tf.Tensor,
    dh: tf.Tensor,
    dc: tf.Tensor,
    kernels: GateKernels,
    options: LSTMOptions,
) -> StepCotangent:
    """The cotangents of `lstm_step`, but that of the kernels: see `kernel_cotangent`.

    Args:
        z, c_prev: the arguments of the step.
        c: its proximal state, (batch, units).
        products_u: `products` of its solution, (batch, 3 units).
        dh, dc: cotangents of h and c, (batch, units).
        kernels: (9).
        options: activations and solver.
    """
    units = c_prev.shape[-1]
    z_if, z_g, z_o = tf.split(z, [2 * units, units, units], axis=-1)
    i_and_f, d_if, dd_if = value_slope_curvature(options.recurrent_activation, z_if)
    g, dg, ddg = value_slope_curvature(options.activation, z_g)
    o, do, _ = value_slope_curvature(options.recurrent_activation, z_o)
    i, f = tf.split(i_and_f, 2, axis=-1)
    di, df = tf.split(d_if, 2, axis=-1)
    factors = tf.concat([g, c_prev, i], axis=-1)
    slopes = factors * tf.concat([d_if, dg], axis=-1)  # also ds/dz
    y, dy, _ = value_slope_curvature(
        options.activation, c if options.output_from_prox else f * c_prev + i * g
    )
    from_h = dh * o * dy
    solved = solve_gates(
        dc + from_h if options.output_from_prox else dc, slopes, kernels, options.solver
    )
    a = solved.c
    ds = a if options.output_from_prox else a + from_h
    d_slopes = slopes_cotangent(a, solved.products, c, products_u)
    d_slope_i, d_slope_f, d_slope_g = tf.split(d_slopes, 3, axis=-1)
    cross = di * dg  # slope_i depends on g, and slope_g on i
    dz = side_by_side(ds) * slopes + d_slopes * factors * tf.concat([dd_if, ddg], axis=-1)
    dz_i, dz_f, dz_g = tf.split(dz, 3, axis=-1)
    dz = [dz_i + d_slope_g * cross, dz_f, dz_g + d_slope_i * cross, dh * y * do]
    return StepCotangent(
        tf.concat(dz, axis=-1),
        ds * f + d_slope_f * df,
        solved.u,
        slopes * side_by_side(a),
        slopes * side_by_side(c),
        solved.report,
    )


def prox_state(
    s: tf.Tensor,
    slopes: tf.Tensor,
    kernel: tf.Tensor,
    scale: tf.Tensor | None = None,
    solver: Solver = CG,
) -> tf.Tensor:
    """The proximal state (6) of an LSTM, differentiable in s, slopes and kernel to every order.

    Args:
        s: the new cell state, (batch, units).
        slopes: (9), (batch, 3 units).
        kernel: [K_i K_f K_g] of (9), (features, 3 units).
        scale: the dropout mask of the input (a constant), see `GateKernels`.
        solver: how the system is solved.

    Returns:
        c, (batch, units).
    """
    if solver.method == "cholesky":
        return solve_gates(s, slopes, GateKernels(kernel, scale=scale), solver).c

    def solve(slopes: tf.Tensor, kernel: tf.Tensor, rhs: tf.Tensor) -> Solved:
        return solve_gates(rhs, slopes, GateKernels(kernel, scale=scale), solver)

    def transpose(slopes: tf.Tensor, kernel: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return GateKernels(kernel, scale=scale).transpose(slopes * side_by_side(c))

    def contract(
        slopes: tf.Tensor,
        kernel: tf.Tensor,
        a: tf.Tensor,
        w: tf.Tensor,
        c: tf.Tensor,
        u: tf.Tensor,
    ) -> Tensors:
        kernels = GateKernels(kernel, scale=scale)
        slopes_a, slopes_c = slopes * side_by_side(a), slopes * side_by_side(c)
        return (
            slopes_cotangent(a, kernels.products(w), c, kernels.products(u)),
            kernel_cotangent(kernels, slopes_a, w, slopes_c, u),
        )

    return implicit_state([slopes, kernel], s, solve, transpose, contract)[0]


def composed_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    scale: tf.Tensor | None,
    options: LSTMOptions,
) -> tuple[tf.Tensor, tf.Tensor]:
    """h and c of one step by differentiable operations; the arguments of `prox_lstm_step`."""
    s, o, slopes = lstm_gates(z, c_prev, options)
    c = prox_state(s, slopes, kernel, scale, options.solver)
    return o * options.activation(c if options.output_from_prox else s), c


def _step(tensors: Tensors, constants: Sequence[Any], options: LSTMOptions) -> Explained:
    (z, c_prev, kernel), (scale,) = tensors, constants
    h, solved = lstm_step(z, c_prev, GateKernels(kernel, scale=scale), options)
    return Explained((h, solved.c), (solved.c, solved.u, solved.products), solved.report)


def _step_gradient(tensors: Tensors, constants: Sequence[Any], options: LSTMOptions) -> Explained:
    z, c_prev, kernel, dh, dc, c, u, products_u = tensors
    kernels = GateKernels(kernel, scale=constants[0])
    found = step_cotangent(z, c_prev, c, products_u, dh, dc, kernels, options)
    d_kernel = kernel_cotangent(kernels, found.slopes_a, found.w, found.slopes_c, u)
    return Explained((found.z, found.c_prev, d_kernel), (), found.report)


def prox_lstm_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    scale: tf.Tensor | None = None,
    options: LSTMOptions = TANH_SIGMOID,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """One time step from the pre-activations z = x W + h U + b, differentiable to every order.

    Args:
        z: (batch, 4 units), gates in the order i, f, g, o of Keras.
        c_prev: the previous proximal state, (batch, units).
        kernel: sqrt(rho) [W_i W_f W_g], (features, 3 units).
        scale: the dropout mask of the input or `None`, see `GateKernels`.
        options: activations and solver.
        observer: sees the report of the gradient's solve.
        jit_compile: compile the step and its gradient by XLA.

    Returns:
        h, c, both (batch, units), and the report of the solve.
    """
    (h, c), report = with_gradient(
        _step,
        _step_gradient,
        lambda tensors, constants, options: composed_step(*tensors, *constants, options),
        [z, c_prev, kernel],
        [scale],
        options,
        observer,
        jit_compile,
    )
    return h, c, report
