"""No GPU is needed: every operation of the layers' forward and backward has a kernel for one."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from proxnet_tf import Prox, ProxCCA, ProxDropout, ProxGCCA, ProxLSTM
from proxnet_tf.solvers import Newton
from tests.helpers.data import shared_views

# Control flow, and what the runtime replaces or runs on the host by design (shapes, constants).
BUILT_IN = {"NoOp", "Placeholder", "Const"}


def gpu_dtypes(op):
    """For each GPU kernel of an operation: what it allows, by the name of the attribute."""
    return [
        {c.name: {*c.allowed_values.list.type} for c in kernel.constraint}
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in ("GPU", "DEFAULT")
    ]


def without_kernel(graph):
    """Operations of a graph, and of the functions it calls, that no GPU kernel takes."""
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    functions = {f.signature.name for f in definition.library.function}
    missing = set()
    for node in nodes:
        if node.op in BUILT_IN or node.op in functions:
            continue
        types = {name: value.type for name, value in node.attr.items() if value.type}
        fits = any(
            all(types.get(name) in allowed for name, allowed in rule.items() if name in types)
            for rule in gpu_dtypes(node.op)
        )
        if not fits:
            missing.add((node.op, *(tf.as_dtype(t).name for t in types.values())))
    return missing


def test_the_check_sees_an_operation_without_a_kernel():
    @tf.function
    def words(x):
        return tf.strings.length(tf.strings.as_string(x))

    assert {m[0] for m in without_kernel(words.get_concrete_function(tf.ones(3)).graph)}


CASES = {
    "ProxCCA": (
        lambda: ProxCCA(3, lam=0.5, split=(3, 4), solver=Newton(jit_compile=False), monitor=True),
        (20, 7),
    ),
    "ProxCCA, moving": (
        lambda: ProxCCA(inference="moving", solver=Newton(jit_compile=False)),
        (20, 6),
    ),
    "ProxGCCA": (lambda: ProxGCCA(4, split=(3, 4, 2), solver=Newton(jit_compile=False)), (20, 9)),
    "ProxGCCA, missing": (
        lambda: ProxGCCA(4, solver=Newton(jit_compile=False), nan_is_missing=True),
        (20, 6),
    ),
    "ProxLSTM": (lambda: ProxLSTM(4, delta=0.5), (5, 6, 3)),
    "Prox": (lambda: Prox("l1"), (20, 6)),
    "simplex": (lambda: Prox("simplex"), (20, 6)),
    "ProxDropout": (lambda: ProxDropout(), (20, 6)),
}


@pytest.mark.skipif(
    not gpu_dtypes("MatMul")
    or "GPU" not in {k.device_type for k in kernels.get_registered_kernels_for_op("MatMul").kernel},
    reason="this TensorFlow is built without GPU kernels",
)
@pytest.mark.parametrize("case", CASES)
def test_every_operation_has_a_gpu_kernel(case):
    make, shape = CASES[case]
    layer = make()
    layer.build(shape)

    @tf.function
    def step(x, rows):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(layer(x[:rows], training=True) ** 2)
        return tape.gradient(value, [x, *layer.trainable_weights])

    x = tf.constant(shared_views(shape[0] * int(np.prod(shape[1:-1])), (shape[-1],)), tf.float32)
    graph = step.get_concrete_function(tf.reshape(x, shape), tf.constant(shape[0])).graph
    assert without_kernel(graph) == set()
