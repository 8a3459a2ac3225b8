"""One step of a proximal LSTM or GRU and its adjoint, against dense NumPy and differences."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import LSTMEquations, spread
from proxnet_tf.ops.recurrent.implicit import Solver
from proxnet_tf.ops.recurrent.step import (
    GateKernels,
    cell_step,
    composed_step,
    new_state_of,
    prox_state,
    prox_step,
    solve_gates,
    sum_gates,
)
from tests.helpers import prox_recurrent_reference as reference
from tests.ops.recurrent.cases import (
    BLOCKS,
    EQUATIONS,
    NUMPY,
    OTHERS,
    REFERENCES,
    SIZES,
    check_gradient,
    check_second_derivative,
    dense_jacobian,
    dense_prox,
    gate_problem,
    masks_of,
    sequence_problem,
)

MASKS = pytest.mark.parametrize("masks", [None, 1, 3], ids=["no mask", "shared", "gates"])
KINDS = pytest.mark.parametrize("kind", EQUATIONS)


@MASKS
@pytest.mark.parametrize("sizes", SIZES)
def test_gates_are_solved(sizes, masks):
    s, slopes, kernel, masks = problem = gate_problem(*sizes, masks=masks)
    solved = solve_gates(s, slopes, GateKernels(tf.constant(kernel), masks), Solver())
    c = dense_prox(*problem)
    u = np.einsum("nuf,nu->nf", dense_jacobian(slopes, kernel, masks), c)
    np.testing.assert_allclose(solved.c, c, atol=1e-10)
    np.testing.assert_allclose(solved.u, u, atol=1e-10)
    np.testing.assert_allclose(sum_gates(slopes * solved.products), s - c, atol=1e-10)
    assert solved.report.converged.numpy().all() and solved.report.converged.shape == s.shape[:1]


def test_a_shared_preconditioner():
    """It is the inverse of M, and saves iterations where the gates are near rest."""
    rng = np.random.default_rng(0)
    s, slopes = rng.normal(size=(8, 24)), rng.normal(size=(8, 72)) * 0.05
    slopes[:, 48:] += 0.5
    kernel = rng.normal(size=(16, 72)) * np.logspace(1, -1, 16)[:, None]
    kernels = GateKernels(tf.constant(kernel))
    alone = solve_gates(s, slopes, kernels, Solver())
    kernels.preconditioner = kernels.shared_preconditioner()
    rest = kernel[:, 48:] / 2
    inverse = np.linalg.inv(np.eye(16) + rest @ rest.T)
    np.testing.assert_allclose(kernels.preconditioner.inverse, inverse, atol=1e-8)
    solved = solve_gates(s, slopes, kernels, Solver())
    np.testing.assert_allclose(solved.c, dense_prox(s, slopes, kernel, None), atol=1e-10)
    assert solved.report.converged.numpy().all()
    assert 2 * int(solved.report.iterations) <= int(alone.report.iterations)
    preconditioner = GateKernels(tf.constant(kernel * 1e-3)).shared_preconditioner()
    assert not preconditioner.needed
    np.testing.assert_array_equal(preconditioner.apply(tf.constant(s[:, :16])), s[:, :16])
    wide = GateKernels(tf.constant(kernel[:, ::3]))
    masked = GateKernels(tf.constant(kernel), [np.ones((8, 16))])
    assert wide.shared_preconditioner() is masked.shared_preconditioner() is None


FUNCTIONS = {
    "tanh and sigmoid": ({}, {}),
    "others": (OTHERS, NUMPY),
    "constant": ({"activation": tf.ones_like}, {"activation": lambda z: np.ones_like(z)}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@KINDS
def test_state_and_the_slopes_of_the_jacobian(kind, name):
    """s and the output of the reference; J by complex steps in the input."""
    functions, numpy_functions = FUNCTIONS[name]
    equations = EQUATIONS[kind](**functions)
    x, h, c, *weights = sequence_problem(kind, steps=1)
    x, (kernel, recurrent_kernel, bias) = x[:, 0], weights
    fed = h if equations.feeds_output else c
    z = spread(tf.constant(x @ kernel), equations.input_blocks) + bias
    z += spread(tf.constant(fed @ recurrent_kernel), equations.recurrent_blocks)
    new = new_state_of(z, tf.constant(c), equations)

    def expected(x):
        return REFERENCES[kind](x, h, c, weights, **numpy_functions)

    s, output = expected(x)
    np.testing.assert_allclose(new.s, s, atol=1e-13)
    np.testing.assert_allclose(equations.output(new.s, new.gate), output(s), atol=1e-13)
    j = dense_jacobian(new.slopes.numpy(), kernel[:, :6], None)
    np.testing.assert_allclose(j, reference.jacobian(lambda x: expected(x)[0], x), atol=1e-12)


# --- the proximal state ---------------------------------------------------------------------------


def state_of(s, slopes, kernel, masks):
    return prox_state(s, slopes, GateKernels(kernel, masks), Solver())


@MASKS
@pytest.mark.parametrize("sizes", SIZES)
def test_prox_state_and_its_gradient(sizes, masks):
    *values, masks = gate_problem(*sizes, masks=masks)
    check_gradient(lambda *v: [state_of(*v, masks)], lambda *v: [dense_prox(*v, masks)], values)


@pytest.mark.parametrize("masks, graph", [(3, False), (None, True)])
def test_prox_state_second_derivative(masks, graph):
    *values, masks = gate_problem(3, 4, 2, masks=masks)
    check_second_derivative(lambda *t: tf.reduce_sum(tf.sin(state_of(*t, masks))), values, graph)


# --- a whole step ---------------------------------------------------------------------------------

RHO = 0.8
STEPS = {
    "plain": ({}, None),
    "shared mask": ({}, 1),
    "output from prox, a mask a gate": ({"output_from_prox": True}, "all"),
    "other activations": (OTHERS, None),
}


def step_problem(kind, name, features=4, units=2, **options):
    """z, c and the kernel of a step; it, by differentiable operations too, and in NumPy."""
    functions, masks = STEPS[name]
    equations = EQUATIONS[kind](**functions, **options)
    rng, blocks = np.random.default_rng(0), BLOCKS[kind]
    shapes = (3, 4 * units), (3, units), (features, blocks * units)
    values = [rng.normal(size=shape) for shape in shapes]
    masks = masks_of(rng, 3, features, blocks if masks == "all" else masks)
    sqrt_rho = tf.constant(RHO**0.5, tf.float64)

    def step(*tensors, **more):
        return prox_step(*tensors, sqrt_rho, equations, masks, **more)

    def composed(z, c, kernel):
        kernels = GateKernels.of(kernel, equations, sqrt_rho, masks)
        return composed_step(z, c, kernels, equations)

    def expected(z, c, kernel):
        """The Jacobian in an input v of z + sum_k (v m_k) W_k, example by example."""
        found = []
        for n in range(len(z)):
            mask = 1.0 if masks is None else np.stack([mask[n] for mask in masks])[None]
            weights = kernel, np.zeros((units, kernel.shape[1])), z[n]
            at, row = np.zeros((1, features)), c[n : n + 1]
            options = {"scale": mask, "output_from_prox": equations.output_from_prox}
            options |= NUMPY if functions == OTHERS else {}
            found.append(reference.step(REFERENCES[kind], at, row, row, weights, RHO, **options))
        return [np.concatenate(rows) for rows in zip(*found, strict=True)]

    return values, step, composed, expected


@pytest.mark.parametrize("name", STEPS)
@KINDS
def test_step_and_its_gradient(kind, name):
    """Against differences in the pre-activations, the previous state and the kernel inside J."""
    values, step, composed, expected = step_problem(kind, name)
    check_gradient(lambda *v: step(*v)[:2], expected, values, atol=1e-7)
    report = step(*map(tf.constant, values))[2]
    assert report.converged.numpy().all() and report.residual.shape == (3,)
    # What higher derivatives are taken of has the same values.
    found = composed(*map(tf.constant, values))
    for left, right in zip(found, expected(*values), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)


@pytest.mark.parametrize("name", ["output from prox, a mask a gate", "other activations"])
@KINDS
def test_second_derivative_of_a_step(kind, name):
    values, step, _, _ = step_problem(kind, name)

    def loss(*tensors):
        h, c, _ = step(*tensors)
        return tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(c**2)

    check_second_derivative(loss, values, graph=False)


@pytest.mark.parametrize("bound, solved", [(1, False), (50, True)])
@KINDS
def test_both_solves_of_a_step_are_reported(kind, bound, solved):
    """The residual bounds the error of c relative to s, and of a relative to the cotangent."""
    seen, solver = [], Solver(tolerance=1e-9, max_iterations=bound)
    values, step, _, expected = step_problem(kind, "plain", features=6, units=5, solver=solver)
    values[2] *= 5.0
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        _, c, report = step(*tensors, observer=lambda r: seen.append(r) or [])
    assert not seen
    tape.gradient(c, tensors)
    assert len(seen) == 1
    for told in (report, seen[0]):
        np.testing.assert_array_equal(told.converged, [solved] * 3)
        np.testing.assert_array_equal(told.residual <= 1e-9, told.converged)
        assert int(told.iterations) == 1 if not solved else 1 < int(told.iterations) <= 50
    error = np.linalg.norm(c - expected(*values)[1], axis=1)
    s = EQUATIONS[kind]().new_state(*tensors[:2])[0]
    assert (error <= report.residual * np.linalg.norm(s, axis=1) + 1e-12).numpy().all()
    assert (error > 1e-4).all() or solved


def test_a_masked_example_has_nothing_to_solve():
    z, c, kernel = step_problem("LSTM", "plain")[0]
    kernels = GateKernels.of(kernel, LSTMEquations(), 0.8)
    valid = np.array([[True], [False], [True]])
    h, found = cell_step(tf.constant(z), c, kernels, LSTMEquations(), valid)
    alone = cell_step(tf.constant(z[::2]), c[::2], kernels, LSTMEquations())
    np.testing.assert_allclose(h.numpy()[::2], alone[0], atol=1e-14)
    np.testing.assert_allclose(found.c.numpy()[::2], alone[1].c, atol=1e-12)
    for nothing in (found.c, found.u, found.report.residual):
        np.testing.assert_array_equal(nothing[1], 0.0)
    assert found.report.converged.numpy().all()
