"""Solvers of the multiview proximal map in D x D matrices, and the linear system of its gradient.

See `gram_problem` for the problem (4) and its notation. Newton is a trust-region method with
Steihaug's conjugate gradients; L-BFGS is TensorFlow Probability's. Both descend from W = R.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient
from proxnet_tf.ops.multiview import correlation as spectral
from proxnet_tf.ops.multiview.correlation import Correlation, Spectrum
from proxnet_tf.ops.multiview.problem import (
    Point,
    Reduction,
    covariance_of,
    evaluate,
    gamma_of,
    hessian_at,
    hessian_product,
    inverses_of,
    metrics_at,
    point_at,
    precondition,
)

CG_ITERATIONS = 300
# From this width on products dominate, and conjugate gradients run in float32: as steps that
# Newton's method corrects, or with refinement in float64.
WIDE = 128
REFINEMENTS = 12


class Solution(NamedTuple):
    """Where the solver stopped.

    Attributes:
        point: the last iterate.
        iterations: number of evaluations of (4), int32.
        converged: whether the residual reached the tolerance.
        initial: the objective at W = R, that is L of the input.
    """

    point: Point
    iterations: tf.Tensor
    converged: tf.Tensor
    initial: tf.Tensor


def _conjugate_gradient(correlation, hessian, rhs, tolerance, radius=None):
    return conjugate_gradient(
        lambda v: hessian_product(correlation, hessian, v),
        rhs,
        preconditioner=lambda r: precondition(hessian, r),
        tolerance=tolerance,
        max_iterations=CG_ITERATIONS,
        axes=(-2, -1),
        radius=radius,
    )


def _cast(structure, dtype):
    return tf.nest.map_structure(
        lambda a: tf.cast(a, dtype) if tf.is_tensor(a) and a.dtype.is_floating else a, structure
    )


def _approximate(correlation, hessian, rhs, tolerance, radius=None):
    """`_conjugate_gradient` to a tolerance of at least 1e-4, in float32 where that is faster."""
    if correlation.width < WIDE:
        return _conjugate_gradient(correlation, hessian, rhs, tolerance, radius)
    data = _cast((hessian, rhs, tf.maximum(tolerance, 1e-4), radius), tf.float32)
    return _cast(_conjugate_gradient(correlation, *data), rhs.dtype)


def _solve_linear(correlation, hessian, rhs, tolerance):
    """H^-1 rhs."""
    if correlation.width < WIDE:
        return _conjugate_gradient(correlation, hessian, rhs, tolerance).solution

    def go_on(i, x, r, better):
        return better & (tf.norm(r) > tolerance * tf.norm(rhs))

    def refine(i, x, r, _):
        step = _approximate(correlation, hessian, r, tf.cast(1e-3, r.dtype)).solution
        rest = r - hessian_product(correlation, hessian, step)
        better = tf.norm(rest) < 0.5 * tf.norm(r)  # False for NaN
        return i + 1, tf.where(better, x + step, x), tf.where(better, rest, r), better

    start = tf.zeros([], tf.int32), tf.zeros_like(rhs), rhs, tf.constant(True)
    return tf.while_loop(go_on, refine, start, maximum_iterations=REFINEMENTS)[1]


def _retract(correlation, hessian, spectrum, v):
    """V' with a second-order term that follows the curved valley of small ||F||.

    L does not change when a view is multiplied by a matrix. What of the step is such a product,
    W_j A_j, and the rest V_j combine as (W_j + V_j)(I + A_j), which adds V_j A_j ("gcca").

    For "cca" in the eigenbasis: as the correlations approach one the W v_j, v_j = (a_j, -b_j),
    vanish, and what the step adds to them along the W u_i must follow the step of the W u_i. Far
    from one, where this says nothing, sigma_j^4 fades it out.
    """
    if correlation.objective == "gcca":
        parts = []
        for w, part in zip(hessian.common, tf.split(v, correlation.sizes, axis=1), strict=True):
            inner = tf.matmul(w, part, transpose_a=True)
            rest = part - tf.matmul(w, inner)
            parts.append(part + tf.sqrt(hessian.c) * tf.matmul(rest, inner))
        return tf.concat(parts, 1)
    pairs = min(correlation.sizes)
    size = tf.norm(hessian.wt[:, :pairs], axis=0)
    common = hessian.common[0]
    shift = v[:, :pairs] - tf.matmul(common, tf.matmul(common, v[:, :pairs], transpose_a=True))
    shift = tf.math.divide_no_nan(shift, size)
    shift = tf.matmul(shift, tf.matmul(common, v[:, -pairs:], transpose_a=True))
    shift *= spectrum.values[-pairs:] ** 4
    return v + tf.pad(shift, [[0, 0], [correlation.width - pairs, 0]])


class _State(NamedTuple):
    point: Point
    metrics: tf.Tensor
    radius: tf.Tensor
    stalled: tf.Tensor


# A loop variable or an argument of a compiled function costs more than a D x D product: what
# travels between the compiled parts travels in one stack of matrices and one vector.


def _pack(state):
    point, spectrum = state.point, state.point.spectrum
    matrices = [point.w, *spectrum[1:4], point.wt, point.metric, point.slope]
    scalars = [point.objective, point.residual, state.radius, state.stalled]
    return (
        tf.concat([tf.stack(matrices), state.metrics], 0),
        tf.concat([spectrum.values, spectrum.selected, tf.stack(scalars)], 0),
    )


def _unpack(matrices, vector):
    w, basis, inverse, rotation, wt, metric, slope = tf.unstack(matrices[:7])
    values, selected, scalars = tf.split(vector, [w.shape[0], w.shape[0], 4])
    objective, residual, radius, stalled = tf.unstack(scalars)
    spectrum = Spectrum(values, basis, inverse, rotation, selected)
    point = Point(w, spectrum, wt, metric, slope, objective, residual)
    return _State(point, matrices[7:], radius, stalled)


def _pack_reduction(reduction):
    return tf.stack([reduction.root, reduction.unused]), tf.stack([reduction.c, reduction.t])


def _unpack_reduction(matrices, vector):
    root, unused = tf.unstack(matrices)
    c, t = tf.unstack(vector)
    return Reduction(root=root, pinv=None, unused=unused, turn=None, c=c, t=t)


def _propose(correlation, reduction, state, inverses, tolerance):
    """A step of Steihaug's method: the stack [W, S] at its end; its promise and its length."""
    reduction, state = _unpack_reduction(*reduction), _unpack(*state)
    point = state.point
    hessian = hessian_at(correlation, reduction, point, inverses)
    # Superlinear, but no more exact than the last step needs.
    enough = tf.minimum(0.2 * tf.math.divide_no_nan(tolerance, point.residual), 0.1)
    forcing = tf.clip_by_value(tf.sqrt(point.residual), enough, 0.1)
    found = _approximate(correlation, hessian, -point.slope, forcing, state.radius)
    v = _retract(correlation, hessian, point.spectrum, found.solution)
    w = point.w + tf.matmul(v, point.spectrum.inverse)
    w -= tf.matmul(w, reduction.unused)
    predicted = found.reduction[0, 0] / reduction.t
    return tf.stack([w, covariance_of(reduction, w)]), tf.stack([predicted, found.norm[0, 0]])


