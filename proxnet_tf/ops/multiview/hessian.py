"""The linear systems of the multiview proximal map: steps of Newton's method, and its gradient.

See `problem` for the notation. The Hessian of each type of correlation is a module of its own.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from proxnet_tf.ops.linear.cg import CGResult, conjugate_gradient
from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.multiview import hessian_cca, hessian_gcca
from proxnet_tf.ops.multiview.correlation import CCA, GCCA, Correlation
from proxnet_tf.ops.multiview.problem import Point, Problem, cast_floats

# The module with the Hessian of each type of correlation: all define the same functions.
MODULES: dict[type[Correlation], Any] = {CCA: hessian_cca, GCCA: hessian_gcca}
CG_ITERATIONS = 300
# From this width on products take most of the time, and conjugate gradients run in float32:
# Newton's method corrects their steps, or a refinement in float64 corrects their solution.
WIDE = 128
REFINEMENTS = 12


@functools.lru_cache(maxsize=512)
def compiled(
    function: Callable[..., Any], correlation: Correlation, jit: bool | None
) -> Callable[..., Any]:
    """`function` of `correlation` as one graph, compiled by XLA where asked.

    One object for equal arguments. A `partial` has trace statistics of its own, so TensorFlow does
    not mistake several correlations for one function that is traced again and again.
    """
    bound = functools.partial(function, correlation)
    return tf.function(bound, jit_compile=jit, autograph=False)


def approximate(
    correlation: Correlation,
    hessian: Any,
    rhs: tf.Tensor,
    tolerance: tf.Tensor,
    radius: tf.Tensor | None = None,
) -> CGResult:
    """H^-1 rhs by conjugate gradients; for wide views in float32, to 1e-4 at best."""
    module, dtype = MODULES[type(correlation)], rhs.dtype
    if correlation.width >= WIDE:
        given = hessian, rhs, tf.maximum(tolerance, 1e-4), radius
        hessian, rhs, tolerance, radius = cast_floats(given, tf.float32)
    found = conjugate_gradient(
        lambda v: module.product(correlation, hessian, v),
        rhs,
        preconditioner=lambda r: module.precondition(correlation, hessian, r),
        tolerance=tolerance,
        max_iterations=CG_ITERATIONS,
        axes=(-2, -1),
        radius=radius,
    )
    return cast_floats(found, dtype)


def _refined(
    correlation: Correlation, hessian: Any, rhs: tf.Tensor, tolerance: tf.Tensor
) -> tuple[tf.Tensor, Report]:
    """H^-1 rhs of wide views: solutions in float32, their residuals in float64."""
    module = MODULES[type(correlation)]

    def go_on(x: tf.Tensor, r: tf.Tensor, better: tf.Tensor, iterations: tf.Tensor) -> tf.Tensor:
        return better & (tf.norm(r) > tolerance * tf.norm(rhs))

    def refine(
        x: tf.Tensor, r: tf.Tensor, better: tf.Tensor, iterations: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        found = approximate(correlation, hessian, r, tf.cast(1e-3, r.dtype))
        rest = r - module.product(correlation, hessian, found.solution)
        better = tf.norm(rest) < 0.5 * tf.norm(r)  # False for NaN
        x, r = tf.where(better, x + found.solution, x), tf.where(better, rest, r)
        return x, r, better, iterations + found.iterations

    start = tf.zeros_like(rhs), rhs, tf.constant(True), tf.zeros([], tf.int32)
    x, r, _, iterations = tf.while_loop(go_on, refine, start, maximum_iterations=REFINEMENTS)
    residual = tf.math.divide_no_nan(tf.norm(r), tf.norm(rhs))
    return x, Report(residual, iterations, residual <= tolerance)


def solve_hessian(
    correlation: Correlation,
    problem: Problem,
    point: Point,
    rhs: tf.Tensor,
    tolerance: tf.Tensor,
    jit: bool,
) -> tuple[tf.Tensor, Report]:
    """U with H U = `rhs` at the solution, `[D, D]`, by conjugate gradients.

    H is positive definite at a strict minimiser; a direction of negative curvature ends the
    iteration with the last iterate, and the report says that it did not converge.
    """
    prepared = compiled(_prepare, correlation, None)(problem, point)
    return compiled(_solve, correlation, jit)(problem, point, prepared, rhs, tolerance)


def _prepare(correlation: Correlation, problem: Problem, point: Point) -> Any:
    module = MODULES[type(correlation)]
    return module.decompose(correlation, module.ingredients_at(correlation, problem, point), False)


def _solve(
    correlation: Correlation,
    problem: Problem,
    point: Point,
    decomposed: Any,
    rhs: tf.Tensor,
    tolerance: tf.Tensor,
) -> tuple[tf.Tensor, Report]:
    module = MODULES[type(correlation)]
    hessian = module.hessian_at(correlation, problem, point, decomposed)
    inverse = point.spectrum.inverse
    mapped = module.enter(correlation, hessian, correlation.by_view(rhs, tf.transpose(inverse)))
    if correlation.width >= WIDE:
        solution, report = _refined(correlation, hessian, mapped, tolerance)
    else:
        found = approximate(correlation, hessian, mapped, tolerance)
        solved = (found.converged & ~found.negative_curvature)[0, 0]
        solution, report = found.solution, found.report._replace(converged=solved)
        report = report._replace(residual=report.residual[0, 0])
    u = correlation.by_view(module.leave(correlation, hessian, solution), inverse)
    # H is the identity outside the row spaces.
    return u + tf.matmul(rhs - u, problem.unused), report
