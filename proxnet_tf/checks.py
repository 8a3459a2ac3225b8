"""What the layers share: checks of arguments, the `lam` weight, dtypes."""

import math
import numbers
from collections.abc import Sequence

import keras
import tensorflow as tf


def check_number(
    name: str, value: object, *, above: float | None = None, at_least: float | None = None
) -> float:
    """Returns `value` as a float, or raises a `ValueError` naming `name`, the value and the range.

    Args:
        name: the argument's name, for the message.
        value: what came; a real number, finite.
        above: exclusive lower bound.
        at_least: inclusive lower bound.
    """
    bound = (
        f"> {above:g}" if above is not None else f">= {at_least:g}" if at_least is not None else ""
    )
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
        value: what came.
        at_least: inclusive lower bound.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"`{name}` must be an integer >= {at_least}. Received: {name}={value!r}")
    return int(value)


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Returns `value` if it is one of `choices`, or raises a `ValueError` that lists them.

    Args:
        name: the argument's name, for the message.
        value: what came.
        choices: what is allowed.
    """
    if value not in choices:
        allowed = ", ".join(repr(c) for c in choices)
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Returns `value` if it is `True` or `False`, or raises a `ValueError` naming both.

    Args:
        name: the argument's name, for the message.
        value: what came.
    """
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def check_device(value: object) -> str | None:
    """Returns a `solver_device` (None or a device name such as "CPU:0"), or raises a `ValueError`.

    Args:
        value: what came.
    """
    if value is None:
        return None
    try:
        device = tf.DeviceSpec.from_string(value)
    except (ValueError, AttributeError, TypeError):
        device = None
    if device is None or device.device_type is None:
        raise ValueError(
            '`solver_device` must be None or the name of a device such as "CPU:0" or '
            f'"/GPU:1". Received: solver_device={value!r}'
        )
    return str(value)


def at_least_float32(dtype: str | tf.DType) -> tf.DType:
    """The dtype to compute in: `dtype` itself, or float32 where it is a 16-bit float.

    The decompositions behind the proximal maps have no half-precision kernels.
    """
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


def add_lam(layer: keras.layers.Layer, lam: float) -> keras.Variable:
    """Adds the scalar non-trainable weight `lam` (at least float32, never autocast) to `layer`.

    It is read at every call, so that `LambdaSchedule` (or `layer.lam.assign`) drives it between
    batches, and it is saved with the weights.
    """
    return layer.add_weight(
        name="lam",
        shape=(),
        # keras.initializers.Constant would round lam to float32 first
        initializer=lambda shape, dtype: tf.constant(lam, dtype),
        trainable=False,
        dtype=at_least_float32(layer.variable_dtype).name,
        autocast=False,
    )
