"""The Hessian of (4) for GCCA, on V' = V T with the Cholesky basis T of `correlation`.

    H V' = V' M + 2 c t W T dGam'[c (T^T W^T V' + V'^T W T)],    M = T^-1 T^-T + t Gam'.

The preconditioner is the inverse of M without the negative part of t Gam'. L does not change when
a view is multiplied by a matrix, P_j -> P_j A_j (but for the ridge): along c^(1/2) W_j L_j^-T,
orthonormal up to the ridge, the term in dGam' cancels t Gam', and the inverse of T^-1 T^-T acts.
T^-1 T^-T is the smaller matrix, so its inverse adds a positive semidefinite part.
"""

from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import GCCA
from proxnet_tf.ops.multiview.problem import (
    Point,
    Problem,
    bare_metric,
    cast_floats,
    positive_inverse,
)
from proxnet_tf.ops.multiview.spectrum import Differences, divided_differences


class Ingredients(NamedTuple):
    """The matrices to be decomposed at a point.

    Attributes:
        bare: T^-1 T^-T, `[D, D]`.
        pull: t Gam', `[D, D]`.
    """

    bare: tf.Tensor
    pull: tf.Tensor


class Decomposed(NamedTuple):
    """The metric without t Gam', and two inverses, each symmetric, `[D, D]`.

    Attributes:
        bare: T^-1 T^-T.
        inverse: of M with the positive part of t Gam' only.
        bare_inverse: of M without t Gam'.
    """

    bare: tf.Tensor
    inverse: tf.Tensor
    bare_inverse: tf.Tensor


class Hessian(NamedTuple):
    """H on V', with its preconditioner.

    Attributes:
        wt: W T.
        metric: M.
        rotation: Q of the spectrum.
        differences: divided differences of the spectrum.
        c: 1 / (n - 1).
        scale: 2 c t.
        inverse: of the first metric.
        added: per view, what the second inverse adds to it.
    """

    wt: tf.Tensor
    metric: tf.Tensor
    rotation: tf.Tensor
    differences: Differences
    c: tf.Tensor
    scale: tf.Tensor
    inverse: tf.Tensor
    added: list[tf.Tensor]


def ingredients_at(correlation: GCCA, problem: Problem, point: Point) -> Ingredients:
    """What `decompose` needs."""
    return Ingredients(bare_metric(correlation, problem, point.spectrum), point.pull)


def decompose(correlation: GCCA, ingredients: Ingredients, wide: bool) -> Decomposed:
    """The decompositions, outside XLA; in float32 if `wide`."""
    bare, pull = ingredients
    values, vectors = tf.linalg.eigh(pull)
    positive = tf.matmul(vectors * tf.maximum(values, 0.0), vectors, transpose_b=True)
    inverses = tf.unstack(positive_inverse(tf.stack([bare + positive, bare])))
    return cast_floats(Decomposed(bare, *inverses), tf.float32 if wide else bare.dtype)


def hessian_at(
    correlation: GCCA, problem: Problem, point: Point, decomposed: Decomposed
) -> Hessian:
    """The Hessian at a point, in the dtype of `decomposed`."""
    seen = problem, point, divided_differences(point.spectrum)
    problem, point, differences = cast_floats(seen, decomposed.bare.dtype)
    added = decomposed.bare_inverse - decomposed.inverse
    return Hessian(
        wt=point.wt,
        metric=decomposed.bare + point.pull,
        rotation=point.spectrum.rotation,
        differences=differences,
        c=problem.c,
        scale=2.0 * problem.c * problem.t,
        inverse=decomposed.inverse,
        added=[added[s, s] for s in correlation.slices],
    )


def enter(correlation: GCCA, hessian: Hessian, slope: tf.Tensor) -> tf.Tensor:
    """The coordinates of a gradient F T^-T: itself."""
    return tf.cast(slope, hessian.wt.dtype)


def leave(correlation: GCCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """V' of its coordinates: itself."""
    return v


def product(correlation: GCCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """H v."""
    change = hessian.c * tf.matmul(hessian.wt, v, transpose_a=True)
    dgamma = correlation.differential(
        hessian.rotation, hessian.differences, change + tf.transpose(change)
    )
    return tf.matmul(v, hessian.metric) + hessian.scale * tf.matmul(hessian.wt, dgamma)


def precondition(correlation: GCCA, hessian: Hessian, r: tf.Tensor) -> tf.Tensor:
    """Approximately H^-1 r: symmetric and positive definite."""
    rows = tf.sqrt(hessian.c) * hessian.wt
    parts = []
    for s, added in zip(correlation.slices, hessian.added, strict=True):
        along = tf.matmul(rows[:, s], r[:, s], transpose_a=True)
        parts.append(tf.matmul(rows[:, s], tf.matmul(along, added)))
    return tf.matmul(r, hessian.inverse) + tf.concat(parts, 1)


def retract(correlation: GCCA, hessian: Hessian, v: tf.Tensor) -> tf.Tensor:
    """v with a second-order term that follows the curved valley of small ||F||.

    The part of the step that multiplies a view by a matrix, W_j A_j, and the rest V_j combine as
    (W_j + V_j)(I + A_j), which adds V_j A_j.
    """
    root = tf.sqrt(hessian.c)
    parts = []
    for s in correlation.slices:
        rows, part = root * hessian.wt[:, s], v[:, s]
        inner = tf.matmul(rows, part, transpose_a=True)
        parts.append(part + root * tf.matmul(part - tf.matmul(rows, inner), inner))
    return tf.concat(parts, 1)
