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

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops import spectral
from proxnet_tf.ops.krylov import conjugate_gradient
from proxnet_tf.ops.spectral import Correlation, Spectrum

# Eigenvalues of a Gram matrix below this fraction of the largest are rounding.
RANK_TOLERANCE = 1e-10
CG_ITERATIONS = 300
OUTSIDE = 1e4


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
        wu: W U.
        metric: M = U^-1 (I + t Gam) U^-T, made stiff outside the row spaces.
        slope: F(W) U^-T.
        objective: ||W - R||^2 / (2 t) + L, scalar; NaN where (2) could not be solved.
        residual: ||F(W)||_F / ||R||_F, scalar.
    """

    w: tf.Tensor
    spectrum: Spectrum
    wu: tf.Tensor
    metric: tf.Tensor
    slope: tf.Tensor
    objective: tf.Tensor
    residual: tf.Tensor


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


def reduce_gram(
    correlation: Correlation,
    gram: tf.Tensor,
    count: tf.Tensor,
    lam: tf.Tensor,
    rank_tolerance: float | tf.Tensor = RANK_TOLERANCE,
) -> Reduction:
    """R, R^+ and the row spaces of the views, from C = Xc^T Xc (`[D, D]`, float64, finite).

    Args:
        correlation: sizes of the views.
        gram: C.
        count: n, the number of rows behind C, scalar float64.
        lam: scalar float64 > 0.
        rank_tolerance: share of a view's largest variance below which a direction is rounding.
    """
    values, vectors = tf.linalg.eigh(gram)
    floor = rank_tolerance * values[-1]
    # By interlacing, no block has a smaller eigenvalue than C.
    unused, turn = tf.cond(
        values[0] > floor,
        lambda: (tf.zeros_like(gram), tf.zeros_like(gram)),
        lambda: outside_row_spaces(correlation, gram, rank_tolerance),
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


def outside_row_spaces(
    correlation: Correlation, gram: tf.Tensor, rank_tolerance: float | tf.Tensor = RANK_TOLERANCE
) -> tuple[tf.Tensor, tf.Tensor]:
    """I - Pi, the projection onto what lies outside the row space of each view, and C_jj^+.

    Both are block-diagonal, `[D, D]`. Directions whose share of the view's largest variance is
    at most `rank_tolerance` count as outside.
    """
    outside: list[tf.Tensor] = []
    inverse: list[tf.Tensor] = []
    start = 0
    for size in correlation.sizes:
        values, vectors = tf.linalg.eigh(gram[start : start + size, start : start + size])
        unused = values <= rank_tolerance * tf.maximum(values[-1], 0.0)
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


def _covariance(reduction, w):
    return reduction.c * tf.matmul(w, w, transpose_a=True)


def point_at(
    correlation: Correlation, reduction: Reduction, w: tf.Tensor, factors: spectral.Factors
) -> Point:
    """Objective, gradient and spectrum of (4) at W, from the factors of its covariance."""
    spectrum = spectral.assemble(correlation, factors)
    gamma = _gamma(correlation, reduction, spectrum)
    moved = w - reduction.root
    wu = tf.matmul(w, spectrum.vectors)
    # (4): F U^-T = (W - R) U^-T + t W U Gam', for U^-1 Gam U^-T = Gam'.
    if correlation.objective == "cca":
        pull = wu * tf.linalg.diag_part(gamma)
    else:
        pull = tf.matmul(wu, gamma)
    residual = tf.norm(moved + tf.matmul(pull, spectrum.vectors, transpose_b=True))
    objective = tf.reduce_sum(moved**2) / (2.0 * reduction.t)
    # Outside the row spaces, where L may be concave, H is made stiff: rounding cannot leave them.
    stiff = tf.eye(correlation.width, dtype=w.dtype)
    stiff += OUTSIDE * (1.0 + reduction.c * reduction.t) * reduction.unused
    return Point(
        w=w,
        spectrum=spectrum,
        wu=wu,
        metric=tf.matmul(tf.matmul(spectrum.inverse, stiff), spectrum.inverse, transpose_b=True)
        + gamma,
        slope=tf.matmul(moved, spectrum.inverse, transpose_b=True) + pull,
        objective=objective + spectral.objective(correlation, spectrum),
        residual=tf.math.divide_no_nan(residual, tf.norm(reduction.root)),
    )


def evaluate(correlation: Correlation, reduction: Reduction, w: tf.Tensor) -> Point:
    """Objective, gradient and spectrum of (4) at W."""
    factors = spectral.factorise(correlation, _covariance(reduction, w), reduction.unused)
    return point_at(correlation, reduction, w, factors)


def _gamma(correlation, reduction, spectrum):
    """t Gam in the eigenbasis."""
    return 2.0 * reduction.c * reduction.t * spectral.gamma(correlation, spectrum)


def metrics_at(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """Symmetric positive definite matrices whose inverses precondition H, `[1 or 2, D, D]`.

    M with the negative part of t Gam' dropped comes first. With correlations near one, dGam
    takes back the large part 2 c t (1 + sigma) of M on v_j = (a_j, -b_j), but only for the rows
    of W U that both views share, those of u_i = (a_i, b_i): the second matrix (for "cca") is M
    without it, for those rows.
    """
    gamma = _gamma(correlation, reduction, point.spectrum)
    if correlation.objective == "gcca":
        values, vectors = tf.linalg.eigh(gamma)
        dropped = tf.matmul(vectors * tf.minimum(values, 0.0), vectors, transpose_b=True)
        return (point.metric - dropped)[None]
    diagonal = tf.linalg.diag_part(gamma)
    sigma = point.spectrum.selected * point.spectrum.values
    shared = reduction.c * reduction.t * sigma * (1.0 - sigma)
    change = tf.stack([tf.maximum(diagonal, 0.0), shared]) - diagonal
    return point.metric + tf.linalg.diag(change)


class Hessian(NamedTuple):
    """H of (4) on V' = V U, with its preconditioner.

    Attributes:
        wu: W U.
        metric: M = U^-1 (I + t Gam) U^-T.
        rotation: Q of the spectrum.
        differences: divided differences of the spectrum.
        c: 1 / (n - 1).
        scale: 2 c t.
        inverse: inverse of the first matrix of `metrics_at`.
        common: for "cca" the directions Th of W u_1 .. W u_m (unit columns, zero beyond k).
        correction: what the second inverse adds on the span of `common`.
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


