from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.gram import gram_of
from proxnet_tf.ops.multiview.of_gram import envelope_of_gram, loss_of_gram
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers import multiview_reference as reference
from tests.helpers.data import WORKED_X, WORKED_Y, shared_views
from tests.ops.multiview.cases import moved

TIGHT = dict(tolerance=1e-12)
TYPES = {"cca": CCA, "gcca": GCCA}


def problem(sizes, k, epsilon=1e-4, objective="cca"):
    """A correlation and its ridge."""
    return TYPES[objective](sizes, k), epsilon


class Prox(NamedTuple):
    output: Any
    step: Any
    envelope: Any
    report: Any
    correlation_before: Any
    correlation_after: Any


def prox(x, correlation_and_epsilon, lam, valid=None, jit=False, solver=Newton, **options):
    # Compiling for every shape would take most of the time; jit=True is tested where named.
    settings = solver(jit_compile=jit, **options)
    x = tf.convert_to_tensor(x)
    output, found = moved(x, *correlation_and_epsilon, lam, settings, valid=valid)
    return Prox(output, *found)


def prox_and_gradient(
    x,
    cotangent,
    correlation_and_epsilon,
    lam,
    jit=False,
    valid=None,
    gradient="implicit",
    solver=Newton,
    **options,
):
    x = tf.constant(x)
    reports = []
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, _ = moved(
            x,
            *correlation_and_epsilon,
            lam,
            solver(jit_compile=jit, **options),
            valid=valid,
            gradient=gradient,
            observer=reports.append,
        )
    slope = tape.gradient(output, x, tf.constant(cotangent, x.dtype))
    assert len(reports) == 1
    return output.numpy(), slope.numpy()


def central_difference(x, direction, cotangent, correlation, lam, h=1e-5, **options):
    """d/ds <cotangent, prox(x + s direction)> at 0."""
    plus = prox(x + h * direction, correlation, lam, **options).output.numpy()
    minus = prox(x - h * direction, correlation, lam, **options).output.numpy()
    return ((plus - minus) * cotangent).sum() / (2 * h)


def assert_gradient(x, directions, correlation, lam, atol=1e-6, **options):
    cotangent = np.random.default_rng(7).normal(size=x.shape)
    _, gradient = prox_and_gradient(x, cotangent, correlation, lam, **TIGHT, **options)
    for direction in directions:
        numeric = central_difference(x, direction, cotangent, correlation, lam, **TIGHT, **options)
        scale = max(1.0, np.linalg.norm(direction))
        assert abs((gradient * direction).sum() - numeric) <= atol * scale
    return gradient


def random_directions(shape, count=4, seed=3):
    return list(np.random.default_rng(seed).normal(size=(count, *shape)))


# --- the worked example of the specification -------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({"jit": True}, {"solver": LBFGS}))],
)
def test_worked_example_one_component(options):
    x = np.concatenate([WORKED_X, WORKED_Y], 1)
    found = prox(x, problem((2, 3), 1), 5.0, **options)
    expected = [
        [-0.00351412, 0.34747769],
        [-0.27351219, -0.84254838],
        [-0.45163213, -0.96794910],
        [0.06009338, 1.33873845],
        [-0.48392358, -0.70209567],
        [0.49248865, 0.32637701],
    ]
    np.testing.assert_allclose(found.output[:, :2], expected, atol=2e-8)
    np.testing.assert_allclose(found.correlation_before, 0.96381675, atol=1e-8)
    np.testing.assert_allclose(found.correlation_after, 0.98213007, atol=1e-8)
    np.testing.assert_allclose(found.envelope, -0.97449263, atol=1e-8)
    assert found.report.converged


@pytest.mark.parametrize("options", [{}, pytest.param({"jit": True}, marks=pytest.mark.slow)])
def test_worked_example_two_components_and_gradient(options):
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
    correlation = problem((2, 3), 2)
    output, gradient = prox_and_gradient(x, cotangent, correlation, 2.0, **options)
    np.testing.assert_allclose(output[0, :2], [-0.13150143, 0.41024297], atol=2e-8)
    np.testing.assert_allclose(output[5, 2:], [-0.14143511, -0.22944650, -0.76261762], atol=2e-8)
    np.testing.assert_allclose(gradient[0, :2], [0.67263041, 0.32705986], atol=3e-6)
    np.testing.assert_allclose(gradient[5, :2], [-0.38311922, 0.37249784], atol=3e-6)
    np.testing.assert_allclose(gradient[0, 2:], [-0.69981158, 1.82959679, 0.78937756], atol=3e-6)
    found = prox(x, correlation, 2.0, **options)
    np.testing.assert_allclose(found.correlation_before, 1.09264857, atol=1e-8)
    np.testing.assert_allclose(found.correlation_after, 1.98485433, atol=1e-8)
    np.testing.assert_allclose(found.envelope, -1.92234552, atol=1e-8)


