"""`smooth_prox`: gradients of everything that R depends on, rows, second derivatives, status."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.convex import sets as projections
from proxnet_tf.ops.convex.smooth import smooth_prox

RNG = np.random.default_rng(1)
X, CONTEXT, WEIGHTS = RNG.standard_normal((3, 2, 3))
ARGUMENTS = {
    "x": X,
    "context": CONTEXT,
    "scale": np.array([0.5, 1.0, 2.0]),
    "shift": np.array([0.3, -0.2, 0.1]),
    "lam": np.array(1.3),
}


@pytest.mark.parametrize(
    "projection", [None, pytest.param(projections.project_simplex, marks=pytest.mark.slow)]
)
def test_gradients_equal_central_differences(projection):
    """x, a context, tensors that R closes over and lam, without and with a constraint."""

    def loss(x, context, scale, shift, lam):
        def r(z):
            smooth = tf.math.softplus(scale * z + context) + (z - shift) ** 4 / 4
            return tf.reduce_sum(smooth, axis=-1) + tf.reduce_sum(z, -1) ** 2 / 2

        point = smooth_prox(r, x, lam, projection=projection, tolerance=1e-12).point
        return tf.reduce_sum(point * WEIGHTS)

    @tf.function
    def loss_and_gradients(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = loss(*arguments)
        return value, tape.gradient(value, arguments)

    values = list(ARGUMENTS.values())
    _, gradients = loss_and_gradients(*map(tf.constant, values))
    h = 1e-6
    for i, (name, value) in enumerate(ARGUMENTS.items()):
        numeric = np.zeros_like(value)
        for index in np.ndindex(*value.shape):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved[index] += sign * h
                arguments = [*values[:i], moved, *values[i + 1 :]]
                sides.append(float(loss_and_gradients(*map(tf.constant, arguments))[0]))
            numeric[index] = (sides[0] - sides[1]) / (2 * h)
        np.testing.assert_allclose(gradients[i], numeric, atol=1e-6, err_msg=name)


def test_jacobian_is_symmetric_with_eigenvalues_in_the_unit_interval():
    root = RNG.standard_normal((4, 4))

    def r(z):
        return tf.reduce_sum(tf.math.softplus(3 * tf.matmul(z, root)), axis=-1)

    rows = tf.constant(np.tile(RNG.standard_normal(4), (4, 1)))
    for projection in (None, projections.project_simplex):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            point = smooth_prox(r, rows, 0.8, projection=projection).point
        jacobian = tape.gradient(point, rows, np.eye(4)).numpy()
        np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-9)
        eigenvalues = np.linalg.eigvalsh(jacobian)
        assert eigenvalues.min() > -1e-9
        assert eigenvalues.max() < 1 + 1e-9


def test_status_is_per_row():
    """Row 0 has no minimum, row 1 is a parabola."""

    def r(z):
        return tf.reduce_sum(tf.constant([[-1.0], [1.0]], z.dtype) * z**2, axis=-1)

    found = smooth_prox(r, tf.ones([2, 3], tf.float64), 1.0, max_iterations=20)
    np.testing.assert_array_equal(found.report.converged, [False, True])
    np.testing.assert_allclose(found.point[1], 1 / 3, atol=1e-9)
    assert np.isfinite(found.point).all()


def test_a_linear_r_is_a_shift():
    found = smooth_prox(lambda z: tf.reduce_sum(z, axis=-1), [[1.0, 2.0]], 2.0)
    np.testing.assert_allclose(found.point, [[0.5, 1.5]], atol=1e-6)


def test_a_start_outside_the_domain_is_reported():
    def r(z):
        safe = tf.where(z > 0, z, tf.ones_like(z))
        barrier = tf.where(z > 0, -tf.math.log(safe), tf.cast(np.inf, z.dtype))
        return tf.reduce_sum(barrier, axis=-1)

    x = tf.constant([[-1.0, 2.0]], tf.float64)
    assert not smooth_prox(r, x, 1.0).report.converged.numpy().any()
    found = smooth_prox(r, x, 1.0, start=tf.ones_like(x))
    np.testing.assert_allclose(found.point, (x + tf.sqrt(x**2 + 4)) / 2, atol=1e-9)
    assert found.report.converged.numpy().all()


def ill_conditioned(n):
    """A quadratic R with Hessian eigenvalues from 1e-2 to 1e2, and that Hessian."""
    basis, _ = np.linalg.qr(RNG.standard_normal((n, n)))
    hessian = (basis * np.geomspace(1e-2, 1e2, n)) @ basis.T
    return lambda z: tf.reduce_sum(z * tf.matmul(z, tf.cast(hessian, z.dtype)), -1) / 2, hessian


@pytest.mark.parametrize("steps, solved", [(3, False), (200, True)])
def test_the_report_of_the_gradient_tells_its_residual(steps, solved):
    """Relative residuals of (I + H/lam) w = y, which the returned gradient w must have."""
    r, hessian = ill_conditioned(12)
    x, y, lam, seen = (
        tf.constant(RNG.standard_normal((4, 12))),
        RNG.standard_normal((4, 12)),
        0.5,
        [],
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = smooth_prox(
            r, x, lam, max_iterations=steps, observer=lambda report: seen.append(report) or []
        )
    w = tape.gradient(found.point, x, y).numpy()
    (report,) = seen
    left = y - w @ (np.eye(12) + hessian / lam)
    expected = np.linalg.norm(left, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(report.residual, expected, atol=1e-11, rtol=1e-6)
    np.testing.assert_array_equal(report.converged, [solved] * 4)
    assert int(report.iterations) == 3 if not solved else int(report.iterations) <= 200


def test_a_gradient_at_negative_curvature_is_unsolved():
    """A saddle: the system (10) is not positive definite."""
    seen = []
    x = tf.constant([[0.0, 0.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = smooth_prox(
            lambda z: -tf.reduce_sum(z**2, -1),
            x,
            1.0,
            observer=lambda report: seen.append(report) or [],
        )
    tape.gradient(found.point, x, tf.ones_like(x))
    np.testing.assert_array_equal(seen[0].converged, [False])


@pytest.mark.parametrize("projection", [None, projections.project_simplex])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_problems_without_rows_or_entries(shape, projection):
    x = tf.zeros(shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = smooth_prox(lambda z: tf.reduce_sum(z**2, -1), x, 1.0, projection=projection)
    assert found.point.shape == shape and tape.gradient(found.point, x).shape == shape
    np.testing.assert_array_equal(found.report.residual, np.zeros(shape[:1]))
    assert found.report.converged.numpy().all()


@pytest.mark.parametrize("projection, bad", [(None, np.inf), (projections.project_l2_ball, np.nan)])
def test_what_is_not_finite_stays_in_its_own_row(bad, projection):
    x = RNG.standard_normal((3, 4))
    x[0, 0] = bad

    def solve(x):
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = smooth_prox(
                lambda z: tf.reduce_sum(tf.math.softplus(z), -1), x, 0.7, projection=projection
            )
        return found, tape.gradient(found.point, x)

    (found, dx), (alone, dx_alone) = solve(x), solve(x[1:])
    np.testing.assert_allclose(found.point[1:], alone.point, atol=1e-8)
    np.testing.assert_allclose(dx[1:], dx_alone, atol=1e-8)
    np.testing.assert_array_equal(found.report.converged, [False, True, True])


def test_a_scope_that_stops_the_tapes_is_named():
    def solve(x):
        return smooth_prox(lambda z: tf.reduce_sum(z**4, axis=-1), x, 1.0).point

    with pytest.raises(NotImplementedError, match=r"inside of `keras\.RematScope`.*outside of the"):
        tf.recompute_grad(solve)(tf.constant(X))
