"""Small data sets that ship with the package."""

from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels
from proxnet_tf.datasets.multiple_features import load_multiple_features

__all__ = ["load_japanese_vowels", "load_multiple_features"]
