import glyphs
import images
import labels
import numpy as np
import pytest
import sketchy
import tensorflow as tf


def test_glyph_pairs():
    pairs = glyphs.glyph_pairs(3, 20, seed=1)
    assert pairs.photos.shape == (60, 32, 32, 3)
    assert pairs.sketches.shape == (60, 32, 32, 1)
    assert pairs.photos.dtype == pairs.sketches.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(pairs.labels), [20] * 3)
    again, other = glyphs.glyph_pairs(2, 20, seed=1), glyphs.glyph_pairs(2, 20, seed=2)
    np.testing.assert_array_equal(again.photos, pairs.photos[:40])
    assert (other.sketches != again.sketches).any()
    with pytest.raises(ValueError, match=r"in 2\.\.125.*num_classes=126"):
        glyphs.glyph_pairs(126)


def test_a_photo_looks_like_its_own_sketch():
    pairs = glyphs.glyph_pairs(2, 60, seed=0)
    photos = pairs.photos.astype(float)
    steps = [np.diff(photos, axis=a, prepend=photos.take([0], a)) for a in (1, 2)]
    edges = np.sqrt(sum((s**2).sum(-1) for s in steps)).reshape(120, -1)
    ink = 255.0 - pairs.sketches.reshape(120, -1).astype(float)
    likeness = np.corrcoef(edges, ink)[:120, 120:]
    same_class = pairs.labels[:, None] == pairs.labels
    own = np.diag(likeness).mean()
    assert own > likeness[same_class].mean() + 0.05
    assert likeness[same_class].mean() > likeness[~same_class].mean() + 0.02


def test_augmentation_crops_and_mirrors_the_rows():
    ramp = np.broadcast_to(np.linspace(-1, 1, 20), (64, 20, 20))[..., None].astype("float32")
    for flip in (False, True):
        moved = images.augment(tf.constant(ramp), flip).numpy()
        rising = moved[:, 0, -1, 0] > moved[:, 0, 0, 0]
        assert rising.all() != flip
        assert rising.any()
        spread = np.abs(moved[:, 0, -1, 0] - moved[:, 0, 0, 0])
        assert spread.min() > 2 * 0.84 and spread.max() < 2.0
        assert np.ptp(moved, axis=1).max() < 1e-6  # rows stay rows


def test_sketchys_folders(tmp_path):
    rng = np.random.default_rng(0)
    for c, name in enumerate(["ant", "bee"]):
        for p in range(10):
            for kind, end, encode in (
                ("photo", ".jpg", tf.io.encode_jpeg),
                ("sketch", "-1.png", tf.io.encode_png),
            ):
                image = np.full((20, 20, 3), 60 + 120 * c, np.uint8) + rng.integers(0, 9)
                file = tmp_path / kind / name / f"n{c}_{p}{end}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encode(image.astype(np.uint8)).numpy())
    options = sketchy.parse(["--data", str(tmp_path), "--size", "16"])
    with pytest.raises(ValueError, match="10 photos of 'ant' have a sketch"):
        images.load(2, 0, options)
    options.pairs = 10
    train, test = images.load(2, 0, options)
    assert (len(train.labels), len(test.labels)) == (16, 4)
    for part in (train, test):
        np.testing.assert_array_equal(part.photos[:, 8, 8, 0] > 120, part.labels)
        np.testing.assert_array_equal(part.sketches[:, 8, 8, 0] > 120, part.labels)
    # What chooses settings sees training pairs alone.
    tuned, held = images.load(2, 0, options, holdout=True)
    assert (len(tuned.labels), len(held.labels)) == (12, 4)
    training = {photo.tobytes() for photo in train.photos}
    assert training == {photo.tobytes() for part in (tuned, held) for photo in part.photos}
    assert options.backbone == "resnet18"


def run(folder, options):
    small = (
        "--classes 4 --backbone small --steps 60 --hidden 64 --trials 1 --seeds 0 --rates 6e-3 7e-3"
    )
    return sketchy.main([*small.split(), *options.split(), "--output", str(folder)])


@pytest.mark.slow
def test_all_methods_learn(tmp_path):
    results = run(tmp_path, "")
    assert list(results) == list(sketchy.TITLES)
    for method, found in results.items():
        assert found["4 classes"][0] < 60.0  # chance is 75
        # Of 20 components and 80 test pairs; 9 of it comes by chance, so methods do not differ.
        assert 0.0 < found["correlation, 4"][0] < 20.0
        assert ("error_with_layer, 4" in found) == (method in ("prox", "own"))


@pytest.mark.slow
def test_a_stopped_study_goes_on(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", "--methods vanilla --steps 10")
    test = sketchy.Images.test

    def stop(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sketchy.Images, "test", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", "--methods vanilla --steps 10")
    monkeypatch.setattr(sketchy.Images, "test", test)
    monkeypatch.setattr(sketchy.Images, "validate", None)  # that one is finished
    again = run(tmp_path / "cut", "--methods vanilla --steps 10")
    assert again["vanilla"]["4 classes"] == whole["vanilla"]["4 classes"]
    with pytest.raises(SystemExit, match="of another size"):
        run(tmp_path / "cut", "--methods vanilla --steps 11")


@pytest.mark.slow
def test_the_stand_in_has_the_graphs_of_the_label_study(tmp_path, monkeypatch):
    monkeypatch.setattr(labels.Study.__init__, "__defaults__", (4, 100))
    more = "--classes 10 --trials 1 --seeds 0 --rates 0.01 0.02 --methods vanilla prox own".split()
    results = sketchy.main([*more, "--output", str(tmp_path)])
    assert all(found["10 classes"][0] < 80.0 for found in results.values())  # chance is 90
