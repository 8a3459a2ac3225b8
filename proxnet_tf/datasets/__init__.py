"""Small data sets that ship with the package, and loaders of data that does not."""

from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels
from proxnet_tf.datasets.multiple_features import load_multiple_features
from proxnet_tf.datasets.speech import (
    cut_utterances,
    load_articulatory_speech,
    split_utterances,
)
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
    "load_japanese_vowels",
    "load_multiple_features",
    "load_similarity_sets",
    "load_word_pairs",
    "load_word_similarity",
    "load_word_vectors",
    "split_utterances",
]
