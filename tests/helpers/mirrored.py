"""Run in a process of its own with two logical CPUs; prints what it measured as JSON."""

import json
import os

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import (
    CanonicalCorrelation,
    CCALoss,
    CCARegularizer,
    GCCALoss,
    GCCARegularizer,
    LambdaSchedule,
    MedianRank,
    Prox,
    ProxCCA,
    ProxGCCA,
    ProxLSTM,
    RecallAtK,
    linear_lambda,
)
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views
from tests.helpers.mirrored_models import MODELS, compared

DEVICES = ["CPU:0", "CPU:1"]
# The parameters of the tests that run, those of one test in one string.
ASKED = set(json.loads(os.environ.get("ASKED", "[]")))


def asked(name, *cases):
    """Whether a test that runs has this parameter, with one of the cases if there are any."""
    return bool({name, *(f"{name} {case}" for case in cases)} & ASKED)


def steps_of(layer):
    """Outputs and gradients of a step, the views side by side."""

    def step(x, cotangent):
        with tf.GradientTape() as tape:
            tape.watch(x)
            moved = layer(x, training=True)
        return moved, tape.gradient(moved, x, cotangent)

    return step


def loss_of(loss):
    """Value and gradients of a loss, or of the losses of a layer, as Keras scales them."""

    def step(x, _):
        with tf.GradientTape() as tape:
            tape.watch(x)
            if isinstance(loss, keras.losses.Loss):
                value = loss(None, x)
            else:
                loss(x)
                value = sum(loss.losses) / tf.distribute.get_strategy().num_replicas_in_sync
        return tf.reshape(value, [1]), tape.gradient(value, x)

    return step


def on(strategy, step, graph=False):
    """The step with rows [:split] on the first replica and the others on the second."""

    def run(values):
        return strategy.run(step, args=values)

    if graph:
        run = tf.function(run, reduce_retracing=True)

    def both(x, cotangent, split):
        def part(context):
            rows = slice(split) if context.replica_id_in_sync_group == 0 else slice(split, None)
            return tf.constant(x[rows]), tf.constant(cotangent[rows])

        results = run(strategy.experimental_distribute_values_from_function(part))
        return [
            np.concatenate([r.numpy() for r in strategy.experimental_local_results(result)])
            for result in results
        ]

    return both


def error(found, expected):
    """The largest difference; what is NaN in one must be in the other."""
    pairs = list(zip(found, expected, strict=True))
    if any((np.isnan(a) != np.isnan(b)).any() for a, b in pairs):
        return float("inf")
    return max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)


def with_gaps(x, sizes):
    """The rows with NaN in views that are missing."""
    present = np.random.default_rng(3).random((len(x), len(sizes))) < 0.7
    return np.where(np.repeat(present, sizes, axis=1), x, np.nan)


PAIRWISE = dict(nan_is_missing=True, missing="pairwise")


def exactness(strategy):
    """Errors of the map of a global batch against one device, by case."""
    errors = {}
    x = shared_views(50, (3, 4, 3), seed=1)
    cotangent = np.random.default_rng(2).normal(size=x.shape)
    for name, cls, k, sizes in (
        ("cca", ProxCCA, None, (3, 7)),
        ("gcca", ProxGCCA, 4, (3, 4, 3)),
    ):
        if not asked(name, 25, 31, 50, "moving", "moving, no rows", "apart"):
            continue
        options = dict(
            lam=0.5, split=sizes, dtype="float64", solver=Newton(1e-11, jit_compile=False)
        )
        expected = [
            t.numpy() for t in steps_of(cls(k, **options))(tf.constant(x), tf.constant(cotangent))
        ]
        with strategy.scope():
            layer = cls(k, synchronized=True, inference="moving", momentum=0.0, **options)
            layer.build(x.shape)
        run = on(strategy, steps_of(layer))
        for split in (25, 31, 50):  # even, uneven, a replica without rows
            if asked(name, split) or split == 50:  # the moving map is that of 50
                errors[f"{name} {split}"] = error(run(x, cotangent, split), expected)
        if asked(name, "moving, no rows"):
            errors[f"{name} moving, no rows"] = max(
                moving_without_rows(strategy, cls, k, options, x, synchronized)
                for synchronized in (True, False)
            )
        applied = layer(x, training=False)  # the moving map is the last one
        errors[f"{name} moving"] = error([applied.numpy()], expected[:1])
        if not asked(name, "apart"):
            continue
        with strategy.scope():
            layer = cls(k, **options)
            layer.build(x.shape)
        halves = [
            steps_of(cls(k, **options))(tf.constant(x[s]), tf.constant(cotangent[s]))
            for s in (slice(31), slice(31, None))
        ]
        expected = [np.concatenate([h[i].numpy() for h in halves]) for i in (0, 1)]
        found = on(strategy, steps_of(layer), graph=True)(x, cotangent, 31)
        errors[f"{name} apart"] = error(found, expected)
    return errors


