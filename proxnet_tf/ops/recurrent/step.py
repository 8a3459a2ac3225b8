"""One step of a proximal LSTM, matrix-free (Li, Ma, Zhang, 2020, section 4).

Equations (6) and (7) stand in `solve.py`, (8) in `cotangent.py`. Here J v is

    J v = sum_k slopes_k o (v K_k),   K_k = sqrt(rho) W_k,   k = i, f, g,
    slopes = [g o i', c_prev o f', i o g'],                              (9)

where i' is the derivative of the gate i in its pre-activation: one product with [K_i K_f K_g], a
scaling and a sum. Gates stand in the order i, f, g, o of Keras everywhere; the first three make
the state.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.recurrent.solve import CG, Solved, Solver, solve_by_products, solve_dense

Activation = Callable[[tf.Tensor], tf.Tensor]
GATES = 3  # i, f and g make the state; o does not


class LSTMOptions(NamedTuple):
    """What is fixed in a proximal LSTM besides its weights.

    Attributes:
        activation: elementwise, of the candidate g and of the output.
        recurrent_activation: elementwise, of the gates i, f, o.
        output_from_prox: h = o o activation(c) instead of o o activation(s).
        solver: how (7) is solved.
    """

    activation: Activation = tf.tanh
    recurrent_activation: Activation = tf.sigmoid
    output_from_prox: bool = False
    solver: Solver = CG


TANH_SIGMOID = LSTMOptions()


def side_by_side(x: tf.Tensor) -> tf.Tensor:
    """[x, x, x]: the same for every gate, (..., 3 units)."""
    return tf.concat([x] * GATES, axis=-1)


def sum_gates(x: tf.Tensor) -> tf.Tensor:
    """The transpose of `side_by_side`."""
    i, f, g = tf.split(x, GATES, axis=-1)
    return i + f + g


class GateKernels(NamedTuple):
    """The linear part of J in (9): v -> v K_k for every gate, its transpose and its gradient.

    Attributes:
        kernel: [K_i K_f K_g], (features, 3 units).
        transposed: its transpose, or `None`; worth keeping where there are many products.
        scale: the dropout mask of the input: `None`, (batch, features), or one mask a gate,
            (batch, 3, features).
    """

    kernel: tf.Tensor
    transposed: tf.Tensor | None = None
    scale: tf.Tensor | None = None

    @classmethod
    def of(
        cls, kernel: tf.Tensor, sqrt_rho: tf.Tensor, scale: tf.Tensor | None = None
    ) -> "GateKernels":
        """From the input kernel of the layer, (features, 4 units)."""
        gates = sqrt_rho * kernel[:, : GATES * (kernel.shape[-1] // 4)]
        return cls(gates, tf.transpose(gates), scale)

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
        return tf.reduce_sum(j, axis=1)


def solve_gates(s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver) -> Solved:
    """Solves (7) for the Jacobian of an LSTM's gates.

    Args:
        s: right-hand side, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9).
        solver: method, tolerance and bound.

    Returns:
        The solution; its `products` are u K_k side by side, (batch, 3 units).
    """
    if solver.method == "cholesky":
        return solve_dense(s, kernels.dense(slopes), kernels.products)
    return solve_by_products(
        s,
        product=kernels.products,
        total=lambda products: sum_gates(slopes * products),
        transpose=lambda t: kernels.transpose(slopes * side_by_side(t)),
        solver=solver,
        width=slopes.shape[-1],
    )


def value_and_slope(f: Activation, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """f(z) and its derivative, elementwise, both differentiable."""
    if f is tf.tanh:
        y = tf.tanh(z)
        return y, 1.0 - y * y
    if f is tf.sigmoid:
        y = tf.sigmoid(z)
        return y, y - y * y
    with tf.GradientTape() as tape:
        tape.watch(z)
        y = f(z)
    return y, tape.gradient(y, z, unconnected_gradients="zero")


def value_slope_curvature(f: Activation, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """f(z), its first and its second derivative, elementwise."""
    if f is tf.tanh:
        y, dy = value_and_slope(f, z)
        return y, dy, -2.0 * y * dy
    if f is tf.sigmoid:
        y, dy = value_and_slope(f, z)
        return y, dy, dy * (1.0 - 2.0 * y)
    with tf.GradientTape() as tape:
        tape.watch(z)
        y, dy = value_and_slope(f, z)
    return y, dy, tape.gradient(dy, z, unconnected_gradients="zero")


def lstm_gates(
    z: tf.Tensor, c_prev: tf.Tensor, options: LSTMOptions
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """From the pre-activations: the new state s, the gate o and the slopes of (9).

    Args:
        z: (batch, 4 units).
        c_prev: the previous proximal state, (batch, units).
        options: activations.
    """
    units = c_prev.shape[-1]
    z_if, z_g, z_o = tf.split(z, [2 * units, units, units], axis=-1)
    i_and_f, d_if = value_and_slope(options.recurrent_activation, z_if)
    i, f = tf.split(i_and_f, 2, axis=-1)
    g, dg = value_and_slope(options.activation, z_g)
    slopes = tf.concat([g, c_prev, i], axis=-1) * tf.concat([d_if, dg], axis=-1)
    return f * c_prev + i * g, options.recurrent_activation(z_o), slopes


class Step(NamedTuple):
    """One time step.

    Attributes:
        h: the output, (batch, units).
        solved: the proximal state as `c`, and what the gradient needs.
    """

    h: tf.Tensor
    solved: Solved


def lstm_step(
    z: tf.Tensor,
    c_prev: tf.Tensor,
    kernels: GateKernels,
    options: LSTMOptions,
    valid: tf.Tensor | None = None,
) -> Step:
    """One time step from the pre-activations z = x W + h U + b; `prox_lstm_step` differentiates.

    Args:
        z: (batch, 4 units).
        c_prev: the previous proximal state, (batch, units).
        kernels: (9).
        options: activations and solver.
        valid: boolean (batch, 1); where false there is nothing to solve.
    """
    s, o, slopes = lstm_gates(z, c_prev, options)
    if valid is not None:
        s = tf.where(valid, s, tf.zeros_like(s))
    solved = solve_gates(s, slopes, kernels, options.solver)
    return Step(o * options.activation(solved.c if options.output_from_prox else s), solved)
