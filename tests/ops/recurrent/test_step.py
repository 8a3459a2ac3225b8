"""The proximal step of recurrent nets against dense NumPy, central differences and itself."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.cotangent import prox_lstm_step, prox_state
from proxnet_tf.ops.recurrent.scan import prox_lstm
from proxnet_tf.ops.recurrent.solve import CG, Solver, solve_by_products
from proxnet_tf.ops.recurrent.step import GateKernels, LSTMOptions, solve_gates
from tests.helpers import prox_lstm_reference as reference
from tests.helpers.differences import central_difference, directional_difference

SIZES = [(3, 4, 2), (4, 1, 3), (3, 2, 5)]  # batch, features, units


def random(rng, *shape, scale=1.0):
    return scale * rng.normal(size=shape)


def gate_problem(batch, features, units, seed=0, scales=None):
    rng = np.random.default_rng(seed)
    s = random(rng, batch, units)
    slopes = random(rng, batch, 3 * units)
    kernel = random(rng, features, 3 * units)
    scale = {None: None, "shared": (batch, features), "gates": (batch, 3, features)}[scales]
    if scale is not None:
        scale = rng.integers(0, 2, size=scale) * 2.0
    return s, slopes, kernel, scale


def dense_prox(s, slopes, kernel, scale):
    """(I + J J^T)^-1 s with J = sum_k diag(slopes_k) K_k^T diag(scale_k)."""
    units = s.shape[1]
    c = np.empty_like(s)
    for n in range(len(s)):
        j = np.zeros((units, kernel.shape[0]))
        for k in range(3):
            columns = slice(k * units, (k + 1) * units)
            factor = 1.0 if scale is None else scale[n] if scale.ndim == 2 else scale[n, k]
            j += np.diag(slopes[n, columns]) @ (kernel[:, columns].T * factor)
        c[n] = np.linalg.solve(np.eye(units) + j @ j.T, s[n])
    return c


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


def gradient_norm(function, tensors):
    """sum of squares of the gradients of function(*tensors)."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(*tensors)
    gradients = tape.gradient(value, tensors, unconnected_gradients="zero")
    return tf.add_n([tf.reduce_sum(g**2) for g in gradients])


def check_second_derivative(function, values, graph):
    """Gradient of the gradient's norm along a random direction, against central differences."""
    rng = np.random.default_rng(5)
    direction = [rng.normal(size=np.shape(v)) for v in values]

    def second(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            norm = gradient_norm(function, tensors)
        return tape.gradient(norm, tensors)

    run = tf.function(second) if graph else second
    gradients = run(*[tf.constant(v) for v in values])
    found = sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True))
    numeric = directional_difference(
        lambda *v: float(gradient_norm(function, [tf.constant(x) for x in v])), values, direction
    )
    np.testing.assert_allclose(found, numeric, rtol=1e-6)


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


def sequence_problem(batch=3, steps=4, features=3, units=2, seed=0):
    rng = np.random.default_rng(seed)
    return [
        random(rng, batch, steps, features),
        random(rng, batch, units),
        random(rng, batch, units),
        random(rng, features, 4 * units, scale=0.7),
        random(rng, units, 4 * units, scale=0.7),
        random(rng, 4 * units, scale=0.3),
    ]


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
    options = LSTMOptions(output_from_prox=settings.get("output_from_prox", False))
    functions = {}
    if settings.get("activation"):
        options = options._replace(activation=tf.math.softplus, recurrent_activation=tf.math.erf)
        from scipy.special import erf

        functions = {"activation": reference.softplus, "recurrent_activation": erf}

    def states(x, h, c, *weights):
        result = prox_lstm(
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
    states = prox_lstm(tf.transpose(x, [1, 0, 2]), h, c, kernel, recurrent_kernel, bias, sqrt_rho)
    for t in range(x.shape[1]):
        z = x[:, t] @ kernel + h @ recurrent_kernel + bias
        h, c, _ = prox_lstm_step(z, c, kernel, sqrt_rho)
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
            states = prox_lstm(
                tf.transpose(tensors[0], [1, 0, 2]),
                *tensors[1:],
                tf.constant(rho**0.5, dtype),
                LSTMOptions(solver=solver),
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
            states = prox_lstm(
                tf.transpose(tensors[0], [1, 0, 2]),
                *tensors[1:],
                tf.constant(1.0, tf.float64),
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


def by_products(j, s, **settings):
    return solve_by_products(
        tf.constant(s),
        product=lambda v: tf.linalg.matvec(j, v),
        total=tf.identity,
        transpose=lambda t: tf.linalg.matvec(j, t, transpose_a=True),
        solver=Solver(**settings),
        width=s.shape[-1],
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", [0.0, 0.1, 1.0, 30.0])
def test_the_residual_bounds_the_error(norm, dtype):
    rng = np.random.default_rng(0)
    j = (rng.normal(size=(5, 12, 8)) * norm / 5).astype(dtype)
    s = rng.normal(size=(5, 12)).astype(dtype)
    s[2] = 0.0
    wide, rounding = j.astype(float), 10 * (1 + norm**2) * np.finfo(dtype).eps
    exact = np.linalg.solve(np.eye(12) + wide @ np.swapaxes(wide, 1, 2), s[..., None])[..., 0]
    for tolerance in (1e-2, 1e-5):
        solved = by_products(j, s, tolerance=tolerance)
        assert solved.report.converged.numpy().all()
        assert (solved.report.residual <= tolerance).numpy().all()
        error = np.linalg.norm(solved.c - exact, axis=-1)
        size = np.linalg.norm(s, axis=-1)
        assert (error <= solved.report.residual.numpy() * size * 1.001 + rounding * size).all()
        u = (np.swapaxes(wide, 1, 2) @ exact[..., None])[..., 0]
        np.testing.assert_allclose(solved.u, u, atol=2 * tolerance * size.max() + 1e-6)
        np.testing.assert_allclose(solved.products, s - solved.c, atol=1e-5)


def test_a_small_bound_is_reported():
    rng = np.random.default_rng(0)
    j, s = 100 * rng.normal(size=(2, 20, 20)), rng.normal(size=(2, 20))
    report = by_products(j, s, max_iterations=3).report
    assert report.iterations == 3
    assert report.residual.shape == report.converged.shape == (2,)
    assert not report.converged.numpy().any()
    assert (report.residual > 1e-6).numpy().all()
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
