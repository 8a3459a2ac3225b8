"""The paper's multiview methods by name."""

from collections.abc import Sequence
from typing import Any

import keras

from proxnet_tf.checks import check_choice
from proxnet_tf.models.base import MultiviewModel
from proxnet_tf.models.classifier import OF_CORRELATION, MultiviewClassifier
from proxnet_tf.models.two_stage import DCCA, DCCAE

METHODS = ("vanilla", "rrm", "prox", "dcca", "dccae")


def multiview_model(
    method: str,
    encoders: Sequence[keras.layers.Layer],
    predictors: Sequence[keras.layers.Layer],
    *,
    decoders: Sequence[keras.layers.Layer] | None = None,
    **options: Any,
) -> MultiviewModel:
    """The model of one of the paper's five multiview methods, by its name.

    For programs that compare the methods on the same parts.

    Args:
        method: "vanilla", "rrm" or "prox" (a `MultiviewClassifier`), "dcca" (a `DCCA`) or "dccae"
            (a `DCCAE`).
        encoders: a layer or model per view, from the view to its code.
        predictors: a layer or model per view, from the code to the output.
        decoders: a layer or model per view, from the code to the view; used by "dccae" only.
        **options: further arguments of the model, such as `epsilon`. `num_components` and
            `epsilon` say what a correlation is: "vanilla", which has none, goes without them.

    Returns:
        The model.

    Raises:
        ValueError: an unknown method; "dccae" without decoders; as the model.

    Example:

    >>> encoders = [keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> predictors = [keras.layers.Dense(3), keras.layers.Dense(3)]
    >>> multiview_model("rrm", encoders, predictors, correlation_weight=0.1).method
    'rrm'

    Reference: Li, Ma, Zhang (2020), section 6.
    """
    check_choice("method", method, METHODS)
    if method == "dcca":
        return DCCA(encoders, predictors, **options)
    if method == "dccae":
        if decoders is None:
            raise ValueError("The method 'dccae' needs `decoders`. Received: decoders=None")
        return DCCAE(encoders, decoders, predictors, **options)
    if method == "vanilla":
        options = {name: v for name, v in options.items() if name not in OF_CORRELATION}
    return MultiviewClassifier(encoders, predictors, method=method, **options)
