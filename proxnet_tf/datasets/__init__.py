"""Small data sets that ship with the package, and batches with and without labels."""

from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels
from proxnet_tf.datasets.multiple_features import load_multiple_features
from proxnet_tf.datasets.unlabelled import with_unlabelled

__all__ = ["load_japanese_vowels", "load_multiple_features", "with_unlabelled"]
