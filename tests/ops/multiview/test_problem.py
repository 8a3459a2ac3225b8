"""The problem (4) in D x D against NumPy: roots, row spaces, objective and slope."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from proxnet_tf.ops.multiview import problem
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.gram import EXACT_RANK
from tests.helpers.data import shared_views
from tests.ops.multiview.cases import Case, deficient_rows

KINDS = [CCA((3, 4), 3), CCA((3, 4), 2), CCA((4, 2), 1), GCCA((3, 4), 4), GCCA((3, 4, 2), 4)]
UNITS = np.array([1.0, 1e-4, 1e3, 1.0, 1e6, 1e-2])


def projections(x, sizes):
    """Onto the row space of each view, block-diagonal, by NumPy's SVD of the views apart."""
    blocks = []
    for view in np.split(x - x.mean(0), np.cumsum(sizes)[:-1], axis=1):
        size = np.linalg.norm(view, axis=0)
        size = np.where(size > 1e-12 * np.sqrt(len(x)), size, np.inf)
        # The null space in the units of the columns: X v = 0 for v = u / size, X / size u = 0.
        _, s, vt = np.linalg.svd(view / size)
        rank = int(np.sum(s > 1e-6))
        null = np.where(np.isinf(size), 0.0, 1.0 / size)[:, None] * vt[rank:].T
        null = np.c_[null, np.eye(len(size))[:, np.isinf(size)]]
        null = scipy.linalg.orth(null / np.maximum(np.linalg.norm(null, axis=0), 1e-300))
        blocks.append(np.eye(len(size)) - null @ null.T)
    return scipy.linalg.block_diag(*blocks)


def rank_one_short(n=20, seed=5):
    """The third column of view 1 and all of view 2 but one direction follow from the others."""
    x = shared_views(n, (3, 3), seed)
    x[:, 2] = x[:, 0] - 2 * x[:, 1]
    x[:, 3:] = x[:, 3:4] * [1.0, 2.0, -1.0]
    return x


ROWS = {
    "full rank": shared_views(20, (3, 3)),
    "other units": shared_views(20, (3, 3)) * UNITS,
    "far from zero": shared_views(20, (3, 3)) + 1e3,
    "duplicated and constant": deficient_rows(20, (3, 3)),
    "combinations": rank_one_short(),
    "combinations in other units": rank_one_short() * UNITS,
    "identical views": np.tile(shared_views(20, (3, 3))[:, :3], 2),
    "fewer rows than columns": shared_views(3, (3, 3)),
    "a constant view": np.c_[shared_views(20, (3, 3))[:, :3], np.full((20, 3), 2.0)],
    "equal rows": np.full((5, 6), 3.0),
    "one row": np.ones((1, 6)),
}


@pytest.mark.parametrize("name", ROWS)
def test_root_lift_and_row_spaces(name):
    x = ROWS[name]
    case = Case(CCA((3, 3), 3), x)
    xc = x - x.mean(0)
    size = np.linalg.norm(xc, axis=0)
    size = np.where(size > 1e-9, size, 1.0)
    # R^T R = C, in the units of the columns.
    gram = case.root.T @ case.root
    np.testing.assert_allclose(
        gram / size / size[:, None], xc.T @ xc / size / size[:, None], atol=1e-9
    )
    # Xc R^+ has orthonormal columns, or columns of zeros, and takes R back to Xc.
    rows = xc @ case.reduction.lift.numpy()
    squares = rows.T @ rows
    rank = np.linalg.matrix_rank(xc / size, tol=1e-6)
    diagonal = np.repeat([0.0, 1.0], [6 - rank, rank])
    np.testing.assert_allclose(squares, np.diag(diagonal), atol=1e-9)
    np.testing.assert_allclose(rows @ case.root / size, xc / size, atol=1e-8)
    # I - Pi is the projection onto the null spaces of the views.
    expected = np.eye(6) - projections(x, (3, 3))
    np.testing.assert_allclose(case.data.unused, expected, atol=1e-9)
    np.testing.assert_allclose(case.root @ expected / size, 0.0, atol=1e-9)
    if rank == 6:  # then nothing is decomposed view by view
        np.testing.assert_array_equal(case.data.unused, 0.0)
        np.testing.assert_array_equal(case.reduction.turn, 0.0)


