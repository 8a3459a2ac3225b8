"""Correlation of views as a function of their covariance: value, gradient and its differential.

Views X_1..X_J side by side have the covariance S (D x D). Two entrywise masks of S enter the
generalized symmetric eigenproblem

    K(S) v = mu (B(S) + eps I) v,     U^T (B(S) + eps I) U = I,     mu_1 >= mu_2 >= ...      (2)

where B keeps the blocks within the views, and K the blocks between views (`CCA`, two views, where
the positive mu are the canonical correlations) or all blocks (`GCCA`). The objectives are

    CCA:  L(S) = - sum_{i<=k} mu_i,          GCCA:  L(S) = J k - sum_{i<=k} mu_i.

Everything is evaluated in a block-diagonal basis T with T^T (B(S) + eps I) T = I, and U = T Q with
an orthogonal Q. `GCCA` takes T = L^-T with the Cholesky factor L of B(S) + eps I. `CCA` takes the
canonical vectors of each view, so that Q is the same for all S: it pairs the i-th vectors a_i and
b_i of the views to (a_i, b_i) / sqrt 2 and (a_i, -b_i) / sqrt 2. In the basis, a covariance X
(S, dS) becomes T^T X T, a gradient X with respect to S becomes T^-1 X T^-T, and the masks
stay the same. No formula divides by the gap of two eigenvalues on the same side of the
cut k | k+1.

References: Li, Ma, Zhang (2020), equation (2) and the appendix on multiview learning; Andrew,
Arora, Bilmes, Livescu (2013).
"""

import abc
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.number import guarded, nan_unless
from proxnet_tf.ops.multiview.spectrum import (
    TINY,
    Differences,
    Factors,
    Spectrum,
    divided_differences,
    selected_values,
    total,
)

# Up to this width one product with a sparse matrix costs less than several small ones.
DENSE = 128


