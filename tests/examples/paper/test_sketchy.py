import json

import glyphs
import images
import keras
import numpy as np
import pytest
import sketchy
import tensorflow as tf

from tests.helpers.markdown import table_rows

TINY = "--classes 2 --pairs 10 --hidden 8 --seeds 3 --epochs 4".split()


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


def test_steps_set_epochs_and_compress_the_schedule():
    options = sketchy.parse("--classes 5 25 --steps 100".split())
    found = sketchy.with_schedule(options, 25, 2000)
    assert (found.epochs, found.growth) == (5, 30.0)
    options = sketchy.parse("--classes 5 25 --steps 100 400".split())
    assert [sketchy.with_schedule(options, n, 2000).epochs for n in (5, 25)] == [5, 20]
    found = sketchy.with_schedule(sketchy.parse(["--epochs", "9"]), 20, 2000)
    assert (found.epochs, found.growth) == (9, 0.5)
    with pytest.raises(SystemExit):
        sketchy.parse("--classes 5 10 20 --steps 100 400".split())


def test_table_has_the_difference_to_rrm_by_seed():
    runs = {
        "vanilla": {0: 20.0, 1: 24.0},
        "rrm": {0: 19.0, 1: 20.0, 2: 5.0},
    }
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


@pytest.fixture
def stop_at(monkeypatch):
    """Lets training end with `Stop` after an epoch; returns the epochs that were trained."""
    trained = []
    original = sketchy.History.on_epoch_end

    def start(stage, epoch):
        def on_epoch_end(self, current, logs=None):
            original(self, current, logs)
            trained.append((self.path.stem, current))
            if (self.path.stem, current) == (stage, epoch):
                raise Stop

        monkeypatch.setattr(sketchy.History, "on_epoch_end", on_epoch_end)
        trained.clear()
        return trained

    return start


@pytest.mark.slow
def test_prox_goes_on_where_it_was_stopped(stop_at, tmp_path, capsys):
    arguments = [*TINY, "--methods", "prox", "--output", str(tmp_path)]
    stop_at("fit", 1)
    with pytest.raises(Stop):
        sketchy.main(arguments)
    trained = stop_at(None, None)
    results = sketchy.main(arguments)
    assert trained == [("fit", 2), ("fit", 3)]
    folder = tmp_path / "sketchy/2-prox-3"
    epochs = json.loads((folder / "fit.json").read_text())
    np.testing.assert_allclose([e["lam"] for e in epochs], [0.1, 0.15, 0.2, 0.25], rtol=1e-5)
    rates = [e["learning_rate"] for e in epochs]
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 1e-4, 1e-4], rtol=1e-5)
    measured = results[2]["prox"][3]
    # As many components as the four test pairs allow, at full correlation before and after.
    both = [measured["correlation"], measured["correlation_with_layer"]]
    np.testing.assert_allclose(both, 3.0, rtol=1e-6)
    assert {p.name for p in folder.iterdir()} == {"fit.json", "settings.json", "result.json"}

    trained.clear()
    assert sketchy.main(arguments) == results  # finished runs are kept
    assert not trained
    with pytest.raises(ValueError, match="a run with other settings"):
        sketchy.main([*arguments, "--alpha0", "1"])
    rows = table_rows((tmp_path / "sketchy.md").read_text())
    assert ["ProxNet", f"{measured['error']:.1f} ± 0.0", ""] in rows
    assert "ProxNet" in capsys.readouterr().out


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
