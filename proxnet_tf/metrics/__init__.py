"""Metrics over a whole epoch: correlation of views, and retrieval of one view by another."""

from proxnet_tf.metrics.correlation import CanonicalCorrelation
from proxnet_tf.metrics.retrieval import RecallAtK

__all__ = ["CanonicalCorrelation", "RecallAtK"]
