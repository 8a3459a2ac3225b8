"""The Hessian of (4) for CCA, in coordinates where one product of matrices is left of it.

On the right, V' = V U with the canonical pairs U = T Q (see `correlation`). On the left, an
orthonormal basis O of the row space of W, and a triangular N:

    W U = O N,     N = diag(r) + what the ridge adds,     r_i^2 ~ (1 + mu_i)/c,

since U^T S U = I + diag(mu) - eps U^T U. For the coordinates v of V' = O v the Hessian is

    H v = v M + 2 c t N dGam'[c (N^T v + v^T N)],    M = U^-1 (I + t Gam) U^-T,

where dGam' acts entry by entry. Where the ridge is small beside the variances, diag(r) may stand
for N in a step of Newton's method, which corrects itself.

The preconditioner is the inverse of M, with two changes. L does not change when a view is
multiplied by a matrix, P_j -> P_j A_j (but for the ridge), which is what the first k rows of v do:
there the term in dGam' cancels t Gam', and the inverse is that of U^-1 U^-T. In the other rows the
negative part of t Gam' is dropped.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, Differences, divided_differences
from proxnet_tf.ops.multiview.problem import (
    Point,
    Problem,
    positive_inverse,
    stiff_inverse,
)

# The ridge is small where what it adds to N is below this share of c^(-1/2).
SMALL_RIDGE = 1e-3


class Ingredients(NamedTuple):
    """What is to be decomposed at a point.

    Attributes:
        wu: W U, `[D, D]`.
        bare_inverse: inverse of T^-1 T^-T, `[D, D]`, block-diagonal.
        middle: `[m, m]`, I + s Z^T T^T T Z s, with the eigenvectors Z = (e_i, -e_i) / sqrt 2 of
            the positive eigenvalues s^2 of t Gam'.
    """

    wu: tf.Tensor
    bare_inverse: tf.Tensor
    middle: tf.Tensor


class Decomposed(NamedTuple):
    """The decompositions.

    Attributes:
        left: O, `[D, D]`.
        triangle: N, `[D, D]`.
        bare_inverse: as it was.
        middle: inverse of the middle matrix.
    """

    left: tf.Tensor
    triangle: tf.Tensor
    bare_inverse: tf.Tensor
    middle: tf.Tensor


class Hessian(NamedTuple):
    """H on the coordinates v, with its preconditioner.

    Attributes:
        left: O.
        radii: r.
        triangle: N.
        exact: whether the ridge takes part in products.
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
    exact: tf.Tensor
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
    s = _root_of_pull(correlation, point)
    opposite = 0.5 * (inverse[:m, :m] + inverse[d1 : d1 + m, d1 : d1 + m])
    middle = tf.eye(m, dtype=s.dtype) + s[:, None] * opposite * s
    return Ingredients(correlation.paired(point.wt), inverse, middle)


def _root_of_pull(correlation: CCA, point: Point) -> tf.Tensor:
    """s, `[m]`: the positive eigenvalues s^2 of t Gam', whose vectors are (e_i, -e_i) / sqrt 2."""
    d1, m = correlation.sizes[0], correlation.pairs
    within = tf.linalg.diag_part(point.pull)[:m]
    between = tf.linalg.diag_part(point.pull[:m, d1 : d1 + m])
    return tf.sqrt(tf.maximum(within - between, 0.0))


def decompose(correlation: CCA, ingredients: Ingredients, wide: bool) -> Decomposed:
    """The decompositions, outside XLA; `wide` asks for O and N in float32."""
    wu = tf.cast(ingredients.wu, tf.float32) if wide else ingredients.wu
    left, triangle = (tf.cast(x, ingredients.wu.dtype) for x in tf.linalg.qr(wu))
    middle = positive_inverse(ingredients.middle)
    return Decomposed(left, triangle, ingredients.bare_inverse, middle)


def hessian_at(correlation: CCA, problem: Problem, point: Point, decomposed: Decomposed) -> Hessian:
    """The Hessian at a point."""
    d1, m = correlation.sizes[0], correlation.pairs
    bare_inverse = decomposed.bare_inverse
    columns = [bare_inverse[:, :m], -bare_inverse[:, d1 : d1 + m]]
    half = (columns[0] + columns[1]) * (np.sqrt(0.5) * _root_of_pull(correlation, point))
    inverse = bare_inverse - tf.matmul(half, tf.matmul(decomposed.middle, half, transpose_b=True))
    radii = tf.linalg.diag_part(decomposed.triangle)

    def between_pairs(x: tf.Tensor) -> tf.Tensor:
        return correlation.paired(tf.transpose(correlation.paired(x)))

    ridge = decomposed.triangle - tf.linalg.diag(radii)
    return Hessian(
        left=decomposed.left,
        radii=radii,
        triangle=decomposed.triangle,
        exact=tf.sqrt(problem.c) * tf.norm(ridge) > SMALL_RIDGE,
        metric=between_pairs(point.bare + point.pull),
        differences=divided_differences(point.spectrum),
        values=point.spectrum.values,
        selected=point.spectrum.selected,
        c=problem.c,
        scale=2.0 * problem.c * problem.t,
        shared_inverse=between_pairs(bare_inverse),
        inverse=between_pairs(inverse),
    )


def enter(correlation: CCA, hessian: Hessian, slope: tf.Tensor) -> tf.Tensor:
    """The coordinates of a gradient F T^-T."""
    return correlation.paired(tf.matmul(hessian.left, slope, transpose_a=True))


def leave(correlation: CCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """V T of coordinates v."""
    return correlation.unpaired(tf.matmul(hessian.left, v))


def product(
    correlation: CCA, hessian: Hessian, v: tf.Tensor, exact: bool | None = True
) -> tf.Tensor:
    """H v; with `exact` None the ridge takes part only where it matters."""

    def triangle_times(x: tf.Tensor, transpose: bool) -> tf.Tensor:
        def full() -> tf.Tensor:
            return tf.matmul(hessian.triangle, x, transpose_a=transpose)

        if exact:
            return full()
        return tf.cond(hessian.exact, full, lambda: hessian.radii[:, None] * x)

    change = hessian.c * triangle_times(v, True)
    dgamma = correlation.paired_differential(hessian.differences, change + tf.transpose(change))
    return tf.matmul(v, hessian.metric) + hessian.scale * triangle_times(dgamma, False)


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
