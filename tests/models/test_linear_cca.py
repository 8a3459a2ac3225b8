import numpy as np
import pytest
import scipy.linalg
from sklearn.cross_decomposition import CCA

from proxnet_tf.models.linear_cca import LinearCCA


def make_views(seed=0, n=300, d1=7, d2=5):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 3)) * [3.0, 2.0, 1.0]
    x = signal @ rng.normal(size=(3, d1)) + rng.normal(size=(n, d1)) + rng.normal(size=d1)
    y = signal @ rng.normal(size=(3, d2)) + 2 * rng.normal(size=(n, d2)) - 3.0
    return x, y


def variates(cca, x, y):
    return cca.project(x, 0), cca.project(y, 1)


def solve_directly(x, y, ridge):
    """Correlations from the generalized eigenproblem of the joint covariance."""
    c = np.cov(x, y, rowvar=False)
    d = x.shape[1]
    within = scipy.linalg.block_diag(c[:d, :d], c[d:, d:]) + ridge * np.eye(len(c))
    between = c.copy()
    between[:d, :d] = 0
    between[d:, d:] = 0
    values = scipy.linalg.eigh(between, within, eigvals_only=True)
    return values[::-1][: min(d, y.shape[1])]


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_correlations_are_those_of_the_generalized_eigenproblem(ridge):
    x, y = make_views()
    cca = LinearCCA(5, ridge=ridge).fit(x, y)
    np.testing.assert_allclose(cca.correlations_, solve_directly(x, y, ridge), atol=1e-10)
    assert (np.diff(cca.correlations_) < 0).all()
    for view, weights in zip((x, y), cca.weights_, strict=True):
        gram = weights.T @ (np.cov(view, rowvar=False) + ridge * np.eye(view.shape[1])) @ weights
        np.testing.assert_allclose(gram, np.eye(5), atol=1e-10)


def test_projections_are_those_of_scikit_learn():
    x, y = make_views(1)
    z, w = variates(LinearCCA(3).fit(x, y), x, y)
    reference = CCA(3, scale=False, max_iter=5000, tol=1e-12).fit(x, y)
    for ours, theirs in zip((z, w), reference.transform(x, y), strict=True):
        theirs = theirs / theirs.std(0, ddof=1)
        sign = np.sign(np.sum(ours * theirs, 0))
        np.testing.assert_allclose(ours, theirs * sign, atol=1e-4)


def test_projections_have_the_stated_correlations():
    x, y = make_views(2)
    cca = LinearCCA(4).fit(x, y)
    z, w = variates(cca, x, y)
    joint = np.cov(z, w, rowvar=False)
    wanted = np.block([[np.eye(4), np.diag(cca.correlations_)]] * 2)
    wanted[4:] = np.block([[np.diag(cca.correlations_), np.eye(4)]])
    np.testing.assert_allclose(joint, wanted, atol=1e-10)
    np.testing.assert_allclose(z.mean(0), 0.0, atol=1e-10)


def test_signs_do_not_depend_on_the_scale_or_the_order_of_rows():
    x, y = make_views()
    u = LinearCCA(3).fit(x, y).weights_[0]
    order = np.random.default_rng(0).permutation(len(x))
    v = LinearCCA(3).fit(2 * x[order], y[order]).weights_[0]
    np.testing.assert_allclose(v, u / 2, atol=1e-10)
    assert (u[np.abs(u).argmax(0), range(3)] > 0).all()


def test_rank_deficient_views():
    x, y = make_views(3)
    full = LinearCCA(5).fit(x, y).correlations_
    constant = np.full((len(x), 1), 4.0)
    cca = LinearCCA(5).fit(np.hstack([x, x[:, :2], constant]), y)  # duplicated and dead columns
    np.testing.assert_allclose(cca.correlations_, full, atol=1e-9)
    np.testing.assert_allclose(cca.weights_[0][-1], 0.0, atol=1e-12)
    few = LinearCCA(4).fit(x[:, [0, 0, 1, 1]], y)
    np.testing.assert_array_equal(few.correlations_[2:], 0.0)
    np.testing.assert_array_equal(few.weights_[1][:, 2:], 0.0)
    dead = LinearCCA(1).fit(np.ones((9, 2)), y[:9])
    assert dead.correlations_[0] == 0.0
    np.testing.assert_allclose(LinearCCA(7).fit(x, x).correlations_, 1.0, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: LinearCCA(0), "num_components=0"),
        (lambda x, y: LinearCCA(2, ridge=-1.0), "ridge=-1.0"),
        (lambda x, y: LinearCCA(6).fit(x, y), r"min\(d1, d2\) = 5 .*num_components=6"),
        (lambda x, y: LinearCCA(2).fit(x, y[:-1]), r"same number of rows.*\(300, 7\).*\(299, 5\)"),
        (lambda x, y: LinearCCA(2).fit(x[:1], y[:1]), "at least 2"),
        (lambda x, y: LinearCCA(2).fit(x[0], y), r"another shape.*x.shape=\(7,\)"),
        (lambda x, y: LinearCCA(2).fit(x, y * np.nan), "`y` .*not finite"),
        (lambda x, y: LinearCCA(2).project(x, 1), "not fitted"),
        (lambda x, y: LinearCCA(2).fit(x, y).project(x, 1), r"`view` .*5 columns.*\(300, 7\)"),
        (lambda x, y: LinearCCA(2).fit(x, y).project(x, 2), "0 or 1. Received: index=2"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*make_views())
