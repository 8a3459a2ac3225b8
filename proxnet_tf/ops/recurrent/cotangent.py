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
    GATES,
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
    sqrt_rho: tf.Tensor,
    slopes_a: tf.Tensor,
    w: tf.Tensor,
    slopes_c: tf.Tensor,
    u: tf.Tensor,
) -> tf.Tensor:
    """The part of J in the gradient of the input kernel, (features, 4 units).

    Args:
        kernels: of (9), made of the input kernel.
        sqrt_rho: the factor between the two.
        slopes_a: slopes o [a a a], (rows, 3 units); the rows are summed over.
        w: of (8), (rows, features).
        slopes_c: slopes o [c c c].
        u: of (8).
    """
    d_gates = -sqrt_rho * (kernels.outer(u, slopes_a) + kernels.outer(w, slopes_c))
    return tf.pad(d_gates, [[0, 0], [0, d_gates.shape[-1] // GATES]])


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
    s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver = CG
) -> tf.Tensor:
    """The proximal state (6) of an LSTM, differentiable to every order.

    Args:
        s: the new cell state, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9); gradients go to its `kernel`.
        solver: how the system is solved.

    Returns:
        c, (batch, units).
    """
    if solver.method == "cholesky":
        return solve_gates(s, slopes, kernels, solver).c

    def solve(inputs: Tensors, scale: tf.Tensor | None, rhs: tf.Tensor) -> Solved:
        return solve_gates(rhs, inputs[0], GateKernels(inputs[1], scale=scale), solver)

    def transpose(inputs: Tensors, scale: tf.Tensor | None, c: tf.Tensor) -> tf.Tensor:
        return GateKernels(inputs[1], scale=scale).transpose(inputs[0] * side_by_side(c))

    def contract(
        inputs: Tensors,
        scale: tf.Tensor | None,
        a: tf.Tensor,
        w: tf.Tensor,
        c: tf.Tensor,
        u: tf.Tensor,
    ) -> Tensors:
        slopes, gates = inputs[0], GateKernels(inputs[1], scale=scale)
        d_slopes = slopes_cotangent(a, gates.products(w), c, gates.products(u))
        slopes_a, slopes_c = slopes * side_by_side(a), slopes * side_by_side(c)
        return d_slopes, -(gates.outer(u, slopes_a) + gates.outer(w, slopes_c))

    inputs = [slopes, kernels.kernel]
    return implicit_state(inputs, s, kernels.scale, solve, transpose, contract)[0]


def composed_step(
    z: tf.Tensor, c_prev: tf.Tensor, kernels: GateKernels, options: LSTMOptions
) -> tuple[tf.Tensor, tf.Tensor]:
    """h and c of one step by differentiable operations."""
    s, o, slopes = lstm_gates(z, c_prev, options)
    c = prox_state(s, slopes, kernels, options.solver)
    return o * options.activation(c if options.output_from_prox else s), c


def _step(tensors: Tensors, constants: Sequence[Any], options: LSTMOptions) -> Explained:
    z, c_prev, kernel = tensors
    h, solved = lstm_step(z, c_prev, GateKernels.of(kernel, *constants), options)
    return Explained((h, solved.c), (solved.c, solved.u, solved.products), solved.report)


def _step_gradient(tensors: Tensors, constants: Sequence[Any], options: LSTMOptions) -> Explained:
    z, c_prev, kernel, dh, dc, c, u, products_u = tensors
    kernels = GateKernels.of(kernel, *constants)
    found = step_cotangent(z, c_prev, c, products_u, dh, dc, kernels, options)
    d_kernel = kernel_cotangent(kernels, constants[0], found.slopes_a, found.w, found.slopes_c, u)
    return Explained((found.z, found.c_prev, d_kernel), (), found.report)


def _composed(tensors: Tensors, constants: Sequence[Any], options: LSTMOptions) -> Tensors:
    z, c_prev, kernel = tensors
    return composed_step(z, c_prev, GateKernels.of(kernel, *constants), options)


def prox_lstm_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    sqrt_rho: tf.Tensor,
    scale: tf.Tensor | None = None,
    options: LSTMOptions = TANH_SIGMOID,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """One time step from the pre-activations z = x W + h U + b, differentiable to every order.

    Args:
        z: (batch, 4 units), gates in the order i, f, g, o of Keras.
        c_prev: the previous proximal state, (batch, units).
        kernel: the input kernel W, (features, 4 units).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
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
        _composed,
        [z, c_prev, kernel],
        [sqrt_rho, scale],
        options,
        observer,
        jit_compile,
    )
    return h, c, report
