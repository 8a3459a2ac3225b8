"""The map, the envelope, the loss and the correlations of views as functions of their Gram matrix.

At the solution of (4) the map is M = (I + t Gam)^-1, and P = X + (X - m)(M - I). Along the rows of
the sample M is R^+ W. For a change dC, with W^T W = M C M,

    dM = - t M dGam M,      dGam = 2 c L''[c d(M C M)],

where L'' is the differential of dL/dS. For Y, the gradient of a loss J with respect to M, and
Q = - 2 c t sym(M Y M), the solution U of H U = 2 c W L''[Q] gives

    dJ/dC = c M L''[Q - c t (W^T U + U^T W)] M.                                                (19)

Let I - Pi_j project onto what lies outside the row space of view j. A change of X_j that turns its
row space turns P_j along: dM_ij (I - Pi_j) = (M - I)_ij C_jj^+ dC_jj (I - Pi_j), constant columns
excepted, which stay.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.multiview.correlation import Correlation, Spectrum, total
from proxnet_tf.ops.multiview.gram import Sample, guarded, masked, nan_unless
from proxnet_tf.ops.multiview.hessian import compiled, solve_hessian
from proxnet_tf.ops.multiview.newton import Settings, Solution, solve
from proxnet_tf.ops.multiview.problem import (
    Point,
    Problem,
    Reduction,
    outside_row_spaces,
    reduce_gram,
)


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


def _on_device(settings: Settings, correlation: Correlation) -> Any:
    device = settings.device_for(correlation.width)
    return tf.device(device) if device else contextlib.nullcontext()


def _solved(
    correlation: Correlation,
    sample: Sample,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    settings: Settings,
) -> tuple[Reduction, Solution, tf.Tensor, tf.Tensor, Report]:
    """What (4) was and where it was solved; M - I, its value and its report."""
    # XLA cannot compile loops that a gradient tape records.
    count, _, gram, rounding = map(tf.stop_gradient, sample)
    finite, gram = guarded(gram)
    sound = finite & tf.math.is_finite(lam) & (lam > 0.0) & (epsilon >= 0.0)
    lam, epsilon = (tf.where(sound, number, 1.0) for number in (lam, epsilon))
    with _on_device(settings, correlation):
        reduction = compiled(reduce_gram, correlation, None)(gram, count, rounding, lam, epsilon)
        found = solve(correlation, reduction.problem, settings)
        step = compiled(_step, correlation, None)(reduction, found.point)
    step, value = nan_unless(sound, step), nan_unless(sound, found.point.objective)
    solved = found.converged & tf.reduce_all(tf.math.is_finite(step))
    return reduction, found, step, value, Report(found.point.residual, found.iterations, solved)


def _step(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """M - I: R^+ W - R^+ R along the rows of the sample, the rest of (I + t Gam)^-1 - I beside."""
    root = reduction.problem.root
    beside = _symmetric_step(correlation, reduction.problem, point)
    beside -= tf.matmul(reduction.lift, tf.matmul(root, beside))
    return _within(reduction.problem, tf.matmul(reduction.lift, point.w - root) + beside)


def _symmetric_step(correlation: Correlation, problem: Problem, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1 - I between the row spaces of the views."""
    basis = point.spectrum.basis
    eye = tf.eye(correlation.width, dtype=basis.dtype)
    slope = tf.matmul(correlation.times_slope(basis, point.pull), basis, transpose_b=True)
    finite, slope = guarded(slope)
    return nan_unless(finite, _within(problem, tf.linalg.inv(eye + slope) - eye))


def _within(problem: Problem, x: tf.Tensor) -> tf.Tensor:
    """x between the row spaces of the views."""
    x -= tf.matmul(problem.unused, x)
    return x - tf.matmul(x, problem.unused)


