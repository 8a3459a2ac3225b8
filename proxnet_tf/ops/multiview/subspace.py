"""A second start for (4), from better column spaces of two views.

Without ridge the correlation of P = (P_1, P_2) depends on their column spaces alone. Let V_j
(D x d_j) be an orthonormal basis of the space of P_j, in the coordinates of R = (R_1, R_2). The
best P_j with that space is V_j V_j^T R_j, and (1) becomes, up to a constant and with E the first
k columns of the identity,

    min -f(V),   f(V) = sum_j <V_j, A_j V_j> / 2 + <V_1 E, V_2 E>,   A_j = R_j R_j^T / t,     (16)

over V_j^T V_j = I: a quadratic function on two Stiefel manifolds. It needs no singular values, and
columns in small units are as easy as others, since the size of P_j no longer matters. Its gradient
is G_j = A_j V_j + V_i E E^T with the other view i, and its Riemannian Hessian on tangent Z
(V_j^T Z_j skew) is the projection of Z_j L_j - A_j Z_j - Z_i E E^T with L_j = sym(V_j^T G_j).

The ridge makes the minimiser of (16) a start and not the answer: Newton's method on (4) goes on
from there, where it did not arrive from W = R. It may lead to another minimum than W = R does, and
is not taken before. The reduction goes beyond the paper; for the method see Absil, Mahony,
Sepulchre (2008), Optimization algorithms on matrix manifolds, chapter 7.
"""

from typing import NamedTuple

import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.problem import Point, Problem

# Mean share of the ridge in the variance of the canonical directions below which (16) is near (1).
SMALL_RIDGE = 0.1
TOLERANCE = 1e-3
MAX_ITERATIONS = 50
MAX_PRODUCTS = 10
_POLAR_ITERATIONS = 30


class _State(NamedTuple):
    v: tf.Tensor  # V_1 and V_2 side by side, [D, D]
    value: tf.Tensor  # -f(V)
    slope: tf.Tensor  # its Riemannian gradient
    metric: list[tf.Tensor]  # L_1, L_2
    residual: tf.Tensor
    radius: tf.Tensor
    iteration: tf.Tensor


def applies(correlation: Correlation, problem: Problem, point: Point) -> tf.Tensor:
    """Whether (16) is near (1): all views have full rank and the ridge is small at `point`."""
    ridge = problem.epsilon * tf.reduce_sum(point.spectrum.basis**2) / correlation.width
    return tf.reduce_all(problem.unused == 0.0) & (ridge < SMALL_RIDGE)


def bases(correlation: Correlation, point: Point) -> tf.Tensor:
    """V_1 and V_2 side by side at W = R: the canonical variates, made orthonormal."""
    parts = []
    for s in correlation.slices:
        q, r = tf.linalg.qr(point.wt[:, s])
        sign = tf.where(tf.linalg.diag_part(r) < 0.0, -1.0, 1.0)
        parts.append(q * tf.cast(sign, q.dtype))
    return tf.concat(parts, 1)


