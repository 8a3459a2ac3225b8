import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest
import sequence_classification as example
import sequence_training as training

from proxnet_tf.datasets import load_japanese_vowels
from proxnet_tf.datasets.japanese_vowels import Sequences
from tests.helpers.markdown import table_rows


def sequences(lengths, features=2):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    values = np.where(mask[..., None], np.arange(1, len(lengths) + 1)[:, None, None], 0.0)
    values = np.repeat(values, features, -1).astype(np.float32)
    return Sequences(values, mask, np.arange(len(lengths), dtype=np.int32) % 2)


def passes(data, size, similar, count):
    """The mini-batches of the first `count` passes, and their number in a pass."""
    found = training.batches(data.values, data.labels, size, similar, seed=0)
    n = -(-len(data.labels) // size)
    return [list(itertools.islice(found, n)) for _ in range(count)]


def test_batches_hold_similar_lengths():
    train, _ = load_japanese_vowels()
    lengths = train.mask.sum(1)
    first, second = passes(train, 45, True, 2)
    found = [np.any(x != 0, -1).sum(1) for x, _ in first]
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(lengths))
    assert [x.shape[1] for x, _ in first] == [16 if b.max() <= 16 else 29 for b in found]
    assert {x.shape[1] for x, _ in first} == {16, 29}
    ends = sorted((b.min(), b.max()) for b in found)
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))
    labels = np.concatenate([y for _, y in first])
    np.testing.assert_array_equal(np.bincount(labels), [30] * 9)
    assert [tuple(b) for b in found] != sorted(tuple(b) for b in found)
    assert any(a.tobytes() != b.tobytes() for (a, _), (b, _) in zip(first, second, strict=True))


def test_split_and_normalization():
    data = sequences([3, 1, 2] * 8)
    fitted, held_out = training.split(data, 0)
    assert sorted([*fitted, *held_out]) == list(range(24))
    assert len(held_out) == 4
    train, test = training.normalized(training.TASKS["har"], data, data, fitted)
    steps = train[fitted][data.mask[fitted]]
    np.testing.assert_allclose((steps.mean(0), steps.std(0)), ([0, 0], [1, 1]), atol=1e-5)
    assert not train[~data.mask].any()
    np.testing.assert_array_equal(train, test)