def incomplete(strategy):
    """Errors of rows that lack views against one device: the map, the losses, the metric."""
    sizes = (3, 4, 3)
    x = with_gaps(shared_views(50, sizes, seed=1), sizes)
    cotangent = np.random.default_rng(2).normal(size=x.shape)
    options = dict(split=sizes, dtype="float64", synchronized=True, **PAIRWISE)
    solver = Newton(1e-11, jit_compile=False)
    cases = {
        "layer": (lambda: ProxGCCA(4, lam=0.5, solver=solver, **options), steps_of),
        "loss": (lambda: GCCALoss(4, **options), loss_of),
        "envelope": (
            lambda: GCCARegularizer(0.3, num_components=4, envelope=2.0, **options), loss_of
        ),
    }  # fmt: skip
    errors = {}
    for name, (make, step_of) in cases.items():
        if not asked(name, 31, 50):
            continue
        expected = [t.numpy() for t in step_of(make())(tf.constant(x), tf.constant(cotangent))]
        with strategy.scope():
            together = make()
            if isinstance(together, keras.layers.Layer):
                together.build(x.shape)
        run = on(strategy, step_of(together))
        for split in (31, 50):
            if not asked(name, split):
                continue
            value, gradient = run(x, cotangent, split)
            value = value if step_of is steps_of else value.sum(keepdims=True)
            errors[f"{name} {split}"] = error([value, gradient], expected)
    return errors


def moving_without_rows(strategy, cls, k, options, x, synchronized):
    """Error of the moving weights after a step in which one replica has no complete row."""
    settings = dict(inference="moving", momentum=0.5, synchronized=synchronized, **options)
    alone = cls(k, **settings)
    alone(x, training=True)
    with strategy.scope():
        layer = cls(k, **settings)
        layer.build(x.shape)

    def step(rows, present):
        layer(rows, training=True, mask=present[:, 0] > 0)
        return tf.zeros([1]), tf.zeros([1])

    present = np.repeat([1.0, 0.0], len(x))[:, None]
    on(strategy, step)(np.concatenate([x, x]), present, len(x))
    weights = (layer.moving_mean, layer.moving_map), (alone.moving_mean, alone.moving_map)
    return error(*([w.numpy() for w in pair] for pair in weights))


def losses(strategy):
    """Errors of the value and the gradient of the losses against one device, by case."""
    x = shared_views(50, (3, 4, 3), seed=7) + 2.0 * (np.arange(50) > 30)[:, None]
    cases = {
        "cca loss": lambda **kw: CCALoss(2, split=(3, 7), dtype="float64", **kw),
        "gcca loss": lambda **kw: GCCALoss(4, split=(3, 4, 3), dtype="float64", **kw),
        "cca penalty": lambda **kw: CCARegularizer(0.3, split=(3, 7), dtype="float64", **kw),
        "cca envelope": lambda **kw: CCARegularizer(
            0.3, envelope=2.0, split=(3, 7), dtype="float64", **kw
        ),
        "gcca penalty": lambda **kw: GCCARegularizer(
            0.3, num_components=4, split=(3, 4, 3), dtype="float64", **kw
        ),
    }
    errors = {}
    for name, make in cases.items():
        if not asked(name, 25, 31, 50, "apart"):
            continue
        whole = [t.numpy() for t in loss_of(make())(tf.constant(x), None)]
        parts = [loss_of(make())(tf.constant(x[s]), None) for s in (slice(31), slice(31, None))]
        apart = [np.concatenate([p[i].numpy() for p in parts]) for i in (0, 1)]
        with strategy.scope():
            together, alone = make(synchronized=True), make()
            for layer in (together, alone):
                if isinstance(layer, keras.layers.Layer):
                    layer.build(x.shape)
        run = on(strategy, loss_of(together))
        for split in (25, 31, 50):
            if not asked(name, split):
                continue
            value, gradient = run(x, x, split)
            value = value.sum(keepdims=True)
            errors[f"{name} {split}"] = error([value, gradient], whole)
        if asked(name, "apart"):
            found = on(strategy, loss_of(alone), graph=True)(x, x, 31)
            errors[f"{name} apart"] = error(found, [a / 2 for a in apart])
    return errors


METRICS = {
    "correlation": lambda **kw: CanonicalCorrelation(split=(3, 4), **kw),
    "pairwise": lambda **kw: CanonicalCorrelation(split=(3, 4), **PAIRWISE, **kw),
    "recall": lambda **kw: RecallAtK(9, split=(3, 1, 3), views=(0, 2), capacity=64, **kw),
    "median": lambda **kw: MedianRank(split=(3, 1, 3), views=(0, 2), capacity=64, **kw),
}


