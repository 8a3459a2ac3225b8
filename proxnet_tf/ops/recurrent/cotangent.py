"""The adjoint of one step of a proximal gated cell: the one place where it is contracted.

For a cotangent dc of c in (6), with a and w the c and u of (7) for dc in the place of s (paper,
eq. ell_s and ell_G),

    ds = a,    dJ = -(a u^T + c w^T).                              (8)

With J of (9) this becomes, o the elementwise product,

    d slopes_k = -(a o (u K_k) + c o (w K_k)),
    dK_k = -(u (slopes_k o a)^T + w (slopes_k o c)^T).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.equations import Equations, side_by_side
from proxnet_tf.ops.recurrent.implicit import Explained, Tensors, implicit_state, with_gradient
from proxnet_tf.ops.recurrent.solve import CG, Solved, Solver
from proxnet_tf.ops.recurrent.step import GateKernels, cell_step, solve_gates


def slopes_cotangent(
    a: tf.Tensor, products_w: tf.Tensor, c: tf.Tensor, products_u: tf.Tensor
) -> tf.Tensor:
    """d slopes, (batch, 3 units), from the products w K_k and u K_k side by side."""
    return -(side_by_side(a) * products_u + side_by_side(c) * products_w)


def kernel_cotangent(
    kernels: GateKernels,
    sqrt_rho: tf.Tensor,
    width: int,
    slopes_a: tf.Tensor,
    w: tf.Tensor,
    slopes_c: tf.Tensor,
    u: tf.Tensor,
) -> tf.Tensor:
    """The part of J in the gradient of the input kernel, (features, `width`).

    Args:
        kernels: of (9), made of the input kernel.
        sqrt_rho: the factor between the two.
        width: of the input kernel.
        slopes_a: slopes o [a a a], (rows, 3 units); the rows are summed over.
        w: of (8), (rows, features).
        slopes_c: slopes o [c c c].
        u: of (8).
    """
    d_gates = -sqrt_rho * (kernels.outer(u, slopes_a) + kernels.outer(w, slopes_c))
    return tf.pad(d_gates, [[0, 0], [0, width - d_gates.shape[-1]]])


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
    equations: Equations,
) -> StepCotangent:
    """The cotangents of `cell_step`, but that of the kernels: see `kernel_cotangent`.

    Args:
        z, c_prev: the arguments of the step.
        c: its proximal state, (batch, units).
        products_u: `products` of its solution, (batch, 3 units).
        dh, dc: cotangents of h and c, (batch, units).
        kernels: (9).
        equations: of the cell.
    """
    adjoint = equations.adjoint(z, c_prev, c, dh)
    from_h, slopes, from_prox = adjoint.from_output, adjoint.slopes, equations.output_from_prox
    solved = solve_gates(dc + from_h if from_prox else dc, slopes, kernels, equations.solver)
    a = solved.c
    ds = a if from_prox else a + from_h
    dz, dc_prev = adjoint.finish(ds, slopes_cotangent(a, solved.products, c, products_u))
    return StepCotangent(
        dz,
        dc_prev,
        solved.u,
        slopes * side_by_side(a),
        slopes * side_by_side(c),
        solved.report,
    )


def prox_state(
    s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver = CG
) -> tf.Tensor:
    """The proximal state (6) of a gated cell, differentiable to every order.

    Args:
        s: the new state, (batch, units).
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
    z: tf.Tensor, c_prev: tf.Tensor, kernels: GateKernels, equations: Equations
) -> tuple[tf.Tensor, tf.Tensor]:
    """h and c of one step by differentiable operations."""
    s, slopes, gate = equations.new_state(z, c_prev)
    c = prox_state(s, slopes, kernels, equations.solver)
    return equations.output(c if equations.output_from_prox else s, gate), c


def _step(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Explained:
    z, c_prev, kernel = tensors
    kernels = GateKernels.of(kernel, equations.blocks, *constants)
    h, solved = cell_step(z, c_prev, kernels, equations)
    return Explained((h, solved.c), (solved.c, solved.u, solved.products), solved.report)


def _step_gradient(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Explained:
    z, c_prev, kernel, dh, dc, c, u, products_u = tensors
    kernels = GateKernels.of(kernel, equations.blocks, *constants)
    found = step_cotangent(z, c_prev, c, products_u, dh, dc, kernels, equations)
    d_kernel = kernel_cotangent(
        kernels, constants[0], kernel.shape[-1], found.slopes_a, found.w, found.slopes_c, u
    )
    return Explained((found.z, found.c_prev, d_kernel), (), found.report)


def _composed(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Tensors:
    z, c_prev, kernel = tensors
    kernels = GateKernels.of(kernel, equations.blocks, *constants)
    return composed_step(z, c_prev, kernels, equations)


def prox_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    sqrt_rho: tf.Tensor,
    equations: Equations,
    scale: tf.Tensor | None = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """One time step from the pre-activations, differentiable to every order.

    Args:
        z: the pre-activations, (batch, 4 units), see `Equations`.
        c_prev: the previous proximal state, (batch, units).
        kernel: the input kernel W, (features, blocks * units).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        equations: of the cell.
        scale: the dropout mask of the input or `None`, see `GateKernels`.
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
        equations,
        observer,
        jit_compile,
    )
    return h, c, report
