"""The linear system of a proximal state against dense NumPy: values, bounds and reports."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.recurrent.solve import CG, Solver, solve_by_products, solve_dense
from tests.helpers.differences import central_difference


def jacobians(batch, units, features, norm=1.0, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, units, features)) * norm


def exact_of(j, s):
    """c = (I + J J^T)^-1 s and u = J^T c, example by example."""
    j, s = j.astype("float64"), s.astype("float64")
    c = np.stack(
        [np.linalg.solve(np.eye(s.shape[1]) + a @ a.T, b) for a, b in zip(j, s, strict=True)]
    )
    return c, np.einsum("nuf,nu->nf", j, c)


def by_products(j, s, jacobian_dtype=None, **settings):
    return solve_by_products(
        tf.constant(s),
        product=lambda v: tf.linalg.matvec(j, v),
        total=tf.identity,
        transpose=lambda t: tf.linalg.matvec(j, t, transpose_a=True),
        solver=Solver(**settings),
        width=s.shape[-1],
        jacobian_dtype=jacobian_dtype,
    )


@pytest.mark.parametrize(
    "dtype, tolerance",
    [("float64", 1e-12), ("float32", 1e-5), ("float16", 1e-3), ("bfloat16", 1e-2)],
)
def test_tolerance_of_a_dtype(dtype, tolerance):
    assert CG.tolerance_for(dtype) == CG.tolerance_for(tf.as_dtype(dtype)) == tolerance
    assert Solver(tolerance=0.25).tolerance_for(dtype) == 0.25


def test_bound_on_the_steps():
    assert CG.bound_for(3, 7) == CG.bound_for(7, 3) == 16
    assert Solver(max_iterations=4).bound_for(3, 7) == 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", [0.0, 0.1, 1.0, 30.0])
def test_the_residual_bounds_the_error(norm, dtype):
    j = (jacobians(5, 12, 8) * norm / 5).astype(dtype)
    s = np.random.default_rng(1).normal(size=(5, 12)).astype(dtype)
    s[2] = 0.0
    rounding = 10 * (1 + norm**2) * np.finfo(dtype).eps
    exact, u = exact_of(j, s)
    for tolerance in (1e-2, 1e-5):
        solved = by_products(j, s, tolerance=tolerance)
        assert solved.report.converged.numpy().all()
        assert (solved.report.residual <= tolerance).numpy().all()
        error = np.linalg.norm(solved.c - exact, axis=-1)
        size = np.linalg.norm(s, axis=-1)
        assert (error <= solved.report.residual.numpy() * size * 1.001 + rounding * size).all()
        np.testing.assert_allclose(solved.u, u, atol=2 * tolerance * size.max() + 1e-6)
        np.testing.assert_allclose(solved.products, s - solved.c, atol=1e-5)
        np.testing.assert_array_equal(solved.c[2], 0.0)


def test_the_factors_of_the_jacobian_may_be_apart():
    """J = D A with `products` = A u: the linear part alone."""
    rng = np.random.default_rng(2)
    a, d, s = rng.normal(size=(6, 4)), rng.normal(size=(3, 6)), rng.normal(size=(3, 6))
    solved = solve_by_products(
        tf.constant(s),
        product=lambda v: tf.matmul(v, a, transpose_b=True),
        total=lambda t: d * t,
        transpose=lambda t: tf.matmul(d * t, a),
        solver=CG,
        width=6,
    )
    c, u = exact_of(d[:, :, None] * a, s)
    np.testing.assert_allclose(solved.c, c, atol=1e-11)
    np.testing.assert_allclose(solved.u, u, atol=1e-11)
    np.testing.assert_allclose(solved.products, u @ a.T, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dense_solution_equals_numpy(dtype):
    j, s = jacobians(3, 5, 2).astype(dtype), jacobians(3, 5, 1, seed=3)[..., 0].astype(dtype)
    solved = solve_dense(tf.constant(s), tf.constant(j), lambda u: 2.0 * tf.linalg.matvec(j, u))
    c, u = exact_of(j, s)
    atol = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(solved.c, c, atol=atol)
    np.testing.assert_allclose(solved.u, u, atol=atol)
    np.testing.assert_allclose(solved.products, 2 * (s - c), atol=2 * atol)
    residual, iterations, converged = solved.report
    np.testing.assert_allclose(residual, np.zeros(3), atol=1e-15 if dtype == "float64" else 1e-8)
    assert residual.dtype == dtype and iterations == 0
    np.testing.assert_array_equal(converged, [True] * 3)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e9, 1e25])
def test_dense_solution_of_large_jacobians_is_right_or_said_not_to_be(size):
    j, s = jacobians(3, 6, 4).astype("float32"), jacobians(3, 6, 1, seed=3)[..., 0]
    s, j = s.astype("float32"), (size * j).astype("float32")
    solved = solve_dense(tf.constant(s), tf.constant(j), lambda u: tf.linalg.matvec(j, u))
    assert solved.report.converged.numpy().all() == (size < 1e6)
    if size < 1e6:
        np.testing.assert_allclose(solved.c, exact_of(j.astype("float64"), s)[0], atol=2e-5)


def test_dense_solution_is_differentiable():
    values = [jacobians(2, 3, 2, seed=4), jacobians(2, 3, 1, seed=5)[..., 0]]
    weights = np.random.default_rng(6).normal(size=(2, 3))
    tensors = [tf.constant(v) for v in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        j, s = tensors
        solved = solve_dense(s, j, lambda u: tf.linalg.matvec(j, u))
        loss = tf.reduce_sum(weights * solved.c) + tf.reduce_sum(solved.u)
    for index, gradient in enumerate(tape.gradient(loss, tensors)):

        def numpy_loss(j, s):
            c, u = exact_of(j, s)
            return np.sum(weights * c) + np.sum(u)

        numeric = central_difference(numpy_loss, values, index)
        np.testing.assert_allclose(gradient, numeric, atol=1e-8)


def test_a_small_bound_is_reported():
    j, s = 100 * jacobians(2, 20, 20), jacobians(2, 20, 1, seed=7)[..., 0]
    report = by_products(j, s, max_iterations=3).report
    assert report.iterations == 3
    assert report.residual.shape == report.converged.shape == (2,)
    assert not report.converged.numpy().any()
    assert (report.residual > 1e-6).numpy().all()


def test_a_rough_jacobian_is_not_solved_to_the_last_digit():
    j, s = jacobians(2, 20, 20) / 5, jacobians(2, 20, 1, seed=8)[..., 0]
    fine, rough = by_products(j, s), by_products(j, s, jacobian_dtype="float16")
    assert fine.report.iterations > rough.report.iterations
    assert (fine.report.residual <= 1e-12).numpy().all()
    assert (rough.report.residual <= 1e-3).numpy().all()
    assert (rough.report.residual > 1e-12).numpy().all()


def test_what_is_not_a_number_stays_with_its_example():
    j, s = jacobians(3, 4, 2), jacobians(3, 4, 1, seed=9)[..., 0]
    exact, u = exact_of(j, s)
    s[1, 0] = np.nan
    solved = by_products(j, s)
    np.testing.assert_array_equal(solved.report.converged, [True, False, True])
    for found, wanted in ((solved.c, exact), (solved.u, u), (solved.products, s - exact)):
        assert np.isnan(found[1]).all()
        np.testing.assert_allclose(found.numpy()[[0, 2]], wanted[[0, 2]], atol=1e-11)
    assert np.isnan(solved.report.residual[1])


def test_no_example():
    solved = by_products(jacobians(0, 3, 2), np.zeros((0, 3)))
    assert solved.c.shape == (0, 3) and solved.u.shape == (0, 2)
    assert solved.report.residual.shape == (0,) and solved.report.iterations == 0
