"""The entropy on the simplex against bisection, for every size of lam and of x."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex.entropy import entropy, prox_entropy
from tests.helpers.proximal_references import REFERENCES


def test_value():
    z = tf.constant([[0.25] * 4, [1.0, 0, 0, 0], [0.5] * 4, [-np.inf, 1.0, 0.0, 0.0]], tf.float64)
    np.testing.assert_allclose(entropy(z), [-np.log(4) - 1 / 8, -0.5, np.inf, np.inf])


def test_at_one_it_is_the_softmax():
    x = 5 * np.random.default_rng(4).standard_normal((3, 6))
    np.testing.assert_allclose(prox_entropy(x, 1.0), tf.nn.softmax(x), atol=1e-14)


@pytest.mark.parametrize("lam", [1e-3, 0.1, 0.9, 3.0, 100.0, 1e5])
@pytest.mark.parametrize(
    "scale", [3.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 100.0))]
)
def test_every_lam_in_both_precisions(lam, scale):
    x = scale * np.random.default_rng(5).standard_normal((4, 30)).astype("float32")
    x[0, :2] = x[0].max() + scale  # two entries share the mass
    expected = np.stack([REFERENCES["entropy"](row.astype("float64"), lam) for row in x])
    np.testing.assert_allclose(prox_entropy(x.astype("float64"), lam), expected, atol=1e-9)
    np.testing.assert_allclose(prox_entropy(x, lam), expected, atol=3e-6)


def test_a_row_of_nan_does_not_stop_the_others():
    x = np.random.default_rng(6).standard_normal((3, 8))
    for lam in (1e-4, 3.0, 1e4):
        expected = np.stack([REFERENCES["entropy"](row, lam) for row in x[1:]])
        broken = np.concatenate([np.full((1, 8), np.nan), x[1:]])
        z = prox_entropy(broken, lam).numpy()
        assert np.isnan(z[0]).all()
        np.testing.assert_allclose(z[1:], expected, atol=1e-9)


def test_one_hard_row_among_easy_ones():
    """Rows converge by themselves: what one row needs does not change another."""
    x = np.stack([np.linspace(0, 1, 6), 1e4 * np.linspace(0, 1, 6) ** 3])
    for lam in (0.01, 50.0):
        expected = np.stack([REFERENCES["entropy"](row, lam) for row in x])
        np.testing.assert_allclose(prox_entropy(x, lam), expected, atol=1e-9)
