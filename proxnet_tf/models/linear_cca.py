"""Linear canonical correlation analysis, fitted in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxnet_tf.checks import check_integer, check_number
from proxnet_tf.ops.linear.number import real_array

_RANK_THRESHOLD = 1e-10  # of the largest eigenvalue of a correlation matrix
_ROUNDING = 16 * np.finfo(float).eps  # of a column's largest entry: less deviation is rounding


class LinearCCA:
    """Linear canonical correlation analysis of two views (closed form, NumPy, float64).

        max_{U, V}  tr(U^T Sxy V)   subject to   U^T (Sxx + r I) U = V^T (Syy + r I) V = I

    with the centred covariances S of the training rows (normalised by n - 1) and the ridge r. The
    columns of U and V come in descending order of their canonical correlations
    sigma_i = singular values of (Sxx + r I)^(-1/2) Sxy (Syy + r I)^(-1/2). The sign of a pair
    (u_i, v_i) is chosen so that the entry of u_i with the largest absolute value is positive.

    A rank-deficient view is handled in its row space; components beyond the rank have correlation
    0 and zero weights. The units of the columns do not matter: a column is constant if its standard
    deviation is below 16 roundings of its own largest entry, and columns are dependent where the
    correlation matrix of the view (for r > 0 its ridged covariance, scaled to ones on the
    diagonal) has an eigenvalue below 1e-10 of its largest.

    Args:
        num_components: k, 1 <= k <= min(d1, d2).
        ridge: r >= 0, in units of variance; 0 (the default) is plain CCA.

    Attributes (after `fit`):
        correlations_: `(k,)`, descending, of the training rows; with a ridge they are below 1.
        weights_: the pair U `(d1, k)`, V `(d2, k)`.
        means_: the pair of the means `(d1,)`, `(d2,)`.

    Raises:
        ValueError: arguments outside their ranges; views that are not two finite matrices with
            the same number (>= 2) of rows; widths other than those fitted; use before `fit`.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=(500, 2))
    >>> x, y = s @ rng.normal(size=(2, 4)), s @ rng.normal(size=(2, 3))
    >>> cca = LinearCCA(2).fit(x[:400], y[:400])
    >>> cca.correlations_.round(3)
    array([1., 1.])
    >>> z, w = cca.project(x[400:], 0), cca.project(y[400:], 1)  # either works without the other

    Reference: Hotelling (1936); the paper's section 6.3 compares with it (Faruqui, Dyer, 2014).
    """

    def __init__(self, num_components: int, *, ridge: float = 0.0):
        self.num_components = check_integer("num_components", num_components)
        self.ridge = check_number("ridge", ridge, at_least=0.0)

    def fit(self, x: Any, y: Any) -> LinearCCA:
        """Fits the weights to the rows of two views, `(n, d1)` and `(n, d2)`; returns itself.

        Args:
            x: the first view.
            y: the second view.
        """
        x, y = _matrix("x", x), _matrix("y", y)
        if len(x) != len(y) or len(x) < 2:
            raise ValueError(
                "LinearCCA needs the same number of rows in both views, at least 2. Received: "
                f"x.shape={x.shape}, y.shape={y.shape}"
            )
        k = self.num_components
        if k > min(x.shape[1], y.shape[1]):
            raise ValueError(
                f"`num_components` must be at most min(d1, d2) = {min(x.shape[1], y.shape[1])} for "
                f"views of the widths {x.shape[1]} and {y.shape[1]}. Received: num_components={k}"
            )
        left, right = _View(x, self.ridge), _View(y, self.ridge)
        between = left.rows.T @ right.rows / (len(x) - 1)
        u, sigma, vt = np.linalg.svd(left.whitening @ between @ right.whitening)
        correlations = np.where(sigma[:k] > 1e-12, sigma[:k], 0.0)
        used = correlations > 0
        pairs = (left, u), (right, vt.T)
        weights = [np.where(used, view.weights(turn[:, :k]), 0.0) for view, turn in pairs]
        largest = np.abs(weights[0]).argmax(0)
        sign = np.where(weights[0][largest, np.arange(k)] < 0, -1.0, 1.0)
        self.means_, self.correlations_ = (left.mean, right.mean), correlations
        self.weights_ = weights[0] * sign, weights[1] * sign
        return self

    def project(self, view: Any, index: int) -> np.ndarray:
        """The canonical variates (view - mean) W of one view, `(n, k)`; the other is not needed.

        W is `weights_[index]`, and the mean `means_[index]`.

        Args:
            view: rows of one view, `(n, d)`.
            index: 0 for the first view, 1 for the second.

        Raises:
            ValueError: another index, use before `fit`, and another width than that fitted.
        """
        if index not in (0, 1):
            raise ValueError(f"`index` must be 0 or 1. Received: index={index!r}")
        if not hasattr(self, "weights_"):
            raise ValueError("LinearCCA is not fitted: call `fit(x, y)` before it projects.")
        view, mean = _matrix("view", view), self.means_[index]
        if view.shape[1] != len(mean):
            raise ValueError(
                f"`view` must have the {len(mean)} columns that LinearCCA was fitted with. "
                f"Received: view.shape={view.shape}"
            )
        return (view - mean) @ self.weights_[index]


class _View:
    """A view with each column divided by sqrt(s_j^2 + r), s_j its standard deviation."""

    def __init__(self, rows: np.ndarray, ridge: float):
        self.mean = rows.mean(0)
        deviation = rows.std(0, ddof=1)
        varies = deviation > _ROUNDING * np.abs(rows).max(0)
        self.scale = np.where(varies, np.hypot(deviation, np.sqrt(ridge)), 1.0)
        self.rows = np.where(varies, rows - self.mean, 0.0) / self.scale
        within = self.rows.T @ self.rows / (len(rows) - 1)
        within[np.diag_indices_from(within)] += np.where(varies, ridge / self.scale**2, 0.0)
        values, vectors = np.linalg.eigh(within)
        kept = values > _RANK_THRESHOLD * max(values[-1], np.finfo(float).tiny)
        root = np.where(kept, 1.0 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
        self.whitening = (vectors * root) @ vectors.T
        # The directions in which no row varies, in the units of the view.
        self.still = np.linalg.qr(vectors[:, ~kept] / self.scale[:, None])[0]

    def weights(self, turn: np.ndarray) -> np.ndarray:
        """Weights in the row space of the view, for directions in its whitened columns."""
        found = (self.whitening @ turn) / self.scale[:, None]
        return found - self.still @ (self.still.T @ found)


def _matrix(name: str, view: Any) -> np.ndarray:
    view = real_array(f"`{name}`", view)
    if view.ndim != 2 or not view.size or not np.isfinite(view).all():
        what = "a value that is not finite" if view.ndim == 2 and view.size else "another shape"
        raise ValueError(
            f"`{name}` must be a matrix (n, d) of finite numbers; it has {what}. Received: "
            f"{name}.shape={view.shape}"
        )
    return view
