"""Exact warped kernels against a model of finitely many dimensions."""

import numpy as np
import pytest
import tensorflow_probability as tfp
from exact_kernels import invariant_distances, invariant_inner_products

from proxnet_tf.ops import kernels

RNG = np.random.default_rng(2)
POINTS, OTHER = RNG.standard_normal((5, 2)), RNG.standard_normal((4, 2))
psd_kernels = tfp.math.psd_kernels


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


FUNCTIONALS = {
    "gradient_flatness": kernels.Functionals(POINTS, derivative=True),
    "graph_laplacian": kernels.graph_laplacian(POINTS, kernels.neighbor_adjacency(POINTS, 2)),
}


@pytest.mark.parametrize("lam", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("name", sorted(FUNCTIONALS))
def test_inner_products_and_distances_equal_the_map_in_feature_space(name, lam):
    """The space of cubics has ten dimensions: (2) is a dense 10 x 10 solve there."""
    functionals = FUNCTIONALS[name]
    rows = monomial_gradients(POINTS) if functionals.derivative else monomials(POINTS)
    z = rows if functionals.derivative else functionals.combination.numpy() @ rows
    for power in (-1.0, -0.5):
        values, vectors = np.linalg.eigh(np.eye(10) + z.T @ z / lam)
        move = (vectors * values**power) @ vectors.T
        x, y = monomials(POINTS) @ move, monomials(OTHER) @ move
        products = invariant_inner_products(cubic(), functionals, POINTS, OTHER, lam, power)
        np.testing.assert_allclose(products, x @ y.T, atol=1e-6 * np.abs(x @ y.T).max())
        distances = invariant_distances(cubic(), functionals, POINTS, OTHER, lam, power)
        expected = np.linalg.norm(x[:, np.newaxis] - y, axis=-1)
        np.testing.assert_allclose(distances, expected, atol=1e-5 * expected.max())


GAUSSIAN = psd_kernels.ExponentiatedQuadratic(length_scale=np.float64(0.8))


def test_the_limits_of_lam():
    functionals = FUNCTIONALS["gradient_flatness"]
    plain = GAUSSIAN.matrix(POINTS, OTHER)
    products = invariant_inner_products(GAUSSIAN, functionals, POINTS, OTHER, 1e12)
    np.testing.assert_allclose(products, plain, atol=1e-9)
    # lam -> 0: orthogonal to every representer, so that functions of c_x are flat at the points.
    step = 1e-3 * np.array([[1.0, 1.0]])
    near = invariant_distances(GAUSSIAN, functionals, POINTS, POINTS + step, 1e-9)
    far = invariant_distances(GAUSSIAN, functionals, POINTS, POINTS + step, 1e9)
    assert (np.diag(near) < 0.05 * np.diag(far)).all()
