"""What a training step of ProxLSTM costs, as multiples of a plain LSTM's, and its memory.

All in one process; in every round each candidate runs once, so that a disturbance of the machine
meets all of them; the numbers are medians of the ratios within a round.

    python examples/benchmarks/prox_lstm.py            # the table
    python examples/benchmarks/prox_lstm.py --memory   # peak of one step at (16, 239, 256, 1024)
"""

import argparse
import resource
import statistics
import time

import keras
import tensorflow as tf

from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell

SIZES = [(32, 30, 32, 64), (32, 128, 64, 128)]  # batch, time, input, units

JACOBIAN = "batch_jacobian + solve"


@keras.saving.register_keras_serializable(package="benchmark")
class JacobianCell(keras.layers.LSTMCell):
    """The published description: G by nested tapes and `batch_jacobian`, then a dense solve."""

    def call(self, inputs, states, training=False):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output, (hidden, s) = super().call(inputs, states, training=training)
        g = tape.batch_jacobian(s, inputs)
        system = tf.matmul(g, g, transpose_b=True) + tf.eye(self.units)
        c = tf.linalg.solve(system, s[..., None])[..., 0]
        return output, [hidden, c]


def training_step(layer, inputs, jit_compile):
    """A function that runs loss and gradients of all weights once."""
    layer.build(inputs.shape)

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x, training=True) ** 2)
        return loss, tape.gradient(loss, [v.value for v in layer.trainable_variables])

    return lambda: step(inputs)[0].numpy()


def measure(steps, rounds):
    """Seconds by name, one list entry a round."""
    for run in steps.values():
        run()
        run()
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def table(rounds):
    """Prints the ratios for every size, with and without `jit_compile`."""
    layers = {
        "RNN(LSTMCell)": lambda units: keras.layers.RNN(keras.layers.LSTMCell(units)),
        "ProxLSTM": lambda units: ProxLSTM(units),
        "ProxLSTM, no XLA inside": lambda units: ProxLSTM(units, jit_compile=False),
        "RNN(ProxLSTMCell)": lambda units: keras.layers.RNN(ProxLSTMCell(units)),
        JACOBIAN: lambda units: keras.layers.RNN(JacobianCell(units)),
    }
    print("| batch, time, input, units | jit_compile | layer | ms a step | x RNN(LSTMCell) |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        batch, length, features, units = size
        inputs = tf.random.stateless_normal((batch, length, features), seed=(0, 1))
        for jit_compile in (False, True):
            keras.utils.set_random_seed(0)
            steps = {
                name: training_step(make(units), inputs, jit_compile)
                for name, make in layers.items()
                # XLA cannot compile the vectorised jacobian of a split
                if not (jit_compile and name in ("ProxLSTM, no XLA inside", JACOBIAN))
            }
            times = measure(steps, rounds)
            plain = times["RNN(LSTMCell)"]
            for name, values in times.items():
                ratio = statistics.median(v / p for v, p in zip(values, plain, strict=True))
                median = 1e3 * statistics.median(values)
                cells = (size, jit_compile, name, f"{median:.1f}", f"{ratio:.2f}")
                print("|", *(f"{cell} |" for cell in cells), flush=True)


def memory():
    """Prints the peak of one training step above the imported process."""

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    size = batch, length, features, units = 16, 239, 256, 1024
    before = peak()
    inputs = tf.random.stateless_normal((batch, length, features), seed=(0, 1))
    start = time.perf_counter()
    training_step(ProxLSTM(units), inputs, None)()
    print(f"{size}: {peak() - before:.2f} GB above the {before:.2f} GB of the imported process,")
    print(f"first step {time.perf_counter() - start:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.memory:
        memory()
    else:
        table(arguments.rounds)


if __name__ == "__main__":
    main()
