"""The linear systems of the multiview proximal map: steps of Newton's method, and the gradient (5).

See `problem` for the notation. The Hessian of each type of correlation is a module of its own.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from proxnet_tf.ops.linear.cg import CGResult, conjugate_gradient
from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.multiview import joint_model, pair_model
from proxnet_tf.ops.multiview.correlation import CCA, GCCA, Correlation
from proxnet_tf.ops.multiview.packing import cast_floats
from proxnet_tf.ops.multiview.problem import Point, Problem

# The module with the Hessian of each type of correlation: all define the same functions.
MODELS: dict[type[Correlation], Any] = {CCA: pair_model, GCCA: joint_model}
CG_ITERATIONS = 300
# From this width on products dominate, and conjugate gradients run in float32: as steps that
# Newton's method corrects, or with refinement in float64.
WIDE = 128
REFINEMENTS = 12


@functools.lru_cache(maxsize=512)
def compiled(
    function: Callable[..., Any], correlation: Correlation, jit: bool | None
) -> Callable[..., Any]:
    """`function` of `correlation` as one graph, compiled by XLA where asked.

    One object for equal arguments; a `partial` has trace statistics of its own, so that several
    correlations are not mistaken for one function that is traced again and again.
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
    model = MODELS[type(correlation)]
    wide = correlation.width >= WIDE
    dtype = rhs.dtype
    if wide:
        given = hessian, rhs, tf.maximum(tolerance, 1e-4), radius
        hessian, rhs, tolerance, radius = cast_floats(given, tf.float32)

    def product(*v: tf.Tensor) -> tf.Tensor:
        first, *through = v
        return model.product(correlation, hessian, first, None if wide else True, *through)

    found = conjugate_gradient(
        product,
        rhs,
        preconditioner=lambda r: model.precondition(correlation, hessian, r),
        tolerance=tolerance,
        max_iterations=CG_ITERATIONS,
        axes=(-2, -1),
        radius=radius,
        through=wide and model is pair_model,
    )
    return cast_floats(found, dtype)


def _solve_linear(
    correlation: Correlation, hessian: Any, rhs: tf.Tensor, tolerance: tf.Tensor
) -> tuple[tf.Tensor, Report]:
    """H^-1 rhs, and how well it was found; negative curvature counts as not converged."""
    if correlation.width < WIDE:
        found = approximate(correlation, hessian, rhs, tolerance)
        solved = found.converged & ~found.negative_curvature
        report = Report(found.residual[0, 0], found.iterations, solved[0, 0])
        return found.solution, report

    model = MODELS[type(correlation)]

    def go_on(
        i: tf.Tensor, x: tf.Tensor, r: tf.Tensor, better: tf.Tensor, iterations: tf.Tensor
    ) -> tf.Tensor:
        return better & (tf.norm(r) > tolerance * tf.norm(rhs))

    def refine(
        i: tf.Tensor, x: tf.Tensor, r: tf.Tensor, better: tf.Tensor, iterations: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        found = approximate(correlation, hessian, r, tf.cast(1e-3, r.dtype))
        rest = r - model.product(correlation, hessian, found.solution)
        better = tf.norm(rest) < 0.5 * tf.norm(r)  # False for NaN
        x, r = tf.where(better, x + found.solution, x), tf.where(better, rest, r)
        return i + 1, x, r, better, iterations + found.iterations

    zero = tf.zeros([], tf.int32)
    start = zero, tf.zeros_like(rhs), rhs, tf.constant(True), zero
    _, x, r, _, iterations = tf.while_loop(go_on, refine, start, maximum_iterations=REFINEMENTS)
    residual = tf.math.divide_no_nan(tf.norm(r), tf.norm(rhs))
    return x, Report(residual, iterations, residual <= tolerance)


def solve_hessian(
    correlation: Correlation,
    problem: Problem,
    point: Point,
    rhs: tf.Tensor,
    tolerance: float | tf.Tensor,
    *,
    jit: bool = True,
) -> tuple[tf.Tensor, Report]:
    """U with H U = `rhs` at the solution, `[D, D]`, by conjugate gradients: the core of (5).

    H is positive definite at a strict minimiser; a direction of negative curvature ends the
    iteration with the last iterate, and the report says that it did not converge.
    """
    prepare = compiled(_prepare, correlation, None)
    run = compiled(_hessian_solve, correlation, jit)
    return run(problem, point, prepare(problem, point), rhs, scalar(tolerance, rhs.dtype))


def _prepare(correlation: Correlation, problem: Problem, point: Point) -> Any:
    model = MODELS[type(correlation)]
    return model.decompose(correlation, model.ingredients_at(correlation, problem, point), False)


def _hessian_solve(
    correlation: Correlation,
    problem: Problem,
    point: Point,
    decomposed: Any,
    rhs: tf.Tensor,
    tolerance: tf.Tensor,
) -> tuple[tf.Tensor, Report]:
    model = MODELS[type(correlation)]
    hessian = model.hessian_at(correlation, problem, point, decomposed)
    inverse = point.spectrum.inverse
    mapped = model.enter(correlation, hessian, correlation.by_view(rhs, tf.transpose(inverse)))
    solution, report = _solve_linear(correlation, hessian, mapped, tolerance)
    u = correlation.by_view(model.leave(correlation, hessian, solution), inverse)
    # H is the identity outside the row spaces.
    return u + tf.matmul(rhs - u, problem.unused), report


def shrinkage(correlation: Correlation, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1, `[D, D]`, symmetric."""
    basis = point.spectrum.basis
    slope = tf.matmul(correlation.times_slope(basis, point.pull), basis, transpose_b=True)
    return tf.linalg.inv(tf.eye(correlation.width, dtype=slope.dtype) + slope)
