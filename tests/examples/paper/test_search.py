import json

import keras
import numpy as np
import pytest
import search

from tests.helpers.markdown import table_rows

SPACES = {"vanilla": {"lr": (0.01, 1.0)}, "ours": {"lr": (0.01, 1.0), "width": [8, 16]}}


def make(folder, seeds=(0, 1), validate=None):
    def validated(method, settings, seed):
        assert seed == search.TUNING_SEED
        return {"error": 100 * settings["lr"]}

    def test(method, settings, seed, condition):
        gain = 2.0 + seed if method == "ours" else 0.0
        return {condition: 10.0 * seed + 500 * (settings["lr"] > 0.1) - gain}

    validate = validate or validated
    return search.Study(folder, {}, SPACES, 4, seeds, ["easy"], validate, test)


def test_settings_fill_their_ranges_and_are_shared():
    ours, plain = (search.draw_settings(SPACES[name], 4) for name in ("ours", "vanilla"))
    assert [one["lr"] for one in ours] == [one["lr"] for one in plain]
    places = np.log10([one["lr"] for one in plain])  # -2 .. 0, one in each quarter
    assert sorted(np.floor((places + 2) * 2)) == [0, 1, 2, 3]
    assert {one["width"] for one in ours} <= {8, 16}
    assert search.draw_settings({}, 1) == [{}]


def test_the_best_settings_are_tested_with_every_seed(tmp_path, capsys):
    study, saved = make(tmp_path), []
    study.run(lambda: saved.append(len(study.log.runs)))
    assert saved == [10, 11, 12, 13]  # the size, 8 to tune
    assert study.results() == {"vanilla": {"easy": {0: 0.0, 1: 10.0}},
                               "ours": {"easy": {0: -2.0, 1: 7.0}}}  # fmt: skip
    printed = capsys.readouterr().out
    assert "1 of 12 runs, " in printed and "12 of 12 runs, 0 min left; ours, test easy" in printed
    names = {"vanilla": "Vanilla", "ours": "Ours"}
    rows = table_rows(study.tables("error", names, ["easy"], {"ours": {"easy": "3.0"}}))
    assert ["Vanilla", "5.0 ± 7.1"] in rows and ["paper: Ours", "3.0"] in rows
    assert ["Ours", "-2.5 ± 0.7"] in rows  # 2 and 3 less than Vanilla


def test_what_is_finished_is_not_run_again(tmp_path, capsys):
    make(tmp_path, seeds=[0]).run(lambda: None)
    capsys.readouterr()
    before = (tmp_path / "runs.jsonl").read_text()
    make(tmp_path, validate=lambda *_: 1 / 0).run(lambda: None)
    lines = (tmp_path / "runs.jsonl").read_text().removeprefix(before).splitlines()
    assert [json.loads(line)["run"]["seed"] for line in lines] == [1, 1]
    assert "11 of 12 runs" in capsys.readouterr().out


def test_a_method_that_never_ends_with_numbers_is_refused(tmp_path):
    study = make(tmp_path, validate=lambda *_: {"error": search.WORST})
    with pytest.raises(SystemExit, match="No setting of vanilla"):
        study.run(lambda: None)


def test_a_kept_model_trains_as_a_new_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 32, 5, 3)).astype("float32")

    def build():
        network = keras.Sequential(
            [keras.Input((5, 3)), keras.layers.LSTM(4, return_sequences=True),
             keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        )  # fmt: skip
        network.compile(keras.optimizers.Adam(), "mse")
        return search.Kept(network, [network])

    def train(kept, seed, rate):
        model = kept.reset(seed, rate)
        return model.fit(x, y, epochs=2, shuffle=False, verbose=0).history["loss"]

    kept = build()
    first, other = train(kept, 1, 0.01), train(kept, 2, 0.1)
    assert abs(first[1] - other[1]) > 1e-3
    np.testing.assert_allclose(train(kept, 1, 0.01), first, rtol=1e-6)
    np.testing.assert_allclose(train(build(), 1, 0.01), first, rtol=1e-6)


def test_lam_rises_to_its_last_value():
    (callback,) = search.scheduled("prox", {"lam": 0.5, "rise": 4.0}, 7)
    np.testing.assert_allclose([callback.schedule(0), callback.schedule(6)], [0.5, 2.0])
    (constant,) = search.scheduled("own", {"lam": 3.0}, 7)
    assert constant.schedule(6) == 3.0
    assert search.scheduled("rrm", {}, 7) == []
