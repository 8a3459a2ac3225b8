import numpy as np
import pytest

from examples import multiview_digits


def test_parts_are_disjoint_stratified_and_scaled_by_the_training_part():
    data = multiview_digits.split_data(["mor", "fac"], seed=3)
    sizes = {"train": 120, "valid": 30, "test": 50}
    for name, (views, labels) in data.items():
        assert [x.shape for x in views] == [(10 * sizes[name], 6), (10 * sizes[name], 216)]
        np.testing.assert_array_equal(np.bincount(labels), [sizes[name]] * 10)
    for view in data["train"][0]:
        np.testing.assert_allclose(view.mean(0), 0.0, atol=1e-4)
        np.testing.assert_allclose(view.std(0), 1.0, atol=1e-4)
    rows = np.concatenate([data[name][0][1] for name in data])
    assert len(np.unique(rows, axis=0)) == 1994  # six digits are in the data set twice
    again = multiview_digits.split_data(["mor", "fac"], seed=3)
    np.testing.assert_array_equal(again["test"][0][0], data["test"][0][0])


def test_the_example_runs_and_reloads_what_it_saved(tmp_path, capsys):
    arguments = ["--epochs", "2", "--seeds", "0", "--components", "3", "--hidden", "16"]
    results = multiview_digits.main([*arguments, "--output", str(tmp_path)])
    for name in ("multiview_digits.png", "model.keras", "saved_model"):
        assert (tmp_path / name).exists()
    assert "in a new process: logits differ by" in capsys.readouterr().out
    (vanilla,), (prox,) = results["Vanilla"], results["ProxNet"]
    assert vanilla["after"] == vanilla["before"]
    assert sum(prox["after"]) > 1.2 * sum(prox["before"])
    for run in (vanilla, prox):
        assert run["error"] < 85.0  # chance is 90


def test_unknown_views_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Received: views="):
        multiview_digits.main(["--views", "fou", "gabor", "--output", str(tmp_path)])
