"""The proximal state of a recurrent cell known only as a function, by nested gradient tapes.

Equation numbers are those of `recurrent.py`: J = sqrt(rho) ds/dx comes as products, J^T t by one
gradient tape and J v by a second one around it (the transpose of a linear map is its gradient).
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from proxnet_tf.ops.linear.least_squares import LeastSquaresResult, regularized_least_squares
from proxnet_tf.ops.recurrent.step import Solver, isolated

State = Callable[..., tf.Tensor]


def jacobian_transpose(
    state: State, x: tf.Tensor, parameters: Sequence[tf.Tensor], t: tf.Tensor
) -> tf.Tensor:
    """(ds/dx)^T t, (batch, features), for s = state(x, *parameters)."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = state(x, *parameters)
    return tape.gradient(s, x, t, unconnected_gradients="zero")


def jacobian_product(
    state: State, x: tf.Tensor, parameters: Sequence[tf.Tensor], v: tf.Tensor, t: tf.Tensor
) -> tf.Tensor:
    """(ds/dx) v, (batch, units): the gradient of <(ds/dx)^T t, v> in t, whatever t is."""
    with tf.GradientTape() as tape:
        tape.watch(t)
        product = jacobian_transpose(state, x, parameters, t)
    return tape.gradient(product, t, v, unconnected_gradients="zero")


def solve_black_box(
    state: State,
    x: tf.Tensor,
    parameters: Sequence[tf.Tensor],
    rhs: tf.Tensor,
    sqrt_rho: tf.Tensor,
    solver: Solver,
) -> LeastSquaresResult:
    """Solves (7) with `rhs` in the place of s; the other arguments as in `prox_black_box`."""
    if solver.method == "cholesky":
        with tf.GradientTape() as tape:
            tape.watch(x)
            s = state(x, *parameters)
        j = sqrt_rho * tape.batch_jacobian(s, x)
        system = tf.matmul(j, j, transpose_b=True) + tf.eye(j.shape[1], dtype=j.dtype)
        c = tf.linalg.cholesky_solve(tf.linalg.cholesky(system), rhs[..., None])
        u = tf.matmul(j, c, transpose_a=True)[..., 0]
        error = tf.zeros_like(rhs[:, :1])
        solved = tf.ones_like(error, tf.bool)
        return LeastSquaresResult(u, c[..., 0], error, solved, tf.constant(0))
    return regularized_least_squares(
        lambda v: sqrt_rho * jacobian_product(state, x, parameters, v, rhs),
        lambda t: sqrt_rho * jacobian_transpose(state, x, parameters, t),
        rhs,
        tolerance=solver.tolerance_for(rhs.dtype),
        max_iterations=solver.bound_for(rhs.shape[-1], x.shape[-1]),
    )


def prox_black_box(
    state: State,
    x: tf.Tensor,
    parameters: Sequence[tf.Tensor],
    s: tf.Tensor,
    sqrt_rho: tf.Tensor,
    solver: Solver,
) -> tf.Tensor:
    """(I + J J^T)^-1 s for any cell, (6), differentiable in x, parameters, s to every order.

    Args:
        state: `state(x, *parameters)` is the new state, (batch, units): a pure function of its
            tensors, independent by example, twice differentiable (once more for each further
            order of derivative).
        x: the input of the cell, (batch, features).
        parameters: everything else that J depends on and gradients are wanted of.
        s: the new state, (batch, units).
        sqrt_rho: delta / sqrt(lam), a constant of the map.
        solver: how the system is solved.

    Returns:
        c, (batch, units).
    """

    @tf.custom_gradient
    def forward(*inputs):
        x, *parameters, s = (tf.stop_gradient(t) for t in inputs)
        solved = solve_black_box(state, x, parameters, s, sqrt_rho, solver)
        u, c = solved.solution, solved.remainder
        return c, lambda dc: isolated(backward)(*inputs, dc, u, c)

    @tf.custom_gradient
    def backward(*tensors):
        x, *parameters, _, dc, u, c = (tf.stop_gradient(t) for t in tensors)
        solved = solve_black_box(state, x, parameters, dc, sqrt_rho, solver)
        cotangents = contract(x, parameters, solved.remainder, solved.solution, c, u)

        def grad(*upstream):
            inputs = tensors[:-2]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                values = explicit(*inputs)
            second = tape.gradient(values, inputs, upstream, unconnected_gradients="zero")
            return *second, None, None

        return cotangents, grad

    def explicit(*inputs):
        """`backward` written so that a tape can differentiate it."""
        x, *parameters, s, dc = inputs
        solve = isolated(forward)
        c, a = solve(x, *parameters, s), solve(x, *parameters, dc)
        u = sqrt_rho * jacobian_transpose(state, x, parameters, c)
        w = sqrt_rho * jacobian_transpose(state, x, parameters, a)
        return contract(x, parameters, a, w, c, u)

    def contract(x, parameters, a, w, c, u):
        """Cotangents of x, the parameters and s: (8) with dJ expressed by its products."""
        inputs = [x, *parameters]
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                new_state = state(x, *parameters)
            along_a = tape.gradient(new_state, x, a, unconnected_gradients="zero")
            along_c = tape.gradient(new_state, x, c, unconnected_gradients="zero")
            total = -sqrt_rho * tf.reduce_sum(along_a * u + along_c * w)
        return *outer.gradient(total, inputs, unconnected_gradients="zero"), a

    return isolated(forward)(x, *parameters, s)
