import dataclasses
import itertools
import json

import numpy as np
import pytest
import sequence_classification as example

from proxnet_tf.datasets import load_japanese_vowels
from proxnet_tf.datasets.japanese_vowels import Sequences
from tests.helpers.markdown import table_rows


def sequences(lengths, features=2):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    values = np.where(mask[..., None], np.arange(1, len(lengths) + 1)[:, None, None], 0.0)
    values = np.repeat(values, features, -1).astype(np.float32)
    return Sequences(values, mask, np.arange(len(lengths), dtype=np.int32) % 2)


def test_batches_hold_similar_lengths():
    train, _ = load_japanese_vowels()
    lengths = train.mask.sum(1)
    found = list(example.batches(train.values, train.labels, 45, True, seed=0))
    batch_lengths = [np.any(x.numpy() != 0, -1).sum(1) for x, _ in found]
    np.testing.assert_array_equal(np.sort(np.concatenate(batch_lengths)), np.sort(lengths))
    ends = sorted((b.min(), b.max()) for b in batch_lengths)
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))
    labels = np.concatenate([y for _, y in found])
    np.testing.assert_array_equal(np.bincount(labels), [30] * 9)
    assert [tuple(b) for b in batch_lengths] != sorted(tuple(b) for b in batch_lengths)


def test_batches_of_words_are_drawn_at_random():
    data = sequences([1, 2, 3, 4] * 10)
    (x, _), *_ = example.batches(data.values, data.labels, 20, False, seed=0)
    assert len(set(np.any(x.numpy() != 0, -1).sum(1))) > 2


def test_split_and_normalization():
    data = sequences([3, 1, 2] * 8)
    fitted, held_out = example.split(data, 0)
    assert sorted([*fitted, *held_out]) == list(range(24))
    assert len(held_out) == 4
    train, test = example.normalized(example.TASKS["har"], data, data, fitted)
    steps = train[fitted][data.mask[fitted]]
    np.testing.assert_allclose((steps.mean(0), steps.std(0)), ([0, 0], [1, 1]), atol=1e-5)
    assert not train[~data.mask].any()
    np.testing.assert_array_equal(train, test)


def test_at_most_so_many_examples():
    data = sequences([1, 2, 3])
    assert example.first(data, None, 0) is data
    assert example.first(data, 3, 0) is data
    two = example.first(data, 2, 0)
    assert len(two.labels) == 2
    np.testing.assert_array_equal(
        two.mask.sum(1), [[1, 2, 3][int(v) - 1] for v in two.values[:, 0, 0]]
    )


def test_networks_are_those_of_the_paper():
    wanted = {"japanese_vowels": (32, 3, 64), "har": (64, 8, 128), "arabic_digits": (64, 3, 64)}
    data = sequences([5, 4], features=9)
    for name, (filters, kernel, units) in wanted.items():
        task = example.TASKS[name]
        recurrent = example.keras.layers.LSTM(task.units, name="recurrent")
        network = example.make_model(task, data, recurrent, 0)
        shapes = [tuple(w.shape) for w in network.weights]
        assert shapes[0] == (kernel, 9, filters)
        assert shapes[2:4] == [(filters, 4 * units), (units, 4 * units)]
        assert shapes[-1] == (2,)
    words = sequences([5, 4])._replace(values=np.array([[3, 1, 2, 0], [1, 0, 0, 0]], np.int32))
    recurrent = example.keras.layers.LSTM(64, name="recurrent")
    network = example.make_model(example.TASKS["imdb"], words, recurrent, 7)
    shapes = [tuple(w.shape) for w in network.weights]
    assert shapes[0] == (7, 64) and shapes[4:] == [(64, 30), (30,), (30, 2), (2,)]
    short = words._replace(values=words.values[:, :3])
    recurrent = example.keras.layers.LSTM(64, name="recurrent")
    other = example.make_model(example.TASKS["imdb"], short, recurrent, 7)
    other.set_weights(network.get_weights())
    np.testing.assert_allclose(other(short.values), network(words.values), atol=1e-6)


