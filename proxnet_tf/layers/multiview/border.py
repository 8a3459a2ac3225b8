"""Views as a Keras layer receives them, and side by side as the mathematics wants them."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_integer


def check_split(split: Sequence[int] | None, min_views: int = 2) -> tuple[int, ...] | None:
    """`split` as a tuple of widths >= 1, or a `ValueError`."""
    if split is None:
        return None
    if not isinstance(split, Sequence) or isinstance(split, str) or len(split) < min_views:
        raise ValueError(
            f"`split` must be a tuple with the widths of the views, such as (10, 12). "
            f"Received: split={split!r}"
        )
    return tuple(check_integer("split", size) for size in split)


def is_list(inputs: Any) -> bool:
    """Whether the views came as a list or tuple rather than side by side in one tensor."""
    return isinstance(inputs, list | tuple)


def standardize(inputs: Any) -> Any:
    """A list of tensors or arrays as it is, anything else (nested numbers too) as one tensor."""
    if is_list(inputs) and any(hasattr(x, "shape") for x in inputs):
        return inputs
    return inputs if hasattr(inputs, "shape") else tf.convert_to_tensor(inputs)


def shape_of(inputs: Any) -> Any:
    """Static shape of one tensor, or the list of those of the views."""
    return [tuple(x.shape) for x in inputs] if is_list(inputs) else tuple(inputs.shape)


def _is_list_of_shapes(shape):
    return bool(shape) and isinstance(shape[0], list | tuple)


def view_sizes(
    shape: Any, split: tuple[int, ...] | None, *, max_views: int | None, name: str
) -> tuple[int, ...]:
    """Widths of the views from the shape (or list of shapes) of an input.

    Args:
        shape: `(batch, d)` or `(batch, time, d)` of one tensor, or a list of such shapes.
        split: widths of the views in one tensor; halves by default.
        max_views: 2 for CCA, None for any number.
        name: name of the layer, for messages.

    Raises:
        ValueError: not the number of views, ranks or lengths that differ, widths unknown or not
            adding up.
    """
    wanted = "two views" if max_views == 2 else "two or more views"
    how = (
        f"{name} takes {wanted}: a list of tensors (batch, d_j) or (batch, time, d_j), or one "
        "tensor with the views side by side in its last axis"
    )
    if isinstance(shape, dict):
        raise ValueError(f"{how}. Received a dict with the keys {sorted(shape)}: pass a list.")
    if _is_list_of_shapes(shape):
        shapes = [tuple(s) for s in shape]
        if len(shapes) < 2 or (max_views and len(shapes) > max_views):
            raise ValueError(f"{how}. Received {len(shapes)} of the shapes {shapes}.")
        if len({len(s) for s in shapes}) > 1 or len(shapes[0]) not in (2, 3):
            raise ValueError(f"{how}, all of the rank 2 or all of 3. Received: {shapes}.")
        for axis, what in ((0, "batch size"), (1, "number of time steps")):
            known = {s[axis] for s in shapes if axis < len(s) - 1 and s[axis] is not None}
            if len(known) > 1:
                raise ValueError(f"{how}, with the same {what}. Received the shapes {shapes}.")
        sizes = tuple(s[-1] for s in shapes)
        if None in sizes:
            raise ValueError(
                f"{how}, of known widths (pad ragged views and pass a mask). Received the shapes "
                f"{shapes}."
            )
        if split is not None and split != sizes:
            raise ValueError(f"`split`={split} does not match views of the widths {sizes}.")
        return sizes
    shape = tuple(shape)
    if len(shape) not in (2, 3) or shape[-1] is None:
        raise ValueError(
            f"{how}, of a known width (pad ragged views and pass a mask). Received one of the "
            f"shape {shape}."
        )
    width = shape[-1]
    if split is None:
        if width % 2 or not width:
            raise ValueError(
                f"{how}. Received one tensor of the width {width}, which has no halves: give "
                "`split=(d1, d2)`."
            )
        return (width // 2, width // 2)
    if sum(split) != width or (max_views and len(split) > max_views):
        raise ValueError(
            f"`split` must name the widths of {wanted} that add up to the width {width} of the "
            f"input. Received: split={split}"
        )
    return split


def cca_components(num_components: int | None, sizes: tuple[int, ...]) -> int:
    """k for two views of the widths `sizes`: min(d1, d2) for None; a `ValueError` above that."""
    if num_components is None:
        return min(sizes)
    if num_components > min(sizes):
        raise ValueError(
            f"`num_components` must be at most min(d1, d2) = {min(sizes)} for views of the "
            f"widths {sizes}. Received: num_components={num_components}"
        )
    return num_components


def gcca_components(num_components: Any, sizes: tuple[int, ...]) -> int:
    """k for views of the widths `sizes`; a `ValueError` above their sum."""
    if num_components > sum(sizes):
        raise ValueError(
            f"`num_components` must be at most d_1 + .. + d_J = {sum(sizes)} for views of the "
            f"widths {sizes}. Received: num_components={num_components}"
        )
    return num_components


def check_dtypes(inputs: Any, name: str) -> None:
    """Refuses ragged, sparse and integer views with a `ValueError`."""
    for x in inputs if is_list(inputs) else [inputs]:
        for kind, cls in (("ragged", tf.RaggedTensor), ("sparse", tf.SparseTensor)):
            if isinstance(x, cls) or getattr(x, kind, False) is True:  # Keras marks symbolic ones
                raise ValueError(
                    f"{name} needs dense views; pad them and pass a mask. Received a {kind} tensor"
                )
        dtype = getattr(x, "dtype", None)
        if dtype is not None and "float" not in keras.backend.standardize_dtype(dtype):
            raise ValueError(
                f"{name} needs views of a floating-point dtype; cast them first. Received: "
                f"{keras.backend.standardize_dtype(dtype)}"
            )


def join(inputs: Any, dtype: tf.DType) -> tf.Tensor:
    """Views side by side as rows, `[n, D]`, in `dtype`; time steps become rows."""
    parts = [tf.cast(x, dtype) for x in (inputs if is_list(inputs) else [inputs])]
    x = tf.concat(parts, axis=-1) if len(parts) > 1 else parts[0]
    return tf.reshape(x, [-1, x.shape[-1]])


def separate(rows: tf.Tensor, inputs: Any, sizes: tuple[int, ...], dtype: str) -> Any:
    """Undoes `join`: rows `[n, D]` in the structure, the shapes and the given dtype."""
    first = inputs[0] if is_list(inputs) else inputs
    x = tf.reshape(rows, tf.concat([tf.shape(first)[:-1], [sum(sizes)]], 0))
    x = tf.cast(tf.ensure_shape(x, (*first.shape[:-1], sum(sizes))), dtype)
    return type(inputs)(tf.split(x, sizes, axis=-1)) if is_list(inputs) else x


def valid_rows(inputs: Any, mask: Any, nan_is_missing: bool) -> tf.Tensor | None:
    """Rows in which no view is missing, `[n, 1]` booleans; None where every row is one.

    Args:
        inputs: the views.
        mask: one mask for all views, or a list with one or None for each; `(batch,)` for views
            `(batch, d_j)`, `(batch, time)` for `(batch, time, d_j)`.
        nan_is_missing: whether a view is also missing in a row in which it has a NaN.

    Raises:
        ValueError: masks of another rank, or another number of masks than one or the views'.
    """
    parts = list(inputs) if is_list(inputs) else [inputs]
    masks = list(mask) if is_list(mask) else [mask]
    masks = [None if m is None else tf.convert_to_tensor(m) for m in masks]
    rank = len(parts[0].shape) - 1
    ranks = [len(m.shape) for m in masks if m is not None]
    if len(masks) not in (1, len(parts)) or any(r != rank for r in ranks):
        raise ValueError(
            f"The mask must be one tensor of the shape {('(batch,)', '(batch, time)')[rank - 1]}, "
            f"or a list with one (or None) for each of the {len(parts)} inputs. Received "
            f"{len(masks)} of the ranks {ranks}."
        )
    present = [tf.cast(m, tf.bool) for m in masks if m is not None]
    if nan_is_missing:
        present += [~tf.reduce_any(tf.math.is_nan(x), axis=-1) for x in parts]
    if not present:
        return None
    return tf.reshape(functools.reduce(tf.logical_and, present), [-1, 1])
