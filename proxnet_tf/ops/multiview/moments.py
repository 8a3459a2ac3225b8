"""The passes over the rows: what the D x D problem needs to know of a batch, and its answer back.

Up to `EXACT_ROWS` rows, products of rows are in float64. Beyond, the rows are read in blocks that
stay in the cache; products of float32 rows are in float32 there and the blocks are summed in
float64. Either way an entry (i, j) of a Gram matrix is off by a share of the sizes of the columns
i and j alone, so that a column loses nothing to a neighbour in larger units.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.norms import headroom
from proxnet_tf.ops.multiview.guard import guarded, spoiled

AllReduce = Callable[..., tuple[tf.Tensor, ...]]

EXACT_ROWS = 4096
BLOCK = 2048
# Variance along a direction of a view whose columns have unit variance, below which it is
# rounding; for Gram matrices in float64, and for those summed from blocks of float32.
EXACT_RANK = 1e-10
BLOCK_RANK = 1e-6


class Moments(NamedTuple):
    """What is known of the valid rows, float64 but for `shift`.

    Attributes:
        shift: what the rows were read relative to, `[D]`, in their dtype.
        mean: `[D]`.
        count: n, scalar.
        gram: Xc^T Xc of the centred rows, `[D, D]`; zeros where it was not finite.
        rounding: `[D]`, share of a column's own sum of squares that may be rounding.
        finite: whether all valid rows were finite.
    """

    shift: tf.Tensor
    mean: tf.Tensor
    count: tf.Tensor
    gram: tf.Tensor
    rounding: tf.Tensor
    finite: tf.Tensor


def identity(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The `all_reduce` of a single replica."""
    return tensors


def sum_over_rows(
    function: Callable[..., tuple[tf.Tensor, ...]], *arrays: tf.Tensor | None
) -> tuple[tf.Tensor, ...]:
    """The sum of `function(exact, *rows)` over blocks of rows.

    Args:
        function: from a Python boolean (whether the rows are few enough for float64 products) and
            a block of each array to float64 tensors of fixed shapes.
        arrays: `[n, ..]`, the first a tensor; None among them stays None.
    """
    first: Any = arrays[0]

    def exact() -> tuple[tf.Tensor, ...]:
        return tuple(function(True, *arrays))

    def block(i: Any) -> tuple[tf.Tensor, ...]:
        return function(False, *(None if a is None else a[i : i + BLOCK] for a in arrays))

    def in_blocks() -> tuple[tf.Tensor, ...]:
        start = (tf.constant(BLOCK), *block(0))
        _, *sums = tf.while_loop(
            lambda i, *_: i < tf.shape(first)[0],
            lambda i, *sums: (i + BLOCK, *(a + b for a, b in zip(sums, block(i), strict=True))),
            start,
        )
        return tuple(sums)

    if first.shape[0] is not None:
        return exact() if first.shape[0] <= EXACT_ROWS else in_blocks()
    return tf.cond(tf.shape(first)[0] <= EXACT_ROWS, exact, in_blocks)


def moments_of(
    x: tf.Tensor, valid: tf.Tensor | None = None, all_reduce: AllReduce = identity
) -> Moments:
    """Moments of the valid rows of x.

    Args:
        x: `[n, D]`, float32 or float64.
        valid: `[n, 1]` booleans; None where every row is valid.
        all_reduce: sums tensors over replicas.
    """

    def number_of(x: tf.Tensor, valid: tf.Tensor | None) -> tf.Tensor:
        return (tf.shape(x)[:1] if valid is None else tf.math.count_nonzero(valid, axis=0))[0]

    def head(x: tf.Tensor, valid: tf.Tensor | None) -> tuple[tf.Tensor, ...]:
        columns = tf.transpose(masked(valid, x))
        room = headroom(columns)
        total = tf.cast(tf.reduce_sum(columns * room, 1), tf.float64)
        return tf.cast(number_of(x, valid), tf.float64), total / tf.cast(room[:, 0], tf.float64)

    count, total = all_reduce(*head(x[:BLOCK], None if valid is None else valid[:BLOCK]))
    shift = tf.cast(tf.math.divide_no_nan(total, count), x.dtype)

    def part(exact: bool, x: tf.Tensor, valid: tf.Tensor | None) -> tuple[tf.Tensor, ...]:
        near = masked(valid, x - shift)
        near = tf.cast(near, tf.float64) if exact else near
        sums = number_of(x, valid), column_sums(near), tf.matmul(near, near, transpose_a=True)
        return tuple(tf.cast(s, tf.float64) for s in sums)

    count, total, gram = all_reduce(*sum_over_rows(part, x, valid))
    offset = total / tf.maximum(count, 1.0)
    gram -= count * offset[:, None] * offset
    finite, gram = guarded(gram)
    mean = tf.cast(shift, tf.float64) + offset
    tolerance = tf.constant(EXACT_RANK, tf.float64)
    if x.dtype != tf.float64:
        tolerance = tf.where(count <= EXACT_ROWS, tolerance, BLOCK_RANK)
    rounding = tf.maximum(column_rounding(gram, count, mean, x.dtype), tolerance)
    return Moments(shift, mean, count, gram, rounding, finite)


