"""The Hessian of (4) for GCCA, against central differences in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import hessian_gcca
from proxnet_tf.ops.multiview.correlation import GCCA
from tests.ops.multiview.cases import Case, deficient_rows, hessian_times, inverses

KINDS = [GCCA((3, 4), 4), GCCA((3, 4, 2), 4), GCCA((2, 3, 2), 7)]


@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_preconditioner_is_the_inverse_of_the_two_metrics(kind, deficient):
    """Along the columns of a view's W_j without t Gam', across them with its positive part."""
    case = Case(kind, deficient_rows(40, kind.sizes) if deficient else None, lam=0.1)
    point = case.point(case.away())
    hessian = case.hessian(hessian_gcca, point)
    shared, other = inverses(case, point)
    r = np.random.default_rng(5).normal(size=case.root.shape)
    wanted = r @ other
    for s in kind.slices:
        along = np.sqrt(case.data.c.numpy()) * point.wt.numpy()[:, s]
        wanted[:, s] += along @ (along.T @ r[:, s]) @ (shared - other)[s, s]
    found = hessian_gcca.precondition(kind, hessian, tf.constant(r))
    np.testing.assert_allclose(found, wanted, atol=1e-9 * np.abs(wanted).max())
    assert np.linalg.eigvalsh(case.matrix(hessian_gcca.precondition, hessian))[0] > 0.0


def test_without_a_ridge_a_view_may_be_multiplied_by_a_matrix():
    """L does not change along W_j A_j: there the Hessian is that of ||W - R||^2 / 2 alone."""
    case = Case(GCCA((2, 3), 3), epsilon=0.0)
    w = case.away()
    point = case.point(w)
    hessian = case.hessian(hessian_gcca, point)
    a = np.random.default_rng(6).normal(size=(5, 5)) * case.kind.block_mask
    change = w @ a
    # L(W (I + h A)) = L(W) for every h, so <V, t d^2 L V> = - <t dL/dW, W A A>.
    found = np.sum(change * hessian_times(case, hessian_gcca, point, hessian, change))
    slope = case.reference(w)[1] - (w - case.root)
    np.testing.assert_allclose(found, np.sum(change**2) - np.sum(slope * (w @ a @ a)), rtol=1e-9)


def test_retraction_is_a_product_of_the_two_parts_of_a_step():
    """V_j = W_j A_j + rest becomes (W_j + rest)(I + A_j) - W_j; W_j has no ridge here."""
    case = Case(GCCA((2, 3, 1), 3), epsilon=0.0)
    point = case.point(case.away())
    hessian = case.hessian(hessian_gcca, point)
    v = np.random.default_rng(7).normal(size=case.root.shape)
    found = hessian_gcca.retract(case.kind, hessian, tf.constant(v)).numpy()
    for s in case.kind.slices:
        w, part = point.wt.numpy()[:, s], v[:, s]
        a = np.linalg.lstsq(w, part, rcond=None)[0]
        rest = part - w @ a
        wanted = (w + rest) @ (np.eye(w.shape[1]) + a) - w
        np.testing.assert_allclose(found[:, s], wanted, atol=1e-10 * np.abs(wanted).max())
