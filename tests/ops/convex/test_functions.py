"""Norms and quadratics: values, the gradients at the kinks, what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex import functions
from tests.helpers.operator_case import Case, path_laplacian

KINKS = [
    # name, x, lam, cotangent, the documented gradient
    ("l1", [0.5, -0.5, 0.0], 2.0, [1, 1, 1], [0, 0, 0]),
    ("elastic_net", [0.5, -0.5, 0.0], 2.0, [1, 1, 1], [0, 0, 0]),
    ("l2", [0.6, 0.8], 1.0, [1, 2], [0, 0]),
    ("l2", [0.0, 0.0], 1.0, [1, 2], [0, 0]),
    ("group_l2", [0.6, 0.8, 0.0, 0.0], 1.0, [1, 2, 3, 4], [0, 0, 0, 0]),
    ("l_inf", [0.5, -0.5], 1.0, [1, 2], [0, 0]),
    ("l_inf", [3.0, 2.0, 2.0], 1.0, [1, 2, 3], [1, 2, 3]),
]


@pytest.mark.parametrize("name, x, lam, y, expected", KINKS)
def test_gradient_at_a_kink_is_the_documented_one(name, x, lam, y, expected):
    x, y = (np.array([v], "float64") for v in (x, y))
    gradient = Case(name, len(expected)).gradients(x, y, lam)[0]
    np.testing.assert_allclose(gradient[0], expected, atol=1e-12)


def test_worked_values_of_r():
    z = tf.constant([[3.0, -4.0, 0.0, 1.0]], tf.float64)
    expected = {
        "l1": 8.0,
        "elastic_net": 8 + 0.35 * 26,
        "l2": 26**0.5,
        "group_l2": 6.0,
        "squared_l2": 13.0,
        "quadratic": (49 + 16 + 1) / 2,
        "l_inf": 4.0,
    }
    for name, value in expected.items():
        case = Case(name, 2 if name == "group_l2" else 4)
        np.testing.assert_allclose(case.value(z), [value], err_msg=name)


def test_spectrum_takes_sparse_matrices():
    laplacian = path_laplacian(4)
    dense = functions.spectrum(laplacian)
    from scipy import sparse

    for matrix in (tf.sparse.from_dense(laplacian), sparse.csr_matrix(laplacian)):
        np.testing.assert_array_equal(
            functions.spectrum(matrix)["eigenvalues"], dense["eigenvalues"]
        )


@pytest.mark.parametrize(
    "matrix, message",
    [
        ([[1.0, 2.0, 3.0]], "square"),
        ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        ([[1.0, 2.0], [0.0, 1.0]], "symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "positive semidefinite"),
    ],
)
def test_spectrum_refuses_what_has_no_minimum(matrix, message):
    with pytest.raises(ValueError, match=message):
        functions.spectrum(matrix)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lam", [1e-30, 1.0, 1e6])
def test_quadratic_is_exact_relative_to_what_it_keeps(lam, dtype):
    """Q = [[2, 1], [1, 3]], with and without an entry that no penalty touches."""
    # (Q + lam I)^{-1} lam x for x = (1, 1): lam (2 + lam, 1 + lam)/det.
    det = (2 + lam) * (3 + lam) - 1
    expected = lam / det * np.array([2 + lam, 1 + lam])
    # Its derivative in lam is (Q + lam I)^{-1} Q (Q + lam I)^{-1} x.
    inverse = np.array([[3 + lam, -1.0], [-1.0, 2 + lam]]) / det
    slope = (inverse @ np.array([[2.0, 1.0], [1.0, 3.0]]) @ inverse @ [1.0, 1.0])[0]
    for free in (0, 1):
        matrix = np.zeros((2 + free, 2 + free))
        matrix[:2, :2] = [[2.0, 1.0], [1.0, 3.0]]
        x = tf.ones([2 + free], dtype)
        weight = tf.constant(lam, dtype)
        with tf.GradientTape() as tape:
            tape.watch((x, weight))
            z = functions.prox_quadratic(x, weight, **functions.spectrum(matrix))
            first = z[0]
        dx, dlam = tape.gradient(first, (x, weight))
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(z, [*expected, 1.0][: 2 + free], rtol=tolerance)
        slopes = lam / det * np.array([3 + lam, -1.0, 0.0][: 2 + free])
        np.testing.assert_allclose(dx, slopes, rtol=tolerance, atol=0)
        np.testing.assert_allclose(dlam, slope, rtol=10 * tolerance)


def test_a_graph_keeps_its_mean_at_any_lam():
    """The zero eigenvalue of a Laplacian, which comes out as rounding, stays zero."""
    rng = np.random.default_rng(62)
    adjacency = np.triu(rng.integers(0, 2, (6, 6)), 1)
    adjacency += adjacency.T
    adjacency[0, 1:] = adjacency[1:, 0] = 1
    laplacian = functions.spectrum(np.diag(adjacency.sum(1)) - adjacency)
    z = rng.normal(size=(1, 6)) + 5
    for lam in (1e-30, 1e-15):
        moved = functions.prox_quadratic(tf.constant(z), lam, **laplacian)
        np.testing.assert_allclose(moved, np.full((1, 6), z.mean()), rtol=1e-6)


def test_group_size_must_divide_the_axis():
    with pytest.raises(ValueError, match="group_size"):
        functions.prox_group_l2(tf.zeros([2, 5]), 1.0, group_size=2)
