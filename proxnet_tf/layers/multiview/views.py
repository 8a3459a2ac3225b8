"""Conversion of views, as a user passes them, to a matrix of rows and back."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from proxnet_tf.checks import at_least_float32, check_bool, check_integer, check_number
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.multiview.correlation import CCA, Correlation


class Views(NamedTuple):
    """Views as one matrix of rows.

    Attributes:
        rows: the views side by side, `[n, D]`; time steps are rows.
        valid: the rows that take part, in which no view is missing, `[n, 1]` booleans; None if
            all do.
        correlation: the type of correlation, with the widths of the views.
        parts: the tensors that the user passed.
        structure: the structure that they came in.
    """

    rows: tf.Tensor
    valid: tf.Tensor | None
    correlation: Correlation
    parts: list[Any]
    structure: Any

    @property
    def lead(self) -> tf.Tensor:
        """The sizes of the leading axes of the user's tensors, (batch,) or (batch, time)."""
        return tf.shape(self.parts[0])[:-1]

    def leave(self, rows: tf.Tensor, dtype: str) -> Any:
        """Rows `[n, D]` in the structure and the shapes of the user's views."""
        width = self.correlation.width
        # The known sizes as numbers: LiteRT does not translate `tf.ensure_shape`.
        known = self.parts[0].shape[:-1]
        lead = [n if n is not None else self.lead[axis] for axis, n in enumerate(known)]
        x = tf.cast(tf.reshape(rows, [*lead, width]), dtype)
        if len(self.parts) == 1:
            return x
        parts = tf.split(x, self.correlation.sizes, axis=-1)
        return keras.tree.pack_sequence_as(self.structure, parts)

    def weights(self, sample_weight: Any) -> tf.Tensor:
        """How often each row counts, `[n, 1]` float64: 0 where a view is missing.

        Args:
            sample_weight: a number, `(batch,)`, `(batch, 1)` or with time steps `(batch, time)`;
                None is 1. What is not a finite number >= 0 becomes NaN.
        """
        rank = len(self.parts[0].shape) - 1
        check_real("`sample_weight`", sample_weight)
        weight = tf.cast(1.0 if sample_weight is None else sample_weight, tf.float64)
        known = self.parts[0].shape[:-1]
        if len(weight.shape) == rank + 1 and weight.shape[-1] in (1, None):  # (batch, 1)
            weight = tf.squeeze(weight, -1)
        fits = zip(weight.shape, known, strict=False)
        if len(weight.shape) > rank or not all(w in (1, None, n) or n is None for w, n in fits):
            raise ValueError(
                f"`sample_weight` must have the shape of the rows, {tuple(known)}. Received: "
                f"{tuple(weight.shape)}"
            )
        while 0 < len(weight.shape) < rank:
            weight = weight[..., None]
        weight = tf.reshape(tf.broadcast_to(weight, self.lead), [-1, 1])
        usable = (weight >= 0) & tf.math.is_finite(weight)
        weight = tf.where(usable, weight, tf.cast(float("nan"), weight.dtype))
        return weight if self.valid is None else tf.where(self.valid, weight, tf.zeros_like(weight))


