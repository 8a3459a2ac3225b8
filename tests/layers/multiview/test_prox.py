"""Values and gradients of ProxCCA and ProxGCCA, against NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA, ProxGCCA
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers.data import COMPONENTS, WORKED_X, WORKED_Y
from tests.layers.multiview.cases import CCA, CCA_FIRST, PLAIN, TIGHT, Kind

WORKED_Z = np.array(
    [[0.72, 1.07], [-1.19, -1.08], [0.29, -2.09], [-0.34, 0.59], [0.76, 0.24], [-0.02, -0.11]]
)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, lam, epsilon, solver",
    [(24, 0.5, 1e-2, PLAIN), (24, 2.0, 0.3, LBFGS(jit_compile=False)), (7, 2.0, 1e-2, PLAIN)],
    ids=["newton", "lbfgs, ridge", "few rows"],
)
def test_equals_the_full_problem(kind, n, lam, epsilon, solver):
    x = kind.joined(n, 1, "float64")
    layer = kind.layer(lam=lam, epsilon=epsilon, solver=solver, dtype="float64")
    moved = np.concatenate(layer(kind.parts(x), training=True), 1)
    expected = kind.expected(x, lam, epsilon=epsilon)
    np.testing.assert_allclose(moved, expected, atol=2e-6 if n == 24 else 1e-4)


def test_worked_example_of_three_views():
    views = [WORKED_X, WORKED_Y, WORKED_Z]
    layer = ProxGCCA(2, lam=10.0, epsilon=1e-3, monitor=True, solver=PLAIN, dtype="float64")
    moved = layer(views, training=True)
    np.testing.assert_allclose(6 - layer.status["correlation_before"], 1.33838490, atol=1e-6)
    np.testing.assert_allclose(6 - layer.status["correlation"], 0.31694006, atol=1e-6)
    distance = sum(np.sum((p - x) ** 2) for p, x in zip(moved, views, strict=True))
    value = 10.0 / 12 * distance + 6 - layer.status["correlation"]
    np.testing.assert_allclose(value, 0.61730826, atol=1e-6)


def test_two_views_without_ridge_equal_prox_cca():
    views = CCA.views(24, 1, "float64")
    options = dict(lam=20.0, epsilon=1e-9, solver=Newton(1e-10, jit_compile=False), dtype="float64")
    two = ProxCCA(COMPONENTS, **options)(views, training=True)
    general = ProxGCCA(COMPONENTS, **options)(views, training=True)
    for a, b in zip(two, general, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3)])
def test_num_components_none_is_the_smaller_width(sizes):
    kind = Kind("cca", ProxCCA, sizes, None)
    x = kind.joined(24, dtype="float64")
    moved = kind.layer(lam=2.0, dtype="float64")(kind.parts(x), training=True)
    np.testing.assert_allclose(np.concatenate(moved, 1), kind.expected(x, 2.0, 3), atol=2e-6)


def test_two_views_stacked_in_one_tensor_are_a_batch_of_two_sequences():
    # Documented: one tensor holds the views side by side, whatever its first axis counts.
    kind = Kind("cca", ProxCCA, (3, 3), 3)
    rows = kind.joined(24)
    moved = kind.layer(lam=2.0)(rows.reshape(2, 12, 6), training=True)
    expected = kind.expected(rows, 2.0).reshape(2, 12, 6)
    np.testing.assert_allclose(moved, expected, atol=2e-5)
    assert np.abs(moved - rows.reshape(2, 12, 6)).max() > 1e-2


def test_lam_is_a_weight_read_at_every_call(kind):
    layer, x = kind.layer(lam=1.0, split=kind.sizes), kind.joined(24)
    run = tf.function(lambda x: layer(x, training=True))
    assert [w.name for w in layer.weights] == ["lam"] and not layer.trainable_weights
    for lam in (1.0, 0.5, 50.0):
        layer.lam = lam
        np.testing.assert_allclose(run(x), kind.expected(x, lam), atol=2e-5)


@pytest.mark.parametrize("n", [1, 6])
@CCA_FIRST
def test_dynamic_batch_size(kind, n):
    layer = kind.layer(lam=2.0, split=kind.sizes)
    signature = [tf.TensorSpec([None, sum(kind.sizes)], tf.float32)]
    run = tf.function(lambda x: layer(x, training=True), input_signature=signature)
    x = kind.joined(n)
    moved = run(x).numpy()
    if n > 1:  # fewer rows than columns: the reference leaves the row spaces
        np.testing.assert_allclose(moved, layer(x, training=True), atol=2e-5)
        assert np.abs(moved - x).max() > 1e-2
        for change, view in zip(kind.parts(moved - x), kind.parts(x), strict=True):
            span = np.linalg.pinv(view - view.mean(0), rcond=1e-5) @ (view - view.mean(0))
            np.testing.assert_allclose(change @ span, change, atol=1e-5)
            np.testing.assert_allclose(change.mean(0), 0, atol=1e-5)
    else:
        np.testing.assert_allclose(moved, x, atol=2e-5)


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient, lam", [("implicit", 0.5), ("finite_difference", 2.0)])
def test_gradient_is_that_of_the_full_problem(kind, gradient, lam):
    x = kind.joined(14, 2, "float64")
    cotangent = np.random.default_rng(3).normal(size=x.shape)
    layer = kind.layer(lam=lam, solver=TIGHT, gradient=gradient, split=kind.sizes, dtype="float64")
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        moved = layer(variable, training=True)
    slope = tape.gradient(moved, variable, tf.constant(cotangent))
    expected = kind.expected_gradient(x, cotangent, lam)
    # The paper's step is large: its gradient is good to about 1e-3.
    atol = 1e-5 if gradient == "implicit" else 3e-2
    np.testing.assert_allclose(slope, expected, atol=atol)


@pytest.mark.parametrize("lam", [0.1, 10.0])
@CCA_FIRST
def test_compiling_the_solver_changes_nothing_but_rounding(kind, lam):
    def run(jit):
        layer = kind.layer(lam=lam, solver=Newton(jit_compile=jit))
        x = [tf.constant(v) for v in kind.views(24)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = sum(tf.reduce_sum(o**3) for o in layer(x, training=True))
        return [value, *tape.gradient(value, x)]

    for with_xla, without in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(with_xla, without, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_a_step_in_a_function_that_xla_compiles_whole():
    # Keras leaves XLA out of a model with the layer; a user's own step may compile it.
    kind, layer = CCA, CCA.layer(lam=2.0, split=CCA.sizes)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            moved = layer(x, training=True)
            value = tf.reduce_sum(moved**3)
        return moved, tape.gradient(value, x)

    x = tf.constant(kind.joined(24))
    for compiled, plain in zip(tf.function(step, jit_compile=True)(x), step(x), strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=2e-5, atol=2e-5)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["batch of 1", "constant batch"])
def test_nothing_to_correlate_passes_unchanged(kind, case):
    x = kind.joined(1)
    x = np.repeat(x, 5, axis=0) if case == "constant batch" else x
    cotangent = np.random.default_rng(6).normal(size=x.shape).astype("float32")
    layer, variable = kind.layer(monitor="all", split=kind.sizes), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = layer(variable, training=True)
    np.testing.assert_allclose(output, x, atol=1e-6)
    gradient = tape.gradient(output, variable, tf.constant(cotangent))
    np.testing.assert_allclose(gradient, cotangent, atol=1e-6)
    names = ("correlation_before", "correlation", "residual", "unsolved", "backward_residual")
    assert [layer.status[name] for name in names] == [0.0] * 5


@pytest.mark.parametrize("inference", ["identity", "batch", "moving"])
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*unsolved")
@CCA_FIRST
def test_a_row_that_is_not_finite_gives_nan(kind, bad, inference):
    views = kind.views(24)
    views[0][3, 1] = bad
    layer = kind.layer(inference=inference, monitor=True)
    run = tf.function(lambda inputs: layer(inputs, training=True))
    outputs = run([tf.constant(v) for v in views])
    assert all(np.isnan(o).all() for o in outputs)
    good = run([tf.constant(v) for v in kind.views(24)])
    assert all(np.isfinite(o).all() for o in good)