@pytest.mark.parametrize("name", ROWS)
def test_inverse_of_the_covariance_of_each_view(name):
    x = ROWS[name]
    xc = x - x.mean(0)
    gram = xc.T @ xc
    rounding = np.where(np.diag(gram) > 1e-18, EXACT_RANK, 1.0)
    unused, inverse = problem.outside_row_spaces(
        CCA((3, 3), 3), tf.constant(gram), tf.constant(rounding)
    )
    unused, inverse = unused.numpy(), inverse.numpy()
    np.testing.assert_allclose(unused, unused.T, atol=1e-14)
    np.testing.assert_allclose(unused @ unused, unused, atol=1e-12)
    # The four conditions of Penrose for each block, in the units of the columns.
    blocks = scipy.linalg.block_diag(gram[:3, :3], gram[3:, 3:])
    size = np.sqrt(np.where(np.diag(gram) > 1e-18, np.diag(gram), 1.0))
    both = size[:, None] * size
    within = np.eye(6) - unused
    np.testing.assert_allclose(inverse * both, inverse.T * both, atol=1e-9)
    np.testing.assert_allclose(blocks @ inverse @ blocks / both, blocks / both, atol=1e-8)
    np.testing.assert_allclose(within @ inverse @ within * both, inverse * both, atol=1e-8)
    np.testing.assert_array_equal(inverse[:3, 3:], 0.0)
    np.testing.assert_array_equal(unused[3:, :3], 0.0)


@pytest.mark.parametrize("share, rank", [(3e-10, 3), (3e-11, 2)])
def test_a_direction_below_the_rounding_is_outside(share, rank):
    """The variance of v against sum_j v_j^2 rounding_j, columns of variance one."""
    u = np.array([1.0, -1.0, 0.0]) / np.sqrt(2)
    # Two columns with the correlation 1 - share: their difference has the variance share.
    unit = np.array([[1.0, 1.0 - share, 0.2], [1.0 - share, 1.0, 0.2], [0.2, 0.2, 1.0]])
    gram = scipy.linalg.block_diag(unit, np.eye(3))
    unused, _ = problem.outside_row_spaces(
        CCA((3, 3), 3), tf.constant(gram), tf.constant(np.full(6, 1e-10))
    )
    expected = np.outer(u, u) if rank == 2 else np.zeros((3, 3))
    np.testing.assert_allclose(unused[:3, :3], expected, atol=1e-5)
    np.testing.assert_array_equal(unused[3:, 3:], 0.0)
    # R has nothing along such a direction, and all of it along any other.
    count, lam, epsilon = (tf.constant(v, tf.float64) for v in (20.0, 1.0, 0.0))
    rounding = tf.constant(np.full(6, 1e-10))
    found = problem.reduce_gram(CCA((3, 3), 3), tf.constant(gram), count, rounding, lam, epsilon)
    length = np.linalg.norm(found.problem.root @ np.r_[u, 0, 0, 0][:, None])
    np.testing.assert_allclose(length, 0.0 if rank == 2 else share**0.5, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_objective_slope_and_residual(kind, deficient):
    case = Case(kind, deficient_rows(40, kind.sizes) if deficient else None, lam=0.7)
    for w in (case.root, case.away()):
        point = case.point(w)
        value, slope = case.reference(w)
        np.testing.assert_allclose(point.objective, value, atol=1e-11)
        found = (point.slope @ tf.transpose(point.spectrum.basis)).numpy()
        np.testing.assert_allclose(found @ case.within, slope @ case.within, atol=1e-9)
        relative = np.linalg.norm(found) / np.linalg.norm(case.root)
        np.testing.assert_allclose(point.residual, relative, rtol=1e-10)
        np.testing.assert_array_equal(point.w, w)
        np.testing.assert_allclose(point.wt, w @ point.spectrum.basis.numpy(), atol=1e-12)


@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_two_parts_of_the_metric(kind, deficient):
    """t Gam from the slope of the reference, t W Gam = F(W) - (W - R), and T from (2)."""
    case = Case(kind, deficient_rows(40, kind.sizes) if deficient else None)
    w = case.away()
    point = case.point(w)
    basis = point.spectrum.basis.numpy()
    gamma = np.linalg.lstsq(w, case.reference(w)[1] - w + case.root, rcond=1e-10)[0]
    gamma = case.within @ gamma @ case.within
    pulled = basis @ point.pull.numpy() @ basis.T
    np.testing.assert_allclose(case.within @ pulled @ case.within, gamma, atol=1e-8)
    stiffness = 1e4 * (1.0 + case.data.c.numpy() * case.data.t.numpy())
    bare = np.eye(kind.width) + stiffness * case.data.unused.numpy()
    metric = problem.bare_metric(kind, case.data, point.spectrum).numpy()
    np.testing.assert_allclose(basis @ metric @ basis.T, bare, rtol=1e-9, atol=1e-9)
