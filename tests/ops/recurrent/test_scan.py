"""A proximal LSTM over a sequence, against dense NumPy, central differences and single steps."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.cotangent import prox_step
from proxnet_tf.ops.recurrent.lstm import TANH_SIGMOID, LSTMEquations
from proxnet_tf.ops.recurrent.scan import prox_sequence
from proxnet_tf.ops.recurrent.solve import Solver
from tests.helpers import prox_lstm_reference as reference
from tests.helpers.differences import central_difference
from tests.ops.recurrent.cases import check_second_derivative, sequence_problem

VARIANTS = {
    "plain": {},
    "wide": {"features": 5, "units": 2},
    "one input": {"features": 1, "units": 3},
    "masked": {"mask": True},
    "dropout": {"scale": True},
    "masked dropout": {"mask": True, "scale": True},
    "output from prox": {"output_from_prox": True, "mask": True},
    "other activations": {"activation": True},
}


def variant(name):
    """Values, a TensorFlow function of them and its NumPy reference, both (batch, time, units)."""
    settings = dict(VARIANTS[name])
    sizes = {k: settings.pop(k) for k in ("features", "units") if k in settings}
    values = sequence_problem(**sizes)
    batch, _, features = values[0].shape
    rng = np.random.default_rng(9)
    mask = scale = None
    if settings.get("mask"):
        mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    if settings.get("scale"):
        scale = rng.integers(0, 2, size=(batch, features)) * 2.0
    rho = 0.8
    options = LSTMEquations(output_from_prox=settings.get("output_from_prox", False))
    functions = {}
    if settings.get("activation"):
        options = LSTMEquations(tf.math.softplus, tf.math.erf)
        from scipy.special import erf

        functions = {"activation": reference.softplus, "recurrent_activation": erf}

    def states(x, h, c, *weights):
        result = prox_sequence(
            tf.transpose(x, [1, 0, 2]),
            h,
            c,
            *weights,
            tf.constant(rho**0.5, tf.float64),
            options,
            None if mask is None else tf.transpose(mask),
            None if scale is None else tf.constant(scale),
        )
        return tf.transpose(result.hidden, [1, 0, 2]), result.carry

    def expected(x, h, c, *weights):
        return reference.prox_lstm(
            x,
            h,
            c,
            weights,
            rho,
            mask=mask,
            scale=scale,
            output_from_prox=options.output_from_prox,
            **functions,
        )

    return values, states, expected


def loss_weights(values):
    batch, steps, _ = values[0].shape
    units = values[1].shape[1]
    rng = np.random.default_rng(3)
    return rng.normal(size=(batch, steps, units)), rng.normal(size=(batch, units))


@pytest.mark.parametrize("name", VARIANTS)
def test_sequence_equals_the_reference(name):
    values, states, expected = variant(name)
    for found, wanted in zip(states(*values), expected(*values), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
def test_sequence_gradient(name):
    """Every weight, the input and both initial states, against differences of the reference."""
    values, states, expected = variant(name)
    weights = loss_weights(values)
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.add_n(
            [tf.reduce_sum(w * y) for w, y in zip(weights, states(*tensors), strict=True)]
        )
    gradients = tape.gradient(loss, tensors)

    def numpy_loss(*v):
        return sum(np.sum(w * y) for w, y in zip(weights, expected(*v), strict=True))

    for index, gradient in enumerate(gradients):
        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6, err_msg=f"argument {index}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "masked dropout", "output from prox"])
def test_sequence_second_derivative(name):
    values, states, _ = variant(name)
    weights = loss_weights(values)

    def loss(*tensors):
        parts = [tf.reduce_sum(w * y**2) for w, y in zip(weights, states(*tensors), strict=True)]
        return tf.add_n(parts)

    check_second_derivative(loss, values, graph=True)


def test_sequence_is_the_loop_over_steps():
    values = sequence_problem()
    x, h, c, kernel, recurrent_kernel, bias = (tf.constant(v) for v in values)
    sqrt_rho = tf.constant(1.3, tf.float64)
    weights = (kernel, recurrent_kernel, bias)
    states = prox_sequence(tf.transpose(x, [1, 0, 2]), h, c, *weights, sqrt_rho, TANH_SIGMOID)
    for t in range(x.shape[1]):
        z = x[:, t] @ kernel + h @ recurrent_kernel + bias
        h, c, _ = prox_step(z, c, kernel, sqrt_rho, TANH_SIGMOID)
        np.testing.assert_allclose(states.hidden[t], h, atol=1e-12)
    np.testing.assert_allclose(states.carry, c, atol=1e-12)


@pytest.mark.parametrize("rho", [0.01, 1.0, 100.0])
def test_float32_reaches_its_tolerance(rho):
    """With and without the second pass, forward and backward."""
    values = sequence_problem(batch=8, steps=6, features=16, units=24, seed=2)
    values[3] *= 0.3

    def run(dtype, solver):
        tensors = [tf.constant(v, dtype) for v in values]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            states = prox_sequence(
                tf.transpose(tensors[0], [1, 0, 2]),
                *tensors[1:],
                tf.constant(rho**0.5, dtype),
                LSTMEquations(solver=solver),
            )
            loss = tf.reduce_sum(states.hidden**2) + tf.reduce_sum(states.carry)
        results = [states.carry, *tape.gradient(loss, tensors)]
        return [r.numpy().astype(np.float64) for r in results]

    exact = run(tf.float64, Solver("cholesky"))
    for found, wanted in zip(run(tf.float32, Solver()), exact, strict=True):
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < 1e-4


def test_padding_may_be_nan_and_examples_do_not_touch():
    values = sequence_problem()
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    spoiled = values[0].copy()
    spoiled[~mask] = np.nan

    def run(x):
        tensors = [tf.constant(v) for v in (x, *values[1:])]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            states = prox_sequence(
                tf.transpose(tensors[0], [1, 0, 2]),
                *tensors[1:],
                tf.constant(1.0, tf.float64),
                TANH_SIGMOID,
                mask=tf.transpose(mask),
            )
            loss = tf.reduce_sum(states.hidden**2) + tf.reduce_sum(states.carry)
        return [states.hidden, *tape.gradient(loss, tensors)]

    for found, wanted in zip(run(spoiled), run(values[0]), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)

    broken = values[0].copy()
    broken[1] = np.nan
    hidden = run(broken)[0].numpy()
    assert np.isnan(hidden[:, 1]).all()
    np.testing.assert_allclose(np.delete(hidden, 1, 1), np.delete(run(values[0])[0], 1, 1))


# --- reports --------------------------------------------------------------------------------------


def states_and_gradient(values, observer=None, mask=None, **solver):
    x, *others = (tf.convert_to_tensor(v) for v in values)
    tensors = [tf.transpose(x, [1, 0, 2]), *others]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        states = prox_sequence(
            *tensors,
            tf.constant(2.0, tf.float64),
            LSTMEquations(solver=Solver(**solver)),
            mask=mask,
            observer=observer,
        )
        loss = tf.reduce_sum(states.hidden**2) + tf.reduce_sum(states.carry**2)
    return states, tape.gradient(loss, tensors)


@pytest.mark.parametrize("bound, solved", [(1, False), (50, True)])
def test_every_solve_of_both_passes_is_reported(bound, solved):
    """One value a step and example; steps that are masked have nothing to solve."""
    values, seen = sequence_problem(features=6, units=5), []
    mask = np.array([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]], bool)
    states, _ = states_and_gradient(
        values, lambda r: seen.append(r) or [], mask, tolerance=1e-9, max_iterations=bound
    )
    assert len(seen) == 1
    for report in (states.report, seen[0]):
        assert report.residual.shape == report.converged.shape == (4, 3)
        np.testing.assert_array_equal(report.converged, ~mask | solved)
        np.testing.assert_array_equal(report.residual.numpy()[~mask], 0.0)
        assert (report.residual.numpy()[mask] > (0.0 if solved else 1e-9)).all()
        assert int(report.iterations) == 1 if not solved else 1 < int(report.iterations) <= 50


def test_reports_are_those_of_single_steps():
    values = sequence_problem(features=6, units=5)
    states, _ = states_and_gradient(values, max_iterations=2)
    x, h, c, kernel, recurrent_kernel, bias = (tf.constant(v) for v in values)
    options, iterations = LSTMEquations(solver=Solver(max_iterations=2)), 0
    for t in range(4):
        z = x[:, t] @ kernel + h @ recurrent_kernel + bias
        h, c, report = prox_step(z, c, kernel, tf.constant(2.0, tf.float64), options)
        np.testing.assert_allclose(states.report.residual[t], report.residual, rtol=1e-6)
        iterations = max(iterations, int(report.iterations))
    assert states.report.iterations == iterations == 2


def test_a_graph_of_unknown_sizes_is_the_same():
    values = sequence_problem()
    shapes = [[None, None, 3], *([None, 2] for _ in range(2)), [3, 8], [2, 8], [8]]
    signature = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
    run = tf.function(lambda *v: states_and_gradient(v), signature, autograph=False)
    found, expected = run(*map(tf.constant, values)), states_and_gradient(values)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-11)
