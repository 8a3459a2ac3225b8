"""The equations of a GRU, alone and in a step and a sequence, against dense NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from proxnet_tf.ops.recurrent.cotangent import composed_step, prox_step
from proxnet_tf.ops.recurrent.equations import Coupling, masked_product
from proxnet_tf.ops.recurrent.gru import GRUBeforeEquations, GRUEquations
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


@pytest.mark.parametrize(
    "equations, width, recurrent", [(GRUEquations(), 8, 6), (GRUBeforeEquations(), 6, 4)]
)
def test_transposes_of_the_pre_activations(equations, width, recurrent):
    rng = np.random.default_rng(0)
    dz = rng.normal(size=(2, width))
    for there, back, size in (
        (equations.from_input, equations.to_input, 6),
        (equations.from_recurrent, equations.to_recurrent, recurrent),
    ):
        x = rng.normal(size=(2, size))
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
def test_state_and_jacobian_with_the_reset_gate_before(masks):
    rng, equations = np.random.default_rng(2), GRUBeforeEquations()
    x, c, weights = random(rng, 3, 4), random(rng, 3, 2), weights_of(rng, 4, 2)
    scale = scales = by_gate = None
    hidden_scale = 1.0
    if masks:
        scales = rng.integers(0, 2, size=(3, 3, 4)) * 2.0
        by_gate = list(scales.swapaxes(0, 1))
        hidden_scale = np.ones((3, 3, 2))
        hidden_scale[:, 2] = scale = rng.integers(0, 2, size=(3, 2)) * 2.0
    kernel, recurrent_kernel, biases = weights
    gates, u_n = equations.split_recurrent(tf.constant(recurrent_kernel))
    coupling = Coupling(u_n, scale)
    z = equations.from_recurrent(c @ gates) + masked_product(x, tf.constant(kernel), by_gate)
    new = equations.new_state(z + biases[0], tf.constant(c), coupling)

    def state(x):
        masks = 1.0 if scales is None else scales
        return reference.state(x, c, weights, False, scale=masks, hidden_scale=hidden_scale)

    np.testing.assert_allclose(new.s, state(x), atol=1e-13)
    kernels, j = GateKernels(tf.constant(kernel), None, scales, coupling), jacobian(state, x)
    np.testing.assert_allclose(kernels.dense(new.slopes), j, atol=1e-12)
    v, t = random(rng, 3, 4), random(rng, 3, 2)
    along = kernels.through(new.slopes, kernels.products(v))
    np.testing.assert_allclose(along, np.einsum("nuf,nf->nu", j, v), atol=1e-12)
    back = kernels.transpose(new.slopes * kernels.back(new.slopes, t))
    np.testing.assert_allclose(back, np.einsum("nuf,nu->nf", j, t), atol=1e-12)


STEPS = {
    "plain": (GRUEquations(), None),
    "a mask a gate": (GRUEquations(output_from_prox=True), (3, 3, 4)),
    "other activations, dense": (GRUEquations(**OTHERS, solver=Solver("cholesky")), (3, 4)),
    "reset before": (GRUBeforeEquations(), None),
    "reset before, a mask a gate": (GRUBeforeEquations(output_from_prox=True), (3, 3, 4)),
    "reset before, others, dense": (
        GRUBeforeEquations(**OTHERS, solver=Solver("cholesky")),
        (3, 4),
    ),
}


def step_problem(name):
    """Pre-activations, state, kernel and coupling of a step, its function and that in NumPy."""
    equations, shape = STEPS[name]
    before = equations.coupled
    rng = np.random.default_rng(3)
    values = [random(rng, 3, 6 if before else 8), random(rng, 3, 2), random(rng, 4, 6)]
    values += [random(rng, 2, 2)] if before else []
    scale = None if shape is None else rng.integers(0, 2, size=shape) * 2.0
    hidden_scale = None
    if before and scale is not None:
        hidden_scale = rng.integers(0, 2, size=(3, 2)) * 2.0
    sqrt_rho = tf.constant(RHO**0.5, tf.float64)
    functions = NUMPY if equations.activation is tf.math.softplus else {}

    def coupling_of(tensors):
        return Coupling(tensors[0], hidden_scale) if tensors else None

    def step(z, c, kernel, *u_n):
        return prox_step(z, c, kernel, sqrt_rho, equations, scale, coupling_of(u_n))

    def expected(z, c, kernel, u_n=None):
        """The Jacobian in an input v of z + sum_k (v m_k) W_k, example by example."""
        h, moved, recurrent = [], [], np.zeros((2, 6))
        if before:
            recurrent[:, 4:] = u_n
        for n in range(len(z)):
            biases = np.stack([z[n, :6], np.r_[np.zeros(4), np.zeros(2) if before else z[n, 6:]]])
            mask = 1.0 if scale is None else scale[n].reshape(1, -1, 4)
            hidden_mask = 1.0 if hidden_scale is None else hidden_scale[n].reshape(1, 1, 2)
            here = (kernel, recurrent, biases), not before
            masks = {"scale": mask, "hidden_scale": hidden_mask}

            def state(v, n=n, here=here, masks=masks):
                return reference.state(v, c[n : n + 1], *here, **masks, **functions)

            at = np.zeros((1, 4))
            moved.append(prox(state(at), jacobian(state, at), RHO))
            h.append(moved[-1] if equations.output_from_prox else state(at))
        return np.concatenate(h), np.concatenate(moved)

    def composed(z, c, kernel, *u_n):
        kernels = GateKernels.of(kernel, 3, sqrt_rho, scale, coupling_of(u_n))
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


@pytest.mark.parametrize("name", ["a mask a gate", "reset before, a mask a gate"])
def test_second_derivative_of_a_step(name):
    values, step, _, _ = step_problem(name)

    def loss(*tensors):
        h, c, _ = step(*tensors)
        return tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(c**2)

    check_second_derivative(loss, values, graph=False)


VARIANTS = {
    "plain": {},
    "masked dropout": {"mask": True, "scale": True},
    "output from prox": {"output_from_prox": True, "mask": True},
    "reset before": {"before": True},
    "reset before, masked dropout": {"before": True, "mask": True, "scale": True},
}


def variant(name):
    """Values, a TensorFlow function of them and its NumPy reference, both (batch, time, units)."""
    rng, settings = np.random.default_rng(4), VARIANTS[name]
    batch, steps, features, units = 3, 4, 3, 2
    values = [random(rng, batch, steps, features), random(rng, batch, units)]
    values += [random(rng, batch, units), *weights_of(rng, features, units)]
    before = settings.get("before", False)
    values[-1] = values[-1][0] if before else four(values[-1])
    mask = scale = None
    if settings.get("mask"):
        mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    if settings.get("scale"):
        scale = rng.integers(0, 2, size=(batch, features)) * 2.0
    output_from_prox = settings.get("output_from_prox", False)

    def states(x, start, c, kernel, recurrent_kernel, bias):
        kind = GRUBeforeEquations if before else GRUEquations
        equations = kind(output_from_prox=output_from_prox)
        recurrent_kernel, u_n = equations.split_recurrent(recurrent_kernel)
        found = prox_sequence(
            tf.transpose(x, [1, 0, 2]),
            start,
            c,
            kernel,
            recurrent_kernel,
            bias,
            tf.constant(RHO**0.5, tf.float64),
            equations,
            None if mask is None else mask.T,
            scale,
            u_n,
        )
        return tf.transpose(found.hidden, [1, 0, 2]), found.carry

    def expected(x, start, c, kernel, recurrent_kernel, bias):
        if before:
            biases = np.stack([bias, 0 * bias])
        else:
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
            reset_after=not before,
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
@pytest.mark.parametrize("name", ["masked dropout", "reset before, masked dropout"])
def test_sequence_second_derivative(name):
    values, states, _ = variant(name)
    check_second_derivative(
        lambda *v: tf.add_n([tf.reduce_sum(tf.sin(y)) for y in states(*v)]), values, graph=True
    )
