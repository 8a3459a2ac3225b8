"""More than one device: does a mirrored strategy train as one device does?

Two logical CPUs stand for two GPUs. Each replica gets half of a batch. With `synchronized=True` the
proximal layer solves for the rows of all replicas together, as one device would for the whole
batch; without it each replica solves for its own half, which is another problem.

To copy: build and compile inside `strategy.scope()`, and `ProxCCA(..., synchronized=True)`.
"""

import keras
import numpy as np
import show
import tensorflow as tf
from keras.layers import Average, Dense

from proxnet_tf import ProxCCA
from proxnet_tf.datasets import load_multiple_features


def train(views, labels, epochs, strategy, synchronized=False):
    """The loss by epoch, and the weights after the last epoch."""
    with strategy.scope():
        keras.utils.set_random_seed(0)
        inputs = [keras.Input((view.shape[1],)) for view in views]
        codes = [Dense(8)(Dense(32, "relu")(x)) for x in inputs]
        codes = ProxCCA(8, lam=0.3, synchronized=synchronized)(codes)
        model = keras.Model(inputs, Average()([Dense(10)(code) for code in codes]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    fit = {"batch_size": 200, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = model.fit(views, labels, **fit).history["loss"]
    return np.array(history), np.concatenate([w.ravel() for w in model.get_weights()])


def main(arguments=None):
    options = show.options(__doc__, arguments)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    views, labels = load_multiple_features(["fou", "zer"])
    order = np.random.default_rng(0).permutation(2000)[: 400 if options.small else 2000]
    views, labels = [(x[order] - x.mean(0)) / x.std(0) for x in views.values()], labels[order]
    epochs, one = (1 if options.small else 5), tf.distribute.get_strategy()
    # The whole batch is summed up on one of the two; on GPUs leave this argument out.
    reduction = tf.distribute.ReductionToOneDevice()
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)
    losses, weights = train(views, labels, epochs, one)
    rows = [("one device, whole batch", f"{losses[-1]:.5f}", "")]
    for name, synchronized in (("two, synchronized", True), ("two, each its own half", False)):
        found, other = train(views, labels, epochs, two, synchronized)
        rows.append((name, f"{found[-1]:.5f}", f"{np.abs(other - weights).max():.1e}"))
    header = ("devices", "last loss", "weights differ from one device by")
    show.table(header, rows, options.output)
    return rows


if __name__ == "__main__":
    main()
