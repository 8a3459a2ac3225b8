"""The map, the envelope, the loss and the correlations of views as functions of their Gram matrix.

At the solution of (4) the map is M = (I + t Gam)^-1, and P = X + (X - m)(M - I). Along the rows of
the sample M is R^+ W. For a change dC, with W^T W = M C M,

    dM = - t M dGam M,      dGam = 2 c L''[c d(M C M)],

where L'' is the differential of dL/dS. For Y, the gradient of a loss J with respect to M, and
Q = - 2 c t sym(M Y M), the solution U of H U = 2 c W L''[Q] gives

    dJ/dC = c M L''[Q - c t (W^T U + U^T W)] M.                                                (5)

Let I - Pi_j project onto what lies outside the row space of view j. A change of X_j that turns its
row space turns that of P_j too, except for constant columns:

    dM_ij (I - Pi_j) = (M - I)_ij C_jj^+ dC_jj (I - Pi_j).                                     (16)

The envelope e = lam/(2n) ||P - X||^2 + L(P) has the gradient de/dC = (I - M) / (2 t), (17).
"""

from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import guarded, nan_unless, scalar
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.gram import Sample
from proxnet_tf.ops.multiview.hessian import compiled, solve_hessian
from proxnet_tf.ops.multiview.newton import Settings, Solved, solve
from proxnet_tf.ops.multiview.problem import has_full_rank, outside_row_spaces, within
from proxnet_tf.ops.multiview.spectrum import total


class Map(NamedTuple):
    """Result of `map_of_gram`; `step` and `envelope` carry gradients.

    Attributes:
        step: M - I, `[D, D]`, float64; zero outside the row spaces of the views.
        envelope: the value of (1) at its solution, float64 scalar.
        report: how well (4) was solved.
        correlation_before: the sum of the top k eigenvalues mu of (2) at C, float64 scalar.
        correlation_after: the same at M C M.
    """

    step: tf.Tensor
    envelope: tf.Tensor
    report: Report
    correlation_before: tf.Tensor
    correlation_after: tf.Tensor


def _solved(
    correlation: Correlation, sample: Sample, lam: tf.Tensor, epsilon: tf.Tensor, settings: Settings
) -> tuple[Solved, tf.Tensor, tf.Tensor, Report]:
    """The solved problem, M - I, the envelope, the report; NaN if an argument is not valid."""
    # XLA cannot compile loops that a gradient tape records.
    count, _, gram, rounding = map(tf.stop_gradient, sample)
    finite, gram = guarded(gram)
    sound = finite & tf.math.is_finite(lam) & (lam > 0.0) & (epsilon >= 0.0)
    lam, epsilon = (tf.where(sound, number, 1.0) for number in (lam, epsilon))
    solved = solve(correlation, gram, count, rounding, lam, epsilon, settings)
    point, iterations, converged, _ = solved.solution
    step, value = nan_unless(sound, solved.step), nan_unless(sound, point.objective)
    converged &= tf.reduce_all(tf.math.is_finite(step))
    return solved, step, value, Report(point.residual, iterations, converged)


