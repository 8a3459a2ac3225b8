"""Structures of matrices `[D, D]`, vectors `[D]` and scalars as two tensors, and back.

A loop variable or an argument of a compiled function costs more than a D x D product: what travels
between the compiled parts of the solver travels in one stack of matrices and one vector. A layout
is a structure of ranks: 2 for `[D, D]`, 1 for `[D]`, 0 for a scalar.
"""

from typing import Any

import tensorflow as tf

Packed = tuple[tf.Tensor, tf.Tensor]


def pack(structure: Any) -> Packed:
    """The matrices of a structure in one stack, its vectors and scalars in one vector."""
    flat = tf.nest.flatten(structure)
    matrices = [x for x in flat if x.shape.rank == 2]
    rest = [x for rank in (1, 0) for x in flat if x.shape.rank == rank]
    return tf.stack(matrices), tf.concat([tf.reshape(x, [-1]) for x in rest] or [[]], 0)


def unpack(layout: Any, packed: Packed) -> Any:
    """Undoes `pack` for a structure of the given layout."""
    matrices, vector = packed
    ranks, width = tf.nest.flatten(layout), matrices.shape[-1]
    pools = {
        2: iter(tf.unstack(matrices)),
        1: iter(tf.split(vector[: width * ranks.count(1)], ranks.count(1) or 1)),
        0: iter(tf.unstack(vector[width * ranks.count(1) :])),
    }
    return tf.nest.pack_sequence_as(layout, [next(pools[rank]) for rank in ranks])


def zeros(layout: Any, width: int, dtype: tf.DType) -> Packed:
    """Zeros in the place of a structure of the given layout."""
    shapes = [[width] * rank for rank in tf.nest.flatten(layout)]
    return pack([tf.zeros(shape, dtype) for shape in shapes])


def cast_floats(structure: Any, dtype: tf.DType) -> Any:
    """A structure with its tensors of floating-point numbers in `dtype`."""
    return tf.nest.map_structure(
        lambda a: tf.cast(a, dtype) if tf.is_tensor(a) and a.dtype.is_floating else a, structure
    )