@dataclass(frozen=True)
class Correlation(abc.ABC):
    """The type of correlation and the widths of the views: all that is known before the data.

    Two correlations of one type with equal sizes and k are equal, and share compiled functions.

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

    def value_and_slope(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L(S) and dL/dS, see `factorise`; NaN if `decompose` returns NaN."""
        spectrum = self.decompose(covariance, epsilon, unused)
        slope = self.times_slope(spectrum.basis, self.slope(spectrum))
        return self.value(spectrum), self.by_view(slope, tf.transpose(spectrum.basis))

    def value(self, spectrum: Spectrum) -> tf.Tensor:
        """L(S), a scalar."""
        return self.constant - total(spectrum)

    def blocks(self, x: tf.Tensor) -> tf.Tensor:
        """The mask B: symmetric, idempotent, its own adjoint."""
        return x * tf.constant(self.block_mask, x.dtype)

    def by_view(self, x: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
        """x times a block-diagonal matrix `[D, D]`: view by view where that is cheaper."""
        if self.width < DENSE:
            return tf.matmul(x, blocks)
        parts = [tf.matmul(x[:, s], blocks[s, s]) for s in self.slices]
        return tf.concat(parts, 1)

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
    def second_slope(self, spectrum: Spectrum, change: tf.Tensor) -> tf.Tensor:
        """The differential of dL/dS for a symmetric `change` of S, `[D, D]`: self-adjoint."""


class CCA(Correlation):
    """Two views; the positive mu of (2) are their canonical correlations.

    Attributes:
        sizes: widths (d_1, d_2).
        num_components: k, at most min(d_1, d_2).
    """

    @property
    def constant(self) -> float:
        return 0.0

    @property
    def pairs(self) -> int:
        """m = min(d_1, d_2), the number of canonical pairs."""
        return min(self.sizes)

    def _whitened(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None
    ) -> tuple[tf.Tensor, ...]:
        """Factor and whitening as in `Factors`, that of each view, T between views, if finite."""
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
        return factor, whiten, first, second, whitened, ok

    def factorise(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> Factors:
        factor, whiten, _, _, whitened, ok = self._whitened(covariance, epsilon, unused)
        return Factors(factor, whiten, *_singular_vectors(whitened), ok)

    def value_and_slope(
        self, covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Uses the k canonical vectors only: those of one view, and T for those of the other."""
        _, _, first, second, whitened, ok = self._whitened(covariance, epsilon, unused)
        wide = self.sizes[0] < self.sizes[1]
        t = tf.transpose(whitened) if wide else whitened
        vectors = tf.linalg.eigh(tf.matmul(t, t, transpose_a=True))[1]
        vectors = vectors[:, : -1 - self.num_components : -1]
        moved = tf.matmul(t, vectors)
        sigma = tf.norm(moved, axis=0)
        selected = tf.cast(sigma > TINY, sigma.dtype)
        pair = moved * tf.math.divide_no_nan(selected, sigma), vectors * selected
        left, right = reversed(pair) if wide else pair
        a, b = tf.matmul(first, left, transpose_a=True), tf.matmul(second, right, transpose_a=True)
        across = tf.matmul(-0.5 * a, b, transpose_b=True)
        own = [tf.matmul(0.5 * sigma * v, v, transpose_b=True) for v in (a, b)]
        rows = [tf.concat([own[0], across], 1), tf.concat([tf.transpose(across), own[1]], 1)]
        return nan_unless(ok, -tf.reduce_sum(selected * sigma)), nan_unless(ok, tf.concat(rows, 0))

    def assemble(self, factors: Factors) -> Spectrum:
        factor, whiten, values, left, right, ok = factors
        if factor.shape.rank == 3:
            rotations = tf.stack([left, right])
            basis = _block_diagonal(*tf.unstack(tf.matmul(whiten, rotations, transpose_a=True)))
            inverse = _block_diagonal(*tf.unstack(tf.matmul(rotations, factor, True, True)))
        else:
            rotations = _block_diagonal(left, right)
            basis = tf.matmul(whiten, rotations, transpose_a=True)
            inverse = tf.matmul(rotations, factor, transpose_a=True, transpose_b=True)
        zeros = tf.zeros([self.width - 2 * self.pairs], values.dtype)
        values = nan_unless(ok, tf.concat([values, zeros, -values[::-1]], 0))
        return Spectrum(
            values=values,
            basis=basis,
            inverse=inverse,
            rotation=self.paired(tf.eye(self.width, dtype=values.dtype)),
            selected=selected_values(values, self.num_components),
        )

    def paired(self, x: tf.Tensor) -> tf.Tensor:
        """x Q: from columns a_i, b_i to (a_i + b_i) / sqrt 2, columns without partner, and
        (a_i - b_i) / sqrt 2 in reverse."""
        (d1, _), m, half = self.sizes, self.pairs, np.sqrt(0.5)
        a, b = half * x[:, :m], half * x[:, d1 : d1 + m]
        return tf.concat([a + b, x[:, m:d1], x[:, d1 + m :], (a - b)[:, ::-1]], 1)

    def unpaired(self, x: tf.Tensor) -> tf.Tensor:
        """x Q^T, the inverse of `paired`."""
        (d1, d2), m, half = self.sizes, self.pairs, np.sqrt(0.5)
        u, v = half * x[:, :m], half * x[:, -m:][:, ::-1]
        return tf.concat([u + v, x[:, m:d1], u - v, x[:, d1 : d1 + d2 - m]], 1)

    def paired_blocks(self, x: tf.Tensor) -> tf.Tensor:
        """The mask B between pairs, Q^T B(Q x Q^T) Q: half of x and of x with view 2 reversed."""
        d1, d2 = self.sizes
        if d1 == d2:
            return 0.5 * (x + tf.reverse(x, [0, 1]))
        partner = np.arange(self.width)[::-1].copy()
        alone = slice(self.pairs, -self.pairs)
        partner[alone] = np.arange(self.width)[alone]
        sign = np.ones(self.width)
        sign[alone] = 1.0 if d1 > d2 else -1.0
        mirrored = tf.gather(tf.gather(x, partner, axis=0), partner, axis=1)
        return 0.5 * (x + tf.constant(np.outer(sign, sign), x.dtype) * mirrored)

    def slope(self, spectrum: Spectrum) -> tf.Tensor:
        """B has f_i sigma_i / 2 on its diagonals, K has f_i / 2 between a_i and b_i."""
        (d1, d2), m = self.sizes, self.pairs
        f, sigma = spectrum.selected[:m], spectrum.values[:m]
        within, between = 0.5 * f * sigma, -0.5 * f
        corner = tf.linalg.diag(between, num_rows=d1, num_cols=d2)
        ones = [tf.linalg.diag(tf.pad(within, [[0, d - m]])) for d in self.sizes]
        rows = [tf.concat([ones[0], corner], 1), tf.concat([tf.transpose(corner), ones[1]], 1)]
        return tf.concat(rows, 0)

    def times_slope(self, x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        (d1, d2), m = self.sizes, self.pairs
        if self.width < DENSE:
            return tf.matmul(x, slope)
        diagonal = tf.linalg.diag_part(slope)
        between = tf.linalg.diag_part(slope[:m, d1 : d1 + m])
        a, b = x[:, :m] * between, x[:, d1 : d1 + m] * between
        across = [tf.pad(b, [[0, 0], [0, d1 - m]]), tf.pad(a, [[0, 0], [0, d2 - m]])]
        return x * diagonal + tf.concat(across, 1)

    def paired_differential(self, differences: Differences, change: tf.Tensor) -> tf.Tensor:
        """Differential of dL/dS between pairs, U^-1 d(dL/dS) U^-T, for `change` = U^T dS U.

        dN0 = phi o E - psi o H and dN1 = psi o E - chi o H, with E and H the masks K and B of the
        change.
        """
        phi, psi, chi = differences
        within = self.paired_blocks(change)
        e = change - within
        n0, n1 = phi * e - psi * within, psi * e - chi * within
        return self.paired_blocks(n0 + n1) - n0  # B(n1) - (n0 - B(n0)) by one projection

    def second_slope(self, spectrum: Spectrum, change: tf.Tensor) -> tf.Tensor:
        basis, differences = spectrum.basis, divided_differences(spectrum)
        inside = tf.matmul(basis, tf.matmul(change, basis), transpose_a=True)
        between = self.paired(tf.transpose(self.paired(inside)))
        changed = self.paired_differential(differences, between)
        changed = self.unpaired(tf.transpose(self.unpaired(changed)))
        return tf.matmul(basis, tf.matmul(changed, basis, transpose_b=True))


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
        values = nan_unless(factors.ok, factors.values)
        return Spectrum(
            values=values,
            basis=tf.transpose(factors.whiten),
            inverse=tf.transpose(factors.factor),
            rotation=factors.left,
            selected=selected_values(values, self.num_components),
        )

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
        """Differential of dL/dS in the basis, T^-1 d(dL/dS) T^-T, for `change` = T^T dS T.

        dN0 = phi o E - psi o H and dN1 = psi o E - chi o H between eigenvectors, with E and H the
        masks K and B of the change. The part beyond k in both indices is left out: it is zero.
        """
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

    def second_slope(self, spectrum: Spectrum, change: tf.Tensor) -> tf.Tensor:
        basis, differences = spectrum.basis, divided_differences(spectrum)
        inside = tf.matmul(basis, tf.matmul(change, basis), transpose_a=True)
        changed = self.differential(spectrum.rotation, differences, inside)
        return tf.matmul(basis, tf.matmul(changed, basis, transpose_b=True))


def _regularized(covariance: tf.Tensor, epsilon: tf.Tensor, unused: tf.Tensor | None) -> tf.Tensor:
    within = covariance + epsilon * tf.eye(covariance.shape[0], dtype=covariance.dtype)
    return within if unused is None else within + unused


def _singular_vectors(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Singular values, left and right vectors (square matrices), by one `eigh` and one `qr`.

    On the CPU that takes half of the time of `svd`. Values below 1e-8 of the largest are rounding.
    """
    if x.shape[0] < x.shape[1]:
        values, right, left = _singular_vectors(tf.transpose(x))
        return values, left, right
    right = tf.linalg.eigh(tf.matmul(x, x, transpose_a=True))[1][:, ::-1]
    left, triangle = tf.linalg.qr(tf.matmul(x, right), full_matrices=True)
    diagonal = tf.linalg.diag_part(triangle)
    sign = tf.where(diagonal < 0, -tf.ones_like(diagonal), tf.ones_like(diagonal))
    sign = tf.concat([sign, tf.ones([x.shape[0] - x.shape[1]], x.dtype)], 0)
    return tf.abs(diagonal), left * sign, right


def _block_diagonal(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    d1, d2 = first.shape[0], second.shape[0]
    return tf.pad(first, [[0, d2]] * 2) + tf.pad(second, [[d1, 0]] * 2)
