"""The multiview proximal map on a batch: two passes over the rows around the D x D solve."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.once import differentiable_once
from proxnet_tf.ops.multiview import correlation as spectral
from proxnet_tf.ops.multiview import newton as gram_prox
from proxnet_tf.ops.multiview import problem as gram_problem
from proxnet_tf.ops.multiview.correlation import Correlation


class MultiviewProx(NamedTuple):
    """Result of `multiview_prox`; only `output` carries a gradient.

    Attributes:
        output: P, in the shape and dtype of x.
        mean: mean of the valid rows, `[D]`.
        map: D x D matrix M - I of P = X + (X - mean)(M - I), in the dtype of x.
        residual: ||F||/||R||, float64 scalar.
        iterations: evaluations by the solver, int32 scalar.
        converged: whether the residual reached the tolerance.
        correlation_before: - L (the sum of the top k eigenvalues mu) at the input, float64 scalar.
        correlation_after: the same at the output.
    """

    output: tf.Tensor
    mean: tf.Tensor
    map: tf.Tensor
    residual: tf.Tensor
    iterations: tf.Tensor
    converged: tf.Tensor
    correlation_before: tf.Tensor
    correlation_after: tf.Tensor


class _Moments(NamedTuple):
    shift: tf.Tensor  # what the rows are read relative to, in their dtype
    mean: tf.Tensor  # float64
    count: tf.Tensor
    gram: tf.Tensor


def _identity(*tensors):
    return tensors


# Up to so many rows products of the rows are in float64. Beyond, the rows are read in blocks that
# stay in the cache, products of float32 rows are in float32, and the blocks are summed in float64.
EXACT_ROWS = 4096
BLOCK = 2048


def _sum_over_rows(function, *arrays):
    """The sum of `function(exact, *rows)` over blocks of rows; None among `arrays` stays None."""
    first = arrays[0]

    def exact():
        return tuple(function(True, *arrays))

    def block(i):
        return function(False, *(None if a is None else a[i : i + BLOCK] for a in arrays))

    def in_blocks():
        start = (tf.constant(BLOCK), *block(0))
        _, *sums = tf.while_loop(
            lambda i, *_: i < tf.shape(first)[0],
            lambda i, *sums: (i + BLOCK, *(a + b for a, b in zip(sums, block(i), strict=True))),
            start,
        )
        return tuple(sums)

    if first.shape[0] is not None:
        return exact() if first.shape[0] <= EXACT_ROWS else in_blocks()
    return tf.cond(tf.shape(first)[0] <= EXACT_ROWS, exact, in_blocks)


def _column_sums(x):
    return tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0]


def _moments(x, valid, all_reduce):
    """Count, mean and float64 Gram matrix of the valid rows of x, `[n, D]`."""

    def head(x, valid):
        kept = x if valid is None else tf.where(valid, x, tf.zeros_like(x))
        rows = tf.shape(x)[:1] if valid is None else tf.math.count_nonzero(valid, axis=0)
        return tf.cast(rows[0], x.dtype), tf.reduce_sum(kept, 0)

    count, total = all_reduce(*head(x[:BLOCK], None if valid is None else valid[:BLOCK]))
    shift = tf.math.divide_no_nan(total, count)

    def part(exact, x, valid):
        near = x - shift
        if valid is not None:
            near = tf.where(valid, near, tf.zeros_like(near))
        near = tf.cast(near, tf.float64) if exact else near
        rows = tf.shape(x)[:1] if valid is None else tf.math.count_nonzero(valid, axis=0)
        sums = rows[0], _column_sums(near), tf.matmul(near, near, transpose_a=True)
        return tuple(tf.cast(s, tf.float64) for s in sums)

    count, total, gram = all_reduce(*_sum_over_rows(part, x, valid))
    offset = total / tf.maximum(count, 1.0)
    gram -= count * offset[:, None] * offset
    return _Moments(shift, tf.cast(shift, tf.float64) + offset, count, gram)


def _rank_tolerance(x, count):
    """Share of a view's largest variance below which a direction is rounding."""
    if x.dtype == tf.float64:
        return 1e-10
    return tf.where(count <= EXACT_ROWS, tf.constant(1e-10, tf.float64), 1e-6)