def map_of_gram(
    correlation: Correlation,
    sample: Sample,
    lam: tf.Tensor | float,
    epsilon: tf.Tensor | float,
    settings: Settings,
    *,
    dtype: tf.DType = tf.float64,
    observer: Observer | None = None,
    envelope_only: bool = False,
) -> Map:
    """M - I and the envelope of (1); gradients (5), (16) and (17), from one solve.

    The minimiser is the one that descent from P = X reaches (the problem is not convex), each view
    staying in its own row space. To find the row space of a view, its columns are scaled to
    variance one; directions that `rounding` explains are left unchanged. Where an input is not
    finite, or lam or epsilon out of range, the result is NaN. With fewer than two rows M = I.

    The gradients are exact along changes that keep the rank of every view. Not differentiable where
    mu_k = mu_{k+1} (the gradient then ignores the tie). A second derivative raises
    `NotImplementedError`.

    Args:
        correlation: type, widths of the views and k.
        sample: see `gram_of`.
        lam: scalar > 0; a constant of the map, without a gradient.
        epsilon: scalar >= 0, ridge on the covariance of each view; a constant likewise.
        settings: how to solve.
        dtype: of the rows; their gradient needs no more digits than it has.
        observer: receives the report of the gradient's solve, see `observed`.
        envelope_only: whether M carries no gradient, so that no linear system is solved for it.
    """
    lam, epsilon = (tf.stop_gradient(scalar(number, tf.float64)) for number in (lam, epsilon))

    @tf.custom_gradient
    def mapped(gram: tf.Tensor) -> tuple[Any, Any]:
        sampled = sample._replace(gram=gram)
        solved, step, value, report = _solved(correlation, sampled, lam, epsilon, settings)
        solution, t = solved.solution, solved.reduction.problem.t
        before, after = correlation.constant - solution.initial, total(solution.point.spectrum)

        def adjoint(y: tf.Tensor, y_value: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            of_envelope = -0.5 / t * y_value * step
            if envelope_only:
                return of_envelope
            sound, y = guarded(nan_unless(tf.reduce_all(tf.math.is_finite(step)), y))
            with tf.device(solved.step.device):  # where the map was solved
                answer, report = _adjoint(correlation, solved, y, settings, dtype)
            report = report._replace(converged=report.converged & sound)
            answer = observed(observer, report, nan_unless(sound, answer))
            return answer + of_envelope

        def backward(y: tf.Tensor, y_value: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return differentiable_once(adjoint, "multiview proximal map")(y, y_value, gram)

        return (step, value, *report, before, after), backward

    step, value, *report, before, after = mapped(sample.gram)
    return Map(step, value, Report(*report), before, after)


def _adjoint(
    correlation: Correlation, solved: Solved, y: tf.Tensor, settings: Settings, dtype: tf.DType
) -> tuple[tf.Tensor, Report]:
    """(5) and (16), and how well the system was solved."""
    (problem, _, pseudoinverses), (point, *_), shrinkage, step = solved
    c, t = problem.c, problem.t
    eye = tf.eye(correlation.width, dtype=y.dtype)
    linear = eye + shrinkage

    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(linear, tf.matmul(x, linear))

    def second(x: tf.Tensor) -> tf.Tensor:
        return within(problem, correlation.second_slope(point.spectrum, x))

    inside = within(problem, y)
    q = -c * t * between(inside + tf.transpose(inside))
    rhs = 2.0 * c * tf.matmul(point.w, second(q))
    # In the problems tried, the error of a solution was at most ten times the relative residual.
    tolerance = 1e-2 * settings.tolerance if dtype == tf.float64 else max(settings.tolerance, 1e-7)
    u, report = solve_hessian(
        correlation, problem, point, rhs, scalar(tolerance, y.dtype), settings.compiles
    )
    moved = tf.matmul(point.w, u, transpose_a=True)
    answer = c * between(second(q - c * t * (moved + tf.transpose(moved))))
    constant = tf.linalg.diag_part(problem.unused) > 1.0 - 1e-9
    outside = tf.where(constant, tf.zeros_like(eye), problem.unused)
    turned = correlation.blocks(tf.matmul(step, y, transpose_a=True))
    return answer + tf.matmul(pseudoinverses, tf.matmul(turned, outside)), report


def loss_of_gram(correlation: Correlation, sample: Sample, epsilon: tf.Tensor | float) -> tf.Tensor:
    """L at S = C / (n - 1), a float64 scalar.

    Its gradient with respect to C is (dL/dS) / (n - 1), without divisions by spectral gaps; not
    differentiable where mu_k = mu_{k+1} (the gradient of the k vectors found first is returned). A
    second derivative raises `NotImplementedError`. Fewer than two rows have no correlation.
    """
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))

    @tf.custom_gradient
    def loss(gram: tf.Tensor) -> tuple[tf.Tensor, Any]:
        finite, covariance, unused = _in_row_spaces(correlation, sample._replace(gram=gram))
        value, slope = correlation.value_and_slope(covariance, epsilon, unused)
        slope = nan_unless(finite, slope / tf.maximum(sample.count - 1.0, 1.0))

        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * slope, "correlation loss")(y, gram)

        return nan_unless(finite, value), backward

    return loss(sample.gram)


def _in_row_spaces(correlation: Correlation, sample: Sample) -> tuple[tf.Tensor, ...]:
    """Whether C is finite, S = C / (n - 1), and `unused` of `Correlation.factorise`."""
    count, _, gram, rounding = map(tf.stop_gradient, sample)
    finite, gram = guarded(gram)
    unused = tf.cond(
        has_full_rank(correlation, gram, rounding),
        lambda: tf.zeros_like(gram),
        lambda: outside_row_spaces(correlation, gram, rounding)[0],
    )
    return finite, gram / tf.maximum(count - 1.0, 1.0), unused


def correlations_of_gram(
    correlation: Correlation, sample: Sample, epsilon: tf.Tensor | float
) -> tf.Tensor:
    """The k largest eigenvalues mu of (2), `[k]`, descending, float64, without a gradient.

    Views of deficient rank are compared in their row spaces. NaN in gives NaN out; fewer than two
    rows give zeros.
    """
    # One graph for all models with views of these sizes.
    return compiled(_largest_values, correlation, None)(scalar(epsilon, tf.float64), sample)


def _largest_values(correlation: Correlation, epsilon: tf.Tensor, sample: Sample) -> tf.Tensor:
    finite, covariance, unused = _in_row_spaces(correlation, sample)
    spectrum = correlation.decompose(covariance, epsilon, unused)
    values = (spectrum.selected * spectrum.values)[: correlation.num_components]
    return nan_unless(finite, values)
