"""No GPU is needed: every operation of the layers' forward and backward has a kernel for one."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from tests.helpers.layer_checks import length, map_inputs
from tests.helpers.registry import LAYERS, layers

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


@pytest.mark.skipif(
    not gpu_dtypes("MatMul")
    or "GPU" not in {k.device_type for k in kernels.get_registered_kernels_for_op("MatMul").kernel},
    reason="this TensorFlow is built without GPU kernels",
)
@pytest.mark.parametrize("name", layers())
def test_every_operation_has_a_gpu_kernel(name):
    case = LAYERS[name]
    layer = case.make()
    layer(case.inputs)

    @tf.function
    def step(inputs, rows):
        inputs = map_inputs(lambda x: x[:rows], inputs)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.nest.flatten(layer(inputs, training=True))
            value = tf.add_n([tf.reduce_sum(o**2) for o in outputs] + layer.losses)
        weights = [v.value for v in layer.trainable_weights]
        return tape.gradient(value, [tf.nest.flatten(inputs), weights])

    inputs = map_inputs(tf.constant, case.inputs)
    graph = step.get_concrete_function(inputs, tf.constant(length(case.inputs))).graph
    assert without_kernel(graph) == set()
