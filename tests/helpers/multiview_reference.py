"""The multiview proximal map over all n x D variables, in NumPy: shares nothing with the package.

CCA by the paper's T = Sxx^(-1/2) Sxy Syy^(-1/2) and its singular values, GCCA by the n x n
projection matrices of the views, gradients by the chain rule or by the envelope theorem.
"""

import numpy as np
import scipy.linalg
import scipy.optimize


def inverse_root(s):
    w, v = np.linalg.eigh(s)
    keep = w > 1e-12 * max(w.max(), 1e-300)
    w = np.where(keep, w, 1.0)
    return (v * np.where(keep, w**-0.5, 0.0)) @ v.T


def cca_value_and_gradient(p, d1, k, epsilon):
    """L = - sum of the k largest singular values of T, and dL/dP."""
    n = len(p)
    pc = p - p.mean(0)
    x, y = pc[:, :d1], pc[:, d1:]
    a = inverse_root(x.T @ x / (n - 1) + epsilon * np.eye(x.shape[1]))
    b = inverse_root(y.T @ y / (n - 1) + epsilon * np.eye(y.shape[1]))
    u, s, vt = np.linalg.svd(a @ (x.T @ y / (n - 1)) @ b)
    u, s, v = u[:, :k], s[:k], vt[:k].T
    of_xy = a @ u @ v.T @ b
    of_xx = -0.5 * a @ u @ np.diag(s) @ u.T @ a
    of_yy = -0.5 * b @ v @ np.diag(s) @ v.T @ b
    gx = (2 * x @ of_xx + y @ of_xy.T) / (n - 1)
    gy = (2 * y @ of_yy + x @ of_xy) / (n - 1)
    return -s.sum(), -np.concatenate([gx, gy], 1)


def gcca_value_and_gradient(p, sizes, k, epsilon):
    """L = min over G, U_j of sum_j ||G - X_j U_j||^2 + (n-1) eps ||U_j||^2, by an n x n eigh."""
    n = len(p)
    pc = p - p.mean(0)
    parts = np.split(pc, np.cumsum(sizes)[:-1], axis=1)
    inverses = [np.linalg.pinv(x.T @ x + (n - 1) * epsilon * np.eye(x.shape[1])) for x in parts]
    projections = sum(x @ i @ x.T for x, i in zip(parts, inverses, strict=True))
    w, v = np.linalg.eigh(projections)
    g = v[:, ::-1][:, :k]
    value = len(sizes) * k - w[::-1][:k].sum()
    gradient = []
    for x, i in zip(parts, inverses, strict=True):
        u = i @ x.T @ g
        gradient.append(-2 * (g - x @ u) @ u.T)
    gradient = np.concatenate(gradient, 1)
    return value, gradient - gradient.mean(0)


def value_and_gradient(p, sizes, k, epsilon, objective="cca"):
    if objective == "cca":
        return cca_value_and_gradient(p, sizes[0], k, epsilon)
    return gcca_value_and_gradient(p, sizes, k, epsilon)


def prox(x, sizes, lam, k, epsilon, objective="cca", descent=False):
    """argmin_P lam/(2n) ||P - X||^2 + L(P) from P = X; returns P and the objective.

    L-BFGS over all n x D entries; `descent=True` prefers gradient descent with backtracking for
    the first 200 steps, which cannot jump between basins.
    """
    n = len(x)

    def function(flat):
        p = flat.reshape(x.shape)
        value, gradient = value_and_gradient(p, sizes, k, epsilon, objective)
        value += lam / (2 * n) * ((p - x) ** 2).sum()
        return value, (gradient + lam / n * (p - x)).ravel()

    start = x.ravel().copy()
    if descent:
        step = 1.0
        value, gradient = function(start)
        for _ in range(200):
            while True:
                trial = start - step * gradient
                new, slope = function(trial)
                if new <= value - 0.5 * step * gradient @ gradient or step < 1e-12:
                    break
                step *= 0.5
            start, value, gradient, step = trial, new, slope, 1.5 * step
    options = dict(maxiter=20000, maxfun=40000, ftol=1e-16, gtol=1e-11, maxcor=30)
    found = scipy.optimize.minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(x.shape), found.fun


def reduced_value_and_slope(w, root, n, sizes, lam, k, epsilon, objective="cca"):
    """The problem in D x D: ||W - R||^2 / (2t) + L and F(W) = W - R + t dL/dW, with t = n/lam.

    L is that of the n rows P = Q W, Q with centred orthonormal columns, so that P^T P = W^T W.
    """
    rng, t = np.random.default_rng(0), n / lam
    q = rng.normal(size=(n, len(w)))
    q, _ = np.linalg.qr(q - q.mean(0))
    value, gradient = value_and_gradient(q @ w, sizes, k, epsilon, objective)
    return ((w - root) ** 2).sum() / (2 * t) + value, w - root + t * q.T @ gradient


def reduced_minimiser(root, within, n, sizes, lam, k, epsilon, objective="cca"):
    """W = W Pi that L-BFGS finds from R, good to about 1e-7; Pi = `within`, a projection."""

    def function(flat):
        w = flat.reshape(root.shape) @ within
        value, slope = reduced_value_and_slope(w, root, n, sizes, lam, k, epsilon, objective)
        return value, lam / n * (slope @ within).ravel()

    options = dict(maxiter=5000, maxfun=10000, ftol=1e-16, gtol=1e-10, maxcor=30)
    start = root.ravel()
    found = scipy.optimize.minimize(function, start, jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(root.shape) @ within


def linear_correlations(x, y):
    """Canonical correlations of two samples by QR, in descending order."""
    qx = scipy.linalg.orth(x - x.mean(0))
    qy = scipy.linalg.orth(y - y.mean(0))
    return np.linalg.svd(qx.T @ qy, compute_uv=False)
