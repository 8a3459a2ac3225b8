"""Proximal maps in NumPy float64 for one vector (or matrix): duals, bisection, min-max formulas.

None of them shares a formula with `proxnet_tf.ops`: where the package sorts, these bisect; where it
cuts pieces, these solve the dual; x = prox_{R/lam}(x) + prox_{lam R*}(lam x)/lam (Moreau).
"""

import numpy as np
from scipy.optimize import lsq_linear, nnls


def bisect(decreasing, low, high, steps=200):
    """Root of a decreasing function (elementwise) between `low` and `high`."""
    low, high = np.array(low, "float64"), np.array(high, "float64")
    for _ in range(steps):
        middle = (low + high) / 2
        above = decreasing(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def l1(x, lam):
    return x - np.minimum(np.maximum(lam * x, -1), 1) / lam  # the dual ball is a box


def elastic_net(x, lam, ridge):
    # The derivative of |z| + ridge/2 z^2 + lam/2 (z - x)^2 changes its sign once.
    wide = np.abs(x) + 1
    return bisect(lambda z: -(np.sign(z) + ridge * z + lam * (z - x)), -wide, wide)


def l2(x, lam):
    y = lam * x
    size = np.sqrt(y @ y)
    return x - (y / size if size > 1 else y) / lam


def group_l2(x, lam, group_size):
    return np.concatenate([l2(g, lam) for g in x.reshape(-1, group_size)])


def squared_l2(x, lam):
    y = lam * x
    return x - (y / (1 + lam)) / lam  # R* = R


def quadratic(x, lam, matrix):
    return np.linalg.solve(np.eye(len(x)) + matrix / lam, x)


def l1_ball(x, radius):
    if np.abs(x).sum() <= radius:
        return x
    tau = bisect(lambda t: np.maximum(np.abs(x) - t, 0).sum() - radius, 0, np.abs(x).max())
    return np.sign(x) * np.maximum(np.abs(x) - tau, 0)


def l_inf(x, lam):
    return x - l1_ball(lam * x, 1) / lam


def nuclear(x, lam):
    # The dual ball: spectral norm <= 1, through the eigenvectors of Y^T Y.
    y = lam * x
    values, vectors = np.linalg.eigh(y.T @ y)
    shrink = 1 / np.maximum(1, np.sqrt(np.maximum(values, 0)))
    return x - y @ (vectors * shrink) @ vectors.T / lam


def _box_dual(x, columns, bounds):
    if columns.shape[1] == 0:
        return x
    solution = lsq_linear(columns, x, (-bounds, bounds), method="bvls", tol=1e-15, max_iter=1000)
    return x - columns @ solution.x


def total_variation(x, lam):
    differences = np.diff(np.eye(len(x)), axis=0).T
    return _box_dual(x, differences, np.full(len(x) - 1, 1 / lam))


def fused_lasso(x, lam, sparsity):
    n = len(x)
    columns = np.hstack([np.diff(np.eye(n), axis=0).T, np.eye(n)])
    bounds = np.concatenate([np.full(n - 1, 1 / lam), np.full(n, sparsity / lam)])
    return _box_dual(x, columns, bounds)


def box(x, low, high):
    return lsq_linear(np.eye(len(x)), x, (low, high), method="bvls").x


def nonnegative(x):
    return nnls(np.eye(len(x)), x)[0]


def l2_ball(x, radius):
    size = np.sqrt(x @ x)
    if size <= radius:
        return x
    multiplier = bisect(lambda mu: size / (1 + mu) - radius, 0, size / radius)
    return x / (1 + multiplier)


def simplex(x, total=1.0):
    tau = bisect(lambda t: np.maximum(x - t, 0).sum() - total, x.min() - total, x.max())
    return np.maximum(x - tau, 0)


def isotonic(x):
    n = len(x)
    mean = np.array(
        [[x[j : k + 1].mean() if k >= j else np.nan for k in range(n)] for j in range(n)]
    )
    return np.array([max(mean[j, i:].min() for j in range(i + 1)) for i in range(n)])


def entropy(x, lam):
    def entries(nu):
        # z in (0, 1] with log z - z + lam (z - x) + nu = 0, by bisection on log z.
        def slope(p):
            return -(p - np.exp(p) + lam * (np.exp(p) - x) + nu)

        return np.exp(bisect(slope, np.full_like(x, -800), np.zeros_like(x), 80))

    wide = lam * np.abs(x).max() + lam + 1000
    z = entries(bisect(lambda nu: entries(nu).sum() - 1, -wide, wide, 90))
    return z / z.sum()


def standardized(x):
    return (x - x.mean()) / x.std()


REFERENCES = {
    "l1": l1,
    "elastic_net": elastic_net,
    "l2": l2,
    "group_l2": group_l2,
    "squared_l2": squared_l2,
    "quadratic": quadratic,
    "l_inf": l_inf,
    "entropy": entropy,
    "nuclear": nuclear,
    "total_variation": total_variation,
    "fused_lasso": fused_lasso,
    "box": box,
    "nonnegative": nonnegative,
    "l2_ball": l2_ball,
    "l1_ball": l1_ball,
    "simplex": simplex,
    "isotonic": isotonic,
    "standardized": standardized,
}
