"""What a saved model is compared by: the numbers that it computes from fixed inputs."""

import keras
import numpy as np
import tensorflow as tf


def call(model, inputs, **mode):
    """The outputs as a flat list of tensors."""
    return tf.nest.flatten(model(inputs if len(inputs) > 1 else inputs[0], **mode))


def arguments_of(mode):
    """Arguments of a call from JSON: `mask`, or a list of `masks`, becomes tensors."""
    mode = dict(mode)
    if "mask" in mode:
        mode["mask"] = tf.constant(mode["mask"])
    if "masks" in mode:
        mode["mask"] = [None if m is None else tf.constant(m) for m in mode.pop("masks")]
    return mode


def outputs_and_gradients(model, inputs, cotangents, *, graph=False, **mode):
    """Outputs, added losses, and gradients of sum(cotangent * output) + losses.

    The gradients are those in the inputs, then those in the weights. Training may give more
    outputs than inference; the first cotangents are those of the outputs of inference.
    """
    inputs = [tf.constant(x) for x in inputs]

    def compute(*inputs):
        return _compute(model, inputs, cotangents, mode)

    compute = tf.function(compute) if graph else compute
    return {key: np.asarray(value) for key, value in compute(*inputs).items()}


def _compute(model, inputs, cotangents, mode):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = call(model, inputs, **mode)
        losses = list(model.losses)
    weights = [
        *(tf.constant(c, o.dtype) for c, o in zip(cotangents, outputs, strict=False)),
        *(tf.ones_like(value) for value in losses),
    ]
    sources = [*inputs, *(v.value for v in model.trainable_variables)]
    gradients = tape.gradient([*outputs, *losses], sources, weights)
    return {
        **{f"output_{i}": o for i, o in enumerate(outputs)},
        **{f"gradient_{i}": g for i, g in enumerate(gradients) if g is not None},
        **{f"loss_{i}": value for i, value in enumerate(losses)},
    }


def weights_of(model):
    """The weights as arrays."""
    return {f"weight_{i}": w for i, w in enumerate(model.get_weights())}


def numbers_of(model, inputs, cotangents, target=None, *, training=False, graph=False):
    """Everything that is compared, by name; the model is another one afterwards.

    Args:
        model: a Keras model, compiled if there is a `target`.
        inputs: list of arrays.
        cotangents: list of arrays, one for each output.
        target: of one training step on the inputs, which changes the weights; None for none.
        training: whether to call the model in training too, which may change statistics.
        graph: whether to compute in graphs.
    """
    found = {
        **{f"input_{i}": x for i, x in enumerate(inputs)},
        **{f"cotangent_{i}": c for i, c in enumerate(cotangents)},
        **weights_of(model),
        **outputs_and_gradients(model, inputs, cotangents, graph=graph),
    }
    if training:
        mode = {"graph": graph, "training": True}
        trained = outputs_and_gradients(model, inputs, cotangents, **mode)
        found |= {f"training_{key}": value for key, value in trained.items()}
        found |= {f"training_{key}": value for key, value in weights_of(model).items()}
    if target is not None:
        found["target"] = target
        x = inputs if len(inputs) > 1 else inputs[0]
        logs = model.train_on_batch(x, target, return_dict=True)
        found |= {f"step_{key}": np.asarray(value) for key, value in logs.items()}
        found |= {f"step_{key}": value for key, value in weights_of(model).items()}
        keras.tree.map_structure(lambda m: m.reset_state(), model.metrics)
    return found
