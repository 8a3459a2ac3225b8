"""Sets: the gradients on their boundaries, and indicators that judge each bound by its own size."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex import sets
from tests.helpers.operator_case import Case

KINKS = [
    # name, x, cotangent, the documented gradient
    ("box", [-0.5, 0.8, 0.0], [1, 2, 3], [1, 2, 3]),
    ("nonnegative", [0.0, -0.0, 1.0], [1, 2, 3], [0, 0, 3]),
    ("l2_ball", [1.3, 0.0], [1, 2], [1, 2]),
    ("l1_ball", [0.8, -0.5], [1, 2], [1, 2]),
    ("simplex", [2.0, 0.0, -1.0], [1, 2, 3], [0, 0, 0]),
    ("simplex", [1.0, 1.0], [1, 2], [-0.5, 0.5]),
    ("isotonic", [1.0, 1.0, 2.0], [1, 2, 3], [1, 2, 3]),
    ("standardized", [3.0, 3.0], [1, 2], [0, 0]),
]


@pytest.mark.parametrize("name, x, y, expected", KINKS)
def test_gradient_on_the_boundary_is_the_documented_one(name, x, y, expected):
    x, y = (np.array([v], "float64") for v in (x, y))
    gradient = Case(name, len(expected)).gradients(x, y, 1.0)[0]
    np.testing.assert_allclose(gradient[0], expected, atol=1e-12)


IN, OUT = 0.0, np.inf
VALUES = [
    # indicator, options, z, 0 or inf
    (sets.box, dict(low=0.0, high=np.inf), [-5.0, 2.0], OUT),
    (sets.box, dict(low=0.0, high=np.inf), [0.0, 2.0], IN),
    (sets.box, dict(low=-np.inf, high=0.0), [-5.0, 1e-3], OUT),
    (sets.box, dict(low=0.0, high=1e9), [-1e-3, 2.0], OUT),
    (sets.box, dict(low=-1e-6, high=1e-6), [5e-6, 0.0], OUT),
    (sets.box, dict(low=3.0, high=3.0), [3.0, 3.0], IN),
    (sets.box, {}, [-1.0, np.nan], OUT),
    (sets.nonnegative, {}, [1e9, -1e-3], OUT),
    (sets.l2_ball, dict(radius=1e-6), [5e-6, 0.0], OUT),
    (sets.l2_ball, {}, [np.inf, 0.0], OUT),
    (sets.simplex, dict(total=1e-6), [5e-6, 0.0], OUT),
    (sets.simplex, {}, [1.5, -0.5], OUT),
    (sets.isotonic, {}, [0.0, -5.0, 1e9], OUT),
    (sets.isotonic, {}, [1e-9, 0.5e-9, 1.0], OUT),
    (sets.isotonic, {}, [-np.inf, -np.inf, 0.0, np.inf, np.inf], IN),
    (sets.isotonic, {}, [1e9, 1e9 - 64, 2e9], IN),
]


@pytest.mark.parametrize("value, options, z, expected", VALUES)
def test_each_bound_is_judged_by_its_own_size(value, options, z, expected):
    np.testing.assert_array_equal(value(tf.constant([z]), **options), [expected])


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", ["box", "l1_ball", "l2_ball", "simplex"])
def test_what_was_projected_is_inside(name, size):
    x = 3 * size * np.random.default_rng(0).standard_normal((50, 40)).astype("float32")
    options = {"box": dict(low=-size, high=2 * size), "simplex": dict(total=size)}.get(
        name, dict(radius=size)
    )
    z = getattr(sets, f"project_{name}")(x, **options)
    np.testing.assert_array_equal(getattr(sets, name)(z, **options), np.zeros(50))
    np.testing.assert_array_equal(getattr(sets, name)(x, **options), np.full(50, np.inf))
