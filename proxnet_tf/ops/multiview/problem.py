"""The multiview proximal map as a problem of D x D matrices: objective, gradient, Hessian.

For views side by side, X (n x D), with C = Xc^T Xc = R^T R, c = 1/(n-1) and t = n/lam, the map

    P = argmin_P  lam/(2n) ||P - X||_F^2 + L(S),   S = c Pc^T Pc                              (1)

is linear in the centred inputs: Pc = Xc R^+ W, where W (D x D) solves, whatever n is,

    F(W) = W - R + t W Gam = 0,   Gam = 2 c dL/dS at S = c W^T W                              (4)

by descent from W = R, each view staying in its own row space. Its Hessian (times t) is

    H V = V (I + t Gam) + t W dGam[c (V^T W + W^T V)].

Gradient and Hessian are kept in the basis T of `spectral`, on V' = V T: there I + t Gam becomes
M = T^-1 T^-T + t Gam', and dGam acts entry by entry between eigenvectors.

References: Li, Ma, Zhang (2020), equation (8) and the appendix on multiview learning. The
reduction to D x D and the preconditioner go beyond the paper.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview import correlation as spectral
from proxnet_tf.ops.multiview.correlation import Correlation, Spectrum

# Eigenvalues of a Gram matrix below this fraction of the largest are rounding.
RANK_TOLERANCE = 1e-10
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
        wt: W T.
        metric: M = T^-1 (I + t Gam) T^-T, made stiff outside the row spaces.
        slope: F(W) T^-T.
        objective: ||W - R||^2 / (2 t) + L, scalar; NaN where (2) could not be solved.
        residual: ||F(W)||_F / ||R||_F, scalar.
    """

    w: tf.Tensor
    spectrum: Spectrum
    wt: tf.Tensor
    metric: tf.Tensor
    slope: tf.Tensor
    objective: tf.Tensor
    residual: tf.Tensor


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
        t=tf.maximum(count, 1.0) / lam,
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


def covariance_of(reduction: Reduction, w: tf.Tensor) -> tf.Tensor:
    """S = c W^T W."""
    return reduction.c * tf.matmul(w, w, transpose_a=True)


def point_at(
    correlation: Correlation, reduction: Reduction, w: tf.Tensor, factors: spectral.Factors
) -> Point:
    """Objective, gradient and spectrum of (4) at W, from the factors of its covariance."""
    spectrum = spectral.assemble(correlation, factors)
    gamma = gamma_of(correlation, reduction, spectrum)
    moved = w - reduction.root
    wt = tf.matmul(w, spectrum.basis)
    # (4): F T^-T = (W - R) T^-T + t W T Gam', for T^-1 Gam T^-T = Gam'.
    if correlation.objective == "cca":
        pull = wt * tf.linalg.diag_part(gamma)
    else:
        pull = tf.matmul(wt, gamma)
    residual = tf.norm(moved + tf.matmul(pull, spectrum.basis, transpose_b=True))
    objective = tf.reduce_sum(moved**2) / (2.0 * reduction.t)
    # Outside the row spaces, where L may be concave, H is made stiff: rounding cannot leave them.
    stiff = tf.eye(correlation.width, dtype=w.dtype)
    stiff += OUTSIDE * (1.0 + reduction.c * reduction.t) * reduction.unused
    return Point(
        w=w,
        spectrum=spectrum,
        wt=wt,
        metric=tf.matmul(tf.matmul(spectrum.inverse, stiff), spectrum.inverse, transpose_b=True)
        + gamma,
        slope=tf.matmul(moved, spectrum.inverse, transpose_b=True) + pull,
        objective=objective + spectral.objective(correlation, spectrum),
        residual=tf.math.divide_no_nan(residual, tf.norm(reduction.root)),
    )


def evaluate(correlation: Correlation, reduction: Reduction, w: tf.Tensor) -> Point:
    """Objective, gradient and spectrum of (4) at W."""
    factors = spectral.factorise(correlation, covariance_of(reduction, w), reduction.unused)
    return point_at(correlation, reduction, w, factors)


def gamma_of(correlation: Correlation, reduction: Reduction, spectrum: Spectrum) -> tf.Tensor:
    """t Gam in the basis T."""
    return 2.0 * reduction.c * reduction.t * spectral.gamma(correlation, spectrum)


