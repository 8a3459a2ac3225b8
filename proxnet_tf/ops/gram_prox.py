"""The multiview proximal map, solved in the D x D Gram space, and its implicit gradient.

For views side by side, X (n x D), with C = Xc^T Xc = R^T R, c = 1/(n-1) and t = n/lam, the map

    P = argmin_P  lam/(2n) ||P - X||_F^2 + L(S),   S = c Pc^T Pc                              (1)

is linear in the centred inputs: Pc = Xc R^+ W, where W (D x D) solves, whatever n is,

    F(W) = W - R + t W Gam = 0,   Gam = 2 c dL/dS at S = c W^T W                              (4)

by descent from W = R, each view staying in its own row space. Its Hessian (times t) is

    H V = V (I + t Gam) + t W dGam[c (V^T W + W^T V)].

The solver works in the eigenbasis U of (2), on V' = V U: there I + t Gam becomes
M = U^-1 U^-T + t Gam' and dGam acts entry by entry.

References: Li, Ma, Zhang (2020), equation (8) and the appendix on multiview learning. The
reduction to D x D, the implicit gradient and the preconditioner go beyond the paper.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops import spectral
from proxnet_tf.ops.krylov import conjugate_gradient
from proxnet_tf.ops.spectral import Correlation, Spectrum

# Eigenvalues of a Gram matrix below this fraction of the largest are rounding.
RANK_TOLERANCE = 1e-10
CG_ITERATIONS = 300


class Reduction(NamedTuple):
    """The data of (4).

    Attributes:
        root: R, `[D, D]`, R^T R = C.
        pinv: R^+, `[D, D]`.
        unused: I - Pi, block-diagonal projection onto what lies outside the views' row spaces.
        turn: block-diagonal C_jj^+, zero where every view has full rank; see `turning`.
        c: 1 / (n - 1), scalar.
        t: n / lam, scalar.
    """

    root: tf.Tensor
    pinv: tf.Tensor
    unused: tf.Tensor
    turn: tf.Tensor
    c: tf.Tensor
    t: tf.Tensor


class Point(NamedTuple):
    """An iterate W of (4) with what is known there.

    Attributes:
        w: W, `[D, D]`.
        spectrum: of (2) at S = c W^T W.
        objective: ||W - R||^2 / (2 t) + L, scalar; NaN where (2) could not be solved.
        residual: ||F(W)||_F / ||R||_F, scalar.
    """

    w: tf.Tensor
    spectrum: Spectrum
    objective: tf.Tensor
    residual: tf.Tensor


class Solution(NamedTuple):
    """Where the solver stopped.

    Attributes:
        point: the last iterate.
        iterations: number of evaluations of (4), int32.
        converged: whether the residual reached the tolerance.
    """

    point: Point
    iterations: tf.Tensor
    converged: tf.Tensor


def reduce_gram(
    correlation: Correlation, gram: tf.Tensor, count: tf.Tensor, lam: tf.Tensor
) -> Reduction:
    """R, R^+ and the row spaces of the views, from C = Xc^T Xc (`[D, D]`, float64, finite).

    Args:
        correlation: sizes of the views.
        gram: C.
        count: n, the number of rows behind C, scalar float64.
        lam: scalar float64 > 0.
    """
    values, vectors = tf.linalg.eigh(gram)
    floor = RANK_TOLERANCE * values[-1]
    # By interlacing, no block has a smaller eigenvalue than C.
    unused, turn = tf.cond(
        values[0] > floor,
        lambda: (tf.zeros_like(gram), tf.zeros_like(gram)),
        lambda: outside_row_spaces(correlation, gram),
    )
    # Tiny values are kept where they are larger than rounding: P moves along them too.
    used = values > correlation.width * np.finfo("float64").eps * values[-1]
    root = tf.sqrt(tf.where(used, values, tf.zeros_like(values)))
    pinv = vectors * tf.math.divide_no_nan(tf.ones_like(root), root)
    root = root[:, None] * tf.transpose(vectors)
    return Reduction(
        root=root - tf.matmul(root, unused),
        pinv=pinv,
        unused=unused,
        turn=turn,
        c=1.0 / tf.maximum(count - 1.0, 1.0),
        t=count / lam,
    )


def outside_row_spaces(correlation: Correlation, gram: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """I - Pi, the projection onto what lies outside the row space of each view, and C_jj^+.

    Both are block-diagonal, `[D, D]`. Directions whose share of the view's largest variance is
    at most 1e-10 count as outside.
    """
    outside, inverse, start = [], [], 0
    for size in correlation.sizes:
        values, vectors = tf.linalg.eigh(gram[start : start + size, start : start + size])
        unused = values <= RANK_TOLERANCE * tf.maximum(values[-1], 0.0)
        weight = tf.cast(unused, values.dtype)
        room = [[start, correlation.width - start - size]] * 2
        for parts, scale in (
            (outside, weight),
            (inverse, tf.math.divide_no_nan(1.0 - weight, values)),
        ):
            parts.append(tf.pad(tf.matmul(vectors * scale, vectors, transpose_b=True), room))
        start += size
    return tf.add_n(outside), tf.add_n(inverse)


def turning(
    correlation: Correlation, reduction: Reduction, step: tf.Tensor, cross: tf.Tensor
) -> tf.Tensor:
    """What a turn of the views' row spaces adds to the factor of Xc in (5), `[D, D]`.

    For X_j = A B^T of deficient rank P_j = Z B^T, and a change of B outside B's span turns P_j
    along: dP_j (I - Pi_j) = P_j X_j^+ dX_j (I - Pi_j). Constant columns are left alone. Zero
    where every view has full rank.

    Args:
        correlation: sizes of the views.
        reduction: data of (4).
        step: M - I, with P = X + Xc (M - I).
        cross: Xc^T Yc, Y the cotangent.
    """
    mask = tf.constant(correlation.block_mask, cross.dtype)
    moved = tf.matmul(reduction.turn, mask * tf.matmul(step, cross, transpose_a=True))
    constant = tf.linalg.diag_part(reduction.unused) > 1.0 - 1e-9
    kept = tf.where(constant, tf.zeros_like(reduction.unused), reduction.unused)
    return tf.matmul(moved, kept)


def evaluate(correlation: Correlation, reduction: Reduction, w: tf.Tensor) -> Point:
    """Objective, residual and spectrum of (4) at W."""
    covariance = reduction.c * tf.matmul(w, w, transpose_a=True)
    spectrum = spectral.decompose(correlation, covariance, reduction.unused)
    moved = w - reduction.root
    objective = tf.reduce_sum(moved**2) / (2.0 * reduction.t)
    objective += spectral.objective(correlation, spectrum)
    residual = tf.norm(gradient(correlation, reduction, w, spectrum))
    residual = tf.math.divide_no_nan(residual, tf.norm(reduction.root))
    return Point(w, spectrum, objective, residual)


def gradient(
    correlation: Correlation, reduction: Reduction, w: tf.Tensor, spectrum: Spectrum
) -> tf.Tensor:
    """F(W) = W - R + t W Gam of (4)."""
    wu = tf.matmul(w, spectrum.vectors)
    slope = 2.0 * reduction.c * reduction.t * spectral.gamma(correlation, spectrum)
    pull = tf.matmul(tf.matmul(wu, slope), spectrum.vectors, transpose_b=True)
    return w - reduction.root + pull


class Hessian(NamedTuple):
    """H of (4) on V' = V U, with its preconditioner.

    Attributes:
        wu: W U.
        metric: M = U^-1 (I + t Gam) U^-T.
        rotation: Q of the spectrum.
        differences: divided differences of the spectrum.
        c: 1 / (n - 1).
        scale: 2 c t.
        inverse: symmetric positive definite approximation of M^-1.
        common: for "cca" the directions Th of W u_1 .. W u_m (unit columns, zero beyond k).
        correction: what is added to `inverse` on the span of `common`.
    """

    wu: tf.Tensor
    metric: tf.Tensor
    rotation: tf.Tensor
    differences: spectral.Differences
    c: tf.Tensor
    scale: tf.Tensor
    inverse: tf.Tensor
    common: tf.Tensor | None
    correction: tf.Tensor | None


def hessian_at(correlation: Correlation, reduction: Reduction, point: Point) -> Hessian:
    """The Hessian of (4) at `point`.

    Preconditioner. With correlations near one, dGam takes back the large part 2 c t (1 + sigma)
    of M on v_j = (a_j, -b_j), but only for the rows of W U that both views share, those of
    u_i = (a_i, b_i); there M without it is close to H. Elsewhere M with its negative part
    dropped is. Both are positive definite.
    """
    spectrum = point.spectrum
    scale = 2.0 * reduction.c * reduction.t
    wu = tf.matmul(point.w, spectrum.vectors)
    slope = scale * spectral.gamma(correlation, spectrum)
    plain = tf.matmul(spectrum.inverse, spectrum.inverse, transpose_b=True)  # U^-1 U^-T
    common = correction = None
    if correlation.objective == "cca":
        pairs = min(correlation.sizes)
        outer = plain + tf.linalg.diag(tf.maximum(tf.linalg.diag_part(slope), 0.0))
        sigma = spectrum.selected * spectrum.values
        shared = plain + tf.linalg.diag(0.5 * scale * sigma * (1.0 - sigma))
        inverse, shared = tf.unstack(tf.linalg.inv(tf.stack([outer, shared])))
        correction = shared - inverse
        leading = wu[:, :pairs]
        common = leading * tf.math.divide_no_nan(
            spectrum.selected[:pairs], tf.norm(leading, axis=0)
        )
    else:
        values, vectors = tf.linalg.eigh(slope)
        positive = tf.matmul(vectors * tf.maximum(values, 0.0), vectors, transpose_b=True)
        inverse = tf.linalg.inv(plain + positive)
    return Hessian(
        wu=wu,
        metric=plain + slope,
        rotation=spectrum.rotation,
        differences=spectral.divided_differences(spectrum),
        c=reduction.c,
        scale=scale,
        inverse=inverse,
        common=common,
        correction=correction,
    )


def hessian_product(correlation: Correlation, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """(H V) U^-T for `v` = V U."""
    change = hessian.c * tf.matmul(hessian.wu, v, transpose_a=True)
    dgamma = spectral.gamma_differential(
        correlation, hessian.rotation, hessian.differences, change + tf.transpose(change)
    )
    return tf.matmul(v, hessian.metric) + hessian.scale * tf.matmul(hessian.wu, dgamma)


def _precondition(hessian, r):
    z = tf.matmul(r, hessian.inverse)
    if hessian.common is not None:
        inside = tf.matmul(hessian.common, r, transpose_a=True)
        z += tf.matmul(hessian.common, tf.matmul(inside, hessian.correction))
    return z


@lru_cache(maxsize=64)
def _hessian_solve(correlation, bounded, jit):
    """Conjugate gradients on H, compiled where asked: products of D x D matrices only."""

    def solve(hessian, rhs, tolerance, radius):
        return conjugate_gradient(
            lambda v: hessian_product(correlation, hessian, v),
            rhs,
            preconditioner=lambda r: _precondition(hessian, r),
            tolerance=tolerance,
            max_iterations=CG_ITERATIONS,
            axes=(-2, -1),
            radius=radius if bounded else None,
        )

    return tf.function(solve, jit_compile=jit, autograph=False)


def _retract(correlation, hessian, spectrum, v):
    """V' with the second-order term that keeps W + V of the rank that it has at correlation one.

    As the correlations approach one the columns W v_j, v_j = (a_j, -b_j), vanish; to second order
    their common part must follow the columns W u_i.
    """
    if correlation.objective != "cca":
        return v
    pairs = min(correlation.sizes)
    leading = hessian.wu[:, :pairs] + v[:, :pairs]
    trailing = v[:, -pairs:]
    moved = tf.matmul(hessian.common, leading, transpose_a=True)
    moved += tf.linalg.diag(1.0 - spectrum.selected[:pairs])
    shift = tf.matmul(leading, tf.linalg.inv(moved)) - hessian.common
    shift = tf.matmul(shift, tf.matmul(hessian.common, trailing, transpose_a=True))
    return v + tf.pad(shift, [[0, 0], [correlation.width - pairs, 0]])


def _newton(correlation, reduction, tolerance, max_iterations, jit):
    """Trust-region Newton from W = R: Steihaug's method in the preconditioner's norm."""
    size = tf.norm(reduction.root)
    solve = _hessian_solve(correlation, True, jit)

    def go_on(iteration, radius, stalled, point):
        return (point.residual > tolerance) & (iteration < max_iterations) & ~stalled

    def step(iteration, radius, stalled, point):
        hessian = hessian_at(correlation, reduction, point)
        slope = gradient(correlation, reduction, point.w, point.spectrum)
        forcing = tf.minimum(tf.sqrt(point.residual), 0.1)
        rhs = -tf.matmul(slope, point.spectrum.inverse, transpose_b=True)
        found = solve(hessian, rhs, forcing, radius)
        v = _retract(correlation, hessian, point.spectrum, found.solution)
        w = point.w + tf.matmul(v, point.spectrum.inverse)
        trial = evaluate(correlation, reduction, w - tf.matmul(w, reduction.unused))
        norm, predicted = found.norm[0, 0], found.reduction[0, 0] / reduction.t
        # Too small a change for the objective's rounding: the residual decides.
        tiny = predicted < 1e-12 * (1.0 + tf.abs(point.objective))
        smaller = trial.residual < point.residual
        ratio = tf.where(
            tiny,
            tf.cast(smaller, predicted.dtype),
            tf.math.divide_no_nan(point.objective - trial.objective, predicted),
        )
        ratio = tf.where(tf.math.is_finite(ratio), ratio, -tf.ones_like(ratio))
        at_edge = norm > 0.99 * radius
        radius = tf.where((ratio > 0.9) & at_edge, 2.0 * radius, radius)
        radius = tf.where(ratio < 0.25, 0.5 * norm, radius)
        accepted = ratio > 1e-4
        point = tf.nest.map_structure(lambda new, old: tf.where(accepted, new, old), trial, point)
        return iteration + 1, radius, tiny & ~smaller, point

    start = evaluate(correlation, reduction, reduction.root)
    iterations, _, _, point = tf.while_loop(
        go_on,
        step,
        (tf.constant(1), 0.2 * size, tf.constant(False), start),
    )
    return Solution(point, iterations, point.residual <= tolerance)


def _lbfgs(correlation, reduction, tolerance, max_iterations):
    """TFP's L-BFGS on (4) from W = R, on t times the objective, whose gradient is F."""
    import tensorflow_probability as tfp

    shape = reduction.root.shape

    def value_and_gradient(flat):
        w = tf.reshape(flat, shape)
        w -= tf.matmul(w, reduction.unused)
        point = evaluate(correlation, reduction, w)
        slope = gradient(correlation, reduction, w, point.spectrum)
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
    return Solution(point, found.num_objective_evaluations, point.residual <= tolerance)


