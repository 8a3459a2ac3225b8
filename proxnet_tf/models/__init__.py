"""Whole models: multiview learning and adversarial training."""

from proxnet_tf.models.adversarial import AdversarialModel
from proxnet_tf.models.linear_cca import LinearCCA
from proxnet_tf.models.multiview import DCCA, DCCAE, MultiviewClassifier

__all__ = ["DCCA", "DCCAE", "AdversarialModel", "LinearCCA", "MultiviewClassifier"]
