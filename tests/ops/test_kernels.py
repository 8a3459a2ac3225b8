"""Representers by central differences, exact warped kernels against a finite-dimensional model."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from proxnet_tf.ops import kernels

RNG = np.random.default_rng(2)
POINTS, OTHER = RNG.standard_normal((5, 2)), RNG.standard_normal((4, 2))
psd_kernels = tfp.math.psd_kernels


def gaussian(length_scale=0.8):
    return psd_kernels.ExponentiatedQuadratic(length_scale=np.float64(length_scale))


def cubic():
    """(1 + <x, y>)^3: ten monomials, so that the whole space is at hand."""
    linear = psd_kernels.Linear(bias_amplitude=np.float64(1), slope_amplitude=np.float64(1))
    return linear * linear * linear


def monomials(x):
    """phi with <phi(x), phi(y)> = (1 + <x, y>)^3."""
    a, b = x[:, 0], x[:, 1]
    return np.stack(
        [
            np.ones_like(a),
            3**0.5 * a,
            3**0.5 * b,
            3**0.5 * a**2,
            3**0.5 * b**2,
            6**0.5 * a * b,
            a**3,
            b**3,
            3**0.5 * a**2 * b,
            3**0.5 * a * b**2,
        ],
        axis=1,
    )


def monomial_gradients(x, h=1e-5):
    """Representers of the partial derivatives as rows, x_i by x_i."""
    steps = h * np.eye(2)
    parts = [(monomials(x + e) - monomials(x - e)) / (2 * h) for e in steps]
    return np.stack(parts, axis=1).reshape(-1, 10)


@pytest.mark.parametrize("kernel", [gaussian(), psd_kernels.RationalQuadratic(np.float64(1.0))])
def test_gram_of_derivatives_equals_central_differences(kernel):
    h = 1e-5

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
    functionals = kernels.graph_laplacian(POINTS, adjacency, weight=0.7)
    f = RNG.standard_normal(5)
    energy = ((functionals.combination.numpy() @ f) ** 2).sum() / 2
    pairs = 0.7 / 2 * (adjacency * (f[:, np.newaxis] - f) ** 2).sum()
    np.testing.assert_allclose(energy, pairs, rtol=1e-12)


def test_neighbor_adjacency():
    line = np.array([[0.0], [1.0], [2.5], [10.0]])
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    np.testing.assert_array_equal(kernels.neighbor_adjacency(line, 1), expected)


FUNCTIONALS = {
    "gradient_flatness": kernels.gradient_flatness(POINTS, 0.5),
    "graph_laplacian": kernels.graph_laplacian(POINTS, kernels.neighbor_adjacency(POINTS, 2)),
}


@pytest.mark.parametrize("lam", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("name", sorted(FUNCTIONALS))
def test_inner_products_and_distances_equal_the_map_in_feature_space(name, lam):
    """The space of cubics has ten dimensions: (2) is a dense 10 x 10 solve there."""
    functionals = FUNCTIONALS[name]
    rows = monomial_gradients(POINTS) if functionals.derivative else monomials(POINTS)
    z = functionals.combination.numpy() @ rows
    for power in (-1.0, -0.5):
        values, vectors = np.linalg.eigh(np.eye(10) + z.T @ z / lam)
        move = (vectors * values**power) @ vectors.T
        x, y = monomials(POINTS) @ move, monomials(OTHER) @ move
        products = kernels.invariant_inner_products(cubic(), functionals, POINTS, OTHER, lam, power)
        np.testing.assert_allclose(products, x @ y.T, atol=1e-6 * np.abs(x @ y.T).max())
        distances = kernels.invariant_distances(cubic(), functionals, POINTS, OTHER, lam, power)
        expected = np.linalg.norm(x[:, np.newaxis] - y, axis=-1)
        np.testing.assert_allclose(distances, expected, atol=1e-5 * expected.max())


def test_the_limits_of_lam():
    functionals = kernels.gradient_flatness(POINTS)
    plain = gaussian().matrix(POINTS, OTHER)
    products = kernels.invariant_inner_products(gaussian(), functionals, POINTS, OTHER, 1e12)
    np.testing.assert_allclose(products, plain, atol=1e-9)
    # lam -> 0: orthogonal to every representer, so that functions of c_x are flat at the points.
    step = 1e-3 * np.array([[1.0, 1.0]])
    near = kernels.invariant_distances(gaussian(), functionals, POINTS, POINTS + step, 1e-9)
    far = kernels.invariant_distances(gaussian(), functionals, POINTS, POINTS + step, 1e9)
    assert (np.diag(near) < 0.05 * np.diag(far)).all()


def test_nystroem_is_exact_on_the_landmarks():
    whitening = kernels.nystroem(gaussian(), POINTS)
    phi = tf.matmul(gaussian().matrix(OTHER, POINTS), whitening)
    at_landmarks = tf.matmul(gaussian().matrix(POINTS, POINTS), whitening)
    expected = gaussian().matrix(OTHER, POINTS)
    np.testing.assert_allclose(tf.matmul(phi, at_landmarks, transpose_b=True), expected, atol=1e-8)
    flat = kernels.gradient_flatness(POINTS)
    embedded = kernels.embedded_representers(gaussian(), POINTS, whitening, flat)
    z = kernels.gram(gaussian(), kernels.Functionals(POINTS), flat)
    np.testing.assert_allclose(tf.matmul(at_landmarks, embedded), z, atol=1e-8)


def test_inverse_square_root_of_a_singular_matrix():
    half = RNG.standard_normal((4, 2))
    root = kernels.inverse_square_root(tf.constant(half @ half.T)).numpy()
    np.testing.assert_allclose(root @ root, np.linalg.pinv(half @ half.T), atol=1e-8)
