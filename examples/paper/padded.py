"""What the experiments on padded sequences share."""

import keras
import numpy as np


class WithMask(keras.layers.Layer):
    """Features of a sequence, masked where the padded input is zero."""

    def call(self, inputs):
        return inputs[0]

    def compute_mask(self, inputs, mask=None):
        return keras.ops.any(inputs[1] != 0.0, axis=-1)


def by_length(lengths, seed):
    """The rows sorted by length, ties at random."""
    return np.lexsort((np.random.default_rng(seed).random(len(lengths)), lengths))
