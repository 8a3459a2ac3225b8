"""The closed-form operators by name."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.convex import entropy, functions, nuclear, sets, total_variation


class ProximalOperator(NamedTuple):
    """A regulariser or a set under its name.

    Attributes:
        value: (z, **options) -> R(z), +inf outside a set.
        prox: (x, lam, **options) -> z.
        is_set: whether R is an indicator, which neither lam nor a weight changes.
        padding: how masked steps are kept from affecting the others: "zero" (set to 0 they have
            no effect), "mask" (`prox` takes `mask`), None (not possible).
        matrix: whether R sees the last two axes instead of the last one.
        jit: whether XLA can compile it on every device.
        prepare: options of the user -> options of `value` and `prox`, if they differ.
    """

    value: Callable[..., tf.Tensor]
    prox: Callable[..., tf.Tensor]
    is_set: bool = False
    padding: str | None = "zero"
    matrix: bool = False
    jit: bool = True
    prepare: Callable[..., dict[str, Any]] | None = None


def _set(
    value: Callable[..., tf.Tensor], project: Callable[..., tf.Tensor], **properties: Any
) -> ProximalOperator:
    def prox(x: tf.Tensor, lam: float | tf.Tensor, **options: Any) -> tf.Tensor:
        return project(x, **options)

    return ProximalOperator(value, prox, is_set=True, **properties)


OPERATORS: dict[str, ProximalOperator] = {
    "l1": ProximalOperator(functions.l1, functions.prox_l1),
    "elastic_net": ProximalOperator(functions.elastic_net, functions.prox_elastic_net),
    "l2": ProximalOperator(functions.l2, functions.prox_l2),
    "group_l2": ProximalOperator(functions.group_l2, functions.prox_group_l2),
    "squared_l2": ProximalOperator(functions.squared_l2, functions.prox_squared_l2),
    "quadratic": ProximalOperator(
        functions.quadratic, functions.prox_quadratic, padding=None, prepare=functions.spectrum
    ),
    "l_inf": ProximalOperator(functions.l_inf, functions.prox_l_inf),
    "entropy": ProximalOperator(entropy.entropy, entropy.prox_entropy, padding=None),
    "nuclear": ProximalOperator(nuclear.nuclear, nuclear.prox_nuclear, matrix=True, jit=False),
    "total_variation": ProximalOperator(
        total_variation.total_variation, total_variation.prox_total_variation, padding="mask"
    ),
    "fused_lasso": ProximalOperator(
        total_variation.fused_lasso, total_variation.prox_fused_lasso, padding="mask"
    ),
    "box": _set(sets.box, sets.project_box),
    "nonnegative": _set(sets.nonnegative, sets.project_nonnegative),
    "l2_ball": _set(sets.l2_ball, sets.project_l2_ball),
    "l1_ball": _set(sets.l1_ball, sets.project_l1_ball),
    "simplex": _set(sets.simplex, sets.project_simplex, padding=None),
    "isotonic": _set(sets.isotonic, sets.project_isotonic, padding=None, jit=False),
    "standardized": _set(sets.standardized, sets.project_standardized, padding=None),
}