def gram_of(
    x: tf.Tensor,
    valid: tf.Tensor | None = None,
    all_reduce: Callable[..., tuple[tf.Tensor, ...]] = _identity,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gram matrix `[D, D]` of the centred valid rows of x `[n, D]`, and their number; float64."""
    moments = _moments(x, valid, all_reduce)
    return moments.gram, moments.count


def _spectrum(correlation, gram, count):
    """Spectrum of (2) from a Gram matrix; that of zeros where the matrix is not finite."""
    gram = tf.where(tf.reduce_all(tf.math.is_finite(gram)), gram, tf.zeros_like(gram))
    return spectral.decompose(
        correlation,
        gram / tf.maximum(count - 1.0, 1.0),
        gram_problem.outside_row_spaces(correlation, gram)[0],
    )


def correlations(correlation: Correlation, gram: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The k largest eigenvalues mu of (2), `[k]`, descending, float64.

    Args:
        correlation: widths of the views, k, eps and the objective.
        gram: Xc^T Xc, `[D, D]`, float64; NaN in gives NaN out.
        count: n, scalar float64; fewer than two rows give zeros.
    """
    spectrum = _spectrum(correlation, gram, count)
    values = (spectrum.selected * spectrum.values)[: correlation.num_components]
    finite = tf.reduce_all(tf.math.is_finite(gram))
    return tf.where(finite, values, tf.cast(np.nan, values.dtype))


def correlation_loss(
    x: tf.Tensor, correlation: Correlation, *, valid: tf.Tensor | None = None
) -> tf.Tensor:
    """L of the rows of x `[n, D]`, a scalar: minus the sum of the top k mu ("gcca": plus J k).

    Gradient 2/(n - 1) Xc (dL/dS) in closed form, without divisions by spectral gaps; not
    differentiable where mu_k = mu_{k+1} (the gradient of the k vectors found first is returned).
    A second derivative raises `NotImplementedError`. With fewer than two valid rows the value is
    that of no correlation and the gradient zero.

    Args:
        x: views side by side, float32 or float64.
        correlation: widths of the views, k, eps and the objective.
        valid: `[n, 1]` booleans; the other rows take no part.
    """

    @tf.custom_gradient
    def loss(x):
        moments = _moments(tf.stop_gradient(x), valid, _identity)
        spectrum = _spectrum(correlation, moments.gram, moments.count)
        value = spectral.objective(correlation, spectrum)
        finite = tf.reduce_all(tf.math.is_finite(moments.gram))
        value = tf.where(finite, value, tf.cast(np.nan, value.dtype))
        slope = tf.matmul(
            tf.matmul(spectrum.basis, spectral.gamma(correlation, spectrum)),
            spectrum.basis,
            transpose_b=True,
        )
        slope *= 2.0 / tf.maximum(moments.count - 1.0, 1.0)
        slope = tf.where(finite, slope, tf.cast(np.nan, slope.dtype))
        answer = _kept(valid, _affine(x, slope, -_row(moments.mean, slope)), tf.zeros_like(x))

        def backward(y):
            return differentiable_once(lambda y, _: y * answer, "correlation loss")(y, x)

        return tf.cast(value, x.dtype), backward

    return loss(x)


def multiview_prox(
    x: tf.Tensor,
    lam: tf.Tensor | float,
    correlation: Correlation,
    *,
    valid: tf.Tensor | None = None,
    solver: str = "newton",
    gradient: str = "implicit",
    tolerance: float = 1e-8,
    max_iterations: int = 200,
    jit: bool = True,
    all_reduce: Callable[..., tuple[tf.Tensor, ...]] = _identity,
    solver_device: str | None = None,
) -> MultiviewProx:
    """P = argmin_P lam/(2n) ||P - X||_F^2 + L(P), equation (8) of the paper for J views.

    The minimiser is the one that descent from P = X reaches (the problem is not convex), each
    view staying in its own row space: constant columns come out unchanged, duplicated columns
    stay equal. The solve is in float64 on D x D matrices, whatever n is. Directions of a view
    with less than 1e-10 of its largest variance (1e-6 for more than 4096 float32 rows) count as
    rounding and are left as they are.

    Args:
        x: views side by side, `[n, D]`, float32 or float64.
        lam: scalar > 0; a constant of the map, without a gradient.
        correlation: widths of the views, k, eps and the objective.
        valid: `[n, 1]` booleans; the other rows take no part and pass unchanged.
        solver: "newton" or "lbfgs".
        gradient: "implicit" (exact, one D x D linear solve) or "finite_difference" (the paper's,
            after Domke 2010: a central difference, two more solves).
        tolerance: on the relative residual of the solve and of the implicit gradient.
        max_iterations: of the solver.
        jit: whether XLA compiles the inner loop.
        all_reduce: sums tensors over replicas, for the map of a global batch; identity by default.
            Only n, sums of rows and D x D matrices pass through it. Not with "finite_difference".
        solver_device: where the D x D problem is solved; by default where TensorFlow puts it.

    Returns:
        A `MultiviewProx`. Where an input is not finite, the valid outputs are NaN. With fewer
        than two rows, or all rows equal, P = X.

    Not differentiable where mu_k = mu_{k+1} (the gradient then ignores the tie). A second
    derivative raises `NotImplementedError`.
    """
    options: dict[str, Any] = dict(tolerance=tolerance, jit=jit)
    lam = tf.stop_gradient(tf.cast(lam, tf.float64))

    def on_solver_device():
        return tf.device(solver_device) if solver_device else contextlib.nullcontext()

    def forward(x):
        moments = _moments(x, valid, all_reduce)
        finite = tf.reduce_all(tf.math.is_finite(moments.gram))
        gram = tf.where(finite, moments.gram, tf.zeros_like(moments.gram))
        with on_solver_device():
            reduction = gram_problem.reduce_gram(
                correlation, gram, moments.count, lam, _rank_tolerance(x, moments.count)
            )
            found = gram_prox.solve(
                correlation, reduction, solver=solver, max_iterations=max_iterations, **options
            )
            step = tf.matmul(reduction.pinv, found.point.w - reduction.root)
        step = tf.where(finite, step, tf.cast(np.nan, step.dtype))
        # Pc = Xc M as one product with the rows: P = X M + (mean - mean M).
        linear = step + tf.eye(correlation.width, dtype=step.dtype)
        output = _kept(valid, _affine(x, linear, -_row(moments.mean, step)), x)
        return output, step, moments, reduction, found

    def implicit(y, x, step, moments, reduction, found):
        # (5): dJ/dX = Y + Yc (A - I) + Xc R^+ (U - ys A), A = (I + t Gam)^-1, H U = ys,
        # plus what turning row spaces add.
        def part(exact, y, x, valid):
            near = x - moments.shift
            if valid is not None:
                near = tf.where(valid, near, tf.zeros_like(near))
                y = tf.where(valid, y, tf.zeros_like(y))
            sums = tf.matmul(near, y, transpose_a=True), _column_sums(y)
            return tuple(tf.cast(s, tf.float64) for s in sums)

        cross, total = all_reduce(*_sum_over_rows(part, y, x, valid))
        cross -= (moments.mean - tf.cast(moments.shift, tf.float64))[:, None] * total
        with on_solver_device():
            inside = tf.matmul(reduction.pinv, cross, transpose_a=True)
            usable = tf.where(tf.math.is_finite(inside), inside, tf.zeros_like(inside))
            u = gram_prox.solve_hessian(correlation, reduction, found.point, usable, **options)
            shrink = gram_prox.shrinkage(correlation, reduction, found.point)
            of_x = tf.matmul(reduction.pinv, u - tf.matmul(inside, shrink))
            of_x += gram_problem.turning(correlation, reduction, step, cross)
        change = shrink - tf.eye(correlation.width, dtype=shrink.dtype)
        constant = -_row(total / tf.maximum(moments.count, 1.0), change)
        constant -= _row(moments.mean, of_x)
        answer = tf.matmul(x, tf.cast(of_x, x.dtype))
        return _kept(valid, answer + _affine(y, shrink, constant), y)

    def central_difference(y, x):
        # Step of the published code, on the central difference of Domke (2010).
        kept = _kept(valid, y, tf.zeros_like(y))
        size = tf.reduce_max(tf.abs(kept))
        span = tf.reduce_max(tf.abs(_kept(valid, x, tf.zeros_like(x))))
        step = tf.math.divide_no_nan(1e-2 * (1.0 + span), size)
        change = forward(x + step * kept)[0] - forward(x - step * kept)[0]
        return _kept(valid, tf.where(step > 0, change / (2.0 * step), y), y)

    @tf.custom_gradient
    def prox(x):
        output, step, moments, reduction, found = forward(tf.stop_gradient(x))
        finite = tf.reduce_all(tf.math.is_finite(step))
        result = MultiviewProx(
            output=output,
            mean=tf.cast(moments.mean, x.dtype),
            map=tf.cast(step, x.dtype),
            residual=found.point.residual,
            iterations=found.iterations,
            converged=found.converged & finite,
            correlation_before=correlation.constant - found.initial,
            correlation_after=tf.reduce_sum(
                found.point.spectrum.selected * found.point.spectrum.values
            ),
        )

        def backward(y, *_):
            def answer(y, x):
                if gradient == "finite_difference":
                    return central_difference(y, x)
                return implicit(y, x, step, moments, reduction, found)

            return differentiable_once(answer, "multiview proximal map")(y, x)

        return tuple(result), backward

    return MultiviewProx(*prox(x))


def _row(vector, matrix):
    return tf.linalg.matvec(matrix, vector, transpose_a=True)


def _affine(rows, matrix, constant):
    return tf.nn.bias_add(
        tf.matmul(rows, tf.cast(matrix, rows.dtype)), tf.cast(constant, rows.dtype)
    )


def _kept(valid, changed, original):
    return changed if valid is None else tf.where(valid, changed, original)