def _start(correlation, reduction, factors):
    reduction = _unpack_reduction(*reduction)
    point = point_at(correlation, reduction, reduction.root, factors)
    radius = 0.2 * tf.norm(reduction.root)
    metrics = metrics_at(correlation, reduction, point)
    return _pack(_State(point, metrics, radius, tf.zeros_like(radius)))


def _accept(correlation, reduction, state, trial, factors):
    """The trust-region test of a trial point, and the state after it."""
    reduction, state = _unpack_reduction(*reduction), _unpack(*state)
    predicted, norm = tf.unstack(trial[1])
    point, radius = state.point, state.radius
    new = point_at(correlation, reduction, trial[0][0], factors)
    # Too small a change for the objective's rounding: the residual decides.
    tiny = predicted < 1e-12 * (1.0 + tf.abs(point.objective))
    smaller = new.residual < point.residual
    gain = tf.math.divide_no_nan(point.objective - new.objective, predicted)
    ratio = tf.where(tiny, tf.cast(smaller, gain.dtype), gain)
    ratio = tf.where(tf.math.is_finite(ratio), ratio, -tf.ones_like(ratio))
    at_edge = norm > 0.99 * radius
    radius = tf.where((ratio > 0.9) & at_edge, 2.0 * radius, radius)
    shrink = tf.where(ratio < -1.0, 0.25 * norm, 0.5 * norm)
    radius = tf.where(ratio < 0.25, shrink, radius)
    point = tf.nest.map_structure(lambda a, b: tf.where(ratio > 1e-4, a, b), new, point)
    stalled = tf.cast(tiny & ~smaller, radius.dtype)
    return _pack(_State(point, metrics_at(correlation, reduction, point), radius, stalled))


@functools.lru_cache(maxsize=512)
def _compile(function, correlation, jit):
    """`function` of `correlation`, compiled by XLA where asked."""
    return tf.function(functools.partial(function, correlation), jit_compile=jit, autograph=False)


def _newton(correlation, reduction, tolerance, max_iterations, jit):
    """Trust-region Newton from W = R: Steihaug's method in the preconditioner's norm.

    Decompositions run outside XLA, whose kernels for them are slow; all else is compiled.
    """
    propose, accept, start = (_compile(f, correlation, jit) for f in (_propose, _accept, _start))
    data = _pack_reduction(reduction)

    def factors_of(covariance):
        return spectral.factorise(correlation, covariance, reduction.unused)

    def go_on(iteration, matrices, vector):
        _, residual, _, stalled = tf.unstack(vector[-4:])
        return (residual > tolerance) & (iteration < max_iterations) & (stalled == 0.0)

    def step(iteration, matrices, vector):
        state = matrices, vector
        inverses = inverses_of(correlation, matrices[7:])
        trial = propose(data, state, inverses, tf.cast(tolerance, vector.dtype))
        return iteration + 1, *accept(data, state, trial, factors_of(trial[0][1]))

    first = start(data, factors_of(covariance_of(reduction, reduction.root)))
    iterations, *last = tf.while_loop(go_on, step, (tf.constant(1), *first))
    point = _unpack(*last).point
    converged = point.residual <= tolerance
    return Solution(point, iterations, converged, _unpack(*first).point.objective)


