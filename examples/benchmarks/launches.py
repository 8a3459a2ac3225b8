"""How many kernels a GPU would launch in a training step of ProxCCA, counted from the graph.

    python examples/benchmarks/launches.py

Kernels are the operations of the traced step, those of its functions and loops included, without
constants, reshapes and what only reads shapes. `Newton(device=None)` leaves the D x D problem on
the GPU; `device="auto"` puts it on the host where D is at most 256 (here "CPU:0" is asked for,
which is the same). The body of a loop counts once, and a part that XLA compiles counts as its
operations. Fusion makes fewer kernels of them, iterations more.
"""

import argparse

import tensorflow as tf

from proxnet_tf import ProxCCA
from proxnet_tf.solvers import Newton

FREE = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "StopGradient"),
    *("Shape", "ShapeN", "Rank", "Size", "Reshape", "ExpandDims", "Squeeze", "Bitcast", "Unpack"),
    *("TensorListFromTensor", "PreventGradient", "EnsureShape", "Assert", "Switch", "Merge"),
}


def kernels(step, *arguments):
    """(number on the host by request, number elsewhere) of a traced function's operations."""
    graph = step.get_concrete_function(*arguments).graph.as_graph_def()
    library = {function.signature.name: function for function in graph.library.function}
    found = [0, 0]

    def count(nodes, device):
        for node in nodes:
            place = node.device or device
            names = [a.func.name for a in node.attr.values() if a.HasField("func")]
            for name in names:
                count(library[name].node_def, place)
            if not names and node.op not in FREE:
                found["CPU" not in place] += 1

    count(graph.node, "")
    return found


def step_of(layer):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            outputs = layer([x, y], training=True)
            loss = tf.add_n([tf.reduce_sum(z**2) for z in outputs])
        return tape.gradient(loss, [x, y])

    return step


def counts():
    rows = []
    for d in (20, 100):
        x = tf.zeros([100, d])
        for device in (None, "CPU:0"):
            layer = ProxCCA(solver=Newton(device=device))
            host, gpu = kernels(step_of(layer), x, x)
            rows.append((f"n = 100, two views of {d}, device {device}", gpu, host))
    return rows


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    for case, gpu, host in counts():
        print(f"{case}: {gpu} launched, {host} on the host")


if __name__ == "__main__":
    main()
