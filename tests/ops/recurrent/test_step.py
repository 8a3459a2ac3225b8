"""One step of a proximal LSTM or GRU and its adjoint, against dense NumPy and differences."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import LSTMEquations
from proxnet_tf.ops.recurrent.implicit import Solver
from proxnet_tf.ops.recurrent.step import (
    GateKernels,
    cell_step,
    composed_step,
    prox_step,
    solve_gates,
)
from tests.helpers import prox_recurrent_reference as reference
from tests.ops.recurrent.cases import (
    BLOCKS,
    EQUATIONS,
    NUMPY,
    OTHERS,
    REFERENCES,
    check_gradient,
    check_second_derivative,
    masks_of,
)

KINDS = pytest.mark.parametrize("kind", EQUATIONS)


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
    gates = zip(np.split(slopes, 3, axis=1), np.split(kernel, 3, axis=1), strict=True)
    j = sum(slope[:, :, None] * k.T for slope, k in gates)
    dense = np.linalg.solve(np.eye(24) + j @ j.transpose(0, 2, 1), s[..., None])[..., 0]
    np.testing.assert_allclose(solved.c, dense, atol=1e-10)
    assert solved.report.converged.numpy().all()
    assert 2 * int(solved.report.iterations) <= int(alone.report.iterations)
    preconditioner = GateKernels(tf.constant(kernel * 1e-3)).shared_preconditioner()
    assert not preconditioner.needed
    np.testing.assert_array_equal(preconditioner.apply(tf.constant(s[:, :16])), s[:, :16])
    wide = GateKernels(tf.constant(kernel[:, ::3]))
    masked = GateKernels(tf.constant(kernel), [np.ones((8, 16))])
    assert wide.shared_preconditioner() is masked.shared_preconditioner() is None


# --- the proximal state ---------------------------------------------------------------------------


# --- a whole step ---------------------------------------------------------------------------------

RHO = 0.8
STEPS = {
    "plain": ({}, None),
    "shared mask": ({}, 1),
    "output from prox, a mask a gate": ({"output_from_prox": True}, "all"),
    "other activations": (OTHERS, None),
    "a constant activation": ({"activation": tf.ones_like}, None),
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
            if functions.get("activation") is tf.ones_like:
                options["activation"] = np.ones_like
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
