"""The Hessian of (4) and linear systems with it, by central differences and dense solves."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import linear, newton, problem
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.moments import moments_of
from proxnet_tf.ops.multiview.newton import Settings
from tests.helpers.data import shared_views

KINDS = [CCA((3, 3), 3), CCA((2, 4), 2), CCA((4, 2), 1), GCCA((3, 3), 3), GCCA((2, 1, 2), 3)]


def reduction_of(kind, n=40, lam=1.0, epsilon=1e-2, seed=0):
    moments = moments_of(tf.constant(shared_views(n, kind.sizes, seed)))
    numbers = (tf.constant(v, tf.float64) for v in (lam, epsilon))
    found = problem.reduce_gram(kind, moments.gram, moments.count, moments.rounding, *numbers)
    return found.problem


def point_of(kind, data, w):
    return problem.evaluate(kind, data, tf.constant(w))


def hessian_of(kind, data, point, wide=False):
    model = linear.MODELS[type(kind)]
    ingredients = model.ingredients_at(kind, data, point)
    return model, model.hessian_at(kind, data, point, model.decompose(kind, ingredients, wide))


def gradient_of(kind, data, w):
    """F(W)."""
    point = point_of(kind, data, w)
    return (point.slope @ tf.transpose(point.spectrum.basis)).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_is_the_differential_of_the_gradient(kind):
    data = reduction_of(kind)
    rng = np.random.default_rng(1)
    w = data.root.numpy() + 0.3 * rng.normal(size=data.root.shape)
    change = rng.normal(size=w.shape)
    h = 1e-6
    above, below = (gradient_of(kind, data, w + s * h * change) for s in (1, -1))
    numeric = (above - below) / (2 * h)
    point = point_of(kind, data, w)
    model, hessian = hessian_of(kind, data, point)
    # V = v T^-1 on the right; coordinates of a gradient are those of a vector's dual.
    v = model.enter(kind, hessian, tf.constant(change) @ point.spectrum.basis)
    product = model.leave(kind, hessian, model.product(kind, hessian, v))
    product = product @ tf.transpose(point.spectrum.basis)
    np.testing.assert_allclose(product, numeric, atol=1e-6 * np.abs(numeric).max())


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_and_preconditioner_are_symmetric_and_positive(kind):
    data = reduction_of(kind)
    found = newton.solve(kind, data, Settings(jit=False))
    model, hessian = hessian_of(kind, data, found.point)
    size = kind.width**2
    basis = np.eye(size).reshape(size, kind.width, kind.width)
    for function in (model.product, model.precondition):
        matrix = np.stack([np.ravel(function(kind, hessian, tf.constant(e))) for e in basis])
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max())
        assert np.linalg.eigvalsh(matrix)[0] > 0.0


def test_ridge_is_left_out_of_a_step_only_where_it_is_small():
    kind = CCA((4, 4), 4)
    for epsilon, matters in ((1e-7, False), (0.1, True)):
        data = reduction_of(kind, epsilon=epsilon)
        point = point_of(kind, data, data.root)
        model, hessian = hessian_of(kind, data, point)
        assert bool(hessian.exact) is matters
        v = tf.constant(np.random.default_rng(2).normal(size=(8, 8)))
        exact, quick = (model.product(kind, hessian, v, e) for e in (True, None))
        assert np.abs(exact - quick).max() <= (0.0 if matters else 1e-3) * np.abs(exact).max()


@pytest.mark.parametrize("kind", [CCA((3, 5), 2), GCCA((3, 2, 3), 4)])
def test_linear_solve_equals_a_dense_one(kind):
    data = reduction_of(kind)
    point = newton.solve(kind, data, Settings(jit=False)).point
    size = kind.width**2
    h, columns = 1e-6, []
    for e in np.eye(size).reshape(size, kind.width, kind.width):
        above, below = (gradient_of(kind, data, point.w + s * h * e) for s in (1, -1))
        columns.append(np.ravel(above - below) / (2 * h))
    rhs = np.random.default_rng(3).normal(size=point.w.shape)
    expected = np.linalg.solve(np.array(columns).T, rhs.ravel()).reshape(rhs.shape)
    found, report = linear.solve_hessian(kind, data, point, tf.constant(rhs), 1e-12, jit=False)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    assert report.converged and report.residual <= 1e-12 and report.iterations > 1
