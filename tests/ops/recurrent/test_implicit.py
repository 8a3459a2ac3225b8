"""Derivatives of every order from a first one in closed form, on functions that are known."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.linear.report import Report
from proxnet_tf.ops.recurrent import implicit
from proxnet_tf.ops.recurrent.implicit import (
    Explained,
    implicit_state,
    isolated,
    off_the_tape,
    run,
    with_gradient,
)
from proxnet_tf.ops.recurrent.solve import Solved
from tests.helpers.differences import central_difference


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


# --- small parts ----------------------------------------------------------------------------------


def test_off_the_tape():
    """The structure and `None` stay; gradients end."""
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = off_the_tape({"a": x**2, "b": [None, 3 * x]})
        total = found["a"] + found["b"][1]
    assert found["b"][0] is None and float(total) == 10.0
    assert tape.gradient(total, x) is None


def test_isolated_is_a_graph_of_its_own_in_a_graph_only():
    def twice(x):
        return 2 * x

    assert isolated(twice) is twice

    @tf.function(autograph=False)
    def outer(x):
        return isolated(twice)(x)

    assert float(outer(tf.constant(3.0))) == 6.0
    kinds = [op.type for op in outer.get_concrete_function(tf.constant(3.0)).graph.get_operations()]
    assert any("PartitionedCall" in kind for kind in kinds) and "Mul" not in kinds


CALLS = []


def weighted(tensors, constants, options):
    """sum_i x_i^options times a constant, or one."""
    CALLS.append(options)
    (x,), (weight,) = tensors, constants
    total = tf.reduce_sum(x**options)
    return total if weight is None else weight * total


@pytest.mark.parametrize("jit_compile", [False, True])
def test_run(jit_compile):
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = run(weighted, [x], [tf.constant(10.0)], 3, jit_compile)
    assert float(found) == 90.0 and tape.gradient(found, x) is None
    assert float(run(weighted, [x], [None], 2, jit_compile)) == 5.0


def test_equal_sizes_and_options_share_one_compiled_program():
    implicit._compiled.cache_clear()
    CALLS.clear()
    for size, options in ((2, 3), (2, 3), (4, 3), (2, 2), (2, 3)):
        x = np.random.default_rng(size).normal(size=size)
        found = run(weighted, [tf.constant(x)], [None], options, True)
        np.testing.assert_allclose(found, np.sum(x**options), rtol=1e-12)
    assert CALLS == [3, 3, 2]


# --- a gradient that is written out ---------------------------------------------------------------


class Options(NamedTuple):
    """What `wave` has fixed; `slip` is an error put into the gradient, to see who is asked."""

    power: int = 1
    slip: float = 0.0


def wave(tensors, constants, options):
    """a sin(k x)^power and a + x: two values."""
    (x, a), (k,) = tensors, constants
    k = 1.0 if k is None else k
    sine = tf.sin(k * x)
    return Explained((a * sine**options.power, a + x), (sine,), report_of(x, 3))


def wave_gradient(tensors, constants, options):
    x, a, dy, dz, sine = tensors
    (k,) = constants
    k = 1.0 if k is None else k
    power = options.power
    slope = a * power * sine ** (power - 1) * k * tf.cos(k * x)
    dx = dy * slope + dz + options.slip
    return Explained((dx, dy * sine**power + dz), (), report_of(dy, 7))


def wave_composed(tensors, constants, options):
    return wave(tensors, constants, options).values


def wave_of(x, a, k=None, options=None, **more):
    return with_gradient(
        wave, wave_gradient, wave_composed, [x, a], [k], options or Options(), **more
    )


@pytest.mark.parametrize(
    "jit_compile, k, graph",
    [(False, None, False), (False, 2.0, True), (True, 2.0, False), (True, None, True)],
)
def test_values_and_derivatives_of_three_orders(jit_compile, k, graph):
    """Along a curve x = t, a = t^2: y = t^2 sin(k t)^2, z = t^2 + t."""
    number = None if k is None else tf.constant(k, tf.float64)

    def along(t):
        options = Options(power=2)
        (y, z), _ = wave_of(t, t**2, number, options, jit_compile=jit_compile)
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


def test_the_first_derivative_is_the_one_written_out():
    """With a slip in it the first derivative is wrong, the second still that of the composition."""

    def along(t):
        return wave_of(t, 2.0 * t, options=Options(slip=100.0))[0][0]

    _, first, second = derivatives(along, tf.constant(0.3, tf.float64), 2)
    exact = 2 * np.sin(0.3) + 0.6 * np.cos(0.3)
    np.testing.assert_allclose(first, exact + 100.0, rtol=1e-12)
    np.testing.assert_allclose(second, 4 * np.cos(0.3) - 0.6 * np.sin(0.3), rtol=1e-12)


def test_reports_of_both_passes():
    seen = []
    x, a = tf.constant(0.25), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, a])
        (y, z), report = wave_of(x, a, observer=lambda r: seen.append(r) or [])
        loss = 4.0 * y + z
    assert not seen
    assert (float(report.residual), int(report.iterations)) == (0.25, 3) and report.converged
    tape.gradient(loss, [x, a])
    assert len(seen) == 1
    assert (float(seen[0].residual), int(seen[0].iterations)) == (4.0, 7)
    assert not seen[0].converged


def test_a_constant_has_no_gradient():
    x, k = tf.constant(0.25), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, k])
        (y, _), _ = wave_of(x, tf.constant(1.0), k)
    dx, dk = tape.gradient(y, [x, k])
    np.testing.assert_allclose(dx, 2 * np.cos(0.5), rtol=1e-6)
    assert dk is None


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


@pytest.mark.parametrize("masked", [False, True])
def test_state_and_its_gradient(masked):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(3, 2)), rng.normal(size=(3, 2))]
    mask = rng.integers(0, 2, size=(3, 2)) * 2.0 if masked else None
    weights = rng.normal(size=(3, 2))
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        c, report = state_of(*tensors, None if mask is None else tf.constant(mask))
        loss = tf.reduce_sum(weights * c)

    def expected(p, s):
        return s / (1 + (p if mask is None else p * mask) ** 2)

    np.testing.assert_allclose(c, expected(*values), rtol=1e-12)
    np.testing.assert_array_equal(report.residual, np.abs(values[1][:, 0]))
    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(lambda *v: np.sum(weights * expected(*v)), values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-8)


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


def test_no_gradient_goes_through_the_solver():
    """A solver that a tape could follow to a wrong slope."""

    def odd_solve(inputs, constants, s):
        solved = fixed_solve(inputs, constants, s)
        return solved._replace(c=solved.c + 100.0 * (inputs[0] - tf.stop_gradient(inputs[0])))

    p, s = tf.constant([[0.5]]), tf.constant([[2.0]])
    with tf.GradientTape() as tape:
        tape.watch([p, s])
        c, _ = state_of(p, s, solve=odd_solve)
    dp, ds = tape.gradient(c, [p, s])
    np.testing.assert_allclose(dp, [[-2 * 0.5 * 2.0 / 1.25**2]], rtol=1e-6)
    np.testing.assert_allclose(ds, [[0.8]], rtol=1e-6)
