"""Linear systems with the Hessian of (4), against dense solves of differences in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import hessian
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from tests.ops.multiview.cases import Case, deficient_rows


def dense_hessian(case, w):
    """H on all D x D directions, column by column."""
    size, width = case.kind.width**2, case.kind.width
    units = np.eye(size).reshape(size, width, width)
    return np.stack([np.ravel(case.differential(w, e)) for e in units], 1)


@pytest.mark.parametrize("kind", [CCA((3, 5), 2), GCCA((3, 2, 3), 4)])
def test_linear_solve_equals_a_dense_one(kind):
    case = Case(kind)
    w = case.minimiser()
    rhs = np.random.default_rng(3).normal(size=w.shape)
    expected = np.linalg.solve(dense_hessian(case, w), rhs.ravel()).reshape(rhs.shape)
    found, report = hessian.solve_hessian(
        kind, case.data, case.point(w), tf.constant(rhs), tf.constant(1e-12, tf.float64), False
    )
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    assert report.converged and report.residual <= 1e-12 and report.iterations > 1


@pytest.mark.parametrize("kind", [CCA((3, 3), 3), GCCA((3, 2, 2), 3)])
def test_outside_the_row_spaces_the_hessian_is_the_identity(kind):
    case = Case(kind, deficient_rows(40, kind.sizes))
    w = case.minimiser()
    rhs = np.random.default_rng(4).normal(size=w.shape)
    # Inside: the dense system on directions V Pi, by least squares.
    onto = np.kron(np.eye(kind.width), case.within)
    inside = onto @ dense_hessian(case, w) @ onto
    expected = np.linalg.lstsq(inside, onto @ rhs.ravel(), rcond=1e-9)[0].reshape(rhs.shape)
    expected += rhs @ case.data.unused.numpy()
    found, report = hessian.solve_hessian(
        kind, case.data, case.point(w), tf.constant(rhs), tf.constant(1e-12, tf.float64), False
    )
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    assert report.converged


def test_negative_curvature_is_not_converged():
    """At W = R and a small lam the Hessian is indefinite."""
    case = Case(CCA((3, 3), 3), lam=0.02)
    values = np.linalg.eigvalsh(dense_hessian(case, case.root))
    assert values[0] < -0.1
    rhs = tf.constant(case.random(5))
    _, report = hessian.solve_hessian(
        case.kind, case.data, case.point(case.root), rhs, tf.constant(1e-10, tf.float64), False
    )
    assert not report.converged