# --- the minimiser ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective, k", [("cca", 2), pytest.param("gcca", 4, marks=pytest.mark.slow)]
)
def test_equals_the_full_problem(objective, k):
    x = shared_views(60, (4, 6), seed=1)
    correlation = problem((4, 6), k, 1e-3, objective)
    found = prox(x, correlation, 3.0, **TIGHT)
    p, value = reference.prox(x, (4, 6), 3.0, k, 1e-3, objective)
    np.testing.assert_allclose(found.output, p, atol=2e-6)
    own = 3.0 / 120 * np.sum((found.output - x) ** 2)
    own += reference.value_and_gradient(found.output.numpy(), (4, 6), k, 1e-3, objective)[0]
    assert own <= value + 1e-9


@pytest.mark.slow
def test_full_problem_of_1000_rows():
    x = shared_views(1000, (4, 4), seed=2)
    found = prox(x, problem((4, 4), 4), 2.0, **TIGHT)
    p, _ = reference.prox(x, (4, 4), 2.0, 4, 1e-4)
    np.testing.assert_allclose(found.output, p, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_newton_lbfgs_and_descent_reach_the_same_minimiser(seed):
    # The problem has other minima, whose objectives differ by about 1e-2 here.
    x = shared_views(100, (12, 12), seed=seed)
    correlation = problem((12, 12), 12)
    newton = prox(x, correlation, 1.0)
    lbfgs = prox(x, correlation, 1.0, solver=LBFGS, tolerance=1e-7, max_iterations=2000)
    assert newton.report.converged and lbfgs.report.converged
    np.testing.assert_allclose(newton.output, lbfgs.output, atol=1e-4)
    value = 1.0 / 200 * np.sum((newton.output - x) ** 2) - newton.correlation_after
    _, expected = reference.prox(x, (12, 12), 1.0, 12, 1e-4, descent=True)
    np.testing.assert_allclose(value, expected, atol=2e-6)


@pytest.mark.slow
def test_lbfgs_that_fails_falls_back_to_newton():
    x = shared_views(50, (6, 6), seed=5)
    newton = prox(x, problem((6, 6), 6), 0.5)
    lbfgs = prox(x, problem((6, 6), 6), 0.5, solver=LBFGS, tolerance=1e-9)
    short = prox(x, problem((6, 6), 6), 0.5, solver=LBFGS, max_iterations=60)
    assert lbfgs.report.converged and short.report.converged
    np.testing.assert_allclose(lbfgs.output, newton.output, atol=1e-7)
    np.testing.assert_allclose(short.output, newton.output, atol=1e-7)


def test_result_does_not_depend_on_earlier_batches():
    x, other = shared_views(40, (4, 4), 0), shared_views(40, (4, 4), 1)
    correlation = problem((4, 4), 4)
    solve = tf.function(lambda x: prox(x, correlation, 0.3).output)
    first = solve(tf.constant(x)).numpy()
    solve(tf.constant(other))
    np.testing.assert_array_equal(solve(tf.constant(x)).numpy(), first)


def test_max_iterations_of_one_is_visible_and_finite():
    x = shared_views(40, (4, 4))
    found = prox(x, problem((4, 4), 4), 0.1, max_iterations=1)
    assert (
        not found.report.converged and found.report.residual > 1e-3 and found.report.iterations == 1
    )
    assert np.isfinite(found.output).all()


@pytest.mark.parametrize("lam", [1e-2, 0.1, 1.0, 1e3])
@pytest.mark.parametrize("k", [2, 4])
def test_residual_reaches_the_tolerance(lam, k):
    x = shared_views(80, (4, 6), seed=4)
    found = prox(x, problem((4, 6), k), lam)
    assert found.report.converged and found.report.residual <= 1e-8


@pytest.mark.parametrize("k", [2, 4])
def test_very_small_lam(k):
    # t = n/lam = 8e4: rounding alone leaves a residual of about 1e-8.
    found = prox(shared_views(80, (4, 6), seed=4), problem((4, 6), k), 1e-3)
    assert found.report.residual <= 1e-6


@pytest.mark.slow
def test_small_features_with_few_distinct_rows():
    # What an embedding gives at the start of training: the ridge is as large as the variance.
    tokens = np.random.default_rng(5).integers(0, 9, size=(2, 40))
    solve = tf.function(lambda x: prox(x, problem((4, 3), 3), 0.5), autograph=False)
    for seed in range(40, 70):
        rng = np.random.default_rng(seed)
        table = [rng.uniform(-0.05, 0.05, size=(9, d)) for d in (4, 3)]
        x = np.concatenate([table[0][tokens[0]], table[1][tokens[1]]], 1)
        found = solve(tf.constant(x))
        assert found.report.converged, seed
        assert found.correlation_after > found.correlation_before


# --- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["cca", "gcca"])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize(
    "sizes", [(4, 6), *(pytest.param(s, marks=pytest.mark.slow) for s in ((4, 4), (6, 4)))]
)
@pytest.mark.parametrize("lam", [0.5, pytest.param(20.0, marks=pytest.mark.slow)])
def test_gradient(objective, k, sizes, lam):
    x = shared_views(30, sizes, seed=6)
    correlation = problem(sizes, k, 1e-3, objective)
    assert_gradient(x, random_directions(x.shape), correlation, lam)


