import dataclasses
import json

import keras
import numpy as np
import pytest
import sequence_classification as example
import sequence_training as training

from proxnet_tf.datasets.japanese_vowels import Sequences
from tests.helpers.markdown import table_rows


def sequences(lengths, features=2):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    values = np.where(mask[..., None], np.arange(1, len(lengths) + 1)[:, None, None], 0.0)
    values = np.repeat(values, features, -1).astype(np.float32)
    return Sequences(values, mask, np.arange(len(lengths), dtype=np.int32) % 2)


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


def test_other_data_sets_need_a_path(tmp_path):
    with pytest.raises(SystemExit):
        example.main(["--dataset", "har", "--output", str(tmp_path)])
    for option in ("--seeds", "--epochs", "--fine-tune", "--examples"):
        with pytest.raises(SystemExit):
            example.main([option, "0", "--output", str(tmp_path)])
    with pytest.raises(ValueError, match=r"no such file.*dataset/240"):
        example.main(["--dataset", "har", "--data", str(tmp_path / "x"), "--output", str(tmp_path)])