def map_of_gram(
    correlation: Correlation,
    sample: Sample,
    lam: tf.Tensor | float,
    epsilon: tf.Tensor | float,
    settings: Settings,
    *,
    dtype: tf.DType = tf.float64,
    observer: Observer | None = None,
) -> Map:
    """M - I and the envelope of (1); gradients (19) and (I - M) / (2 t), from one solve.

    The minimiser is the one that descent from P = X reaches (the problem is not convex), each view
    staying in its own row space. To tell the row space of a view, its columns are scaled to
    variance one; what `rounding` explains of a direction is left as it is. Where an input is not
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
        dtype: of the rows, whose gradient can show no more digits.
        observer: receives the report of the gradient's solve, see `observed`.
    """
    lam, epsilon = (tf.stop_gradient(scalar(number, tf.float64)) for number in (lam, epsilon))

    @tf.custom_gradient
    def mapped(gram: tf.Tensor) -> tuple[Any, Any]:
        sampled = sample._replace(gram=gram)
        reduction, found, step, value, report = _solved(
            correlation, sampled, lam, epsilon, settings
        )
        before, after = correlation.constant - found.initial, total(found.point.spectrum)

        def adjoint(y: tf.Tensor, y_value: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            sound, y = guarded(nan_unless(tf.reduce_all(tf.math.is_finite(step)), y))
            with _on_device(settings, correlation):
                answer, solved = _adjoint(correlation, reduction, found, step, y, settings, dtype)
            solved = solved._replace(converged=solved.converged & sound)
            answer = observed(observer, solved, nan_unless(sound, answer))
            return answer - y_value * (0.5 / reduction.problem.t) * step

        def backward(y: tf.Tensor, y_value: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return differentiable_once(adjoint, "multiview proximal map")(y, y_value, gram)

        return (step, value, *report, before, after), backward

    step, value, *report, before, after = mapped(sample.gram)
    return Map(step, value, Report(*report), before, after)


def _adjoint(
    correlation: Correlation,
    reduction: Reduction,
    found: Solution,
    step: tf.Tensor,
    y: tf.Tensor,
    settings: Settings,
    dtype: tf.DType,
) -> tuple[tf.Tensor, Report]:
    """(19) and what turning row spaces add, and how well the system was solved."""
    problem, point = reduction.problem, found.point
    c, t = problem.c, problem.t
    eye = tf.eye(correlation.width, dtype=y.dtype)
    linear = eye + _symmetric_step(correlation, problem, point)

    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(linear, tf.matmul(x, linear))

    def second(x: tf.Tensor) -> tf.Tensor:
        return _within(problem, correlation.second_slope(point.spectrum, x))

    inside = _within(problem, y)
    q = -c * t * between(inside + tf.transpose(inside))
    rhs = 2.0 * c * tf.matmul(point.w, second(q))
    # The error of a solution was at most ten times the relative residual in the problems tried.
    tolerance = 1e-2 * settings.tolerance if dtype == tf.float64 else max(settings.tolerance, 1e-7)
    tolerance = scalar(tolerance, y.dtype)
    u, report = solve_hessian(correlation, problem, point, rhs, tolerance, jit=settings.compiles)
    moved = tf.matmul(point.w, u, transpose_a=True)
    answer = c * between(second(q - c * t * (moved + tf.transpose(moved))))
    constant = tf.linalg.diag_part(problem.unused) > 1.0 - 1e-9
    outside = tf.where(constant, tf.zeros_like(eye), problem.unused)
    turned = correlation.blocks(tf.matmul(step, y, transpose_a=True))
    return answer + tf.matmul(reduction.turn, tf.matmul(turned, outside)), report


def envelope_of_gram(
    correlation: Correlation,
    sample: Sample,
    lam: tf.Tensor | float,
    epsilon: tf.Tensor | float,
    settings: Settings,
) -> tuple[tf.Tensor, Report]:
    """The envelope of `map_of_gram` alone, and the report: no linear system is solved for it."""
    lam, epsilon = (tf.stop_gradient(scalar(number, tf.float64)) for number in (lam, epsilon))

    @tf.custom_gradient
    def envelope(gram: tf.Tensor) -> tuple[Any, Any]:
        sampled = sample._replace(gram=gram)
        reduction, _, step, value, report = _solved(correlation, sampled, lam, epsilon, settings)
        slope = -0.5 / reduction.problem.t * step

        def backward(y: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * slope, "envelope")(y, gram)

        return (value, *report), backward

    value, *report = envelope(sample.gram)
    return value, Report(*report)


def loss_of_gram(correlation: Correlation, sample: Sample, epsilon: tf.Tensor | float) -> tf.Tensor:
    """L at S = C / (n - 1), a float64 scalar.

    Its gradient with respect to C is (dL/dS) / (n - 1), without divisions by spectral gaps; not
    differentiable where mu_k = mu_{k+1} (the gradient of the k vectors found first is returned). A
    second derivative raises `NotImplementedError`. Fewer than two rows have no correlation.
    """
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))

    @tf.custom_gradient
    def loss(gram: tf.Tensor) -> tuple[tf.Tensor, Any]:
        finite, spectrum = _spectrum(correlation, epsilon, sample._replace(gram=gram))
        slope = correlation.times_slope(spectrum.basis, correlation.slope(spectrum))
        slope = tf.matmul(slope, spectrum.basis, transpose_b=True)
        slope = nan_unless(finite, slope / tf.maximum(sample.count - 1.0, 1.0))

        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * slope, "correlation loss")(y, gram)

        return nan_unless(finite, correlation.value(spectrum)), backward

    return loss(sample.gram)


