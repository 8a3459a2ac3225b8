"""The border between views as a user passes them and rows as the mathematics wants them."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    at_least_float32,
    check_bool,
    check_choice,
    check_integer,
    check_number,
)
from proxnet_tf.layers.multiview.views import Views
from proxnet_tf.ops.multiview.correlation import CCA, Correlation
from proxnet_tf.ops.multiview.envelope import Envelope, moreau_envelope
from proxnet_tf.ops.multiview.incomplete import pairwise_envelope, pairwise_loss
from proxnet_tf.ops.multiview.newton import Settings
from proxnet_tf.ops.multiview.prox import correlation_loss


class Border:
    """Checks views and their masks, and takes them in and out. One object for every owner.

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
        missing: "drop" where a row that lacks a view takes no part, "pairwise" where it counts for
            the pairs of views that it has.

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
        missing: str = "drop",
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
        self.missing = check_choice("missing", missing, ("drop", "pairwise"))
        self.fixed: Correlation | None = None  # set by owners that only take views of one width

    def get_config(self) -> dict[str, Any]:
        """The arguments that the owner's configuration holds."""
        return {
            "num_components": self.num_components,
            "epsilon": self.epsilon,
            "split": self.split,
            "nan_is_missing": self.nan_is_missing,
            "synchronized": self.synchronized,
            "missing": self.missing,
        }

    def correlation_of(self, shape: Any) -> Correlation:
        """Which correlation of which widths, from the shapes of the views outside.

        Args:
            shape: `(batch, d)` or `(batch, time, d)` of one tensor, or a structure of such shapes.

        Raises:
            ValueError: not the number of views, ranks or lengths that differ, widths that are
                unknown, do not add up, allow no k components or are not those fixed before.
        """
        shapes: list[tuple[int | None, ...]] = []
        keras.tree.map_shape_structure(lambda s: shapes.append(tuple(s)), shape)
        sizes = self._sizes_of_parts(shapes) if _is_structure(shape) else self._halves(*shapes)
        if self.fixed is not None:
            if sizes != self.fixed.sizes:
                raise ValueError(
                    f"{self.owner} was built for views of the widths {self.fixed.sizes}. "
                    f"Received: {sizes}"
                )
            return self.fixed
        return self.kind(sizes, self._components(sizes))

    def check(self, inputs: Any) -> Correlation:
        """Which correlation of which widths, from the views outside, symbolic or not.

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
        return self.correlation_of(keras.tree.map_structure(lambda x: tuple(x.shape), inputs))

    def enter(
        self, inputs: Any, mask: Any = None, dtype: Any = None, only: Sequence[int] | None = None
    ) -> Views:
        """Takes views in.

        Args:
            inputs: the views: tensors or arrays in a structure, or one; for one tensor also
                nested numbers.
            mask: `(batch,)` for views `(batch, d_j)`, `(batch, time)` for `(batch, time, d_j)`:
                one for all views, or a structure with one or None for each. By default the masks
                that Keras attached to the views.
            dtype: of the rows; by default the widest of the views'. At least float32.
            only: indices of the views to take in; all by default. The others are checked, but
                neither their rows nor their masks count.

        Raises:
            ValueError: masks of another rank or number than the views, an index that is not one
                of a view, and as `check`.
        """
        inputs = _standardize(inputs)
        correlation = self.check(inputs)
        parts = keras.tree.flatten(inputs)
        if mask is None:
            mask = [getattr(x, "_keras_mask", None) for x in parts]
        if only is not None:
            if max(only) >= len(correlation.sizes):
                raise ValueError(
                    f"{self.owner} takes the views {tuple(only)}, counted from 0. Received: "
                    f"{len(correlation.sizes)} views of the widths {correlation.sizes}"
                )
            if len(parts) == 1:
                parts = tf.split(parts[0], correlation.sizes, axis=-1)
                mask = keras.tree.flatten(mask) * len(parts)
            parts, mask = ([x[index] for index in only] for x in (parts, mask))
            sizes = tuple(correlation.sizes[index] for index in only)
            correlation = self.kind(sizes, self._components(sizes))
        dtypes = [dtype] if dtype else [x.dtype for x in parts]
        wide = max(map(at_least_float32, dtypes), key=lambda dtype: dtype.size)
        joined = [tf.cast(x, wide) for x in parts]
        x = tf.concat(joined, axis=-1) if len(joined) > 1 else joined[0]
        rows = tf.reshape(x, [-1, correlation.width])
        valid, present = self._valid(parts, mask, correlation.sizes)
        return Views(rows, valid, present, correlation, parts, inputs)

    def loss(self, inputs: Any, mask: Any = None, dtype: Any = None) -> tf.Tensor:
        """L of views outside: a scalar of the dtype of the rows, see `enter`."""
        views = self.enter(inputs, mask, dtype)
        if views.present is not None:  # the gradient is that of all replicas already
            rows, correlation = views.rows, views.correlation
            return pairwise_loss(rows, correlation, self.epsilon, views.present, self.all_reduce)
        return self._of_all_replicas(
            correlation_loss(
                views.rows,
                views.correlation,
                self.epsilon,
                valid=views.valid,
                all_reduce=self.all_reduce,
            )
        )

    def envelope(
        self, inputs: Any, mask: Any, dtype: Any, lam: float, settings: Settings
    ) -> Envelope:
        """The Moreau envelope of L of views outside, see `enter` and `moreau_envelope`."""
        views = self.enter(inputs, mask, dtype)
        if views.present is not None:
            return pairwise_envelope(
                views.rows,
                lam,
                views.correlation,
                self.epsilon,
                views.present,
                settings=settings,
                all_reduce=self.all_reduce,
            )
        found = moreau_envelope(
            views.rows,
            lam,
            views.correlation,
            self.epsilon,
            valid=views.valid,
            settings=settings,
            all_reduce=self.all_reduce,
        )
        return found._replace(value=self._of_all_replicas(found.value))

    def _of_all_replicas(self, value: tf.Tensor) -> tf.Tensor:
        """The value that every replica holds, where each has only the gradient of its own rows.

        The value on each replica depends on the rows of all. So what is multiplied with the
        gradient of a replica's rows is the sum of what arrives at all values.
        """

        @tf.custom_gradient
        def held(value: tf.Tensor) -> Any:
            return tf.identity(value), lambda arriving: self.all_reduce(arriving)[0]

        return held(value)

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

    def _valid(
        self, parts: list[Any], mask: Any, sizes: tuple[int, ...]
    ) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """`valid` and `present` of `Views`."""
        masks = [None if m is None else tf.convert_to_tensor(m) for m in keras.tree.flatten(mask)]
        lead = tf.TensorShape(parts[0].shape[:-1])
        shapes = [tuple(m.shape) for m in masks if m is not None]
        fits = all(len(s) == len(lead) and lead.is_compatible_with(s) for s in shapes)
        if len(masks) not in (1, len(parts)) or not fits:
            wanted = ("(batch,)", "(batch, time)")[len(lead) - 1]
            raise ValueError(
                f"The mask must be one tensor of the shape {wanted}, or a list with one (or None) "
                f"for each of the {len(parts)} inputs. Received {len(masks)} of the shapes "
                f"{shapes} for views of the shape {(*lead, 'd_j')}."
            )
        masks = [None if m is None else tf.cast(m, tf.bool) for m in masks]
        differ = self.nan_is_missing or (len(masks) > 1 and len(shapes) > 0)
        if self.missing == "pairwise" and differ:
            return self._present(parts, masks, sizes)
        present = [m for m in masks if m is not None]
        if self.nan_is_missing:
            present += [~tf.reduce_any(tf.math.is_nan(x), axis=-1) for x in parts]
        if not present:
            return None, None
        return tf.reshape(functools.reduce(tf.logical_and, present), [-1, 1]), None

    def _present(
        self, parts: list[Any], masks: list[Any], sizes: tuple[int, ...]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows that have a view, and which views each row has."""
        views = parts if len(parts) > 1 else tf.split(parts[0], sizes, axis=-1)
        masks = masks * (len(views) // len(masks))
        present = [
            tf.ones(tf.shape(x)[:-1], tf.bool) if m is None else m
            for x, m in zip(views, masks, strict=True)
        ]
        if self.nan_is_missing:
            known = [~tf.reduce_any(tf.math.is_nan(x), axis=-1) for x in views]
            present = [a & b for a, b in zip(present, known, strict=True)]
        stacked = tf.stack([tf.reshape(m, [-1]) for m in present], axis=1)
        return tf.reduce_any(stacked, axis=1, keepdims=True), stacked


def _is_structure(shape: Any) -> bool:
    """Whether a structure of shapes rather than one shape."""
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
    """A structure of tensors or arrays as it is, anything else (nested numbers too) as one."""
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
