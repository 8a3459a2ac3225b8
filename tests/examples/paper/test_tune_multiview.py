"""The search over ProxNet on two views of digits."""

import json

import digits
import numpy as np
import pytest
import tensorflow as tf
import tune_multiview

pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


@pytest.mark.slow
def test_the_search_and_the_model_it_exports(tmp_path, capsys):
    arguments = ["--trials", "3", "--epochs", "1", "--output", str(tmp_path)]
    tune_multiview.main(arguments)
    printed = capsys.readouterr().out
    assert "3 of 3 trials completed" in printed
    numbers = json.loads((tmp_path / "tune_multiview.json").read_text())
    errors = [one["error"] for one in numbers]
    assert len(errors) == 3 and errors == sorted(errors) and errors[0] < 85  # chance is 90
    assert (tmp_path / "tune_multiview.png").read_bytes()[:4] == b"\x89PNG"
    views, labels, _ = digits.split_data(["fou", "zer"], 1)["test"]
    model = tf.saved_model.load(tmp_path / "tune_multiview_model")
    logits = model.serve([tf.constant(x, tf.float32) for x in views])
    error = 100 * np.mean(np.argmax(logits, 1) != labels)
    assert f"test error of the best model: {error:.2f} %" in printed
