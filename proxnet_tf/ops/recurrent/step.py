"""One step of a proximal gated cell and its adjoint, matrix-free (Li, Ma, Zhang, 2020, section 4).

Equations (6) to (8) are in `implicit.py`. Here J v is

    J v = sum_k slopes_k o (v K_k),   K_k = sqrt(rho) W_k,                              (9)

where k runs over the three gates that make the state, W_k is the input kernel of a gate, and
slopes_k is the elementwise derivative of the new state in the gate's pre-activation. So J v takes
one product with the K_k side by side, a scaling and a sum. With (9), (8) becomes

    d slopes_k = -(a o (u K_k) + c o (w K_k)),
    dK_k = -(u (slopes_k o a)^T + w (slopes_k o c)^T).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.once import check_tapes
from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.equations import GATES, Equations
from proxnet_tf.ops.recurrent.implicit import (
    Explained,
    Solved,
    Solver,
    Tensors,
    by_tape,
    implicit_state,
    solve_by_products,
    with_gradient,
)

Masks = Sequence[tf.Tensor] | None  # of dropout: one, or one for each block of a kernel


def side_by_side(x: tf.Tensor) -> tf.Tensor:
    """[x, x, x]: the same for every gate, (..., 3 units)."""
    return tf.concat([x] * GATES, axis=-1)


def sum_gates(x: tf.Tensor) -> tf.Tensor:
    """The transpose of `side_by_side`."""
    first, second, third = tf.split(x, GATES, axis=-1)
    return first + second + third


def masked_product(x: tf.Tensor, kernel: tf.Tensor, masks: Masks) -> tf.Tensor:
    """x W with no mask, with one, or with one mask a block of W."""
    if masks is None:
        return x @ kernel
    parts = zip(masks, tf.split(kernel, len(masks), axis=-1), strict=True)
    return tf.concat([(x * mask) @ k for mask, k in parts], axis=-1)


class Preconditioner(NamedTuple):
    """M^-1 for an M near I + J^T J, one for all examples and steps.

    Attributes:
        inverse: M^-1, (features, features).
        needed: boolean scalar, False if the eigenvalues of M are all near 1: M^-1 then costs more
            products than it saves.
    """

    inverse: tf.Tensor
    needed: tf.Tensor

    def apply(self, r: tf.Tensor) -> tf.Tensor:
        """r -> r M^-1."""
        return tf.cond(self.needed, lambda: r @ self.inverse, lambda: r)


class GateKernels:
    """The linear part of J in (9): v -> v K_k for every gate, its transpose and its gradient.

    Args:
        kernel: the K_k side by side, (features, 3 units).
        masks: of the input, each (batch, features), see `masked_product`.
    """

    preconditioner: Preconditioner | None = None  # of `shared_preconditioner`, for many steps

    def __init__(self, kernel: tf.Tensor, masks: Masks = None):
        self.kernel, self.masks = kernel, masks
        self._transposed = tf.transpose(kernel)

    def shared_preconditioner(self) -> Preconditioner | None:
        """M = I + J^T J with gates at rest, for many steps with this kernel.

        At rest the state has the slope 1/2 in its candidate, the last of the gates, and 0 in the
        others. There is no preconditioner with more features than units (J^T J is singular, in
        other directions for every example), nor with masks (M is far from I + J^T J).
        """
        features, units = self.kernel.shape[0], self.kernel.shape[1] // GATES
        if features > units or self.masks is not None:
            return None
        candidate = self.kernel[:, -units:] / 2
        matrix = tf.matmul(candidate, candidate, transpose_b=True)
        matrix += tf.eye(features, dtype=matrix.dtype)
        bound = tf.reduce_max(tf.reduce_sum(tf.abs(matrix), axis=-1))  # of the eigenvalues
        return Preconditioner(approximate_inverse(matrix, bound), bound > 2.0)

    @classmethod
    def of(
        cls, kernel: tf.Tensor, equations: Equations, sqrt_rho: tf.Tensor, masks: Masks = None
    ) -> "GateKernels":
        """Made of the input kernel of the layer, (features, blocks * units), and all its masks."""
        units = kernel.shape[-1] // len(equations.input_blocks)
        masks = None if masks is None else masks[:GATES]
        return cls(sqrt_rho * kernel[:, : GATES * units], masks)

    def products(self, v: tf.Tensor) -> tf.Tensor:
        """v K_k side by side, from (batch, features) to (batch, 3 units)."""
        return masked_product(v, self.kernel, self.masks)

    def transpose(self, t: tf.Tensor) -> tf.Tensor:
        """sum_k t_k K_k^T, from (batch, 3 units) to (batch, features)."""
        if self.masks is None:
            return t @ self._transposed
        number = len(self.masks)
        gates = tf.split(t, number, axis=-1), tf.split(self._transposed, number, axis=0)
        return tf.add_n([(t_k @ k) * m for m, t_k, k in zip(self.masks, *gates, strict=True)])

    def outer(self, v: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """The gradient of <t, products(v)> in the kernel, (features, 3 units)."""
        if self.masks is None:
            return tf.matmul(v, t, transpose_a=True)
        parts = zip(self.masks, tf.split(t, len(self.masks), axis=-1), strict=True)
        return tf.concat([tf.matmul(v * m, t_k, transpose_a=True) for m, t_k in parts], axis=-1)


def approximate_inverse(matrix: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """The inverse of a symmetric positive definite A by Newton's iteration, X <- X (2 I - A X).

    X is a polynomial of A and positive definite. The inverses of eigenvalues of A far below
    bound / 2^16 come out too small, and do not overflow.

    Args:
        matrix: A.
        bound: of its eigenvalues.
    """

    def step(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return k + 1, 2.0 * x - x @ matrix @ x

    start = tf.eye(matrix.shape[0], dtype=matrix.dtype) / bound
    return tf.while_loop(lambda k, x: k < 16, step, (tf.constant(0), start))[1]


def solve_gates(s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver) -> Solved:
    """Solves (7) for the Jacobian of a cell's gates.

    Args:
        s: right-hand side, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9).
        solver: tolerance and bound.

    Returns:
        The solution; its `products` are u K_k side by side, (batch, 3 units).
    """
    return solve_by_products(
        s,
        product=kernels.products,
        total=lambda products: sum_gates(slopes * products),
        transpose=lambda t: kernels.transpose(slopes * side_by_side(t)),
        solver=solver,
        width=slopes.shape[-1],
        preconditioner=kernels.preconditioner and kernels.preconditioner.apply,
    )


class NewState(NamedTuple):
    """What a cell computes from its pre-activations.

    Attributes:
        s: the new state before the proximal map, (batch, units).
        gate: of the output, (batch, units), or `None`.
        slopes: (9), (batch, 3 units).
    """

    s: tf.Tensor
    gate: tf.Tensor | None
    slopes: tf.Tensor


def new_state_of(z: tf.Tensor, c_prev: tf.Tensor, equations: Equations) -> NewState:
    """The new state and its slopes: s is elementwise in z, so one gradient gives all slopes."""
    with tf.GradientTape() as tape:
        tape.watch(z)
        s, gate = equations.new_state(z, c_prev)
    slopes = tape.gradient(s, z)
    if slopes is None:  # all activations are constant, or no tape records
        check_tapes()
        slopes = tf.zeros_like(z)
    return NewState(s, gate, slopes[:, : GATES * s.shape[-1]])


def cell_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernels: GateKernels,
    equations: Equations,
    valid: tf.Tensor | None = None,
) -> tuple[tf.Tensor, Solved]:
    """h, (batch, units), and the proximal state of one time step; `prox_step` differentiates.

    Args:
        z: the pre-activations, (batch, 4 units).
        c_prev: the previous proximal state, (batch, units).
        kernels: (9).
        equations: of the cell.
        valid: boolean (batch, 1); where False no problem is solved.
    """
    s, gate, slopes = new_state_of(z, c_prev, equations)
    if valid is not None:
        s = tf.where(valid, s, tf.zeros_like(s))
    solved = solve_gates(s, slopes, kernels, equations.solver)
    return equations.output(solved.c if equations.output_from_prox else s, gate), solved


class StepCotangent(NamedTuple):
    """The result of `step_cotangent`.

    Attributes:
        z: cotangent of the pre-activations.
        c_prev: cotangent of the previous state, (batch, units).
        w: u of (7) for the cotangent of c, (batch, features).
        slopes_a: slopes o [a a a], (batch, 3 units).
        slopes_c: slopes o [c c c], (batch, 3 units).
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
    """The cotangents of `cell_step`, except that of the kernel: see `kernel_cotangent`.

    Args:
        z, c_prev: the arguments of the step.
        c: its proximal state, (batch, units).
        products_u: `products` of its solution, (batch, 3 units).
        dh, dc: cotangents of h and c, (batch, units).
        kernels: (9).
        equations: of the cell.
    """
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, c_prev, c])
        s, gate, slopes = new_state_of(z, c_prev, equations)
        h = equations.output(c if equations.output_from_prox else s, gate)
    if equations.output_from_prox:
        dc += tape.gradient(h, c, dh)
    solved = solve_gates(dc, slopes, kernels, equations.solver)
    a, c = side_by_side(solved.c), side_by_side(c)
    d_slopes = -(a * products_u + c * solved.products)
    dz, dc_prev = tape.gradient(
        [s, slopes, h], [z, c_prev], [solved.c, d_slopes, dh], unconnected_gradients="zero"
    )
    return StepCotangent(dz, dc_prev, solved.u, slopes * a, slopes * c, solved.report)


