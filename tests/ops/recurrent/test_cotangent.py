"""The adjoint of a step of a proximal LSTM, against differences of dense NumPy and of itself."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from proxnet_tf.ops.recurrent.cotangent import composed_step, prox_state, prox_step
from proxnet_tf.ops.recurrent.lstm import TANH_SIGMOID, LSTMEquations
from proxnet_tf.ops.recurrent.solve import CG, Solver
from proxnet_tf.ops.recurrent.step import GateKernels
from tests.helpers import prox_lstm_reference as reference
from tests.helpers.differences import central_difference
from tests.ops.recurrent.cases import SIZES, check_second_derivative, dense_prox, gate_problem


def state_of(s, slopes, kernel, scale, solver=CG):
    return prox_state(s, slopes, GateKernels(kernel, scale=scale), solver)


@pytest.mark.parametrize("scales", [None, "shared", "gates"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", ["cg", "cholesky"])
def test_prox_state_is_the_dense_solution(sizes, scales, method):
    problem = gate_problem(*sizes, scales=scales)
    c = state_of(*problem, Solver(method))
    np.testing.assert_allclose(c, dense_prox(*problem), atol=1e-10)


@pytest.mark.parametrize("scales", [None, "shared", "gates"])
@pytest.mark.parametrize("sizes", SIZES)
def test_prox_state_gradient(sizes, scales):
    *values, scale = gate_problem(*sizes, scales=scales)
    weights = np.random.default_rng(1).normal(size=values[0].shape)
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_sum(weights * state_of(*tensors, scale))
    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(
            lambda *v: np.sum(weights * dense_prox(*v, scale)), values, index
        )
        np.testing.assert_allclose(gradient, numeric, atol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("scales", [None, "gates"])
def test_prox_state_second_derivative(scales, graph):
    *values, scale = gate_problem(3, 4, 2, scales=scales)
    check_second_derivative(lambda *t: tf.reduce_sum(tf.sin(state_of(*t, scale))), values, graph)


def test_prox_state_third_derivative():
    s, slopes, kernel, _ = gate_problem(2, 3, 2)

    def along(t):  # a curve through the problem, in one real variable
        return tf.reduce_sum(state_of(s + t, slopes * tf.cos(t), kernel + t, None) ** 2)

    def derivative(t, order):
        if order == 0:
            return along(t)
        with tf.GradientTape() as tape:
            tape.watch(t)
            value = derivative(t, order - 1)
        return tape.gradient(value, t)

    step = 1e-4
    t = tf.constant(0.3, tf.float64)
    numeric = (derivative(t + step, 2) - derivative(t - step, 2)) / (2 * step)
    np.testing.assert_allclose(derivative(t, 3), numeric, rtol=1e-6)


# --- a whole step ---------------------------------------------------------------------------------

RHO = 0.8
STEPS = {
    "plain": (TANH_SIGMOID, None),
    "shared mask": (TANH_SIGMOID, "shared"),
    "a mask a gate": (TANH_SIGMOID, "gates"),
    "output from prox": (LSTMEquations(output_from_prox=True), "gates"),
    "other activations": (
        LSTMEquations(activation=tf.math.softplus, recurrent_activation=tf.math.erf),
        None,
    ),
    "dense": (LSTMEquations(solver=Solver("cholesky")), "shared"),
}


def step_problem(scales, batch=3, features=4, units=2, seed=0):
    """z, c_prev, the input kernel, and the dropout mask."""
    rng = np.random.default_rng(seed)
    *_, scale = gate_problem(batch, features, units, scales=scales)
    shapes = (batch, 4 * units), (batch, units), (features, 4 * units)
    return [rng.normal(size=shape) for shape in shapes], scale


def step_of(options, scale, **more):
    sqrt_rho = tf.constant(RHO**0.5, tf.float64)
    scale = None if scale is None else tf.constant(scale)
    return lambda *tensors: prox_step(*tensors, sqrt_rho, options, scale, **more)


def expected_step(z, c_prev, kernel, options, scale):
    """h and c in NumPy, example by example: the Jacobian in an input v of z + sum_k (v m_k) W_k."""
    others = options.activation is tf.math.softplus
    activation = reference.softplus if others else np.tanh
    gate = scipy.special.erf if others else reference.sigmoid
    units, features = c_prev.shape[1], len(kernel)
    zeros, h, c = np.zeros((units, 4 * units)), [], []
    for n in range(len(z)):
        mask = np.ones((1, 1, features))
        if scale is not None and scale.ndim == 2:
            mask = scale[n][None, None]
        elif scale is not None:  # o has no part in the state
            mask = np.concatenate([scale[n], scale[n, :1]])[None]
        weights, carry = (kernel, zeros, z[n]), c_prev[n : n + 1]

        def state(v, weights=weights, carry=carry, mask=mask):
            return reference.state(v, 0 * carry, carry, weights, activation, gate, mask)

        at = np.zeros((1, features))
        s, o = state(at)
        moved = reference.prox(s, reference.jacobian(lambda v, f=state: f(v)[0], at), RHO)
        h.append(o * activation(moved if options.output_from_prox else s))
        c.append(moved)
    return np.concatenate(h), np.concatenate(c)


@pytest.mark.parametrize("name", STEPS)
def test_step_and_its_gradient(name):
    """Against differences in the pre-activations, the previous state and the kernel inside J."""
    options, scales = STEPS[name]
    values, scale = step_problem(scales)
    weights = np.random.default_rng(1).normal(size=(2, *values[1].shape))
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        h, c, report = step_of(options, scale)(*tensors)
        loss = tf.reduce_sum(weights[0] * h) + tf.reduce_sum(weights[1] * c)
    for found, wanted in zip((h, c), expected_step(*values, options, scale), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-10)
    assert report.converged.numpy().all() and report.residual.shape == (3,)

    def numpy_loss(*values):
        h, c = expected_step(*values, options, scale)
        return np.sum(weights[0] * h) + np.sum(weights[1] * c)

    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-7, err_msg=f"argument {index}")


@pytest.mark.parametrize("name", STEPS)
def test_step_by_differentiable_operations(name):
    """What higher derivatives are taken of has the same values."""
    options, scales = STEPS[name]
    values, scale = step_problem(scales)
    kernels = GateKernels.of(values[2], 4, RHO**0.5, scale)
    found = composed_step(*map(tf.constant, values[:2]), kernels, options)
    for left, right in zip(found, expected_step(*values, options, scale), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)


@pytest.mark.parametrize("name", ["a mask a gate", "output from prox"])
def test_second_derivative_of_a_step(name):
    options, scales = STEPS[name]
    values, scale = step_problem(scales)

    def loss(*tensors):
        h, c, _ = step_of(options, scale)(*tensors)
        return tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(c**2)

    check_second_derivative(loss, values, graph=False)


def test_compiled_step_is_the_same():
    values, _ = step_problem(None)
    results = []
    for jit_compile in (False, True):
        tensors = [tf.constant(v) for v in values]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            h, c, report = step_of(TANH_SIGMOID, None, jit_compile=jit_compile)(*tensors)
            loss = tf.reduce_sum(h) + tf.reduce_sum(c**2)
        results.append([h, c, *report, *tape.gradient(loss, tensors)])
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-11)


@pytest.mark.parametrize("bound, solved", [(1, False), (50, True)])
def test_both_solves_of_a_step_are_reported(bound, solved):
    """The residual bounds the error of c relative to s, and of a relative to the cotangent."""
    values, _ = step_problem(None, features=6, units=5)
    options, seen = LSTMEquations(solver=Solver(tolerance=1e-9, max_iterations=bound)), []
    values[2] *= 5.0
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        _, c, report = step_of(options, None, observer=lambda r: seen.append(r) or [])(*tensors)
    assert not seen
    tape.gradient(c, tensors)
    assert len(seen) == 1
    for told in (report, seen[0]):
        np.testing.assert_array_equal(told.converged, [solved] * 3)
        np.testing.assert_array_equal(told.residual <= 1e-9, told.converged)
        assert int(told.iterations) == 1 if not solved else 1 < int(told.iterations) <= 50
    _, exact = expected_step(*values, options, None)
    error = np.linalg.norm(c - exact, axis=1)
    s_size = np.linalg.norm(
        reference.sigmoid(values[0][:, 5:10]) * values[1]
        + reference.sigmoid(values[0][:, :5]) * np.tanh(values[0][:, 10:15]),
        axis=1,
    )
    assert (error <= report.residual * s_size + 1e-12).numpy().all()
    assert (error > 1e-4).all() or solved


def test_the_size_of_the_penalty_is_a_constant():
    values, _ = step_problem(None)
    sqrt_rho = tf.constant(1.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(sqrt_rho)
        _, c, _ = prox_step(*map(tf.constant, values), sqrt_rho, TANH_SIGMOID)
    assert tape.gradient(c, sqrt_rho) is None
