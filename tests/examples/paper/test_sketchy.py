import glyphs
import images
import keras
import numpy as np
import pytest
import sketchy
import tensorflow as tf

from tests.helpers.markdown import table_rows


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


def test_table_has_the_difference_to_rrm_by_seed():
    runs = {"vanilla": {0: 20.0, 1: 24.0}, "rrm": {0: 19.0, 1: 20.0, 2: 5.0}}
    results = {
        20: {
            method: {seed: {"error": error, "correlation": 1.0} for seed, error in seeds.items()}
            for method, seeds in runs.items()
        }
    }
    rows = table_rows(sketchy.table(results))
    assert rows[1] == ["Vanilla", "22.0 ± 2.8", "18.7 ± 1.1"]
    assert rows[-1] == ["error minus RRM's on the same seed, Vanilla", "2.5 ± 2.1"]


class Stop(Exception):
    pass


def test_resuming_restores_weights_and_optimizer(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def fit(folder, epochs):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")

        class Cut(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch + 1 == epochs:
                    raise Stop

        callbacks = [sketchy.Resume(folder, [(None, 3)]), Cut()]
        try:
            model.fit(x, x[:, :1], epochs=6, shuffle=False, verbose=0, callbacks=callbacks)
        except Stop:
            pass
        return model

    fit(tmp_path / "a", 3)
    resumed, whole = fit(tmp_path / "a", 6), fit(tmp_path / "b", 6)
    assert int(resumed.optimizer.iterations) == 6
    for a, b in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


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
    assert options.backbone == "resnet18"


@pytest.mark.slow
def test_all_methods_learn(tmp_path):
    arguments = "--classes 4 --pairs 100 --steps 120 --hidden 64 --seeds 0 --learning-rate 0.003"
    results = sketchy.main([*arguments.split(), "--output", str(tmp_path)])
    assert list(results[4]) == list(sketchy.NAMES)
    for runs in results[4].values():
        assert runs[0]["error"] < 50.0  # chance is 75
