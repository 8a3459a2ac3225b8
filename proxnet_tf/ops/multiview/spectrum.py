"""The spectrum of covariances of views, equation (2) of `correlation`, and functions of it."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Eigenvalues below this carry no correlation; smaller gaps across the cut count as ties.
TINY = 1e-7


class Spectrum(NamedTuple):
    """Solution of (2), values in descending order.

    Attributes:
        values: mu, `[D]`. For `CCA`: sigma_1..sigma_m, zeros, -sigma_m..-sigma_1.
        basis: T, `[D, D]`, block-diagonal.
        inverse: T^-1.
        rotation: the orthogonal Q in U = T Q.
        selected: `[D]`, one for i <= k with mu_i > 1e-7, else zero.
    """

    values: tf.Tensor
    basis: tf.Tensor
    inverse: tf.Tensor
    rotation: tf.Tensor
    selected: tf.Tensor


class Factors(NamedTuple):
    """The results of the decompositions from which products give a `Spectrum`.

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


def total(spectrum: Spectrum) -> tf.Tensor:
    """The sum of the selected mu_i, a scalar."""
    return tf.reduce_sum(spectrum.selected * spectrum.values)


def divided_differences(spectrum: Spectrum) -> Differences:
    """phi, psi, chi of the spectrum; all zero across a gap of at most 1e-7 (a tie at the cut)."""
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


def selected_values(values: tf.Tensor, k: int) -> tf.Tensor:
    """One for each of the first k values that is above 1e-7, else zero."""
    first = tf.constant(np.arange(values.shape[0]) < k)
    return tf.cast(first & (values > TINY), values.dtype)
