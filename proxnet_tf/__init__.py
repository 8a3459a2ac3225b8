"""Proximal mapping as weight-free Keras layers (Li, Ma, Zhang, 2020)."""

from proxnet_tf.callbacks import LambdaSchedule, linear_lambda
from proxnet_tf.layers.convex.activations import prox_of_activation
from proxnet_tf.layers.convex.dropout import ProxDropout
from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.layers.kernels import Invariance, ProxKernelFeatures
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.layers.recurrent.any_cell import ProxRNNCell
from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.layers.recurrent.lstm_cell import ProxLSTMCell
from proxnet_tf.losses import (
    CCALoss,
    CCARegularizer,
    GCCALoss,
    GCCARegularizer,
    cca_loss,
    gcca_loss,
)
from proxnet_tf.metrics import CanonicalCorrelation
from proxnet_tf.models import DCCA, DCCAE, AdversarialModel, LinearCCA, MultiviewClassifier

__version__ = "0.1.0"

__all__ = [
    "DCCA",
    "DCCAE",
    "AdversarialModel",
    "CCALoss",
    "CCARegularizer",
    "CanonicalCorrelation",
    "GCCALoss",
    "GCCARegularizer",
    "Invariance",
    "LambdaSchedule",
    "LinearCCA",
    "MultiviewClassifier",
    "Prox",
    "ProxCCA",
    "ProxDropout",
    "ProxGCCA",
    "ProxKernelFeatures",
    "ProxLSTM",
    "ProxLSTMCell",
    "ProxRNNCell",
    "Regularizer",
    "cca_loss",
    "gcca_loss",
    "linear_lambda",
    "prox_of_activation",
]
