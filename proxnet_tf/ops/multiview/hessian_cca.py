"""The Hessian of (4) for CCA, in coordinates where it takes one product of matrices.

On the right, V' = V U with the canonical pairs U = T Q (see `correlation`). On the left, an
orthonormal basis O of the row space of W, and a triangular N:

    W U = O N,     N = diag(r) + what the ridge adds,     r_i^2 ~ (1 + mu_i)/c,

since U^T S U = I + diag(mu) - eps U^T U. For the coordinates v of V' = O v the Hessian is

    H v = v M + 2 c t N dGam'[c (N^T v + v^T N)],    M = U^-1 (I + t Gam) U^-T,

where dGam' acts entry by entry.

The preconditioner is the inverse of M, with two changes. But for the ridge L does not change
when a view is multiplied by a matrix, P_j -> P_j A_j. The first k rows of v do just that: there
the term in dGam' cancels t Gam', and the inverse is that of U^-1 U^-T. In the other rows the
negative part of t Gam' is dropped.
"""

from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA
from proxnet_tf.ops.multiview.problem import Point, Problem, bare_metric, cast_floats, stiff_inverse
from proxnet_tf.ops.multiview.spectrum import Differences, divided_differences


class Ingredients(NamedTuple):
    """The matrices to be decomposed at a point.

    Attributes:
        wu: W U, `[D, D]`.
        bare_inverse: inverse of T^-1 T^-T, `[D, D]`, block-diagonal.
        half: `[D, m]`, that inverse times Z s, with the eigenvectors Z = (e_i, -e_i) / sqrt 2 of
            the positive eigenvalues s^2 of t Gam'.
        middle: `[m, m]`, I + s Z^T half.
    """

    wu: tf.Tensor
    bare_inverse: tf.Tensor
    half: tf.Tensor
    middle: tf.Tensor


class Decomposed(NamedTuple):
    """The decompositions.

    Attributes:
        left: O, `[D, D]`.
        triangle: N, `[D, D]`.
        bare_inverse: as it was.
        inverse: of T^-1 T^-T with the positive part of t Gam'.
    """

    left: tf.Tensor
    triangle: tf.Tensor
    bare_inverse: tf.Tensor
    inverse: tf.Tensor


class Hessian(NamedTuple):
    """H on the coordinates v, with its preconditioner.

    Attributes:
        left: O.
        radii: r.
        triangle: N.
        metric: M.
        differences: divided differences of the spectrum.
        values: mu.
        selected: f.
        c: 1 / (n - 1).
        scale: 2 c t.
        shared_inverse: preconditioner of the first k rows.
        inverse: of the other rows.
    """

    left: tf.Tensor
    radii: tf.Tensor
    triangle: tf.Tensor
    metric: tf.Tensor
    differences: Differences
    values: tf.Tensor
    selected: tf.Tensor
    c: tf.Tensor
    scale: tf.Tensor
    shared_inverse: tf.Tensor
    inverse: tf.Tensor


def ingredients_at(correlation: CCA, problem: Problem, point: Point) -> Ingredients:
    """What `decompose` needs."""
    basis = point.spectrum.basis
    inverse = correlation.by_view(
        tf.transpose(basis), correlation.by_view(stiff_inverse(problem), basis)
    )
    d1, m = correlation.sizes[0], correlation.pairs
    s = tf.sqrt(0.5 * _pull_of_pairs(correlation, point)[: -m - 1 : -1])
    half = (inverse[:, :m] - inverse[:, d1 : d1 + m]) * s
    middle = s[:, None] * (half[:m] - half[d1 : d1 + m])
    middle += tf.eye(m, dtype=s.dtype)
    return Ingredients(correlation.paired(point.wt), inverse, half, middle)


