"""Run in a process of its own with two logical CPUs; prints what it measured as JSON."""

import json

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import LambdaSchedule, Prox, ProxCCA, ProxGCCA, ProxLSTM, linear_lambda
from tests.helpers.data import shared_views

DEVICES = ["CPU:0", "CPU:1"]


def steps_of(layer):
    """Outputs and gradients of a step, the views side by side."""

    def step(x, cotangent):
        with tf.GradientTape() as tape:
            tape.watch(x)
            moved = layer(x, training=True)
        return moved, tape.gradient(moved, x, cotangent)

    return step


def run_on(strategy, layer, x, cotangent, split):
    """The same with rows [:split] on the first replica and the others on the second."""

    def part(context):
        rows = slice(split) if context.replica_id_in_sync_group == 0 else slice(split, None)
        return tf.constant(x[rows]), tf.constant(cotangent[rows])

    values = strategy.experimental_distribute_values_from_function(part)
    results = tf.function(lambda v: strategy.run(steps_of(layer), args=v))(values)
    return [
        np.concatenate([r.numpy() for r in strategy.experimental_local_results(result)])
        for result in results
    ]


def error(found, expected):
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


def exactness(strategy):
    """Errors of the map of a global batch against one device, by case."""
    errors = {}
    x = shared_views(50, (3, 4, 3), seed=1)
    cotangent = np.random.default_rng(2).normal(size=x.shape)
    for name, cls, k, sizes in (
        ("cca", ProxCCA, None, (3, 7)),
        ("gcca", ProxGCCA, 4, (3, 4, 3)),
    ):
        options = dict(lam=0.5, split=sizes, dtype="float64", tolerance=1e-11, jit_solver=False)
        expected = [
            t.numpy() for t in steps_of(cls(k, **options))(tf.constant(x), tf.constant(cotangent))
        ]
        with strategy.scope():
            layer = cls(k, synchronized=True, inference="moving", momentum=0.0, **options)
            layer.build(x.shape)
        for split in (25, 31, 50):  # even, uneven, a replica without rows
            found = run_on(strategy, layer, x, cotangent, split)
            errors[f"{name} {split}"] = error(found, expected)
        applied = layer(x, training=False)  # the moving map is the last one
        errors[f"{name} moving"] = error([applied.numpy()], expected[:1])
        with strategy.scope():
            layer = cls(k, **options)
            layer.build(x.shape)
        halves = [
            steps_of(cls(k, **options))(tf.constant(x[s]), tf.constant(cotangent[s]))
            for s in (slice(31), slice(31, None))
        ]
        expected = [np.concatenate([h[i].numpy() for h in halves]) for i in (0, 1)]
        found = run_on(strategy, layer, x, cotangent, 31)
        errors[f"{name} apart"] = error(found, expected)
    return errors


def views_model():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((3,)), keras.Input((4,))]
    codes = [keras.layers.Dense(3)(x) for x in inputs]
    moved = ProxCCA(lam=0.5, synchronized=True, inference="moving", monitor=True, jit_solver=False)(
        codes
    )
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(moved)))


def sequence_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((5, 3)),
            ProxLSTM(4, delta=0.5, lam=2.0),
            Prox("l1", lam=5.0),
            keras.layers.Dense(1),
        ]
    )


def fitted(make, x, y, scope):
    """Weights and history after `fit`, whose batches divide evenly."""
    with scope:
        model = make()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    callbacks = []
    if make is views_model:
        callbacks.append(LambdaSchedule(linear_lambda(0.5, 1.0)))
    history = model.fit(
        x, y, batch_size=20, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    )
    return [np.asarray(w) for w in model.get_weights()], history.history


def solver_device(data):
    """Error with the solve on the second device, and what its operations there take as inputs."""
    data = np.tile(data, (5, 1))  # 200 rows
    cotangent = tf.ones_like(data)
    functions = [
        tf.function(steps_of(ProxCCA(lam=0.5, split=(3, 4), solver_device=device)))
        for device in ("CPU:1", None)
    ]
    there, default = ([t.numpy() for t in f(data, cotangent)] for f in functions)
    graphs = [f.get_concrete_function(tf.constant(data), cotangent).graph for f in functions]
    moved = [op for op in graphs[0].get_operations() if "CPU:1" in op.device]
    return {
        "error": error(there, default),
        "operations": sorted({op.type for op in moved}),
        "longest": max(max(t.shape.as_list(), default=0) for op in moved for t in op.inputs),
        "by default": sum("CPU:1" in op.device for op in graphs[1].get_operations()),
    }


def main():
    device = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(device, logical)
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    found = {"exactness": exactness(strategy), "fit": {}}
    data = shared_views(40, (3, 4), seed=3).astype("float32")
    target = data[:, :1] - data[:, 4:5]
    sequences = np.random.default_rng(4).normal(size=(40, 5, 3)).astype("float32")
    for make, x in ((views_model, [data[:, :3], data[:, 3:]]), (sequence_model, sequences)):
        one, history = fitted(make, x, target, tf.device("CPU:0"))
        two, other = fitted(make, x, target, strategy.scope())
        found["fit"][make.__name__] = {
            "weights": error(two, one),
            "history": {
                name: error([np.array(other[name])], [np.array(history[name])]) for name in history
            },
            "lam": other.get("lam"),
        }
    found["solver device"] = solver_device(data)
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
