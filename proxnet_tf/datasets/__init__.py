"""Small public data sets inside the package; no network is needed."""

from proxnet_tf.datasets.multiple_features import load_multiple_features

__all__ = ["load_multiple_features"]
