"""What layers report of their solves, forward and backward."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import MultiWorkerStrategy, Prox, ProxCCA, ProxDropout, ProxLSTM, ProxRNNCell
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops.linear.report import Report, exact, observed
from proxnet_tf.solvers import Newton
from tests.helpers.data import COMPONENTS, SIZES

PLAIN = Newton(jit_compile=False)


def report(residual, tolerance=0.1, iterations=3):
    residual = tf.constant(residual, tf.float32)
    return Report(residual, tf.constant(iterations), residual <= tolerance)


@keras.saving.register_keras_serializable(package="tests")
class Halves(keras.layers.Layer):
    """x / 2, whose problems of each example have the residuals |x_i0| and, backward, |dy_i0|."""

    def __init__(self, monitor=False, steps=0, **kwargs):
        super().__init__(**kwargs)
        self.monitor, self.steps = monitor, steps
        self.solves = Monitor(self, monitor, extra=("mean_input",), advice="Halve less.")

    def call(self, inputs, training=False):
        observer = self.solves.backward(training)

        @tf.custom_gradient
        def half(x):
            def gradient(dy):
                return observed(observer, report_of(dy), dy / 2)

            return x / 2, gradient

        def report_of(x):
            residual = tf.abs(x[:, 0])
            return Report(residual, tf.constant(2), residual <= 0.1)

        if self.steps:
            outputs = tf.while_loop(
                lambda k, x: k < self.steps,
                lambda k, x: (k + 1, half(x)),
                (tf.constant(0), inputs),
                maximum_iterations=self.steps,
            )[1]
        else:
            outputs = half(inputs)
        self.solves.forward(report_of(inputs))
        self.solves.watch(
            "mean_input", tf.reduce_mean(inputs), tf.cast(tf.shape(inputs)[0], tf.float32)
        )
        return outputs

    def get_config(self):
        return {**super().get_config(), "monitor": self.monitor, "steps": self.steps}


@pytest.mark.parametrize("value", ["", None, 1, ["left"], 0.5])
def test_refused_values(value):
    with pytest.raises(ValueError, match=r"`monitor` must be True, False, 'all' or a string"):
        check_monitor(value)


def test_values_over_calls():
    layer = Halves(monitor="all")
    layer.solves.forward(report([0.05, 0.5]))
    layer.solves.forward(report([0.2, 0.02], iterations=7))
    status = layer.solves.status
    assert status["residual"] == pytest.approx((0.5 + 0.2) / 2)
    assert status["unsolved"] == 0.5
    assert status["iterations"] == 5.0
    layer.solves.forward(report([]))
    assert layer.solves.status["residual"] == pytest.approx((0.5 + 0.2 + 0.0) / 3)
    layer.solves.forward(report([np.nan, 0.0]))
    status = layer.solves.status
    assert np.isnan(status["residual"])
    assert status["unsolved"] == 0.5  # 3 of 6: NaN is not solved


def test_status_of_a_worker_waits_for_no_other(monkeypatch):
    """Keras reads it when one of several workers saves the model."""
    strategy = MultiWorkerStrategy()
    with strategy.scope():
        layer = Halves(monitor="all")
    strategy.run(layer.solves.forward, args=(report([0.05, 0.5]),))
    monkeypatch.setattr(strategy, "reduce", None)  # it would wait
    assert layer.solves.status["residual"] == 0.5
    assert layer.solves.status["unsolved"] == 0.5


def test_what_does_not_count():
    layer = Halves(monitor="all")
    valid = tf.constant([True, False, True, True])
    layer.solves.forward(report([0.5, 0.0, 0.0, 0.0]), valid)
    assert layer.solves.status["unsolved"] == pytest.approx(1 / 3)
    layer.solves.backward()(report([0.5, 0.0, 0.3, 0.0]), valid)
    assert layer.solves.status["unsolved"] == pytest.approx(3 / 6)
    assert layer.solves.status["backward_residual"] == 0.5


def test_a_closed_form_is_solved():
    layer = Halves(monitor="all")
    layer.solves.forward(exact(tf.constant(1.0, tf.float64)))
    status = layer.solves.status
    assert (status["residual"], status["unsolved"], status["iterations"]) == (0.0, 0.0, 0.0)


FIT = {
    "residual": 0.5,
    "unsolved": 0.5,
    "iterations": 2.0,
    # dy of the mean over 2 examples of (x/2 - 0)^2: x_i0 / 2
    "backward_residual": 0.25,
    "mean_input": 0.28,
}
WANTED = ("unsolved", "mean_input")  # of monitor=True and of a prefix


@pytest.mark.parametrize("monitor, jit_compile", [(True, False), ("all", True), ("left", False)])
def test_fit_logs_both_passes(monitor, jit_compile):
    layer = Halves(monitor=monitor)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False), layer])
    model.layers[0].set_weights([np.ones((1, 1))])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.array([[0.5], [0.06]], "float32")
    logs = model.fit(x, np.zeros((2, 1)), verbose=0).history
    prefix = "left_" if monitor == "left" else ""
    expected = {name: FIT[name] for name in (FIT if monitor == "all" else WANTED)}
    assert {name: logs[prefix + name][0] for name in expected} == pytest.approx(expected)
    assert layer.solves.status == pytest.approx(expected)
    assert set(logs) == {"loss", *(prefix + name for name in expected)}


def test_two_prefixes_in_one_model():
    inputs = keras.Input((1,))
    layers = [Halves(monitor=name) for name in ("left", "right")]
    y = [layer(keras.layers.Dense(1)(inputs)) for layer in layers]
    model = keras.Model(inputs, keras.layers.Add()(y))
    model.compile("sgd", "mse")
    logs = model.fit(np.ones((4, 1)), np.zeros((4, 1)), verbose=0).history
    for prefix in ("left_", "right_"):
        assert {prefix + name for name in WANTED} <= set(logs)
    assert [v.path for v in model.weights] and len(model.weights) == 4  # metrics are no weights


def test_backward_in_a_loop():
    """Three times in one gradient: dy, dy/2, dy/4."""
    layer = Halves(monitor="all", steps=3)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False), layer])
    model.layers[0].set_weights([np.ones((1, 1))])
    model.compile("sgd", "mse")
    model.fit(np.array([[4.0], [0.8]]), np.zeros((2, 1)), verbose=0)
    # Maps of 4 and 0.8 are unsolved. dy = 0.5 and 0.1; |dy| > 0.1 in 0.5, 0.25, 0.125 of six.
    status = layer.solves.status
    assert status["backward_residual"] == pytest.approx((0.5 + 0.25 + 0.125) / 3)
    assert status["unsolved"] == pytest.approx((2 + 3) / (2 + 6))


def test_metrics_see_the_gradient_in_training_only():
    layer = Halves(monitor="all")
    x = tf.constant([[0.5]])
    for training in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        tape.gradient(y, x)
        assert layer.solves.status["backward_residual"] == float(training)


def test_a_warning_once_a_layer():
    layer = Halves(name="mine")
    with pytest.warns(UserWarning, match=r"'mine' left 50% of .*unsolved: .*Halve less\. `status`"):
        layer(tf.constant([[0.5], [0.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(tf.constant([[0.7], [0.0]]))
        Halves()(tf.constant([[0.05]]))
        tf.function(Halves())(tf.constant([[0.7]]))  # no number to look at
        keras.Sequential([keras.Input((1,)), Halves()])
    assert layer.solves.status["residual"] == np.float32(0.7)
    assert layer.solves.status["unsolved"] == 0.5
    other = Halves(name="other")
    x = tf.constant([[0.01]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x) + other(x)
    with pytest.warns(UserWarning, match=r"'other' left 100% of its gradient problems unsolved"):
        tape.gradient(y, x)
    assert other.solves.status["backward_residual"] == 1.0


@pytest.mark.parametrize("steps", [0, 2])
def test_a_monitored_layer_can_be_saved_and_exported(tmp_path, steps):
    model = keras.Sequential([keras.Input((1,)), Halves(monitor="left", steps=steps)])
    x = np.array([[0.5], [2.0]], "float32")
    expected = x / 2 ** max(steps, 1)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(reloaded.predict(x, verbose=0), expected)
    assert reloaded.layers[0].monitor == "left"
    model.export(str(tmp_path / "saved"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(x))
        y = served.serve(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(tape.gradient(y, x), np.full((2, 1), 0.5 ** max(steps, 1)))


def test_over_replicas():
    """Means over the replicas of the worst of each; shares over all of them."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = Halves(monitor="all")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile("sgd", "mse")

    @tf.function
    def gradient(x):
        def of_replica(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            return tape.gradient(y, x, 2 * x)

        return strategy.run(of_replica, (x,))

    for worst in (0, 3):  # on the first replica, on the second
        x = np.full((4, 1), 0.06, "float32")
        x[worst] = 0.5
        logs = model.evaluate(x, np.zeros((4, 1)), batch_size=4, verbose=0, return_dict=True)
        assert logs["residual"] == pytest.approx(0.28) and logs["unsolved"] == pytest.approx(0.25)
        for metric in layer.solves.metrics.values():
            metric.reset_state()
        gradient(
            strategy.experimental_distribute_values_from_function(
                lambda context, x=x: tf.constant(x[2 * context.replica_id_in_sync_group :][:2])
            )
        )
        # One of four maps, and of four gradients dy = 2 x: 1 and 0.12, above 0.1 all of them.
        assert layer.solves.status["backward_residual"] == pytest.approx((1.0 + 0.12) / 2)
        assert layer.solves.status["unsolved"] == pytest.approx((1 + 4) / 8)


def lstm(**arguments):
    return ProxLSTM(3, lam=0.7, jit_compile=False, **arguments)


BROKEN = {
    "ProxCCA": (lambda: ProxCCA(COMPONENTS, split=SIZES, inference="batch", solver=PLAIN), (9, 7)),
    "Prox": (lambda: Prox(lambda z: tf.reduce_sum(tf.sqrt(1 + z**2), axis=-1)), (3, 4)),
    "ProxDropout": (lambda: ProxDropout(), (3, 4)),
    "ProxLSTM": (lstm, (2, 3, 4)),
    "ProxLSTM, a loop of steps": (lambda: lstm(unroll=True), (2, 3, 4)),
    "ProxRNNCell": (
        lambda: keras.layers.RNN(ProxRNNCell(keras.layers.GRUCell(3)), unroll=True),
        (2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_warning_names_what_is_not_finite(name):
    make, shape = BROKEN[name]
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    spoilt = x.copy()
    spoilt.flat[0] = np.nan
    with pytest.warns(UserWarning, match=r"unsolved: the input .*held NaN") as said:
        make()(spoilt)
    assert not any("Raise" in str(w.message) or "lam" in str(w.message) for w in said)
    layer = make()
    layer(x)
    inner = layer if hasattr(layer, "lam") else layer.cell
    inner.lam.value.assign(np.nan)  # past the check of `assign`, as a graph may
    with pytest.warns(UserWarning, match="unsolved: lam held NaN or infinite values"):
        layer(x)


def test_the_warning_names_a_gradient_that_is_not_finite():
    layer = Prox(lambda z: tf.reduce_sum(tf.sqrt(1 + z**2), axis=-1))
    x = tf.constant([[0.3, -0.2]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        z = layer(x)
    with pytest.warns(UserWarning, match="unsolved: the gradient of the outputs held NaN"):
        tape.gradient(z, x, tf.constant([[np.nan, 1.0]]))