@pytest.mark.parametrize("n, k", [(25, 4), (6, 9)])
def test_gradient_three_views(n, k):
    x = shared_views(n, (3, 4, 2), seed=8)
    correlation = problem((3, 4, 2), k, 1e-2, "gcca")
    assert_gradient(x, random_directions(x.shape), correlation, 2.0)


@pytest.mark.parametrize("k", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_gradient_three_views_of_deficient_rank(k):
    rng = np.random.default_rng(17)
    left, right = rng.normal(size=(30, 2)), rng.normal(size=(2, 4))
    others = left @ rng.normal(size=(2, 5)) + 0.5 * rng.normal(size=(30, 5))
    others[:, 1] = others[:, 0]  # a duplicated column in the second view
    x = np.c_[left @ right, others]
    directions = []
    for d in rng.normal(size=(4, 30, 5)):
        d[:, 1] = d[:, 0]
        turned = rng.normal(size=(30, 2)) @ right + left @ rng.normal(size=(2, 4))
        directions.append(np.c_[turned, d])
    correlation = problem((4, 3, 2), k, 1e-3, "gcca")
    assert_gradient(x, directions, correlation, 1.0, atol=3e-6)
    moved = prox(x, correlation, 1.0).output.numpy()
    np.testing.assert_allclose(moved[:, 4], moved[:, 5], atol=1e-10)


@pytest.mark.parametrize("n, k", [(40, 4), (7, 4)])
def test_three_views_equal_the_full_problem(n, k):
    x = shared_views(n, (3, 4, 2), seed=18)
    correlation = problem((3, 4, 2), k, 1e-2, "gcca")
    found = prox(x, correlation, 2.0, **TIGHT)
    expected, objective = reference.prox(x, (3, 4, 2), 2.0, k, 1e-2, "gcca")
    value = 2.0 / (2 * n) * np.sum((found.output - x) ** 2) + 3 * k
    np.testing.assert_allclose(value - found.correlation_after, objective, atol=1e-9)
    np.testing.assert_allclose(found.output, expected, atol=1e-4)


@pytest.mark.parametrize("epsilon", [1e-4, 0.1])
def test_gradient_batch_smaller_than_views(epsilon):
    # k >= n - 1: only n - 1 correlations are above zero
    x = shared_views(5, (4, 6), seed=9)
    assert_gradient(x, random_directions(x.shape), problem((4, 6), 4, epsilon), 1.0)


@pytest.mark.parametrize("k", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_gradient_white_views(k):
    # Both covariances exactly white, a generic cross-covariance.
    rng = np.random.default_rng(10)
    q, _ = np.linalg.qr(np.c_[np.ones(40), rng.normal(size=(40, 4))])
    z, _ = np.linalg.qr(np.c_[np.ones(40), q[:, 1:] + 0.5 * rng.normal(size=(40, 4))])
    x = np.c_[q[:, 1:], z[:, 1:]] * 39**0.5
    np.testing.assert_allclose(np.cov(x[:, :4].T), np.eye(4), atol=1e-12)
    assert_gradient(x, random_directions(x.shape), problem((4, 4), k), 1.0)


def test_gradient_duplicated_columns():
    x = shared_views(30, (4, 4), seed=11)
    x[:, 1] = x[:, 0]
    directions = random_directions(x.shape)
    for direction in directions:
        direction[:, 1] = direction[:, 0]
    correlation = problem((4, 4), 4)
    assert_gradient(x, directions, correlation, 1.0)
    output = prox(x, correlation, 1.0).output.numpy()
    np.testing.assert_allclose(output[:, 1], output[:, 0], atol=1e-10)


def test_gradient_identical_views():
    x = shared_views(30, (4, 4), seed=12)
    x[:, 4:] = x[:, :4]
    directions = random_directions(x.shape)
    correlation = problem((4, 4), 4)
    assert_gradient(x, directions, correlation, 1.0)
    output = prox(x, correlation, 1.0).output.numpy()
    np.testing.assert_allclose(output[:, 4:], output[:, :4], atol=1e-10)


def test_gradient_constant_column():
    x = shared_views(30, (4, 4), seed=13)
    x[:, 2] = 0.7
    directions = random_directions(x.shape)
    for direction in directions:
        direction[:, 2] = direction[0, 2]
    correlation = problem((4, 4), 4)
    cotangent = np.random.default_rng(7).normal(size=x.shape)
    gradient = assert_gradient(x, directions, correlation, 1.0)
    np.testing.assert_allclose(gradient[:, 2], cotangent[:, 2], atol=1e-10)
    np.testing.assert_array_equal(prox(x, correlation, 1.0).output[:, 2], x[:, 2])


@pytest.mark.parametrize("epsilon", [0.0, 1e-4])
def test_gradient_rank_deficient_view(epsilon):
    rng = np.random.default_rng(14)
    left, right = rng.normal(size=(30, 2)), rng.normal(size=(2, 4))
    other = left @ rng.normal(size=(2, 3)) + 0.5 * rng.normal(size=(30, 3))
    x = np.c_[left @ right, other]
    directions = [
        np.c_[rng.normal(size=(30, 2)) @ right + left @ rng.normal(size=(2, 4)), d]
        for d in rng.normal(size=(4, 30, 3))
    ]
    assert_gradient(x, directions, problem((4, 3), 3, epsilon), 1.0, atol=3e-6)


def test_turning_is_the_derivative_along_turned_row_spaces():
    """X_1 = A B^T with orthonormal B: a turned B turns the minimiser Z B^T of (1) along."""
    rng, n, lam = np.random.default_rng(6), 25, 1.5
    a, other = np.split(shared_views(n, (2, 2), 7), [2], axis=1)
    start = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    basis, outside = start[:, :2], start[:, 2:]
    low, _ = reference.prox(np.c_[a, other], (2, 2), lam, 2, 1e-2)
    generator = outside @ rng.normal(size=(2, 2)) @ basis.T
    generator -= generator.T
    y = rng.normal(size=(n, 7))

    def rows(h, left):
        """Views with the row space of the first turned by h, and a constant column between."""
        turned = left[:, :2] @ (scipy.linalg.expm(h * generator) @ basis).T
        return np.c_[turned, np.full(n, 0.3), left[:, 2:]]

    x, p = (rows(0.0, left) for left in (np.c_[a, other], low))
    output, gradient = prox_and_gradient(x, y, problem((5, 2), 2, 1e-2), lam, **TIGHT)
    np.testing.assert_allclose(output, p, atol=1e-6)
    h = 1e-5
    change = (rows(h, np.c_[a, other]) - rows(-h, np.c_[a, other])) / (2 * h)
    numeric = np.sum(y * (rows(h, low) - rows(-h, low))) / (2 * h)
    np.testing.assert_allclose(np.sum(gradient * change), numeric, rtol=1e-5)
    assert abs(np.sum((y - gradient) * change)) > 1e-2 * abs(numeric)
    # Along the constant column the gradient passes.
    np.testing.assert_allclose(gradient[:, 4], y[:, 4], atol=1e-10)


def test_finite_difference_gradient_agrees_with_the_implicit_one():
    x = shared_views(50, (4, 4), seed=15)
    cotangent = np.random.default_rng(16).normal(size=x.shape)
    correlation = problem((4, 4), 4)
    _, exact = prox_and_gradient(x, cotangent, correlation, 20.0)
    _, numeric = prox_and_gradient(x, cotangent, correlation, 20.0, gradient="finite_difference")
    error = np.linalg.norm(exact - numeric) / np.linalg.norm(exact)
    assert error < 1e-4
    _, nothing = prox_and_gradient(
        x, np.zeros_like(x), correlation, 20.0, gradient="finite_difference"
    )
    np.testing.assert_array_equal(nothing, 0.0)


def test_jacobian_is_symmetric():
    x = shared_views(6, (2, 2), seed=17)
    columns = []
    for i in range(x.size):
        cotangent = np.zeros(x.size)
        cotangent[i] = 1.0
        columns.append(
            prox_and_gradient(x, cotangent.reshape(x.shape), problem((2, 2), 2), 1.0, **TIGHT)[
                1
            ].ravel()
        )
    jacobian = np.array(columns)
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-9)


def test_second_derivative_is_refused():
    x = tf.constant(shared_views(10, (2, 2)))
    for function in (
        lambda x: prox(x, problem((2, 2), 2), 1.0).output,
        lambda x: loss_of_gram(CCA((2, 2), 2), gram_of(x), 1e-4),
        lambda x: envelope_of_gram(CCA((2, 2), 2), gram_of(x), 1.0, 1e-4, Newton())[0],
    ):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(function(x))
            slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            outer.gradient(slope, x)


# --- reports of the backward solve ---------------------------------------------------------------


def backward_report(x, correlation, lam, gradient="implicit", **options):
    """The output, its gradient and the one report that an observer gets, from a graph."""
    seen = [tf.Variable(v) for v in (np.float64(-1.0), np.int32(-1), False)]

    def observer(report):
        return [v.assign(tf.cast(r, v.dtype)) for v, r in zip(seen, report, strict=True)]

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            settings = Newton(jit_compile=False, **options)
            output, found = moved(
                x, *correlation, lam, settings, gradient=gradient, observer=observer
            )
            value = tf.reduce_sum(output**3)
        return found, tape.gradient(value, x)

    found, slope = step(tf.constant(x))
    return found, slope.numpy(), [v.numpy() for v in seen]


@pytest.mark.parametrize("objective", ["cca", pytest.param("gcca", marks=pytest.mark.slow)])
def test_backward_solve_reports(objective):
    x = shared_views(40, (5, 6))
    correlation = problem((5, 6), 5, 1e-3, objective)
    _, _, (residual, iterations, converged) = backward_report(x, correlation, 0.5)
    assert converged and 0.0 < residual <= 1e-10 and iterations > 2


def test_negative_curvature_counts_as_unsolved():
    # Far from a minimiser the Hessian is indefinite: one evaluation stops at W = R.
    x = shared_views(60, (4, 4))
    found, _, (_, _, converged) = backward_report(x, problem((4, 4), 4), 0.05, max_iterations=1)
    assert not found.report.converged and not converged


@pytest.mark.slow
def test_finite_difference_reports_the_worst_of_its_solves():
    x = shared_views(40, (4, 4))
    correlation = problem((4, 4), 4)
    _, _, (residual, iterations, converged) = backward_report(
        x, correlation, 5.0, gradient="finite_difference"
    )
    assert converged and 0.0 < residual <= 1e-8 and iterations > 1
    _, _, (residual, iterations, converged) = backward_report(
        x, correlation, 0.1, gradient="finite_difference", max_iterations=2
    )
    assert not converged and residual > 1e-8 and iterations == 2


@pytest.mark.parametrize("lam, epsilon", [(0.0, 0.1), (-1.0, 0.1), (np.nan, 0.1), (1.0, -0.1)])
def test_numbers_out_of_range_give_nan(lam, epsilon):
    x = shared_views(20, (3, 3))
    found = prox(x, (CCA((3, 3), 3), epsilon), tf.constant(lam))
    assert np.isnan(found.output).all() and not found.report.converged


# --- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["cca", "gcca"])
@pytest.mark.parametrize("x", [np.ones((1, 6)), np.full((7, 6), 3.0), np.zeros((4, 6))])
def test_single_row_and_constant_batch_pass(objective, x):
    cotangent = np.random.default_rng(0).normal(size=x.shape)
    correlation = problem((3, 3), 3, objective=objective)
    output, gradient = prox_and_gradient(x, cotangent, correlation, 1.0)
    np.testing.assert_array_equal(output, x)
    np.testing.assert_allclose(gradient, cotangent, atol=1e-14)


@pytest.mark.parametrize("objective", ["cca", "gcca"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-4, 1.0, 100.0])
@pytest.mark.parametrize("deficient", [False, True])
@pytest.mark.parametrize("n", [6, pytest.param(32, marks=pytest.mark.slow)])
def test_any_ridge_is_finite_and_solved(objective, epsilon, deficient, n):
    x = np.random.default_rng(18).normal(size=(n, 20))
    if deficient:
        x[:, 3], x[:, 4], x[:, 12] = x[:, 2], 0.0, x[:, 11] - x[:, 10]
    cotangent = np.random.default_rng(19).normal(size=x.shape)
    correlation = problem((10, 10), 10, epsilon, objective)
    output, gradient = prox_and_gradient(x, cotangent, correlation, 1.0)
    assert np.isfinite(output).all() and np.isfinite(gradient).all()
    found = prox(x, correlation, 1.0)
    assert found.report.converged
    value = 1.0 / (2 * n) * np.sum((output - x) ** 2) - found.correlation_after
    assert value <= -found.correlation_before + 1e-12


def test_no_ridge_equals_the_full_problem_in_the_row_space():
    rng = np.random.default_rng(20)
    basis, _ = np.linalg.qr(rng.normal(size=(5, 3)))
    low = shared_views(40, (3, 3), seed=21)
    x = np.c_[low[:, :3] @ basis.T, low[:, 3:]]
    output = prox(x, problem((5, 3), 3, 0.0), 1.0, **TIGHT).output.numpy()
    expected, _ = reference.prox(low, (3, 3), 1.0, 3, 0.0)
    np.testing.assert_allclose(output[:, :5] @ basis, expected[:, :3], atol=1e-5)
    np.testing.assert_allclose(output[:, 5:], expected[:, 3:], atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("solver", [Newton, pytest.param(LBFGS, marks=pytest.mark.slow)])
def test_value_that_is_not_finite_gives_nan(bad, solver):
    x = shared_views(20, (3, 3))
    x[4, 1] = bad
    output, gradient = prox_and_gradient(x, np.ones_like(x), problem((3, 3), 3), 1.0, solver=solver)
    assert np.isnan(output).all() and np.isnan(gradient).all()
    found = prox(x, problem((3, 3), 3), 1.0)
    assert not found.report.converged


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6])
def test_scale_of_the_data(scale):
    # With eps = 0 the map is equivariant: prox of (s x, lam / s^2) is s times prox of (x, lam).
    x = shared_views(40, (4, 4), seed=22)
    correlation = problem((4, 4), 4, 0.0)
    expected = prox(x, correlation, 1.0, **TIGHT).output.numpy()
    output = prox(scale * x, correlation, 1.0 / scale**2, **TIGHT).output.numpy()
    np.testing.assert_allclose(output / scale, expected, atol=1e-8)


