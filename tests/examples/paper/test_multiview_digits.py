import correlation_gradient
import digits
import multiview_digits
import noisy_view
import numpy as np
import pytest

from tests.helpers.markdown import table_rows


def test_parts_are_disjoint_stratified_and_scaled_by_the_training_part():
    data = digits.split_data(["mor", "fac"], seed=3)
    sizes = {"train": 120, "valid": 30, "test": 50}
    for name, (views, labels, weights) in data.items():
        assert [x.shape for x in views] == [(10 * sizes[name], 6), (10 * sizes[name], 216)]
        np.testing.assert_array_equal(np.bincount(labels), [sizes[name]] * 10)
        np.testing.assert_array_equal(weights, 1.0)
    for view in data["train"][0]:
        np.testing.assert_allclose(view.mean(0), 0.0, atol=1e-4)
        np.testing.assert_allclose(view.std(0), 1.0, atol=1e-4)
    rows = np.concatenate([data[name][0][1] for name in data])
    assert len(np.unique(rows, axis=0)) == 1994  # six digits are in the data set twice


@pytest.mark.slow
def test_the_example_runs_and_reloads_what_it_saved(tmp_path, capsys):
    arguments = ["--epochs", "12", "--seeds", "0", "--components", "3", "--hidden", "32"]
    results = multiview_digits.main([*arguments, "--output", str(tmp_path)])
    for name in ("multiview_digits.png", "model.keras", "saved_model"):
        assert (tmp_path / name).exists()
    printed = capsys.readouterr().out
    assert "in a new process: logits differ by" in printed
    progress = [line for line in printed.splitlines() if "epoch" in line]
    assert [line.split(",")[0] for line in progress] == ["Vanilla", "ProxNet"]
    assert all(" seed 0: epoch 12/12, loss " in line for line in progress)
    (vanilla,), (prox,) = results["vanilla"], results["prox"]
    assert vanilla["after"] == vanilla["before"]
    assert sum(prox["after"]) > 1.2 * sum(prox["before"])
    for one in (vanilla, prox):
        assert one["error"] < 60.0  # chance is 90


def test_corruption_mixes_rows_of_other_digits():
    labels = np.repeat(np.arange(3), 4)
    view = labels[:, None] * np.ones((1, 2))
    np.testing.assert_array_equal(noisy_view.corrupt(view, labels, 0.0), view)
    mixed = noisy_view.corrupt(view, labels, 0.8)
    others = (mixed - 0.2 * view) / 0.8
    assert np.isin(np.rint(others[:, 0]), [0, 1, 2]).all()
    assert (np.abs(others - view) > 0.9).all()


@pytest.mark.slow
def test_noisy_view_runs(tmp_path, capsys):
    arguments = "--methods vanilla --epochs 4 --seeds 0 --noisy 1".split()
    results = noisy_view.main([*arguments, "--output", str(tmp_path)])
    for mode in ("alone", "average"):
        errors = results["vanilla"][0][mode]
        assert errors[0] < 60.0
        assert errors[3] > errors[0] + 3.0
    printed, written = capsys.readouterr().out, (tmp_path / "noisy_view.md").read_text()
    assert written in printed
    rows = table_rows(written)
    assert rows[0] == ["test error, %", "mode", "0%", "20%", "50%", "80%"]
    for row, mode in zip(rows[1:], ("alone", "average"), strict=True):
        errors = results["vanilla"][0][mode]
        assert row == ["Vanilla", mode, *(f"{error:.2f}" for error in errors)]


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Received: views="):
        multiview_digits.main(["--views", "fou", "gabor", "--output", str(tmp_path)])
    for arguments in (["--views", "fou"], ["--labels-per-class", "0"], ["--epochs", "0"]):
        with pytest.raises(SystemExit):
            multiview_digits.parse(arguments)


@pytest.mark.slow
def test_only_rrm_asks_the_encoders_for_correlation(tmp_path):
    arguments = "--seeds 0 --epochs 1 --batch-size 600 --labels-per-class 10".split()
    found = correlation_gradient.main([*arguments, "--output", str(tmp_path)])
    ours = [
        f"ProxNet{of}, lam {lam}" for lam in ("0.1", "1", "10") for of in ("", " with its envelope")
    ]
    assert list(found) == ["Vanilla", "RRM", *ours]
    for name, values in found.items():
        for cosine, unlabelled in values:
            asks = name in ("RRM", "ProxNet with its envelope, lam 10")
            assert abs(cosine) > 0.2 if asks else "envelope" in name or abs(cosine) < 0.2
            assert (unlabelled == 0.0) == (name == "Vanilla")
    rows = table_rows((tmp_path / "correlation_gradient.md").read_text())
    assert [row[0] for row in rows[1:]] == list(found)
