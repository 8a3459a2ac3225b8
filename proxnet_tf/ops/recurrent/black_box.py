"""The proximal state of a recurrent cell known only as a function, by nested gradient tapes.

Equations (6) to (8) are in `implicit.py`. Only products with J = sqrt(rho) ds/dx are computed:
J^T t by a gradient tape, and J v by a second tape around it, since the gradient of a linear map is
its transpose.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from proxnet_tf.ops.linear.once import check_tapes
from proxnet_tf.ops.linear.report import Observer, Report
from proxnet_tf.ops.recurrent.implicit import (
    Product,
    Solved,
    Solver,
    Tensors,
    implicit_state,
    solve_by_products,
)


class Linearised:
    """s as a function of the input x, evaluated once, and products with its Jacobian.

    Args:
        state: from x, (batch, features), to s.
        x: the input at which s and the Jacobian are taken.
    """

    def __init__(self, state: Product, x: tf.Tensor):
        self._x = x
        self._tape = tf.GradientTape(persistent=True)
        with self._tape:
            self._tape.watch(x)
            self.s = state(x)
        if self._tape.gradient(self.s, x) is None:  # the state ignores x, or no tape records
            check_tapes()
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
    state: Callable[..., tf.Tensor],
    x: tf.Tensor,
    parameters: Sequence[tf.Tensor],
    constants: Any,
    s: tf.Tensor,
    sqrt_rho: tf.Tensor,
    solver: Solver,
    jacobian_dtype: str | tf.DType | None = None,
    observer: Observer | None = None,
) -> tuple[tf.Tensor, Report]:
    """(I + J J^T)^-1 s for any cell, (6), differentiable in x, parameters, s to every order.

    Args:
        state: `state(x, parameters, constants)` is the new state, (batch, units): a pure function
            of its tensors that treats examples independently, twice differentiable (once more for
            each further order of derivative).
        x: the input of the cell, (batch, features).
        parameters: the other tensors that J depends on and that get gradients.
        constants: a structure of the other tensors (and `None`) that J depends on.
        s: the new state, (batch, units).
        sqrt_rho: delta / sqrt(lam), a constant of the map.
        solver: how the system is solved.
        jacobian_dtype: the precision that `state` computes in, that of s by default.
        observer: sees the report of the gradient's solve.

    Returns:
        c, (batch, units), and the report of its solve.
    """

    def solve(inputs: Tensors, constants: Any, rhs: tf.Tensor) -> Solved:
        (x, *parameters), (others, sqrt_rho) = inputs, constants
        linear = Linearised(lambda x: state(x, parameters, others), x)
        return solve_by_products(
            rhs,
            product=lambda v: sqrt_rho * linear.product(v),
            total=tf.identity,
            transpose=lambda t: sqrt_rho * linear.transpose(t),
            solver=solver,
            width=rhs.shape[-1],
            jacobian_dtype=jacobian_dtype,
        )

    def transpose(inputs: Tensors, constants: Any, c: tf.Tensor) -> tf.Tensor:
        (x, *parameters), (others, sqrt_rho) = inputs, constants
        with tf.GradientTape() as tape:
            tape.watch(x)
            new_state = state(x, parameters, others)
        return sqrt_rho * tape.gradient(new_state, x, c, unconnected_gradients="zero")

    def contract(
        inputs: Tensors, constants: Any, a: tf.Tensor, w: tf.Tensor, c: tf.Tensor, u: tf.Tensor
    ) -> Tensors:
        """Cotangents of x and the parameters: (8) with dJ expressed by its products."""
        (x, *parameters), (others, sqrt_rho) = inputs, constants
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                new_state = state(x, parameters, others)
            along_a = tape.gradient(new_state, x, a, unconnected_gradients="zero")
            along_c = tape.gradient(new_state, x, c, unconnected_gradients="zero")
            total = -sqrt_rho * tf.reduce_sum(along_a * u + along_c * w)
        return outer.gradient(total, inputs, unconnected_gradients="zero")

    return implicit_state(
        [x, *parameters], s, [constants, sqrt_rho], solve, transpose, contract, observer
    )
