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

    the classification loss is the mean over the labelled rows alone, as without the others. All
    that ignores sample weights sees all rows: `CCARegularizer`, `ProxCCA`, the correlation of
    `MultiviewClassifier`, batch normalisation. This works in every Keras model.

    An epoch is a pass through the longer of the two (in batches); the shorter one starts again as
    often as needed. So each row comes at least once in an epoch. Arrays fill up the last batch with
    rows of their next pass, so that every batch has the same size. A `tf.data.Dataset` whose length
    is not known, such as one of `filter` or of a generator, is read to its end. One that repeats
    itself for ever has no epochs, and neither has the result: `fit` needs `steps_per_epoch`, and
    every epoch goes on where the last one stopped.

    Args:
        labelled: `(x, y)` or `(x, y, sample_weight)` of arrays, as for `fit`: x a list of views, or
            whatever structure the model takes; the weights one array, or one an output (None:
            ones). Or a `tf.data.Dataset` of such batches.
        unlabelled: x alone, arrays in the structure of the labelled x. Or a `tf.data.Dataset` of
            batches `x`, `(x,)` or `(x, y)`, whose y is dropped.
        batch_size: m for arrays, at most all of them; 32 by default. Datasets have their batches.
        unlabelled_batch_size: u for arrays; `batch_size` by default, or 32.
        shuffle: whether arrays are shuffled anew in every pass; True by default.
        seed: of the shuffling, integer >= 0; each set is shuffled by draws of its own.

    Returns:
        A `tf.data.Dataset` of batches `(x, y, sample_weight)`, lists in x as tuples. Labels of
        unlabelled rows are zeros. It has a length if both sets have one. If not,
        Keras says after the first epoch that the input ran out, as for every such dataset.

    The weights are sample weights: take `weighted_metrics=["accuracy"]` in `compile` for metrics of
    the labelled rows (`metrics` count the zeros). To weight classes, use the `sample_weight` of
    `labelled`; Keras refuses `class_weight` beside it. Pass validation data to `fit` as usual, and
    `shuffle=False`, as with every dataset (Keras warns otherwise).

    Raises:
        ValueError: x of the two sets that differ in structure, shape or dtype, arrays of different
            lengths or none, batch sizes that are not integers >= 1 or that come with a dataset.

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
    known, steps = _batches(
        "labelled", _weighted(labelled), "batch_size", batch_size, shuffle, seeds[0]
    )
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
    if isinstance(unlabelled, tf.data.Dataset):
        others = others.map(_inputs_only(others.element_spec, spec[0]))
    _check_alike(spec[0], others.element_spec)
    both = tf.data.Dataset.zip(_without_end(known, steps), _without_end(others, other_steps))
    both = both.take_while(lambda known, others: ~(known[1] & others[1]))
    if steps >= 0 and other_steps >= 0:
        both = both.apply(tf.data.experimental.assert_cardinality(max(steps, other_steps)))
    joined = both.map(
        lambda known, others: _joined(known[0], others[0]), num_parallel_calls=tf.data.AUTOTUNE
    )
    return joined.prefetch(tf.data.AUTOTUNE)


def _without_end(data: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Pairs: a batch, pass after pass, and whether the first pass was over before this batch.

    `steps` is the number of batches in a pass, or what tf.data has for an unknown or infinite one.
    """
    first, later = (tf.data.Dataset.from_tensors(over).repeat() for over in (False, True))
    if steps == tf.data.UNKNOWN_CARDINALITY:
        pairs = tf.data.Dataset.zip(data, first)
        return pairs.concatenate(tf.data.Dataset.zip(data.repeat(), later))
    return tf.data.Dataset.zip(data.repeat(), first.take(steps).concatenate(later))


def _weighted(labelled: Any) -> Any:
    """Arrays (x, y, sample_weight) with ones for an output whose weights are None."""
    if not isinstance(labelled, tuple) or len(labelled) != 3 or labelled[2] is None:
        return labelled
    x, y, weights = labelled
    if not any(part is None for part in tf.nest.flatten(weights)):
        return labelled
    rows = np.shape(tf.nest.flatten(y)[0])[:1]
    whole = tf.nest.map_structure(lambda w: np.ones(rows, "float32") if w is None else w, weights)
    return x, y, whole


def _batches(
    name: str, data: Any, size_name: str, size: int | None, shuffle: bool, seed: int | None
) -> tuple[tf.data.Dataset, int]:
    """A dataset of batches, endless for arrays, and the number of batches in one pass."""
    if isinstance(data, tf.data.Dataset):
        if size is not None:
            raise ValueError(
                f"`{size_name}` is for arrays; `{name}` is a dataset, which has its batches. "
                f"Received: {size_name}={size!r}"
            )
        steps = int(data.cardinality())
        if steps == 0:
            raise ValueError(f"`{name}` must have batches. Received an empty dataset")
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
    """The structure with arrays as leaves and tuples for lists, which tf.data takes for tensors."""
    if isinstance(data, dict):
        return {key: _as_tuples(part) for key, part in data.items()}
    holds_arrays = any(len(getattr(part, "shape", ())) for part in tf.nest.flatten(data))
    if isinstance(data, list | tuple) and holds_arrays:
        return tuple(_as_tuples(part) for part in data)
    return data if tf.is_tensor(data) else np.asarray(data)


def _inputs_only(spec: Any, wanted: Any) -> Any:
    """A function from an element of the unlabelled set to the x in it."""

    def alike(one: Any) -> bool:
        try:
            tf.nest.assert_same_structure(one, wanted)
        except (TypeError, ValueError):
            return False
        return True

    if not alike(spec) and isinstance(spec, tuple) and spec and alike(spec[0]):
        return lambda x, *_: x
    return (lambda *x: x) if isinstance(spec, tuple) else (lambda x: x)


def _check_alike(labelled: Any, unlabelled: Any) -> None:
    """Raises a `ValueError` if the x of the two sets cannot be in one batch."""
    flat = [tf.nest.flatten(spec) for spec in (labelled, unlabelled)]
    alike = len(flat[0]) == len(flat[1]) and all(
        a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:])
        for a, b in zip(*flat, strict=True)
    )
    try:
        tf.nest.assert_same_structure(labelled, unlabelled)
    except (TypeError, ValueError):
        alike = False
    if not alike:
        raise ValueError(
            "`unlabelled` must hold the x of `labelled`: the same structure, shapes beyond the "
            f"batch and dtypes. Received: {_described(labelled)} and {_described(unlabelled)}"
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
