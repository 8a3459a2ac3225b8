"""Labelled and unlabelled examples in the same batches, for `fit` of any Keras model."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from proxnet_tf.checks import check_bool, check_integer


def with_unlabelled(
    labelled: Any,
    unlabelled: Any,
    *,
    batch_size: int | None = None,
    unlabelled_batch_size: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Batches of labelled and unlabelled rows for `fit`; the unlabelled ones weigh 0.

    A batch has m labelled rows first and u unlabelled rows after them. With a loss l that
    `fit` averages over the rows of a batch with sample weights w,

        1/(m + u) sum_i w_i l_i,   w_i = (m + u)/m for labelled rows and 0 for the others,

    the classification loss is the mean over the labelled rows alone, as without the others. What
    does not look at sample weights sees all rows: `CCARegularizer`, `ProxCCA`, the correlation of
    `MultiviewClassifier`, batch normalisation. This works in every Keras model.

    An epoch is a pass through the longer of the two (in batches); the shorter one starts again as
    often as needed. So each row comes at least once in an epoch. Arrays fill up the last batch with
    rows of their next pass, so that every batch has the same size.

    Args:
        labelled: `(x, y)` or `(x, y, sample_weight)` of arrays, as for `fit`: x a list of views, or
            whatever structure the model takes; the weights one array, or one an output. Or
            a `tf.data.Dataset` of such batches, of a known length.
        unlabelled: x alone, arrays in the structure of the labelled x. Or a `tf.data.Dataset` of
            batches of x, of a known length.
        batch_size: m for arrays, at most all of them; 32 by default. Datasets have their batches.
        unlabelled_batch_size: u for arrays; `batch_size` by default, or 32.
        shuffle: whether arrays are shuffled anew in every pass; True by default.
        seed: of the shuffling, integer >= 0; each set is shuffled by draws of its own.

    Returns:
        A `tf.data.Dataset` of batches `(x, y, sample_weight)`, lists in x as tuples. Labels of
        unlabelled rows are zeros.

    The weights are sample weights: take `weighted_metrics=["accuracy"]` in `compile` for metrics of
    the labelled rows (`metrics` count the zeros). Weight classes by the `sample_weight` of
    `labelled`; Keras refuses `class_weight` beside it. Validation data are passed to `fit` as
    usual, and `shuffle=False`, as with every dataset (Keras warns otherwise).

    Raises:
        ValueError: x of the two sets that differ in structure, shape or dtype, arrays of different
            lengths or none, batch sizes that are not integers >= 1 or that come with a dataset, a
            dataset whose length is not known or that has no end.

    Example:

    >>> views = [np.zeros((7, 3), "float32"), np.zeros((7, 2), "float32")]
    >>> known = ([x[:4] for x in views], np.arange(4))
    >>> data = with_unlabelled(known, views, batch_size=2, unlabelled_batch_size=3, shuffle=False)
    >>> (x, y), labels, weights = next(iter(data))
    >>> x.shape, labels.numpy(), weights.numpy()
    (TensorShape([5, 3]), array([0, 1, 0, 0, 0]), array([2.5, 2.5, 0. , 0. , 0. ], dtype=float32))
    >>> len(data)  # three batches of three unlabelled rows
    3
    """
    check_bool("shuffle", shuffle)
    seeds: Any = (None, None)
    if seed is not None:
        seeds = np.random.SeedSequence(check_integer("seed", seed, at_least=0)).generate_state(2)
    known, steps = _batches("labelled", labelled, "batch_size", batch_size, shuffle, seeds[0])
    spec = known.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise ValueError(
            "`labelled` must be (x, y) or (x, y, sample_weight). Received: " + _described(spec)
        )
    size = unlabelled_batch_size
    if size is None and not isinstance(unlabelled, tf.data.Dataset):
        size = batch_size
    others, other_steps = _batches(
        "unlabelled", unlabelled, "unlabelled_batch_size", size, shuffle, seeds[1]
    )
    if not _alike(spec[0], others.element_spec):
        raise ValueError(
            "`unlabelled` must hold the x of `labelled`: the same structure, shapes beyond the "
            f"batch and dtypes. Received: {_described(spec[0])} and "
            f"{_described(others.element_spec)}"
        )
    both = tf.data.Dataset.zip(known.repeat(), others.repeat()).take(max(steps, other_steps))
    joined = both.map(_joined, num_parallel_calls=tf.data.AUTOTUNE)
    return joined.prefetch(tf.data.AUTOTUNE)


