"""What a training step of the recurrent layers costs, as multiples of Keras's, and how exact it is.

All run in one process. In every round each candidate runs once, so a disturbance of the machine
affects all of them. The numbers are medians of the ratios within a round. The errors compare the
float32 layer with itself in float64, solved by Cholesky's decomposition: the largest one of the
outputs, and of the gradients of the weights, relative to the norm of each.

    python examples/benchmarks/prox_lstm.py            # the table
    python examples/benchmarks/prox_lstm.py --memory   # peak of one step at (16, 239, 256, 1024)
"""

import argparse
import resource
import statistics
import time

import keras
import tensorflow as tf

from proxnet_tf import ProxGRU, ProxGRUCell, ProxLSTM, ProxLSTMCell, ProxRNNCell

SIZES = [(32, 30, 32, 64), (32, 128, 64, 128)]  # batch, time, input, units
RNN, LSTM_CELL, GRU_CELL = keras.layers.RNN, keras.layers.LSTMCell, keras.layers.GRUCell


@keras.saving.register_keras_serializable(package="benchmark")
class JacobianCell(LSTM_CELL):
    """The published description: G by nested tapes and `batch_jacobian`, then a dense solve."""

    def call(self, inputs, states, training=False):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output, (hidden, s) = super().call(inputs, states, training=training)
        g = tape.batch_jacobian(s, inputs)
        system = tf.matmul(g, g, transpose_b=True) + tf.eye(self.units, dtype=s.dtype)
        c = tf.linalg.solve(system, s[..., None])[..., 0]
        return output, [hidden, c]


# How each layer is made, from units and arguments of the proximal part, and with which layer it is
# compared. XLA cannot compile the vectorised jacobian of a split.
LAYERS = {
    "RNN(LSTMCell)": (lambda u, **k: RNN(LSTM_CELL(u)), None),
    "ProxLSTM": (lambda u, **k: ProxLSTM(u, **k), "RNN(LSTMCell)"),
    "ProxLSTM, no XLA inside": (
        lambda u, **k: ProxLSTM(u, **{"jit_compile": False, **k}),
        "RNN(LSTMCell)",
    ),
    "RNN(ProxLSTMCell)": (
        lambda u, dtype="float32", **k: RNN(ProxLSTMCell(u, dtype=dtype, **k), dtype=dtype),
        "RNN(LSTMCell)",
    ),
    "batch_jacobian + solve": (
        lambda u, dtype="float32", **k: RNN(JacobianCell(u, dtype=dtype), dtype=dtype),
        "RNN(LSTMCell)",
    ),
    "RNN(GRUCell)": (lambda u, **k: RNN(GRU_CELL(u)), None),
    "ProxGRU": (lambda u, **k: ProxGRU(u, **k), "RNN(GRUCell)"),
    "ProxGRU, no XLA inside": (
        lambda u, **k: ProxGRU(u, **{"jit_compile": False, **k}),
        "RNN(GRUCell)",
    ),
    "RNN(ProxGRUCell)": (
        lambda u, dtype="float32", **k: RNN(ProxGRUCell(u, dtype=dtype, **k), dtype=dtype),
        "RNN(GRUCell)",
    ),
    "RNN(ProxRNNCell(GRUCell))": (
        lambda u, dtype="float32", jit_compile=False, **k: RNN(
            ProxRNNCell(GRU_CELL(u, dtype=dtype), dtype=dtype, **k), dtype=dtype
        ),
        "RNN(GRUCell)",
    ),
}
NOT_COMPILED = ("ProxLSTM, no XLA inside", "ProxGRU, no XLA inside", "batch_jacobian + solve")


def training_step(layer, inputs, jit_compile):
    """A function that returns outputs and gradients of all weights, and waits for them."""
    layer.build(inputs.shape)

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x, training=True)
            loss = tf.reduce_mean(y**2)
        return y, tape.gradient(loss, [v.value for v in layer.trainable_variables])

    return lambda: [t.numpy() for t in tf.nest.flatten(step(inputs))]


def measure(steps, rounds):
    """Seconds of the first call and of each round, by name."""
    first, times = {}, {name: [] for name in steps}
    for name, run in steps.items():
        start = time.perf_counter()
        run()
        first[name] = time.perf_counter() - start
        run()
    for _ in range(rounds):
        for name, run in steps.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return first, times


def errors(layer, name, inputs, run):
    """Of outputs and of gradients, against float64."""
    make, plain = LAYERS[name]
    if plain is None:
        return "", ""
    exact = make(layer.cell.output_size, dtype="float64", jit_compile=False)
    exact.build(inputs.shape)
    for ours, theirs in zip(exact.trainable_variables, layer.trainable_variables, strict=True):
        ours.assign(tf.cast(theirs, "float64"))
    right = training_step(exact, tf.cast(inputs, "float64"), False)()
    found = [float(tf.norm(a - b) / tf.norm(b)) for a, b in zip(run(), right, strict=True)]
    return f"{found[0]:.0e}", f"{max(found[1:]):.0e}"


def table(rounds, sizes=SIZES):
    """Prints the ratios for every size, with and without `jit_compile`, and the errors."""
    columns = ("batch, time, input, units", "jit_compile", "layer", "ms a step", "first call, s")
    columns += ("x Keras", "error of outputs", "of gradients")
    print("|", " | ".join(columns), "|")
    print("|---" * len(columns), "|", sep="")
    for size in sizes:
        batch, length, features, units = size
        inputs = tf.random.stateless_normal((batch, length, features), seed=(0, 1))
        for jit_compile in (False, True):
            keras.utils.set_random_seed(0)
            names = [n for n in LAYERS if not (jit_compile and n in NOT_COMPILED)]
            layers = {name: LAYERS[name][0](units) for name in names}
            steps = {n: training_step(layers[n], inputs, jit_compile) for n in names}
            first, times = measure(steps, rounds)
            for name, values in times.items():
                plain = times[LAYERS[name][1] or name]
                ratio = statistics.median(v / p for v, p in zip(values, plain, strict=True))
                cells = (size, jit_compile, name, f"{1e3 * statistics.median(values):.1f}")
                cells += (f"{first[name]:.1f}", f"{ratio:.2f}")
                cells += errors(layers[name], name, inputs, steps[name])
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


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="the first size only, 7 rounds")
    options = parser.parse_args(arguments)
    if options.memory:
        memory()
    elif options.quick:
        table(7, SIZES[:1])
    else:
        table(options.rounds)


if __name__ == "__main__":
    main()
