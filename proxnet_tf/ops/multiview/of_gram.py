"""The map, the loss and the envelope of views as functions of their Gram matrix C.

Where C is not that of complete rows (see `pairwise`), no root of C is that of the rows, and a row
need not lie in the range of C. So the map is taken as M = (I + t Gam)^-1, the matrix with W = R M,
which is defined on every row and does not depend on which root R of C was taken. Its gradient needs
no root either: for a change dC, with W^T W = M C M at the solution of (4),

    dM = - t M dGam M,      dGam = 2 c L''[c d(M C M)],

where L'' is the differential of dL/dS. For Y, the gradient of a loss J with respect to M, and
Q = - 2 c t sym(M Y M) the solution U of H U = 2 c W L''[Q] gives

    dJ/dC = c M L''[Q - c t (W^T U + U^T W)] M.                                                (19)
"""

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.multiview.correlation import Correlation, total
from proxnet_tf.ops.multiview.guard import guarded, spoiled
from proxnet_tf.ops.multiview.linear import compiled, shrinkage, solve_hessian
from proxnet_tf.ops.multiview.moments import Gram
from proxnet_tf.ops.multiview.newton import Settings, Solution, solve
from proxnet_tf.ops.multiview.problem import Problem, outside_row_spaces, reduce_gram


class GramMap(NamedTuple):
    """Result of `map_of_gram`; only `step` carries a gradient.

    Attributes:
        step: M - I, `[D, D]`, float64; zero outside the row spaces of the views.
        report: how well (4) was solved.
        correlation_before: the sum of the top k eigenvalues mu of (2) at C, float64 scalar.
        correlation_after: the same at M C M.
    """

    step: tf.Tensor
    report: Report
    correlation_before: tf.Tensor
    correlation_after: tf.Tensor


def _solved(
    correlation: Correlation,
    sample: Gram,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    settings: Settings,
) -> tuple[Problem, Solution, tf.Tensor, tf.Tensor]:
    """The problem, its solution, M - I, and whether all arguments were sound."""
    finite, gram = guarded(sample.gram)
    in_range = tf.math.is_finite(lam) & (lam > 0.0) & (epsilon >= 0.0)
    problem = compiled(reduce_gram, correlation, None)(
        gram,
        sample.count,
        sample.rounding,
        tf.where(in_range, lam, 1.0),
        tf.where(in_range, epsilon, 1.0),
    ).problem
    found = solve(correlation, problem, settings)
    eye = tf.eye(correlation.width, dtype=gram.dtype)
    step = _inside(problem, shrinkage(correlation, found.point) - eye)
    return problem, found, step, finite & in_range


def _inside(problem: Problem, x: tf.Tensor) -> tf.Tensor:
    """The symmetric part of x between the row spaces of the views."""
    within = tf.eye(x.shape[-1], dtype=x.dtype) - problem.unused
    x = tf.matmul(within, tf.matmul(x, within))
    return 0.5 * (x + tf.transpose(x))


def _device(settings: Settings, correlation: Correlation) -> Any:
    device = settings.device_for(correlation.width)
    return tf.device(device) if device else contextlib.nullcontext()


