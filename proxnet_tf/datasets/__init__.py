"""Small data sets that ship with the package, and readers of published ones."""

from proxnet_tf.datasets.files import unpack
from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels
from proxnet_tf.datasets.multiple_features import load_multiple_features
from proxnet_tf.datasets.sequences import (
    load_imdb,
    load_spoken_arabic_digits,
    load_uci_har,
    load_uea,
)
from proxnet_tf.datasets.sketchy import load_sketchy, load_sketchy_pickle, split_pairs

__all__ = [
    "load_imdb",
    "load_japanese_vowels",
    "load_multiple_features",
    "load_sketchy",
    "load_sketchy_pickle",
    "load_spoken_arabic_digits",
    "load_uci_har",
    "load_uea",
    "split_pairs",
    "unpack",
]
