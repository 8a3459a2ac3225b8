"""What the D x D problem needs of the rows: their number, mean and Gram matrix.

Up to `EXACT_ROWS` rows, products of rows are in float64. Beyond, the rows are read in blocks that
stay in the cache; products of float32 rows are in float32 there and the blocks are summed in
float64. Either way an entry (i, j) of a Gram matrix is off by a share of the sizes of the columns
i and j alone, so that a column loses nothing to a neighbour in larger units.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.number import guarded, nan_unless

AllReduce = Callable[..., tuple[tf.Tensor, ...]]

EXACT_ROWS = 4096
BLOCK = 2048
# From this width on, three products are faster than one with a third more work.
WIDE = 256
# With columns of unit variance, a direction of less variance than this is rounding: for Gram
# matrices in float64, and for those summed from blocks of float32.
EXACT_RANK = 1e-10
BLOCK_RANK = 1e-6


class Sample(NamedTuple):
    """Count, mean and Gram matrix of the valid rows, float64.

    Attributes:
        count: n, scalar.
        mean: m, `[D]`.
        gram: C = Xc^T Xc of the centred rows, `[D, D]`; NaN where a row was not finite.
        rounding: `[D]`, share of a column's own sum of squares that may be rounding: at least
            1e-10 (1e-6 for more than 4096 float32 rows), and one for a constant column.
    """

    count: tf.Tensor
    mean: tf.Tensor
    gram: tf.Tensor
    rounding: tf.Tensor


def identity(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The `all_reduce` of a single replica."""
    return tensors


def gram_of(
    x: tf.Tensor, valid: tf.Tensor | None = None, all_reduce: AllReduce = identity
) -> Sample:
    """The `Sample` of the valid rows of x; `mean` and `gram` carry gradients.

    Gradients G with respect to C and g with respect to m give (X - m)(G + G^T) + g / n for X. Over
    replicas every replica holds the sample of the global batch, and its rows get the gradient of
    the sum of all replicas' losses.

    Args:
        x: `[n, D]`, float32 or float64.
        valid: `[n, 1]` booleans; None where every row is valid.
        all_reduce: sums tensors over replicas; n, sums of rows and D x D matrices pass through it.
    """

    @tf.custom_gradient
    def reduced(x: tf.Tensor) -> tuple[Any, Any]:
        count, mean, gram = _moments(tf.stop_gradient(x), valid, all_reduce)

        def backward(_: tf.Tensor, y_mean: tf.Tensor, y_gram: tf.Tensor) -> tf.Tensor:
            y_mean, y_gram = all_reduce(y_mean, y_gram)
            slope = tf.cast(y_gram + tf.transpose(y_gram), x.dtype)
            constant = tf.cast(y_mean / tf.maximum(count, 1.0), x.dtype)
            near = masked(valid, x - tf.cast(mean, x.dtype))
            return masked(valid, tf.nn.bias_add(tf.matmul(near, slope), constant))

        return (count, mean, gram), backward

    count, mean, gram = reduced(x)
    share = tf.constant(EXACT_RANK, tf.float64)
    if x.dtype != tf.float64:
        share = tf.where(count <= EXACT_ROWS, share, BLOCK_RANK)
    rounding = column_rounding(
        tf.stop_gradient(count), tf.stop_gradient(mean), tf.stop_gradient(gram), x.dtype
    )
    return Sample(count, mean, gram, tf.maximum(rounding, share))


def _moments(
    x: tf.Tensor, valid: tf.Tensor | None, all_reduce: AllReduce
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """n, m and C, float64."""
    size = x.shape[0] or tf.shape(x)[0]

    def number(valid: tf.Tensor | None, rows: tf.Tensor) -> tf.Tensor:
        return tf.cast(
            tf.shape(rows)[0] if valid is None else tf.math.count_nonzero(valid), tf.float64
        )

    # The rows are read relative to the mean of the first ones.
    first = x[:BLOCK], None if valid is None else valid[:BLOCK]
    total = tf.reduce_sum(masked(first[1], first[0]), 0)
    count, total = all_reduce(number(first[1], first[0]), tf.cast(total, tf.float64))
    shift = tf.cast(tf.math.divide_no_nan(total, count), x.dtype)

    def sums(rows: tf.Tensor, valid: tf.Tensor | None, dtype: tf.DType) -> tuple[tf.Tensor, ...]:
        near = masked(valid, rows - shift)
        total = tf.matmul(tf.ones_like(near[:, :1]), near, transpose_a=True)[0]
        parts = number(valid, rows), total, _product(tf.cast(near, dtype))
        return tuple(tf.cast(part, tf.float64) for part in parts)

    def block(i: Any) -> tuple[tf.Tensor, ...]:
        part = None if valid is None else valid[i : i + BLOCK]
        return sums(x[i : i + BLOCK], part, x.dtype)

    def in_blocks() -> tuple[tf.Tensor, ...]:
        def add(i: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return i + BLOCK, *(a + b for a, b in zip(sums, block(i), strict=True))

        return tuple(tf.while_loop(lambda i, *_: i < size, add, (BLOCK, *block(0)))[1:])

    def in_one() -> tuple[tf.Tensor, ...]:
        return sums(x, valid, tf.float64)

    if x.shape[0] is None:
        found = tf.cond(size <= EXACT_ROWS, in_one, in_blocks)
    else:
        found = in_one() if size <= EXACT_ROWS else in_blocks()
    count, total, gram = all_reduce(*found)
    offset = total / tf.maximum(count, 1.0)
    finite, gram = guarded(gram - count * offset[:, None] * offset)
    return count, tf.cast(shift, tf.float64) + offset, nan_unless(finite, gram)


def _product(x: tf.Tensor) -> tf.Tensor:
    """x^T x; of wide x three of its four blocks, since it is symmetric."""
    if x.shape[1] < WIDE:
        return tf.matmul(x, x, transpose_a=True)
    a, b = tf.split(x, [x.shape[1] // 2, -1], axis=1)
    aa, ab, bb = (tf.matmul(p, q, transpose_a=True) for p, q in ((a, a), (a, b), (b, b)))
    return tf.concat([tf.concat([aa, ab], 1), tf.concat([tf.transpose(ab), bb], 1)], 0)


def column_rounding(
    count: tf.Tensor, mean: tf.Tensor, gram: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """Share of each column's sum of squares that the rounding of its entries explains, `[D]`.

    Rows near their mean m are off by half a unit in the last place of their dtype (two units are
    taken), and m by some units of float64 (64 are taken). A constant column has the share 1.

    Args:
        count, mean, gram: as in `Sample`.
        dtype: of the rows.
    """
    unit = np.finfo(tf.as_dtype(dtype).as_numpy_dtype).eps
    noise = count * (max(2.0 * unit, 64.0 * np.finfo("float64").eps) * mean) ** 2
    own = tf.linalg.diag_part(gram)
    share = tf.math.divide_no_nan(noise, own)
    return tf.where(own > noise, share, tf.ones_like(share))


def masked(valid: tf.Tensor | None, rows: tf.Tensor) -> tf.Tensor:
    """The rows, zeros where they are not valid."""
    return rows if valid is None else tf.where(valid, rows, tf.zeros_like(rows))


def apply_step(
    rows: tf.Tensor, valid: tf.Tensor | None, mean: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """X + (X - m)(M - I) for the mean m and the step M - I, rows that are not valid unchanged."""
    near = masked(valid, rows - tf.cast(mean, rows.dtype))
    output = rows + tf.matmul(near, tf.cast(step, rows.dtype))
    return output if valid is None else tf.where(valid, output, rows)
