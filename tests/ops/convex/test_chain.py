"""Blocked recurrences against loops in NumPy, for rows that fill their blocks and that do not."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox
from proxnet_tf.ops.convex import chain


@pytest.mark.parametrize(
    "n, known",
    [(1, True), (16, True), (40, True), pytest.param(17, False, marks=pytest.mark.slow)],
)
def test_recurrences_equal_loops(n, known):
    rng = np.random.default_rng(n)
    rows = 3
    u, bound = rng.standard_normal((rows, n)), rng.uniform(0, 1.5, (rows, n))
    marked = rng.random((rows, n)) < 0.3
    marked[:, 0] = True

    def compute(u, bound, marked):
        folded, first = chain.fold(u), chain.fold(marked, True)
        ends = chain.later(first, True)
        pieces = chain.Pieces(first)
        return (
            chain.unfold(chain.clipped_sum(folded, chain.fold(bound)), u),
            chain.unfold(chain.Marks(first).carried(folded), u),
            chain.unfold(chain.Marks(first).summed(folded), u),
            chain.unfold(chain.Marks(ends, backwards=True).carried(folded), u),
            chain.unfold(chain.Marks(ends, backwards=True).summed(folded), u),
            chain.unfold(pieces.mean(folded), u),
            chain.unfold(chain.earlier(folded, 7.0), u),
            chain.unfold(chain.later(folded, 7.0), u),
        )

    if not known:
        compute = tf.function(
            compute,
            input_signature=[
                tf.TensorSpec([None, None], dtype) for dtype in (tf.float64, tf.float64, tf.bool)
            ],
        )
    found = [v.numpy() for v in compute(*map(tf.constant, (u, bound, marked)))]

    expected = np.zeros((8, rows, n))
    clipped, carried, summed, back, back_sum, mean, before, after = expected
    for r in range(rows):
        m = 0.0
        for i in range(n):
            m = clipped[r, i] = np.clip(m + u[r, i], -bound[r, i], bound[r, i])
        starts = np.flatnonzero(marked[r])
        for begin, stop in zip(starts, [*starts[1:], n], strict=True):
            carried[r, begin:stop] = u[r, begin]
            summed[r, begin:stop] = np.cumsum(u[r, begin:stop])
            back[r, begin:stop] = u[r, stop - 1]
            back_sum[r, begin:stop] = np.cumsum(u[r, begin:stop][::-1])[::-1]
            mean[r, begin:stop] = u[r, begin:stop].mean()
        before[r] = [7.0, *u[r, :-1]]
        after[r, :-1] = u[r, 1:]
    np.testing.assert_allclose(found[:7], expected[:7], atol=1e-12)
    np.testing.assert_allclose(found[7][:, :-1], after[:, :-1], atol=1e-12)


def test_mean_is_its_own_adjoint_and_has_every_derivative():
    rng = np.random.default_rng(0)
    cut = rng.random((2, 20)) < 0.2
    cut[:, 0] = True
    pieces = chain.Pieces(chain.fold(tf.constant(cut), True))
    x = chain.fold(tf.constant(rng.standard_normal((2, 20))))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = tf.reduce_sum(pieces.mean(x) ** 2) / 2
        slope = tape.gradient(energy, x)
    # P P x = P x, and the derivative of P x along x is P x again.
    np.testing.assert_allclose(slope, pieces.mean(x), atol=1e-12)
    np.testing.assert_allclose(outer.gradient(slope, x, x), pieces.mean(x), atol=1e-12)


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
