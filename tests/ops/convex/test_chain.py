"""Blocked recurrences against loops in NumPy, for rows that fill their blocks and that do not."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox
from proxnet_tf.ops.convex import chain


def test_a_long_sum_of_float32_is_exact():
    """0.1 is no float32: the mean of equal numbers must be that number."""
    v = tf.fill([2, 5000], tf.constant(0.1))
    cut = chain.fold(tf.broadcast_to(tf.range(5000) == 0, [2, 5000]), True)
    np.testing.assert_array_equal(chain.unfold(chain.Pieces(cut).mean(chain.fold(v)), v), v)


@pytest.mark.parametrize(
    "name", ["isotonic", pytest.param("total_variation", marks=pytest.mark.slow)]
)
def test_vectorized_map_gives_what_a_batch_gives(name):
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 37)))
    layer = Prox(name, lam=2.0, dtype="float64")
    np.testing.assert_allclose(
        tf.vectorized_map(lambda row: layer(row[None])[0], x), layer(x), atol=1e-14
    )