def kernel_cotangent(
    kernels: GateKernels,
    sqrt_rho: tf.Tensor,
    width: int,
    slopes_a: tf.Tensor,
    w: tf.Tensor,
    slopes_c: tf.Tensor,
    u: tf.Tensor,
) -> tf.Tensor:
    """The part of the input kernel's gradient that comes through J, (features, `width`).

    Args:
        kernels: of (9), made of the input kernel.
        sqrt_rho: the factor between the two.
        width: of the input kernel.
        slopes_a: see `StepCotangent`, (rows, 3 units); the rows are summed over.
        w: of (8), (rows, features).
        slopes_c: see `StepCotangent`.
        u: of (8).
    """
    d_gates = -sqrt_rho * (kernels.outer(u, slopes_a) + kernels.outer(w, slopes_c))
    return tf.pad(d_gates, [[0, 0], [0, width - d_gates.shape[-1]]])


# --- differentiable to every order ----------------------------------------------------------------


def prox_state(s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver) -> tf.Tensor:
    """The proximal state (6) of a gated cell, differentiable to every order.

    Args:
        s: the new state, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9); gradients go to its `kernel`.
        solver: how the system is solved.

    Returns:
        c, (batch, units).
    """

    def solve(inputs: Tensors, masks: Masks, rhs: tf.Tensor) -> Solved:
        slopes, kernel = inputs
        return solve_gates(rhs, slopes, GateKernels(kernel, masks), solver)

    def transpose(inputs: Tensors, masks: Masks, c: tf.Tensor) -> tf.Tensor:
        slopes, kernel = inputs
        return GateKernels(kernel, masks).transpose(slopes * side_by_side(c))

    def contract(
        inputs: Tensors, masks: Masks, a: tf.Tensor, w: tf.Tensor, c: tf.Tensor, u: tf.Tensor
    ) -> Tensors:
        slopes, gates = inputs[0], GateKernels(inputs[1], masks)
        a, c = side_by_side(a), side_by_side(c)
        d_slopes = -(a * gates.products(u) + c * gates.products(w))
        return d_slopes, -(gates.outer(u, slopes * a) + gates.outer(w, slopes * c))

    inputs = [slopes, kernels.kernel]
    return implicit_state(inputs, s, kernels.masks, solve, transpose, contract)[0]


