"""The methods that the experiments compare, and how they are trained, whatever the networks.

Each view has an encoder and a predictor. Vanilla trains them with a classification loss alone. RRM
adds minus the mean canonical correlation of the codes to the loss, ProxNet moves the codes by
`ProxCCA` in between; ProxNet+L does both, as published. DCCA and DCCAE first train encoders for
correlation (DCCAE for reconstruction, too), then predictors on the fixed codes. "ProxCCA with its
envelope" is this package's: the layer moves the codes, and the value of its own problem is in the
loss. Linear CCA of the views takes the place of the encoders of DCCA.
"""

from proxnet_tf import (
    DCCA,
    DCCAE,
    CCARegularizer,
    GCCARegularizer,
    LambdaSchedule,
    MultiviewClassifier,
    ProxCCA,
    ProxGCCA,
    linear_lambda,
)

NAMES = {
    "vanilla": "Vanilla",
    "dcca": "DCCA",
    "dccae": "DCCAE",
    "rrm": "RRM",
    "prox": "ProxNet",
    "own": "ProxCCA with its envelope",
}
TWO_STAGES = ("dcca", "dccae")
PROX = ("prox", "prox+", "own")
PUBLISHED = {"prox+": "ProxNet+L"}  # minus the mean correlation of the codes in the loss too


def layers_between(
    method, views, *, correlation_weight=0.0, lam=1.0, inference="identity", **correlation
):
    """The layers between codes and predictors.

    `correlation_weight` is for RRM, ProxNet+L and the envelope, `lam` and `inference` are for
    ProxNet, `correlation` (`num_components`, `epsilon`) is for all of them.
    """
    regularizer, prox = (CCARegularizer, ProxCCA) if views == 2 else (GCCARegularizer, ProxGCCA)
    layers = []
    if method in ("rrm", "prox+"):
        layers.append(regularizer(correlation_weight, **correlation))
    if method in PROX:
        weight = correlation_weight if method == "own" else 0.0
        options = dict(lam=lam, weight=weight, inference=inference, monitor=True)
        layers.append(prox(**options, **correlation))
    return layers


def assemble(
    method,
    encoders,
    predictors,
    make_decoders,
    *,
    predict_with="average",
    reconstruction_weight=1.0,
    concatenate_inputs=False,
    correlation_weight=0.0,
    lam=1.0,
    inference="identity",
    **correlation,
):
    """The model of a method around given networks.

    `make_decoders()` returns the decoders of DCCAE. `concatenate_inputs` is for the two-stage
    methods; for the other arguments see `layers_between`.
    """
    if method in TWO_STAGES:
        options = dict(concatenate_inputs=concatenate_inputs, predict_with=predict_with)
        if method == "dcca":
            return DCCA(encoders, predictors, **options, **correlation)
        options["reconstruction_weight"] = reconstruction_weight
        return DCCAE(encoders, make_decoders(), predictors, **options, **correlation)
    layers = layers_between(
        method,
        len(encoders),
        correlation_weight=correlation_weight,
        lam=lam,
        inference=inference,
        **correlation,
    )
    return MultiviewClassifier(encoders, predictors, layers, predict_with=predict_with)


def lam_callbacks(method, lam, growth):
    """The schedule lam_t = (1 + growth t) lam, for the methods that have lam."""
    return [LambdaSchedule(linear_lambda(lam, growth))] if method in PROX else []
