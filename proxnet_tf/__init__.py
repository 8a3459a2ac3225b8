"""Proximal mapping as weight-free Keras layers (Li, Ma, Zhang, 2020)."""

from proxnet_tf.callbacks import LambdaSchedule, linear_lambda
from proxnet_tf.layers.prox_cca import ProxCCA, ProxGCCA
from proxnet_tf.losses import CCALoss, CCARegularizer, cca_loss
from proxnet_tf.metrics import CanonicalCorrelation

__version__ = "0.1.0"

__all__ = [
    "CCALoss",
    "CCARegularizer",
    "CanonicalCorrelation",
    "LambdaSchedule",
    "ProxCCA",
    "ProxGCCA",
    "cca_loss",
    "linear_lambda",
]