def metrics_at(correlation: Correlation, reduction: Reduction, point: Point) -> tf.Tensor:
    """Two symmetric matrices, `[2, D, D]`, behind the preconditioner of H; see `inverses_of`.

    The first is M. L does not change when a view is multiplied by a matrix, P_j -> P_j A_j (but
    for the ridge): along W blockdiag(A) dGam takes back what t Gam' has in M. The second matrix,
    for these directions, is M without t Gam'. For "cca" the negative part of t Gam' is dropped
    from the first.
    """
    gamma = gamma_of(correlation, reduction, point.spectrum)
    if correlation.objective == "gcca":
        return tf.stack([point.metric, point.metric - gamma])
    diagonal = tf.linalg.diag_part(gamma)
    kept = tf.stack([tf.maximum(diagonal, 0.0), tf.zeros_like(diagonal)])
    return point.metric + tf.linalg.diag(kept - diagonal)


def inverses_of(correlation: Correlation, metrics: tf.Tensor) -> tf.Tensor:
    """Inverses of `metrics_at`, the first without the negative part of t Gam', `[2, D, D]`.

    The second metric is the smaller one: what its inverse adds is positive semidefinite.
    """
    if correlation.objective == "gcca":
        first, second = tf.unstack(metrics)
        values, vectors = tf.linalg.eigh(first - second)
        dropped = tf.matmul(vectors * tf.minimum(values, 0.0), vectors, transpose_b=True)
        metrics = tf.stack([first - dropped, second])
    return tf.linalg.inv(metrics)


class Hessian(NamedTuple):
    """H of (4) on V' = V T, with its preconditioner.

    Attributes:
        wt: W T.
        metric: M = T^-1 (I + t Gam) T^-T.
        rotation: Q of the spectrum.
        differences: divided differences of the spectrum.
        c: 1 / (n - 1).
        scale: 2 c t.
        inverse: inverse of the first matrix of `metrics_at`.
        common: per column slice of V', the directions that `correction` acts on. For "cca" one:
            what the views share, W u_i (unit columns, zero beyond k), on all columns. For "gcca"
            one a view: W T of that view (c^(1/2) W_j L_j^-T is orthonormal up to the ridge).
        correction: per slice, what the second inverse adds there.
    """

    wt: tf.Tensor
    metric: tf.Tensor
    rotation: tf.Tensor
    differences: spectral.Differences
    c: tf.Tensor
    scale: tf.Tensor
    inverse: tf.Tensor
    common: list[tf.Tensor]
    correction: list[tf.Tensor]


def hessian_at(
    correlation: Correlation, reduction: Reduction, point: Point, inverses: tf.Tensor
) -> Hessian:
    """The Hessian of (4) at `point`, preconditioned by the inverses of `metrics_at`."""
    spectrum = point.spectrum
    added = inverses[1] - inverses[0]
    if correlation.objective == "cca":
        pairs = min(correlation.sizes)
        leading = point.wt[:, :pairs]
        size = tf.norm(leading, axis=0)
        common = [leading * tf.math.divide_no_nan(spectrum.selected[:pairs], size)]
        correction = [added]
    else:
        sizes = correlation.sizes
        common = tf.split(tf.sqrt(reduction.c) * point.wt, sizes, axis=1)
        rows = tf.split(added, sizes, axis=0)
        correction = [tf.split(row, sizes, axis=1)[j] for j, row in enumerate(rows)]
    return Hessian(
        wt=point.wt,
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
    """(H V) T^-T for `v` = V T."""
    change = hessian.c * tf.matmul(hessian.wt, v, transpose_a=True)
    dgamma = spectral.gamma_differential(
        correlation, hessian.rotation, hessian.differences, change + tf.transpose(change)
    )
    return tf.matmul(v, hessian.metric) + hessian.scale * tf.matmul(hessian.wt, dgamma)


def precondition(hessian: Hessian, r: tf.Tensor) -> tf.Tensor:
    """Approximately H^-1 R, from R T^-T to V T: symmetric and positive definite."""
    columns = tf.split(r, [c.shape[1] for c in hessian.correction], axis=1)
    parts = [
        tf.matmul(common, tf.matmul(tf.matmul(common, part, transpose_a=True), correction))
        for common, part, correction in zip(
            hessian.common, columns, hessian.correction, strict=True
        )
    ]
    return tf.matmul(r, hessian.inverse) + tf.concat(parts, 1)
