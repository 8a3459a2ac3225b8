"""Every closed-form operator against theory, an independent reference and central differences."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from proxnet_tf.ops.convex.table import OPERATORS
from tests.helpers.operator_case import CONVEX, NON_CONVEX, Case
from tests.helpers.proximal_references import REFERENCES

drawn = given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 7),
    lam=st.floats(-1.5, 1.5).map(lambda exponent: 10**exponent),
    scale=st.sampled_from([0.3, 1.0, 5.0]),
)
bounded = settings(max_examples=5, deadline=None)
# The fused lasso is made of the total variation, which is run on request here.
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name == "total_variation" else name
    for name in sorted(OPERATORS)
]


def case_of(name, seed, size):
    return Case(name, size), np.random.default_rng(seed)


@pytest.mark.parametrize("name", CONVEX)
@bounded
@drawn
def test_prox_equals_an_independent_dual_or_projection(name, seed, size, lam, scale):
    case, rng = case_of(name, seed, size)
    x = case.sample(rng, 3, scale)
    expected = np.stack([case.reference(row, lam) for row in x])
    np.testing.assert_allclose(case.prox(x, lam), expected, atol=1e-9 * scale, rtol=1e-9)


@pytest.mark.parametrize("name", CONVEX)
@bounded
@drawn
def test_argmin_beats_feasible_perturbations(name, seed, size, lam, scale):
    case, rng = case_of(name, seed, size)
    x = case.sample(rng, 1, scale)
    axes = tuple(range(1, x.ndim))

    def objective(z):
        return case.value(z) + lam / 2 * ((z - x) ** 2).sum(axis=axes)

    z = case.prox(x, lam)
    best = objective(z)
    assert np.isfinite(best).all()
    far = case.feasible(rng, 20)
    near = z + rng.choice([1e-3, 1e-1], size=(20,) + (1,) * (x.ndim - 1)) * (far - z)
    for rival in (far, near):
        assert (objective(rival) >= best - 1e-12 * (1 + abs(best))).all()
    # Strong convexity: any rival costs at least lam/2 times its squared distance more.
    surplus = objective(far) - best - lam / 2 * ((far - z) ** 2).sum(axis=axes)
    assert (surplus >= -1e-7 * (1 + abs(best))).all()


@pytest.mark.parametrize("name", CONVEX)
@bounded
@drawn
def test_jacobian_symmetric_with_eigenvalues_in_unit_interval(name, seed, size, lam, scale):
    case, rng = case_of(name, seed, size)
    jacobian = case.jacobian(case.sample(rng, 1, scale)[0], lam)
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-10)
    eigenvalues = np.linalg.eigvalsh(jacobian)
    assert eigenvalues.min() >= -1e-10
    assert eigenvalues.max() <= 1 + 1e-10


@pytest.mark.parametrize("name", NAMES)
@bounded
@drawn
def test_gradients_equal_central_differences_away_from_kinks(name, seed, size, lam, scale):
    case, rng = case_of(name, seed, size)
    assume(not (name in NON_CONVEX and size == 1))
    x, y = case.sample(rng, 2, scale)
    h = 1e-6
    units = h * np.eye(x.size).reshape(x.size, *case.shape)
    forward, here, backward = (case.jacobian(x + s * units.sum(0), lam) for s in (1, 0, -1))
    assume(np.abs(forward - backward).max() < 1e-3)  # one smooth piece
    difference = (case.prox(x + units, lam) - case.prox(x - units, lam)) / (2 * h)
    np.testing.assert_allclose(here, difference.reshape(x.size, x.size), atol=1e-6)
    step = h * lam
    _, dlam = case.gradients(x[np.newaxis], y[np.newaxis], lam)
    moved = case.prox(x[np.newaxis], lam + step) - case.prox(x[np.newaxis], lam - step)
    np.testing.assert_allclose(dlam * lam, (moved * y).sum() / (2 * h), atol=1e-5 * scale**2)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", CONVEX)
def test_zero_input(name, size):
    case = Case(name, size)
    x = np.zeros((2, *case.shape))
    expected = np.stack([case.reference(row, 1.5) for row in x])
    np.testing.assert_allclose(case.prox(x, 1.5), expected, atol=1e-12)
    assert np.isfinite(case.jacobian(x[0], 1.5)).all()


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch(name):
    case = Case(name, 3)
    x = np.zeros((0, *case.shape))
    assert case.prox(x, 1.0).shape == x.shape
    assert case.gradients(x, x, 1.0)[0].shape == x.shape
    assert case.value(x).shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_are_a_batch(name):
    case = Case(name, 4)
    x = case.sample(np.random.default_rng(1), 6)
    stacked = case.prox(x.reshape(2, 3, *case.shape), 1.3)
    rows = np.concatenate([case.prox(row[np.newaxis], 1.3) for row in x])
    np.testing.assert_allclose(stacked.reshape(rows.shape), rows, atol=1e-12)


@pytest.mark.parametrize("name", CONVEX)
def test_large_lam_keeps_the_input_and_small_lam_reaches_the_minimum(name):
    case = Case(name, 4)
    x = case.sample(np.random.default_rng(2), 3)
    near, far = case.prox(x, 1e12), case.prox(x, 1e-12)
    minimum = np.zeros_like(x)
    if name in ("quadratic", "total_variation"):  # the constants
        minimum += x.mean(axis=1, keepdims=True)
    if name == "entropy":
        minimum += 1 / 4
    if case.operator.is_set:
        np.testing.assert_allclose(near, far, atol=1e-12)
        np.testing.assert_allclose(case.prox(near, 1.0), near, atol=1e-12)
    elif name == "entropy":
        np.testing.assert_allclose(near, [REFERENCES["simplex"](row) for row in x], atol=1e-9)
        np.testing.assert_allclose(far, minimum, atol=1e-9)
    else:
        np.testing.assert_allclose(near, x, atol=1e-9)
        np.testing.assert_allclose(far, minimum, atol=1e-9)


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_an_infinity_stays_in_its_own_row(name, bad):
    case = Case(name, 4)
    x, y = np.random.default_rng(7).standard_normal((2, 3, *case.shape))
    alone, dx_alone = case.prox(x[1:], 2.0), case.gradients(x[1:], y[1:], 2.0)[0]
    x[0].flat[0] = bad
    z, dx = case.prox(x, 2.0), case.gradients(x, y, 2.0)[0]
    np.testing.assert_allclose(z[1:], alone, atol=1e-12)
    np.testing.assert_allclose(dx[1:], dx_alone, atol=1e-12)
    # The row itself is not finite, or it is the limit of ever larger numbers.
    x[0].flat[0] = np.sign(bad) * 1e12
    limit = case.prox(x, 2.0)[0]
    if np.isfinite(z[0]).all():
        np.testing.assert_allclose(z[0], limit, atol=1e-9)


# Maps that take the entries, or the pieces of a vector, one by one.
ENTRYWISE = ("l1", "elastic_net", "squared_l2", "box", "nonnegative")


@pytest.mark.parametrize("name", NAMES)
def test_nan_makes_the_whole_vector_nan(name):
    case = Case(name, 4)
    x = case.sample(np.random.default_rng(0), 3, 3.0)
    y = np.random.default_rng(1).standard_normal(x.shape)
    wanted = [case.prox(x, 0.9), case.gradients(x, y, 0.9)[0]]
    x[0].flat[0] = np.nan
    z, dx = case.prox(x, 0.9), case.gradients(x, y, 0.9)[0]
    lost = np.zeros(x.shape, bool)
    lost[0].flat[: {"group_l2": 2}.get(name, 1 if name in ENTRYWISE else None)] = True
    np.testing.assert_array_equal(np.isnan(z), lost)
    np.testing.assert_allclose(z[~lost], wanted[0][~lost], atol=1e-12)
    # The Jacobian of a linear map, and of a clipped entry, is known without x.
    known = name in (*ENTRYWISE, "quadratic")
    np.testing.assert_array_equal(np.isnan(dx), lost & (not known))
    np.testing.assert_allclose(dx[~lost], wanted[1][~lost], atol=1e-12)


@pytest.mark.parametrize("name", ["simplex", "entropy"])
def test_a_masked_score_counts_nothing(name):
    """-inf, as attention masks have it: 0 with gradient 0, the others as without that entry."""
    case = Case(name, 4)
    rng = np.random.default_rng(11)
    short, y = rng.standard_normal((3, 3)), rng.standard_normal((3, 4))
    x = np.insert(short, 1, -np.inf, axis=1)
    for lam in (0.3, 1.0, 20.0):
        z, (dx, dlam) = case.prox(x, lam), case.gradients(x, y, lam)
        rest = [0, 2, 3]
        np.testing.assert_allclose(z[:, rest], case.prox(short, lam), atol=1e-12)
        np.testing.assert_array_equal(z[:, 1], 0)
        dx_short, dlam_short = case.gradients(short, y[:, rest], lam)
        np.testing.assert_allclose(dx[:, rest], dx_short, atol=1e-12)
        np.testing.assert_array_equal(dx[:, 1], 0)
        np.testing.assert_allclose(dlam, dlam_short, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_without_entries_come_out_empty(name):
    operator = OPERATORS[name]
    prepared = operator.prepare(np.zeros((0, 0))) if operator.prepare else {}
    for shape in [(2, 4, 0), (2, 0, 3)] if name == "nuclear" else [(2, 0), (2, 3, 0)]:
        x = tf.zeros(shape, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = operator.prox(x, 2.0, **prepared)
        assert z.shape == shape and tape.gradient(z, x).shape == shape
        value = operator.value(x, **prepared).numpy()
        # No empty vector sums to 1.
        expected = np.inf if name in ("simplex", "entropy") else 0.0
        np.testing.assert_array_equal(value, np.full(shape[: -1 - (name == "nuclear")], expected))


@pytest.mark.parametrize("name", NAMES)
def test_graph_and_unknown_sizes_equal_eager(name):
    case = Case(name, 4)
    x = case.sample(np.random.default_rng(8), 3)
    unknown = tf.TensorSpec([None, *case.shape], tf.float64)
    graph = tf.function(
        lambda v: case.operator.prox(v, tf.constant(1.2, tf.float64), **case.prepared),
        input_signature=[unknown],
    )
    np.testing.assert_allclose(graph(x), case.prox(x, 1.2), atol=1e-12)


@pytest.mark.parametrize("name", ["l2", "l2_ball", "simplex", "total_variation", "standardized"])
def test_second_derivative_equals_central_differences(name):
    case = Case(name, 4)
    x, y, v = case.sample(np.random.default_rng(9), 3, 2.0)[:, np.newaxis]

    def first(point):
        point = tf.convert_to_tensor(point)
        with tf.GradientTape() as tape:
            tape.watch(point)
            z = case.operator.prox(point, 0.7, **case.prepared)
        return tape.gradient(z, point, tf.constant(y) * z)

    point = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(point)
        loss = tf.reduce_sum(first(point) * v)
    h = 1e-6
    numeric = [
        ((first(x + h * e) - first(x - h * e)).numpy() * v).sum() / (2 * h) for e in np.eye(4)
    ]
    np.testing.assert_allclose(tape.gradient(loss, point)[0], numeric, atol=1e-6)
