"""Proximal mapping as weight-free Keras layers (Li, Ma, Zhang, 2020)."""

import importlib
from types import ModuleType as _ModuleType

from proxnet_tf.callbacks import LambdaSchedule, linear_lambda
from proxnet_tf.distribution import MultiWorkerStrategy
from proxnet_tf.layers.convex.activations import prox_of_activation
from proxnet_tf.layers.convex.dropout import ProxDropout
from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.layers.kernels.features import ProxKernelFeatures
from proxnet_tf.layers.kernels.invariance import Invariance
from proxnet_tf.layers.multiview.penalty import CCARegularizer, GCCARegularizer
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.layers.recurrent.any_cell import ProxRNNCell
from proxnet_tf.layers.recurrent.gru import ProxGRU, ProxGRUCell
from proxnet_tf.layers.recurrent.lstm import ProxLSTM, ProxLSTMCell
from proxnet_tf.losses import CCALoss, GCCALoss, cca_loss, gcca_loss
from proxnet_tf.metrics import CanonicalCorrelation, RecallAtK
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
    "MultiWorkerStrategy",
    "MultiviewClassifier",
    "Prox",
    "ProxCCA",
    "ProxDropout",
    "ProxGCCA",
    "ProxGRU",
    "ProxGRUCell",
    "ProxKernelFeatures",
    "ProxLSTM",
    "ProxLSTMCell",
    "ProxRNNCell",
    "RecallAtK",
    "Regularizer",
    "cca_loss",
    "gcca_loss",
    "linear_lambda",
    "prox_of_activation",
]

_LAZY = ("datasets", "tuning")  # loaded when they are first named; tuning needs KerasTuner


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
