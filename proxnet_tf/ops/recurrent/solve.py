"""The linear system of a proximal state: conjugate gradients without J, or a dense check.

With s the new state, G = ds/dx its Jacobian in the input (units x features) and
rho = delta^2/lam, the proximal state is

    c = argmin_c lam ||c - s||^2 + delta^2 ||c^T G||^2 = (I + rho G G^T)^-1 s.                  (6)

Everything in `ops.recurrent` works with J = sqrt(rho) G, so that (6) reads c = (I + J J^T)^-1 s.
By the push-through identity c is the remainder of a regularized least squares problem in the space
of the input, whose solution u is also what the gradient needs:

    (I + J^T J) u = J^T s,    c = s - J u,    u = J^T c.                              (7)
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient
from proxnet_tf.ops.linear.report import Report


class Solver(NamedTuple):
    """How the linear system of (7) is solved.

    Attributes:
        method: "cg", matrix-free, or "cholesky", the dense check.
        tolerance: bound on the error of c relative to the norm of s; `None`: 1e-12 in float64,
            1e-5 in float32, 1e-3 and 1e-2 where J comes in float16 and bfloat16.
        max_iterations: bound on the CG steps; `None`: 2 min(units, features) + 10.
    """

    method: str = "cg"
    tolerance: float | None = None
    max_iterations: int | None = None

    def tolerance_for(self, dtype: str | tf.DType) -> float:
        """The tolerance in `dtype`."""
        defaults = {"float64": 1e-12, "float16": 1e-3, "bfloat16": 1e-2}
        return self.tolerance or defaults.get(tf.as_dtype(dtype).name, 1e-5)

    def bound_for(self, units: int, features: int) -> int:
        """The bound on the steps for a Jacobian of units x features."""
        return self.max_iterations or 2 * min(units, features) + 10


CG = Solver()


class Solved(NamedTuple):
    """The solution of (7).

    Attributes:
        c: the remainder s - J u, (batch, units).
        u: the solution, (batch, features).
        products: the linear part of J u, see `solve_by_products`.
        report: how well; `residual` bounds the error of c relative to the norm of s, (batch,).
    """

    c: tf.Tensor
    u: tf.Tensor
    products: tf.Tensor
    report: Report


def solve_by_products(
    s: tf.Tensor,
    product: Callable[[tf.Tensor], tf.Tensor],
    total: Callable[[tf.Tensor], tf.Tensor],
    transpose: Callable[[tf.Tensor], tf.Tensor],
    solver: Solver,
    width: int,
    jacobian_dtype: str | tf.DType | None = None,
) -> Solved:
    """Solves (7) by conjugate gradients for J v = total(product(v)).

    The error e of u is (I + J^T J)^-1 r with r = J^T c - u the residual. No singular value of
    J (I + J^T J)^-1 is above 1/2, so the error J e of c is at most ||r|| / 2.

    Args:
        s: right-hand side, (batch, units).
        product: the first factor of J, from (batch, features) to (batch, `width`).
        total: the second factor, from (batch, `width`) to (batch, units).
        transpose: t -> J^T t, from (batch, units) to (batch, features).
        solver: tolerance and bound.
        width: of the values of `product`.
        jacobian_dtype: the precision that J comes in, `s.dtype` by default.
    """

    def norm(x: tf.Tensor) -> tf.Tensor:
        return tf.norm(x, axis=-1, keepdims=True)

    def operator(v: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        along = product(v)
        return v + transpose(total(along)), along

    s = tf.stop_gradient(s)
    rhs = transpose(s)
    size, rhs_size = norm(s), norm(rhs)
    tolerance = solver.tolerance_for(jacobian_dtype or s.dtype)
    solved = conjugate_gradient(
        operator,
        rhs,
        tolerance=2.0 * tolerance * tf.math.divide_no_nan(size, rhs_size),
        max_iterations=solver.bound_for(s.shape[-1], rhs.shape[-1]),
        image=tf.zeros([tf.shape(s)[0], width], s.dtype),
    )
    error = (solved.residual * tf.math.divide_no_nan(rhs_size, 2.0 * size))[:, 0]
    # What is not a number stays so, where conjugate gradients would keep their start.
    broken = tf.math.is_nan(error)[:, None]
    u, products = (
        tf.where(broken, tf.cast(float("nan"), s.dtype), x) for x in (solved.solution, solved.image)
    )
    report = Report(error, solved.iterations, error <= tf.cast(tolerance, error.dtype))
    return Solved(s - total(products), u, products, report)


def solve_dense(
    s: tf.Tensor,
    jacobian: tf.Tensor,
    product: Callable[[tf.Tensor], tf.Tensor],
    solver: Solver = CG,
) -> Solved:
    """Solves (7) by Cholesky's decomposition of I + J J^T in float64, differentiably.

    The error e of c is (I + J J^T)^-1 r with r = s - J u - c, so it is at most ||r||.

    Args:
        s: right-hand side, (batch, units).
        jacobian: J, (batch, units, features).
        product: the first factor of J.
        solver: tolerance.
    """
    wide, rhs = tf.cast(jacobian, tf.float64), tf.cast(s, tf.float64)
    system = tf.matmul(wide, wide, transpose_b=True)
    factor = tf.linalg.cholesky(system + tf.eye(s.shape[-1], dtype=wide.dtype))
    c = tf.linalg.cholesky_solve(factor, rhs[..., None])[..., 0]
    u = tf.linalg.matvec(wide, c, transpose_a=True)
    left = tf.norm(tf.stop_gradient(rhs - tf.linalg.matvec(wide, u) - c), axis=-1)
    error = tf.math.divide_no_nan(left, tf.norm(tf.stop_gradient(rhs), axis=-1))
    solved = error <= solver.tolerance_for(s.dtype)
    report = Report(tf.cast(error, s.dtype), tf.constant(0), solved)
    u = tf.cast(u, s.dtype)
    return Solved(tf.cast(c, s.dtype), u, product(u), report)
