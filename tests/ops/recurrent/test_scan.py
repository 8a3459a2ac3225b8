"""A proximal LSTM or GRU over a sequence, against dense NumPy, differences and single steps."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import LSTMEquations
from proxnet_tf.ops.recurrent.implicit import Solver
from proxnet_tf.ops.recurrent.scan import prox_sequence
from tests.helpers import prox_recurrent_reference as reference
from tests.ops.recurrent.cases import (
    EQUATIONS,
    NUMPY,
    OTHERS,
    REFERENCES,
    check_gradient,
    sequence_problem,
)

MASK = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
VARIANTS = {
    "plain": {},
    "wide": {"features": 5, "units": 2},
    "one input": {"features": 1, "units": 3},
    "few inputs": {"features": 3, "units": 4},
    "masked dropout": {"mask": MASK, "dropout": True},
    "output from prox": {"output_from_prox": True, "mask": MASK},
    "other activations": {"functions": True},
}
RHO = 0.8


def variant(kind, name):
    """Values, a TensorFlow function of them and its NumPy reference, both (batch, time, units)."""
    settings = dict(VARIANTS[name])
    sizes = {k: settings[k] for k in ("features", "units") if k in settings}
    values = sequence_problem(kind, **sizes)
    options = {"output_from_prox": settings.get("output_from_prox", False)}
    others = settings.get("functions", False)
    equations = EQUATIONS[kind](**options, **OTHERS if others else {})
    mask, scale = settings.get("mask"), None
    if "dropout" in settings:
        scale = np.random.default_rng(9).integers(0, 2, size=(3, 3)) * 2.0

    def states(x, *others):
        found = prox_sequence(
            tf.transpose(x, [1, 0, 2]),
            *others,
            tf.constant(RHO**0.5, tf.float64),
            equations,
            None if mask is None else mask.T,
            scale,
        )
        return tf.transpose(found.hidden, [1, 0, 2]), found.carry

    def expected(x, h, c, *weights):
        more = {**options, **NUMPY} if others else options
        return reference.sequence(
            REFERENCES[kind], x, h, c, weights, RHO, mask=mask, scale=scale, **more
        )

    return values, states, expected


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", EQUATIONS)
def test_sequence_and_its_gradient(kind, name):
    """Every weight, the input and both initial states, against differences of the reference."""
    values, states, expected = variant(kind, name)
    check_gradient(states, expected, values)


@pytest.mark.parametrize("rho", [0.01, 100.0])
def test_float32_reaches_its_tolerance(rho):
    """Outputs and gradients, against float64."""
    values = sequence_problem(batch=8, steps=6, features=16, units=24, seed=2)
    values[3] *= 0.3

    def run(dtype):
        tensors = [tf.constant(v, dtype) for v in values]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            states = prox_sequence(
                tf.transpose(tensors[0], [1, 0, 2]),
                *tensors[1:],
                tf.constant(rho**0.5, dtype),
                LSTMEquations(),
            )
            loss = tf.reduce_sum(states.hidden**2) + tf.reduce_sum(states.carry)
        results = [states.carry, *tape.gradient(loss, tensors)]
        return [r.numpy().astype(np.float64) for r in results]

    for found, wanted in zip(run(tf.float32), run(tf.float64), strict=True):
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < 1e-4


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


def test_padding_may_be_nan_and_examples_do_not_touch():
    values = sequence_problem()
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    spoiled, broken = values[0].copy(), values[0].copy()
    spoiled[~mask] = broken[1] = np.nan
    right, found, nan = (
        states_and_gradient([x, *values[1:]], mask=mask.T) for x in (values[0], spoiled, broken)
    )
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(right), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    hidden = nan[0].hidden.numpy()
    assert np.isnan(hidden[:, 1]).all()
    np.testing.assert_allclose(hidden[:, ::2], right[0].hidden.numpy()[:, ::2])


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
