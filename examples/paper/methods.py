"""The methods that the experiments compare, and how they are trained, whatever the networks.

Each view has an encoder and a predictor. Vanilla trains them with a classification loss alone. RRM
adds minus the mean canonical correlation of the codes to the loss, ProxNet moves the codes by
`ProxCCA` in between, ProxNet+L does both, as published. DCCA and DCCAE first train encoders for
correlation (DCCAE for reconstruction, too), then predictors on the fixed codes.
"""

from proxnet_tf import DCCA, DCCAE, LambdaSchedule, MultiviewClassifier, linear_lambda

NAMES = {
    "vanilla": "Vanilla",
    "dcca": "DCCA",
    "dccae": "DCCAE",
    "rrm": "RRM",
    "prox": "ProxNet",
}
TWO_STAGES = ("dcca", "dccae")
PROX = ("prox", "prox+")
PUBLISHED = {"prox+": "ProxNet+L"}  # minus the mean correlation of the codes in the loss too


def assemble(
    method,
    encoders,
    predictors,
    make_decoders,
    *,
    correlation_weight=0.0,
    reconstruction_weight=1.0,
    lam=1.0,
    inference="identity",
    concatenate_inputs=False,
    **common,
):
    """The model of a method around given networks.

    `make_decoders()` returns the decoders of DCCAE. `correlation_weight` is for RRM and ProxNet+L,
    `lam` and `inference` are for ProxNet, `concatenate_inputs` is for the two-stage methods.
    """
    if method in TWO_STAGES:
        common["concatenate_inputs"] = concatenate_inputs
    if method == "dcca":
        return DCCA(encoders, predictors, **common)
    if method == "dccae":
        common["reconstruction_weight"] = reconstruction_weight
        return DCCAE(encoders, make_decoders(), predictors, **common)
    if method in ("rrm", "prox+"):
        common["correlation_weight"] = correlation_weight
    if method in PROX:
        method = "prox"
        common.update(lam=lam, inference=inference, monitor=True)
    return MultiviewClassifier(encoders, predictors, method=method, **common)


def lam_callbacks(method, lam, growth):
    """The schedule lam_t = (1 + growth t) lam, for the methods that have lam."""
    return [LambdaSchedule(linear_lambda(lam, growth))] if method in PROX else []
