import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import newton, problem
from proxnet_tf.ops.multiview.correlation import CCA, GCCA
from proxnet_tf.ops.multiview.moments import moments_of
from proxnet_tf.ops.multiview.prox import Settings, multiview_prox
from tests.helpers.data import shared_views

KINDS = [CCA((3, 3), 3), CCA((2, 4), 2), CCA((4, 2), 1), GCCA((3, 3), 3), GCCA((2, 1, 2), 3)]


def reduction_of(kind, n=40, lam=1.0, epsilon=1e-2, seed=0):
    moments = moments_of(tf.constant(shared_views(n, kind.sizes, seed)))
    numbers = (tf.constant(v, tf.float64) for v in (lam, epsilon))
    found = problem.reduce_gram(kind, moments.gram, moments.count, moments.rounding, *numbers)
    return found.problem


def point_of(kind, data, w):
    return problem.evaluate(kind, data, tf.constant(w))


def hessian_of(kind, data, point, wide=False):
    model = newton.MODELS[type(kind)]
    ingredients = model.ingredients_at(kind, data, point)
    return model, model.hessian_at(kind, data, point, model.decompose(kind, ingredients, wide))


def gradient_of(kind, data, w):
    """F(W)."""
    point = point_of(kind, data, w)
    return (point.slope @ tf.transpose(point.spectrum.basis)).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_is_the_differential_of_the_gradient(kind):
    data = reduction_of(kind)
    rng = np.random.default_rng(1)
    w = data.root.numpy() + 0.3 * rng.normal(size=data.root.shape)
    change = rng.normal(size=w.shape)
    h = 1e-6
    above, below = (gradient_of(kind, data, w + s * h * change) for s in (1, -1))
    numeric = (above - below) / (2 * h)
    point = point_of(kind, data, w)
    model, hessian = hessian_of(kind, data, point)
    # V = v T^-1 on the right; coordinates of a gradient are those of a vector's dual.
    v = model.enter(kind, hessian, tf.constant(change) @ point.spectrum.basis)
    product = model.leave(kind, hessian, model.product(kind, hessian, v))
    product = product @ tf.transpose(point.spectrum.basis)
    np.testing.assert_allclose(product, numeric, atol=1e-6 * np.abs(numeric).max())


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_and_preconditioner_are_symmetric_and_positive(kind):
    data = reduction_of(kind)
    found = newton.solve(kind, data, Settings(jit=False))
    model, hessian = hessian_of(kind, data, found.point)
    size = kind.width**2
    basis = np.eye(size).reshape(size, kind.width, kind.width)
    for function in (model.product, model.precondition):
        matrix = np.stack([np.ravel(function(kind, hessian, tf.constant(e))) for e in basis])
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-9 * np.abs(matrix).max())
        assert np.linalg.eigvalsh(matrix)[0] > 0.0


def test_ridge_is_left_out_of_a_step_only_where_it_is_small():
    kind = CCA((4, 4), 4)
    for epsilon, matters in ((1e-7, False), (0.1, True)):
        data = reduction_of(kind, epsilon=epsilon)
        point = point_of(kind, data, data.root)
        model, hessian = hessian_of(kind, data, point)
        assert bool(hessian.exact) is matters
        v = tf.constant(np.random.default_rng(2).normal(size=(8, 8)))
        exact, quick = (model.product(kind, hessian, v, e) for e in (True, None))
        assert np.abs(exact - quick).max() <= (0.0 if matters else 1e-3) * np.abs(exact).max()


@pytest.mark.parametrize("kind", [CCA((3, 5), 2), GCCA((3, 2, 3), 4)])
def test_linear_solve_equals_a_dense_one(kind):
    data = reduction_of(kind)
    point = newton.solve(kind, data, Settings(jit=False)).point
    size = kind.width**2
    h, columns = 1e-6, []
    for e in np.eye(size).reshape(size, kind.width, kind.width):
        above, below = (gradient_of(kind, data, point.w + s * h * e) for s in (1, -1))
        columns.append(np.ravel(above - below) / (2 * h))
    rhs = np.random.default_rng(3).normal(size=point.w.shape)
    expected = np.linalg.solve(np.array(columns).T, rhs.ravel()).reshape(rhs.shape)
    found, report = newton.solve_hessian(kind, data, point, tf.constant(rhs), 1e-12, jit=False)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    assert report.converged and report.residual <= 1e-12 and report.iterations > 1


def test_pack_keeps_every_number():
    rng = np.random.default_rng(4)
    shapes = {2: (3, 3), 1: (3,), 0: ()}
    state = tf.nest.map_structure(lambda r: tf.constant(rng.normal(size=shapes[r])), newton._STATE)
    again = newton.unpack(newton._STATE, newton.pack(state))
    tf.nest.map_structure(np.testing.assert_array_equal, state, again)
    assert type(again) is type(state)


@pytest.mark.parametrize("kind", [CCA((3, 3), 3), GCCA((3, 3), 3)])
@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_equal_sizes_share_one_solver_whatever_the_numbers(kind, method):
    newton.solver.cache_clear()
    newton.compiled.cache_clear()
    x = tf.constant(shared_views(30, (3, 3)))
    outputs = []
    for lam, epsilon, tolerance, bound in (
        (1.0, 1e-4, 1e-8, 200),
        (0.5, 1e-4, 1e-8, 200),
        (1.0, 1e-2, 1e-8, 200),
        (1.0, 1e-4, 1e-5, 150),
    ):
        settings = Settings(method, tolerance, bound, jit=False)
        again = type(kind)(kind.sizes, kind.num_components)  # equal, not the same
        found = multiview_prox(x, lam, again, epsilon, settings=settings)
        assert found.report.converged
        outputs.append(found.output.numpy())
    assert newton.solver.cache_info().currsize == 1
    solver = newton.solver(kind, method, False)
    assert solver.experimental_get_tracing_count() == 1
    for function in (newton._start, newton._propose, newton._accept):
        assert newton.compiled(function, kind, False).experimental_get_tracing_count() == 1
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-2  # lam and epsilon are not the first's
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-4


def test_eager_use_with_many_sizes_warns_of_no_retracing(caplog):
    tf.get_logger().propagate = True
    try:
        for d in range(2, 9):
            multiview_prox(
                tf.constant(shared_views(20, (d, 2))),
                1.0,
                CCA((d, 2), 2),
                1e-3,
                settings=Settings(max_iterations=2, jit=False),
            )
    finally:
        tf.get_logger().propagate = False
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


def test_settings_resolve_the_device_and_the_compiler():
    assert Settings(device="CPU:0").device_for(10) == "CPU:0"
    assert Settings(device=None).device_for(10) is None
    assert Settings().device_for(10) is None  # no GPU is visible
    assert Settings(jit=False).compiles is False
    assert Settings().compiles is tf.test.is_built_with_xla()


def test_auto_device_is_the_host_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert Settings().device_for(newton.HOST_WIDTH) == "CPU:0"
    assert Settings().device_for(newton.HOST_WIDTH + 1) is None
