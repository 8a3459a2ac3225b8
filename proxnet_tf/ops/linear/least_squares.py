"""Conjugate gradients for I + J^T J, given by products with its factor J and the transpose."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class LeastSquaresResult(NamedTuple):
    """What `regularized_least_squares` found.

    Attributes:
        solution: u, (batch, n).
        remainder: s - J u = (I + J J^T)^-1 s, (batch, k).
        error: estimate of ||remainder - its exact value||, (batch, 1).
        converged: whether `error <= tolerance ||s||`, (batch, 1).
        iterations: scalar int32, the number of products with J.
    """

    solution: tf.Tensor
    remainder: tf.Tensor
    error: tf.Tensor
    converged: tf.Tensor
    iterations: tf.Tensor


def regularized_least_squares(
    jvp: Callable[[tf.Tensor], tf.Tensor],
    vjp: Callable[[tf.Tensor], tf.Tensor],
    s: tf.Tensor,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100,
    unrolled: int = 1,
) -> LeastSquaresResult:
    """Minimizes ||s - J u||^2 + ||u||^2, that is solves (I + J^T J) u = J^T s, example by example.

    Conjugate gradients on A = I + J^T J with the residual r = J^T (s - J u) - u taken afresh at
    every step and the step alpha = ||r||^2/(||p||^2 + ||J p||^2). With the error e of u the
    remainder s - J u is off by J e, and

        ||J e|| <= ||r||/2   since J A^-1 has no singular value above 1/2, and
        ||J e||^2 <= (1 - alpha) ||r||^2   for e after and r before a step, since A >= I.

    The residual after the last step is not computed (half a product); it is extrapolated by the
    last ratio of squared residuals, beta, taken to be at least 0.01, and an example ends when
    ||r|| sqrt(min(1 - alpha, beta/4)) is below `tolerance ||s||`. So the error may exceed the
    tolerance, but not by more than a factor of 20.

    Gradients do not flow through the loop: differentiate implicitly.

    Args:
        jvp: v -> J v, from (batch, n) to (batch, k).
        vjp: t -> J^T t, its transpose.
        s: right-hand sides, (batch, k).
        tolerance: on the error of the remainder, relative to the norm of s.
        max_iterations: bound on the products with J.
        unrolled: this many steps are taken before the first test of convergence (in a graph the
            test costs about as much as a step).

    Returns:
        A `LeastSquaresResult`.
    """

    def norm2(x):
        return tf.reduce_sum(x * x, axis=-1, keepdims=True)

    s = tf.stop_gradient(s)
    rhs = vjp(s)
    sizes = [rhs.shape[-1], s.shape[-1]]
    target = tolerance**2 * norm2(s)

    def advance(y, p, rr, beta):
        """One step along p; y = [-u, s - J u] side by side."""
        p_and_jp = tf.concat([p, jvp(p)], axis=-1)
        alpha = tf.math.divide_no_nan(rr, norm2(p_and_jp))
        return y - alpha * p_and_jp, rr * tf.minimum(1.0 - alpha, tf.maximum(beta, 0.01) / 4.0)

    def turn(y, p, rr):
        """The next residual and direction."""
        minus_u, remainder = tf.split(y, sizes, axis=-1)
        r = vjp(remainder) + minus_u
        rr_new = norm2(r)
        beta = tf.math.divide_no_nan(rr_new, rr)
        return r + beta * p, rr_new, beta

    def go_on(iteration, y, p, rr, error2):
        return tf.reduce_any(error2 > target)

    def step(iteration, y, p, rr, error2):
        active = error2 > target
        p, rr, beta = turn(y, p, rr)
        y_new, error2_new = advance(y, p, rr, beta)
        y, error2 = tf.where(active, y_new, y), tf.where(active, error2_new, error2)
        return iteration + 1, y, p, rr, error2

    p, rr = rhs, norm2(rhs)
    y = tf.concat([tf.zeros_like(rhs), s], axis=-1)
    y, error2 = advance(y, p, rr, tf.constant(4.0, s.dtype))
    unrolled = min(unrolled, max_iterations)
    for _ in range(unrolled - 1):
        p, rr, beta = turn(y, p, rr)
        y, error2 = advance(y, p, rr, beta)
    iterations = tf.constant(unrolled)
    if max_iterations > unrolled:
        iterations, y, _, _, error2 = tf.while_loop(
            go_on,
            step,
            (iterations, y, p, rr, error2),
            maximum_iterations=max_iterations - unrolled,
        )
    minus_u, remainder = tf.split(y, sizes, axis=-1)
    return LeastSquaresResult(-minus_u, remainder, tf.sqrt(error2), error2 <= target, iterations)
