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


def test_group_size_must_divide_the_axis():
    with pytest.raises(ValueError, match="group_size"):
        functions.prox_group_l2(tf.zeros([2, 5]), 1.0, group_size=2)