class Border:
    """Checks views and their masks, and converts them. Each layer, loss or metric owns one.

    Views come as the leaves of any structure of Keras (a list, a tuple, a named tuple, a dict in
    the order of its sorted keys), or side by side in one tensor.

    Args:
        owner: name of the layer, loss or metric, for messages.
        kind: `CCA` for exactly two views, `GCCA` for two or more.
        num_components: k >= 1. For `CCA` at most min(d1, d2), which None stands for; for `GCCA` at
            most the sum of the widths.
        epsilon: ridge >= 0 on each view's covariance.
        split: widths of the views that come side by side in one tensor; two halves by default.
        nan_is_missing: whether a view is also missing in a row in which it has a NaN.
        synchronized: whether the rows of all replicas of a `tf.distribute` strategy count
            together.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        owner: str,
        kind: type[Correlation],
        num_components: int | None,
        *,
        epsilon: float,
        split: Sequence[int] | None = None,
        nan_is_missing: bool = False,
        synchronized: bool = False,
    ):
        self.owner = owner
        self.kind = kind
        self._two = kind is CCA
        if not self._two or num_components is not None:
            num_components = check_integer("num_components", num_components)
        self.num_components = num_components
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.split = _check_split(split)
        self.nan_is_missing = check_bool("nan_is_missing", nan_is_missing)
        self.synchronized = check_bool("synchronized", synchronized)
        self._warned = False

    def get_config(self) -> dict[str, Any]:
        """The arguments that the owner's configuration holds."""
        return {
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
            "nan_is_missing": self.nan_is_missing,
            "synchronized": self.synchronized,
        }

    def correlation_of(self, shape: Any, built: Correlation | None = None) -> Correlation:
        """The type of correlation with the widths, from the shapes of the user's views.

        Args:
            shape: `(batch, d)` or `(batch, time, d)` of one tensor, or a structure of such shapes.
            built: what the owner was built for, if it takes no other widths.

        Raises:
            ValueError: not the number of views, ranks or lengths that differ, widths that are
                unknown, do not add up, allow no k components or are not those of `built`.
        """
        shapes: list[tuple[int | None, ...]] = []
        keras.tree.map_shape_structure(lambda s: shapes.append(tuple(s)), shape)
        sizes = self._sizes_of_parts(shapes) if _is_structure(shape) else self._halves(*shapes)
        if built is not None and sizes != built.sizes:
            raise ValueError(
                f"{self.owner} was built for views of the widths {built.sizes}. Received: {sizes}"
            )
        return self.kind(sizes, self._components(sizes))

    def check(self, inputs: Any, built: Correlation | None = None) -> Correlation:
        """The type of correlation with the widths, from the user's views, symbolic or not.

        Raises:
            ValueError: ragged or sparse views, a dtype that is not floating point, a leaf that is
                not a tensor, and as `correlation_of`.
        """
        for x in keras.tree.flatten(inputs):
            if not hasattr(x, "shape"):
                raise ValueError(f"{self._how}. Received the view {x!r}, which is not a tensor.")
            for kind, cls in (("ragged", tf.RaggedTensor), ("sparse", tf.SparseTensor)):
                if isinstance(x, cls) or getattr(x, kind, False) is True:  # symbolic of Keras
                    raise ValueError(
                        f"{self.owner} needs dense views; pad them and pass a mask. Received a "
                        f"{kind} tensor"
                    )
            dtype = keras.backend.standardize_dtype(x.dtype)
            if "float" not in dtype:
                raise ValueError(
                    f"{self.owner} needs views of a floating-point dtype; cast them first. "
                    f"Received: {dtype}"
                )
        shapes = keras.tree.map_structure(lambda x: tuple(x.shape), inputs)
        return self.correlation_of(shapes, built)

    def enter(
        self, inputs: Any, mask: Any = None, dtype: Any = None, *, built: Correlation | None = None
    ) -> Views:
        """Converts the user's views to rows.

        Args:
            inputs: the views: tensors or arrays in a structure, or one; for one tensor also
                nested numbers.
            mask: `(batch,)` for views `(batch, d_j)`, `(batch, time)` for `(batch, time, d_j)`:
                one for all views, or a structure with one or None for each. By default the masks
                that Keras attached to the views.
            dtype: of the rows; by default the widest of the views'. At least float32.
            built: as for `correlation_of`.

        Raises:
            ValueError: masks of another rank or number than the views, and as `check`.
        """
        inputs = _standardize(inputs)
        correlation = self.check(inputs, built)
        parts = keras.tree.flatten(inputs)
        if mask is None:
            mask = [getattr(x, "_keras_mask", None) for x in parts]
        dtypes = [dtype] if dtype else [x.dtype for x in parts]
        wide = max(map(at_least_float32, dtypes), key=lambda dtype: dtype.size)
        joined = [tf.cast(x, wide) for x in parts]
        x = tf.concat(joined, axis=-1) if len(joined) > 1 else joined[0]
        rows = tf.reshape(x, [-1, correlation.width])
        return Views(rows, self._valid(parts, mask), correlation, parts, inputs)

    def warn_of_few_rows(self, views: Views) -> None:
        """Warns once where a batch has so few rows that any views correlate."""
        rows, width = views.rows.shape[0], views.correlation.width
        replica = tf.distribute.get_replica_context()
        if rows and self.synchronized and replica is not None:
            rows *= replica.num_replicas_in_sync
        if self._warned or rows is None or not 1 < rows <= width:
            return
        self._warned = True
        warnings.warn(
            f"{self.owner} correlates views of {width} columns together in a batch of {rows} rows. "
            f"With fewer than {width + 1} rows even independent views have correlations near one: "
            "take larger batches or narrower codes. (Said once.)",
            stacklevel=3,
        )

    def all_reduce(self, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Sums over the replicas if they count together; the same tensors otherwise."""
        replica = tf.distribute.get_replica_context()  # None while a model is built under a scope
        if not self.synchronized or replica is None or replica.num_replicas_in_sync == 1:
            return sums
        return tuple(replica.all_reduce(tf.distribute.ReduceOp.SUM, list(sums)))

    @property
    def _wanted(self) -> str:
        return "two views" if self._two else "two or more views"

    @property
    def _how(self) -> str:
        return (
            f"{self.owner} takes {self._wanted}: a list of tensors (batch, d_j) or "
            "(batch, time, d_j), or one tensor with the views side by side in its last axis"
        )

    def _too_many(self, views: Sequence[Any]) -> bool:
        return self._two and len(views) > 2

    def _sizes_of_parts(self, shapes: list[tuple[int | None, ...]]) -> tuple[int, ...]:
        how = self._how
        if len(shapes) < 2 or self._too_many(shapes):
            raise ValueError(f"{how}. Received {len(shapes)} of the shapes {shapes}.")
        if len({len(s) for s in shapes}) > 1 or len(shapes[0]) not in (2, 3):
            raise ValueError(f"{how}, all of the rank 2 or all of 3. Received: {shapes}.")
        for axis, what in ((0, "batch size"), (1, "number of time steps")):
            known = {s[axis] for s in shapes if axis < len(s) - 1 and s[axis] is not None}
            if len(known) > 1:
                raise ValueError(f"{how}, with the same {what}. Received the shapes {shapes}.")
        sizes = tuple(s[-1] for s in shapes)
        if not all(sizes):
            raise ValueError(
                f"{how}, of known widths >= 1 (pad ragged views and pass a mask). Received the "
                f"shapes {shapes}."
            )
        if self.split is not None and self.split != sizes:
            raise ValueError(f"`split`={self.split} does not match views of the widths {sizes}.")
        return sizes  # type: ignore[return-value]

    def _halves(self, shape: tuple[int | None, ...]) -> tuple[int, ...]:
        if len(shape) not in (2, 3) or shape[-1] is None:
            raise ValueError(
                f"{self._how}, of a known width (pad ragged views and pass a mask). Received one "
                f"of the shape {shape}."
            )
        width = shape[-1]
        if self.split is None:
            if width % 2 or not width:
                raise ValueError(
                    f"{self._how}. Received one tensor of the width {width}, which has no halves: "
                    "give `split=(d1, d2)`."
                )
            return (width // 2, width // 2)
        if sum(self.split) != width or self._too_many(self.split):
            raise ValueError(
                f"`split` must name the widths of {self._wanted} that add up to the width {width} "
                f"of the input. Received: split={self.split}"
            )
        return self.split

    def _components(self, sizes: tuple[int, ...]) -> int:
        most, bound = sum(sizes), "d_1 + .. + d_J"
        if self._two:
            most, bound = min(sizes), "min(d1, d2)"
        k = most if self.num_components is None else self.num_components
        if k > most:
            raise ValueError(
                f"`num_components` must be at most {bound} = {most} for views of the widths "
                f"{sizes}. Received: num_components={k}"
            )
        return k

    def _valid(self, parts: list[Any], mask: Any) -> tf.Tensor | None:
        """The attribute `valid` of `Views`."""
        given = keras.tree.flatten(mask)
        masks = [tf.convert_to_tensor(m) for m in given if m is not None]
        lead = tf.TensorShape(parts[0].shape[:-1])
        shapes = [tuple(m.shape) for m in masks]
        fits = all(len(s) == len(lead) and lead.is_compatible_with(s) for s in shapes)
        if len(given) not in (1, len(parts)) or not fits:
            wanted = ("(batch,)", "(batch, time)")[len(lead) - 1]
            raise ValueError(
                f"The mask must be one tensor of the shape {wanted}, or a list with one (or None) "
                f"for each of the {len(parts)} inputs. Received {len(given)} of the shapes "
                f"{shapes} for views of the shape {(*lead, 'd_j')}."
            )
        present = [tf.cast(m, tf.bool) for m in masks]
        if self.nan_is_missing:
            present += [~tf.reduce_any(tf.math.is_nan(x), axis=-1) for x in parts]
        if not present:
            return None
        return tf.reshape(functools.reduce(tf.logical_and, present), [-1, 1])


def _is_structure(shape: Any) -> bool:
    """Whether `shape` is a structure of shapes rather than one shape."""
    return isinstance(shape, dict) or any(isinstance(s, list | tuple | dict) for s in shape)


def _check_split(split: Any) -> tuple[int, ...] | None:
    if split is None:
        return None
    if not isinstance(split, Sequence) or isinstance(split, str) or len(split) < 2:
        raise ValueError(
            f"`split` must be a tuple with the widths of the views, such as (10, 12). "
            f"Received: split={split!r}"
        )
    return tuple(check_integer("split", size) for size in split)


def _standardize(inputs: Any) -> Any:
    """A structure of tensors or arrays as it is; all else (also nested numbers) as one array."""
    if any(len(getattr(x, "shape", ())) for x in keras.tree.flatten(inputs)):
        return inputs
    first = inputs
    for _ in range(2):  # numbers in a list of lists are one tensor (batch, d)
        first = first[0] if isinstance(first, list | tuple) and first else None
    if isinstance(first, list | tuple):
        raise ValueError(
            "Views as nested numbers cannot be told from one tensor (batch, time, d); pass arrays. "
            f"Received: a {type(inputs).__name__} of {len(inputs)}"
        )
    return inputs if hasattr(inputs, "shape") else tf.convert_to_tensor(inputs)
