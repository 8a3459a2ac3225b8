"""The one loop of conjugate gradients, against dense solves and the theory of trust regions."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.linear.cg import conjugate_gradient


def spd(n, *batch, seed=0, dtype="float64"):
    a = np.random.default_rng(seed).normal(size=(*batch, n, n))
    return (a @ np.swapaxes(a, -1, -2) / n + np.eye(n)).astype(dtype)


def vectors(*shape, seed=1, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def times(a):
    return lambda x: tf.linalg.matvec(tf.constant(a), x)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_equals_a_dense_solve(dtype, tolerance):
    a, b = spd(12, 5, dtype=dtype), vectors(5, 12, dtype=dtype)
    found = conjugate_gradient(times(a), tf.constant(b), tolerance=tolerance)
    exact = np.linalg.solve(a.astype("float64"), b[..., None])[..., 0]
    np.testing.assert_allclose(found.solution, exact, atol=20 * tolerance)
    assert found.solution.dtype == dtype
    true = np.linalg.norm(b - (a @ found.solution.numpy()[..., None])[..., 0], axis=-1)
    size = np.linalg.norm(b, axis=-1)
    rounding = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(found.residual[:, 0], true / size, atol=rounding)
    assert found.residual.shape == found.converged.shape == (5, 1)
    assert found.converged.numpy().all() and not found.negative_curvature.numpy().any()
    assert 3 < int(found.iterations) <= 20
    quadratic = np.sum(b * exact, -1) / 2
    np.testing.assert_allclose(found.reduction[:, 0], quadratic, rtol=1e3 * rounding)
    np.testing.assert_array_equal(found.norm, 0.0)
    np.testing.assert_array_equal(found.image, found.solution)
    assert found.report.iterations is found.iterations
    assert found.report.residual is found.residual
    assert found.report.converged is found.converged


def test_examples_stop_by_themselves():
    """An easy example among hard ones ends where it ends alone."""
    a = np.stack([np.eye(8), np.diag(np.geomspace(1, 1e4, 8))])
    b = vectors(2, 8)
    both = conjugate_gradient(times(a), tf.constant(b))
    alone = conjugate_gradient(times(a[:1]), tf.constant(b[:1]))
    assert alone.iterations == 1
    assert both.iterations > 5
    np.testing.assert_array_equal(both.solution[0], alone.solution[0])


def test_zero_right_hand_side():
    b = vectors(3, 6)
    b[1] = 0.0
    found = conjugate_gradient(times(spd(6)), tf.constant(b))
    np.testing.assert_array_equal(found.solution[1], 0.0)
    np.testing.assert_array_equal(found.residual[1], 0.0)
    assert found.converged.numpy().all()
    none = conjugate_gradient(times(spd(6)), tf.zeros([2, 6], tf.float64))
    assert none.iterations == 0 and none.converged.numpy().all()
    np.testing.assert_array_equal(none.solution, 0.0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_the_range(size):
    a, b = spd(6, dtype="float32"), vectors(3, 6, dtype="float32")

    def solve(size):
        rhs = tf.constant(b * np.float32(size))
        return conjugate_gradient(times(a), rhs, tolerance=1e-5, radius=1.2 * np.float32(size))

    found, wanted = solve(size), solve(1.0)
    np.testing.assert_allclose(found.solution / size, wanted.solution, rtol=1e-4)
    np.testing.assert_allclose(found.norm / size, wanted.norm, rtol=1e-4)
    assert 1.2 == pytest.approx(wanted.norm.numpy().max()) and wanted.norm.numpy().min() < 1.1
    np.testing.assert_array_equal(found.converged, wanted.converged)
    assert found.iterations == wanted.iterations


def test_semidefinite_and_consistent():
    """The solution of least norm."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(10, 4))
    a = half @ half.T
    b = a @ rng.normal(size=10)
    found = conjugate_gradient(times(a), tf.constant(b[None]), tolerance=1e-11)
    assert found.converged.numpy().all()
    np.testing.assert_allclose(found.solution[0], np.linalg.pinv(a) @ b, atol=1e-9)


def test_semidefinite_and_inconsistent_is_reported():
    a, b = np.diag([2.0, 1.0, 0.0]), np.array([[2.0, 1.0, 1.0]])
    found = conjugate_gradient(times(a), tf.constant(b), max_iterations=50)
    assert not found.converged.numpy().any()
    assert np.isfinite(found.solution).all()


def test_negative_curvature():
    """The direction of b is concave for the second example alone."""
    a = np.stack([np.diag([1.0, 2.0]), np.diag([-1.0, 2.0])])
    b = np.array([[1.0, 1.0], [1.0, 0.0]])
    found = conjugate_gradient(times(a), tf.constant(b))
    np.testing.assert_array_equal(found.negative_curvature[:, 0], [False, True])
    np.testing.assert_array_equal(found.converged[:, 0], [True, False])
    np.testing.assert_allclose(found.solution, [[1.0, 0.5], [0.0, 0.0]])
    inside = conjugate_gradient(times(a), tf.constant(b), radius=3.0)
    np.testing.assert_allclose(inside.solution[1], [3.0, 0.0])  # to the boundary along b
    np.testing.assert_allclose(inside.reduction[1], 3.0 + 4.5)
    np.testing.assert_allclose(inside.norm[:, 0], [np.hypot(1, 0.5), 3.0])


