"""Representers by central differences, Nystroem where it is exact."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from proxnet_tf.ops import kernels

RNG = np.random.default_rng(2)
POINTS, OTHER = RNG.standard_normal((5, 2)), RNG.standard_normal((4, 2))
psd_kernels = tfp.math.psd_kernels


def gaussian(length_scale=0.8):
    return psd_kernels.ExponentiatedQuadratic(length_scale=np.float64(length_scale))


def test_gram_of_derivatives_equals_central_differences():
    h, kernel = 1e-5, psd_kernels.RationalQuadratic(np.float64(1.0))

    def k(x, y):
        return kernel.matrix(tf.constant(x), tf.constant(y)).numpy()

    steps = h * np.eye(2)
    flat, values = kernels.Functionals(POINTS, True), kernels.Functionals(OTHER)
    single = np.stack([(k(POINTS + e, OTHER) - k(POINTS - e, OTHER)) / (2 * h) for e in steps], 1)
    np.testing.assert_allclose(kernels.gram(kernel, flat, values), single.reshape(10, 4), atol=1e-8)
    np.testing.assert_allclose(
        kernels.gram(kernel, values, flat), single.reshape(10, 4).T, atol=1e-8
    )
    both = np.array(kernels.gram(kernel, flat, kernels.Functionals(OTHER, True)))
    for j, e in enumerate(steps):
        slope = kernels.gram(kernel, flat, kernels.Functionals(OTHER + e))
        slope -= kernels.gram(kernel, flat, kernels.Functionals(OTHER - e))
        np.testing.assert_allclose(both[:, j::2], slope / (2 * h), atol=1e-8)
    own = kernels.gram(kernel, flat, flat).numpy()
    np.testing.assert_allclose(own, own.T, atol=1e-12)
    assert np.linalg.eigvalsh(own).min() > -1e-10


def test_graph_laplacian_is_the_sum_over_pairs():
    adjacency = np.abs(RNG.standard_normal((5, 5)))
    adjacency += adjacency.T
    functionals = kernels.graph_laplacian(POINTS, adjacency)
    f = RNG.standard_normal(5)
    energy = ((functionals.combination.numpy() @ f) ** 2).sum() / 2
    pairs = (adjacency * (f[:, np.newaxis] - f) ** 2).sum() / 2
    np.testing.assert_allclose(energy, pairs, rtol=1e-12)


def test_neighbor_adjacency():
    line = np.array([[0.0], [1.0], [2.5], [10.0]])
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    np.testing.assert_array_equal(kernels.neighbor_adjacency(line, 1), expected)


def test_nystroem_is_exact_on_the_landmarks():
    whitening = kernels.nystroem(gaussian(), POINTS)
    phi = tf.matmul(gaussian().matrix(OTHER, POINTS), whitening)
    at_landmarks = tf.matmul(gaussian().matrix(POINTS, POINTS), whitening)
    expected = gaussian().matrix(OTHER, POINTS)
    np.testing.assert_allclose(tf.matmul(phi, at_landmarks, transpose_b=True), expected, atol=1e-8)
    flat = kernels.Functionals(POINTS, derivative=True)
    embedded = kernels.embedded_representers(gaussian(), POINTS, whitening, flat)
    z = kernels.gram(gaussian(), kernels.Functionals(POINTS), flat)
    np.testing.assert_allclose(tf.matmul(at_landmarks, embedded), z, atol=1e-8)


def test_inverse_square_root_of_a_singular_matrix():
    half = RNG.standard_normal((4, 2))
    linear = psd_kernels.Linear(slope_amplitude=np.float64(1))  # k(x, y) = x^T y
    root = kernels.nystroem(linear, tf.constant(half)).numpy()
    np.testing.assert_allclose(root @ root, np.linalg.pinv(half @ half.T), atol=1e-8)