def _batches(
    name: str, data: Any, size_name: str, size: int | None, shuffle: bool, seed: int | None
) -> tuple[tf.data.Dataset, int]:
    """A dataset of batches, endless for arrays, and how many of them are one pass."""
    if isinstance(data, tf.data.Dataset):
        if size is not None:
            raise ValueError(
                f"`{size_name}` is for arrays; `{name}` is a dataset, which has its batches. "
                f"Received: {size_name}={size!r}"
            )
        steps = int(data.cardinality())
        if steps <= 0:
            kinds = {0: "an empty", tf.data.INFINITE_CARDINALITY: "an endless"}
            raise ValueError(
                f"`{name}` must have a known number of batches. Received "
                f"{kinds.get(steps, 'an unknown number of them in a')} dataset; say how many with "
                "`tf.data.experimental.assert_cardinality`, or end it with `take`."
            )
        return data, steps
    size = check_integer(size_name, 32 if size is None else size)
    if isinstance(data, tuple) and data and data[-1] is None:
        data = data[:-1]  # (x, y, None): without weights
    if not hasattr(data, "shape") and not isinstance(data, list | tuple | dict):
        raise ValueError(
            f"`{name}` must be arrays in a structure, or a `tf.data.Dataset` of batches. Received: "
            f"{type(data).__name__}"
        )
    arrays = _as_tuples(data)
    parts = tf.nest.flatten(arrays)
    if any(part.dtype == object or not part.shape for part in parts):
        found = ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in parts)
        raise ValueError(f"`{name}` must hold arrays with rows. Received: {found}")
    lengths = {len(part) for part in tf.nest.flatten(arrays)}
    if len(lengths) != 1 or not min(lengths):
        raise ValueError(
            f"The arrays in `{name}` must have one number of rows, at least 1. Received the "
            f"numbers {sorted(lengths)}"
        )
    (rows,) = lengths
    size = min(int(size), rows)
    slices = tf.data.Dataset.from_tensor_slices(arrays)
    if shuffle:
        slices = slices.shuffle(rows, seed=seed)
    return slices.repeat().batch(size, drop_remainder=True), math.ceil(rows / size)


def _as_tuples(data: Any) -> Any:
    """The structure with tuples for lists, which tf.data takes for tensors, and arrays in it."""
    if isinstance(data, dict):
        return {key: _as_tuples(part) for key, part in data.items()}
    holds_arrays = any(len(getattr(part, "shape", ())) for part in tf.nest.flatten(data))
    if isinstance(data, list | tuple) and holds_arrays:
        return tuple(_as_tuples(part) for part in data)
    return data if tf.is_tensor(data) else np.asarray(data)


def _alike(one: Any, other: Any) -> bool:
    """Whether x of two sets can be in one batch."""
    try:
        tf.nest.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return all(
        a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:])
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    )


def _described(spec: Any) -> str:
    return str(tf.nest.map_structure(lambda s: f"{s.dtype.name}{(None, *s.shape[1:])}", spec))


def _joined(known: Any, others: Any) -> tuple[Any, Any, Any]:
    """One batch (x, y, sample_weight) of a labelled and an unlabelled one."""
    x, y, *given = known
    m, u = (tf.shape(tf.nest.flatten(part)[0])[0] for part in (x, others))
    # For labels with more axes, such as time steps, (m, 1) fits every loss.
    deep = any(len(part.shape) > 1 for part in tf.nest.flatten(y))
    weights = given[0] if given else tf.ones([m, 1] if deep else [m])
    share = tf.cast(m + u, tf.float32) / tf.cast(m, tf.float32)

    def padded(part: tf.Tensor) -> tf.Tensor:
        return tf.pad(part, [[0, u]] + [[0, 0]] * (len(part.shape) - 1))

    both = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), x, others)
    weights = tf.nest.map_structure(lambda w: padded(tf.cast(w, tf.float32) * share), weights)
    return both, tf.nest.map_structure(padded, y), weights
