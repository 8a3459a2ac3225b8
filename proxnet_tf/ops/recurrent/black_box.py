"""The proximal state of a recurrent cell known only as a function, by nested gradient tapes.

Equations (6) and (7) stand in `solve.py`, (8) in `cotangent.py`. J = sqrt(rho) ds/dx comes as
products: J^T t by a gradient tape, and J v by a second tape around it, since the transpose of a
linear map is its gradient.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.implicit import Tensors, implicit_state
from proxnet_tf.ops.recurrent.solve import Solved, Solver, solve_by_products, solve_dense

State = Callable[..., tf.Tensor]
Product = Callable[[tf.Tensor], tf.Tensor]


class Linearised:
    """s = state(x, *parameters), and products with its Jacobian in x, the state evaluated once.

    Args:
        state: see `prox_black_box`.
        x: (batch, features).
        parameters: the further arguments of `state`.
    """

    def __init__(self, state: State, x: tf.Tensor, parameters: Sequence[tf.Tensor]):
        self._x = x
        self._tape = tf.GradientTape(persistent=True)
        with self._tape:
            self._tape.watch(x)
            self.s = state(x, *parameters)
        self._probe = tf.zeros_like(self.s)
        self._transpose_tape = tf.GradientTape(persistent=True)
        with self._transpose_tape:
            self._transpose_tape.watch(self._probe)
            self._pulled = self.transpose(self._probe)

    def transpose(self, t: tf.Tensor) -> tf.Tensor:
        """(ds/dx)^T t, (batch, features)."""
        return self._tape.gradient(self.s, self._x, t, unconnected_gradients="zero")

    def product(self, v: tf.Tensor) -> tf.Tensor:
        """(ds/dx) v, (batch, units): the gradient of <(ds/dx)^T t, v> in t, whatever t is."""
        return self._transpose_tape.gradient(
            self._pulled, self._probe, v, unconnected_gradients="zero"
        )


def prox_black_box(
    state: State,
    x: tf.Tensor,
    parameters: Sequence[tf.Tensor],
    s: tf.Tensor,
    sqrt_rho: tf.Tensor,
    solver: Solver,
    jacobian_dtype: str | tf.DType | None = None,
    observer: Observer | None = None,
) -> tuple[tf.Tensor, Report]:
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
        jacobian_dtype: the precision that `state` computes in, that of s by default.
        observer: sees the report of the gradient's solve.

    Returns:
        c, (batch, units), and the report of its solve.
    """
    sqrt_rho = tf.stop_gradient(sqrt_rho)

    def solve(x: tf.Tensor, *parameters_and_rhs: tf.Tensor) -> Solved:
        *parameters, rhs = parameters_and_rhs
        if solver.method == "cholesky":
            with tf.GradientTape() as tape:
                tape.watch(x)
                new_state = state(x, *parameters)
            j = sqrt_rho * tape.batch_jacobian(new_state, x)
            return solve_dense(rhs, j, lambda u: tf.linalg.matvec(j, u))
        linear = Linearised(state, x, parameters)
        return solve_by_products(
            rhs,
            product=lambda v: sqrt_rho * linear.product(v),
            total=tf.identity,
            transpose=lambda t: sqrt_rho * linear.transpose(t),
            solver=solver,
            width=rhs.shape[-1],
            jacobian_dtype=jacobian_dtype,
        )

    def transpose(x: tf.Tensor, *parameters_and_c: tf.Tensor) -> tf.Tensor:
        *parameters, c = parameters_and_c
        with tf.GradientTape() as tape:
            tape.watch(x)
            new_state = state(x, *parameters)
        return sqrt_rho * tape.gradient(new_state, x, c, unconnected_gradients="zero")

    def contract(x: tf.Tensor, *tensors: tf.Tensor) -> Tensors:
        """Cotangents of x and the parameters: (8) with dJ expressed by its products."""
        *parameters, a, w, c, u = tensors
        inputs = [x, *parameters]
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                new_state = state(x, *parameters)
            along_a = tape.gradient(new_state, x, a, unconnected_gradients="zero")
            along_c = tape.gradient(new_state, x, c, unconnected_gradients="zero")
            total = -sqrt_rho * tf.reduce_sum(along_a * u + along_c * w)
        return outer.gradient(total, inputs, unconnected_gradients="zero")

    return implicit_state([x, *parameters], s, solve, transpose, contract, observer)
