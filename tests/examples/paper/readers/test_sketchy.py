"""Sketchy's folders and pickle, in miniature."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
from readers.sketchy import load_sketchy, load_sketchy_pickle, split_pairs


def write_image(path, value, encode):
    image = np.zeros((12, 12, 3), np.uint8)
    image[...] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(image).numpy())


@pytest.fixture(params=["", "tx_000000000000/"])
def folder(request, tmp_path):
    """Three classes; photo p of class c is of the grey 40 c + 8 p, its sketches 1 darker."""
    for c, name in enumerate(["ant", "bear", "hot-air_balloon"]):
        for p in range(4):
            photo = f"n0{c}_{p}"
            grey = 40 * c + 8 * p + 20
            place = f"{request.param}{name}"
            write_image(tmp_path / f"256x256/photo/{place}/{photo}.jpg", grey, tf.io.encode_jpeg)
            for k in (1, 2):
                sketch = tmp_path / f"256x256/sketch/{place}/{photo}-{k}.png"
                write_image(sketch, grey - k, tf.io.encode_png)
    if request.param:
        other = tmp_path / "256x256/photo/tx_000100000000/ant/n00_0.jpg"
        write_image(other, 255, tf.io.encode_jpeg)
    return tmp_path


def grey(images):
    return images.astype(int).mean((1, 2, 3)).round()


def test_pairs_belong_together(folder):
    pairs = load_sketchy(folder, 3, pairs_per_class=4, size=8, seed=1)
    assert pairs.photos.shape == pairs.sketches.shape == (12, 8, 8, 3)
    assert pairs.photos.dtype == pairs.sketches.dtype == np.uint8
    np.testing.assert_array_equal(pairs.labels, np.repeat([0, 1, 2], 4))
    photos = grey(pairs.photos)
    np.testing.assert_array_equal(
        np.sort(photos), 20 + np.array([[0], [40], [80]]).repeat(4, 1).ravel() + [0, 8, 16, 24] * 3
    )
    offsets = photos - grey(pairs.sketches)
    assert set(offsets) == {1.0, 2.0}  # one of the photo's sketches, drawn at random
    np.testing.assert_array_equal((photos - 20) // 40, pairs.labels)


def test_incomplete_folders_are_refused(folder):
    photos = next(folder.rglob("n01_2.jpg"))
    whole = photos.read_bytes()
    photos.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"n01_2.jpg: it is not a whole image.*sketchy"):
        load_sketchy(folder, 3, pairs_per_class=4, size=8)
    photos.unlink()
    with pytest.raises(ValueError, match=r"3 photos of 'bear' have a sketch.*sketchy"):
        load_sketchy(folder, 3, pairs_per_class=4, size=8)
    with pytest.raises(ValueError, match="it has 3 classes; num_classes=4"):
        load_sketchy(folder, 4)
    for file in list(folder.rglob("n02_*.png")):
        file.unlink()
    next(folder.glob("256x256/sketch/**/hot-air_balloon")).rmdir()
    with pytest.raises(ValueError, match="photos or sketches alone: hot-air_balloon"):
        load_sketchy(folder, 3)
    with pytest.raises(ValueError, match=r"'photo' is missing.*https://sketchy"):
        load_sketchy(folder / "256x256/sketch", 3)


def test_split_is_within_classes_and_keeps_pairs(folder):
    pairs = load_sketchy(folder, 3, pairs_per_class=4, size=8)
    train, test = split_pairs(pairs, 0.75, seed=2)
    np.testing.assert_array_equal(np.bincount(train.labels), [3] * 3)
    np.testing.assert_array_equal(np.bincount(test.labels), [1] * 3)
    every = np.concatenate([grey(train.photos), grey(test.photos)])
    np.testing.assert_array_equal(np.sort(every), np.sort(grey(pairs.photos)))
    assert (np.abs(grey(test.photos) - grey(test.sketches) - 1.5) < 1.0).all()
    with pytest.raises(ValueError, match="too few"):
        split_pairs(pairs, 0.95)


def published():
    rng = np.random.default_rng(0)
    stored = {"v1": {}, "v2": {}, "label": {}}
    for part, count in (("train", 8), ("test", 4)):
        for view in ("v1", "v2"):
            stored[view][part] = rng.integers(0, 256, (count, 3, 6, 6)).astype("uint8")
        stored["label"][part] = np.arange(count) % 3 + 5
    return stored


def test_pickle_of_channels_first_images(tmp_path):
    stored = published()
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(stored))
    train, test = load_sketchy_pickle(tmp_path / "a.pkl", allow_pickle=True)
    np.testing.assert_array_equal(train.photos, np.moveaxis(stored["v1"]["train"], 1, -1))
    np.testing.assert_array_equal(test.sketches, np.moveaxis(stored["v2"]["test"], 1, -1))
    np.testing.assert_array_equal(train.labels, np.arange(8) % 3)
    two, _ = load_sketchy_pickle(tmp_path / "a.pkl", 2, allow_pickle=True)
    np.testing.assert_array_equal(two.labels, [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(two.photos, train.photos[train.labels < 2])


def test_bad_pickles_are_refused(tmp_path):
    path = tmp_path / "a.pkl"

    def refused(stored, problem, **options):
        path.write_bytes(stored if isinstance(stored, bytes) else pickle.dumps(stored))
        with pytest.raises(ValueError, match=problem):
            load_sketchy_pickle(path, **{"allow_pickle": True, **options})

    refused(published(), "allow_pickle=True", allow_pickle=False)
    refused(pickle.dumps(published())[:-100], "not a whole pickle")
    refused(published(), "it has 3 classes; num_classes=4", num_classes=4)
    refused([1], "it has no v1, v2 and label")
    for view, part, value, problem in (
        ("v2", "test", None, r"images .* expected"),
        ("v2", "test", np.zeros((3, 3, 6, 6), "uint8"), "test has 4 and 3 images and int64 labels"),
        ("v1", "train", np.full((8, 3, 6, 6), np.nan), "not finite"),
        ("label", "test", np.arange(4), "labels that train has not"),
    ):
        stored = published()
        stored[view][part] = value
        refused(stored, problem)
    stored = published()
    del stored["v2"]["train"]
    refused(stored, "each with 'train'.*https://sketchy")


def test_a_transparent_ground_is_white(folder):
    """Black strokes, of which the first are there, on a ground without any colour."""
    strokes = np.zeros((12, 12, 4), np.uint8)
    strokes[:6, :, 3] = 255
    for sketch in folder.glob("256x256/sketch/**/*.png"):
        sketch.write_bytes(tf.io.encode_png(strokes).numpy())
    sketches = load_sketchy(folder, 1, pairs_per_class=1, size=12).sketches
    assert sketches.shape == (1, 12, 12, 3)
    assert (sketches[0, :6] == 0).all() and (sketches[0, 6:] == 255).all()
