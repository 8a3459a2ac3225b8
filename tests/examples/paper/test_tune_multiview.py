import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import digits
import numpy as np
import pytest
import tensorflow as tf
import tune_multiview

pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]


def check_output(folder, trials):
    numbers = json.loads((folder / "tune_multiview.json").read_text())
    assert len(numbers) == trials
    errors = [one["error"] for one in numbers]
    assert errors == sorted(errors) and errors[0] < 85  # chance is 90
    assert (folder / "tune_multiview.png").read_bytes()[:4] == b"\x89PNG"
    return numbers


def start(folder):
    command = [sys.executable, tune_multiview.__file__, "--trials", "5", "--epochs", "1"]
    command += ["--workers", "2", "--output", str(folder)]
    root = str(Path(tune_multiview.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_workers_and_one_that_dies(tmp_path):
    with start(tmp_path) as process:
        for line in process.stdout:
            if line.startswith("tuner1: process"):
                victim = int(line.split()[-1])
                break
        oracle, deadline = tmp_path / "tune_multiview" / "oracle.json", time.monotonic() + 300
        ongoing = {}
        while "tuner1" not in ongoing and time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                ongoing = json.loads(oracle.read_text())["ongoing_trials"]
            except (FileNotFoundError, json.JSONDecodeError):
                pass
        os.kill(victim, signal.SIGKILL)
        printed = process.stdout.read()
    assert process.returncode == 1, printed
    assert "tuner1 died (exit code -9), its trial is unfinished" in printed
    assert "4 of 5 trials completed" in printed
    assert "tuner1 died; the same command continues the search" in printed
    check_output(tmp_path, 4)

    with start(tmp_path) as process:
        printed = process.stdout.read()
    assert process.returncode == 0, printed
    assert f"trial {ongoing['tuner1']} of 5: validation error" in printed
    assert "5 of 5 trials completed" in printed
    assert {one["trial"] for one in check_output(tmp_path, 5)} == set("01234")
    views, labels, _ = digits.split_data(["fou", "zer"], 1)["test"]
    model = tf.saved_model.load(tmp_path / "tune_multiview_model")
    logits = model.serve([tf.constant(x, tf.float32) for x in views])
    error = 100 * np.mean(np.argmax(logits, 1) != labels)
    assert f"test error of the best model: {error:.2f} %" in printed
