"""The proximal state of any cell, against Jacobians by complex steps and dense solves in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.black_box import Linearised, prox_black_box
from proxnet_tf.ops.recurrent.implicit import Solver
from tests.helpers import prox_recurrent_reference as reference
from tests.ops.recurrent.cases import SIZES, check_gradient, check_second_derivative

RHO = 0.7
SQRT_RHO = tf.constant(RHO**0.5, tf.float64)


def state(x, parameters, constants):
    """A cell with a constant of its own and one that is absent."""
    a, b = parameters
    assert constants["nothing"] is None
    return tf.tanh(x @ a + constants["shift"]) * tf.sin(x @ b)


def numpy_state(x, a, b, shift):
    return np.tanh(x @ a + shift) * np.sin(x @ b)


def problem(batch, features, units, seed=0):
    """x, the parameters a and b, s; and the constant."""
    rng = np.random.default_rng(seed)
    shapes = (batch, features), (features, units), (features, units), (batch, units)
    return [rng.normal(size=shape) for shape in shapes], rng.normal(size=(batch, units))


SOLVER = Solver()


def state_of(values, shift, solver=SOLVER, **more):
    x, a, b, s = values
    constants = {"shift": tf.constant(shift), "nothing": None}
    return prox_black_box(state, x, [a, b], constants, s, SQRT_RHO, solver, **more)


def expected(values, shift):
    x, a, b, s = values
    return reference.prox(s, reference.jacobian(lambda x: numpy_state(x, a, b, shift), x), RHO)


def test_a_state_without_the_input_has_no_jacobian():
    x, s = tf.ones([2, 3], tf.float64), tf.constant([[1.0, -2.0], [0.5, 0.0]], tf.float64)
    linear = Linearised(lambda x: s, x)
    np.testing.assert_array_equal(linear.product(x), np.zeros((2, 2)))
    np.testing.assert_array_equal(linear.transpose(s), np.zeros((2, 3)))
    weight = tf.constant(3.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([x, s, weight])
        c, report = prox_black_box(
            lambda x, parameters, _: parameters[0] * tf.ones_like(s) + 0.0 * x[:, :2],
            x,
            [weight],
            None,
            s,
            SQRT_RHO,
            Solver(),
        )
    np.testing.assert_array_equal(c, s)
    assert report.converged.numpy().all()
    dx, ds, dweight = tape.gradient(c, [x, s, weight])
    np.testing.assert_array_equal(dx, np.zeros((2, 3)))
    np.testing.assert_array_equal(ds, np.ones((2, 2)))
    assert float(dweight) == 0.0


@pytest.mark.parametrize("sizes", SIZES)
def test_state_and_its_gradient(sizes):
    """In x, the parameters and s, by differences of dense solves."""
    values, shift = problem(*sizes)
    check_gradient(
        lambda *v: [state_of(v, shift)[0]], lambda *v: [expected(v, shift)], values, atol=1e-7
    )
    report = state_of(values, shift)[1]
    assert report.converged.numpy().all() and report.converged.shape == sizes[:1]


def test_second_derivative():
    values, shift = problem(2, 3, 2)

    def loss(*tensors):
        return tf.reduce_sum(tf.sin(state_of(tensors, shift)[0]))

    check_second_derivative(loss, values, graph=False)


@pytest.mark.parametrize("bound, solved", [(1, False), (50, True)])
def test_both_solves_are_reported(bound, solved):
    values, shift = problem(3, 6, 5)
    seen = []
    tensors = [tf.constant(v) for v in values]
    solver = Solver(tolerance=1e-9, max_iterations=bound)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        c, report = state_of(tensors, shift, solver, observer=lambda r: seen.append(r) or [])
    assert not seen
    tape.gradient(c, tensors, tf.constant(np.random.default_rng(3).normal(size=c.shape)))
    assert len(seen) == 1
    for told in (report, seen[0]):
        np.testing.assert_array_equal(told.converged, [solved] * 3)
        np.testing.assert_array_equal(told.residual <= 1e-9, told.converged)
        assert int(told.iterations) == 1 if not solved else 1 < int(told.iterations) <= 50
    error = np.linalg.norm(c - expected(values, shift), axis=1)
    size = np.linalg.norm(values[3], axis=1)
    assert (error <= report.residual * size + 1e-12).numpy().all()
    assert solved or (error > 1e-3).all()
