"""Correlation of views as a function of their covariance: value, gradient and its differential.

Views X_1..X_J side by side have the covariance S (D x D). Two entrywise masks of S enter the
generalized symmetric eigenproblem

    K(S) v = mu (B(S) + eps I) v,     U^T (B(S) + eps I) U = I,     mu_1 >= mu_2 >= ...      (2)

with B the blocks of the views themselves and K the blocks between views (`CCA`, two views, where
the positive mu are the canonical correlations) or all blocks (`GCCA`). The objectives are

    CCA:  L(S) = - sum_{i<=k} mu_i,          GCCA:  L(S) = J k - sum_{i<=k} mu_i.

Everything is evaluated in a basis T with T^T (B(S) + eps I) T = I, and U = T Q with an orthogonal
Q: `CCA` takes T = U and Q = I, `GCCA` takes T = L^-T with the Cholesky factor L of B(S) + eps I.
There a matrix X that acts on covariances (S, dS) becomes T^T X T, one that acts on gradients
becomes T^-1 X T^-T. In both, the mask B turns into the same symmetric projection `blocks`, and no
formula divides by the gap of two eigenvalues on the same side of the cut k | k+1.

References: Li, Ma, Zhang (2020), equation (2) and the appendix on multiview learning; Andrew,
Arora, Bilmes, Livescu (2013).
"""

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview.guard import guarded, spoiled

# Eigenvalues below it carry no correlation; gaps across the cut below it are ties.
TINY = 1e-9


class Spectrum(NamedTuple):
    """Solution of (2), values in descending order.

    Attributes:
        values: mu, `[D]`. For `CCA`: sigma_1..sigma_m, zeros, -sigma_m..-sigma_1.
        basis: T, `[D, D]`.
        inverse: T^-1.
        rotation: the orthogonal Q in U = T Q.
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
        factor: Cholesky factor of B + eps I, as the type of correlation lays it out.
        whiten: its inverse, likewise.
        values: singular values or eigenvalues of the whitened covariance.
        left: left singular vectors, or the eigenvectors.
        right: right singular vectors; the eigenvectors again where there are no others.
        ok: whether the whitened covariance was finite.
    """

    factor: tf.Tensor
    whiten: tf.Tensor
    values: tf.Tensor
    left: tf.Tensor
    right: tf.Tensor
    ok: tf.Tensor


class Differences(NamedTuple):
    """Divided differences of f, f mu and f mu^2 in mu, each `[D, D]` and symmetric."""

    phi: tf.Tensor
    psi: tf.Tensor
    chi: tf.Tensor


class Subspace(NamedTuple):
    """Directions along which the second metric of a preconditioner acts, see `Correlation.shared`.

    Attributes:
        rows: `[D, r]`.
        columns: first and last column of V' (exclusive) that the directions are for.
    """

    rows: tf.Tensor
    columns: tuple[int, int]


