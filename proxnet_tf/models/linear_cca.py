"""Linear canonical correlation analysis, fitted in closed form."""

from __future__ import annotations

import numpy as np

from proxnet_tf.checks import check_integer, check_number

_RANK_THRESHOLD = 1e-10  # of the largest eigenvalue of a covariance


class LinearCCA:
    """Linear canonical correlation analysis of two views (closed form, NumPy, float64).

        max_{U, V}  tr(U^T Sxy V)   subject to   U^T (Sxx + r I) U = V^T (Syy + r I) V = I

    with the centred covariances S of the training rows (normalised by n - 1) and the ridge r. The
    columns of U and V come in descending order of their canonical correlations
    sigma_i = singular values of (Sxx + r I)^(-1/2) Sxy (Syy + r I)^(-1/2). A rank-deficient view is
    handled in its row space; components beyond the rank have correlation 0 and zero weights. The
    sign of a pair (u_i, v_i) is fixed by making the entry of u_i of the largest size positive.

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
        cca = LinearCCA(10, ridge=0.1).fit(x_train, y_train)
        z, w = cca.transform(x_test, y_test)
        z = cca.transform(x_test)  # the other view is missing
        w = cca.transform(y=y_test)

    Reference: Hotelling (1936); the paper's section 6.3 compares with it (Faruqui, Dyer, 2014).
    """

    def __init__(self, num_components: int, *, ridge: float = 0.0):
        self.num_components = check_integer("num_components", num_components)
        self.ridge = check_number("ridge", ridge, at_least=0.0)

    def fit(self, x: np.ndarray, y: np.ndarray) -> LinearCCA:
        """Fits the weights to the rows of two views, `(n, d1)` and `(n, d2)`; returns itself."""
        x, y = _matrix("x", x), _matrix("y", y)
        if len(x) != len(y) or len(x) < 2:
            raise ValueError(
                "LinearCCA needs the same number of rows in both views, at least 2. Received: "
                f"x.shape={x.shape}, y.shape={y.shape}"
            )
        if self.num_components > min(x.shape[1], y.shape[1]):
            raise ValueError(
                f"`num_components` must be at most min(d1, d2) = {min(x.shape[1], y.shape[1])} for "
                f"views of the widths {x.shape[1]} and {y.shape[1]}. Received: "
                f"num_components={self.num_components}"
            )
        self.means_ = x.mean(0), y.mean(0)
        x, y = x - self.means_[0], y - self.means_[1]
        left, right = self._whitening(x), self._whitening(y)
        u, sigma, vt = np.linalg.svd(left @ (x.T @ y / (len(x) - 1)) @ right)
        k = self.num_components
        self.correlations_ = np.where(sigma[:k] > 1e-12, sigma[:k], 0.0)
        used = self.correlations_ > 0
        weights = np.where(used, left @ u[:, :k], 0.0), np.where(used, right @ vt[:k].T, 0.0)
        largest = np.abs(weights[0]).argmax(0)
        sign = np.where(weights[0][largest, np.arange(k)] < 0, -1.0, 1.0)
        self.weights_ = weights[0] * sign, weights[1] * sign
        return self

    def _whitening(self, x):
        values, vectors = np.linalg.eigh(x.T @ x / (len(x) - 1))
        kept = values > _RANK_THRESHOLD * max(values[-1], np.finfo(float).tiny)
        scale = np.where(kept, 1.0 / np.sqrt(np.where(kept, values + self.ridge, 1.0)), 0.0)
        return (vectors * scale) @ vectors.T

    def transform(
        self, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Projects one view or both: (x - mean) U `(n, k)` and (y - mean) V `(n, k)`.

        Returns the pair when both are given, else the one projection.
        """
        if not hasattr(self, "weights_"):
            raise ValueError("LinearCCA is not fitted: call `fit(x, y)` before `transform`.")
        projections = []
        for name, view, mean, weights in zip("xy", (x, y), self.means_, self.weights_, strict=True):
            if view is None:
                continue
            view = _matrix(name, view)
            if view.shape[1] != len(mean):
                raise ValueError(
                    f"`{name}` must have the {len(mean)} columns that LinearCCA was fitted with. "
                    f"Received: {name}.shape={view.shape}"
                )
            projections.append((view - mean) @ weights)
        if not projections:
            raise ValueError("`transform` needs `x`, `y` or both. Received neither.")
        return projections[0] if len(projections) == 1 else (projections[0], projections[1])

    def fit_transform(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`fit(x, y)`, then the projections of both views."""
        return self.fit(x, y).transform(x, y)  # type: ignore[return-value]


def _matrix(name, view):
    view = np.asarray(view, "float64")
    if view.ndim != 2 or not view.size or not np.isfinite(view).all():
        what = "a value that is not finite" if view.ndim == 2 and view.size else "another shape"
        raise ValueError(
            f"`{name}` must be a matrix (n, d) of finite numbers; it has {what}. Received: "
            f"{name}.shape={view.shape}"
        )
    return view
