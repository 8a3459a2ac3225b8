"""The multiview proximal map on a batch: two passes over the rows around the D x D solve."""

import contextlib
import math
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.number import scalar
from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.linear.report import Observer, Report, observed
from proxnet_tf.ops.multiview.correlation import Correlation, Spectrum, total
from proxnet_tf.ops.multiview.guard import guarded, spoiled
from proxnet_tf.ops.multiview.linear import compiled, shrinkage, solve_hessian
from proxnet_tf.ops.multiview.moments import (
    EXACT_RANK,
    AllReduce,
    Gram,
    Moments,
    affine,
    column_sums,
    gram_of,
    identity,
    kept,
    masked,
    moments_of,
    row_times,
    sizes_of_columns,
    sum_over_rows,
)
from proxnet_tf.ops.multiview.newton import Settings, Solution, solve
from proxnet_tf.ops.multiview.problem import (
    Reduction,
    outside_row_spaces,
    reduce_gram,
    turning,
)

__all__ = [
    "ProxResult",
    "Settings",
    "canonical_vectors",
    "correlation_loss",
    "correlations",
    "gram_of",
    "multiview_prox",
]


class ProxResult(NamedTuple):
    """Result of `multiview_prox`; only `output` carries a gradient.

    Attributes:
        output: P, in the shape and dtype of x.
        mean: mean of the valid rows, `[D]`, in the dtype of x.
        map: D x D matrix M - I of P = X + (X - mean)(M - I), in the dtype of x.
        report: ||F||/||R|| (float64 scalar), evaluations by the solver, and whether the residual
            reached the tolerance and all numbers were finite.
        correlation_before: the sum of the top k eigenvalues mu at the input, float64 scalar.
        correlation_after: the same at the output.
    """

    output: tf.Tensor
    mean: tf.Tensor
    map: tf.Tensor
    report: Report
    correlation_before: tf.Tensor
    correlation_after: tf.Tensor


def correlations(
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor | None = None,
) -> tf.Tensor:
    """The k largest eigenvalues mu of (2), `[k]`, descending, float64.

    Views of deficient rank are compared in their row spaces. Columns are scaled to variance one
    before a rank is told, so that their units play no part.

    Args:
        correlation: type, widths of the views and k.
        epsilon: ridge >= 0 on the covariance of each view.
        gram: Xc^T Xc, `[D, D]`, float64; NaN in gives NaN out.
        count: n, scalar float64; fewer than two rows give zeros.
        rounding: `[D]`, share of each column's variance that is rounding, at least 1e-10 (see
            `gram_of` and `column_rounding`); 1e-10 by default, and one for a column of zeros.
    """
    if rounding is None:
        own = tf.linalg.diag_part(gram)
        rounding = tf.cast(own <= 0.0, own.dtype)
    # One graph for all models with views of these sizes.
    largest = compiled(_largest_values, correlation, None)
    return largest(scalar(epsilon, gram.dtype), gram, count, rounding)


def _largest_values(
    correlation: Correlation,
    epsilon: tf.Tensor,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor,
) -> tf.Tensor:
    finite, gram = guarded(gram)
    spectrum = _spectrum(correlation, epsilon, gram, count, tf.maximum(rounding, EXACT_RANK))
    values = (spectrum.selected * spectrum.values)[: correlation.num_components]
    return spoiled(finite, values)