def map_of_gram(
    correlation: Correlation,
    sample: Gram,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    settings: Settings,
    observer: Observer | None = None,
) -> GramMap:
    """M - I of the map of (1), for any symmetric positive semidefinite C.

    The gradient (19) with respect to C is exact along changes that stay in the row spaces of the
    views, and zero along others. Not differentiable where mu_k = mu_{k+1}.

    Args:
        correlation: type, widths of the views and k.
        sample: C, n and what of C is rounding.
        lam: scalar float64 > 0; a constant.
        epsilon: scalar float64 >= 0; a constant.
        settings: how to solve.
        observer: receives the report of the gradient's solve.
    """
    _, count, rounding = sample

    @tf.custom_gradient
    def mapped(gram: tf.Tensor) -> tuple[Any, Any]:
        with _device(settings, correlation):
            problem, found, step, sound = _solved(
                correlation, Gram(tf.stop_gradient(gram), count, rounding), lam, epsilon, settings
            )
        finite = tf.reduce_all(tf.math.is_finite(step))
        report = Report(found.point.residual, found.iterations, found.converged & finite & sound)

        def adjoint(y: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            usable, y = guarded(spoiled(finite & sound, y))
            with _device(settings, correlation):
                answer, solved = _adjoint(correlation, problem, found, step, y, settings)
            solved = solved._replace(converged=solved.converged & usable)
            return observed(observer, solved, spoiled(usable, answer))

        def backward(y: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return differentiable_once(adjoint, "multiview proximal map")(y, gram)

        before, after = correlation.constant - found.initial, total(found.point.spectrum)
        return (spoiled(sound, step), *report, before, after), backward

    step, residual, iterations, converged, before, after = mapped(sample.gram)
    return GramMap(step, Report(residual, iterations, converged), before, after)


def _adjoint(
    correlation: Correlation,
    problem: Problem,
    found: Solution,
    step: tf.Tensor,
    y: tf.Tensor,
    settings: Settings,
) -> tuple[tf.Tensor, Report]:
    """(19), and how well its system was solved."""
    point, c, t = found.point, problem.c, problem.t
    linear = step + tf.eye(correlation.width, dtype=step.dtype)

    def between(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(linear, tf.matmul(x, linear))

    def second(x: tf.Tensor) -> tf.Tensor:
        return _inside(problem, correlation.second_slope(point.spectrum, x))

    q = -2.0 * c * t * between(_inside(problem, y))
    rhs = 2.0 * c * tf.matmul(point.w, second(q))
    u, report = solve_hessian(
        correlation, problem, point, rhs, 1e-2 * settings.tolerance, jit=settings.compiles
    )
    turned = tf.matmul(point.w, u, transpose_a=True)
    q -= c * t * (turned + tf.transpose(turned))
    return c * between(second(q)), report


def loss_of_gram(correlation: Correlation, sample: Gram, epsilon: tf.Tensor) -> tf.Tensor:
    """L at S = C/(n - 1), a float64 scalar; its gradient with respect to C is (dL/dS)/(n - 1)."""
    _, count, rounding = sample

    @tf.custom_gradient
    def loss(gram: tf.Tensor) -> tuple[tf.Tensor, Any]:
        finite, gram = guarded(tf.stop_gradient(gram))
        unused, _ = outside_row_spaces(correlation, gram, rounding)
        c = 1.0 / tf.maximum(count - 1.0, 1.0)
        spectrum = correlation.decompose(c * gram, epsilon, unused)
        slope = correlation.times_slope(spectrum.basis, correlation.slope(spectrum))
        slope = c * tf.matmul(slope, spectrum.basis, transpose_b=True)
        answer = spoiled(finite, slope)

        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * answer, "correlation loss")(y, gram)

        return spoiled(finite, correlation.value(spectrum)), backward

    return loss(sample.gram)


def envelope_of_gram(
    correlation: Correlation,
    sample: Gram,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
    settings: Settings,
) -> tuple[tf.Tensor, Report]:
    """min_W ||W - R||^2 / (2 t) + L, the value of (4), a float64 scalar; and its report.

    Its gradient with respect to C is (I - M) / (2 t); no linear system is solved for it.
    """
    _, count, rounding = sample

    @tf.custom_gradient
    def envelope(gram: tf.Tensor) -> tuple[Any, Any]:
        with _device(settings, correlation):
            problem, found, step, sound = _solved(
                correlation, Gram(tf.stop_gradient(gram), count, rounding), lam, epsilon, settings
            )
        answer = spoiled(sound, -0.5 / problem.t * step)
        value = spoiled(sound, found.point.objective)

        def backward(y: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * answer, "envelope")(y, gram)

        report = Report(found.point.residual, found.iterations, found.converged & sound)
        return (value, *report), backward

    value, *report = envelope(sample.gram)
    return value, Report(*report)