def epoch(strategy, name, make):
    """A metric after two batches of which each replica sees a part, against one device."""
    x = shared_views(64, (3, 4), seed=8) + 2.0 * (np.arange(64) >= 32)[:, None]
    alone = make(dtype="float64")
    if alone.border.missing == "pairwise":
        x = with_gaps(x, (3, 4))
    alone.update_state(None, x)
    found = {"one device": float(alone.result())}
    for split in (32, 20, 64):
        if not asked(name, split):
            continue
        with strategy.scope():
            metric = make(dtype="float64")

        def step(x, weight, metric=metric):
            metric.update_state(None, x, weight[:, 0])
            return tf.zeros([1]), tf.zeros([1])

        run = on(strategy, step)
        run(x[:40], np.ones((40, 1)), min(split, 40))
        run(x[40:], np.ones((24, 1)), max(split - 40, 0))
        found[str(split)] = float(metric.result())
    return found


def retrieval_model():
    """Metrics of retrieval in a model that XLA would compile on one device."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(6)])
    return model, CCALoss(2, epsilon=0.1, synchronized=True), [RecallAtK(5), MedianRank()]


def correlated_model():
    """A penalty, a proximal layer, a loss and a metric of correlation in one model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((7,)),
            keras.layers.Dense(7),
            CCARegularizer(0.5, split=(3, 4), synchronized=True),
            ProxCCA(split=(3, 4), lam=5.0, synchronized=True, solver=Newton(jit_compile=False)),
        ]
    )
    loss = CCALoss(2, epsilon=0.1, split=(3, 4), synchronized=True)
    return model, loss, [CanonicalCorrelation(split=(3, 4))]


def views_model():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((3,)), keras.Input((4,))]
    codes = [keras.layers.Dense(3)(x) for x in inputs]
    moved = ProxCCA(
        lam=0.5,
        synchronized=True,
        inference="moving",
        monitor="views",
        solver=Newton(jit_compile=False),
    )(codes)
    output = keras.layers.Dense(1)(keras.layers.Concatenate()(moved))
    return keras.Model(inputs, output), "mse", []


def sequence_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            ProxLSTM(4, delta=0.5, lam=2.0),
            Prox("l1", lam=5.0),
            keras.layers.Dense(1),
        ]
    )
    return model, "mse", []


def fitted(make, x, y, scope, eagerly=False):
    """Weights and history after `fit`, whose batches divide evenly."""
    with scope:
        model, loss, metrics = make()
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, run_eagerly=eagerly)
    callbacks = []
    if make is views_model:
        callbacks.append(LambdaSchedule(linear_lambda(0.5, 1.0)))
    history = model.fit(
        x, y, batch_size=20, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    )
    return [np.asarray(w) for w in model.get_weights()], history.history


def solver_device(data, device):
    """Error with the solve on a device, and what its operations there take as inputs."""
    data = np.tile(data, (5, 1))  # 200 rows
    cotangent = tf.ones_like(data)
    solvers = [Newton(device=device, jit_compile=False) for device in (device, None)]
    functions = [
        tf.function(steps_of(ProxCCA(lam=0.5, split=(3, 4), solver=solver))) for solver in solvers
    ]
    there, default = ([t.numpy() for t in f(data, cotangent)] for f in functions)
    graphs = [f.get_concrete_function(tf.constant(data), cotangent).graph for f in functions]
    moved = [op for op in graphs[0].get_operations() if device in op.device]
    return {
        "error": error(there, default),
        "operations": sorted({op.type for op in moved}),
        "longest": max(max(t.shape.as_list(), default=0) for op in moved for t in op.inputs),
        "by default": sum(device in op.device for op in graphs[1].get_operations()),
    }


def main():
    device = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(device, logical)
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    found = {
        "exactness": exactness(strategy),
        "incomplete": incomplete(strategy),
        "losses": losses(strategy),
        "epoch": {name: epoch(strategy, name, make) for name, make in METRICS.items()},
        "fit": {},
    }
    data = shared_views(40, (3, 4), seed=3).astype("float32")
    target = data[:, :1] - data[:, 4:5]
    sequences = np.random.default_rng(4).normal(size=(40, 5, 3)).astype("float32")
    cases = (
        (views_model, [data[:, :3], data[:, 3:]]),
        (sequence_model, sequences),
        (retrieval_model, data + np.arange(40, dtype="float32")[:, None] / 20),
        (correlated_model, data + np.arange(40, dtype="float32")[:, None] / 20),
    )
    for make, x in cases:
        if not asked(make.__name__):
            continue
        one, history = fitted(make, x, target, tf.device("CPU:0"), eagerly=True)
        two, other = fitted(make, x, target, strategy.scope())
        found["fit"][make.__name__] = {
            "weights": error(two, one),
            "history": {
                name: error([np.array(other[name])], [np.array(history[name])]) for name in history
            },
            "lam": other.get("lam"),
        }
    found["models"] = {name: compared(strategy, name) for name in MODELS if asked(name)}
    found["solver device"] = {d: solver_device(data, d) for d in DEVICES if asked(d)}
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
