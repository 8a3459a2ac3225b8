"""Float32 near the ends of its range, and NaN: every operator against its own value in float64."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex.table import OPERATORS
from tests.helpers.operator_case import Case

# Entries of either sign between 0.05 and 1 of the size, so that none falls out of the range.
_RNG = np.random.default_rng(0)


def sample(case):
    signs = _RNG.choice([-1.0, 1.0], size=(3, *case.shape))
    return signs * _RNG.uniform(0.05, 1, size=signs.shape)


def answers(case, x, lam, y):
    """z, dz/dx times y, R(z) and its gradient (of functions) for x in its own dtype."""
    x, y = tf.constant(x), tf.constant(y, x.dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        z = case.operator.prox(x, tf.constant(lam, tf.float64), **case.prepared)
        value = case.operator.value(x, **case.prepared)
    found = [z, tape.gradient(z, x, y), value]
    if not (case.operator.is_set or case.name == "entropy"):
        found.append(tape.gradient(value, x))
    return [np.asarray(f) for f in found]


# Thresholds 1/lam as large as the entries, and far smaller or larger. At lam = 1e-38 the entropy
# has a lam that float32 does not hold.
@pytest.mark.parametrize("size", [1e37, 1e20, 1e-20, 1e-30])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_near_the_ends_of_float32(name, size):
    case = Case(name, 4)
    x = (sample(case) * size).astype("float32")
    y = np.random.default_rng(1).standard_normal(x.shape)
    for lam in (1.0,) if name == "entropy" else (3 / size, 1.0):
        found = answers(case, x, lam, y)
        wanted = answers(case, x.astype("float64"), lam, y)
        for f, w in zip(found, wanted, strict=True):
            assert f.dtype == "float32"
            with np.errstate(over="ignore", under="ignore"):
                w = w.astype("float32")
            finite = np.isfinite(w)  # what is beyond the range of float32 is infinite
            np.testing.assert_array_equal(f[~finite], w[~finite])
            scale = np.abs(w[finite]).max(initial=0)
            atol = 2e-5 * scale + 2 * np.finfo("float32").tiny  # TensorFlow drops denormals
            np.testing.assert_allclose(f[finite], w[finite], rtol=0, atol=atol)


# Maps that take the entries, or the pieces of a vector, one by one.
ENTRYWISE = ("l1", "elastic_net", "squared_l2", "box", "nonnegative")


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_nan_makes_the_whole_vector_nan(name):
    case = Case(name, 4)
    x = 3 * sample(case)
    y = np.random.default_rng(1).standard_normal(x.shape)
    wanted = [case.prox(x, 0.9), case.gradients(x, y, 0.9)[0]]
    x[0].flat[0] = np.nan
    z, dx = case.prox(x, 0.9), case.gradients(x, y, 0.9)[0]
    lost = np.zeros(x.shape, bool)
    lost[0].flat[: {"group_l2": 2}.get(name, 1 if name in ENTRYWISE else None)] = True
    np.testing.assert_array_equal(np.isnan(z), lost)
    np.testing.assert_allclose(z[~lost], wanted[0][~lost], atol=1e-12)
    # The Jacobian of a linear map, and of a clipped entry, is known without x.
    known = name in (*ENTRYWISE, "quadratic")
    np.testing.assert_array_equal(np.isnan(dx), lost & (not known))
    np.testing.assert_allclose(dx[~lost], wanted[1][~lost], atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - set(ENTRYWISE)))
def test_nan_on_processors_whose_minimum_and_maximum_drop_it(name, monkeypatch):
    def dropping(combine):
        def combined(a, b):
            found = combine(a, b)
            if not found.dtype.is_floating:
                return found
            a, b = (tf.broadcast_to(tf.cast(v, found.dtype), tf.shape(found)) for v in (a, b))
            return tf.where(tf.math.is_nan(a), b, tf.where(tf.math.is_nan(b), a, found))

        return combined

    def largest(x, axis=None, keepdims=False, reduce=tf.reduce_max):
        smallest = tf.cast(float("-inf"), x.dtype) if x.dtype.is_floating else 0
        return reduce(tf.where(x != x, smallest, x), axis, keepdims)

    monkeypatch.setattr(tf, "maximum", dropping(tf.maximum))
    monkeypatch.setattr(tf, "minimum", dropping(tf.minimum))
    monkeypatch.setattr(tf, "reduce_max", largest)
    test_nan_makes_the_whole_vector_nan(name)
