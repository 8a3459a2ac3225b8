"""What the layers share: checks of arguments, the `lam` weight, dtypes."""

import contextlib
import math
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf.ops.linear.number import check_real


def check_number(
    name: str, value: object, *, above: float | None = None, at_least: float | None = None
) -> float:
    """Returns `value` as a float, or raises a `ValueError` naming `name`, the value and the range.

    Args:
        name: the argument's name, for the message.
        value: what to check: a finite real number, or a scalar array or eager tensor with one.
        above: exclusive lower bound.
        at_least: inclusive lower bound.
    """
    bound = (
        f"> {above:g}" if above is not None else f">= {at_least:g}" if at_least is not None else ""
    )
    value = unwrapped(value)
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if ok else math.nan  # type: ignore[arg-type]
    if (
        not math.isfinite(number)
        or (above is not None and not number > above)
        or (at_least is not None and not number >= at_least)
    ):
        raise ValueError(f"`{name}` must be a finite number {bound}. Received: {name}={value!r}")
    return number


def check_integer(name: str, value: object, *, at_least: int = 1) -> int:
    """Returns `value` as an int, or raises a `ValueError` naming `name`, the value and the range.

    Args:
        name: the argument's name, for the message.
        value: what to check: an integer, or a scalar array or eager tensor with one.
        at_least: inclusive lower bound.
    """
    known = unwrapped(value)
    whole = isinstance(known, numbers.Integral) and not isinstance(known, bool)
    number = int(known) if whole else 0
    if not whole or number < at_least:
        raise ValueError(f"`{name}` must be an integer >= {at_least}. Received: {name}={known!r}")
    return number


def unwrapped(value: object) -> Any:
    """The number in a scalar array or an eager tensor; anything else as it is."""
    known: Any = value
    if isinstance(value, tf.Variable | keras.Variable):
        known = value.numpy() if tf.executing_eagerly() else value
    elif tf.is_tensor(value):
        known = tf.get_static_value(value)
        known = value if known is None else known
    return known[()] if isinstance(known, np.ndarray) and known.ndim == 0 else known


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, or raises a `ValueError` that lists them.

    Args:
        name: the argument's name, for the message.
        value: what to check.
        choices: what is allowed.
    """
    if value not in choices:
        allowed = ", ".join(repr(c) for c in choices)
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Returns `value` if it is `True` or `False`, or raises a `ValueError` that names both.

    Args:
        name: the argument's name, for the message.
        value: what to check.
    """
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def check_device(value: object) -> str | None:
    """Returns a `device` (None or a device name such as "CPU:0"), or raises a `ValueError`.

    Args:
        value: what to check.
    """
    kind = None
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        kind = tf.DeviceSpec.from_string(value).device_type
    if value is not None and kind is None:
        raise ValueError(
            '`device` must be None or the name of a device such as "CPU:0" or '
            f'"/GPU:1". Received: device={value!r}'
        )
    return value  # type: ignore[return-value]


def steps_mask(mask: Any, x: tf.Tensor) -> tf.Tensor:
    """A mask of `x` (batch, time, ...) as booleans (batch, time), or a `ValueError`.

    Args:
        mask: of shape (batch, time), or (batch, time, 1) as Keras allows; a size may be unknown.
        x: the input.
    """
    shape = tf.TensorShape(mask.shape)
    one_more = shape.rank == 3 and shape[2] in (None, 1)
    if not (shape[:2] if one_more else shape).is_compatible_with(x.shape[:2]):
        raise ValueError(
            f"`mask` must have the shape (batch, time) of the input, {tuple(x.shape[:2])}, "
            f"or one more axis of size 1. Received: a mask of shape {tuple(shape)}"
        )
    mask = tf.cast(mask, tf.bool)
    return mask[..., 0] if one_more else mask


def at_least_float32(dtype: str | tf.DType) -> tf.DType:
    """The dtype to compute in: `dtype` itself, or float32 where it is a 16-bit float.

    The decompositions behind the proximal maps have no half-precision kernels.
    """
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


class HasLam:
    """The base of layers with a weight `lam`: non-trainable, at least float32, never autocast.

    `add_lam` makes it in the constructor, and it is saved with the weights. `layer.lam = 0.1`
    assigns a value in (0, inf). `lam_in` reads it at every call, so `LambdaSchedule` can change it
    between batches.
    """

    def add_lam(self: Any, lam: float) -> None:
        """Makes the weight `lam`, and the attribute `initial_lam` of the configuration.

        Args:
            lam: the first value, in (0, inf).
        """
        self.initial_lam = check_number("lam", lam, above=0.0)
        HasLam.__setattr__(self, "lam", LamWeight(self, self.initial_lam))

    def __setattr__(self, name: str, value: Any) -> None:
        lam = getattr(self, "lam", None) if name == "lam" else None
        if isinstance(lam, keras.Variable):
            lam.assign(value)
        else:
            super().__setattr__(name, value)

    def lam_in(self: Any, dtype: str | tf.DType) -> tf.Tensor:
        """The value of `lam` in `dtype`; NaN where it is not in (0, inf).

        A wrong value that a graph has assigned thus makes the outputs NaN. `nan_without` ensures
        this where an operation may drop NaN.
        """
        lam = tf.cast(self.lam, dtype)
        return tf.where((lam > 0) & tf.math.is_finite(lam), lam, tf.cast(math.nan, lam.dtype))

    @staticmethod
    def nan_without(lam: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """`outputs`, or NaN in their place where `lam`, from `lam_in`, is NaN."""
        return tf.where(tf.math.is_nan(lam), tf.cast(math.nan, outputs.dtype), outputs)


class LamWeight(keras.Variable):
    """The weight `lam` of a `HasLam`.

    Its path is that of the layer, as for weights made in `build`, although the weight exists from
    the layer's constructor on.
    """

    def __init__(self, layer: Any, lam: float):
        self._layer = layer
        dtype = at_least_float32(layer.variable_dtype)
        _check_lam(lam, dtype)
        super().__init__(
            # keras.initializers.Constant would round lam to float32 first
            initializer=lambda shape, dtype: tf.constant(lam, dtype),
            shape=(),
            dtype=dtype.name,
            trainable=False,
            autocast=False,
            name="lam",
        )

    @property
    def path(self) -> str:
        """The path of the layer, then `/lam`."""
        return f"{self._layer.path or self._layer.name}/lam"

    def assign(self, value: Any) -> Any:
        """Assigns a value in (0, inf).

        Raises:
            ValueError: another value. A value that is known only when a graph runs cannot raise:
                the layer then returns NaN, see `HasLam.lam_in`.
        """
        check_real("`lam`", value)
        known = unwrapped(value)
        if np.ndim(known) == 0 and not isinstance(known, tf.Tensor | keras.Variable):
            _check_lam(known, tf.as_dtype(self.dtype))
        return super().assign(value)


def _check_lam(value: Any, dtype: tf.DType) -> None:
    """A `ValueError` unless the value, and what it is in `dtype`, are in (0, inf)."""
    number = check_number("lam", value, above=0.0)
    with np.errstate(over="ignore", under="ignore"):
        check_number("lam", dtype.as_numpy_dtype(number), above=0.0)
