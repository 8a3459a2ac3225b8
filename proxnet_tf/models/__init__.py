"""Whole models."""

from proxnet_tf.models.linear_cca import LinearCCA
from proxnet_tf.models.multiview import DCCA, DCCAE, MultiviewClassifier

__all__ = ["DCCA", "DCCAE", "LinearCCA", "MultiviewClassifier"]