def _spectrum(
    correlation: Correlation, epsilon: tf.Tensor, sample: Sample
) -> tuple[tf.Tensor, Spectrum]:
    """Whether C is finite, and the spectrum of (2), views compared in their row spaces."""
    count, _, gram, rounding = map(tf.stop_gradient, sample)
    finite, gram = guarded(gram)
    unused, _ = outside_row_spaces(correlation, gram, rounding)
    covariance = gram / tf.maximum(count - 1.0, 1.0)
    return finite, correlation.decompose(covariance, epsilon, unused)


def correlations_of_gram(
    correlation: Correlation, sample: Sample, epsilon: tf.Tensor | float
) -> tf.Tensor:
    """The k largest eigenvalues mu of (2), `[k]`, descending, float64, without a gradient.

    Views of deficient rank are compared in their row spaces. NaN in gives NaN out; fewer than two
    rows give zeros.
    """
    # One graph for all models with views of these sizes.
    largest = compiled(_largest_values, correlation, None)
    return largest(scalar(epsilon, tf.float64), sample)


def _largest_values(correlation: Correlation, epsilon: tf.Tensor, sample: Sample) -> tf.Tensor:
    finite, spectrum = _spectrum(correlation, epsilon, sample)
    values = (spectrum.selected * spectrum.values)[: correlation.num_components]
    return nan_unless(finite, values)


def canonical_vectors(
    correlation: Correlation, sample: Sample, epsilon: tf.Tensor | float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The k largest eigenvalues mu of (2), `[k]`, and sqrt(J) times their vectors, `[D, k]`.

    The rows of the vectors that belong to a view map its centred columns to its canonical variates.
    With the factor the variances of the J variates (plus eps times the squared length of their
    vectors) have the mean one; those of `CCA` are one each. The entry of the largest size in the
    rows of the first view is positive. Where mu is at most 1e-6, which rounding explains, both are
    zero. NaN in gives NaN out.
    """
    finite, spectrum = _spectrum(correlation, scalar(epsilon, tf.float64), sample)
    k = correlation.num_components
    values = spectrum.values[:k]
    some = tf.cast(values > 1e-6, values.dtype)
    vectors = tf.matmul(spectrum.basis, spectrum.rotation[:, :k])
    vectors *= some * math.sqrt(len(correlation.sizes))
    first = vectors[: correlation.sizes[0]]
    largest = tf.gather(tf.transpose(first), tf.argmax(tf.abs(first), axis=0), axis=1, batch_dims=1)
    vectors = tf.where(largest < 0, -vectors, vectors)
    return nan_unless(finite, some * values), nan_unless(finite, vectors)


def by_finite_difference(
    output: tf.Tensor,
    prox: Callable[[tf.Tensor], tuple[tf.Tensor, Report]],
    x: tf.Tensor,
    valid: tf.Tensor | None = None,
    observer: Observer | None = None,
) -> tf.Tensor:
    """The output of a proximal map with the paper's gradient, after Domke (2010).

    The Jacobian of a proximal map is symmetric, so that the gradient is the directional derivative
    along the cotangent Y: a central difference of two more maps. The step along Y is that of the
    published code.

    Args:
        output: the map of x, `[n, D]`.
        prox: from rows `[n, D]` to their map, and the report of the solve.
        x: rows, `[n, D]`.
        valid: `[n, 1]` booleans; the other rows pass unchanged, and so do their gradients.
        observer: receives the worst report of the two solves, see `observed`.
    """

    def difference(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        inside = masked(valid, y)
        size, span = (tf.reduce_max(tf.abs(a)) for a in (inside, masked(valid, x)))
        step = tf.math.divide_no_nan(1e-2 * (1.0 + span), size)
        (above, first), (below, second) = prox(x + step * inside), prox(x - step * inside)
        worst = Report(
            tf.maximum(first.residual, second.residual),
            tf.maximum(first.iterations, second.iterations),
            first.converged & second.converged,
        )
        change = tf.where(step > 0, (above - below) / (2.0 * step), y)
        return observed(observer, worst, change if valid is None else tf.where(valid, change, y))

    @tf.custom_gradient
    def moved(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(difference, "multiview proximal map")(y, x)

        return tf.stop_gradient(output), backward

    return moved(x)
