"""The nuclear norm: tall, wide, square, of low rank and of every size, against the dual ball."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex.nuclear import prox_nuclear
from tests.helpers.operator_case import Case
from tests.helpers.proximal_references import REFERENCES

KINKS = [
    ([[1.0, 0.0], [0.0, 1.0]], [[1, 2], [3, 4]], [[0, 0], [0, 0]]),
    ([[2.0, 0.0], [0.0, 2.0]], [[1, 2], [4, 8]], [[1, 2.5], [3.5, 8]]),
]


@pytest.mark.parametrize("x, y, expected", KINKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_at_equal_singular_values(x, y, expected, dtype):
    x, y = (tf.constant([v], dtype) for v in (x, y))
    with tf.GradientTape() as tape:
        tape.watch(x)
        z = prox_nuclear(x, 1.0)
    atol = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(tape.gradient(z, x, y)[0], expected, atol=atol)


def low_rank(rng, rows, columns):
    return rng.standard_normal((rows, 2)) @ rng.standard_normal((2, columns))


@pytest.mark.parametrize("shape", [(3, 7), (6, 6, "low rank")])
@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_float32_is_as_exact_as_its_input(shape, size):
    """With gradients, against float64."""
    rng = np.random.default_rng(0)
    rows, columns = shape[:2]
    make = low_rank if len(shape) == 3 else lambda rng, *s: rng.standard_normal(s)
    x = (size * np.stack([make(rng, rows, columns) for _ in range(3)])).astype("float32")
    y = rng.standard_normal(x.shape).astype("float32")
    lam = np.float32(1 / size)
    expected = np.stack([REFERENCES["nuclear"](m.astype("float64"), float(lam)) for m in x])
    np.testing.assert_allclose(prox_nuclear(x, lam), expected, atol=2e-6 * size)
    results = []
    for dtype in ("float32", "float64"):
        point, weight = tf.cast(x, dtype), tf.cast(lam, dtype)
        with tf.GradientTape() as tape:
            tape.watch((point, weight))
            z = prox_nuclear(point, weight)
        results.append(tape.gradient(z, (point, weight), tf.cast(y, dtype)))
    (dx, dlam), (exact_dx, exact_dlam) = results
    np.testing.assert_allclose(dx, exact_dx, atol=1e-5)
    np.testing.assert_allclose(dlam, exact_dlam, rtol=1e-4, atol=1e-5 * size**2)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_gradient_equals_central_differences(shape):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, *shape))
    size = x.size
    steps = 1e-6 * np.eye(size).reshape(size, *shape)
    moved = prox_nuclear(x + steps, 1.5) - prox_nuclear(x - steps, 1.5)
    numeric = (moved.numpy() * y).sum(axis=(1, 2)).reshape(shape) / 2e-6
    gradient = Case("nuclear", 3).gradients(x[np.newaxis], y[np.newaxis], 1.5)[0][0]
    np.testing.assert_allclose(gradient, numeric, atol=1e-6)


def test_rows_and_columns_of_unknown_number():
    rng = np.random.default_rng(2)
    graph = tf.function(
        lambda x: prox_nuclear(x, tf.constant(2.0, tf.float64)),
        input_signature=[tf.TensorSpec([None, None, None], tf.float64)],
    )
    for shape in ((2, 5, 3), (2, 3, 5)):
        x = rng.standard_normal(shape)
        np.testing.assert_allclose(graph(x), prox_nuclear(x, 2.0), atol=1e-12)
