"""Total variation and its kin: exact on long rows, at the kinks, with masks."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex import total_variation
from tests.helpers.operator_case import Case
from tests.helpers.proximal_references import REFERENCES

KINKS = [
    # name, x, lam, cotangent, the documented gradient
    ("total_variation", [1.0, 1.0, 1.0], 1.0, [3, 0, 0], [1, 1, 1]),
    ("total_variation", [0.0, 0.0], 1e12, [4, 0], [2, 2]),
    ("total_variation", [0.1] * 40, 1e9, [40] + [0] * 39, [1] * 40),
    ("fused_lasso", [0.0, 0.0], 1.0, [4, 0], [0, 0]),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, x, lam, y, expected", KINKS)
def test_gradient_at_a_kink_is_the_documented_one(name, x, lam, y, expected, dtype):
    x, y = (np.array([v], dtype) for v in (x, y))
    gradient = Case(name, len(expected)).gradients(x, y, lam)[0]
    np.testing.assert_allclose(gradient[0], expected, atol=1e-6)


def test_total_variation_is_exact_on_long_rows():
    rng = np.random.default_rng(5)
    x = np.stack([rng.standard_normal(60), rng.standard_normal(60).cumsum(), np.arange(60.0) ** 3])
    for lam in (0.05, 1.0, 20.0):
        expected = [REFERENCES["total_variation"](row, lam) for row in x]
        z = total_variation.prox_total_variation(x, lam)
        np.testing.assert_allclose(z, expected, atol=1e-9 * np.abs(x).max())


@pytest.mark.parametrize("name", ["total_variation", "isotonic"])
@pytest.mark.parametrize("n", [16, 40])
def test_rows_that_fill_their_blocks_and_that_do_not(n, name):
    """As values, as gradients and with a length that the graph does not know."""
    rng, case = np.random.default_rng(n), Case(name, n)
    x, y = rng.standard_normal((2, 3, n))
    expected = np.stack([case.reference(row, 1.5) for row in x])
    graph = tf.function(
        lambda v: case.operator.prox(v, tf.constant(1.5, tf.float64)),
        input_signature=[tf.TensorSpec([None, None], tf.float64)],
    )
    for z in (graph(x), case.prox(x, 1.5)):
        np.testing.assert_allclose(z, expected, atol=1e-12)
    # The Jacobian averages over the pieces of equal z.
    averaged = np.zeros_like(y)
    for row in range(3):
        piece = np.cumsum(np.abs(np.diff(expected[row], prepend=expected[row, 0])) > 1e-9)
        means = np.bincount(piece, y[row]) / np.bincount(piece)
        averaged[row] = means[piece]
    gradient = case.gradients(x, y, 1.5)[0]
    np.testing.assert_allclose(gradient, averaged, atol=1e-12)


def test_total_variation_leaves_masked_entries_alone():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 9))
    mask = np.ones((2, 9), bool)
    mask[0, 6:] = mask[1, 4] = False
    x[~mask] = np.nan
    z = total_variation.prox_total_variation(x, 1.0, mask).numpy()
    reference = REFERENCES["total_variation"]
    np.testing.assert_allclose(z[0, :6], reference(x[0, :6], 1.0), atol=1e-12)
    np.testing.assert_allclose(z[1, :4], reference(x[1, :4], 1.0), atol=1e-12)
    np.testing.assert_allclose(z[1, 5:], reference(x[1, 5:], 1.0), atol=1e-12)
    assert np.isnan(z[~mask]).all()
