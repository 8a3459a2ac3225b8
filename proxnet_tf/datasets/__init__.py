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
from proxnet_tf.datasets.speech import (
    cut_utterances,
    load_articulatory_speech,
    split_utterances,
)
from proxnet_tf.datasets.unlabelled import with_unlabelled
from proxnet_tf.datasets.words import (
    build_crosslingual,
    load_crosslingual,
    load_similarity_sets,
    load_word_pairs,
    load_word_similarity,
    load_word_vectors,
)

__all__ = [
    "build_crosslingual",
    "cut_utterances",
    "load_articulatory_speech",
    "load_crosslingual",
    "load_imdb",
    "load_japanese_vowels",
    "load_multiple_features",
    "load_similarity_sets",
    "load_sketchy",
    "load_sketchy_pickle",
    "load_spoken_arabic_digits",
    "load_uci_har",
    "load_uea",
    "load_word_pairs",
    "load_word_similarity",
    "load_word_vectors",
    "split_pairs",
    "split_utterances",
    "unpack",
    "with_unlabelled",
]
