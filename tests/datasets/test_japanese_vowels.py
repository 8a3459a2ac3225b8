"""The embedded Japanese Vowels data."""

import hashlib
import pathlib

import numpy as np

import proxnet_tf.datasets
from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels

FILE = pathlib.Path(proxnet_tf.datasets.__file__).parent / "data/japanese_vowels.npz"


def test_file_is_the_one_that_was_checked():
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert digest == "47ad1ca0f04de4b6271565d700e18cf3d67362bb0251f85af7904c3875e1434e"
    assert FILE.stat().st_size < 600_000


def test_shapes_and_published_counts():
    train, test = load_japanese_vowels()
    assert train.values.shape == (270, 29, 12)
    assert test.values.shape == (370, 29, 12)
    np.testing.assert_array_equal(np.bincount(train.labels), [30] * 9)
    np.testing.assert_array_equal(np.bincount(test.labels), [31, 35, 88, 44, 29, 24, 40, 50, 29])
    for part in (train, test):
        assert (part.values.dtype, part.mask.dtype, part.labels.dtype) == ("f4", "?", "i4")
        lengths = part.mask.sum(axis=1)
        assert lengths.min() >= 7 and lengths.max() <= 29
        np.testing.assert_array_equal(part.mask, np.arange(29)[None] < lengths[:, None])
        assert not part.values[~part.mask].any()
        assert (part.values[part.mask] != 0).any(axis=1).all()  # no valid step is all zero


def test_first_values_are_those_of_the_published_file():
    train, _ = load_japanese_vowels()
    np.testing.assert_allclose(train.values[0, :3, 0], [1.860936, 1.891651, 1.939205], rtol=1e-6)
    np.testing.assert_allclose(train.values[0, :2, 1], [-0.207383, -0.193249], rtol=1e-6)
    assert train.mask[0].sum() == 20
