"""Every closed-form operator against theory, an independent reference and central differences."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from proxnet_tf.ops.convex import functions as proximal
from proxnet_tf.ops.convex import entropy
from proxnet_tf.ops.convex import sets as projections
from proxnet_tf.ops.convex import total_variation
from proxnet_tf.ops.convex.table import OPERATORS
from tests.helpers.proximal_references import REFERENCES

NON_CONVEX = {"standardized"}
CONVEX = sorted(set(OPERATORS) - NON_CONVEX)
SETS = [name for name in CONVEX if OPERATORS[name].is_set]
FUNCTIONS = [name for name in CONVEX if not OPERATORS[name].is_set]

drawn = given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 7),
    lam=st.floats(-1.5, 1.5).map(lambda exponent: 10**exponent),
    scale=st.sampled_from([0.3, 1.0, 5.0]),
)
bounded = settings(max_examples=8, deadline=None)


def path_laplacian(n):
    differences = np.diff(np.eye(n), axis=0)
    return differences.T @ differences


def options_of(name, n):
    return {
        "elastic_net": {"ridge": 0.7},
        "group_l2": {"group_size": 2},
        "quadratic": {"matrix": path_laplacian(n)},
        "fused_lasso": {"sparsity": 0.4},
        "box": {"low": -0.5, "high": 0.8},
        "l2_ball": {"radius": 1.3},
        "l1_ball": {"radius": 1.3},
        "simplex": {"total": 2.0},
    }.get(name, {})


def shape_of(name, n):
    return {"nuclear": (n, 3), "group_l2": (2 * n,)}.get(name, (n,))


class Case:
    """One operator at one size, as functions of arrays."""

    def __init__(self, name, n):
        self.shape = shape_of(name, n)
        self.options = options_of(name, n)
        self.name, self.operator = name, OPERATORS[name]
        prepare = self.operator.prepare
        self.prepared = prepare(**self.options) if prepare else self.options

    def prox(self, x, lam):
        return self.operator.prox(tf.convert_to_tensor(x), lam, **self.prepared).numpy()

    def value(self, z):
        return self.operator.value(tf.convert_to_tensor(z), **self.prepared).numpy()

    def reference(self, x, lam):
        solve = REFERENCES[self.name]
        return solve(x, **self.options) if self.operator.is_set else solve(x, lam, **self.options)

    def sample(self, rng, count, scale=1.0):
        return scale * rng.standard_normal((count, *self.shape))

    def feasible(self, rng, count):
        """Random points where R is finite."""
        points = self.sample(rng, count, 2.0)
        if self.operator.is_set or self.name == "entropy":
            points = (
                np.stack([REFERENCES["simplex"](p) for p in points])
                if (self.name == "entropy")
                else np.stack([self.reference(p, 1.0) for p in points])
            )
        return points

    def gradients(self, x, y, lam):
        """(dx, dlam) for the cotangent y."""
        x, lam = tf.convert_to_tensor(x), tf.convert_to_tensor(lam, x.dtype)
        with tf.GradientTape() as tape:
            tape.watch((x, lam))
            z = self.operator.prox(x, lam, **self.prepared)
        dx, dlam = tape.gradient(z, (x, lam), y)
        return dx.numpy(), 0.0 if dlam is None else dlam.numpy()

    def jacobian(self, x, lam):
        """dz/dx as a matrix, from one batch with the unit cotangents."""
        size = x.size
        rows = np.broadcast_to(x, (size, *self.shape))
        units = np.eye(size).reshape(size, *self.shape)
        return self.gradients(rows, units, lam)[0].reshape(size, size)


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
def test_firmly_nonexpansive(name, seed, size, lam, scale):
    case, rng = case_of(name, seed, size)
    a, b = case.sample(rng, 5, scale), case.sample(rng, 5, scale)
    moved = case.prox(a, lam) - case.prox(b, lam)
    axes = tuple(range(1, a.ndim))
    assert ((moved**2).sum(axes) <= (moved * (a - b)).sum(axes) + 1e-10 * scale**2).all()


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


@pytest.mark.parametrize("name", sorted(OPERATORS))
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


KINKS = [
    # name, x, lam, cotangent, the documented gradient
    ("l1", [0.5, -0.5, 0.0], 2.0, [1, 1, 1], [0, 0, 0]),
    ("elastic_net", [0.5, -0.5, 0.0], 2.0, [1, 1, 1], [0, 0, 0]),
    ("l2", [0.6, 0.8], 1.0, [1, 2], [0, 0]),
    ("l2", [0.0, 0.0], 1.0, [1, 2], [0, 0]),
    ("group_l2", [0.6, 0.8, 0.0, 0.0], 1.0, [1, 2, 3, 4], [0, 0, 0, 0]),
    ("l_inf", [0.5, -0.5], 1.0, [1, 2], [0, 0]),
    ("l_inf", [3.0, 2.0, 2.0], 1.0, [1, 2, 3], [1, 2, 3]),
    ("nuclear", [[1.0, 0.0], [0.0, 1.0]], 1.0, [[1, 2], [3, 4]], [[0, 0], [0, 0]]),
    ("nuclear", [[2.0, 0.0], [0.0, 2.0]], 1.0, [[1, 2], [4, 8]], [[1, 2.5], [3.5, 8]]),
    ("total_variation", [1.0, 1.0, 1.0], 1.0, [3, 0, 0], [1, 1, 1]),
    ("total_variation", [0.0, 0.0], 1e12, [4, 0], [2, 2]),
    ("fused_lasso", [0.0, 0.0], 1.0, [4, 0], [0, 0]),
    ("box", [-0.5, 0.8, 0.0], 1.0, [1, 2, 3], [1, 2, 3]),
    ("nonnegative", [0.0, -0.0, 1.0], 1.0, [1, 2, 3], [0, 0, 3]),
    ("l2_ball", [1.3, 0.0], 1.0, [1, 2], [1, 2]),
    ("l1_ball", [0.8, -0.5], 1.0, [1, 2], [1, 2]),
    ("simplex", [2.0, 0.0, -1.0], 1.0, [1, 2, 3], [0, 0, 0]),
    ("sparsemax", [0.5, 0.5], 1.0, [1, 2], [-0.5, 0.5]),
    ("isotonic", [1.0, 1.0, 2.0], 1.0, [1, 2, 3], [1, 2, 3]),
    ("standardized", [3.0, 3.0], 1.0, [1, 2], [0, 0]),
]


@pytest.mark.parametrize("name, x, lam, y, expected", KINKS)
def test_gradient_at_a_kink_is_the_documented_one(name, x, lam, y, expected):
    case = Case(name, len(x))
    x, y = (np.array([v], "float64") for v in (x, y))
    np.testing.assert_allclose(case.gradients(x, y, lam)[0][0], expected, atol=1e-12)


@pytest.mark.parametrize("name", CONVEX)
def test_zero_input(name):
    case = Case(name, 4)
    x = np.zeros((2, *case.shape))
    expected = np.stack([case.reference(row, 1.5) for row in x])
    np.testing.assert_allclose(case.prox(x, 1.5), expected, atol=1e-12)
    assert np.isfinite(case.jacobian(x[0], 1.5)).all()


@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize("name", CONVEX)
def test_huge_and_tiny_input_in_float32(name, size):
    case = Case(name, 4)
    x = (case.sample(np.random.default_rng(0), 3) * size).astype("float32")
    z = case.prox(x, 1.0)
    if name in ("total_variation", "fused_lasso", "nuclear"):  # 1/lam = 1 is nothing, or all
        expected = x if size > 1 else np.zeros_like(x)
        if name == "total_variation" and size < 1:
            expected = np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape)
    elif name == "box":
        expected = np.clip(x, *case.options.values())
    else:
        expected = np.stack([case.reference(row.astype("float64"), 1.0) for row in x])
    np.testing.assert_allclose(z, expected, rtol=1e-5, atol=1e-5 * min(size, 1) + 1e-12 * size)
    assert np.isfinite(case.gradients(x, np.ones_like(x), 1.0)[0]).all()


@pytest.mark.parametrize("name", CONVEX)
def test_one_element(name):
    case = Case(name, 1)
    for scalar in (-2.0, 0.0, 0.3):
        x = np.full((1, *case.shape), scalar)
        expected = case.reference(x[0], 2.0)
        np.testing.assert_allclose(case.prox(x, 2.0)[0], expected, atol=1e-9)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_empty_batch(name):
    case = Case(name, 3)
    x = np.zeros((0, *case.shape))
    assert case.prox(x, 1.0).shape == x.shape
    assert case.gradients(x, x, 1.0)[0].shape == x.shape
    assert case.value(x).shape == (0,)


@pytest.mark.parametrize("name", sorted(OPERATORS))
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


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_value_is_zero_on_a_set_and_infinite_off_it(name):
    case = Case(name, 4)
    if not case.operator.is_set:
        z = case.feasible(np.random.default_rng(3), 2)
        doubled = np.asarray(case.value(2 * z))
        if name in ("squared_l2", "quadratic"):
            np.testing.assert_allclose(doubled, 4 * case.value(z))
        elif name not in ("elastic_net", "entropy"):  # a norm or a seminorm
            np.testing.assert_allclose(doubled, 2 * case.value(z))
        return
    outside = np.array([[1.0, -3.0, 2.0, 5.0]])
    assert case.value(outside) == np.inf
    assert case.value(case.prox(outside, 1.0)) == 0


def test_worked_values_of_r():
    z = tf.constant([[3.0, -4.0, 0.0, 1.0]], tf.float64)
    expected = {
        "l1": 8.0,
        "elastic_net": 8 + 0.35 * 26,
        "l2": 26**0.5,
        "group_l2": 6.0,
        "squared_l2": 13.0,
        "quadratic": (49 + 16 + 1) / 2,
        "l_inf": 4.0,
        "total_variation": 12.0,
        "fused_lasso": 12 + 0.4 * 8,
    }
    for name, value in expected.items():
        case = Case(name, 2 if name == "group_l2" else 4)
        np.testing.assert_allclose(case.value(z), [value], err_msg=name)
    np.testing.assert_allclose(Case("nuclear", 2).value([[[3.0, 0, 0], [0, -4, 0]]]), [7.0])
    uniform = [[0.25] * 4]
    np.testing.assert_allclose(Case("entropy", 4).value(uniform), [-np.log(4) - 1 / 8])


def test_entropy_at_one_is_the_softmax():
    x = 5 * np.random.default_rng(4).standard_normal((3, 6))
    np.testing.assert_allclose(entropy.prox_entropy(x, 1.0), tf.nn.softmax(x), atol=1e-14)


def test_total_variation_is_exact_on_long_rows():
    rng = np.random.default_rng(5)
    x = np.stack([rng.standard_normal(60), rng.standard_normal(60).cumsum(), np.arange(60.0) ** 3])
    for lam in (0.05, 1.0, 20.0):
        expected = [REFERENCES["total_variation"](row, lam) for row in x]
        z = total_variation.prox_total_variation(x, lam)
        np.testing.assert_allclose(z, expected, atol=1e-9 * np.abs(x).max())


def test_total_variation_leaves_masked_entries_alone():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 9))
    mask = np.ones((2, 9), bool)
    mask[0, 6:] = mask[1, 4] = False
    x[~mask] = np.nan
    z = total_variation.prox_total_variation(x, 1.0, mask).numpy()
    reference = REFERENCES["total_variation"]
    np.testing.assert_allclose(z[0, :6], reference(x[0, :6], 1.0), atol=1e-12)
    np.testing.assert_allclose(z[1, :4], reference(x[1, :4], 1.0), atol=1e-12)
    np.testing.assert_allclose(z[1, 5:], reference(x[1, 5:], 1.0), atol=1e-12)
    assert np.isnan(z[~mask]).all()


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_nan_stays_in_its_own_row(name):
    case = Case(name, 4)
    x = case.sample(np.random.default_rng(7), 3)
    expected = case.prox(x[1:], 1.0)
    x[0] = np.nan
    np.testing.assert_allclose(case.prox(x, 1.0)[1:], expected, atol=1e-12)


@pytest.mark.parametrize("name", sorted(OPERATORS))
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


@pytest.mark.parametrize("name", ["entropy", "nuclear"])
def test_second_derivative_that_would_be_wrong_is_refused(name):
    case = Case(name, 3)
    x = tf.constant(case.sample(np.random.default_rng(10), 1))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            z = tf.reduce_sum(case.operator.prox(x, 1.0) ** 2)
        dx = inner.gradient(z, x)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(dx, x)


def test_spectrum_takes_sparse_matrices():
    laplacian = path_laplacian(4)
    dense = proximal.spectrum(laplacian)
    from scipy import sparse

    for matrix in (tf.sparse.from_dense(laplacian), sparse.csr_matrix(laplacian)):
        np.testing.assert_array_equal(
            proximal.spectrum(matrix)["eigenvalues"], dense["eigenvalues"]
        )


@pytest.mark.parametrize(
    "matrix, message",
    [
        ([[1.0, 2.0, 3.0]], "square"),
        ([[1.0, np.nan], [np.nan, 1.0]], "finite"),
        ([[1.0, 2.0], [0.0, 1.0]], "symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "positive semidefinite"),
    ],
)
def test_spectrum_refuses_what_has_no_minimum(matrix, message):
    with pytest.raises(ValueError, match=message):
        proximal.spectrum(matrix)


def test_group_size_must_divide_the_axis():
    with pytest.raises(ValueError, match="group_size"):
        proximal.prox_group_l2(tf.zeros([2, 5]), 1.0, group_size=2)
