"""The closed-form operators as objects that Keras can save."""

import inspect
import math
import numbers
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import check_choice, check_integer, check_number, unwrapped
from proxnet_tf.ops.convex.functions import dense
from proxnet_tf.ops.convex.table import OPERATORS
from proxnet_tf.ops.linear.number import scalar

_POSITIVE = ("radius", "total")
_NON_NEGATIVE = ("ridge", "sparsity")


@keras.saving.register_keras_serializable(package="proxnet_tf")
class Regularizer:
    """A convex R with a proximal map in closed form: argmin_z weight R(z) + lam/2 ||z - x||^2.

    | name | R(z) | options (default) |
    | --- | --- | --- |
    | `"l1"` | sum of absolute values: soft threshold | |
    | `"elastic_net"` | l1 + ridge/2 times the squared l2 norm | `ridge` >= 0 (1) |
    | `"l2"` | l2 norm, not squared: block soft threshold | |
    | `"group_l2"` | sum of the l2 norms of consecutive groups | `group_size` >= 1 (2) |
    | `"squared_l2"` | half the squared l2 norm | |
    | `"quadratic"` | z^T Q z / 2 | `matrix` Q, symmetric positive semidefinite |
    | `"l_inf"` | largest absolute value | |
    | `"entropy"` | sum z log z - z^2/2 on the simplex; softmax at lam = weight = 1 | |
    | `"nuclear"` | sum of the singular values of the last two axes | |
    | `"total_variation"` | sum of absolute differences of neighbours | |
    | `"fused_lasso"` | total variation + sparsity times l1 | `sparsity` >= 0 (1) |

    and the sets, R = 0 inside and +inf outside, whose map is the projection (`weight` and lam
    change nothing): `"box"` (`low` = -1, `high` = 1, either may be infinite), `"nonnegative"`,
    `"l2_ball"` and `"l1_ball"` (`radius` > 0, 1), `"simplex"` (`total` > 0, 1; its map is
    the sparsemax), `"isotonic"` (non-decreasing), `"standardized"` (mean 0 and norm sqrt(n); not
    convex). `R(z)` allows a bound of a set to be missed by 100 roundings of its size.
    The gradient at the kinks of each map is documented at its function in `proxnet_tf.ops`.

    Args:
        name: one of the above.
        weight: factor of R, > 0; 1 by default.
        **options: as in the table.

    Raises:
        ValueError: an unknown name or option, or a value out of range.

    Example:
        >>> r = Regularizer("group_l2", weight=0.5, group_size=2)
        >>> r(tf.constant([3.0, 4.0, 0.0, 0.0])).numpy().item()
        2.5
        >>> r.prox(tf.constant([6.0, 8.0, 0.1, 0.1]), tf.constant(0.1)).numpy().tolist()
        [3.0, 4.0, 0.0, 0.0]

    Reference: Li, Ma, Zhang (2020), section 2.
    """

    def __init__(self, name: str, weight: float = 1.0, **options: Any):
        check_choice("name", name, tuple(OPERATORS))
        self.name = name
        self.weight = check_number("weight", weight, above=0.0)
        self.operator = OPERATORS[name]
        options = self._checked(options)
        prepare = self.operator.prepare
        self.options = options
        self._prepared = prepare(**options) if prepare else options

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        source = self.operator.prepare or self.operator.value
        known = [p for p in inspect.signature(source).parameters if p != "z"]
        checked = dict(options)
        for option, value in options.items():
            if option not in known:
                allowed = ", ".join(known) or "none"
                raise ValueError(
                    f"Regularizer {self.name!r} takes the options: {allowed}. "
                    f"Received: {option}={value!r}"
                )
            if option in _POSITIVE:
                checked[option] = check_number(option, value, above=0.0)
            elif option in _NON_NEGATIVE:
                checked[option] = check_number(option, value, at_least=0.0)
            elif option == "group_size":
                checked[option] = check_integer(option, value)
            elif option in ("low", "high"):
                checked[option] = _bound(option, unwrapped(value))
            elif option == "matrix":
                checked[option] = dense(value)
        if self.name == "quadratic" and "matrix" not in options:
            raise ValueError(
                "Regularizer 'quadratic' needs `matrix`, symmetric and positive semidefinite."
            )
        if checked.get("low", -1.0) > checked.get("high", 1.0):
            raise ValueError(f"`low` must not exceed `high` (-1 and 1 by default): {options!r}")
        return checked

    def __call__(self, z: tf.Tensor) -> tf.Tensor:
        """weight R(z) over the last axis (the last two for the nuclear norm)."""
        return self.weight * self.operator.value(z, **self._prepared)

    def prox(self, x: tf.Tensor, lam: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        """argmin_z weight R(z) + lam/2 ||z - x||^2 for float32 or float64 `x`.

        `mask`: boolean in the shape of x, False for entries that keep their value and take no
        part; only where R can leave entries out.
        """
        lam = scalar(lam, tf.float64) / self.weight  # which x.dtype may be too narrow for
        if mask is None:
            return self.operator.prox(x, lam, **self._prepared)
        if self.operator.padding == "mask":
            return self.operator.prox(x, lam, mask=mask, **self._prepared)
        if self.operator.padding is None:
            raise ValueError(
                f"Regularizer {self.name!r} cannot leave the masked steps out. Remove the mask, or "
                "apply the layer to each step (over='example')."
            )
        z = self.operator.prox(tf.where(mask, x, tf.zeros_like(x)), lam, **self._prepared)
        return tf.where(mask, z, x)

    def get_config(self) -> dict[str, Any]:
        """Name, weight and options."""
        options = dict(self.options)
        if "matrix" in options:
            options["matrix"] = options["matrix"].tolist()
        return {"name": self.name, "weight": self.weight, **options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Regularizer":
        """The inverse of `get_config`."""
        return cls(**config)


def _bound(name: str, value: Any) -> float:
    """A bound of a box, which may be infinite on its own side."""
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if ok else math.nan
    if math.isnan(number) or number == (math.inf if name == "low" else -math.inf):
        side = "-inf" if name == "low" else "inf"
        raise ValueError(f"`{name}` must be a number or {side}. Received: {name}={value!r}")
    return number