def test_mask_equals_leaving_the_rows_out():
    x = shared_views(30, (4, 3), seed=23)
    valid = np.random.default_rng(24).random(30) < 0.7
    spoiled = np.where(valid[:, None], x, np.nan)
    cotangent = np.random.default_rng(25).normal(size=x.shape)
    correlation = problem((4, 3), 3)
    mask = tf.constant(valid[:, None])
    output, gradient = prox_and_gradient(spoiled, cotangent, correlation, 1.0, valid=mask, **TIGHT)
    expected, slope = prox_and_gradient(x[valid], cotangent[valid], correlation, 1.0, **TIGHT)
    np.testing.assert_allclose(output[valid], expected, atol=1e-12)
    np.testing.assert_allclose(gradient[valid], slope, atol=1e-9)
    assert np.isnan(output[~valid]).all()
    np.testing.assert_array_equal(gradient[~valid], cotangent[~valid])
    output, gradient = prox_and_gradient(x, cotangent, correlation, 1.0, valid=tf.zeros_like(mask))
    np.testing.assert_array_equal(output, x)
    np.testing.assert_array_equal(gradient, cotangent)
    nothing = prox(x, correlation, 1.0, valid=tf.zeros_like(mask))
    assert (
        nothing.report.converged and nothing.correlation_before == nothing.correlation_after == 0.0
    )


