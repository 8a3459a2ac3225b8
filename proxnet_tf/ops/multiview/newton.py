"""Solvers of the multiview proximal map in D x D matrices.

See `problem` for the problem (4) and its notation. Newton is a trust-region method with
Steihaug's conjugate gradients; L-BFGS is TensorFlow Probability's. Both descend from W = R.

All that is known before the data is a `Correlation` and a few Python values. Tolerances, bounds
on iterations, eps and lam are tensors, so that one compiled solver serves them all.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.hessian import MODULES, WIDE, approximate, compiled
from proxnet_tf.ops.multiview.problem import (
    Point,
    Problem,
    Reduction,
    cast_floats,
    covariance_of,
    evaluate,
    factors_at,
    map_step,
    point_at,
    reduce_gram,
    shrinkage_step,
)
from proxnet_tf.ops.multiview.spectrum import Factors

# If a GPU is visible, device="auto" solves problems up to this width on the host.
HOST_WIDTH = 256


@dataclass(frozen=True)
class Settings:
    """How (4) is solved: the settings that all solvers of `proxnet_tf.solvers` have (see there).

    Attributes:
        tolerance: on ||F(W)||_F / ||R||_F, and on the linear system of the gradient.
        max_iterations: bound on the evaluations of (4) by Newton, on the iterations of L-BFGS.
        jit_compile: whether XLA compiles the inner loop; "auto" where TensorFlow is built with XLA.
        device: where the D x D problem is solved: a name such as "CPU:0", None where TensorFlow
            puts it, "auto" on the host if a GPU is visible and D is at most 256 (launching many
            small kernels on a GPU is slow), else None.
        method: "newton" (trust region, conjugate gradients) or "lbfgs" (TensorFlow Probability's;
            where it does not reach the tolerance, Newton starts afresh from W = R).
    """

    tolerance: float = 1e-8
    max_iterations: int = 400
    jit_compile: bool | str = "auto"
    device: str | None = "auto"

    method: ClassVar[str] = "newton"

    @property
    def compiles(self) -> bool:
        """`jit_compile` as a boolean."""
        if self.jit_compile == "auto":
            return bool(tf.test.is_built_with_xla())
        return bool(self.jit_compile)

    def device_for(self, width: int) -> str | None:
        """`device` for a problem of D = `width` columns, as a name or None."""
        if self.device != "auto":
            return self.device
        return "CPU:0" if width <= HOST_WIDTH and tf.config.list_logical_devices("GPU") else None


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


class Solved(NamedTuple):
    """A problem, its solution and its map.

    Attributes:
        reduction: the data of (4).
        solution: where the solver stopped.
        shrinkage: (I + t Gam)^-1 - I there, symmetric.
        step: M - I, see `map_step`.
    """

    reduction: Reduction
    solution: Solution
    shrinkage: tf.Tensor
    step: tf.Tensor


# --- Newton ------------------------------------------------------------------------------------


class _State(NamedTuple):
    point: Point
    radius: tf.Tensor
    stalled: tf.Tensor


class _Trial(NamedTuple):
    w: tf.Tensor
    covariance: tf.Tensor
    predicted: tf.Tensor  # decrease of the objective that the quadratic model promises
    length: tf.Tensor  # of the step, in the preconditioner's norm


def _start(correlation: Correlation, problem: Problem, factors: Factors) -> tuple[_State, Any]:
    """The state at W = R, and the matrices to be decomposed there."""
    point = point_at(correlation, problem, problem.root, factors)
    radius = 0.2 * tf.norm(problem.root)
    ingredients = MODULES[type(correlation)].ingredients_at(correlation, problem, point)
    return _State(point, radius, tf.constant(False)), ingredients


def _propose(
    correlation: Correlation, problem: Problem, state: _State, decomposed: Any, tolerance: tf.Tensor
) -> _Trial:
    """A step of Steihaug's method."""
    module, (point, radius, _) = MODULES[type(correlation)], state
    hessian = module.hessian_at(correlation, problem, point, decomposed)
    # Superlinear convergence, but the last step no more exact than needed.
    enough = tf.minimum(0.2 * tf.math.divide_no_nan(tolerance, point.residual), 0.1)
    forcing = tf.clip_by_value(tf.sqrt(point.residual), enough, 0.1)
    downhill = module.enter(correlation, hessian, -point.slope)
    found = approximate(correlation, hessian, downhill, forcing, radius)
    v = module.leave(correlation, hessian, module.retract(correlation, hessian, found.solution))
    w = point.w + correlation.by_view(tf.cast(v, point.w.dtype), point.spectrum.inverse)
    w -= correlation.by_view(w, problem.unused)
    reduction, length = cast_floats((found.reduction[0, 0], found.norm[0, 0]), w.dtype)
    return _Trial(w, covariance_of(problem, w), reduction / problem.t, length)


