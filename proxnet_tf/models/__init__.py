"""Whole models: multiview learning and adversarial training."""

from proxnet_tf.models.adversarial import AdversarialModel
from proxnet_tf.models.classifier import MultiviewClassifier
from proxnet_tf.models.linear_cca import LinearCCA
from proxnet_tf.models.methods import METHODS, multiview_model
from proxnet_tf.models.two_stage import DCCA, DCCAE

__all__ = [
    "DCCA",
    "DCCAE",
    "METHODS",
    "AdversarialModel",
    "LinearCCA",
    "MultiviewClassifier",
    "multiview_model",
]
