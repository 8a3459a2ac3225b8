"""One step of a proximal LSTM against NumPy: products of the kernels, slopes, gates, the state."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import (
    side_by_side,
    sum_gates,
    value_and_slope,
    value_slope_curvature,
)
from proxnet_tf.ops.recurrent.lstm import TANH_SIGMOID, LSTMEquations
from proxnet_tf.ops.recurrent.solve import Solver
from proxnet_tf.ops.recurrent.step import GateKernels, cell_step, solve_gates
from tests.helpers import prox_lstm_reference as reference
from tests.ops.recurrent.cases import SIZES, dense_jacobian, dense_prox, gate_problem, lstm_problem

SCALES = [None, "shared", "gates"]


def test_side_by_side_and_its_transpose():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(2, 4)), rng.normal(size=(2, 12))
    np.testing.assert_array_equal(side_by_side(tf.constant(x)), np.c_[x, x, x])
    np.testing.assert_allclose(np.sum(side_by_side(x) * t), np.sum(x * sum_gates(t)), rtol=1e-12)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_the_kernels(sizes, scales, kept):
    """J v, J^T t, J itself and the gradient of <t, products(v)>, gate by gate in NumPy."""
    _, slopes, kernel, scale = gate_problem(*sizes, scales=scales)
    batch, features, units = sizes
    rng = np.random.default_rng(1)
    v, t = rng.normal(size=(batch, features)), rng.normal(size=(batch, 3 * units))
    if kept:  # as the layer makes them
        whole = np.c_[kernel, rng.normal(size=(features, units))]
        kernels = GateKernels.of(tf.constant(whole / 0.7), 4, tf.constant(0.7, tf.float64), scale)
        np.testing.assert_allclose(kernels.kernel, kernel, rtol=1e-12)
    else:
        kernels = GateKernels(tf.constant(kernel), scale=scale)
    products, back, outer = np.zeros_like(t), np.zeros_like(v), np.zeros_like(kernel)
    for n in range(batch):
        for k in range(3):
            columns = slice(k * units, (k + 1) * units)
            factor = 1.0 if scale is None else scale[n] if scale.ndim == 2 else scale[n, k]
            products[n, columns] = (v[n] * factor) @ kernel[:, columns]
            back[n] += kernel[:, columns] @ t[n, columns] * factor
            outer[:, columns] += np.outer(v[n] * factor, t[n, columns])
    np.testing.assert_allclose(kernels.products(v), products, atol=1e-12)
    np.testing.assert_allclose(kernels.transpose(t), back, atol=1e-12)
    np.testing.assert_allclose(kernels.outer(v, t), outer, atol=1e-12)
    expected = dense_jacobian(slopes, kernel, scale)
    np.testing.assert_allclose(kernels.dense(slopes), expected, atol=1e-12)


@pytest.mark.parametrize("method", ["cg", "cholesky"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("sizes", SIZES)
def test_gates_are_solved(sizes, scales, method):
    s, slopes, kernel, scale = gate_problem(*sizes, scales=scales)
    kernels = GateKernels(tf.constant(kernel), scale=scale)
    solved = solve_gates(tf.constant(s), slopes, kernels, Solver(method))
    c = dense_prox(s, slopes, kernel, scale)
    u = np.einsum("nuf,nu->nf", dense_jacobian(slopes, kernel, scale), c)
    np.testing.assert_allclose(solved.c, c, atol=1e-10)
    np.testing.assert_allclose(solved.u, u, atol=1e-10)
    np.testing.assert_allclose(sum_gates(slopes * solved.products), s - c, atol=1e-10)
    assert solved.report.converged.numpy().all() and solved.report.converged.shape == s.shape[:1]


def test_a_small_bound_is_reported():
    s, slopes, kernel, _ = gate_problem(3, 6, 6)
    solved = solve_gates(s, 100 * slopes, GateKernels(kernel), Solver(max_iterations=2))
    assert solved.report.iterations == 2
    assert not solved.report.converged.numpy().any()


def test_what_is_not_a_number_stays_so():
    s, slopes, kernel, _ = gate_problem(3, 4, 4)
    s[1, 0] = np.nan
    solved = solve_gates(s, slopes, GateKernels(kernel), Solver())
    np.testing.assert_array_equal(solved.report.converged, [True, False, True])
    assert np.isnan(solved.c[1]).all() and np.isnan(solved.u[1]).all()
    assert np.isfinite(solved.c.numpy()[[0, 2]]).all()


def sigmoid_slopes(z):
    y = scipy.special.expit(z)
    return y, y * (1 - y), y * (1 - y) * (1 - 2 * y)


def tanh_slopes(z):
    return np.tanh(z), np.cosh(z) ** -2.0, -2 * np.tanh(z) * np.cosh(z) ** -2.0


def softplus_slopes(z):
    return np.logaddexp(0, z), *sigmoid_slopes(z)[:2]


ACTIVATIONS = {
    "tanh": (tf.tanh, tanh_slopes),
    "sigmoid": (tf.sigmoid, sigmoid_slopes),
    "softplus": (tf.math.softplus, softplus_slopes),
    "square": (tf.square, lambda z: (z**2, 2 * z, np.full_like(z, 2.0))),
    "linear": (tf.identity, lambda z: (z, np.ones_like(z), np.zeros_like(z))),
    "constant": (tf.ones_like, lambda z: (np.ones_like(z), 0 * z, 0 * z)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slope_and_curvature_of_an_activation(name):
    function, expected = ACTIVATIONS[name]
    z = np.array([[-3.0, -0.4, 0.0], [0.2, 1.0, 4.0]])
    tensor = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        found = value_and_slope(function, tensor)
    for left, right in zip(found, expected(z), strict=False):
        np.testing.assert_allclose(left, right, atol=1e-14)
    # The slope is differentiable: its derivative is the curvature.
    curvature = tape.gradient(found[1], tensor, unconnected_gradients="zero")
    np.testing.assert_allclose(curvature, expected(z)[2], atol=1e-14)
    for left, right in zip(value_slope_curvature(function, tensor), expected(z), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-14)


OPTIONS = {
    "tanh and sigmoid": (TANH_SIGMOID, {}),
    "output from prox": (LSTMEquations(output_from_prox=True), {"output_from_prox": True}),
    "others": (
        LSTMEquations(activation=tf.math.softplus, recurrent_activation=tf.math.erf),
        {"activation": reference.softplus, "recurrent_activation": scipy.special.erf},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_gates_and_the_slopes_of_the_jacobian(name):
    """s and o of the reference; J by complex steps in the input."""
    options, functions = OPTIONS[name]
    x, h, c_prev, *weights = lstm_problem(3, 4, 2)
    kernel, recurrent_kernel, bias = weights
    functions = {"activation": np.tanh, "recurrent_activation": reference.sigmoid} | functions
    functions.pop("output_from_prox", None)

    def states(x):
        return reference.state(x, h, c_prev, weights, scale=1.0, **functions)

    z = x @ kernel + h @ recurrent_kernel + bias
    new = options.new_state(tf.constant(z), tf.constant(c_prev))
    np.testing.assert_allclose(new.s, states(x)[0], atol=1e-13)
    np.testing.assert_allclose(new.gate, states(x)[1], atol=1e-13)
    j = GateKernels(tf.constant(kernel[:, :6])).dense(new.slopes)
    expected = reference.jacobian(lambda x: states(x)[0], x)
    np.testing.assert_allclose(j, expected, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_is_that_of_the_reference(name, masked):
    options, functions = OPTIONS[name]
    x, h, c_prev, *weights = lstm_problem(3, 4, 2)
    kernel, recurrent_kernel, bias = weights
    expected = reference.prox_lstm(x[:, None], h, c_prev, weights, 0.64, **functions)
    z = x @ kernel + h @ recurrent_kernel + bias
    kernels = GateKernels.of(tf.constant(kernel), 4, tf.constant(0.8, tf.float64))
    valid = np.array([[True], [False], [True]]) if masked else None
    found = cell_step(tf.constant(z), tf.constant(c_prev), kernels, options, valid)
    for left, right in zip(
        (found.h, found.solved.c), (expected[0][:, 0], expected[1]), strict=True
    ):
        rows = [0, 2] if masked else [0, 1, 2]
        np.testing.assert_allclose(left.numpy()[rows], right[rows], atol=1e-10)
    if masked:  # nothing to solve there
        np.testing.assert_array_equal(found.solved.c[1], 0.0)
        np.testing.assert_array_equal(found.solved.u[1], 0.0)
        np.testing.assert_array_equal(found.solved.report.residual[1], 0.0)
        assert found.solved.report.converged.numpy().all()
