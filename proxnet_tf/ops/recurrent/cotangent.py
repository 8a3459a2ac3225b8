"""The adjoint of one step of a proximal gated cell: the one place where it is contracted.

For a cotangent dc of c in (6), with a and w the c and u of (7) for dc in the place of s (paper,
eq. ell_s and ell_G),

    ds = a,    dJ = -(a u^T + c w^T).                              (8)

With J of (9) this becomes, o the elementwise product,

    d slopes_k = -(a o (u K_k) + c o (w K_k)),
    dK_k = -(u (slopes_k o a)^T + w (slopes_k o c)^T).

Where there is a coupling U_n, in the second term a and c become (slopes_3 o a) U_n^T and
(slopes_3 o c) U_n^T, and U_n and slopes_3 have cotangents of this term.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.equations import GATES, Coupling, Equations
from proxnet_tf.ops.recurrent.implicit import Explained, Tensors, implicit_state, with_gradient
from proxnet_tf.ops.recurrent.solve import CG, Solved, Solver
from proxnet_tf.ops.recurrent.step import GateKernels, cell_step, solve_gates, third_of


def slopes_cotangent(
    kernels: GateKernels,
    slopes: tf.Tensor,
    a: tf.Tensor,
    products_w: tf.Tensor,
    c: tf.Tensor,
    products_u: tf.Tensor,
) -> tf.Tensor:
    """d slopes, (batch, 3 units), from the products w K_k and u K_k side by side."""
    d_slopes = kernels.back(slopes, a) * products_u + kernels.back(slopes, c) * products_w
    if kernels.coupling is not None:
        before = before_coupling(slopes, products_u, products_w)
        u, w = (x @ kernels.coupling.kernel for x in before)
        d_slopes += tf.pad(a * u + c * w, [[0, 0], [2 * a.shape[-1], 0]])
    return -d_slopes


def before_coupling(slopes: tf.Tensor, *products: tf.Tensor) -> list[tf.Tensor]:
    """slopes_2 o (v K_2), which U_n multiplies, from the products of some v."""
    return [tf.split(slopes * x, GATES, axis=-1)[1] for x in products]


def coupling_cotangent(coupled: tf.Tensor, *cotangents: tf.Tensor) -> tf.Tensor:
    """The gradient of U_n, (units, units).

    Args:
        coupled: what U_n multiplies, side by side, (rows, units) for each of the next.
        cotangents: (rows, 3 units), whose third gate has what comes back.
    """
    factors = zip(tf.split(coupled, len(cotangents), axis=-1), cotangents, strict=True)
    return tf.add_n([tf.matmul(x, third_of(t), transpose_a=True) for x, t in factors])


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
        slopes_a: see `StepCotangent`, (rows, 3 units); the rows are summed over.
        w: of (8), (rows, features).
        slopes_c: see `StepCotangent`.
        u: of (8).
    """
    d_gates = -sqrt_rho * (kernels.outer(u, slopes_a) + kernels.outer(w, slopes_c))
    return tf.pad(d_gates, [[0, 0], [0, width - d_gates.shape[-1]]])


class StepCotangent(NamedTuple):
    """What `step_cotangent` finds.

    Attributes:
        z: cotangent of the pre-activations.
        c_prev: cotangent of the previous state, (batch, units).
        w: u of (7) for the cotangent of c, (batch, features).
        slopes_a: slopes o [a a a], or with (slopes_3 o a) U_n^T in the middle, (batch, 3 units).
        slopes_c: the same of c.
        report: how well the linear system was solved.
        coupled: what U_n multiplies in s, in -J u and in -J w, (batch, 3 units), or `None`.
    """

    z: tf.Tensor
    c_prev: tf.Tensor
    w: tf.Tensor
    slopes_a: tf.Tensor
    slopes_c: tf.Tensor
    report: Report
    coupled: tf.Tensor | None


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
    """The cotangents of `cell_step`, but those of kernels: see the functions above.

    Args:
        z, c_prev: the arguments of the step.
        c: its proximal state, (batch, units).
        products_u: `products` of its solution, (batch, 3 units).
        dh, dc: cotangents of h and c, (batch, units).
        kernels: (9).
        equations: of the cell.
    """
    adjoint = equations.adjoint(z, c_prev, c, dh, kernels.coupling)
    from_h, slopes, from_prox = adjoint.from_output, adjoint.slopes, equations.output_from_prox
    solved = solve_gates(dc + from_h if from_prox else dc, slopes, kernels, equations.solver)
    a = solved.c
    ds = a if from_prox else a + from_h
    d_slopes = slopes_cotangent(kernels, slopes, a, solved.products, c, products_u)
    dz, dc_prev = adjoint.finish(ds, d_slopes)
    coupled = None
    if kernels.coupling is not None:
        u, w = before_coupling(slopes, products_u, solved.products)
        coupled = tf.concat([adjoint.coupled, -u, -w], axis=-1)
    slopes_a, slopes_c = (slopes * kernels.back(slopes, t) for t in (a, c))
    return StepCotangent(dz, dc_prev, solved.u, slopes_a, slopes_c, solved.report, coupled)