def composed_step(
    z: tf.Tensor, c_prev: tf.Tensor, kernels: GateKernels, equations: Equations
) -> tuple[tf.Tensor, tf.Tensor]:
    """h and c of one step by differentiable operations."""
    s, gate, slopes = new_state_of(z, c_prev, equations)
    c = prox_state(s, slopes, kernels, equations.solver)
    return equations.output(c if equations.output_from_prox else s, gate), c


def _step(tensors: Tensors, constants: Any, equations: Equations) -> Explained:
    z, c_prev, kernel = tensors
    h, solved = cell_step(z, c_prev, GateKernels.of(kernel, equations, *constants), equations)
    return Explained((h, solved.c), (solved.c, solved.u, solved.products), solved.report)


def _step_gradient(tensors: Tensors, constants: Any, equations: Equations) -> Explained:
    z, c_prev, kernel, dh, dc, c, u, products_u = tensors
    kernels = GateKernels.of(kernel, equations, *constants)
    found = step_cotangent(z, c_prev, c, products_u, dh, dc, kernels, equations)
    d_kernel = kernel_cotangent(
        kernels, constants[0], kernel.shape[-1], found.slopes_a, found.w, found.slopes_c, u
    )
    return Explained((found.z, found.c_prev, d_kernel), (), found.report)


@by_tape
def _composed(tensors: Tensors, constants: Any, equations: Equations) -> Tensors:
    z, c_prev, kernel = tensors
    return composed_step(z, c_prev, GateKernels.of(kernel, equations, *constants), equations)


def prox_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    sqrt_rho: tf.Tensor,
    equations: Equations,
    masks: Masks = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """One time step from the pre-activations, differentiable to every order.

    Args:
        z: the pre-activations, see `Equations`, (batch, 4 units).
        c_prev: the previous proximal state, (batch, units).
        kernel: the input kernel W, (features, blocks * units).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        equations: of the cell.
        masks: of dropout of the input: `None`, one, or one for each block of W.
        observer: sees the report of the gradient's solve.
        jit_compile: compile the step and its gradient by XLA.

    Returns:
        h, c, both (batch, units), and the report of the solve.
    """
    functions = _step, _step_gradient, _composed
    (h, c), report = with_gradient(
        *functions, [z, c_prev, kernel], [sqrt_rho, masks], equations, observer, jit_compile
    )
    return h, c, report
