"""One step of a proximal gated cell, matrix-free (Li, Ma, Zhang, 2020, section 4).

Equations (6) and (7) stand in `solve.py`, (8) in `cotangent.py`. Here J v is

    J v = sum_k slopes_k o (v K_k),   K_k = sqrt(rho) W_k,                              (9)

where k runs over the three gates that make the state, W_k is the input kernel of a gate, and
slopes_k is the derivative of the new state in the gate's pre-activation, elementwise: one product
with the K_k side by side, a scaling and a sum. The slopes stand in `lstm.py` and `gru.py`. In a
GRU whose reset gate acts before its recurrent kernel U_n, the second of the three terms is

    slopes_3 o ((slopes_2 o (v K_2)) U_n).
"""

from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import (
    GATES,
    Coupling,
    Equations,
    side_by_side,
    sum_gates,
)
from proxnet_tf.ops.recurrent.solve import Solved, Solver, solve_by_products, solve_dense


def third_of(slopes: tf.Tensor) -> tf.Tensor:
    """The part of the third gate."""
    return slopes[..., 2 * (slopes.shape[-1] // GATES) :]


class GateKernels(NamedTuple):
    """The linear part of J in (9): v -> v K_k for every gate, its transpose and its gradient.

    Attributes:
        kernel: the K_k side by side, (features, 3 units).
        transposed: its transpose, or `None`; worth keeping where there are many products.
        scale: the dropout mask of the input: `None`, (batch, features), or one mask a gate,
            (batch, 3, features).
        coupling: U_n, or `None`.
    """

    kernel: tf.Tensor
    transposed: tf.Tensor | None = None
    scale: tf.Tensor | None = None
    coupling: Coupling | None = None

    @classmethod
    def of(
        cls,
        kernel: tf.Tensor,
        blocks: int,
        sqrt_rho: tf.Tensor,
        scale: tf.Tensor | None = None,
        coupling: Coupling | None = None,
    ) -> "GateKernels":
        """From the input kernel of the layer, (features, blocks * units)."""
        gates = sqrt_rho * kernel[:, : GATES * (kernel.shape[-1] // blocks)]
        return cls(gates, tf.transpose(gates), scale, coupling)

    @property
    def gate_scales(self) -> list[tf.Tensor] | None:
        """The masks of the gates where each has its own."""
        if self.scale is None or len(self.scale.shape) == 2:
            return None
        return tf.unstack(self.scale, axis=1)

    def products(self, v: tf.Tensor) -> tf.Tensor:
        """v K_k side by side, from (batch, features) to (batch, 3 units)."""
        scales = self.gate_scales
        if scales is None:
            return (v if self.scale is None else v * self.scale) @ self.kernel
        pairs = zip(scales, tf.split(self.kernel, GATES, axis=-1), strict=True)
        return tf.concat([(v * scale) @ kernel for scale, kernel in pairs], axis=-1)

    def transpose(self, t: tf.Tensor) -> tf.Tensor:
        """sum_k t_k K_k^T, from (batch, 3 units) to (batch, features)."""
        scales = self.gate_scales
        if scales is not None:
            gates = (tf.split(x, GATES, axis=-1) for x in (t, self.kernel))
            parts = zip(scales, *gates, strict=True)
            return tf.add_n([tf.matmul(t_k, k, transpose_b=True) * s for s, t_k, k in parts])
        if self.transposed is not None:
            v = t @ self.transposed
        else:
            v = tf.matmul(t, self.kernel, transpose_b=True)
        return v if self.scale is None else v * self.scale

    def outer(self, v: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """The gradient of <t, products(v)> in the kernel, (features, 3 units)."""
        scales = self.gate_scales
        if scales is None:
            return tf.matmul(v if self.scale is None else v * self.scale, t, transpose_a=True)
        pairs = zip(scales, tf.split(t, GATES, axis=-1), strict=True)
        return tf.concat([tf.matmul(v * s, t_k, transpose_a=True) for s, t_k in pairs], axis=-1)

    def dense(self, slopes: tf.Tensor) -> tf.Tensor:
        """J itself, (batch, units, features): for the dense check only."""
        features = self.kernel.shape[0]
        kernels = tf.transpose(tf.reshape(self.kernel, [features, GATES, -1]), [1, 2, 0])
        j = tf.reshape(slopes, [-1, GATES, kernels.shape[1], 1]) * kernels
        if self.scale is not None:
            j *= tf.reshape(self.scale, [-1, 1 if self.gate_scales is None else GATES, 1, features])
        if self.coupling is None:
            return tf.reduce_sum(j, axis=1)
        second = tf.matmul(self.coupling.kernel, j[:, 1], transpose_a=True)
        return j[:, 0] + third_of(slopes)[..., None] * second + j[:, 2]

    def through(self, slopes: tf.Tensor, products: tf.Tensor) -> tf.Tensor:
        """J v from the slopes and the products of v, (batch, units)."""
        if self.coupling is None:
            return sum_gates(slopes * products)
        first, second, third = tf.split(slopes * products, GATES, axis=-1)
        return first + third_of(slopes) * (second @ self.coupling.kernel) + third

    def back(self, slopes: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        """The transpose of `through` in the products but for the slopes, (batch, 3 units)."""
        if self.coupling is None:
            return side_by_side(t)
        second = tf.matmul(third_of(slopes) * t, self.coupling.kernel, transpose_b=True)
        return tf.concat([t, second, t], axis=-1)


def solve_gates(s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver) -> Solved:
    """Solves (7) for the Jacobian of a cell's gates.

    Args:
        s: right-hand side, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9).
        solver: method, tolerance and bound.

    Returns:
        The solution; its `products` are u K_k side by side, (batch, 3 units).
    """
    if solver.method == "cholesky":
        return solve_dense(s, kernels.dense(slopes), kernels.products, solver)
    return solve_by_products(
        s,
        product=kernels.products,
        total=lambda products: kernels.through(slopes, products),
        transpose=lambda t: kernels.transpose(slopes * kernels.back(slopes, t)),
        solver=solver,
        width=slopes.shape[-1],
    )


class Step(NamedTuple):
    """One time step.

    Attributes:
        h: the output, (batch, units).
        solved: the proximal state as `c`, and what the gradient needs.
    """

    h: tf.Tensor
    solved: Solved


def cell_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernels: GateKernels,
    equations: Equations,
    valid: tf.Tensor | None = None,
) -> Step:
    """One time step from the pre-activations; `prox_step` differentiates.

    Args:
        z: the pre-activations.
        c_prev: the previous proximal state, (batch, units).
        kernels: (9).
        equations: of the cell.
        valid: boolean (batch, 1); where false there is nothing to solve.
    """
    s, slopes, gate = equations.new_state(z, c_prev, kernels.coupling)
    if valid is not None:
        s = tf.where(valid, s, tf.zeros_like(s))
    solved = solve_gates(s, slopes, kernels, equations.solver)
    return Step(equations.output(solved.c if equations.output_from_prox else s, gate), solved)