def column_rounding(
    gram: tf.Tensor, count: tf.Tensor, mean: tf.Tensor, dtype: tf.DType = tf.float64
) -> tf.Tensor:
    """Share of each column's sum of squares that the rounding of its entries explains, `[D]`.

    Entries of the size of the mean are off by half a unit in the last place of their dtype (two
    units are taken), and their mean by some units of float64 (64 are taken). A constant column has
    the share 1: it is nothing else.

    Args:
        gram: Xc^T Xc, `[D, D]`, float64.
        count: n, scalar float64.
        mean: mean of the rows, `[D]`, float64.
        dtype: of the rows.
    """
    unit = np.finfo(tf.as_dtype(dtype).as_numpy_dtype).eps
    noise = count * (max(2.0 * unit, 64.0 * np.finfo("float64").eps) * mean) ** 2
    own = tf.linalg.diag_part(gram)
    share = tf.math.divide_no_nan(noise, own)
    return tf.where(own > noise, share, tf.ones_like(share))


def sizes_of_columns(
    gram: tf.Tensor, count: tf.Tensor, mean: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """The root mean square of each column as a power of two that `dtype` holds, float64 `[D]`.

    Args:
        gram: Xc^T Xc, `[D, D]`, float64.
        count: n, scalar float64, or one for each column.
        mean: mean of the rows, `[D]`, float64.
        dtype: float32 or float64.
    """
    square = tf.linalg.diag_part(gram) / tf.maximum(count, 1.0) + mean**2
    exponent = tf.round(0.5 * tf.math.log(square) / math.log(2.0))
    known = tf.math.is_finite(exponent)  # not for zeros, NaN and infinity
    most = 126.0 if dtype == tf.float32 else 1000.0
    exponent = tf.where(known, tf.clip_by_value(exponent, -most, most), tf.zeros_like(exponent))
    return tf.pow(tf.cast(2.0, tf.float64), exponent)


class Gram(NamedTuple):
    """What `correlations` needs of a sample.

    Attributes:
        gram: Xc^T Xc of the centred rows, `[D, D]`, float64; NaN where a row was not finite.
        count: n, scalar float64.
        rounding: as in `Moments`.
    """

    gram: tf.Tensor
    count: tf.Tensor
    rounding: tf.Tensor


def gram_of(x: tf.Tensor, valid: tf.Tensor | None = None, all_reduce: AllReduce = identity) -> Gram:
    """Gram matrix of the centred valid rows of x, their number, and what of it is rounding.

    Args:
        x: `[n, D]`, float32 or float64.
        valid: `[n, 1]` booleans; None where every row is valid.
        all_reduce: sums tensors over replicas.
    """
    moments = moments_of(x, valid, all_reduce)
    return Gram(spoiled(moments.finite, moments.gram), moments.count, moments.rounding)


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """The sums of the columns of x, as a product (faster than a reduction)."""
    return tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0]


def row_times(vector: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """v^T M, `[D]`."""
    return tf.linalg.matvec(matrix, vector, transpose_a=True)


def affine(rows: tf.Tensor, matrix: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
    """rows M + constant, in the dtype of the rows."""
    product = tf.matmul(rows, tf.cast(matrix, rows.dtype))
    return tf.nn.bias_add(product, tf.cast(constant, rows.dtype))


def masked(valid: tf.Tensor | None, rows: tf.Tensor) -> tf.Tensor:
    """The rows, zeros where they are not valid."""
    return kept(valid, rows, tf.zeros_like(rows))


def kept(valid: tf.Tensor | None, changed: tf.Tensor, original: tf.Tensor) -> tf.Tensor:
    """The changed rows, the original ones where they are not valid."""
    return changed if valid is None else tf.where(valid, changed, original)
