"""Global-batch maps, losses and metrics over replicas: two logical CPUs, or two processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import (
    DCCA,
    AdversarialModel,
    CanonicalCorrelation,
    CCALoss,
    CCARegularizer,
    GCCALoss,
    GCCARegularizer,
    LambdaSchedule,
    MultiviewClassifier,
    MultiWorkerStrategy,
    Prox,
    ProxCCA,
    ProxGCCA,
    ProxLSTM,
    RecallAtK,
    linear_lambda,
)
from proxnet_tf.solvers import Newton
from tests.helpers.data import COMPONENTS, CORE, SIZES, THREE, shared_views
from tests.helpers.replicas import alone, error, loss_of, on, steps_of

PAIR = (3, 6)  # the same rows as two views
ROWS = shared_views(50, THREE, seed=1)
COTANGENT = np.random.default_rng(2).normal(size=ROWS.shape)
EXACT = {"dtype": "float64", "solver": Newton(1e-11, jit_compile=False)}
PLAIN = Newton(jit_compile=False)

# Rows of the first replica; the second has the others, and none of 50.
SPLITS = (31, 50)


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def built(strategy, make):
    """What `make` returns, with its variables on both replicas."""
    with strategy.scope():
        made = make()
        if isinstance(made, keras.layers.Layer):
            made.build(ROWS.shape)
    return made


def some_missing(x):
    """The rows with NaN in views that are missing."""
    present = np.random.default_rng(3).random((len(x), 3)) < 0.8
    return np.where(np.repeat(present, THREE, axis=1), x, np.nan)


LAYERS = {
    "cca": lambda **k: ProxCCA(COMPONENTS, lam=0.5, split=PAIR, **EXACT, **k),
    "gcca": lambda **k: ProxGCCA(CORE, lam=0.5, split=THREE, nan_is_missing=True, **EXACT, **k),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", ["cca", pytest.param("gcca", marks=pytest.mark.slow)])
def test_replicas_give_what_one_device_gives(strategy, name, split):
    x = some_missing(ROWS) if name == "gcca" else ROWS
    expected = alone(steps_of(LAYERS[name]()), x, COTANGENT)
    options = {"synchronized": True, "inference": "moving", "momentum": 0.0}
    layer = built(strategy, lambda: LAYERS[name](**options))
    assert error(on(strategy, steps_of(layer), x, COTANGENT, split), expected) < 1e-9
    applied = layer(x, training=False)  # the moving map is the last one
    if name == "cca":
        assert error([applied.numpy()], expected[:1]) < 1e-9


@pytest.mark.parametrize("synchronized", [True, False])
def test_a_replica_without_a_complete_row_leaves_the_moving_map_alone(strategy, synchronized):
    options = {"inference": "moving", "momentum": 0.5, "synchronized": synchronized}
    one, layer = LAYERS["cca"](**options), built(strategy, lambda: LAYERS["cca"](**options))
    one(ROWS, training=True)

    def step(x, present):
        layer(x, training=True, mask=present[:, 0] > 0)
        return tf.zeros([1]), tf.zeros([1])

    present = np.repeat([1.0, 0.0], len(ROWS))[:, None]
    on(strategy, step, np.concatenate([ROWS, ROWS]), present, len(ROWS))
    for name in ("moving_mean", "moving_map"):
        np.testing.assert_allclose(getattr(layer, name), getattr(one, name), atol=1e-9)


LOSSES = {
    "cca loss": lambda **k: CCALoss(COMPONENTS, split=PAIR, dtype="float64", **k),
    "gcca loss": lambda **k: GCCALoss(CORE, split=THREE, dtype="float64", **k),
    "cca penalty": lambda **k: CCARegularizer(0.3, split=PAIR, dtype="float64", **k),
    "gcca penalty": lambda **k: GCCARegularizer(
        0.3, num_components=CORE, split=THREE, dtype="float64", **k
    ),
    "cca envelope": lambda **k: CCARegularizer(
        0.3, num_components=COMPONENTS, envelope=2.0, solver=PLAIN, split=PAIR, dtype="float64", **k
    ),
}
FAR = shared_views(50, THREE, seed=7) + 2.0 * (np.arange(50) > 30)[:, None]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_over_replicas_are_those_of_one_device(strategy, name, split):
    expected = alone(loss_of(LOSSES[name]()), FAR, FAR)
    loss = built(strategy, lambda: LOSSES[name](synchronized=True))
    value, gradient = on(strategy, loss_of(loss), FAR, FAR, split)
    assert error([value.sum(keepdims=True), gradient], expected) < 1e-10


def test_a_loss_of_each_replica_alone(strategy):
    make = LOSSES["gcca penalty"]
    parts = [alone(loss_of(make()), FAR[r], FAR[r]) for r in (slice(31), slice(31, None))]
    expected = [np.concatenate(part) / 2 for part in zip(*parts, strict=True)]
    loss = built(strategy, make)
    assert error(on(strategy, loss_of(loss), FAR, FAR, 31, graph=True), expected) < 1e-10


METRICS = {
    "correlation": lambda: CanonicalCorrelation(split=SIZES, dtype="float64"),
    "recall": lambda: RecallAtK(9, capacity=64, dtype="float64"),
}


@pytest.mark.parametrize("split", [20, 64])
@pytest.mark.parametrize("name", METRICS)
def test_metric_of_an_epoch_over_replicas_is_that_of_one_device(strategy, name, split):
    """Two batches, of which each replica sees a part."""
    x = shared_views(64, SIZES, seed=8) + 2.0 * (np.arange(64) >= 32)[:, None]
    x = x[:, 1:] if name == "recall" else x
    one = METRICS[name]()
    one.update_state(None, x)
    metric = built(strategy, METRICS[name])

    def step(x, weight):
        metric.update_state(None, x, weight[:, 0])
        return tf.zeros([1]), tf.zeros([1])

    on(strategy, step, x[:40], np.ones((40, 1)), min(split, 40))
    on(strategy, step, x[40:], np.ones((24, 1)), max(split - 40, 0))
    assert float(one.result()) > 0.1
    assert abs(float(metric.result()) - float(one.result())) < 1e-10


# --- models: `fit` under the strategy and on one device ------------------------------------------

DATA = shared_views(40, SIZES, seed=3).astype("float32")
VIEWS = [DATA[:, :3], DATA[:, 3:]]
DRIFTING = DATA + np.arange(40, dtype="float32")[:, None] / 20
LABELS = (DATA[:, 0] > DATA[:, 4]).astype("int64")
DIFFERENCE = DATA[:, :1] - DATA[:, 4:5]
STEPS = np.random.default_rng(4).normal(size=(40, 5, 3)).astype("float32")
STEPS[::3, 3:] = 0.0
ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(units):
    return keras.layers.Dense(units, kernel_regularizer=keras.regularizers.L2(0.1))


def views_model():
    inputs = [keras.Input((3,)), keras.Input((4,))]
    codes = [keras.layers.Dense(3)(x) for x in inputs]
    layer = ProxCCA(lam=0.5, synchronized=True, inference="moving", monitor="views", solver=PLAIN)
    output = keras.layers.Dense(1)(keras.layers.Concatenate()(layer(codes)))
    return keras.Model(inputs, output), "mse", []


def correlated_model():
    """A penalty, a proximal layer, a loss and a metric of correlation in one model."""
    layers = [
        keras.layers.Dense(7),
        CCARegularizer(0.5, split=SIZES, synchronized=True),
        ProxCCA(COMPONENTS, split=SIZES, lam=5.0, synchronized=True, solver=PLAIN),
    ]
    loss = CCALoss(COMPONENTS, epsilon=0.1, split=SIZES, synchronized=True)
    metrics = [CanonicalCorrelation(split=SIZES)]
    return keras.Sequential([keras.Input((7,)), *layers]), loss, metrics


def retrieval_model():
    """A metric of retrieval in a model that XLA would compile on one device."""
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(6)])
    return model, CCALoss(COMPONENTS, epsilon=0.1, synchronized=True), [RecallAtK(5)]


def sequence_model():
    layers = [ProxLSTM(4, delta=0.5, lam=2.0), Prox("l1", lam=5.0), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((5, 3)), *layers]), "mse", []


def classifier():
    parts = [dense(3), dense(3)], [dense(2), dense(2)]
    return MultiviewClassifier(*parts, predict_with=0), ENTROPY, []


def pretrained():
    model = DCCA([dense(3), dense(3)], [dense(2), dense(2)])
    model.build([view.shape for view in VIEWS])
    model.pretrained.assign(1.0)
    return model, ENTROPY, []


def adversarial(**options):
    inputs = keras.Input((5, 3))
    hidden = keras.layers.Dense(4)(keras.layers.Masking()(inputs))
    hidden = keras.layers.LSTM(4, name="r")(hidden)
    model = keras.Model(inputs, dense(2)(hidden))
    return AdversarialModel(model, layer="r", from_logits=True, **options), ENTROPY, []


def virtual():
    return adversarial(method="virtual", power_iterations=3, weight=3.0)


MODELS = {
    views_model: (VIEWS, DIFFERENCE),
    correlated_model: (DRIFTING, DIFFERENCE),
    retrieval_model: (DRIFTING, DIFFERENCE),
    sequence_model: (STEPS, DIFFERENCE),
    classifier: (VIEWS, LABELS),
    pretrained: (VIEWS, LABELS),
    adversarial: (STEPS, LABELS),
    virtual: (STEPS, LABELS),
}


def fitted(make, scope, eagerly=False):
    """Weights and history after `fit`, whose batches divide evenly."""
    x, y = MODELS[make]
    keras.utils.set_random_seed(0)
    with scope:
        model, loss, metrics = make()
        sgd = keras.optimizers.SGD(0.1)
        model.compile(sgd, loss, metrics=metrics, run_eagerly=eagerly)
    callbacks = [LambdaSchedule(linear_lambda(0.5, 1.0))] if make is views_model else []
    history = model.fit(
        x, y, batch_size=20, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    )
    return model.get_weights(), history.history


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_fit_under_a_strategy_equals_one_device(strategy, make, monkeypatch):
    # The random start of a power iteration is the same on all replicas.
    monkeypatch.setattr("keras.random.normal", lambda shape, dtype, seed: tf.ones(shape, dtype))
    weights, history = fitted(make, tf.device("CPU:0"), eagerly=True)
    found, other = fitted(make, strategy.scope())
    assert error(found, weights) < 1e-5
    assert abs(history["loss"][1] - history["loss"][0]) > 1e-3
    assert history.keys() == other.keys()
    for name, values in history.items():
        np.testing.assert_allclose(other[name], values, atol=1e-5)
    assert other.get("lam") == ([0.5, 1.0] if make is views_model else None)


@pytest.mark.slow
def test_solver_device_solves_there_and_sends_only_small_matrices():
    x = np.tile(DATA, (5, 1))  # 200 rows
    given = tf.constant(x), tf.ones_like(x)

    def step(device):
        solver = Newton(device=device, jit_compile=False)
        return tf.function(steps_of(ProxCCA(COMPONENTS, lam=0.5, split=SIZES, solver=solver)))

    there, usual = step("CPU:1"), step(None)
    assert error([t.numpy() for t in there(*given)], [t.numpy() for t in usual(*given)]) < 1e-6
    graphs = [function.get_concrete_function(*given).graph for function in (there, usual)]
    moved, none = ([o for o in g.get_operations() if "CPU:1" in o.device] for g in graphs)
    # The decompositions are inside of what is called there.
    assert {"PartitionedCall", "MatMul"} <= {op.type for op in moved}
    assert max(max(t.shape.as_list(), default=0) for op in moved for t in op.inputs) <= 7
    assert not none


# --- workers, in processes of their own ----------------------------------------------------------


def start_workers(**environment):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    clusters = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        for rank in (0, 1)
    ]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.worker"],
            cwd=Path(__file__).parents[1],
            env=os.environ | environment | {"TF_CONFIG": json.dumps(cluster)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for cluster in clusters
    ]


def outputs_of(processes):
    try:
        return [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()


def results_of(processes):
    found = []
    for process, (output, errors) in zip(processes, outputs_of(processes), strict=True):
        assert process.returncode == 0, errors[-3000:]
        found.append(json.loads(output.split("RESULT ")[1]))
    return found


def check_results(chief, other, epochs):
    for one in (chief, other):
        assert one["replicas"] == 2
        assert one["epochs"] == epochs
        assert {"accuracy", "lam", "unsolved", "val_accuracy"} < {*one["names"]}
    assert chief["chief"] and not other["chief"]
    assert chief["weights"] < 1e-5
    assert max(chief["history"].values()) < 1e-5


def test_two_workers_fit_as_one_device():
    check_results(*results_of(start_workers()), epochs=[0, 1])


@pytest.mark.slow
def test_two_workers_go_on_after_one_was_killed(tmp_path):
    """And end where one device ends that was never interrupted."""
    processes = start_workers(BACKUP=str(tmp_path), KILL="1")
    (_, errors), _ = outputs_of(processes)
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL]
    assert "UnavailableError" in errors
    assert json.loads((tmp_path / "backup/training_metadata.json").read_text())["epoch"] == 2

    chief, other = results_of(start_workers(BACKUP=str(tmp_path)))
    check_results(chief, other, epochs=[2, 3])
    assert max(one["uneven step"] for one in (chief, other)) < 1e-6
    assert chief["prediction"] < 1e-5
    assert not (tmp_path / "backup").exists()  # nothing is left to restore
    assert chief["checkpoint"] == 0.0


@pytest.mark.parametrize(
    ("jobs", "task", "expected"),
    [
        ({}, (None, None), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("chief", 0), True),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("worker", 0), False),
    ],
)
def test_one_worker_is_the_chief(jobs, task, expected):
    class Place:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type=task[0], task_id=task[1]
        )

    assert MultiWorkerStrategy.is_chief.fget(Place) is expected


def test_reductions_of_one_worker():
    strategy = MultiWorkerStrategy()
    values = strategy.run(lambda: {"scalar": tf.constant(3.0), "rows": tf.constant([1.0, 4.0])})
    assert float(strategy.reduce("MEAN", values["scalar"], axis=0)) == 3.0
    assert float(strategy.reduce("MEAN", values["rows"], axis=0)) == 2.5
    assert strategy.reduce("SUM", values["rows"], axis=None).numpy().tolist() == [1.0, 4.0]
    assert strategy.reduce("MEAN", values, axis=None)["rows"].numpy().tolist() == [1.0, 4.0]
