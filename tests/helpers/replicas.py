"""Steps on two replicas against the same step on one device."""

import keras
import numpy as np
import tensorflow as tf


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


def alone(step, x, cotangent):
    """What the step gives on one device, as arrays."""
    return [t.numpy() for t in step(tf.constant(x), tf.constant(cotangent))]


def on(strategy, step, x, cotangent, split, graph=False):
    """The same with rows [:split] on the first replica and the others on the second."""

    def part(context):
        rows = slice(split) if context.replica_id_in_sync_group == 0 else slice(split, None)
        return tf.constant(x[rows]), tf.constant(cotangent[rows])

    def run(values):
        return strategy.run(step, args=values)

    run = tf.function(run) if graph else run
    results = run(strategy.experimental_distribute_values_from_function(part))
    return [
        np.concatenate([r.numpy() for r in strategy.experimental_local_results(result)])
        for result in results
    ]


def error(found, expected):
    """The largest difference; what is NaN in one must be in the other."""
    pairs = list(zip(found, expected, strict=True))
    if any((np.isnan(a) != np.isnan(b)).any() for a, b in pairs):
        return float("inf")
    return max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)
