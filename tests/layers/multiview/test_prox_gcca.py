import numpy as np
import pytest

from proxnet_tf import ProxCCA, ProxGCCA
from tests.helpers.data import WORKED_X, WORKED_Y, shared_views
from tests.helpers.layer_checks import check_layer

WORKED_Z = np.array(
    [[0.72, 1.07], [-1.19, -1.08], [0.29, -2.09], [-0.34, 0.59], [0.76, 0.24], [-0.02, -0.11]]
)


def test_worked_example_of_three_views():
    views = [WORKED_X, WORKED_Y, WORKED_Z]
    layer = ProxGCCA(2, lam=10.0, epsilon=1e-3, monitor=True, jit_solver=False, dtype="float64")
    moved = layer(views, training=True)
    logs = {m.name: float(m.result()) for m in layer.metrics}
    np.testing.assert_allclose(6 - logs["correlation_before"], 1.33838490, atol=1e-6)
    np.testing.assert_allclose(6 - logs["correlation"], 0.31694006, atol=1e-6)
    distance = sum(np.sum((p - x) ** 2) for p, x in zip(moved, views, strict=True))
    value = 10.0 / 12 * distance + 6 - logs["correlation"]
    np.testing.assert_allclose(value, 0.61730826, atol=1e-6)


@pytest.mark.parametrize("k", [2, 4])
def test_two_views_without_ridge_equal_prox_cca(k):
    views = np.split(shared_views(40, (4, 5), seed=1), [4], axis=1)
    options = dict(lam=2.0, epsilon=1e-9, tolerance=1e-10, jit_solver=False, dtype="float64")
    two = ProxCCA(k, **options)(views, training=True)
    general = ProxGCCA(k, **options)(views, training=True)
    for a, b in zip(two, general, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("inference", ["batch", "moving"])
def test_layer(inference, tmp_path):
    views = np.split(shared_views(12, (3, 4, 2), seed=2).astype("float32"), [3, 7], axis=1)
    layer = ProxGCCA(
        3,
        lam=2.0,
        epsilon=1e-2,
        gradient="finite_difference",
        inference=inference,
        momentum=0.5,
        max_iterations=100,
        tolerance=1e-6,
        monitor=True,
        split=(3, 4, 2),
        jit_solver=False,
        solver="lbfgs",
        nan_is_missing=True,
        solver_device="CPU:0",
    )
    check_layer(layer, views, tmp_path, allow_default={"synchronized"})


def test_side_by_side_equals_list():
    x = shared_views(20, (3, 4, 2), seed=3).astype("float32")
    options = dict(lam=0.5, jit_solver=False)
    together = ProxGCCA(4, split=(3, 4, 2), **options)(x, training=True)
    apart = ProxGCCA(4, **options)(np.split(x, [3, 7], axis=1), training=True)
    np.testing.assert_allclose(together, np.concatenate(apart, 1), atol=1e-6)


def test_compiled_solver_agrees():
    x = shared_views(20, (3, 4, 2), seed=4)
    options = dict(lam=0.5, split=(3, 4, 2), dtype="float64", tolerance=1e-10)
    plain = ProxGCCA(4, jit_solver=False, **options)(x, training=True)
    compiled = ProxGCCA(4, jit_solver=True, **options)(x, training=True)
    np.testing.assert_allclose(plain, compiled, atol=1e-8)


def test_rows_with_a_missing_view_stay_out_of_the_solve():
    x = shared_views(30, (3, 4, 2), seed=5)
    present = np.random.default_rng(6).random((3, 30)) < 0.85
    x[~present[0], :3] = x[~present[1], 3:7] = x[~present[2], 7:] = np.nan
    used = present.all(0)
    options = dict(lam=0.5, split=(3, 4, 2), jit_solver=False, dtype="float64")
    moved = ProxGCCA(4, nan_is_missing=True, **options)(x, training=True).numpy()
    expected = ProxGCCA(4, **options)(x[used], training=True)
    np.testing.assert_allclose(moved[used], expected, atol=1e-10)
    np.testing.assert_array_equal(moved[~used], x[~used])
    options.pop("split")
    masked = ProxGCCA(4, **options)(np.split(x, [3, 7], 1), training=True, mask=[*present])
    np.testing.assert_allclose(np.concatenate(masked, 1), moved, atol=1e-10)


def test_bad_arguments():
    views = np.split(np.ones((4, 9), "float32"), [3, 7], axis=1)
    with pytest.raises(ValueError, match=r"at most d_1 .*= 9.*num_components=10"):
        ProxGCCA(10)(views)
    with pytest.raises(ValueError, match="two or more views"):
        ProxGCCA(2)(views[:1])
    with pytest.raises(ValueError, match="num_components"):
        ProxGCCA(0)
