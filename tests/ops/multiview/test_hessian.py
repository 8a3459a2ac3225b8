"""Linear systems with the Hessian of (4), against dense solves of differences in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import hessian, hessian_cca, hessian_gcca
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from tests.ops.multiview.cases import Case, deficient_rows, hessian_times

KINDS = [CCA((3, 4), 3), CCA((3, 4), 2), CCA((4, 2), 1)]
KINDS += [GCCA((3, 4), 4), GCCA((3, 4, 2), 4), GCCA((2, 3, 2), 7)]


def at(kind, x, away=True, **options):
    """A case, the module of its kind, a point and the Hessian there."""
    case, model = Case(kind, x, **options), hessian_cca if isinstance(kind, CCA) else hessian_gcca
    w = case.away() if away else case.minimiser()
    point = case.point(w)
    return case, model, w, point, case.hessian(model, point)


@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_product_is_the_differential_of_the_slope(kind, deficient):
    """The ridge is large here: N of `hessian_cca` is not diagonal."""
    x = deficient_rows(40, kind.sizes) if deficient else None
    case, model, w, point, matrix = at(kind, x, epsilon=0.1)
    change = case.random(3)
    found = hessian_times(case, model, point, matrix, change) @ case.within
    numeric = case.differential(w, change) @ case.within
    np.testing.assert_allclose(found, numeric, atol=1e-7 * np.abs(numeric).max())


@pytest.mark.parametrize("kind", KINDS)
def test_product_and_preconditioner_are_symmetric_and_positive_at_a_minimiser(kind):
    """And conjugate gradients, which see the product of both, gain by the second."""
    case, model, *_, matrix = at(kind, None, away=False)
    product, inverse = (case.matrix(f, matrix) for f in (model.product, model.precondition))
    for square in (product, inverse):
        np.testing.assert_allclose(square, square.T, atol=1e-9 * np.abs(square).max())
        assert np.linalg.eigvalsh(square)[0] > 0.0
    root = np.linalg.cholesky(inverse)
    assert np.linalg.cond(root.T @ product @ root) < 0.7 * np.linalg.cond(product)


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