def small(monkeypatch, name, **changes):
    """One value to choose from for each method: fewer graphs."""
    task = dataclasses.replace(example.TASKS[name], epsilons=(0.5,), **changes)
    monkeypatch.setitem(example.TASKS, name, task)
    monkeypatch.setattr(example, "LAMS", (0.1,))
    monkeypatch.setattr(example, "NOISES", (0.5,))
    monkeypatch.setattr(example, "RADII", (0.5,))


@pytest.mark.slow
def test_a_uea_pair_from_files_to_table(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("TRAIN", 48), ("TEST", 20)):  # fewer than t-SNE's usual perplexity
        lines = ["@classLabel true rise fall", "@data"]
        for k in range(count):
            length = rng.integers(4, 7)
            ramp = np.linspace(-1, 1, length) * (1 if k % 2 else -1)
            rows = ramp + rng.normal(scale=0.2, size=(2, length))
            series = ":".join(",".join(f"{v:.4f}" for v in row) for row in rows)
            lines.append(f"{series}:{['fall', 'rise'][k % 2]}")
        (tmp_path / f"Ramps_{part}.ts").write_text("\n".join(lines))
    small(monkeypatch, "uea", batch=8, filters=8)
    arguments = "--dataset uea --seeds 2 --tuning-seeds 1 --epochs 12 --fine-tune 2 --units 4"
    arguments += f" --data {tmp_path} --output {tmp_path}"
    results = example.main(arguments.split())
    assert list(results) == ["LSTM", "AdvLSTM", "ProxLSTM"]
    for rows in results.values():
        assert [list(row) for row in rows] == [["clean", "noise 0.5", "L2 attack 0.5"]] * 2
        assert min(row["clean"] for row in rows) > 75.0  # chance is 50
        assert all(row["L2 attack 0.5"] <= row["clean"] for row in rows)
    stored = json.loads((tmp_path / "uea.json").read_text())
    assert stored["results"] == results and stored["settings"]["lam"] == 0.1
    table = {row[0]: row[1:] for row in table_rows((tmp_path / "uea.md").read_text())}
    clean = [[row["clean"] for row in rows] for rows in results.values()]
    assert table["clean"] == [f"{np.mean(v):.2f} ± {np.std(v, ddof=1):.2f}" for v in clean]
    assert table["ProxLSTM - AdvLSTM, clean"][0].startswith(
        f"{np.mean(clean[2]) - np.mean(clean[1]):+.2f} ±"
    )
    assert (tmp_path / "uea_tsne.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_reviews(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        labels = np.arange(240) % 2
        lengths = rng.integers(5, 12, 240)
        reviews = [rng.integers(4, 20, n) for n in lengths]
        for review, label in zip(reviews, labels, strict=True):
            review[rng.integers(len(review), size=3)] = 2 + label
        arrays[f"x_{part}_ids"] = np.concatenate(reviews)
        arrays[f"x_{part}_lengths"], arrays[f"y_{part}"] = lengths, labels
    np.savez(tmp_path / "imdb.npz", **arrays)
    small(monkeypatch, "imdb", batch=16)
    arguments = "--dataset imdb --seeds 2 --epochs 20 --fine-tune 2 --units 8 --words 20 --steps 10"
    arguments += f" --data {tmp_path / 'imdb.npz'} --output {tmp_path}"
    results = example.main(arguments.split())
    for rows in results.values():
        assert [list(row) for row in rows] == [["clean"]] * 2
        assert min(row["clean"] for row in rows) > 70.0


def test_other_data_sets_need_a_path(tmp_path):
    with pytest.raises(SystemExit):
        example.main(["--dataset", "har", "--output", str(tmp_path)])
    for option in ("--seeds", "--epochs", "--fine-tune", "--examples"):
        with pytest.raises(SystemExit):
            example.main([option, "0", "--output", str(tmp_path)])
    with pytest.raises(ValueError, match=r"no such file.*dataset/240"):
        example.main(["--dataset", "har", "--data", str(tmp_path / "x"), "--output", str(tmp_path)])
