"""Correlation of views as a function of their covariance: value, gradient and its differential.

Views X_1..X_J side by side have the covariance S (D x D). Two entrywise masks of S enter the
generalized symmetric eigenproblem

    K(S) v = mu (B(S) + eps I) v,     U^T (B(S) + eps I) U = I,     mu_1 >= mu_2 >= ...      (2)

with B the blocks of the views themselves and K the blocks between views ("cca", two views, where
the positive mu are the canonical correlations) or all blocks ("gcca"). The objectives are

    cca:  L(S) = - sum_{i<=k} mu_i,          gcca:  L(S) = J k - sum_{i<=k} mu_i.

Everything is evaluated in a basis T with T^T (B(S) + eps I) T = I: the eigenvectors U for "cca",
L^-T for "gcca", with the Cholesky factor L of B(S) + eps I, where U = T Q. There a matrix X that
acts on covariances (S, dS) becomes T^T X T, one that acts on gradients becomes T^-1 X T^-T. In
both, the mask B turns into the same symmetric projection `blocks`, and no formula divides by the
gap of two eigenvalues on the same side of the cut k | k+1.

References: Li, Ma, Zhang (2020), equation (2) and the appendix on multiview learning; Andrew,
Arora, Bilmes, Livescu (2013).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Eigenvalues below it carry no correlation; gaps across the cut below it are ties.
TINY = 1e-9


@dataclass(frozen=True)
class Correlation:
    """Which correlation of which views: everything that is known before the data.

    Attributes:
        sizes: widths d_1..d_J of the views.
        num_components: k, at most min(d_1, d_2) for "cca" and d_1 + .. + d_J for "gcca".
        epsilon: the ridge eps >= 0 on the (n - 1)-normalised covariance of each view.
        objective: "cca" (exactly two views) or "gcca".
    """

    sizes: tuple[int, ...]
    num_components: int
    epsilon: float = 1e-4
    objective: str = "cca"

    @property
    def width(self) -> int:
        """D, the number of columns of all views side by side."""
        return sum(self.sizes)

    @property
    def constant(self) -> float:
        """What L adds to - sum_{i<=k} mu_i: J k for "gcca"."""
        return float(len(self.sizes) * self.num_components) if self.objective == "gcca" else 0.0

    @cached_property
    def block_mask(self) -> np.ndarray:
        """D x D, one inside the blocks of the views."""
        view: np.ndarray = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return (view[:, None] == view[None]).astype("float64")

    @cached_property
    def partner(self) -> tuple[np.ndarray, np.ndarray]:
        """For two views: changing the sign of view 2 maps u_i to sign_i u_partner(i)."""
        d1, d2 = self.sizes
        partner = np.arange(self.width)[::-1].copy()
        alone = slice(min(d1, d2), max(d1, d2))
        partner[alone] = np.arange(self.width)[alone]
        sign = np.ones(self.width)
        sign[alone] = 1.0 if d1 > d2 else -1.0
        return partner, sign


class Spectrum(NamedTuple):
    """Solution of (2), values in descending order.

    Attributes:
        values: mu, `[D]`. For "cca": sigma_1..sigma_m, zeros, -sigma_m..-sigma_1.
        basis: T, `[D, D]`: the eigenvectors U for "cca", L^-T for "gcca".
        inverse: T^-1.
        rotation: for "gcca" the orthogonal Q in U = T Q; not used for "cca".
        selected: `[D]`, one for i <= k with mu_i > 1e-9, else zero.
    """

    values: tf.Tensor
    basis: tf.Tensor
    inverse: tf.Tensor
    rotation: tf.Tensor
    selected: tf.Tensor


class Factors(NamedTuple):
    """What the decompositions behind a `Spectrum` return; the rest is products.

    Attributes:
        factor: Cholesky factor L of B + eps I, `[D, D]`; for two views of one width, which are
            factored in one batched call, its two blocks `[2, d, d]`.
        whiten: L^-1, likewise.
        values: singular values of T = L_1^-1 S_12 L_2^-T, or eigenvalues of L^-1 S L^-T.
        left: left singular vectors of T, or the eigenvectors.
        right: right singular vectors of T, or an empty tensor.
        ok: whether the whitened matrix was finite.
    """

    factor: tf.Tensor
    whiten: tf.Tensor
    values: tf.Tensor
    left: tf.Tensor
    right: tf.Tensor
    ok: tf.Tensor


def factorise(
    correlation: Correlation, covariance: tf.Tensor, unused: tf.Tensor | None = None
) -> Factors:
    """The decompositions that (2) needs, for a float64 covariance `[D, D]`.

    Args:
        correlation: which problem.
        covariance: S, symmetric.
        unused: block-diagonal projection onto what lies outside the row spaces of the views; B
            is the identity there, so that eps = 0 and rank-deficient views are well defined.
    """
    eye = tf.eye(correlation.width, dtype=covariance.dtype)
    within = covariance + correlation.epsilon * eye + (0.0 if unused is None else unused)
    if correlation.objective == "gcca":
        mask = tf.constant(correlation.block_mask, covariance.dtype)
        factor = tf.linalg.cholesky(within * mask)
        whiten = tf.linalg.triangular_solve(factor, eye)
        whitened = tf.matmul(tf.matmul(whiten, covariance), whiten, transpose_b=True)
        ok, whitened = _checked(0.5 * (whitened + tf.transpose(whitened)))
        values, left = tf.linalg.eigh(whitened)
        empty = tf.zeros([0], values.dtype)
        return Factors(factor, whiten, values[::-1], left[:, ::-1], empty, ok)
    d1, d2 = correlation.sizes
    blocks_of_views = within[:d1, :d1], within[d1:, d1:]
    if d1 == d2:
        factor = tf.linalg.cholesky(tf.stack(blocks_of_views))
        whiten = tf.linalg.triangular_solve(factor, tf.eye(d1, batch_shape=[2], dtype=eye.dtype))
        first, second = whiten[0], whiten[1]
    else:
        factor = _block_diagonal(*map(tf.linalg.cholesky, blocks_of_views))
        whiten = tf.linalg.triangular_solve(factor, eye)
        first, second = whiten[:d1, :d1], whiten[d1:, d1:]
    whitened = tf.matmul(tf.matmul(first, covariance[:d1, d1:]), second, transpose_b=True)
    ok, whitened = _checked(whitened)
    values, left, right = tf.linalg.svd(whitened, full_matrices=True)
    return Factors(factor, whiten, values, left, right, ok)


def _block_diagonal(first, second):
    d1, d2 = first.shape[0], second.shape[0]
    return tf.pad(first, [[0, d2]] * 2) + tf.pad(second, [[d1, 0]] * 2)


def _checked(x):
    ok = tf.reduce_all(tf.math.is_finite(x))
    return ok, tf.where(ok, x, tf.zeros_like(x))


def assemble(correlation: Correlation, factors: Factors) -> Spectrum:
    """The spectrum of (2) from its factors; NaN values where the whitening was not finite."""
    factor, whiten, values, left, right, ok = factors
    if correlation.objective == "gcca":
        basis, inverse, rotation = tf.transpose(whiten), tf.transpose(factor), left
    else:
        if factor.shape.rank == 3:
            parts = list(zip(tf.unstack(factor), tf.unstack(whiten), (left, right), strict=True))
        else:
            views = slice(correlation.sizes[0]), slice(correlation.sizes[0], None)
            pairs = zip(views, (left, right), strict=True)
            parts = [(factor[s, s], whiten[s, s], rotation) for s, rotation in pairs]
        basis = rotation = _paired(*(tf.matmul(w, r, transpose_a=True) for _, w, r in parts))
        inverse = tf.transpose(_paired(*(tf.matmul(f, r) for f, _, r in parts)))
        zeros = tf.zeros([correlation.width - 2 * min(correlation.sizes)], values.dtype)
        values = tf.concat([values, zeros, -values[::-1]], 0)
    values = tf.where(ok, values, tf.cast(np.nan, values.dtype))
    first = tf.constant(np.arange(correlation.width) < correlation.num_components)
    selected = tf.cast(first & (values > TINY), values.dtype)
    return Spectrum(values, basis, inverse, rotation, selected)


def decompose(
    correlation: Correlation, covariance: tf.Tensor, unused: tf.Tensor | None = None
) -> Spectrum:
    """Solves (2), see `factorise`. Where S is not finite or B + eps I is not positive definite,
    `values` are NaN (the decompositions themselves would raise)."""
    return assemble(correlation, factorise(correlation, covariance, unused))


def _paired(first, second):
    """From bases of two views (a_i, b_i) / sqrt 2, what has no partner, (a_i, -b_i) / sqrt 2."""
    d1, d2 = first.shape[1], second.shape[1]
    pairs, half = min(d1, d2), np.sqrt(0.5)
    a, b = half * first[:, :pairs], half * second[:, :pairs]
    upper, lower = [a, a[:, ::-1]], [b, -b[:, ::-1]]
    if d1 != d2:
        alone = first[:, pairs:], second[:, pairs:]
        upper.insert(1, tf.pad(alone[0], [[0, 0], [0, d2 - pairs]]))
        lower.insert(1, tf.pad(alone[1], [[0, 0], [d1 - pairs, 0]]))
    return tf.concat([tf.concat(upper, 1), tf.concat(lower, 1)], 0)


def objective(correlation: Correlation, spectrum: Spectrum) -> tf.Tensor:
    """L(S), a scalar: - sum_{i<=k} mu_i, plus J k for "gcca"."""
    return correlation.constant - tf.reduce_sum(spectrum.selected * spectrum.values)


def blocks(correlation: Correlation, x: tf.Tensor) -> tf.Tensor:
    """The mask B in the basis T: symmetric, idempotent, its own adjoint."""
    if correlation.objective == "cca":
        partner, sign = correlation.partner
        if correlation.sizes[0] == correlation.sizes[1]:
            mirrored = tf.reverse(x, [0, 1])
        else:
            mirrored = tf.gather(tf.gather(x, partner, axis=0), partner, axis=1)
            mirrored *= tf.constant(np.outer(sign, sign), x.dtype)
        return 0.5 * (x + mirrored)
    return x * tf.constant(correlation.block_mask, x.dtype)


def gamma_diagonal(correlation: Correlation, spectrum: Spectrum) -> tf.Tensor:
    """For "cca", where `gamma` is diagonal: its diagonal, `[D]`."""
    f, weighted = spectrum.selected, spectrum.selected * spectrum.values
    partner, _ = correlation.partner
    mirrored = tf.gather(tf.stack([f, weighted]), partner, axis=1)
    return 0.5 * (weighted + mirrored[1] - f + mirrored[0])


def gamma(correlation: Correlation, spectrum: Spectrum) -> tf.Tensor:
    """dL/dS in the basis: T^-1 (dL/dS) T^-T = B(Q diag(f mu) Q^T) - K(Q diag(f) Q^T).

    Where mu_k = mu_{k+1} L is not differentiable; this is the gradient for the k vectors that
    the decomposition returns first.
    """
    if correlation.objective == "cca":
        return tf.linalg.diag(gamma_diagonal(correlation, spectrum))
    k = correlation.num_components
    chosen = spectrum.rotation[:, :k] * spectrum.selected[:k]
    n0, n1 = tf.unstack(
        tf.matmul(
            tf.stack([chosen, chosen * spectrum.values[:k]]),
            spectrum.rotation[:, :k],
            transpose_b=True,
        )
    )
    return blocks(correlation, n1) - n0


class Differences(NamedTuple):
    """Divided differences of f, f mu and f mu^2 in mu, each `[D, D]` and symmetric."""

    phi: tf.Tensor
    psi: tf.Tensor
    chi: tf.Tensor


def divided_differences(spectrum: Spectrum) -> Differences:
    """phi, psi, chi of the spectrum; all zero across a gap of at most 1e-9 (a tie at the cut)."""
    f, mu = spectrum.selected[:, None], spectrum.values[:, None]
    g, nu = tf.transpose(f), tf.transpose(mu)
    gap = mu - nu
    cut = (f != g) & (tf.abs(gap) > TINY)
    inverse_gap = tf.where(cut, 1.0 / tf.where(cut, gap, tf.ones_like(gap)), tf.zeros_like(gap))
    both = f * g
    return Differences(
        phi=(f - g) * inverse_gap,
        psi=(f * mu - g * nu) * inverse_gap + both,
        chi=(f * mu**2 - g * nu**2) * inverse_gap + both * (mu + nu),
    )


def gamma_differential(
    correlation: Correlation, rotation: tf.Tensor, differences: Differences, change: tf.Tensor
) -> tf.Tensor:
    """Differential of dL/dS in the basis, T^-1 d(dL/dS) T^-T, for `change` = T^T dS T.

    dN0 = phi o E - psi o H and dN1 = psi o E - chi o H between eigenvectors, with E and H the
    masks K and B of the change.
    """
    phi, psi, chi = differences
    within = blocks(correlation, change)
    if correlation.objective == "cca":  # B(n1) - (n0 - B(n0)), one projection
        e = change - within
        n0, n1 = phi * e - psi * within, psi * e - chi * within
        return blocks(correlation, n0 + n1) - n0
    # Without the part beyond k in both indices, which is zero.
    width, k = correlation.width, correlation.num_components
    chosen = rotation[:, :k]
    both = tf.matmul(tf.concat([change, within], 0), chosen)
    both = tf.concat([both[:width], both[width:]], 1)
    e, h = tf.split(tf.matmul(rotation, both, transpose_a=True), 2, axis=1)
    phi, psi, chi = phi[:, :k], psi[:, :k], chi[:, :k]
    half = tf.constant(np.where(np.arange(width) < k, 0.5, 1.0)[:, None], change.dtype)
    both = tf.concat([half * (phi * e - psi * h), half * (psi * e - chi * h)], 1)
    both = tf.matmul(rotation, both)
    both = tf.matmul(tf.stack([both[:, :k], both[:, k:]]), chosen, transpose_b=True)
    n0, n1 = tf.unstack(both + tf.linalg.matrix_transpose(both))
    return blocks(correlation, n1) - n0