def canonical_vectors(
    correlation: Correlation, epsilon: tf.Tensor | float, sample: Gram
) -> tuple[tf.Tensor, tf.Tensor]:
    """The k largest eigenvalues mu of (2), `[k]`, and sqrt(J) times their vectors, `[D, k]`.

    The rows of the vectors that belong to a view map its centred columns to its canonical variates.
    With the factor the variances of the J variates (plus eps times the squared length of their
    vectors) have the mean one; those of `CCA` are one each. The entry of the largest size in the
    rows of the first view is positive. Where mu is at most 1e-6, which rounding explains, both are
    zero.

    Args:
        correlation: type, widths of the views and k.
        epsilon: ridge >= 0 on the covariance of each view.
        sample: see `gram_of`; NaN in gives NaN out.
    """
    finite, gram = guarded(sample.gram)
    spectrum = _spectrum(correlation, epsilon, gram, sample.count, sample.rounding)
    k = correlation.num_components
    values = spectrum.values[:k]
    some = tf.cast(values > 1e-6, values.dtype)
    vectors = tf.matmul(spectrum.basis, spectrum.rotation[:, :k])
    vectors *= some * math.sqrt(len(correlation.sizes))
    first = vectors[: correlation.sizes[0]]
    largest = tf.gather(tf.transpose(first), tf.argmax(tf.abs(first), axis=0), axis=1, batch_dims=1)
    vectors = tf.where(largest < 0, -vectors, vectors)
    return spoiled(finite, some * values), spoiled(finite, vectors)


def _spectrum(
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor,
) -> Spectrum:
    epsilon = scalar(epsilon, gram.dtype)
    unused, _ = outside_row_spaces(correlation, gram, rounding)
    return correlation.decompose(gram / tf.maximum(count - 1.0, 1.0), epsilon, unused)


