"""Solvers of the multiview proximal map in D x D matrices, and the linear system of its gradient.

See `problem` for the problem (4) and its notation. Newton is a trust-region method with
Steihaug's conjugate gradients; L-BFGS is TensorFlow Probability's. Both descend from W = R.

All that is known before the data is a `Correlation` and a few Python values. Tolerances, bounds
on iterations, eps and lam are tensors, so that one compiled solver serves them all.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview import subspace
from proxnet_tf.ops.multiview.correlation import CCA, Correlation, Factors, Spectrum
from proxnet_tf.ops.multiview.linear import MODELS, WIDE, approximate, compiled
from proxnet_tf.ops.multiview.packing import Packed, cast_floats, pack, unpack, zeros
from proxnet_tf.ops.multiview.problem import (
    Point,
    Problem,
    covariance_of,
    evaluate,
    factors_at,
    point_at,
)

# A first attempt with a smaller bound than this is not followed by a second.
PATIENCE = 50
# With a GPU in sight, problems up to this width are solved on the host by device="auto".
HOST_WIDTH = 256


@dataclass(frozen=True)
class Settings:
    """How (4) is solved.

    Attributes:
        method: "newton" (trust region, conjugate gradients) or "lbfgs" (TensorFlow Probability's;
            where it does not reach the tolerance, Newton starts afresh from W = R).
        tolerance: on ||F(W)||_F / ||R||_F, and on the linear system of the gradient.
        max_iterations: bound on the evaluations of (4) by one attempt of Newton, on the iterations
            of L-BFGS.
        jit: whether XLA compiles the inner loop; "auto" where TensorFlow is built with XLA.
        device: where the D x D problem is solved: a name such as "CPU:0", None where TensorFlow
            puts it, "auto" on the host if a GPU is visible and D is at most 256 (a GPU launches
            each of the many small kernels dearly), else None.
    """

    method: str = "newton"
    tolerance: float = 1e-8
    max_iterations: int = 200
    jit: bool | str = "auto"
    device: str | None = "auto"

    @property
    def compiles(self) -> bool:
        """`jit` as a boolean."""
        return bool(tf.test.is_built_with_xla()) if self.jit == "auto" else bool(self.jit)

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


# --- Newton ------------------------------------------------------------------------------------


class _State(NamedTuple):
    point: Point
    radius: tf.Tensor
    stalled: tf.Tensor


class _Trial(NamedTuple):
    w: tf.Tensor
    covariance: tf.Tensor
    predicted: tf.Tensor  # decrease of the objective that the quadratic model promises
    descent: tf.Tensor  # decrease that its slope alone promises
    length: tf.Tensor  # of the step, in the preconditioner's norm


# Layouts for `pack`.
_SPECTRUM = Spectrum(values=1, basis=2, inverse=2, rotation=2, selected=1)
_POINT = Point(w=2, spectrum=_SPECTRUM, wt=2, pull=2, slope=2, objective=0, residual=0)
_STATE = _State(point=_POINT, radius=0, stalled=0)
_TRIAL = _Trial(w=2, covariance=2, predicted=0, descent=0, length=0)
_PROBLEM = Problem(root=2, unused=2, epsilon=0, c=0, t=0)


def _propose(
    correlation: Correlation, problem: Packed, state: Packed, decomposed: Any, tolerance: tf.Tensor
) -> Packed:
    """A step of Steihaug's method, as a `_Trial`."""
    model = MODELS[type(correlation)]
    data, (point, radius, _) = unpack(_PROBLEM, problem), unpack(_STATE, state)
    hessian = model.hessian_at(correlation, data, point, decomposed)
    # Superlinear, but no more exact than the last step needs.
    enough = tf.minimum(0.2 * tf.math.divide_no_nan(tolerance, point.residual), 0.1)
    forcing = tf.clip_by_value(tf.sqrt(point.residual), enough, 0.1)
    downhill = model.enter(correlation, hessian, -point.slope)
    found = approximate(correlation, hessian, downhill, forcing, radius)
    v = model.leave(correlation, hessian, model.retract(correlation, hessian, found.solution))
    v, descent = tf.cast(v, point.w.dtype), tf.reduce_sum(downhill * found.solution)
    w = point.w + correlation.by_view(v, point.spectrum.inverse)
    w -= correlation.by_view(w, data.unused)
    promised = found.reduction[0, 0], descent, found.norm[0, 0]
    predicted, descent, length = cast_floats(promised, w.dtype)
    predicted, descent = predicted / data.t, descent / data.t
    return pack(_Trial(w, covariance_of(data, w), predicted, descent, length))