def descend(correlation: Correlation, root: tf.Tensor, t: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """W at the minimiser of (16) that a trust-region Newton method reaches from V, `[D, D]`.

    Args:
        correlation: sizes of the views and k.
        root: R, `[D, D]`.
        t: n / lam, scalar.
        v: V_1 and V_2 side by side.
    """
    k, slices = correlation.num_components, correlation.slices
    roots = [root[:, s] for s in slices]
    quadratics = [tf.matmul(r, r, transpose_b=True) / t for r in roots]

    def pair(x: tf.Tensor) -> list[tf.Tensor]:
        return [x[:, s] for s in slices]

    def image(parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """A_j Z_j + Z_i E E^T."""
        return [
            tf.matmul(a, z) + tf.pad(other[:, :k], [[0, 0], [0, z.shape[1] - k]])
            for a, z, other in zip(quadratics, parts, parts[::-1], strict=True)
        ]

    def tangent(v: list[tf.Tensor], z: list[tf.Tensor]) -> tf.Tensor:
        """The projection of Z onto the tangent space at V, side by side."""
        along = [tf.matmul(a, b, transpose_a=True) for a, b in zip(v, z, strict=True)]
        normal = [b - tf.matmul(a, _sym(c)) for a, b, c in zip(v, z, along, strict=True)]
        return tf.concat(normal, 1)

    def state(v: tf.Tensor, radius: tf.Tensor, iteration: tf.Tensor) -> _State:
        parts = pair(v)
        gradient = image(parts)
        metric = [
            _sym(tf.matmul(a, g, transpose_a=True)) for a, g in zip(parts, gradient, strict=True)
        ]
        slope = -tangent(parts, gradient)
        value = -0.5 * tf.reduce_sum(v * tf.concat(gradient, 1))
        residual = tf.norm(slope / _sizes(metric)) / correlation.width**0.5
        return _State(v, value, slope, metric, residual, radius, iteration)

    def step(old: _State) -> tuple[_State]:
        v = pair(old.v)

        def product(z: tf.Tensor) -> tf.Tensor:
            parts = pair(z)
            turned = [tf.matmul(a, m) for a, m in zip(parts, old.metric, strict=True)]
            return tangent(v, [a - b for a, b in zip(turned, image(parts), strict=True)])

        size = _sizes(old.metric)
        found = conjugate_gradient(
            product,
            -old.slope,
            preconditioner=lambda r: tangent(v, pair(r / size)),
            tolerance=0.2,
            max_iterations=MAX_PRODUCTS,
            axes=(-2, -1),
            radius=old.radius,
        )
        moved = tf.concat([_polar(x) for x in pair(old.v + found.solution)], 1)
        reduction, length = found.reduction[0, 0], found.norm[0, 0]
        new = state(moved, old.radius, old.iteration + 1)
        ratio = tf.math.divide_no_nan(old.value - new.value, reduction)
        ratio = tf.where(tf.math.is_finite(ratio), ratio, -tf.ones_like(ratio))
        at_edge = length > 0.99 * old.radius
        radius = tf.where((ratio > 0.75) & at_edge, 2.0 * old.radius, old.radius)
        radius = tf.where(ratio < 0.25, 0.5 * length, radius)
        chosen = tf.nest.map_structure(lambda a, b: tf.where(ratio > 1e-4, a, b), new, old)
        return (chosen._replace(radius=radius, iteration=new.iteration),)

    # In the preconditioner's norm a turn of every column by two radians is about this long.
    first = state(v, tf.zeros([], v.dtype), tf.zeros([], tf.int32))
    radius = 2.0 * tf.sqrt(tf.add_n([tf.linalg.trace(m) for m in first.metric]))
    (last,) = tf.while_loop(
        lambda s: (s.residual > TOLERANCE) & (s.iteration < MAX_ITERATIONS),
        step,
        (first._replace(radius=radius),),
    )
    spans = zip(pair(last.v), roots, strict=True)
    return tf.concat([tf.matmul(a, tf.matmul(a, r, transpose_a=True)) for a, r in spans], 1)


def _sizes(metric: list[tf.Tensor]) -> tf.Tensor:
    """Size of G in each column, `[D]`."""
    size = tf.concat([tf.linalg.diag_part(m) for m in metric], 0)
    return tf.maximum(size, 1e-12 * tf.reduce_max(size))


def _sym(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * (x + tf.transpose(x))


def _polar(y: tf.Tensor) -> tf.Tensor:
    """The orthonormal factor of y, whose singular values are at least one: Newton-Schulz."""
    eye = tf.eye(y.shape[1], dtype=y.dtype)

    def rest(y: tf.Tensor) -> tf.Tensor:
        return eye - tf.matmul(y, y, transpose_a=True)

    # Singular values in (0, 1.7) make it converge.
    excess = tf.norm(rest(y))
    start = tf.where(excess > 1.5, y / tf.sqrt(1.0 + excess), y)

    def step(y: tf.Tensor, r: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = y + 0.5 * tf.matmul(y, r)
        return y, rest(y)

    y, _ = tf.while_loop(
        lambda y, r: tf.norm(r) > 1e-12,
        step,
        (start, rest(start)),
        maximum_iterations=_POLAR_ITERATIONS,
    )
    return y