def _pull_of_pairs(correlation: CCA, point: Point) -> tf.Tensor:
    """`[D]`, the diagonal of t Gam' between pairs, where it has no other entries.

    It is <= 0 for (e_i, e_i) / sqrt 2, zero for columns without partner, >= 0 for
    (e_i, -e_i) / sqrt 2.
    """
    d1, m = correlation.sizes[0], correlation.pairs
    within = tf.linalg.diag_part(point.pull)[:m]
    between = tf.linalg.diag_part(point.pull[:m, d1 : d1 + m])
    alone = tf.zeros([correlation.width - 2 * m], within.dtype)
    below = tf.minimum(within + between, 0.0)
    return tf.concat([below, alone, tf.maximum(within - between, 0.0)[::-1]], 0)


def decompose(correlation: CCA, ingredients: Ingredients, wide: bool) -> Decomposed:
    """The decompositions, outside XLA; in float32 if `wide`."""
    wu, bare_inverse, half, middle = ingredients
    dtype = tf.float32 if wide else wu.dtype
    left, triangle = tf.linalg.qr(tf.cast(wu, dtype))
    # (T^-1 T^-T + Z s^2 Z^T)^-1
    root = tf.linalg.triangular_solve(tf.linalg.cholesky(middle), tf.transpose(half))
    inverse = bare_inverse - tf.matmul(root, root, transpose_a=True)
    return cast_floats(Decomposed(left, triangle, bare_inverse, inverse), dtype)


def hessian_at(correlation: CCA, problem: Problem, point: Point, decomposed: Decomposed) -> Hessian:
    """The Hessian at a point, in the dtype of `decomposed`."""
    left, triangle, bare_inverse, inverse = decomposed
    seen = problem, point, divided_differences(point.spectrum)
    problem, point, differences = cast_floats(seen, left.dtype)

    def between_pairs(x: tf.Tensor) -> tf.Tensor:
        return correlation.paired(tf.transpose(correlation.paired(x)))

    metric = between_pairs(bare_metric(correlation, problem, point.spectrum))
    metric += tf.linalg.diag(_pull_of_pairs(correlation, point))
    return Hessian(
        left=left,
        radii=tf.linalg.diag_part(triangle),
        triangle=triangle,
        metric=metric,
        differences=differences,
        values=point.spectrum.values,
        selected=point.spectrum.selected,
        c=problem.c,
        scale=2.0 * problem.c * problem.t,
        shared_inverse=between_pairs(bare_inverse),
        inverse=between_pairs(inverse),
    )


def enter(correlation: CCA, hessian: Hessian, slope: tf.Tensor) -> tf.Tensor:
    """The coordinates of a gradient F T^-T."""
    slope = tf.cast(slope, hessian.left.dtype)
    return correlation.paired(tf.matmul(hessian.left, slope, transpose_a=True))


def leave(correlation: CCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """V T of coordinates v."""
    return correlation.unpaired(tf.matmul(hessian.left, v))


def product(correlation: CCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """H v."""
    change = hessian.c * tf.matmul(hessian.triangle, v, transpose_a=True)
    dgamma = correlation.paired_differential(hessian.differences, change + tf.transpose(change))
    return tf.matmul(v, hessian.metric) + hessian.scale * tf.matmul(hessian.triangle, dgamma)


def precondition(correlation: CCA, hessian: Hessian, r: tf.Tensor) -> tf.Tensor:
    """Approximately H^-1 r: symmetric and positive definite."""
    k = correlation.num_components
    shared = tf.matmul(r[:k], hessian.shared_inverse)
    return tf.concat([shared, tf.matmul(r[k:], hessian.inverse)], 0)


def retract(correlation: CCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """v with a second-order term that follows the curved valley of small ||F||.

    As the correlations approach one the W v_j, v_j = (a_j, -b_j), vanish, and what the step adds to
    them along the W u_i, u_i = (a_i, b_i), must follow the step of the W u_i. This holds near one
    only. The factor sigma_j^4 makes the term small where a correlation is far from one.
    """
    m = correlation.pairs
    shift = v[m:, :m] * tf.math.divide_no_nan(hessian.selected[:m], hessian.radii[:m])
    shift = tf.matmul(shift, v[:m, -m:]) * hessian.values[-m:] ** 4
    return v + tf.pad(shift, [[m, 0], [correlation.width - m, 0]])