def _accept(
    correlation: Correlation, problem: Packed, state: Packed, trial: Packed, factors: Factors
) -> tuple[Packed, Any]:
    """The trust-region test of a trial point: the state after it, and what is to be decomposed.

    The trial point after a state of zeros is the first, and is taken.
    """
    data, tried = unpack(_PROBLEM, problem), unpack(_TRIAL, trial)
    point, radius, _ = unpack(_STATE, state)
    new = point_at(correlation, data, tried.w, factors)
    first = radius == 0.0
    # Too small a change for the objective's rounding: the residual decides.
    tiny = tried.predicted < 1e-12 * (1.0 + tf.abs(point.objective))
    smaller = new.residual < point.residual
    gain = tf.math.divide_no_nan(point.objective - new.objective, tried.predicted)
    ratio = tf.where(tiny, tf.cast(smaller, gain.dtype), gain)
    ratio = tf.where(tf.math.is_finite(ratio), ratio, -tf.ones_like(ratio))
    at_edge = tried.length > 0.99 * radius
    radius = tf.where((ratio > 0.9) & at_edge, 2.0 * radius, radius)
    if correlation.width >= WIDE:
        # To the minimum of the parabola through both values and the slope along the step.
        rise = new.objective - point.objective
        share = tf.math.divide_no_nan(0.5 * tried.descent, rise + tried.descent)
        share = tf.where(tf.math.is_finite(share), share, tf.zeros_like(share))
        shrink = tf.clip_by_value(share, 0.1, 0.5) * tried.length
    else:
        shrink = tf.where(ratio < -1.0, 0.25 * tried.length, 0.5 * tried.length)
    radius = tf.where(ratio < 0.25, shrink, radius)
    radius = tf.where(first, 0.2 * tf.norm(data.root), radius)
    taken = first | (ratio > 1e-4)
    point = tf.nest.map_structure(lambda a, b: tf.where(taken, a, b), new, point)
    stalled = tf.cast(tiny & ~smaller & ~first, radius.dtype)
    packed = pack(_State(point, radius, stalled))
    return packed, MODELS[type(correlation)].ingredients_at(correlation, data, point)