def _accept(
    correlation: Correlation, problem: Problem, state: _State, trial: _Trial, factors: Factors
) -> tuple[_State, Any]:
    """The trust-region test of a trial point: the next state, and the matrices to be decomposed."""
    point, radius, _ = state
    new = point_at(correlation, problem, trial.w, factors)
    # If the change is below the rounding of the objective, the residual decides.
    tiny = trial.predicted < 1e-12 * (1.0 + tf.abs(point.objective))
    smaller = new.residual < point.residual
    gain = tf.math.divide_no_nan(point.objective - new.objective, trial.predicted)
    ratio = tf.where(tiny, tf.cast(smaller, gain.dtype), gain)
    ratio = tf.where(tf.math.is_finite(ratio), ratio, -tf.ones_like(ratio))
    at_edge = trial.length > 0.99 * radius
    radius = tf.where((ratio > 0.9) & at_edge, 2.0 * radius, radius)
    shrink = tf.where(ratio < -1.0, 0.25 * trial.length, 0.5 * trial.length)
    radius = tf.where(ratio < 0.25, shrink, radius)
    point = tf.nest.map_structure(lambda a, b: tf.where(ratio > 1e-4, a, b), new, point)
    ingredients = MODULES[type(correlation)].ingredients_at(correlation, problem, point)
    return _State(point, radius, tiny & ~smaller), ingredients


def _newton(
    correlation: Correlation,
    jit: bool,
    problem: Problem,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
) -> Solution:
    """Trust-region Newton from W = R: Steihaug's method in the preconditioner's norm.

    Decompositions run outside XLA, whose kernels for them are slow; all else is compiled.
    """
    start, propose, accept = (compiled(f, correlation, jit) for f in (_start, _propose, _accept))

    def go_on(iteration: tf.Tensor, state: _State, ingredients: Any) -> tf.Tensor:
        unsolved = state.point.residual > tolerance
        return unsolved & (iteration < max_iterations) & ~state.stalled

    def step(iteration: tf.Tensor, state: _State, ingredients: Any) -> tuple[Any, ...]:
        wide = correlation.width >= WIDE
        decomposed = MODULES[type(correlation)].decompose(correlation, ingredients, wide)
        trial = propose(problem, state, decomposed, tolerance)
        factors = factors_at(correlation, problem, trial.covariance)
        return iteration + 1, *accept(problem, state, trial, factors)

    factors = factors_at(correlation, problem, covariance_of(problem, problem.root))
    first = start(problem, factors)
    iterations, (point, *_), _ = tf.while_loop(go_on, step, (tf.constant(1), *first))
    return Solution(point, iterations, point.residual <= tolerance, first[0].point.objective)


def _lbfgs(
    correlation: Correlation,
    jit: bool,
    problem: Problem,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
) -> Solution:
    """TFP's L-BFGS on (4) from W = R, on t times the objective, whose gradient is F.

    Where it does not reach the tolerance, Newton starts afresh.
    """
    import tensorflow_probability as tfp

    shape = problem.root.shape

    def value_and_gradient(flat: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        w = tf.reshape(flat, shape)
        w -= tf.matmul(w, problem.unused)
        point = evaluate(correlation, problem, w)
        slope = correlation.by_view(point.slope, tf.transpose(point.spectrum.basis))
        broken = ~tf.math.is_finite(point.objective)  # the line search turns back from infinity
        value = tf.where(broken, tf.cast(np.inf, w.dtype), problem.t * point.objective)
        slope = tf.where(broken, tf.zeros_like(slope), slope)
        return value, tf.reshape(slope - tf.matmul(slope, problem.unused), [-1])

    found = tfp.optimizer.lbfgs_minimize(
        value_and_gradient,
        tf.reshape(problem.root, [-1]),
        # its stopping rule is on the largest entry of F
        tolerance=tolerance * tf.norm(problem.root) / correlation.width,
        max_iterations=max_iterations,
        max_line_search_iterations=30,
    )
    w = tf.reshape(found.position, shape)
    point = evaluate(correlation, problem, w - tf.matmul(w, problem.unused))
    initial = evaluate(correlation, problem, problem.root).objective
    solved = point.residual <= tolerance
    return tf.cond(
        solved,
        lambda: Solution(point, found.num_objective_evaluations, solved, initial),
        lambda: _newton(correlation, jit, problem, tolerance, max_iterations),
    )


_METHODS = {"newton": _newton, "lbfgs": _lbfgs}


def _solve(
    correlation: Correlation,
    method: str,
    jit: bool,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
) -> Solved:
    reduction = reduce_gram(correlation, gram, count, rounding, lam, epsilon)
    problem = reduction.problem
    found = _METHODS[method](correlation, jit, problem, tolerance, max_iterations)
    shrinkage = shrinkage_step(correlation, problem, found.point)
    return Solved(reduction, found, shrinkage, map_step(reduction, found.point, shrinkage))


@functools.lru_cache(maxsize=128)
def solver(correlation: Correlation, method: str, jit: bool) -> Callable[..., Solved]:
    """The solver of one kind of problem as one graph, also when called eagerly."""
    return tf.function(functools.partial(_solve, correlation, method, jit), autograph=False)


def solve(
    correlation: Correlation,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    settings: Settings,
) -> Solved:
    """Solves (4) by descent from W = R; for the tensors see `reduce_gram`."""
    run = solver(correlation, settings.method, settings.compiles)
    bounds = tf.constant(settings.tolerance, gram.dtype), tf.constant(settings.max_iterations)
    with tf.device(settings.device_for(correlation.width)):
        return run(gram, count, rounding, lam, epsilon, *bounds)