def _lbfgs(correlation, reduction, tolerance, max_iterations):
    """TFP's L-BFGS on (4) from W = R, on t times the objective, whose gradient is F."""
    import tensorflow_probability as tfp

    shape = reduction.root.shape

    def value_and_gradient(flat):
        w = tf.reshape(flat, shape)
        w -= tf.matmul(w, reduction.unused)
        point = evaluate(correlation, reduction, w)
        slope = tf.matmul(point.slope, point.spectrum.basis, transpose_b=True)
        broken = ~tf.math.is_finite(point.objective)
        value = tf.where(broken, tf.cast(np.inf, w.dtype), reduction.t * point.objective)
        slope = tf.where(broken, tf.zeros_like(slope), slope)
        return value, tf.reshape(slope - tf.matmul(slope, reduction.unused), [-1])

    found = tfp.optimizer.lbfgs_minimize(
        value_and_gradient,
        tf.reshape(reduction.root, [-1]),
        # its rule is on the largest entry of F
        tolerance=tolerance * tf.norm(reduction.root) / correlation.width,
        max_iterations=max_iterations,
        max_line_search_iterations=30,
    )
    w = tf.reshape(found.position, shape)
    point = evaluate(correlation, reduction, w - tf.matmul(w, reduction.unused))
    initial = evaluate(correlation, reduction, reduction.root).objective
    return Solution(point, found.num_objective_evaluations, point.residual <= tolerance, initial)


def solve(
    correlation: Correlation,
    reduction: Reduction,
    *,
    solver: str = "newton",
    tolerance: float = 1e-8,
    max_iterations: int = 200,
    jit: bool = True,
) -> Solution:
    """Solves (4) by descent from W = R.

    Args:
        correlation: which problem.
        reduction: its data.
        solver: "newton" (trust region, conjugate gradients) or "lbfgs" (TensorFlow Probability;
            where it does not reach the tolerance, Newton starts afresh from W = R).
        tolerance: on ||F(W)||_F / ||R||_F.
        max_iterations: bound on the evaluations of (4) by Newton, on the iterations of L-BFGS.
        jit: whether XLA compiles the conjugate gradients.
    """
    reduction = tf.nest.map_structure(tf.stop_gradient, reduction)
    return _solver(correlation, solver, tolerance, max_iterations, jit)(reduction)


@functools.lru_cache(maxsize=128)
def _solver(correlation, solver, tolerance, max_iterations, jit):
    """The solver as one graph, also when called eagerly."""

    def solve(reduction):
        def newton():
            return _newton(correlation, reduction, tolerance, max_iterations, jit)

        if solver == "newton":
            return newton()
        found = _lbfgs(correlation, reduction, tolerance, max_iterations)
        return tf.cond(found.converged, lambda: found, newton)

    return tf.function(solve, autograph=False)


def solve_hessian(
    correlation: Correlation,
    reduction: Reduction,
    point: Point,
    rhs: tf.Tensor,
    *,
    tolerance: float = 1e-8,
    jit: bool = True,
) -> tf.Tensor:
    """U with H U = `rhs` at the solution, `[D, D]`, by conjugate gradients: the core of (5).

    H is positive definite at a strict minimiser; a direction of negative curvature ends the
    iteration with the last iterate.
    """
    metrics = _compile(metrics_at, correlation, jit)(reduction, point)
    solve = _compile(_hessian_solve, correlation, jit)
    inverses = inverses_of(correlation, metrics)
    return solve(reduction, point, inverses, rhs, tf.cast(tolerance, rhs.dtype))


def _hessian_solve(correlation, reduction, point, inverses, rhs, tolerance):
    inverse = point.spectrum.inverse
    hessian = hessian_at(correlation, reduction, point, inverses)
    mapped = tf.matmul(rhs, inverse, transpose_b=True)
    u = tf.matmul(_solve_linear(correlation, hessian, mapped, tolerance), inverse)
    return u + tf.matmul(rhs - u, reduction.unused)  # H is the identity outside the row spaces


def shrinkage(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1, `[D, D]`, symmetric."""
    basis = point.spectrum.basis
    slope = tf.matmul(basis, gamma_of(correlation, reduction, point.spectrum))
    slope = tf.matmul(slope, basis, transpose_b=True)
    return tf.linalg.inv(tf.eye(correlation.width, dtype=slope.dtype) + slope)
