"""Whole models: multiview learning and adversarial training."""

from proxnet_tf.models.adversarial import AdversarialModel
from proxnet_tf.models.classifier import MultiviewClassifier
from proxnet_tf.models.dcca import DCCA, DCCAE
from proxnet_tf.models.linear_cca import LinearCCA

__all__ = ["DCCA", "DCCAE", "AdversarialModel", "LinearCCA", "MultiviewClassifier"]
