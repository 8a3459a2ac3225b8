"""The Hessian of (4) for CCA, against central differences in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import hessian_cca
from proxnet_tf.ops.multiview.correlation import CCA
from tests.helpers.data import shared_views
from tests.ops.multiview.cases import Case, deficient_rows, hessian_times, inverses

KINDS = [CCA((3, 4), 3), CCA((3, 4), 2), CCA((4, 2), 1)]


@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_preconditioner_is_the_inverse_of_the_two_metrics(kind, deficient):
    """Away from a minimiser too: the first k rows without, the others with t Gam' made positive."""
    case = Case(kind, deficient_rows(40, kind.sizes) if deficient else None, lam=0.1)
    point = case.point(case.away())
    hessian = case.hessian(hessian_cca, point)
    q, k = point.spectrum.rotation.numpy(), kind.num_components
    shared, other = (q.T @ matrix @ q for matrix in inverses(case, point))
    r = np.random.default_rng(5).normal(size=case.root.shape)
    found = hessian_cca.precondition(kind, hessian, tf.constant(r))
    atol = 1e-9 * np.abs(shared).max()
    np.testing.assert_allclose(found, np.r_[r[:k] @ shared, r[k:] @ other], atol=atol)
    assert np.linalg.eigvalsh(case.matrix(hessian_cca.precondition, hessian))[0] > 0.0


def test_decompositions_in_float32_serve_a_step():
    """O and N of wide views: off by the rounding of float32, and by no more."""
    case = Case(CCA((3, 4), 3), epsilon=0.1)
    point = case.point(case.away())
    change = case.random(3)
    exact, single = (
        hessian_times(case, hessian_cca, point, case.hessian(hessian_cca, point, wide), change)
        for wide in (False, True)
    )
    error = np.abs(single - exact).max() / np.abs(exact).max()
    assert 1e-12 < error < 1e-5


def test_retraction_stays_where_the_views_have_one_column_space():
    """W a_j = W b_j for equal views without a ridge, where all correlations are one.

    A step that keeps them so to first order leaves a distance of order h^4 in L; with the
    second-order term it is of order h^6.
    """
    x = np.tile(shared_views(30, (3, 3))[:, :3], 2)
    case = Case(CCA((3, 3), 3), x, epsilon=0.0, lam=1e8)  # L alone counts
    point = case.point(case.root)
    np.testing.assert_allclose(point.spectrum.values, [1, 1, 1, -1, -1, -1], atol=1e-12)
    hessian = case.hessian(hessian_cca, point)
    inverse = point.spectrum.inverse.numpy()
    step = np.random.default_rng(6).normal(size=(6, 6))
    step[3:, 3:] = 0.0  # what would take the W v_j off the span of the W u_i

    def distance(h, retracted):
        """The sum of 1 - sigma_i, from the sines of the angles between the spans of the views."""
        v = tf.constant(h * step)
        v = hessian_cca.retract(case.kind, hessian, v) if retracted else v
        w = case.root + (hessian_cca.leave(case.kind, hessian, v) @ inverse)
        left, right = (np.linalg.qr(part)[0] for part in np.split(np.asarray(w), 2, axis=1))
        sines = np.linalg.svd(left - right @ (right.T @ left), compute_uv=False)
        return np.sum(1.0 - np.sqrt(1.0 - sines**2))

    h = 0.02
    for retracted, order in ((False, 4), (True, 6)):
        ratio = distance(h, retracted) / distance(h / 2, retracted)
        np.testing.assert_allclose(np.log2(ratio), order, atol=0.4)
    assert distance(h, True) < 1e-2 * distance(h, False)


def test_retraction_is_of_second_order_and_small_far_from_one():
    """The factor sigma_j^4, entry by entry; the first m columns stay."""
    kind, shares = CCA((3, 3), 3), []
    for noise in (0.1, 3.0):
        case = Case(kind, shared_views(200, kind.sizes, noise=noise))
        point = case.point(case.root)
        hessian = case.hessian(hessian_cca, point)
        v = np.random.default_rng(7).normal(size=(6, 6))
        added, twice = (
            hessian_cca.retract(kind, hessian, tf.constant(s * v)).numpy() - s * v for s in (1, 2)
        )
        np.testing.assert_allclose(twice, 4 * added, atol=1e-12 * np.abs(v).max())
        np.testing.assert_array_equal(added[:, :3], 0.0)
        np.testing.assert_array_equal(added[:3], 0.0)
        shares.append(np.abs(added).max())
        sigma = point.spectrum.values.numpy()[:3]
        wu = point.wt.numpy() @ point.spectrum.rotation.numpy()
        r = np.diag(hessian.left.numpy().T @ wu)
        for row in range(3):
            for j in range(3):
                # v_j of the last columns in reverse: the column 5 - j belongs to sigma_j.
                wanted = sum(v[3 + row, i] / r[i] * v[i, 5 - j] for i in range(3)) * sigma[j] ** 4
                np.testing.assert_allclose(added[3 + row, 5 - j], wanted, rtol=1e-9, atol=1e-12)
    assert shares[1] < 0.1 * shares[0]
