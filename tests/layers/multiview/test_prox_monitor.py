"""Whether the maps and their gradients were solved, as the layers tell it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.solvers import Newton
from tests.layers.multiview.cases import CCA, CCA_FIRST

STOPPED = Newton(max_iterations=1, jit_compile=False)


@pytest.mark.parametrize(
    "inference", ["identity", pytest.param("batch", marks=pytest.mark.slow), "moving"]
)
@CCA_FIRST
def test_correlations_are_means_over_the_rows_of_batches(kind, inference):
    """Each batch counts by its rows; one of a single row has no correlation and does not count."""
    x, width = kind.joined(61), sum(kind.sizes)
    layer = kind.layer(lam=2.0, inference=inference, momentum=0.0, monitor="all", split=kind.sizes)
    model = keras.Sequential([keras.Input((width,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = dict(batch_size=20, verbose=0)  # 20, 20, 20 and 1
    history = model.fit(x[:61], np.zeros((61, 1)), epochs=2, shuffle=False, **options).history
    batches = [x[:20], x[20:40], x[40:60]]
    before = np.mean([kind.correlation(b) for b in batches])
    after = np.mean([kind.correlation(kind.expected(b, 2.0)) for b in batches])
    # The layer sees the same batches in both epochs: it comes first.
    np.testing.assert_allclose(history["correlation_before"], [before] * 2, rtol=1e-5)
    np.testing.assert_allclose(history["correlation"], [after] * 2, rtol=1e-5)
    assert after > before + 0.1
    assert np.less_equal(history["residual"], layer.solver.tolerance).all()
    assert np.greater(history["iterations"], 1).all()

    logs = model.evaluate(x, np.zeros((61, 1)), return_dict=True, **options)
    if inference == "moving":
        mean, matrix = layer.moving_mean.numpy(), layer.moving_map.numpy()
        np.testing.assert_allclose(mean, x[40:60].mean(0), atol=1e-5)
        mapped = [mean + (b - mean) @ matrix for b in batches]
        after = np.mean([kind.correlation(b) for b in mapped])
    elif inference == "identity":
        after = before
    np.testing.assert_allclose(logs["correlation_before"], before, rtol=1e-5)
    np.testing.assert_allclose(logs["correlation"], after, rtol=1e-5)
    assert (logs["iterations"] > 0) == (inference == "batch")


def fitted(kind, **layers):
    """The logs of a fit of two batches of 12 rows, with these layers side by side."""
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((d,)) for d in kind.sizes]
    codes = [keras.layers.Dense(d)(x) for d, x in zip(kind.sizes, inputs, strict=True)]
    moved = [view for name, layer in layers.items() for view in layer(codes)]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(moved)))
    model.compile("sgd", "mse")
    history = model.fit(kind.views(24), np.zeros((24, 1)), batch_size=12, verbose=0).history
    return {name: values[0] for name, values in history.items()}


@CCA_FIRST
def test_an_unsolved_map_and_gradient_show_in_the_logs_of_fit(kind):
    """Stopped at its first point the solver is where the system of the gradient is indefinite."""
    logs = fitted(
        kind,
        stopped=kind.layer(lam=0.05, solver=STOPPED, monitor="stopped"),
        solved=kind.layer(lam=2.0, weight=0.1, monitor="solved"),
    )
    watched = ("correlation", "correlation_before", "unsolved")
    both = {f"{prefix}_{name}" for prefix in ("stopped", "solved") for name in watched}
    assert set(logs) == both | {"loss", "solved_envelope"}
    assert logs["stopped_unsolved"] == 1.0  # maps and gradients
    assert logs["stopped_correlation"] == logs["stopped_correlation_before"]
    assert logs["solved_unsolved"] == 0.0
    assert logs["solved_correlation"] > logs["solved_correlation_before"]


@CCA_FIRST
def test_all_that_a_layer_can_tell(kind):
    logs = fitted(kind, stopped=kind.layer(lam=0.05, solver=STOPPED, monitor="all"))
    assert logs["residual"] > 1e-3 and logs["iterations"] == 1.0
    assert logs["backward_residual"] > 1e-3
    logs = fitted(kind, solved=kind.layer(lam=2.0, monitor="all"))
    assert 0.0 < logs["residual"] <= 1e-8 and 0.0 < logs["backward_residual"] <= 1e-6


def test_two_layers_with_metrics_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"metrics of the same names.*monitor='left'"):
        fitted(CCA, a=CCA.layer(monitor=True), b=CCA.layer(monitor=True))


@CCA_FIRST
def test_without_a_monitor_an_eager_call_warns_once_and_tells_its_status(kind):
    layer, views = kind.layer(lam=0.05, solver=STOPPED), [tf.constant(v) for v in kind.views(24)]
    assert layer.metrics == [] and layer.status == {}
    with pytest.warns(UserWarning, match=rf"{layer.name}.*left 100% of its proximal problems"):
        outputs = layer(views, training=True)
    assert all(np.isfinite(o).all() for o in outputs)
    assert layer.status["residual"] > 1e-3 and layer.status["unsolved"] == 1.0
    layer(views, training=True)  # warnings are errors in these tests: no second one
    solved = kind.layer(lam=2.0)
    with tf.GradientTape() as tape:
        tape.watch(views)
        value = sum(tf.reduce_sum(o**2) for o in solved(views, training=True))
    tape.gradient(value, views)
    assert solved.status["unsolved"] == solved.status["backward_unsolved"] == 0.0
    assert solved.status["iterations"] > 1
