"""Masks of time steps: masked steps have no influence, and the mask is handed on."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox
from tests.helpers.layer_checks import assert_finite, assert_same, flat, map_inputs, randomize
from tests.helpers.registry import LAYERS, SEQUENCES, layers, roughness

MASKED = layers(lambda case: case.masks)


def lengths_of(case):
    first = case.inputs[0] if isinstance(case.inputs, list) else case.inputs
    batch, steps = first.shape[:2]
    lengths = 1 + np.arange(batch) % steps
    lengths[0] = steps
    return lengths, np.arange(steps) < lengths[:, None]


def masked(layer, mask):
    """The argument `mask`, for layers whose call has it."""
    return {"mask": mask} if "mask" in inspect.signature(layer.call).parameters else {}


def as_list(outputs):
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


@pytest.mark.parametrize("name", MASKED)
def test_masked_steps_equal_sliced_ones(name):
    """What stands in masked steps changes no other output; values are those of cut sequences."""
    case = LAYERS[name]
    lengths, mask = lengths_of(case)
    layer = case.make()
    layer(case.inputs, training=case.training)
    randomize(layer)
    weights = layer.get_weights()

    def run(inputs, mask):
        layer.set_weights(weights)  # statistics may move in a call
        outputs = layer(inputs, training=case.training, **masked(layer, mask))
        return [np.asarray(o) for o in as_list(outputs)]

    given = run(case.inputs, mask)
    other = map_inputs(lambda x: np.where(mask[..., None], x, 5.0).astype("float32"), case.inputs)
    assert_same([o[mask] for o in run(other, mask)], [o[mask] for o in given])
    if case.rows == "apart":
        for k, steps in enumerate(lengths):
            cut = run(map_inputs(lambda x, k=k, n=steps: x[k : k + 1, :n], case.inputs), None)
            assert_same([o[k, :steps] for o in given], [o[0] for o in cut], 1e-4)
    else:  # the steps are rows of one problem
        cut = run(map_inputs(lambda x: x[mask][None], case.inputs), None)
        assert_same([o[mask] for o in given], [o[0] for o in cut], 1e-4)
        for before, after in zip(as_list(case.inputs), given, strict=True):
            np.testing.assert_array_equal(before[~mask], after[~mask])


@pytest.mark.parametrize("name", MASKED)
def test_wholly_masked_batch_stays_finite(name):
    case = LAYERS[name]
    mask = np.zeros_like(lengths_of(case)[1])
    layer = case.make()
    inputs = map_inputs(tf.constant, case.inputs)
    for training in (True, False):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = as_list(layer(inputs, training=training, **masked(layer, mask)))
            total = tf.add_n([tf.reduce_sum(o**2) for o in outputs] + layer.losses)
        weights = [v.value for v in layer.trainable_variables]
        gradients = tape.gradient(total, [*as_list(inputs), *weights], unconnected_gradients="zero")
        assert_finite([*outputs, *gradients, *layer.weights])


@pytest.mark.parametrize("name", MASKED)
def test_mask_is_handed_on(name):
    """A `Masking` layer before the layer reaches the layer and what stands after it."""
    case = LAYERS[name]
    lengths, mask = lengths_of(case)
    padded = map_inputs(lambda x: np.where(mask[..., None], x, 0.0).astype("float32"), case.inputs)
    inputs = map_inputs(lambda x: keras.Input(x.shape[1:]), padded)
    masking = keras.layers.Masking()
    layer = case.make()
    outputs = layer(map_inputs(masking, inputs), training=case.training)
    model = keras.Model(inputs, outputs)
    weights = layer.get_weights()
    found = as_list(model(padded))
    for output in found:
        np.testing.assert_array_equal(output._keras_mask, mask)
    layer.set_weights(weights)
    direct = layer(padded, training=case.training, **masked(layer, mask))
    assert_same(found, as_list(direct))
    # keras.layers.LSTM, which reads the mask, sees the valid steps only
    reader = keras.layers.LSTM(2)
    read = reader(found[0])
    for k, steps in enumerate(lengths):
        assert_same(read[k : k + 1], reader(flat(found)[0][k : k + 1, :steps]), 1e-5)


def test_a_mask_that_cannot_be_respected_is_refused():
    layer = Prox(roughness, over="time", monitor=False)
    with pytest.raises(ValueError, match="mask"):
        layer(SEQUENCES, mask=np.ones(SEQUENCES.shape[:2], bool))