@dataclass(frozen=True)
class Correlation(abc.ABC):
    """Which correlation of which views: everything that is known before the data.

    Two correlations of one type, equal sizes and equal k are equal, and share what was compiled.

    Attributes:
        sizes: widths d_1..d_J of the views.
        num_components: k.
    """

    sizes: tuple[int, ...]
    num_components: int

    @property
    def width(self) -> int:
        """D, the number of columns of all views side by side."""
        return sum(self.sizes)

    @property
    @abc.abstractmethod
    def constant(self) -> float:
        """What L adds to - sum_{i<=k} mu_i."""

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The columns of each view."""
        ends = np.cumsum(self.sizes)
        return tuple(slice(int(e - d), int(e)) for e, d in zip(ends, self.sizes, strict=True))

    @cached_property
    def block_mask(self) -> np.ndarray:
        """D x D, one inside the blocks of the views."""
        view: np.ndarray = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return (view[:, None] == view[None]).astype("float64")

    @abc.abstractmethod
    def factorise(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> Factors:
        """The decompositions that (2) needs, for a float64 covariance `[D, D]`.

        Args:
            covariance: S, symmetric.
            epsilon: scalar >= 0.
            unused: block-diagonal projection onto what lies outside the row spaces of the views;
                B is the identity there, so that eps = 0 and rank-deficient views are well defined.
        """

    @abc.abstractmethod
    def assemble(self, factors: Factors) -> Spectrum:
        """The spectrum of (2) from its factors; NaN values where the whitening was not finite."""

    def decompose(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> Spectrum:
        """Solves (2), see `factorise`. Where S is not finite or B + eps I is not positive definite,
        `values` are NaN (the decompositions themselves would raise)."""
        return self.assemble(self.factorise(covariance, epsilon, unused))

    def value(self, spectrum: Spectrum) -> tf.Tensor:
        """L(S), a scalar."""
        return self.constant - total(spectrum)

    @abc.abstractmethod
    def blocks(self, x: tf.Tensor) -> tf.Tensor:
        """The mask B in the basis T: symmetric, idempotent, its own adjoint."""

    @abc.abstractmethod
    def slope(self, spectrum: Spectrum) -> tf.Tensor:
        """dL/dS in the basis: T^-1 (dL/dS) T^-T = B(Q diag(f mu) Q^T) - K(Q diag(f) Q^T).

        Where mu_k = mu_{k+1} L is not differentiable; this is the gradient for the k vectors that
        the decomposition returns first.
        """

    def times_slope(self, x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        """x times a matrix of the form of `slope`."""
        return tf.matmul(x, slope)

    @abc.abstractmethod
    def differential(
        self, rotation: tf.Tensor, differences: Differences, change: tf.Tensor
    ) -> tf.Tensor:
        """Differential of dL/dS in the basis, T^-1 d(dL/dS) T^-T, for `change` = T^T dS T.

        dN0 = phi o E - psi o H and dN1 = psi o E - chi o H between eigenvectors, with E and H the
        masks K and B of the change.
        """

    @abc.abstractmethod
    def positive_part(self, slope: tf.Tensor) -> tf.Tensor:
        """What a preconditioner keeps of t Gam', so that the rest is positive semidefinite."""

    @abc.abstractmethod
    def shared(self, wt: tf.Tensor, c: tf.Tensor, spectrum: Spectrum) -> list[Subspace]:
        """Directions of V' along which L hardly changes, although t Gam' is in the metric.

        L does not change when a view is multiplied by a matrix, P_j -> P_j A_j (but for the
        ridge): along W blockdiag(A) dGam takes back what t Gam' has.

        Args:
            wt: W T, `[D, D]`.
            c: 1/(n - 1).
            spectrum: at W.
        """

    @abc.abstractmethod
    def retract(
        self, v: tf.Tensor, wt: tf.Tensor, shared: list[Subspace], c: tf.Tensor, spectrum: Spectrum
    ) -> tf.Tensor:
        """V' with a second-order term that follows the curved valley of small ||F||."""