@pytest.mark.parametrize("jit", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "lam", [0.1, *(pytest.param(a, marks=pytest.mark.slow) for a in (1.0, 10.0, 100.0))]
)
def test_float32_is_as_good_as_its_rounding(lam, jit):
    x = shared_views(100, (20, 20)).astype("float32")
    cotangent = np.random.default_rng(26).normal(size=x.shape).astype("float32")
    correlation = problem((20, 20), 20)
    output, gradient = prox_and_gradient(x, cotangent, correlation, lam, jit=jit)
    expected, slope = prox_and_gradient(
        x.astype("float64"), cotangent.astype("float64"), correlation, lam, **TIGHT
    )
    assert output.dtype == gradient.dtype == np.float32
    assert np.linalg.norm(output - expected) <= 1e-6 * np.linalg.norm(expected)
    assert np.linalg.norm(gradient - slope) <= 1e-5 * np.linalg.norm(slope)


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_many_float32_rows_are_read_in_blocks(known):
    x = shared_views(5000, (4, 3), seed=30) + 5.0
    x[:, 1], x[:, 5] = x[:, 0], 2.0
    valid = np.random.default_rng(31).random((5000, 1)) < 0.8
    cotangent = np.random.default_rng(32).normal(size=x.shape).astype("float32")
    correlation = problem((4, 3), 3)

    def run(x, cotangent, dtype):
        shape = x.shape if known else [None, 7]

        @tf.function(input_signature=[tf.TensorSpec(shape, dtype)] * 2, autograph=False)
        def step(x, cotangent):
            with tf.GradientTape() as tape:
                tape.watch(x)
                found = prox(x, correlation, 0.5, valid=tf.constant(valid), **TIGHT)
            return found.output, tape.gradient(found.output, x, cotangent)

        return [t.numpy() for t in step(tf.constant(x, dtype), tf.constant(cotangent, dtype))]

    output, gradient = run(x, cotangent, tf.float32)
    expected, slope = run(x, cotangent, tf.float64)
    assert np.linalg.norm(output - expected) <= 1e-6 * np.linalg.norm(expected)
    assert np.linalg.norm(gradient - slope) <= 1e-5 * np.linalg.norm(slope)
    np.testing.assert_array_equal(output[:, 5], x[:, 5].astype("float32"))
    np.testing.assert_allclose(output[:, 1], output[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    "objective, sizes, lam",
    [("cca", (70, 62), 1.0), pytest.param("gcca", (50, 40, 42), 30.0, marks=pytest.mark.slow)],
)
def test_wide_views_are_solved_in_single_precision_with_refinement(objective, sizes, lam):
    rng = np.random.default_rng(20)
    latent, width = rng.normal(size=(400, 10)), sum(sizes)
    x = latent @ rng.normal(size=(10, width)) + rng.normal(size=(400, width))
    correlation = problem(sizes, 20, 1e-2, objective)
    found = prox(x, correlation, lam, **TIGHT)
    assert found.report.converged and found.report.residual <= 1e-12
    # (3): lam/n (P - X) + dL/dP = 0
    p = found.output.numpy()
    _, slope = reference.value_and_gradient(p, sizes, 20, 1e-2, objective)
    np.testing.assert_allclose(lam / 400 * (p - x) + slope, 0.0, atol=1e-10)
    assert_gradient(x, random_directions(x.shape, 1), correlation, lam)


@pytest.mark.parametrize("n", [4096, 4097])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_column_2000_times_smaller_than_its_neighbour_moves(n, dtype):
    rng = np.random.default_rng(33)
    s = rng.uniform(size=n)
    x = np.c_[2000.0 * rng.normal(size=n), s, s + 0.3 * rng.normal(size=n), rng.normal(size=n)]
    found = prox(x.astype(dtype), problem((2, 2), 2), 30.0)
    moved = np.sqrt(np.mean((found.output.numpy() - x) ** 2, 0)) / x.std(0)
    expected, _ = reference.prox(x, (2, 2), 30.0, 2, 1e-4)
    wanted = np.sqrt(np.mean((expected - x) ** 2, 0)) / x.std(0)
    assert found.report.converged and wanted[1] > 0.05
    np.testing.assert_allclose(moved[1:], wanted[1:], rtol=1e-2)


def test_mean_far_from_zero():
    x = shared_views(50, (4, 4), seed=27)
    shifted = x + 1e4
    correlation = problem((4, 4), 4)
    np.testing.assert_allclose(
        prox(shifted, correlation, 1.0, **TIGHT).output - 1e4,
        prox(x, correlation, 1.0, **TIGHT).output,
        atol=1e-7,
    )


# --- the correlation and the envelope as losses -------------------------------------------------


def value_and_slope(function, x, y=1.0, dtype="float64", valid=None):
    """A function of the sample of rows, and the gradient of y times it."""
    x = tf.constant(x, dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(gram_of(x, valid))
        value, *rest = value if isinstance(value, tuple) else (value,)
    return value, tape.gradient(value, x, tf.constant(y, tf.float64)).numpy(), *rest


@pytest.mark.parametrize("objective", ["cca", "gcca"])
@pytest.mark.parametrize("n, sizes, k", [(30, (4, 6), 4), (30, (4, 6), 2), (5, (4, 6), 3)])
def test_loss(objective, n, sizes, k):
    x = shared_views(n, sizes, seed=28)
    kind, epsilon = problem(sizes, k, 1e-2, objective)
    value, gradient = value_and_slope(lambda sample: loss_of_gram(kind, sample, epsilon), x)
    expected, slope = reference.value_and_gradient(x, sizes, k, 1e-2, objective)
    np.testing.assert_allclose(value, expected, atol=1e-10)
    np.testing.assert_allclose(gradient, slope, atol=1e-10)


def envelope(objective, x, lam, y=1.0, solver=None, **options):
    kind, epsilon = problem((4, 4), 4, 1e-2, objective)
    solver = solver or Newton(jit_compile=False, **TIGHT)
    return value_and_slope(
        lambda sample: envelope_of_gram(kind, sample, lam, epsilon, solver), x, y, **options
    )


@pytest.mark.parametrize("objective", ["cca", "gcca"])
def test_envelope_is_the_value_of_the_problem(objective):
    x, lam = shared_views(15, (4, 4), 1), 3.0
    value, slope, report = envelope(objective, x, lam, y=2.0)
    p, expected = reference.prox(x, (4, 4), lam, 4, 1e-2, objective)
    np.testing.assert_allclose(value, expected, atol=1e-8)
    np.testing.assert_allclose(slope, 2 * lam / 15 * (x - p), atol=1e-5)
    # The value of the minimum has this slope although the minimiser moves.
    direction, h = np.random.default_rng(2).normal(size=x.shape), 1e-4
    ends = [float(envelope(objective, x + s * h * direction, lam)[0]) for s in (1, -1)]
    np.testing.assert_allclose((slope * direction).sum(), (ends[0] - ends[1]) / h, atol=1e-7)
    assert report.converged and report.iterations > 1
    found = prox(x, problem((4, 4), 4, 1e-2, objective), lam, **TIGHT)
    np.testing.assert_allclose(found.envelope, value, rtol=1e-14)


@pytest.mark.parametrize("objective", ["cca", "gcca"])
def test_envelope_nears_the_correlation_from_below(objective):
    x = shared_views(15, (4, 4), 1)
    above = reference.value_and_gradient(x, (4, 4), 4, 1e-2, objective)[0]
    values = [float(envelope(objective, x, lam)[0]) for lam in (1.0, 10.0, 1e6)]
    assert values[0] < values[1] < values[2] < above
    np.testing.assert_allclose(values[2], above, atol=1e-5)


def test_map_and_envelope_together_have_the_sum_of_their_gradients():
    x, correlation = tf.constant(shared_views(15, (4, 4), 1)), problem((4, 4), 4, 1e-2)
    cotangent = np.random.default_rng(4).normal(size=x.shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = prox(x, correlation, 3.0, **TIGHT)
        value = tf.reduce_sum(cotangent * found.output) + 0.7 * found.envelope
    together = tape.gradient(value, x).numpy()
    _, of_map = prox_and_gradient(x.numpy(), cotangent, correlation, 3.0, **TIGHT)
    _, of_value, _ = envelope("cca", x.numpy(), 3.0, y=0.7)
    np.testing.assert_allclose(together, of_map + of_value, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_have_no_correlation(rows):
    valid = tf.constant(np.arange(4)[:, None] < rows)
    for objective, nothing in (("cca", 0.0), ("gcca", 8.0)):  # J k
        x = shared_views(4, (4, 4), 1)
        value, slope, _ = envelope(objective, x, 1.5, valid=valid)
        assert float(value) == nothing
        np.testing.assert_array_equal(slope, 0.0)


def test_envelope_at_its_edges():
    x = shared_views(15, (4, 4), 1)
    short = Newton(max_iterations=2, jit_compile=False)
    *_, report = envelope("cca", x, 0.1, solver=short)
    assert report.iterations == 2 and not report.converged and report.residual > 1e-6
    exact, slope, _ = envelope("cca", x, 1.5)
    value, single, _ = envelope("cca", x, 1.5, dtype="float32")
    assert single.dtype == np.float32
    np.testing.assert_allclose(value, exact, rtol=1e-6)
    np.testing.assert_allclose(single, slope, atol=1e-6)
    x[2, 3] = np.inf
    value, slope, report = envelope("cca", x, 1.5)
    assert np.isnan(value) and np.isnan(slope).all() and not report.converged
