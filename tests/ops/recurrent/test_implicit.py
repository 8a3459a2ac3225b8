"""The linear system of a state against dense NumPy, and derivatives of functions that are known."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.recurrent.implicit import (
    Explained,
    Solved,
    Solver,
    by_tape,
    implicit_state,
    solve_by_products,
    with_gradient,
)
from tests.helpers.prox_recurrent_reference import prox


def derivatives(function, t, orders):
    """Of `orders` orders of a function of one number."""
    if orders == 0:
        return [function(t)]
    with tf.GradientTape() as tape:
        tape.watch(t)
        lower = derivatives(function, t, orders - 1)
    return [*lower, tape.gradient(lower[-1], t)]


def report_of(x, iterations=1):
    return Report(tf.abs(x), tf.constant(iterations), tf.abs(x) <= 0.5)


def jacobians(batch, units, features, norm=1.0, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, units, features)) * norm


def exact_of(j, s):
    """c = (I + J J^T)^-1 s and u = J^T c."""
    j, s = j.astype("float64"), s.astype("float64")
    c = prox(s, j, 1.0)
    return c, np.einsum("nuf,nu->nf", j, c)


def by_products(j, s, jacobian_dtype=None, **settings):
    return solve_by_products(
        tf.constant(s),
        product=lambda v: tf.linalg.matvec(j, v),
        total=tf.identity,
        transpose=lambda t: tf.linalg.matvec(j, t, transpose_a=True),
        solver=Solver(**settings),
        width=s.shape[-1],
        jacobian_dtype=jacobian_dtype,
    )


@pytest.mark.parametrize("norm, dtype", [(0.0, "float64"), (1.0, "float64"), (30.0, "float32")])
def test_the_residual_bounds_the_error(norm, dtype):
    j = (jacobians(5, 12, 8) * norm / 5).astype(dtype)
    s = np.random.default_rng(1).normal(size=(5, 12)).astype(dtype)
    s[2] = 0.0
    rounding = 10 * (1 + norm**2) * np.finfo(dtype).eps
    exact, u = exact_of(j, s)
    for tolerance in (1e-2, 1e-5):
        solved = by_products(j, s, tolerance=tolerance)
        assert solved.report.converged.numpy().all()
        assert (solved.report.residual <= tolerance).numpy().all()
        error = np.linalg.norm(solved.c - exact, axis=-1)
        size = np.linalg.norm(s, axis=-1)
        assert (error <= solved.report.residual.numpy() * size * 1.001 + rounding * size).all()
        np.testing.assert_allclose(solved.u, u, atol=2 * tolerance * size.max() + 1e-6)
        np.testing.assert_allclose(solved.products, s - solved.c, atol=1e-5)
        np.testing.assert_array_equal(solved.c[2], 0.0)


def test_a_rough_jacobian_is_not_solved_to_the_last_digit():
    j, s = jacobians(2, 20, 20) / 5, jacobians(2, 20, 1, seed=8)[..., 0]
    fine, rough = by_products(j, s), by_products(j, s, jacobian_dtype="float16")
    assert fine.report.iterations > rough.report.iterations
    assert (fine.report.residual <= 1e-12).numpy().all()
    assert (rough.report.residual <= 1e-3).numpy().all()
    assert (rough.report.residual > 1e-12).numpy().all()


def test_what_is_not_a_number_stays_with_its_example():
    j, s = jacobians(3, 4, 2), jacobians(3, 4, 1, seed=9)[..., 0]
    exact, u = exact_of(j, s)
    s[1, 0] = np.nan
    solved = by_products(j, s)
    np.testing.assert_array_equal(solved.report.converged, [True, False, True])
    for found, wanted in ((solved.c, exact), (solved.u, u), (solved.products, s - exact)):
        assert np.isnan(found[1]).all()
        np.testing.assert_allclose(found.numpy()[[0, 2]], wanted[[0, 2]], atol=1e-11)
    assert np.isnan(solved.report.residual[1])


# --- a gradient that is written out ---------------------------------------------------------------


def wave(tensors, constants, options):
    """a sin(k x)^power and a + x: two values."""
    (x, a), (k,) = tensors, constants
    k = 1.0 if k is None else k
    sine = tf.sin(k * x)
    return Explained((a * sine**options, a + x), (sine,), report_of(x, 3))


def wave_gradient(tensors, constants, options):
    x, a, dy, dz, sine = tensors
    (k,) = constants
    k = 1.0 if k is None else k
    power = options
    slope = a * power * sine ** (power - 1) * k * tf.cos(k * x)
    dx = dy * slope + dz
    return Explained((dx, dy * sine**power + dz), (), report_of(dy, 7))


@by_tape
def wave_composed(tensors, constants, options):
    return wave(tensors, constants, options).values


def wave_of(x, a, k=None, power=1, **more):
    return with_gradient(wave, wave_gradient, wave_composed, [x, a], [k], power, **more)


@pytest.mark.parametrize("jit_compile, k, graph", [(False, None, False), (True, 2.0, True)])
def test_values_and_derivatives_of_three_orders(jit_compile, k, graph):
    """Along a curve x = t, a = t^2: y = t^2 sin(k t)^2, z = t^2 + t."""
    number = None if k is None else tf.constant(k, tf.float64)

    def along(t):
        (y, z), _ = wave_of(t, t**2, number, 2, jit_compile=jit_compile)
        return y + 10.0 * z

    def all_of(t):
        return derivatives(along, t, 3)

    at = 0.7
    found = (tf.function(all_of) if graph else all_of)(tf.constant(at, tf.float64))
    k = k or 1.0
    # t^2 sin^2(k t) = (t^2 - t^2 cos(w t)) / 2 with w = 2 k, by Leibniz' rule.
    w, cos, sin = 2 * k, np.cos(2 * k * at), np.sin(2 * k * at)
    expected = [
        (at**2 - at**2 * cos) / 2 + 10 * (at**2 + at),
        (2 * at - 2 * at * cos + at**2 * w * sin) / 2 + 10 * (2 * at + 1),
        (2 - 2 * cos + 4 * at * w * sin + at**2 * w**2 * cos) / 2 + 20,
        (6 * w * sin + 6 * at * w**2 * cos - at**2 * w**3 * sin) / 2,
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


# --- the state ------------------------------------------------------------------------------------


def fixed_solve(inputs, constants, s):
    """(7) for J = diag(p o m), m a constant or absent: c = s / (1 + j^2), u = j c."""
    (p,), m = inputs, constants["mask"]
    j = p if m is None else p * m
    c = s / (1 + j**2)
    return Solved(c, j * c, j * j * c, report_of(s[..., 0]))


def state_of(p, s, mask=None, observer=None, solve=fixed_solve):
    def transpose(inputs, constants, c):
        m = constants["mask"]
        return inputs[0] * c if m is None else inputs[0] * m * c

    def contract(inputs, constants, a, w, c, u):
        """dJ = -(a u^T + c w^T) on the diagonal."""
        m = constants["mask"]
        slope = -(a * u + c * w)
        return [slope if m is None else slope * m]

    constants = {"mask": mask, "nothing": None}
    return implicit_state([p], s, constants, solve, transpose, contract, observer)


@pytest.mark.parametrize("graph, orders", [(False, 4), (True, 2)])
def test_derivatives_of_the_state(graph, orders):
    """c(t) = 1 / (1 + t^2) for p = t and s = 1, and t c(t) for s = t."""

    def along(t):
        ones = tf.ones([1, 1], t.dtype)
        return tf.reduce_sum(state_of(t * ones, ones)[0] + state_of(t * ones, t * ones)[0])

    def all_of(t):
        return derivatives(along, t, orders)

    t = 0.6
    found = (tf.function(all_of) if graph else all_of)(tf.constant(t, tf.float64))
    # With z = 1/(t + i): 1/(1 + t^2) = -Im z, t/(1 + t^2) = Re z, d^n z = (-1)^n n! z^(n+1).
    z, factorial = 1 / (t + 1j), [1, 1, 2, 6, 24]
    powers = [(-1) ** n * factorial[n] * z ** (n + 1) for n in range(orders + 1)]
    np.testing.assert_allclose(found, [d.real - d.imag for d in powers], rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_in_a_loop(order):
    """Three steps s -> s / (1 + p^2) of one loop: s / (1 + p^2)^3."""

    @tf.function(autograph=False)
    def all_of(t):
        def along(t):
            p, s = tf.reshape(t, [1, 1]), tf.ones([1, 1], t.dtype)
            return tf.while_loop(
                lambda k, s: k < 3,
                lambda k, s: (k + 1, state_of(p, s)[0]),
                (tf.constant(0), s),
                maximum_iterations=3,
            )[1]

        return [tf.reduce_sum(d) for d in derivatives(along, t, order)]

    t = 0.6
    found = all_of(tf.constant(t, tf.float64))
    q = 1 + t**2
    expected = [q**-3, -6 * t * q**-4, -6 * q**-4 + 48 * t**2 * q**-5]
    np.testing.assert_allclose(found, expected[: order + 1], rtol=1e-10)


def test_the_observer_sees_the_first_derivative():
    """The cotangent's system; a second derivative solves two of its own, for c and for a of (8)."""
    seen = []
    p, s = tf.constant([[0.5, 1.0]]), tf.constant([[0.25, 3.0]])
    with tf.GradientTape() as outer:
        outer.watch(p)
        with tf.GradientTape() as inner:
            inner.watch(p)
            c, report = state_of(p, s, observer=lambda r: seen.append(r) or [])
        assert not seen and report.converged
        slope = inner.gradient(c, p, tf.constant([[2.0, 1.0]]))
    assert [float(r.residual[0]) for r in seen] == [2.0] and not seen[0].converged
    outer.gradient(slope, p)
    assert len(seen) == 3
