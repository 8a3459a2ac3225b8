"""The map of rows at its edges. `tests/layers/multiview` has it against the full problem."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.gram import gram_of
from proxnet_tf.ops.multiview.of_gram import loss_of_gram, map_of_gram
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers import multiview_reference as reference
from tests.helpers.data import SIZES, THREE, WORKED_X, WORKED_Y, shared_views
from tests.ops.multiview.cases import moved

TIGHT = dict(tolerance=1e-12)
TWO = CCA(SIZES, 3)


def prox(x, kind, lam, epsilon=1e-4, valid=None, solver=Newton, **options):
    """The rows of P, and what the map says of them."""
    # Compiling for every shape would take most of the time.
    settings = solver(**{"jit_compile": False} | options)
    return moved(tf.convert_to_tensor(x), kind, epsilon, lam, settings, valid=valid)


def prox_and_gradient(x, cotangent, *arguments, gradient="implicit", observer=None, **options):
    kind, lam, *epsilon = arguments
    x, settings = tf.constant(x), Newton(**{"jit_compile": False} | options)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, _ = moved(
            x, kind, *(epsilon or [1e-4]), lam, settings, gradient=gradient, observer=observer
        )
    return output.numpy(), tape.gradient(output, x, tf.constant(cotangent, x.dtype)).numpy()


def assert_gradient(x, directions, *arguments, atol=1e-6):
    """Central differences of <cotangent, P> along directions that keep the rank."""
    cotangent = np.random.default_rng(7).normal(size=x.shape)
    _, gradient = prox_and_gradient(x, cotangent, *arguments, **TIGHT)
    for direction in directions:
        ends = [prox(x + s * direction, *arguments, **TIGHT)[0] for s in (1e-5, -1e-5)]
        numeric = np.sum((ends[0] - ends[1]) * cotangent) / 2e-5
        scale = max(1.0, np.linalg.norm(direction))
        assert abs(np.sum(gradient * direction) - numeric) <= atol * scale
    return cotangent, gradient


def test_worked_example_of_two_components():
    """Of the specification."""
    x = np.concatenate([WORKED_X, WORKED_Y], 1)
    of_x = [[0, 0.9], [-0.6, -0.1], [0.1, 0.1], [-1.2, 0.1], [1.4, -1.5], [0.9, 0.1]]
    of_y = [
        [-0.6, 2, 0.8],
        [-1.2, 0.1, 0.6],
        [-0.2, 0.7, -0.1],
        [0.7, 1.4, -0.7],
        [0.2, -0.5, 0.1],
        [-1.2, -0.6, -0.2],
    ]
    cotangent = np.concatenate([of_x, of_y], 1)
    output, gradient = prox_and_gradient(x, cotangent, CCA((2, 3), 2), 2.0)
    np.testing.assert_allclose(output[0, :2], [-0.13150143, 0.41024297], atol=2e-8)
    np.testing.assert_allclose(output[5, 2:], [-0.14143511, -0.22944650, -0.76261762], atol=2e-8)
    np.testing.assert_allclose(gradient[0, :2], [0.67263041, 0.32705986], atol=3e-6)
    np.testing.assert_allclose(gradient[5, :2], [-0.38311922, 0.37249784], atol=3e-6)
    np.testing.assert_allclose(gradient[0, 2:], [-0.69981158, 1.82959679, 0.78937756], atol=3e-6)
    _, found = prox(x, CCA((2, 3), 2), 2.0)
    np.testing.assert_allclose(found.correlation_before, 1.09264857, atol=1e-8)
    np.testing.assert_allclose(found.correlation_after, 1.98485433, atol=1e-8)
    np.testing.assert_allclose(found.envelope, -1.92234552, atol=1e-8)


# --- the minimiser ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_newton_lbfgs_and_descent_reach_the_same_minimiser(seed):
    # The problem has other minima, whose objectives differ by about 1e-2 here.
    x, kind = shared_views(100, (12, 12), seed=seed), CCA((12, 12), 12)
    output, newton = prox(x, kind, 1.0)
    other, lbfgs = prox(x, kind, 1.0, solver=LBFGS, tolerance=1e-7, max_iterations=2000)
    assert newton.report.converged and lbfgs.report.converged
    np.testing.assert_allclose(output, other, atol=1e-4)
    value = 1.0 / 200 * np.sum((output - x) ** 2) - newton.correlation_after
    _, expected = reference.prox(x, (12, 12), 1.0, 12, 1e-4, descent=True)
    np.testing.assert_allclose(value, expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(tolerance=1e-9), dict(max_iterations=60)])
def test_lbfgs_that_fails_falls_back_to_newton(options):
    x, kind = shared_views(50, (6, 6), seed=5), CCA((6, 6), 6)
    newton, _ = prox(x, kind, 0.5)
    output, lbfgs = prox(x, kind, 0.5, solver=LBFGS, **options)
    assert lbfgs.report.converged
    np.testing.assert_allclose(output, newton, atol=1e-7)


# t = n/lam = 8e4 leaves a residual of about 1e-8 by rounding alone.
@pytest.mark.parametrize("lam, residual", [(1e-3, 1e-6), (1e-2, 1e-8), (1.0, 1e-8), (1e3, 1e-8)])
@pytest.mark.parametrize("kind", [TWO, CCA(SIZES, 2)])
def test_residual_reaches_the_tolerance(lam, residual, kind):
    report = prox(shared_views(80, SIZES, seed=4), kind, lam)[1].report
    assert report.residual <= residual and (lam < 1e-2 or report.converged)


@pytest.mark.slow
def test_small_features_with_few_distinct_rows():
    # What an embedding gives at the start of training: the ridge is as large as the variance.
    tokens = np.random.default_rng(5).integers(0, 9, size=(2, 40))
    solve = tf.function(lambda x: prox(x, TWO, 0.5)[1], autograph=False)
    for seed in range(40, 70):
        rng = np.random.default_rng(seed)
        table = [rng.uniform(-0.05, 0.05, size=(9, d)) for d in SIZES]
        found = solve(tf.constant(np.concatenate([table[0][tokens[0]], table[1][tokens[1]]], 1)))
        assert found.report.converged, seed
        assert found.correlation_after > found.correlation_before


# --- the gradient ---------------------------------------------------------------------------------


def white():
    """Both covariances exactly white, a generic cross-covariance."""
    rng = np.random.default_rng(10)
    q, _ = np.linalg.qr(np.c_[np.ones(40), rng.normal(size=(40, 4))])
    z, _ = np.linalg.qr(np.c_[np.ones(40), q[:, 1:] + 0.5 * rng.normal(size=(40, 4))])
    return np.c_[q[:, 1:4], z[:, 1:]] * 39**0.5


@pytest.mark.parametrize(
    "x, kind, epsilon",
    [
        (shared_views(30, SIZES, 6), CCA(SIZES, 2), 1e-3),
        (shared_views(5, SIZES, 9), TWO, 1e-4),  # only n - 1 correlations are above zero
        (shared_views(5, SIZES, 9), TWO, 0.1),
        (white(), TWO, 1e-4),
        (shared_views(25, THREE, 8), GCCA(THREE, 4), 1e-2),
        (shared_views(6, THREE, 8), GCCA(THREE, 9), 1e-2),
    ],
    ids=["generic", "few rows", "few rows, ridge", "white", "three", "three of few rows"],
)
def test_gradient(x, kind, epsilon):
    assert_gradient(x, np.random.default_rng(3).normal(size=(3, *x.shape)), kind, 1.0, epsilon)


@pytest.mark.parametrize("case", ["duplicated", "identical", "constant"])
def test_gradient_of_columns_that_stay_alike(case):
    """Along changes that keep them so; the outputs stay alike, too."""
    rng = np.random.default_rng(3)
    x, *directions = shared_views(30, SIZES, 11), *rng.normal(size=(3, 30, 7))
    for each in (x, *directions):
        if case == "duplicated":
            each[:, 1] = each[:, 0]
        elif case == "identical":  # the views have one column space
            each[:, 3:6], each[:, 6] = each[:, :3], each[:, 0]
        else:
            each[:, 2] = each[0, 2]
    cotangent, gradient = assert_gradient(x, directions, TWO, 1.0)
    output = prox(x, TWO, 1.0)[0].numpy()
    if case == "constant":
        np.testing.assert_allclose(gradient[:, 2], cotangent[:, 2], atol=1e-10)
        np.testing.assert_array_equal(output[:, 2], x[:, 2])
    else:
        left, right = {"duplicated": (1, 0), "identical": (6, 3)}[case]
        np.testing.assert_allclose(output[:, left], output[:, right], atol=1e-10)


@pytest.mark.parametrize(
    "kind, epsilon",
    [(TWO, 0.0), (TWO, 1e-4), (GCCA(THREE, 4), 1e-3)],
    ids=["two", "ridge", "three"],
)
def test_gradient_of_deficient_rank(kind, epsilon):
    """A first view of rank 2, and a duplicated column in the second one of three."""
    rng, others = np.random.default_rng(14), kind.width - 3
    left, right = rng.normal(size=(30, 2)), rng.normal(size=(2, 3))
    rest = left @ rng.normal(size=(2, others)) + 0.5 * rng.normal(size=(30, others))
    directions = []
    for change in rng.normal(size=(3, 30, others)):
        turned = rng.normal(size=(30, 2)) @ right + left @ rng.normal(size=(2, 3))
        directions.append(np.c_[turned, change])
    x = np.c_[left @ right, rest]
    if others > 4:
        for each in (x, *directions):
            each[:, 4] = each[:, 3]
    assert_gradient(x, directions, kind, 1.0, epsilon, atol=3e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_turning_is_the_derivative_along_turned_row_spaces(epsilon):
    """X_2 = A B^T with orthonormal B: a turned B turns the minimiser Z B^T of (1) along."""
    rng, n, lam = np.random.default_rng(6), 25, 1.5
    given = shared_views(n, (3, 2), 7)
    start = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    basis, outside = start[:, :2], start[:, 2:]
    low, _ = reference.prox(given, (3, 2), lam, 2, epsilon)
    generator = outside @ rng.normal(size=(1, 2)) @ basis.T
    generator -= generator.T
    y = rng.normal(size=(n, 7))

    def rows(h, low):
        """Views with the row space of the second turned by h, and a constant column."""
        turned = low[:, 3:] @ (scipy.linalg.expm(h * generator) @ basis).T
        return np.c_[low[:, :3], turned, np.full(n, 0.3)]

    output, gradient = prox_and_gradient(rows(0.0, given), y, CCA(SIZES, 2), lam, epsilon, **TIGHT)
    np.testing.assert_allclose(output, rows(0.0, low), atol=1e-5)
    h = 1e-5
    change = (rows(h, given) - rows(-h, given)) / (2 * h)
    numeric = np.sum(y * (rows(h, low) - rows(-h, low))) / (2 * h)
    np.testing.assert_allclose(np.sum(gradient * change), numeric, rtol=1e-4)
    assert abs(np.sum((y - gradient) * change)) > 1e-2 * abs(numeric)
    # Along the constant column the gradient passes.
    np.testing.assert_allclose(gradient[:, 6], y[:, 6], atol=1e-10)


def test_finite_difference_gradient_agrees_with_the_implicit_one():
    x = shared_views(50, SIZES, seed=15)
    cotangent = np.random.default_rng(16).normal(size=x.shape)
    exact, numeric, nothing = (
        prox_and_gradient(x, y, TWO, 50.0, gradient=gradient)[1]
        for y, gradient in (
            (cotangent, "implicit"),
            (cotangent, "finite_difference"),
            (0.0 * x, "finite_difference"),
        )
    )
    assert np.linalg.norm(exact - numeric) < 1e-4 * np.linalg.norm(exact)
    np.testing.assert_array_equal(nothing, 0.0)


def test_jacobian_is_symmetric():
    x = shared_views(6, SIZES, seed=17)
    some = np.random.default_rng(1).permutation(x.size)[:12]
    units = np.eye(x.size)[some].reshape(-1, *x.shape)
    rows = [prox_and_gradient(x, unit, TWO, 1.0, **TIGHT)[1].ravel()[some] for unit in units]
    np.testing.assert_allclose(rows, np.transpose(rows), atol=1e-9)


def test_second_derivative_is_refused():
    x = tf.constant(shared_views(10, SIZES))
    solver = Newton(jit_compile=False)
    for function in (
        lambda x: prox(x, TWO, 1.0)[0],
        lambda x: loss_of_gram(TWO, gram_of(x), 1e-4),
        lambda x: map_of_gram(TWO, gram_of(x), 1.0, 1e-4, solver, envelope_only=True).envelope,
    ):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(function(x))
            slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            outer.gradient(slope, x)


def test_finite_difference_reports_the_worst_of_its_solves():
    x = shared_views(40, SIZES)
    y, seen = np.random.default_rng(2).normal(size=x.shape), []
    options = dict(gradient="finite_difference", observer=seen.append)
    prox_and_gradient(x, y, TWO, 5.0, **options)
    prox_and_gradient(x, y, TWO, 0.1, max_iterations=2, **options)
    solved, stopped = seen
    assert solved.converged and 0.0 < solved.residual <= 1e-8 and solved.iterations > 1
    assert not stopped.converged and stopped.residual > 1e-8 and stopped.iterations == 2


# --- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam, epsilon", [(0.0, 0.1), (-1.0, 0.1), (np.nan, 0.1), (1.0, -0.1)])
def test_numbers_out_of_range_give_nan(lam, epsilon):
    output, found = prox(shared_views(20, SIZES), TWO, tf.constant(lam), epsilon)
    assert np.isnan(output).all() and not found.report.converged


@pytest.mark.parametrize("kind", [TWO, GCCA(SIZES, 4)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-4, 100.0])
@pytest.mark.parametrize("deficient", [False, True])
def test_any_ridge_is_finite_and_solved(kind, epsilon, deficient):
    """With fewer rows than columns."""
    x, cotangent = np.random.default_rng(18).normal(size=(2, 5, 7))
    if deficient:
        x[:, 1], x[:, 4], x[:, 6] = x[:, 0], 0.0, x[:, 5] - x[:, 3]
    output, gradient = prox_and_gradient(x, cotangent, kind, 1.0, epsilon)
    assert np.isfinite(output).all() and np.isfinite(gradient).all()
    _, found = prox(x, kind, 1.0, epsilon)
    assert found.report.converged
    value = np.sum((output - x) ** 2) / 10 - found.correlation_after
    assert value <= -found.correlation_before + 1e-12


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_scale_of_the_data(scale):
    # With eps = 0 the map is equivariant: prox of (s x, lam / s^2) is s times prox of (x, lam).
    x = shared_views(40, SIZES, seed=22)
    expected, _ = prox(x, TWO, 1.0, 0.0, **TIGHT)
    output, _ = prox(scale * x, TWO, 1.0 / scale**2, 0.0, **TIGHT)
    np.testing.assert_allclose(output / scale, expected, atol=1e-8)


def test_mean_far_from_zero():
    x = shared_views(50, SIZES, seed=27)
    expected, _ = prox(x, TWO, 1.0, **TIGHT)
    np.testing.assert_allclose(prox(x + 1e4, TWO, 1.0, **TIGHT)[0] - 1e4, expected, atol=1e-7)


@pytest.mark.parametrize(
    "kind, lam, jit",
    [
        (TWO, 0.1, False),
        *[
            pytest.param(CCA((20, 20), 20), lam, jit, marks=pytest.mark.slow)
            for lam, jit in ((0.1, True), (1.0, False), (100.0, True))
        ],
    ],
)
def test_float32_is_as_good_as_its_rounding(kind, lam, jit):
    x = shared_views(100, kind.sizes).astype("float32")
    cotangent = np.random.default_rng(26).normal(size=x.shape).astype("float32")
    output, gradient = prox_and_gradient(x, cotangent, kind, lam, jit_compile=jit)
    expected, slope = prox_and_gradient(x.astype("float64"), cotangent, kind, lam, **TIGHT)
    assert output.dtype == gradient.dtype == np.float32
    assert np.linalg.norm(output - expected) <= 1e-6 * np.linalg.norm(expected)
    assert np.linalg.norm(gradient - slope) <= 1e-5 * np.linalg.norm(slope)


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_many_float32_rows_are_read_in_blocks(known):
    x = shared_views(5000, SIZES, seed=30) + 5.0
    x[:, 1], x[:, 5] = x[:, 0], 2.0
    valid = np.random.default_rng(31).random((5000, 1)) < 0.8
    cotangent = np.random.default_rng(32).normal(size=x.shape).astype("float32")

    def run(dtype):
        shape = x.shape if known else [None, 7]

        @tf.function(input_signature=[tf.TensorSpec(shape, dtype)] * 2, autograph=False)
        def step(x, cotangent):
            with tf.GradientTape() as tape:
                tape.watch(x)
                output, _ = prox(x, TWO, 0.5, valid=tf.constant(valid), **TIGHT)
            return output, tape.gradient(output, x, cotangent)

        return [t.numpy() for t in step(tf.constant(x, dtype), tf.constant(cotangent, dtype))]

    (output, gradient), (expected, slope) = run(tf.float32), run(tf.float64)
    assert np.linalg.norm(output - expected) <= 1e-6 * np.linalg.norm(expected)
    assert np.linalg.norm(gradient - slope) <= 1e-5 * np.linalg.norm(slope)
    np.testing.assert_array_equal(output[:, 5], x[:, 5].astype("float32"))
    np.testing.assert_allclose(output[:, 1], output[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    "kind, lam",
    [(CCA((70, 62), 20), 1.0), pytest.param(GCCA((50, 40, 42), 20), 30.0, marks=pytest.mark.slow)],
)
def test_wide_views_are_solved_in_single_precision_with_refinement(kind, lam):
    rng, objective = np.random.default_rng(20), "cca" if isinstance(kind, CCA) else "gcca"
    x = rng.normal(size=(400, 10)) @ rng.normal(size=(10, 132)) + rng.normal(size=(400, 132))
    output, found = prox(x, kind, lam, 1e-2, **TIGHT)
    assert found.report.converged and found.report.residual <= 1e-12
    # (3): lam/n (P - X) + dL/dP = 0
    _, slope = reference.value_and_gradient(output.numpy(), kind.sizes, 20, 1e-2, objective)
    np.testing.assert_allclose(lam / 400 * (output - x) + slope, 0.0, atol=1e-10)
    assert_gradient(x, rng.normal(size=(1, *x.shape)), kind, lam, 1e-2)


@pytest.mark.parametrize("n, dtype", [(4096, "float64"), (4097, "float32")])
def test_column_2000_times_smaller_than_its_neighbour_moves(n, dtype):
    rng = np.random.default_rng(33)
    s = rng.uniform(size=n)
    x = np.c_[2000.0 * rng.normal(size=n), s, s + 0.3 * rng.normal(size=n), rng.normal(size=n)]
    output, found = prox(x.astype(dtype), CCA((2, 2), 2), 30.0)
    moved = np.sqrt(np.mean((output.numpy() - x) ** 2, 0)) / x.std(0)
    expected, _ = reference.prox(x, (2, 2), 30.0, 2, 1e-4)
    wanted = np.sqrt(np.mean((expected - x) ** 2, 0)) / x.std(0)
    assert found.report.converged and wanted[1] > 0.05
    np.testing.assert_allclose(moved[1:], wanted[1:], rtol=1e-2)
