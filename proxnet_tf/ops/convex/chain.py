"""Recurrences along the rows of a matrix, all blocks of a row at once.

A row of length n is folded into blocks of at most 16 neighbours: entry i of a row becomes
[i mod 16, i div 16] of an array (16, blocks, rows). Sixteen steps on arrays (blocks, rows) work
through all blocks at once, a scan by doubling joins the blocks, and one pass over the whole array
brings to every block what comes from its left. The work is O(n), in a few large operations.
Padding that fills up the last block stands at the end of a row.
"""

from collections.abc import Callable

import tensorflow as tf

Linear = Callable[[tf.Tensor], tf.Tensor]
State = tuple[tf.Tensor, ...]

_LONGEST_BLOCK = 16


def as_rows(x: tf.Tensor) -> tf.Tensor:
    """`x` as a matrix: all axes but the last in one."""
    shape = tf.shape(x)
    length = shape[-1] if x.shape[-1] is None else x.shape[-1]
    return tf.reshape(x, [tf.reduce_prod(shape[:-1]), length])


def fold(v: tf.Tensor, fill: float | bool = 0.0) -> tf.Tensor:
    """The matrix (rows, n) in blocks, (block, blocks, rows); filled up with `fill`."""
    n = v.shape[1]
    block = min(max(n or _LONGEST_BLOCK, 1), _LONGEST_BLOCK)
    rows = tf.shape(v)[0]
    if n is None:
        n = tf.shape(v)[1]
        blocks = tf.maximum((n + block - 1) // block, 1)
    else:
        blocks = max((n + block - 1) // block, 1)
    padded = tf.concat([v, _full([rows, blocks * block - n], fill, v.dtype)], axis=1)
    return tf.transpose(tf.reshape(padded, [rows, blocks, block]), [2, 1, 0])


def _full(shape: list[int | tf.Tensor], fill: float | bool, dtype: tf.DType) -> tf.Tensor:
    """A tensor full of `fill`, for padding: `tf.vectorized_map` drops the constant of `tf.pad`."""
    return tf.fill(shape, tf.cast(fill, dtype))


def unfold(v: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The inverse of `fold`, to the shape of the matrix `like`."""
    block, blocks, rows = v.shape[0], tf.shape(v)[1], tf.shape(v)[2]
    flat = tf.reshape(tf.transpose(v, [2, 1, 0]), [rows, block * blocks])
    return tf.ensure_shape(flat[:, : tf.shape(like)[1]], like.shape)


def earlier(v: tf.Tensor, fill: float | bool) -> tf.Tensor:
    """The left neighbour of every entry, `fill` for the first of a row."""
    return tf.concat([_moved(v[-1], 1, fill)[tf.newaxis], v[:-1]], axis=0)


def later(v: tf.Tensor, fill: float | bool) -> tf.Tensor:
    """The right neighbour of every entry, `fill` for the last of a row."""
    last = tf.concat([v[0, 1:], _full([1, tf.shape(v)[2]], fill, v.dtype)], axis=0)
    return tf.concat([v[1:], last[tf.newaxis]], axis=0)


def _moved(v: tf.Tensor, shift: int | tf.Tensor, fill: float | bool) -> tf.Tensor:
    """v[i - shift] along the first axis, `fill` where that is before the start."""
    kept = v[: tf.shape(v)[0] - shift] if v.shape[0] is None else v[: v.shape[0] - shift]
    return tf.concat([_full([shift, tf.shape(v)[1]], fill, v.dtype), kept], axis=0)


def _joined(
    combine: Callable[[State, State], State], state: State, identity: tuple[float | bool, ...]
) -> State:
    """What stands before each block: the scan of an associative `combine(earlier, later)`.

    Args:
        combine: joins the states of neighbouring stretches.
        state: of every block, tensors (blocks, rows).
        identity: the state of an empty stretch.
    """

    def step(shift: int | tf.Tensor, state: State) -> State:
        moved = tuple(_moved(v, shift, i) for v, i in zip(state, identity, strict=True))
        return combine(moved, state)

    size, shift = state[0].shape[0], 1
    if size is None:
        state = tf.while_loop(
            lambda shift, *_: shift < tf.shape(state[0])[0],
            lambda shift, *state: (2 * shift, *step(shift, state)),
            (tf.constant(1), *state),
        )[1:]
    while size is not None and shift < size:
        state, shift = step(shift, state), 2 * shift
    return tuple(_moved(v, 1, i) for v, i in zip(state, identity, strict=True))


def clipped_sum(u: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """m_i = clip(m_{i-1} + u_i, -bound_i, bound_i) from m = 0 on the left."""

    def clip(v: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
        return tf.maximum(tf.minimum(v, high), low)

    def combine(one: State, two: State) -> State:
        (a1, low1, high1), (a2, low2, high2) = one, two
        return a1 + a2, clip(low1 + a2, low2, high2), clip(high1 + a2, low2, high2)

    limit = u.dtype.max
    entries = list(zip(tf.unstack(u), tf.unstack(-bound), tf.unstack(bound), strict=True))
    # The map of a block is m -> clip(m + total, low, high).
    block = entries[0]
    for entry in entries[1:]:
        block = combine(block, entry)
    total, low, high = _joined(combine, block, (0.0, -limit, limit))
    m = clip(total, low, high)
    out = []
    for a, low, high in entries:
        m = clip(m + a, low, high)
        out.append(m)
    return tf.stack(out)


class Marks:
    """Marked entries, in the layout of `fold`, and the values that they pass on.

    Args:
        marked: booleans. The first entry of a row must be marked, or with `backwards` the last
            one of the blocks.
        backwards: whether they pass values to their left instead of their right.
    """

    def __init__(self, marked: tf.Tensor, backwards: bool = False):
        self._backwards = backwards
        self._marked = self._in_order(marked)
        seen = self._marked[:1]
        for here in self._marked[1:]:
            seen.append(seen[-1] | here)
        self._seen = seen

    def carried(self, v: tf.Tensor) -> tf.Tensor:
        """For every entry the value of the last marked one up to it."""
        return self._scanned(v, lambda before, here: before, False if v.dtype.is_bool else 0)

    def summed(self, v: tf.Tensor) -> tf.Tensor:
        """For every entry the sum from the last marked one up to it."""
        return self._scanned(v, tf.add, 0)

    def _scanned(
        self, v: tf.Tensor, join: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], zero: int | bool
    ) -> tf.Tensor:
        values = self._in_order(v)
        out = values[:1]
        for marked, here in zip(self._marked[1:], values[1:], strict=True):
            out.append(tf.where(marked, here, join(out[-1], here)))

        def combine(one: State, two: State) -> State:
            (seen1, before), (seen2, here) = one, two
            return seen1 | seen2, tf.where(seen2, here, join(before, here))

        last = (self._seen[-1], out[-1])
        if self._backwards:
            last = tuple(tf.reverse(part, [0]) for part in last)
        _, before = _joined(combine, last, (False, zero))
        if self._backwards:
            before, out = tf.reverse(before, [0]), out[::-1]
        seen = tf.stack(self._seen[::-1] if self._backwards else self._seen)
        out = tf.stack(out)
        return tf.where(seen, out, join(before, out))

    def _in_order(self, v: tf.Tensor) -> list[tf.Tensor]:
        entries = tf.unstack(v)
        return entries[::-1] if self._backwards else entries


class Pieces:
    """The pieces of every row, which begin where `cut` is True, in the layout of `fold`.

    Args:
        cut: booleans, True for the first entry of a row and for the padding of a row.
    """

    def __init__(self, cut: tf.Tensor):
        self._begin, self._end = Marks(cut), Marks(later(cut, True), backwards=True)
        block, blocks = cut.shape[0], tf.shape(cut)[1]
        position = tf.range(block)[:, tf.newaxis] + block * tf.range(blocks)[tf.newaxis]
        position = tf.broadcast_to(position[..., tf.newaxis], tf.shape(cut))
        # The size of the piece at its last entry.
        self._size = tf.cast(position - self._begin.carried(position) + 1, tf.float64)

    def mean(self, v: tf.Tensor) -> tf.Tensor:
        """For every entry the mean of `v` over its piece; summed in float64."""

        @tf.custom_gradient
        def averaged(v: tf.Tensor) -> tuple[tf.Tensor, Linear]:
            mean = self._begin.summed(tf.cast(v, tf.float64)) / self._size
            return self._end.carried(tf.cast(mean, v.dtype)), self.mean  # a symmetric matrix

        return averaged(v)