def solve(
    correlation: Correlation,
    reduction: Reduction,
    *,
    solver: str = "newton",
    tolerance: float = 1e-9,
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

    def newton():
        return _newton(correlation, reduction, tolerance, max_iterations, jit)

    if solver == "newton":
        return newton()
    found = _lbfgs(correlation, reduction, tolerance, max_iterations)
    return tf.cond(found.converged, lambda: found, newton)


def solve_hessian(
    correlation: Correlation,
    reduction: Reduction,
    point: Point,
    rhs: tf.Tensor,
    *,
    tolerance: float = 1e-9,
    jit: bool = True,
) -> tf.Tensor:
    """U with H U = `rhs` at the solution, `[D, D]`, by conjugate gradients: the core of (5).

    H is positive definite at a strict minimiser; a direction of negative curvature ends the
    iteration with the last iterate.
    """
    spectrum = point.spectrum
    hessian = hessian_at(correlation, reduction, point)
    found = _hessian_solve(correlation, False, jit)(
        hessian,
        tf.matmul(rhs, spectrum.inverse, transpose_b=True),
        tf.cast(tolerance, rhs.dtype),
        tf.zeros([], rhs.dtype),
    )
    u = tf.matmul(found.solution, spectrum.inverse)
    return u + tf.matmul(rhs - u, reduction.unused)  # H is the identity outside the row spaces


def shrinkage(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1, `[D, D]`, symmetric."""
    spectrum = point.spectrum
    slope = 2.0 * reduction.c * reduction.t * spectral.gamma(correlation, spectrum)
    step = tf.matmul(tf.matmul(spectrum.vectors, slope), spectrum.vectors, transpose_b=True)
    return tf.linalg.inv(tf.eye(correlation.width, dtype=step.dtype) + step)