def _newton(
    correlation: Correlation,
    problem: Problem,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
    jit: bool,
) -> Solution:
    """Trust-region Newton from W = R: Steihaug's method in the preconditioner's norm.

    Where it fails for two views within 50 evaluations or more, a second attempt starts at the
    column spaces of (16).

    Decompositions run outside XLA, whose kernels for them are slow; all else is compiled.
    """
    propose, accept = (compiled(f, correlation, jit) for f in (_propose, _accept))
    data = pack(problem)

    def factors_of(covariance: tf.Tensor) -> Factors:
        return factors_at(correlation, problem, covariance)

    def decomposed(ingredients: Any) -> Any:
        model = MODELS[type(correlation)]
        return model.decompose(correlation, ingredients, correlation.width >= WIDE)

    def go_on(iteration: tf.Tensor, state: Packed, ingredients: Any) -> tf.Tensor:
        point, _, stalled = unpack(_STATE, state)
        unsolved = point.residual > tolerance
        return unsolved & (iteration < max_iterations) & (stalled == 0.0)

    def step(iteration: tf.Tensor, state: Packed, ingredients: Any) -> tuple[Any, ...]:
        trial = propose(data, state, decomposed(ingredients), tolerance)
        factors = factors_of(unpack(_TRIAL, trial).covariance)
        return iteration + 1, *accept(data, state, trial, factors)

    def descended(w: tf.Tensor) -> tuple[tf.Tensor, Point, Point]:
        """Number of evaluations, the first point and the last one, from W."""
        covariance, none = covariance_of(problem, w), tf.zeros([], w.dtype)
        trial = pack(_Trial(w, covariance, none, none, none))
        nothing = zeros(_STATE, correlation.width, w.dtype)
        first = accept(data, nothing, trial, factors_of(covariance))
        iterations, last, _ = tf.while_loop(go_on, step, (tf.constant(1), *first))
        return iterations, unpack(_STATE, first[0]).point, unpack(_STATE, last).point

    def again() -> tuple[tf.Tensor, Point]:
        """From the column spaces of (16), where that ends nearer to a solution."""
        descend = compiled(subspace.descend, correlation, jit)
        w = descend(problem.root, problem.t, subspace.bases(correlation, first))
        more, _, there = descended(w)
        nearer = there.residual < last.residual
        choose = functools.partial(tf.where, nearer)
        return iterations + more, tf.nest.map_structure(choose, there, last)

    iterations, first, last = descended(problem.root)
    initial = first.objective
    if isinstance(correlation, CCA):
        failed = (last.residual > tolerance) & (max_iterations >= PATIENCE)
        failed &= subspace.applies(correlation, problem, first)
        iterations, last = tf.cond(failed, again, lambda: (iterations, last))
    return Solution(last, iterations, last.residual <= tolerance, initial)


# --- L-BFGS ------------------------------------------------------------------------------------


def _lbfgs(
    correlation: Correlation, problem: Problem, tolerance: tf.Tensor, max_iterations: tf.Tensor
) -> Solution:
    """TFP's L-BFGS on (4) from W = R, on t times the objective, whose gradient is F."""
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
        # its rule is on the largest entry of F
        tolerance=tolerance * tf.norm(problem.root) / correlation.width,
        max_iterations=max_iterations,
        max_line_search_iterations=30,
    )
    w = tf.reshape(found.position, shape)
    point = evaluate(correlation, problem, w - tf.matmul(w, problem.unused))
    initial = evaluate(correlation, problem, problem.root).objective
    return Solution(point, found.num_objective_evaluations, point.residual <= tolerance, initial)


# --- what `prox` calls ---------------------------------------------------------------------------


def _newton_alone(
    correlation: Correlation,
    jit: bool,
    problem: Problem,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
) -> Solution:
    return _newton(correlation, problem, tolerance, max_iterations, jit)


def _lbfgs_first(
    correlation: Correlation,
    jit: bool,
    problem: Problem,
    tolerance: tf.Tensor,
    max_iterations: tf.Tensor,
) -> Solution:
    found = _lbfgs(correlation, problem, tolerance, max_iterations)
    return tf.cond(
        found.converged,
        lambda: found,
        lambda: _newton(correlation, problem, tolerance, max_iterations, jit),
    )


_METHODS = {"newton": _newton_alone, "lbfgs": _lbfgs_first}


@functools.lru_cache(maxsize=128)
def solver(correlation: Correlation, method: str, jit: bool) -> Callable[..., Solution]:
    """The solver of one kind of problem as one graph, also when called eagerly.

    It takes a `Problem`, the tolerance (float64) and the bound on iterations (int32).
    """
    bound = functools.partial(_METHODS[method], correlation, jit)
    return tf.function(bound, autograph=False)


def solve(correlation: Correlation, problem: Problem, settings: Settings | None = None) -> Solution:
    """Solves (4) by descent from W = R."""
    settings = settings or Settings()
    problem = tf.nest.map_structure(tf.stop_gradient, problem)
    tolerance = tf.constant(settings.tolerance, problem.root.dtype)
    bound = tf.constant(settings.max_iterations, tf.int32)
    return solver(correlation, settings.method, settings.compiles)(problem, tolerance, bound)
