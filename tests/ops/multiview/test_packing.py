"""Structures of matrices, vectors and scalars as two tensors, and back."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.ops.multiview import newton
from proxnet_tf.ops.multiview.packing import cast_floats, pack, unpack, zeros

RNG = np.random.default_rng(4)
WIDTH = 3


class Inner(NamedTuple):
    vector: Any
    matrix: Any
    scalar: Any


LAYOUTS = {
    "the state of Newton's method": newton._STATE,
    "nested, in any order": [0, Inner(vector=1, matrix=2, scalar=0), (1, 2)],
    "matrices only": (2, 2),
    "no vector": (0, 2, 0),
    "no scalar": (1, 2, 1),
}


def filled(layout, width=WIDTH, dtype="float64"):
    return tf.nest.map_structure(
        lambda rank: tf.constant(RNG.normal(size=(width,) * rank), dtype), layout
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_number_comes_back_in_its_place(name):
    layout = LAYOUTS[name]
    structure = filled(layout)
    packed = pack(structure)
    ranks = tf.nest.flatten(layout)
    assert packed[0].shape == (ranks.count(2), WIDTH, WIDTH)
    assert packed[1].shape == (WIDTH * ranks.count(1) + ranks.count(0),)
    again = unpack(layout, packed)
    tf.nest.assert_same_structure(structure, again)
    tf.nest.map_structure(np.testing.assert_array_equal, structure, again)
    assert type(again) is type(structure)


@pytest.mark.parametrize("name", LAYOUTS)
def test_zeros_are_packed_zeros(name):
    layout = LAYOUTS[name]
    expected = pack(filled(layout, dtype="float32"))
    for found, packed in zip(zeros(layout, WIDTH, tf.float32), expected, strict=True):
        assert found.shape == packed.shape and found.dtype == packed.dtype
        assert not found.numpy().any()


def test_one_by_one_matrices_are_not_mistaken_for_vectors():
    structure = Inner(tf.constant([1.0]), tf.constant([[2.0]]), tf.constant(3.0))
    again = unpack(Inner(1, 2, 0), pack(structure))
    assert [x.shape.rank for x in again] == [1, 2, 0]
    assert [float(tf.squeeze(x)) for x in again] == [1.0, 2.0, 3.0]


def test_floats_are_cast_and_all_else_stays():
    counts, flag = tf.constant([1, 2]), tf.constant(True)
    structure = Inner(tf.constant([0.1], tf.float64), {"counts": counts, "flag": flag}, None)
    found = cast_floats(structure, tf.float32)
    assert isinstance(found, Inner) and found.vector.dtype == tf.float32
    np.testing.assert_array_equal(found.vector, np.float32([0.1]))
    assert found.matrix["counts"] is counts and found.matrix["flag"] is flag
    assert found.scalar is None
    assert cast_floats((0.5, 2), tf.float32) == (0.5, 2)  # Python numbers have no dtype
