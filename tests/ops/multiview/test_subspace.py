"""The start of the two-view solver on column spaces, against the objective that it approximates."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import subspace
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.moments import moments_of
from proxnet_tf.ops.multiview.problem import evaluate, reduce_gram
from proxnet_tf.ops.multiview.prox import Settings, multiview_prox
from tests.helpers.multiview_reference import value_and_gradient


def problem_of(x, correlation, lam, epsilon=0.0):
    moments = moments_of(tf.constant(x))
    numbers = (tf.constant(number, tf.float64) for number in (lam, epsilon))
    gram, count, rounding = moments.gram, moments.count, moments.rounding
    return reduce_gram(correlation, gram, count, rounding, *numbers).problem


def rows(n, sizes, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, min(sizes)))
    views = [shared @ rng.normal(size=(min(sizes), d)) + rng.normal(size=(n, d)) for d in sizes]
    return np.concatenate(views, 1)


@pytest.mark.parametrize(("sizes", "k"), [((3, 3), 3), ((4, 3), 3), ((3, 4), 2)])
def test_descent_lowers_the_objective_to_a_stationary_point(sizes, k):
    correlation, lam = CCA(sizes, k), 0.5
    x = rows(30, sizes)
    problem = problem_of(x, correlation, lam)
    start = evaluate(correlation, problem, problem.root)
    bases = subspace.bases(correlation, start)
    for s in correlation.slices:
        np.testing.assert_allclose(
            tf.matmul(bases[:, s], bases[:, s], transpose_a=True),
            np.eye(s.stop - s.start),
            atol=1e-12,
        )
    w = subspace.descend(correlation, problem.root, problem.t, bases)
    found = evaluate(correlation, problem, w)
    assert found.objective < start.objective - 1e-2
    assert found.residual < 0.05 * start.residual
    # The same in the rows: lam/n (P - X) + dL/dP at P = Xc R^+ W, by the reference.
    xc = x - x.mean(0)
    p = xc @ np.linalg.pinv(problem.root.numpy()) @ w.numpy()
    value, gradient = value_and_gradient(p, sizes, k, 0.0)
    whole = lam / (2 * len(x)) * np.sum((p - xc) ** 2) + value
    np.testing.assert_allclose(found.objective, whole, atol=1e-10)
    slope = lam / len(x) * (p - xc) + gradient
    relative = np.linalg.norm(slope) / (lam / len(x) * np.linalg.norm(xc))
    np.testing.assert_allclose(found.residual, relative, rtol=1e-6)


def test_polar_factor_of_a_long_step():
    rng = np.random.default_rng(1)
    v = np.linalg.qr(rng.normal(size=(7, 3)))[0]
    z = 5.0 * rng.normal(size=(7, 3))
    z -= v @ (v.T @ z + z.T @ v) / 2
    left, _, right = np.linalg.svd(v + z, full_matrices=False)
    np.testing.assert_allclose(subspace._polar(tf.constant(v + z)), left @ right, atol=1e-11)


def test_applies_with_full_rank_and_a_small_ridge():
    correlation = CCA((3, 3), 3)
    x = rows(30, (3, 3))

    def applies(x, epsilon):
        problem = problem_of(x, correlation, 0.1, epsilon)
        point = evaluate(correlation, problem, problem.root)
        return bool(subspace.applies(correlation, problem, point))

    twice = x.copy()
    twice[:, 1] = twice[:, 0]
    assert applies(x, 1e-4)
    assert not applies(x, 10.0)
    assert not applies(twice, 1e-4)


@pytest.mark.parametrize("scale", [[1e-2, 1, 1, 1], [1e-2, 1, 30, 1]])
def test_columns_of_different_units_without_ridge(scale):
    """From W = R the solver did not converge here in 2000 evaluations."""
    x = np.random.RandomState(1).randn(15, 4) * scale
    problem, plain = (tf.constant(x), 0.7), Settings(jit=False)
    found = multiview_prox(*problem, CCA((2, 2), 2), 0.0, settings=plain)
    assert found.report.converged
    other = multiview_prox(*problem, GCCA((2, 2), 2), 0.0, settings=plain)
    # With k = d both solve one problem; each may end in a minimum of its own.
    objectives = []
    for p in (found.output.numpy(), other.output.numpy()):
        value, gradient = value_and_gradient(p, (2, 2), 2, 0.0)
        slope = 0.7 / 15 * (p - x) + gradient
        size = 0.7 / 15 * np.linalg.norm(x - x.mean(0))
        objectives.append(0.7 / 30 * np.sum((p - x) ** 2) + value)
        assert np.linalg.norm(slope) < 1e-6 * size
    assert objectives[0] < objectives[1] + 1e-9
