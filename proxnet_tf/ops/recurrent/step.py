"""The proximal step of recurrent nets, matrix-free (Li, Ma, Zhang, 2020, section 4).

With s the new state, G = ds/dx its Jacobian in the input (units x features) and
rho = delta^2/lam, the proximal state is

    c = argmin_c lam ||c - s||^2 + delta^2 ||c^T G||^2 = (I + rho G G^T)^-1 s.                  (6)

Everything here works with J = sqrt(rho) G, so that (6) reads c = (I + J J^T)^-1 s. By the
push-through identity it is a regularized least squares problem in the space of the input, whose
solution u is also what the gradient needs:

    (I + J^T J) u = J^T s,    c = s - J u,    u = J^T c.                              (7)

For a cotangent dc of c, with a and w the solution of (7) for dc in the place of s (paper,
eq. ell_s and ell_G),

    ds = a,    dJ = -(a u^T + c w^T).                              (8)

J is never formed. In an LSTM J v = sum_k slopes_k o (v K_k) over the gates k = i, f, g with

    K_k = sqrt(rho) W_k,    slopes = [g o i', c_prev o f', i o g'],                              (9)

where i' is the derivative of the gate i in its pre-activation: one product with [K_i K_f K_g], a
scaling and a sum. For any other cell the products with J come from nested gradient tapes.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.least_squares import LeastSquaresResult, regularized_least_squares

Activation = Callable[[tf.Tensor], tf.Tensor]
GATES = 3  # i, f and g make the state; o does not


class Solver(NamedTuple):
    """How the linear system of (7) is solved.

    Attributes:
        method: "cg", matrix-free, or "cholesky", the dense check.
        tolerance: bound on the error of c relative to the norm of s; `None`: 1e-5 in float32,
            1e-12 in float64.
        max_iterations: bound on the CG products; `None`: 2 min(units, features) + 10.
    """

    method: str = "cg"
    tolerance: float | None = None
    max_iterations: int | None = None

    def tolerance_for(self, dtype: tf.DType) -> float:
        """The tolerance in `dtype`."""
        return self.tolerance or (1e-12 if dtype == tf.float64 else 1e-5)

    def bound_for(self, units: int, features: int) -> int:
        """The bound on the products for a Jacobian of units x features."""
        return self.max_iterations or 2 * min(units, features) + 10


CG = Solver()


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
        transposed: its transpose, or `None`; worth keeping when there are many products.
        scale: the dropout mask of the input: `None`, (batch, features), or one mask a gate,
            (batch, 3, features).
    """

    kernel: tf.Tensor
    transposed: tf.Tensor | None = None
    scale: tf.Tensor | None = None

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