def test_speakers_are_held_out_whole():
    labels = np.repeat(np.arange(3), 120)  # 12 speakers say every digit ten times
    data = sequences([2] * 360)._replace(labels=labels)
    fitted, held_out = training.split(data, 0, speakers=True)
    assert sorted([*fitted, *held_out]) == list(range(360))
    speaker = np.tile(np.arange(120) // 10, 3)
    assert len(set(speaker[held_out])) == 2 and not set(speaker[held_out]) & set(speaker[fitted])
    np.testing.assert_array_equal(np.bincount(labels[held_out]), [20] * 3)
    assert set(speaker[training.split(data, 1, speakers=True)[1]]) != set(speaker[held_out])


def test_a_grid_grows_until_its_best_value_is_inside():
    assert [example.strength("epsilon", k) for k in range(-2, 4)] == [0.1, 0.3, 1, 3, 10, 30]
    assert [example.strength("lam", k) for k in (-2, 0, 1)] == [0.01, 1, 10]
    asked = []

    def score(k):
        asked.append(k)
        return -abs(k - 4)

    assert example.choose(score, (0, 1, 2)) == (
        4,
        dict(zip(range(6), (-4, -3, -2, -1, 0, -1), strict=True)),
        False,
    )
    assert asked == [0, 1, 2, 3, 4, 5]  # each once
    assert example.choose(lambda k: -k, (0, 1, 2))[::2] == (-6, True)
    assert example.choose(lambda k: -abs(k - 1), (0, 1, 2))[::2] == (1, False)
    least = example.choose(lambda k: -k, (-4, -2, -1), least=-3)
    assert least == (-3, {-3: 3, -2: 2, -1: 1}, True)
    assert example.choose(lambda k: -abs(k + 2), (-3, -2, -1), least=-3)[::2] == (-2, False)


def test_networks_are_those_of_the_paper():
    wanted = {"japanese_vowels": (32, 3, 64), "har": (64, 8, 128), "arabic_digits": (64, 3, 64)}
    data = sequences([5, 4], features=9)
    for name, (filters, kernel, units) in wanted.items():
        task = training.TASKS[name]
        recurrent = keras.layers.LSTM(task.units, name="recurrent")
        network = training.make_model(task, data, recurrent, 0)
        shapes = [tuple(w.shape) for w in network.weights]
        assert shapes[0] == (kernel, 9, filters)
        assert shapes[2:4] == [(filters, 4 * units), (units, 4 * units)]
        assert shapes[-1] == (2,)
    words = sequences([5, 4])._replace(values=np.array([[3, 1, 2, 0], [1, 0, 0, 0]], np.int32))
    recurrent = keras.layers.LSTM(64, name="recurrent")
    network = training.make_model(training.TASKS["imdb"], words, recurrent, 7)
    shapes = [tuple(w.shape) for w in network.weights]
    assert shapes[0] == (7, 64) and shapes[4:] == [(64, 30), (30,), (30, 2), (2,)]
    short = words._replace(values=words.values[:, :3])
    recurrent = keras.layers.LSTM(64, name="recurrent")
    other = training.make_model(training.TASKS["imdb"], short, recurrent, 7)
    other.set_weights(network.get_weights())
    np.testing.assert_allclose(other(short.values), network(words.values), atol=1e-6)


def small(monkeypatch, name, **changes):
    """A grid of one value for each method: fewer runs."""
    task = dataclasses.replace(training.TASKS[name], epsilons=(-1,), **changes)
    monkeypatch.setitem(training.TASKS, name, task)
    monkeypatch.setattr(example, "LAMS", (-1,))
    monkeypatch.setattr(example, "MOST", 1)
    monkeypatch.setattr(example, "NOISES", (0.5,))
    monkeypatch.setattr(example, "RADII", (0.5,))


METHODS = ["LSTM", "AdvLSTM", "ProxLSTM", "both at once", "ProxLSTM after AdvLSTM"]


def write_ramps(folder):
    rng = np.random.default_rng(0)
    for part, count in (("TRAIN", 48), ("TEST", 20)):  # fewer than t-SNE's usual perplexity
        lines = ["@classLabel true rise fall", "@data"]
        for k in range(count):
            length = rng.integers(4, 7)
            ramp = np.linspace(-1, 1, length) * (1 if k % 2 else -1)
            rows = ramp + rng.normal(scale=0.2, size=(2, length))
            series = ":".join(",".join(f"{v:.4f}" for v in row) for row in rows)
            lines.append(f"{series}:{['fall', 'rise'][k % 2]}")
        (folder / f"Ramps_{part}.ts").write_text("\n".join(lines))


@pytest.mark.slow
def test_a_uea_pair_from_files_to_table(monkeypatch, tmp_path):
    write_ramps(tmp_path)
    small(monkeypatch, "uea", batch=8, filters=8)
    arguments = "--dataset uea --seeds 2 --tuning-seeds 1 --epochs 30 --fine-tune 4 --units 4"
    arguments += f" --counts 8 --data {tmp_path} --output {tmp_path} --methods"
    results = example.main([*arguments.split(), *METHODS])
    assert list(results[None]) == METHODS and list(results[8]) == METHODS[:4]
    for by_seed in results[None].values():
        rows = [by_seed[0], by_seed[1]]
        assert [list(row) for row in rows] == [["clean", "noise 0.5", "L2 attack 0.5"]] * 2
        assert min(row["clean"] for row in rows) > 75.0  # chance is 50
        assert all(row["L2 attack 0.5"] <= row["clean"] for row in rows)
    lines = (tmp_path / "uea.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    chosen = {s["run"]["method"]: s["result"] for s in stored if s["run"]["stage"] == "chosen"}
    assert chosen["AdvLSTM"]["settings"] == {"epsilon": 0.3}
    assert chosen["ProxLSTM"]["settings"] == {"lam": 0.1}
    assert chosen["both at once"]["settings"] == {"epsilon": 0.3, "lam": 0.1}
    assert chosen["both at once"]["at_edge"]
    rows = table_rows((tmp_path / "uea.md").read_text())
    few, clean = (
        {name: [by_seed[k]["clean"] for k in (0, 1)] for name, by_seed in results[count].items()}
        for count in (8, None)
    )
    for name in METHODS[:4]:
        cells = [f"{np.mean(v[name]):.2f} ± {np.std(v[name], ddof=1):.2f}" for v in (few, clean)]
        assert [name, *cells] in rows
    ((_, *gains),) = [row for row in rows if row[0] == "clean, 95 % interval of the mean"]
    assert gains[0].startswith(f"{np.mean(clean['AdvLSTM']) - np.mean(clean['LSTM']):+.2f} ±")
    for name in ("uea_tsne", "uea_curve"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"

    # A run that a stop cut off is done again, the others are kept.
    (tmp_path / "uea.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    measure, measured = example.Study.measure, []

    def measure_and_count(self, *which):
        measured.append(which)
        return measure(self, *which)

    monkeypatch.setattr(example.Study, "measure", measure_and_count)
    again = example.main([*arguments.split(), *METHODS])
    assert again == results and measured == [("both at once", 1, 8)]
    with pytest.raises(SystemExit, match="another size"):
        example.main([*arguments.replace("--epochs 30", "--epochs 29").split(), *METHODS])
    report = ["--dataset", "uea", "--output", str(tmp_path), "--report"]
    assert example.main(report) == results


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
    arguments = "--dataset imdb --seeds 1 --epochs 20 --fine-tune 2 --units 8 --words 20 --steps 10"
    arguments += " --methods AdvLSTM ProxLSTM"
    arguments += f" --data {tmp_path / 'imdb.npz'} --output {tmp_path}"
    results = example.main(arguments.split())
    for by_seed in results[None].values():
        assert list(by_seed[0]) == ["clean"] and by_seed[0]["clean"] > 70.0


def test_stages_start_where_they_should(monkeypatch, tmp_path):
    """Which network is trained, with which settings, from whose weights, for how long."""
    trained = []

    class Fake:
        def __init__(self, task, data, vocabulary, prox, adversarial):
            self.kind = prox, adversarial

        def train(self, start, data, steps, seed, epsilon=None, lam=None):
            trained.append((*self.kind, start, steps, epsilon, lam))

        def get(self):
            return "trained"

    monkeypatch.setattr(example, "Network", Fake)
    monkeypatch.setattr(example, "fresh_weights", lambda *_: "fresh")
    options = example.parse(f"--epochs 4 --fine-tune 2 --output {tmp_path}".split())
    for words, early in ((False, None), (True, 3.0)):
        task = dataclasses.replace(training.TASKS["japanese_vowels"], words=words)
        for name, first, second in (
            ("LSTM", None, (False, False, None, None)),
            ("AdvLSTM", early, (False, True, 3.0, None)),
            ("ProxLSTM", None, (True, False, None, 0.1)),
            ("both at once", early, (True, True, 3.0, 0.1)),
            ("ProxLSTM after AdvLSTM", 3.0, (True, False, None, 0.1)),
        ):
            trained.clear()
            known = {} if name in ("LSTM", "ProxLSTM") else {"epsilon": 3.0}
            settings = {**known, "lam": 0.1} if "Prox" in name or "both" in name else known
            example.Study(task, options).trained(name, settings, 0)
            assert trained == [
                (False, first is not None, "fresh", 20, first, None),
                (*second[:2], "trained", 10, *second[2:]),
            ]


def test_other_data_sets_need_a_path(tmp_path):
    with pytest.raises(SystemExit):
        example.main(["--dataset", "har", "--output", str(tmp_path)])
    for option in ("--seeds", "--epochs", "--fine-tune", "--examples"):
        with pytest.raises(SystemExit):
            example.main([option, "0", "--output", str(tmp_path)])
    with pytest.raises(ValueError, match=r"no such file.*dataset/240"):
        example.main(["--dataset", "har", "--data", str(tmp_path / "x"), "--output", str(tmp_path)])