def hessian_at(
    correlation: Correlation, reduction: Reduction, point: Point, inverses: tf.Tensor
) -> Hessian:
    """The Hessian of (4) at `point`, preconditioned by the inverses of `metrics_at`."""
    spectrum = point.spectrum
    common = correction = None
    if correlation.objective == "cca":
        pairs = min(correlation.sizes)
        leading = point.wu[:, :pairs]
        size = tf.norm(leading, axis=0)
        common = leading * tf.math.divide_no_nan(spectrum.selected[:pairs], size)
        correction = inverses[1] - inverses[0]
    return Hessian(
        wu=point.wu,
        metric=point.metric,
        rotation=spectrum.rotation,
        differences=spectral.divided_differences(spectrum),
        c=reduction.c,
        scale=2.0 * reduction.c * reduction.t,
        inverse=inverses[0],
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


def precondition(hessian: Hessian, r: tf.Tensor) -> tf.Tensor:
    """Approximately H^-1 R, from R U^-T to V U: symmetric and positive definite."""
    z = tf.matmul(r, hessian.inverse)
    if hessian.common is not None:
        inside = tf.matmul(hessian.common, r, transpose_a=True)
        z += tf.matmul(hessian.common, tf.matmul(inside, hessian.correction))
    return z


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


def _retract(correlation, hessian, v):
    """V' with the second-order term that keeps the rank that W + V has at correlation one.

    As the correlations approach one the columns W v_j, v_j = (a_j, -b_j), vanish; to second order
    what the step adds to them along the W u_i must follow the step of the W u_i.
    """
    if correlation.objective != "cca":
        return v
    pairs = min(correlation.sizes)
    size = tf.norm(hessian.wu[:, :pairs], axis=0)
    shift = v[:, :pairs] - tf.matmul(
        hessian.common, tf.matmul(hessian.common, v[:, :pairs], transpose_a=True)
    )
    shift = tf.math.divide_no_nan(shift, size)
    shift = tf.matmul(shift, tf.matmul(hessian.common, v[:, -pairs:], transpose_a=True))
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
    matrices = [point.w, *spectrum[1:4], point.wu, point.metric, point.slope]
    scalars = [point.objective, point.residual, state.radius, state.stalled]
    return (
        tf.concat([tf.stack(matrices), state.metrics], 0),
        tf.concat([spectrum.values, spectrum.selected, tf.stack(scalars)], 0),
    )


def _unpack(matrices, vector):
    w, vectors, inverse, rotation, wu, metric, slope = tf.unstack(matrices[:7])
    values, selected, scalars = tf.split(vector, [w.shape[0], w.shape[0], 4])
    objective, residual, radius, stalled = tf.unstack(scalars)
    spectrum = Spectrum(values, vectors, inverse, rotation, selected)
    point = Point(w, spectrum, wu, metric, slope, objective, residual)
    return _State(point, matrices[7:], radius, stalled)


def _pack_reduction(reduction):
    return tf.stack([reduction.root, reduction.unused]), tf.stack([reduction.c, reduction.t])


def _unpack_reduction(matrices, vector):
    root, unused = tf.unstack(matrices)
    c, t = tf.unstack(vector)
    return Reduction(root=root, pinv=None, unused=unused, turn=None, c=c, t=t)


def _propose(correlation, reduction, state, inverses):
    """A step of Steihaug's method: the stack [W, S] at its end; its promise and its length."""
    reduction, state = _unpack_reduction(*reduction), _unpack(*state)
    point = state.point
    hessian = hessian_at(correlation, reduction, point, inverses)
    forcing = tf.minimum(tf.sqrt(point.residual), 0.1)
    found = _conjugate_gradient(correlation, hessian, -point.slope, forcing, state.radius)
    v = _retract(correlation, hessian, found.solution)
    w = point.w + tf.matmul(v, point.spectrum.inverse)
    w -= tf.matmul(w, reduction.unused)
    predicted = found.reduction[0, 0] / reduction.t
    return tf.stack([w, _covariance(reduction, w)]), tf.stack([predicted, found.norm[0, 0]])


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
def _compiled(function, correlation, jit):
    return tf.function(functools.partial(function, correlation), jit_compile=jit, autograph=False)


def _compile(function, correlation, jit):
    """`function` of `correlation`, compiled by XLA where asked and where it is all products."""
    if correlation.objective == "gcca" and function not in (_propose, _hessian_solve):
        jit = False  # `metrics_at` has an eigh
    return _compiled(function, correlation, jit)


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
        trial = propose(data, state, tf.linalg.inv(matrices[7:]))
        return iteration + 1, *accept(data, state, trial, factors_of(trial[0][1]))

    first = start(data, factors_of(_covariance(reduction, reduction.root)))
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
        slope = tf.matmul(point.slope, point.spectrum.vectors, transpose_b=True)
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
    return solve(reduction, point, tf.linalg.inv(metrics), rhs, tf.cast(tolerance, rhs.dtype))


def _hessian_solve(correlation, reduction, point, inverses, rhs, tolerance):
    inverse = point.spectrum.inverse
    hessian = hessian_at(correlation, reduction, point, inverses)
    mapped = tf.matmul(rhs, inverse, transpose_b=True)
    found = _conjugate_gradient(correlation, hessian, mapped, tolerance)
    u = tf.matmul(found.solution, inverse)
    return u + tf.matmul(rhs - u, reduction.unused)  # H is the identity outside the row spaces


def shrinkage(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1, `[D, D]`, symmetric."""
    vectors = point.spectrum.vectors
    slope = tf.matmul(vectors, _gamma(correlation, reduction, point.spectrum))
    slope = tf.matmul(slope, vectors, transpose_b=True)
    return tf.linalg.inv(tf.eye(correlation.width, dtype=slope.dtype) + slope)
