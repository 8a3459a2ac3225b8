"""Japanese Vowels: nine speakers told apart by two vowels."""

import pathlib
from typing import NamedTuple

import numpy as np

_FILE = pathlib.Path(__file__).parent / "data/japanese_vowels.npz"


class Sequences(NamedTuple):
    """Padded sequences.

    Attributes:
        values: float32 (n, time, features), zero after the end of a sequence.
        mask: bool (n, time), true where a sequence has values.
        labels: int32 (n,).
    """

    values: np.ndarray
    mask: np.ndarray
    labels: np.ndarray


def load_japanese_vowels() -> tuple[Sequences, Sequences]:
    """Loads the Japanese Vowels data set, (train, test), from the package; nothing is downloaded.

    270 training and 370 test utterances of two Japanese vowels by nine male speakers, to be told
    apart; 12 LPC cepstrum coefficients, 7 to 29 time steps. Values are as published, not
    normalized. The training set is ordered by speaker (30 each), so shuffle it.

    Returns:
        Two `Sequences` (values, mask, labels), padded at the end with zeros to 29 steps; labels
        are 0 to 8.

    Example:

    >>> train, test = load_japanese_vowels()
    >>> train.values.shape, test.labels.shape
    ((270, 29, 12), (370,))

    Reference:
        Kudo, Toyama, Shimbo (1999), "Multidimensional curve classification using passing-through
        regions", Pattern Recognition Letters 20. UCI Machine Learning Repository,
        doi 10.24432/C5NS47, licence CC BY 4.0; here from the copy in aeon 1.6.0 (BSD 3-Clause),
        stored in float32 (`examples/data/build_japanese_vowels.py`).
    """
    with np.load(_FILE) as stored:
        arrays = {name: stored[name] for name in stored.files}
    steps = max(arrays["train_lengths"].max(), arrays["test_lengths"].max())

    def pad(part: str) -> Sequences:
        lengths = arrays[f"{part}_lengths"].astype(np.int64)
        mask = np.arange(steps)[None] < lengths[:, None]
        flat = arrays[f"{part}_values"]
        values = np.zeros((*mask.shape, flat.shape[1]), np.float32)
        values[mask] = flat
        return Sequences(values, mask, arrays[f"{part}_labels"].astype(np.int32))

    return pad("train"), pad("test")