def prox_state(
    s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver = CG
) -> tf.Tensor:
    """The proximal state (6) of a gated cell, differentiable to every order.

    Args:
        s: the new state, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9); gradients go to its `kernel` and to the kernel of its coupling.
        solver: how the system is solved.

    Returns:
        c, (batch, units).
    """
    if solver.method == "cholesky":
        return solve_gates(s, slopes, kernels, solver).c

    def of(inputs: Tensors, scale: tf.Tensor | None) -> tuple[tf.Tensor, GateKernels]:
        slopes, kernel, *coupling = inputs
        return slopes, GateKernels(kernel, None, scale, Coupling(*coupling) if coupling else None)

    def solve(inputs: Tensors, scale: tf.Tensor | None, rhs: tf.Tensor) -> Solved:
        return solve_gates(rhs, *of(inputs, scale), solver)

    def transpose(inputs: Tensors, scale: tf.Tensor | None, c: tf.Tensor) -> tf.Tensor:
        slopes, gates = of(inputs, scale)
        return gates.transpose(slopes * gates.back(slopes, c))

    def contract(
        inputs: Tensors,
        scale: tf.Tensor | None,
        a: tf.Tensor,
        w: tf.Tensor,
        c: tf.Tensor,
        u: tf.Tensor,
    ) -> Tensors:
        slopes, gates = of(inputs, scale)
        products = gates.products(u), gates.products(w)
        d_slopes = slopes_cotangent(gates, slopes, a, products[1], c, products[0])
        slopes_a, slopes_c = (slopes * gates.back(slopes, t) for t in (a, c))
        d_kernel = -(gates.outer(u, slopes_a) + gates.outer(w, slopes_c))
        if gates.coupling is None:
            return d_slopes, d_kernel
        coupled = -tf.concat(before_coupling(slopes, *products), axis=-1)
        return d_slopes, d_kernel, coupling_cotangent(coupled, slopes_a, slopes_c)

    inputs = [slopes, kernels.kernel]
    if kernels.coupling is not None:
        inputs.append(kernels.coupling.kernel)
    return implicit_state(inputs, s, kernels.scale, solve, transpose, contract)[0]


def composed_step(
    z: tf.Tensor, c_prev: tf.Tensor, kernels: GateKernels, equations: Equations
) -> tuple[tf.Tensor, tf.Tensor]:
    """h and c of one step by differentiable operations."""
    s, slopes, gate = equations.new_state(z, c_prev, kernels.coupling)
    c = prox_state(s, slopes, kernels, equations.solver)
    return equations.output(c if equations.output_from_prox else s, gate), c


def with_coupling(
    arguments: Tensors, number: int, equations: Equations
) -> tuple[Tensors, tf.Tensor | None, Tensors]:
    """The first `number` tensors, the kernel of the coupling or `None`, and what comes after."""
    after = number + equations.coupled
    return arguments[:number], arguments[number] if equations.coupled else None, arguments[after:]


def gate_kernels(
    kernel: tf.Tensor,
    u_n: tf.Tensor | None,
    constants: Sequence[Any],
    equations: Equations,
) -> GateKernels:
    """(9) from sqrt(rho), the dropout mask of the input and, if any, that of the coupling."""
    sqrt_rho, scale, *coupling_scale = constants
    coupling = None if u_n is None else Coupling(u_n, *coupling_scale)
    return GateKernels.of(kernel, equations.blocks, sqrt_rho, scale, coupling)


def _step(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Explained:
    (z, c_prev, kernel), u_n, _ = with_coupling(tensors, 3, equations)
    kernels = gate_kernels(kernel, u_n, constants, equations)
    h, solved = cell_step(z, c_prev, kernels, equations)
    return Explained((h, solved.c), (solved.c, solved.u, solved.products), solved.report)


def _step_gradient(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Explained:
    (z, c_prev, kernel), u_n, others = with_coupling(tensors, 3, equations)
    dh, dc, c, u, products_u = others
    kernels = gate_kernels(kernel, u_n, constants, equations)
    found = step_cotangent(z, c_prev, c, products_u, dh, dc, kernels, equations)
    d_kernel = kernel_cotangent(
        kernels, constants[0], kernel.shape[-1], found.slopes_a, found.w, found.slopes_c, u
    )
    values = [found.z, found.c_prev, d_kernel]
    if u_n is not None:
        values.append(coupling_cotangent(found.coupled, found.z, found.slopes_a, found.slopes_c))
    return Explained(values, (), found.report)


def _composed(tensors: Tensors, constants: Sequence[Any], equations: Equations) -> Tensors:
    (z, c_prev, kernel), u_n, _ = with_coupling(tensors, 3, equations)
    return composed_step(z, c_prev, gate_kernels(kernel, u_n, constants, equations), equations)


def prox_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernel: tf.Tensor,
    sqrt_rho: tf.Tensor,
    equations: Equations,
    scale: tf.Tensor | None = None,
    coupling: Coupling | None = None,
    observer: Observer | None = None,
    jit_compile: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """One time step from the pre-activations, differentiable to every order.

    Args:
        z: the pre-activations, see `Equations`.
        c_prev: the previous proximal state, (batch, units).
        kernel: the input kernel W, (features, blocks * units).
        sqrt_rho: delta / sqrt(lam), a constant of the map: no gradient.
        equations: of the cell.
        scale: the dropout mask of the input or `None`, see `GateKernels`.
        coupling: where the cell has one.
        observer: sees the report of the gradient's solve.
        jit_compile: compile the step and its gradient by XLA.

    Returns:
        h, c, both (batch, units), and the report of the solve.
    """
    (h, c), report = with_gradient(
        _step,
        _step_gradient,
        _composed,
        [z, c_prev, kernel] if coupling is None else [z, c_prev, kernel, coupling.kernel],
        [sqrt_rho, scale, None if coupling is None else coupling.scale],
        equations,
        observer,
        jit_compile,
    )
    return h, c, report