def correlation_loss(
    x: tf.Tensor,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    *,
    valid: tf.Tensor | None = None,
    all_reduce: AllReduce = identity,
) -> tf.Tensor:
    """L of the rows of x `[n, D]`, a scalar: minus the sum of the top k mu (`GCCA`: plus J k).

    Gradient 2/(n - 1) Xc (dL/dS) in closed form, without divisions by spectral gaps; not
    differentiable where mu_k = mu_{k+1} (the gradient of the k vectors found first is returned).
    A second derivative raises `NotImplementedError`. With fewer than two valid rows the value is
    that of no correlation and the gradient zero.

    Over replicas, with an `all_reduce` that sums, every replica gets the value of the global
    batch, and the gradient of that one value with respect to its own rows. The gradient with
    respect to shared weights is therefore the SUM over replicas of what each replica finds.
    Where the strategy adds gradients up after dividing the loss by the number of replicas, as
    Keras does, the gradient is a mean over replicas: multiply the loss by their number.

    Args:
        x: views side by side, float32 or float64.
        correlation: type, widths of the views and k.
        epsilon: ridge >= 0 on the covariance of each view; a constant, without a gradient.
        valid: `[n, 1]` booleans; the other rows take no part.
        all_reduce: sums tensors over replicas; n, sums of rows and D x D matrices pass through it.
    """
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))

    @tf.custom_gradient
    def loss(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        moments = moments_of(tf.stop_gradient(x), valid, all_reduce)
        count = moments.count
        spectrum = _spectrum(correlation, epsilon, moments.gram, count, moments.rounding)
        value = spoiled(moments.finite, correlation.value(spectrum))
        slope = correlation.times_slope(spectrum.basis, correlation.slope(spectrum))
        slope = tf.matmul(slope, spectrum.basis, transpose_b=True)
        slope = spoiled(moments.finite, slope * (2.0 / tf.maximum(count - 1.0, 1.0)))
        # x/c times c dL/dS with c the size of each column, a power of two: dL/dS itself, 1/c^2, may
        # be outside the range of x.
        size = sizes_of_columns(moments.gram, moments.count, moments.mean, x.dtype)
        offset = -row_times(moments.mean, slope)
        answer = masked(valid, affine(x / tf.cast(size, x.dtype), size[:, None] * slope, offset))

        def backward(y: tf.Tensor) -> tf.Tensor:
            return differentiable_once(lambda y, _: y * answer, "correlation loss")(y, x)

        return tf.cast(value, x.dtype), backward

    return loss(x)


def multiview_prox(
    x: tf.Tensor,
    lam: tf.Tensor | float,
    correlation: Correlation,
    epsilon: tf.Tensor | float,
    *,
    valid: tf.Tensor | None = None,
    settings: Settings | None = None,
    gradient: str = "implicit",
    all_reduce: AllReduce = identity,
    observer: Observer | None = None,
) -> ProxResult:
    """P = argmin_P lam/(2n) ||P - X||_F^2 + L(P), equation (8) of the paper for J views.

    The minimiser is the one that descent from P = X reaches (the problem is not convex), each
    view staying in its own row space: constant columns come out unchanged, duplicated columns
    stay equal. The solve is in float64 on D x D matrices, whatever n is. To tell the row space of
    a view, its columns are scaled to variance one; directions with less than 1e-10 of that (1e-6
    for more than 4096 float32 rows), or less than the rounding of the columns in their own dtype
    explains, count as rounding and are left as they are.

    Args:
        x: views side by side, `[n, D]`, float32 or float64.
        lam: scalar > 0; a constant of the map, without a gradient.
        correlation: type, widths of the views and k.
        epsilon: scalar >= 0, ridge on the covariance of each view; a constant of the map.
        valid: `[n, 1]` booleans; the other rows take no part and pass unchanged.
        settings: how to solve.
        gradient: "implicit" (exact, one D x D linear solve) or "finite_difference" (the paper's,
            after Domke 2010: a central difference, two more solves).
        all_reduce: sums tensors over replicas, for the map of a global batch; identity by default.
            Only n, sums of rows and D x D matrices pass through it. Not with "finite_difference".
        observer: receives the report of the gradient's solve, see `observed`. For a finite
            difference that is the worst of its two solves.

    Returns:
        A `ProxResult`. Where an input is not finite, or lam or epsilon out of range, the valid
        outputs are NaN. With fewer than two rows, or all rows equal, P = X.

    Not differentiable where mu_k = mu_{k+1} (the gradient then ignores the tie). A second
    derivative raises `NotImplementedError`.
    """
    settings = settings or Settings()
    lam = tf.stop_gradient(scalar(lam, tf.float64))
    epsilon = tf.stop_gradient(scalar(epsilon, tf.float64))
    device = settings.device_for(correlation.width)

    def on_solver_device() -> Any:
        return tf.device(device) if device else contextlib.nullcontext()

    def forward(x: tf.Tensor) -> tuple[Any, ...]:
        moments = moments_of(x, valid, all_reduce)
        in_range = tf.math.is_finite(lam) & (lam > 0.0) & (epsilon >= 0.0)
        ok = moments.finite & in_range
        with on_solver_device():
            reduction = compiled(reduce_gram, correlation, None)(
                moments.gram,
                moments.count,
                moments.rounding,
                tf.where(in_range, lam, 1.0),
                tf.where(in_range, epsilon, 1.0),
            )
            found = solve(correlation, reduction.problem, settings)
            step = tf.matmul(reduction.lift, found.point.w - reduction.problem.root)
        step = spoiled(ok, step)
        # Pc = Xc M as one product with the rows: P = X M + (mean - mean M).
        linear = step + tf.eye(correlation.width, dtype=step.dtype)
        output = kept(valid, affine(x, linear, -row_times(moments.mean, step)), x)
        finite = tf.reduce_all(tf.math.is_finite(step))
        report = Report(found.point.residual, found.iterations, found.converged & finite)
        return output, step, report, moments, reduction, found

    def implicit(
        y: tf.Tensor,
        x: tf.Tensor,
        step: tf.Tensor,
        moments: Moments,
        reduction: Reduction,
        found: Solution,
    ) -> tf.Tensor:
        cross, total_y = _cross_moments(x, y, valid, moments, all_reduce)
        sound, cross = guarded(spoiled(tf.reduce_all(tf.math.is_finite(step)), cross))
        tolerance = _backward_tolerance(settings, x.dtype)
        with on_solver_device():
            of_x, shrink, report = _implicit_maps(
                correlation, reduction, found, step, cross, tolerance, settings.compiles
            )
        of_x = spoiled(sound, of_x)
        change = shrink - tf.eye(correlation.width, dtype=shrink.dtype)
        constant = -row_times(total_y / tf.maximum(moments.count, 1.0), change)
        constant -= row_times(moments.mean, of_x)
        answer = tf.matmul(x, tf.cast(of_x, x.dtype)) + affine(y, shrink, constant)
        report = report._replace(converged=report.converged & sound)
        return observed(observer, report, kept(valid, answer, y))

    def central_difference(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        # Step of the published code, on the central difference of Domke (2010).
        inside = masked(valid, y)
        size = tf.reduce_max(tf.abs(inside))
        span = tf.reduce_max(tf.abs(masked(valid, x)))
        step = tf.math.divide_no_nan(1e-2 * (1.0 + span), size)
        above, below = forward(x + step * inside), forward(x - step * inside)
        change = tf.where(step > 0, (above[0] - below[0]) / (2.0 * step), y)
        return observed(observer, _worst(above[2], below[2]), kept(valid, change, y))

    @tf.custom_gradient
    def prox(x: tf.Tensor) -> tuple[Any, Any]:
        output, step, report, moments, reduction, found = forward(tf.stop_gradient(x))
        mean, matrix = tf.cast(moments.mean, x.dtype), tf.cast(step, x.dtype)
        before, after = correlation.constant - found.initial, total(found.point.spectrum)

        def backward(y: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            def answer(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
                if gradient == "finite_difference":
                    return central_difference(y, x)
                return implicit(y, x, step, moments, reduction, found)

            return differentiable_once(answer, "multiview proximal map")(y, x)

        return (output, mean, matrix, *report, before, after), backward

    output, mean, matrix, residual, iterations, converged, before, after = prox(x)
    return ProxResult(output, mean, matrix, Report(residual, iterations, converged), before, after)


def _backward_tolerance(settings: Settings, dtype: tf.DType) -> float:
    """Of the gradient's linear system: what the dtype of the gradient can show.

    The error of the solution was at most ten times the relative residual in the problems tried.
    """
    if dtype == tf.float64:
        return 1e-2 * settings.tolerance
    return max(settings.tolerance, 1e-7)


def _worst(first: Report, second: Report) -> Report:
    return Report(
        tf.maximum(first.residual, second.residual),
        tf.maximum(first.iterations, second.iterations),
        first.converged & second.converged,
    )


def _cross_moments(
    x: tf.Tensor,
    y: tf.Tensor,
    valid: tf.Tensor | None,
    moments: Moments,
    all_reduce: AllReduce,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Xc^T Y `[D, D]` and the sum of the rows of Y `[D]`, float64."""
    size = sizes_of_columns(moments.gram, moments.count, moments.mean, x.dtype)

    def part(
        exact: bool, y: tf.Tensor, x: tf.Tensor, valid: tf.Tensor | None
    ) -> tuple[tf.Tensor, ...]:
        near, y = masked(valid, x - moments.shift), masked(valid, y)
        if exact:  # in powers of two, so that sums of large numbers do not overflow
            near /= tf.cast(size, x.dtype)
        product = tf.cast(tf.matmul(near, y, transpose_a=True), tf.float64)
        return product * size[:, None] if exact else product, tf.cast(column_sums(y), tf.float64)

    cross, total_y = all_reduce(*sum_over_rows(part, y, x, valid))
    offset = moments.mean - tf.cast(moments.shift, tf.float64)
    return cross - offset[:, None] * total_y, total_y


def _implicit_maps(
    correlation: Correlation,
    reduction: Reduction,
    found: Solution,
    step: tf.Tensor,
    cross: tf.Tensor,
    tolerance: float,
    jit: bool,
) -> tuple[tf.Tensor, tf.Tensor, Report]:
    """The gradient (5) as a linear map of X and of Y, and how well its system was solved.

    dJ/dX = Y + Yc (A - I) + Xc R^+ (U - ys A), A = (I + t Gam)^-1, H U = ys, plus what turning
    row spaces add. Returns the factor of Xc, A, and the report.
    """
    inside = tf.matmul(reduction.lift, cross, transpose_a=True)
    u, report = solve_hessian(
        correlation, reduction.problem, found.point, inside, tolerance, jit=jit
    )
    shrink = shrinkage(correlation, found.point)
    of_x = tf.matmul(reduction.lift, u - tf.matmul(inside, shrink))
    return of_x + turning(correlation, reduction, step, cross), shrink, report