def solve_gates(
    s: tf.Tensor, slopes: tf.Tensor, kernels: GateKernels, solver: Solver, fixed: int = 0
) -> LeastSquaresResult:
    """Solves (7) for the Jacobian of an LSTM's gates.

    Args:
        s: right-hand side, (batch, units).
        slopes: (9), (batch, 3 units).
        kernels: (9).
        solver: method, tolerance and bound.
        fixed: when not 0, take just that many CG steps.

    Returns:
        u as `solution` and c as `remainder`.
    """
    if solver.method == "cg":
        bound = solver.bound_for(s.shape[-1], kernels.kernel.shape[0])
        return regularized_least_squares(
            lambda v: sum_gates(slopes * kernels.products(v)),
            lambda t: kernels.transpose(slopes * side_by_side(t)),
            s,
            tolerance=solver.tolerance_for(s.dtype),
            max_iterations=fixed or bound,
            unrolled=fixed or 1,
        )
    j = kernels.dense(slopes)
    factor = tf.linalg.cholesky(
        tf.matmul(j, j, transpose_b=True) + tf.eye(j.shape[1], dtype=j.dtype)
    )
    c = tf.linalg.cholesky_solve(factor, s[..., None])
    u = tf.matmul(j, c, transpose_a=True)[..., 0]
    error = tf.zeros_like(s[:, :1])
    return LeastSquaresResult(u, c[..., 0], error, tf.ones_like(error, tf.bool), tf.constant(0))


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
        return solve_gates(s, slopes, GateKernels(kernel, scale=scale), solver).remainder

    @tf.custom_gradient
    def forward(s, slopes, kernel):
        s0, slopes0, kernel0 = (tf.stop_gradient(t) for t in (s, slopes, kernel))
        solved = solve_gates(s0, slopes0, GateKernels(kernel0, scale=scale), solver)
        u, c = solved.solution, solved.remainder
        return c, lambda dc: isolated(backward)(s, slopes, kernel, dc, u, c)

    @tf.custom_gradient
    def backward(*args):
        _, slopes, kernel, dc, u, c = (tf.stop_gradient(t) for t in args)
        kernels = GateKernels(kernel, scale=scale)
        solved = solve_gates(dc, slopes, kernels, solver)
        cotangents = _gate_cotangents(solved.remainder, solved.solution, c, u, slopes, kernels)

        def grad(*upstream):
            inputs = args[:4]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                values = explicit(*inputs)
            return *tape.gradient(values, inputs, upstream), None, None

        return cotangents, grad

    def explicit(s, slopes, kernel, dc):
        """`backward` written so that a tape can differentiate it."""
        kernels = GateKernels(kernel, scale=scale)
        solve = isolated(forward)
        c, a = solve(s, slopes, kernel), solve(dc, slopes, kernel)
        u = kernels.transpose(slopes * side_by_side(c))
        w = kernels.transpose(slopes * side_by_side(a))
        return _gate_cotangents(a, w, c, u, slopes, kernels)

    return isolated(forward)(s, slopes, kernel)


def isolated(function):
    """In a graph, `function` as a graph of its own.

    In the body of a loop TensorFlow can differentiate a custom gradient twice, or after a
    SavedModel is reloaded, only so.
    """
    return function if tf.executing_eagerly() else tf.function(function, autograph=False)


def _gate_cotangents(a, w, c, u, slopes, kernels):
    """Cotangents of s, slopes and kernel: (8) contracted with (9)."""
    a3, c3 = side_by_side(a), side_by_side(c)
    d_slopes = -(a3 * kernels.products(u) + c3 * kernels.products(w))
    d_kernel = -(kernels.outer(u, slopes * a3) + kernels.outer(w, slopes * c3))
    return a, d_slopes, d_kernel


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


def lstm_gates(z: tf.Tensor, c_prev: tf.Tensor, options: LSTMOptions):
    """From the pre-activations [i f o g]: the new state s, the gate o and the slopes of (9)."""
    units = c_prev.shape[-1]
    z_gates, z_candidate = tf.split(z, [3 * units, units], axis=-1)
    gates, d_gates = value_and_slope(options.recurrent_activation, z_gates)
    g, dg = value_and_slope(options.activation, z_candidate)
    i, f, o = tf.split(gates, 3, axis=-1)
    slopes = tf.concat([g, c_prev, i], axis=-1) * tf.concat(
        [d_gates[..., : 2 * units], dg], axis=-1
    )
    return f * c_prev + i * g, o, slopes


def candidate_last(x: tf.Tensor) -> tf.Tensor:
    """Gates in the order i, f, g, o of Keras to i, f, o, g, along the last axis; an involution."""
    i, f, g, o = tf.split(x, 4, axis=-1)
    return tf.concat([i, f, o, g], axis=-1)


def prox_lstm_step(z, c_prev, kernel, scale, options: LSTMOptions):
    """One time step from the pre-activations z = x W + h U + b, differentiable to every order.

    Args:
        z: (batch, 4 units), gates in the order i, f, o, g.
        c_prev: the previous proximal state, (batch, units).
        kernel: sqrt(rho) [W_i W_f W_g], (features, 3 units).
        scale: the dropout mask of the input or `None`, see `GateKernels`.
        options: activations and solver.

    Returns:
        (h, c), both (batch, units).
    """
    s, o, slopes = lstm_gates(z, c_prev, options)
    c = prox_state(s, slopes, kernel, scale, options.solver)
    return o * options.activation(c if options.output_from_prox else s), c
