"""The multiview proximal map as a problem of D x D matrices: objective, gradient, Hessian.

For views side by side, X (n x D), with C = Xc^T Xc = R^T R, c = 1/(n-1) and t = n/lam, the map

    P = argmin_P  lam/(2n) ||P - X||_F^2 + L(S),   S = c Pc^T Pc                              (1)

is linear in the centred inputs: Pc = Xc R^+ W, where W (D x D) solves, whatever n is,

    F(W) = W - R + t W Gam = 0,   Gam = 2 c dL/dS at S = c W^T W                              (4)

by descent from W = R, each view staying in its own row space. Its Hessian (times t) is

    H V = V (I + t Gam) + t W dGam[c (V^T W + W^T V)].

Gradient and Hessian are kept in the basis T of `correlation`, on V' = V T: there I + t Gam becomes
M = T^-1 T^-T + t Gam', and dGam acts entry by entry between eigenvectors: see `hessian_cca` and
`hessian_gcca`.

References: Li, Ma, Zhang (2020), equation (8) and the appendix on multiview learning. The
reduction to D x D and the preconditioner go beyond the paper.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.number import guarded, nan_unless
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.spectrum import Factors, Spectrum

OUTSIDE = 1e4


class Problem(NamedTuple):
    """The data of (4).

    Attributes:
        root: R, `[D, D]`, R^T R = C.
        unused: I - Pi, block-diagonal projection onto what lies outside the views' row spaces.
        epsilon: eps, scalar.
        c: 1 / (n - 1), scalar.
        t: n / lam, scalar.
    """

    root: tf.Tensor
    unused: tf.Tensor
    epsilon: tf.Tensor
    c: tf.Tensor
    t: tf.Tensor


class Reduction(NamedTuple):
    """The data of (4), and the matrices that connect them with the rows.

    Attributes:
        problem: the data of (4).
        lift: R^+, `[D, D]`.
        turn: block-diagonal, the pseudoinverses C_jj^+; zero where C has full rank.
    """

    problem: Problem
    lift: tf.Tensor
    turn: tf.Tensor


class Point(NamedTuple):
    """An iterate W of (4) with the values there.

    Attributes:
        w: W, `[D, D]`.
        spectrum: of (2) at S = c W^T W.
        wt: W T.
        pull: t Gam' = T^-1 t Gam T^-T.
        slope: F(W) T^-T.
        objective: ||W - R||^2 / (2 t) + L, scalar; NaN where (2) could not be solved.
        residual: ||F(W)||_F / ||R||_F, scalar.
    """

    w: tf.Tensor
    spectrum: Spectrum
    wt: tf.Tensor
    pull: tf.Tensor
    slope: tf.Tensor
    objective: tf.Tensor
    residual: tf.Tensor


def reduce_gram(
    correlation: Correlation,
    gram: tf.Tensor,
    count: tf.Tensor,
    rounding: tf.Tensor,
    lam: tf.Tensor,
    epsilon: tf.Tensor,
) -> Reduction:
    """R, R^+ and the row spaces of the views, from C = Xc^T Xc.

    Args:
        correlation: sizes of the views.
        gram: C, `[D, D]`, float64, finite.
        count: n, the number of rows behind C, scalar float64.
        rounding: `[D]`, share of each column's variance that is rounding; one for a column that
            is constant.
        lam: scalar float64 > 0.
        epsilon: scalar float64 >= 0.
    """
    unit, size, inverse_size = _equilibrated(gram, rounding)
    values, vectors = tf.linalg.eigh(unit)
    # By interlacing, no block has a smaller eigenvalue than the whole matrix.
    unused, turn = tf.cond(
        values[0] > tf.reduce_max(rounding),
        lambda: (tf.zeros_like(gram), tf.zeros_like(gram)),
        lambda: outside_row_spaces(correlation, gram, rounding),
    )
    # Tiny values are kept where they are larger than rounding: P moves along them too.
    used = values > correlation.width * np.finfo("float64").eps * values[-1]
    root = tf.sqrt(tf.where(used, values, tf.zeros_like(values)))
    lift = inverse_size[:, None] * vectors * tf.math.divide_no_nan(tf.ones_like(root), root)
    root = root[:, None] * tf.transpose(vectors) * size
    problem = Problem(
        root=root - tf.matmul(root, unused),
        unused=unused,
        epsilon=epsilon,
        c=1.0 / tf.maximum(count - 1.0, 1.0),
        t=tf.maximum(count, 1.0) / lam,
    )
    return Reduction(problem, lift, turn)


def _equilibrated(gram: tf.Tensor, rounding: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The Gram matrix of columns scaled to size one, the sizes, and the inverses of the sizes.

    A constant column has the size zero, and in the matrix an eigenvalue -1 of its own.
    """
    alive = rounding < 1.0
    size = tf.sqrt(tf.where(alive, tf.linalg.diag_part(gram), tf.zeros_like(rounding)))
    inverse = tf.math.divide_no_nan(tf.ones_like(size), size)
    unit = gram * inverse[:, None] * inverse
    diagonal = tf.where(alive, tf.ones_like(size), -tf.ones_like(size))
    return tf.linalg.set_diag(unit, diagonal), size, inverse


