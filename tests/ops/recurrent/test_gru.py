"""The equations of a GRU, alone and in a step and a sequence, against dense NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from proxnet_tf.ops.recurrent.cotangent import composed_step, prox_step
from proxnet_tf.ops.recurrent.gru import GRUEquations, state_reset_before
from proxnet_tf.ops.recurrent.lstm import LSTMEquations
from proxnet_tf.ops.recurrent.scan import prox_sequence
from proxnet_tf.ops.recurrent.solve import Solver
from proxnet_tf.ops.recurrent.step import GateKernels
from tests.helpers import prox_gru_reference as reference
from tests.helpers.differences import central_difference
from tests.helpers.prox_lstm_reference import jacobian, prox, softplus
from tests.ops.recurrent.cases import check_second_derivative, random

RHO = 0.8
OTHERS = {"activation": tf.math.softplus, "recurrent_activation": tf.math.erf}
NUMPY = {"activation": softplus, "recurrent_activation": scipy.special.erf}


def weights_of(rng, features, units):
    """Kernel, recurrent kernel, and the biases of x and of c."""
    shapes = (features, 3 * units), (units, 3 * units), (2, 3 * units)
    return [random(rng, *shape, scale=0.7) for shape in shapes]


def four(biases):
    """The biases of the four pre-activations."""
    (z, r, p), (y, s, q) = (np.split(np.asarray(b), 3) for b in biases)
    return np.concatenate([z + y, r + s, p, q])


def test_cells_of_two_kinds_differ():
    """What is compiled is kept by the equations."""
    assert GRUEquations() != LSTMEquations() and GRUEquations() == GRUEquations()
    assert len({GRUEquations(), LSTMEquations(), GRUEquations(tf.tanh)}) == 2


def test_transposes_of_the_pre_activations():
    rng, equations = np.random.default_rng(0), GRUEquations()
    x, dz = rng.normal(size=(2, 6)), rng.normal(size=(2, 8))
    for there, back in (
        (equations.from_input, equations.to_input),
        (equations.from_recurrent, equations.to_recurrent),
    ):
        np.testing.assert_allclose(np.sum(there(x) * dz), np.sum(x * back(dz)), rtol=1e-12)


@pytest.mark.parametrize("others", [False, True])
def test_state_and_the_slopes_of_the_jacobian(others):
    """s of the reference; J by complex steps in the input."""
    rng, equations = np.random.default_rng(1), GRUEquations(**OTHERS if others else {})
    x, c = random(rng, 3, 4), random(rng, 3, 2)
    kernel, recurrent_kernel, biases = weights = weights_of(rng, 4, 2)
    z = equations.from_input(tf.constant(x @ kernel)) + four(biases)
    z += equations.from_recurrent(tf.constant(c @ recurrent_kernel))
    new = equations.new_state(z, tf.constant(c))

    def expected(x):
        return reference.state(x, c, weights, **NUMPY if others else {})

    np.testing.assert_allclose(new.s, expected(x), atol=1e-13)
    j = GateKernels(tf.constant(kernel)).dense(new.slopes)
    np.testing.assert_allclose(j, jacobian(expected, x), atol=1e-12)


@pytest.mark.parametrize("masks", [False, True])
def test_state_with_the_reset_gate_before(masks):
    rng = np.random.default_rng(2)
    x, c, weights = random(rng, 3, 4), random(rng, 3, 2), weights_of(rng, 4, 2)
    scales, given = (1.0, 1.0), (None, None)
    if masks:
        scales = [rng.integers(0, 2, size=(3, 3, n)) * 2.0 for n in (4, 2)]
        given = [list(np.moveaxis(scale, 1, 0)) for scale in scales]
    own = [*weights[:2], weights[2][0]]
    found = state_reset_before(x, c, own, GRUEquations(), *given)
    wanted = reference.state(x, c, weights, False, scale=scales[0], hidden_scale=scales[1])
    np.testing.assert_allclose(found, wanted, atol=1e-13)


STEPS = {
    "plain": ({}, None),
    "a mask a gate": ({"output_from_prox": True}, (3, 3, 4)),
    "other activations, dense": ({**OTHERS, "solver": Solver("cholesky")}, (3, 4)),
}


def step_problem(name):
    """Pre-activations, the state and the kernel of a step, its function and that in NumPy."""
    options, shape = STEPS[name]
    rng, equations = np.random.default_rng(3), GRUEquations(**options)
    values = [random(rng, 3, 8), random(rng, 3, 2), random(rng, 4, 6)]
    scale = None if shape is None else rng.integers(0, 2, size=shape) * 2.0
    sqrt_rho = tf.constant(RHO**0.5, tf.float64)
    functions = NUMPY if "activation" in options else {}

    def step(*tensors, **more):
        return prox_step(*tensors, sqrt_rho, equations, scale, **more)

    def expected(z, c, kernel):
        """The Jacobian in an input v of z + sum_k (v m_k) W_k, example by example."""
        h, moved = [], []
        for n in range(len(z)):
            biases = np.stack([z[n, :6], np.r_[np.zeros(4), z[n, 6:]]])
            mask = 1.0 if scale is None else scale[n].reshape(1, -1, 4)

            def state(v, n=n, biases=biases, mask=mask):
                weights = kernel, np.zeros((2, 6)), biases
                return reference.state(v, c[n : n + 1], weights, scale=mask, **functions)

            at = np.zeros((1, 4))
            moved.append(prox(state(at), jacobian(state, at), RHO))
            h.append(moved[-1] if equations.output_from_prox else state(at))
        return np.concatenate(h), np.concatenate(moved)

    def composed(z, c, kernel):
        kernels = GateKernels.of(kernel, 3, sqrt_rho, scale)
        return composed_step(z, c, kernels, equations)

    return values, step, expected, composed


@pytest.mark.parametrize("name", STEPS)
def test_step_and_its_gradient(name):
    """Against differences in the pre-activations, the previous state and the kernel inside J."""
    values, step, expected, composed = step_problem(name)
    weights = np.random.default_rng(1).normal(size=(2, 3, 2))
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        h, c, report = step(*tensors)
        loss = tf.reduce_sum(weights[0] * h) + tf.reduce_sum(weights[1] * c)
    assert report.converged.numpy().all()
    for found, again, wanted in zip((h, c), composed(*tensors), expected(*values), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-10)
        np.testing.assert_allclose(again, wanted, atol=1e-10)

    def numpy_loss(*values):
        h, c = expected(*values)
        return np.sum(weights[0] * h) + np.sum(weights[1] * c)

    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-7, err_msg=f"argument {index}")


def test_second_derivative_of_a_step():
    values, step, _, _ = step_problem("a mask a gate")

    def loss(*tensors):
        h, c, _ = step(*tensors)
        return tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(c**2)

    check_second_derivative(loss, values, graph=False)


VARIANTS = {
    "plain": {},
    "masked dropout": {"mask": True, "scale": True},
    "output from prox": {"output_from_prox": True, "mask": True},
}


def variant(name):
    """Values, a TensorFlow function of them and its NumPy reference, both (batch, time, units)."""
    rng, settings = np.random.default_rng(4), VARIANTS[name]
    batch, steps, features, units = 3, 4, 3, 2
    values = [random(rng, batch, steps, features), random(rng, batch, units)]
    values += [random(rng, batch, units), *weights_of(rng, features, units)]
    values[-1] = four(values[-1])
    mask = scale = None
    if settings.get("mask"):
        mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    if settings.get("scale"):
        scale = rng.integers(0, 2, size=(batch, features)) * 2.0
    output_from_prox = settings.get("output_from_prox", False)

    def states(x, *others):
        found = prox_sequence(
            tf.transpose(x, [1, 0, 2]),
            *others,
            tf.constant(RHO**0.5, tf.float64),
            GRUEquations(output_from_prox=output_from_prox),
            None if mask is None else mask.T,
            scale,
        )
        return tf.transpose(found.hidden, [1, 0, 2]), found.carry

    def expected(x, start, c, kernel, recurrent_kernel, bias):
        z, r, p, q = np.split(bias, 4)
        biases = np.stack([np.r_[z, r, p], np.r_[0 * z, 0 * r, q]])
        return reference.prox_gru(
            x,
            c,
            (kernel, recurrent_kernel, biases),
            RHO,
            mask=mask,
            scale=scale,
            output_from_prox=output_from_prox,
            start=start,
        )

    return values, states, expected


@pytest.mark.parametrize("name", VARIANTS)
def test_sequence_and_its_gradient(name):
    """Every weight, the input and what was before, against differences of the reference."""
    values, states, expected = variant(name)
    rng = np.random.default_rng(5)
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        found = states(*tensors)
        weights = [rng.normal(size=y.shape) for y in found]
        loss = tf.add_n([tf.reduce_sum(w * y) for w, y in zip(weights, found, strict=True)])
    for left, right in zip(found, expected(*values), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)

    def numpy_loss(*v):
        return sum(np.sum(w * y) for w, y in zip(weights, expected(*v), strict=True))

    for index, gradient in enumerate(tape.gradient(loss, tensors)):
        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-6, err_msg=f"argument {index}")


@pytest.mark.slow
def test_sequence_second_derivative():
    values, states, _ = variant("masked dropout")
    check_second_derivative(
        lambda *v: tf.add_n([tf.reduce_sum(tf.sin(y)) for y in states(*v)]), values, graph=True
    )