@pytest.mark.parametrize("radius", [0.5, 50.0])
def test_radius_in_the_norm_of_the_preconditioner(radius):
    """Inside it is the solution, outside it ends on the boundary and the model goes down."""
    a, b, m = spd(6), vectors(6, seed=3)[None], np.geomspace(0.5, 4, 6)
    found = conjugate_gradient(
        times(a), tf.constant(b), preconditioner=lambda r: r / m, radius=radius, tolerance=1e-12
    )
    x, exact = found.solution.numpy()[0], np.linalg.solve(a, b[0])
    norm = np.sqrt(np.sum(m * x**2))
    np.testing.assert_allclose(found.norm[0, 0], norm, rtol=1e-7)
    np.testing.assert_allclose(found.reduction[0, 0], b[0] @ x - x @ a @ x / 2, rtol=1e-9)
    if np.sqrt(np.sum(m * exact**2)) <= radius:
        np.testing.assert_allclose(x, exact, atol=1e-9)
    else:
        np.testing.assert_allclose([norm, found.norm[0, 0]], radius, rtol=1e-7)
        cauchy = b[0] / m * radius / np.sqrt(np.sum(b[0] ** 2 / m))
        step = min(1.0, (b[0] @ cauchy) / (cauchy @ a @ cauchy))
        best = step * b[0] @ cauchy - step**2 * cauchy @ a @ cauchy / 2
        assert found.reduction[0, 0] >= best * (1 - 1e-7)


def test_preconditioner_saves_iterations():
    a = np.diag(np.geomspace(1, 1e6, 30)) + 0.01 * spd(30)
    b = tf.constant(vectors(1, 30))
    plain = conjugate_gradient(times(a), b, tolerance=1e-8, max_iterations=500)
    better = conjugate_gradient(
        times(a), b, preconditioner=lambda r: r / np.diag(a), tolerance=1e-8, max_iterations=500
    )
    assert better.converged.numpy().all()
    assert int(better.iterations) < int(plain.iterations) / 4
    np.testing.assert_allclose(better.solution[0], np.linalg.solve(a, b[0]), atol=1e-7)


def test_matrices_as_vectors():
    """With both axes one step size for all; the answer is that of the Kronecker product."""
    a, b = spd(3), vectors(2, 3, 4)
    found = conjugate_gradient(
        lambda x: tf.linalg.matmul(tf.constant(a), x), tf.constant(b), axes=(-2, -1)
    )
    assert found.residual.shape == (2, 1, 1)
    np.testing.assert_allclose(found.solution, np.linalg.solve(a, b), atol=1e-8)


def test_image_is_the_linear_map_of_the_solution():
    j, b = vectors(4, 7, 5), vectors(4, 5)

    def operator(x):
        jx = tf.linalg.matvec(j, x)
        return x + tf.linalg.matvec(j, jx, transpose_a=True), jx

    found = conjugate_gradient(operator, tf.constant(b), image=tf.zeros([4, 7], tf.float64))
    product = (j @ found.solution.numpy()[..., None])[..., 0]
    np.testing.assert_allclose(found.image, product, atol=1e-12)
    exact = np.linalg.solve(np.eye(5) + np.swapaxes(j, 1, 2) @ j, b[..., None])[..., 0]
    np.testing.assert_allclose(found.solution, exact, atol=1e-9)


def test_bound_is_kept_and_reported():
    a = np.diag(np.geomspace(1, 1e4, 20))
    b = tf.constant(vectors(2, 20))
    found = conjugate_gradient(times(a), b, max_iterations=4)
    assert found.iterations == 4
    assert not found.converged.numpy().any()
    assert (found.residual > 1e-3).numpy().all()
    limit = tf.constant(4)
    same = tf.function(lambda n: conjugate_gradient(times(a), b, max_iterations=n))(limit)
    np.testing.assert_allclose(same.solution, found.solution, rtol=1e-12)


def test_not_a_number_stays_with_its_example():
    b = vectors(3, 6)
    b[0, 2] = np.nan
    b[1, 2] = np.inf
    found = conjugate_gradient(times(spd(6)), tf.constant(b))
    np.testing.assert_array_equal(found.converged[:, 0], [False, False, True])
    np.testing.assert_allclose(found.solution[2], np.linalg.solve(spd(6), b[2]), atol=1e-8)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graphs_equal_eager_and_take_no_gradient(jit_compile):
    a, b = spd(8, 3), tf.constant(vectors(3, 8))

    @tf.function(jit_compile=jit_compile)
    def run(b):
        with tf.GradientTape() as tape:
            tape.watch(b)
            found = conjugate_gradient(times(a), b)
        assert tape.gradient(found.solution, b) is None
        return found

    for left, right in zip(run(b), conjugate_gradient(times(a), b), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-9)