def has_full_rank(correlation: Correlation, gram: tf.Tensor, rounding: tf.Tensor) -> tf.Tensor:
    """Whether every view has full rank; False in cases of doubt.

    With columns of variance one, the eigenvalues of C_jj are above 2 max(rounding) if C_jj minus
    that share of its diagonal is positive definite: if it has a Cholesky factor.
    """
    share = 2.0 * tf.reduce_max(rounding)
    reduced = tf.linalg.set_diag(gram, (1.0 - share) * tf.linalg.diag_part(gram))
    sums = [tf.reduce_sum(tf.linalg.cholesky(reduced[s, s])) for s in correlation.slices]
    return tf.math.is_finite(tf.add_n(sums))


def outside_row_spaces(
    correlation: Correlation, gram: tf.Tensor, rounding: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """I - Pi, the projection onto what lies outside the row space of each view, and C_jj^+.

    Each column is first scaled to variance one, so that its units play no part. A direction v
    counts as outside where its variance is at most sum_j v_j^2 rounding_j.

    Args:
        correlation: sizes of the views.
        gram: C, `[D, D]`, float64, finite.
        rounding: `[D]`, as in `reduce_gram`.

    Returns:
        Two block-diagonal matrices `[D, D]`.
    """
    unit, _, inverse_size = _equilibrated(gram, rounding)
    outside: list[tf.Tensor] = []
    inverse: list[tf.Tensor] = []
    for s in correlation.slices:
        values, vectors = tf.linalg.eigh(unit[s, s])
        null = values <= tf.linalg.matvec(vectors**2, rounding[s], transpose_a=True)
        # An orthonormal basis, in the units of the columns, of the directions without variance.
        # The eigenvalue -1 belongs to constant columns, which are added on their own.
        mixed = null & (values > -0.5)
        order = tf.argsort(tf.cast(~mixed, tf.int32), stable=True)
        basis = inverse_size[s][:, None] * tf.gather(vectors, order, axis=1)
        basis = tf.math.divide_no_nan(basis, tf.norm(basis, axis=0))
        chosen = tf.gather(tf.cast(mixed, values.dtype), order)
        basis = tf.linalg.qr(basis * chosen).q * chosen
        constant = tf.cast(inverse_size[s] == 0.0, values.dtype)
        unused = tf.matmul(basis, basis, transpose_b=True) + tf.linalg.diag(constant)
        scale = tf.math.divide_no_nan(tf.cast(~null, values.dtype), values)
        scaled = inverse_size[s][:, None] * vectors
        within = tf.eye(unused.shape[0], dtype=unused.dtype) - unused
        pseudo = tf.matmul(scaled * scale, scaled, transpose_b=True)
        room = [[s.start, correlation.width - s.stop]] * 2
        outside.append(tf.pad(unused, room))
        inverse.append(tf.pad(tf.matmul(within, tf.matmul(pseudo, within)), room))
    return tf.add_n(outside), tf.add_n(inverse)


def covariance_of(problem: Problem, w: tf.Tensor) -> tf.Tensor:
    """S = c W^T W."""
    return problem.c * tf.matmul(w, w, transpose_a=True)


def factors_at(correlation: Correlation, problem: Problem, covariance: tf.Tensor) -> Factors:
    """The decompositions behind the spectrum of (2) at S."""
    return correlation.factorise(covariance, problem.epsilon, problem.unused)


def point_at(correlation: Correlation, problem: Problem, w: tf.Tensor, factors: Factors) -> Point:
    """Objective, gradient and spectrum of (4) at W, from the factors of its covariance."""
    spectrum = correlation.assemble(factors)
    moved = w - problem.root
    wt = correlation.by_view(w, spectrum.basis)
    pull = 2.0 * problem.c * problem.t * correlation.slope(spectrum)
    # (4): F T^-T = (W - R) T^-T + t W T Gam', for T^-1 Gam T^-T = Gam'.
    pulled = correlation.times_slope(wt, pull)
    residual = tf.norm(moved + correlation.by_view(pulled, tf.transpose(spectrum.basis)))
    objective = tf.reduce_sum(moved**2) / (2.0 * problem.t)
    transposed = tf.transpose(spectrum.inverse)
    return Point(
        w=w,
        spectrum=spectrum,
        wt=wt,
        pull=pull,
        slope=correlation.by_view(moved, transposed) + pulled,
        objective=objective + correlation.value(spectrum),
        residual=tf.math.divide_no_nan(residual, tf.norm(problem.root)),
    )


def bare_metric(correlation: Correlation, problem: Problem, spectrum: Spectrum) -> tf.Tensor:
    """T^-1 T^-T, `[D, D]`, block-diagonal, with the middle factor `stiff` instead of I."""
    inverse = spectrum.inverse
    stiffened = correlation.by_view(inverse, stiff(problem))
    return correlation.by_view(stiffened, tf.transpose(inverse))


def stiff(problem: Problem) -> tf.Tensor:
    """I, but much larger outside the row spaces (L may be concave), lest rounding leave them."""
    eye = tf.eye(problem.root.shape[-1], dtype=problem.root.dtype)
    return eye + _stiffness(problem) * problem.unused


def stiff_inverse(problem: Problem) -> tf.Tensor:
    """The inverse of `stiff` (the unused directions are a projection)."""
    eye = tf.eye(problem.root.shape[-1], dtype=problem.root.dtype)
    stiffness = _stiffness(problem)
    return eye - stiffness / (1.0 + stiffness) * problem.unused


def positive_inverse(x: tf.Tensor) -> tf.Tensor:
    """The inverse of a symmetric positive definite matrix, or of a batch; NaN where it is not.

    `tf.linalg.inv` ends the program where a matrix is singular up to rounding.
    """
    eye = tf.eye(x.shape[-1], batch_shape=x.shape[:-2], dtype=x.dtype)
    return tf.linalg.cholesky_solve(tf.linalg.cholesky(x), eye)


def within(problem: Problem, x: tf.Tensor) -> tf.Tensor:
    """x projected to the row spaces of the views, on both sides."""
    x -= tf.matmul(problem.unused, x)
    return x - tf.matmul(x, problem.unused)


def shrinkage_step(correlation: Correlation, problem: Problem, point: Point) -> tf.Tensor:
    """(I + t Gam)^-1 - I, projected to the row spaces of the views, `[D, D]`, symmetric."""
    basis = point.spectrum.basis
    eye = tf.eye(correlation.width, dtype=basis.dtype)
    slope = tf.matmul(correlation.times_slope(basis, point.pull), basis, transpose_b=True)
    finite, slope = guarded(slope)
    return nan_unless(finite, within(problem, tf.linalg.inv(eye + slope) - eye))


def map_step(reduction: Reduction, point: Point, shrinkage: tf.Tensor) -> tf.Tensor:
    """M - I of the map: R^+ (W - R) on the span of the rows; elsewhere the `shrinkage` step, to
    which M - I is equal at a solution."""
    problem, lift = reduction.problem, reduction.lift
    beside = shrinkage - tf.matmul(lift, tf.matmul(problem.root, shrinkage))
    return within(problem, tf.matmul(lift, point.w - problem.root) + beside)


def _stiffness(problem: Problem) -> tf.Tensor:
    return OUTSIDE * (1.0 + problem.c * problem.t)


def evaluate(correlation: Correlation, problem: Problem, w: tf.Tensor) -> Point:
    """Objective, gradient and spectrum of (4) at W."""
    factors = factors_at(correlation, problem, covariance_of(problem, w))
    return point_at(correlation, problem, w, factors)


def cast_floats(structure: Any, dtype: tf.DType) -> Any:
    """A structure with its tensors of floating-point numbers in `dtype`."""
    return tf.nest.map_structure(
        lambda a: tf.cast(a, dtype) if tf.is_tensor(a) and a.dtype.is_floating else a, structure
    )