class CCA(Correlation):
    """Two views; the positive mu of (2) are their canonical correlations.

    The eigenvectors come in pairs (a_i, b_i)/sqrt 2 and (a_i, -b_i)/sqrt 2 for mu = +-sigma_i.

    Attributes:
        sizes: widths (d_1, d_2).
        num_components: k, at most min(d_1, d_2).
    """

    @property
    def constant(self) -> float:
        return 0.0

    @cached_property
    def partner(self) -> tuple[np.ndarray, np.ndarray]:
        """Changing the sign of view 2 maps u_i to sign_i u_partner(i)."""
        d1, d2 = self.sizes
        partner = np.arange(self.width)[::-1].copy()
        alone = slice(min(d1, d2), max(d1, d2))
        partner[alone] = np.arange(self.width)[alone]
        sign = np.ones(self.width)
        sign[alone] = 1.0 if d1 > d2 else -1.0
        return partner, sign

    def factorise(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> Factors:
        within = _regularized(covariance, epsilon, unused)
        d1, d2 = self.sizes
        views = within[:d1, :d1], within[d1:, d1:]
        if d1 == d2:  # one batched call
            factor = tf.linalg.cholesky(tf.stack(views))
            eye = tf.eye(d1, batch_shape=[2], dtype=within.dtype)
            whiten = tf.linalg.triangular_solve(factor, eye)
            first, second = whiten[0], whiten[1]
        else:
            factor = _block_diagonal(*map(tf.linalg.cholesky, views))
            whiten = tf.linalg.triangular_solve(factor, tf.eye(self.width, dtype=within.dtype))
            first, second = whiten[:d1, :d1], whiten[d1:, d1:]
        whitened = tf.matmul(tf.matmul(first, covariance[:d1, d1:]), second, transpose_b=True)
        ok, whitened = guarded(whitened)
        values, left, right = tf.linalg.svd(whitened, full_matrices=True)
        return Factors(factor, whiten, values, left, right, ok)

    def assemble(self, factors: Factors) -> Spectrum:
        factor, whiten, values, left, right, ok = factors
        if factor.shape.rank == 3:
            parts = list(zip(tf.unstack(factor), tf.unstack(whiten), (left, right), strict=True))
        else:
            pairs = zip(self.slices, (left, right), strict=True)
            parts = [(factor[s, s], whiten[s, s], rotation) for s, rotation in pairs]
        basis = _paired(*(tf.matmul(w, r, transpose_a=True) for _, w, r in parts))
        inverse = tf.transpose(_paired(*(tf.matmul(f, r) for f, _, r in parts)))
        zeros = tf.zeros([self.width - 2 * min(self.sizes)], values.dtype)
        values = spoiled(ok, tf.concat([values, zeros, -values[::-1]], 0))
        rotation = tf.eye(self.width, dtype=values.dtype)
        return Spectrum(values, basis, inverse, rotation, _selected(values, self.num_components))

    def blocks(self, x: tf.Tensor) -> tf.Tensor:
        if self.sizes[0] == self.sizes[1]:
            mirrored = tf.reverse(x, [0, 1])
        else:
            partner, sign = self.partner
            mirrored = tf.gather(tf.gather(x, partner, axis=0), partner, axis=1)
            mirrored *= tf.constant(np.outer(sign, sign), x.dtype)
        return 0.5 * (x + mirrored)

    def slope(self, spectrum: Spectrum) -> tf.Tensor:
        f, weighted = spectrum.selected, spectrum.selected * spectrum.values
        mirrored = tf.gather(tf.stack([f, weighted]), self.partner[0], axis=1)
        return tf.linalg.diag(0.5 * (weighted + mirrored[1] - f + mirrored[0]))

    def times_slope(self, x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        return x * tf.linalg.diag_part(slope)

    def differential(
        self, rotation: tf.Tensor, differences: Differences, change: tf.Tensor
    ) -> tf.Tensor:
        phi, psi, chi = differences
        within = self.blocks(change)
        e = change - within
        n0, n1 = phi * e - psi * within, psi * e - chi * within
        return self.blocks(n0 + n1) - n0  # B(n1) - (n0 - B(n0)), one projection

    def positive_part(self, slope: tf.Tensor) -> tf.Tensor:
        return tf.maximum(slope, 0.0)  # it is diagonal

    def shared(self, wt: tf.Tensor, c: tf.Tensor, spectrum: Spectrum) -> list[Subspace]:
        """One for all columns: what the views share, W u_i (unit columns, zero beyond k)."""
        pairs = min(self.sizes)
        leading = wt[:, :pairs]
        size = tf.norm(leading, axis=0)
        rows = leading * tf.math.divide_no_nan(spectrum.selected[:pairs], size)
        return [Subspace(rows, (0, self.width))]

    def retract(
        self, v: tf.Tensor, wt: tf.Tensor, shared: list[Subspace], c: tf.Tensor, spectrum: Spectrum
    ) -> tf.Tensor:
        """As the correlations approach one the W v_j, v_j = (a_j, -b_j), vanish, and what the step
        adds to them along the W u_i must follow the step of the W u_i. Far from one, where this
        says nothing, sigma_j^4 fades it out."""
        pairs = min(self.sizes)
        size = tf.norm(wt[:, :pairs], axis=0)
        (common, _), *_ = shared
        shift = v[:, :pairs] - tf.matmul(common, tf.matmul(common, v[:, :pairs], transpose_a=True))
        shift = tf.math.divide_no_nan(shift, size)
        shift = tf.matmul(shift, tf.matmul(common, v[:, -pairs:], transpose_a=True))
        shift *= spectrum.values[-pairs:] ** 4
        return v + tf.pad(shift, [[0, 0], [self.width - pairs, 0]])


class GCCA(Correlation):
    """Two or more views and the k directions that they share most: mu of (2) with all blocks.

    Attributes:
        sizes: widths (d_1, .., d_J).
        num_components: k, at most d_1 + .. + d_J.
    """

    @property
    def constant(self) -> float:
        return float(len(self.sizes) * self.num_components)

    def factorise(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> Factors:
        within = _regularized(covariance, epsilon, unused)
        factor = tf.linalg.cholesky(self.blocks(within))
        whiten = tf.linalg.triangular_solve(factor, tf.eye(self.width, dtype=factor.dtype))
        whitened = tf.matmul(tf.matmul(whiten, covariance), whiten, transpose_b=True)
        ok, whitened = guarded(0.5 * (whitened + tf.transpose(whitened)))
        values, vectors = tf.linalg.eigh(whitened)
        vectors = vectors[:, ::-1]
        return Factors(factor, whiten, values[::-1], vectors, vectors, ok)

    def assemble(self, factors: Factors) -> Spectrum:
        values = spoiled(factors.ok, factors.values)
        return Spectrum(
            values=values,
            basis=tf.transpose(factors.whiten),
            inverse=tf.transpose(factors.factor),
            rotation=factors.left,
            selected=_selected(values, self.num_components),
        )

    def blocks(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.constant(self.block_mask, x.dtype)

    def slope(self, spectrum: Spectrum) -> tf.Tensor:
        k = self.num_components
        vectors = spectrum.rotation[:, :k]
        chosen = vectors * spectrum.selected[:k]
        both = tf.stack([chosen, chosen * spectrum.values[:k]])
        n0, n1 = tf.unstack(tf.matmul(both, vectors, transpose_b=True))
        return self.blocks(n1) - n0

    def differential(
        self, rotation: tf.Tensor, differences: Differences, change: tf.Tensor
    ) -> tf.Tensor:
        # Without the part beyond k in both indices, which is zero.
        width, k = self.width, self.num_components
        phi, psi, chi = (x[:, :k] for x in differences)
        chosen = rotation[:, :k]
        both = tf.matmul(tf.concat([change, self.blocks(change)], 0), chosen)
        both = tf.concat([both[:width], both[width:]], 1)
        e, h = tf.split(tf.matmul(rotation, both, transpose_a=True), 2, axis=1)
        half = tf.constant(np.where(np.arange(width) < k, 0.5, 1.0)[:, None], change.dtype)
        both = tf.concat([half * (phi * e - psi * h), half * (psi * e - chi * h)], 1)
        both = tf.matmul(rotation, both)
        both = tf.matmul(tf.stack([both[:, :k], both[:, k:]]), chosen, transpose_b=True)
        n0, n1 = tf.unstack(both + tf.linalg.matrix_transpose(both))
        return self.blocks(n1) - n0

    def positive_part(self, slope: tf.Tensor) -> tf.Tensor:
        values, vectors = tf.linalg.eigh(slope)
        return tf.matmul(vectors * tf.maximum(values, 0.0), vectors, transpose_b=True)

    def shared(self, wt: tf.Tensor, c: tf.Tensor, spectrum: Spectrum) -> list[Subspace]:
        """One a view: c^(1/2) W_j L_j^-T, orthonormal up to the ridge."""
        return [Subspace(tf.sqrt(c) * wt[:, s], (s.start, s.stop)) for s in self.slices]

    def retract(
        self, v: tf.Tensor, wt: tf.Tensor, shared: list[Subspace], c: tf.Tensor, spectrum: Spectrum
    ) -> tf.Tensor:
        """L does not change when a view is multiplied by a matrix. What of the step is such a
        product, W_j A_j, and the rest V_j combine as (W_j + V_j)(I + A_j), which adds V_j A_j."""
        parts = []
        for rows, (start, stop) in shared:
            part = v[:, start:stop]
            inner = tf.matmul(rows, part, transpose_a=True)
            rest = part - tf.matmul(rows, inner)
            parts.append(part + tf.sqrt(c) * tf.matmul(rest, inner))
        return tf.concat(parts, 1)


def total(spectrum: Spectrum) -> tf.Tensor:
    """The sum of the selected mu_i, a scalar."""
    return tf.reduce_sum(spectrum.selected * spectrum.values)


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


def _regularized(covariance, epsilon, unused):
    within = covariance + epsilon * tf.eye(covariance.shape[0], dtype=covariance.dtype)
    return within if unused is None else within + unused


def _selected(values, k):
    first = tf.constant(np.arange(values.shape[0]) < k)
    return tf.cast(first & (values > TINY), values.dtype)


def _block_diagonal(first, second):
    d1, d2 = first.shape[0], second.shape[0]
    return tf.pad(first, [[0, d2]] * 2) + tf.pad(second, [[d1, 0]] * 2)


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
