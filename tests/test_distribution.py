"""Global-batch maps over replicas, in processes of their own (devices are fixed at start-up)."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from proxnet_tf import MultiWorkerStrategy
from tests.helpers.mirrored_models import MODELS

ROOT = Path(__file__).parents[1]


def start(module, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process):
    try:
        output, errors = process.communicate(timeout=900)
    finally:
        process.kill()
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert process.returncode == 0 and len(lines) == 1, errors[-3000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def mirrored(request):
    """What the process with two devices found, for the tests that were asked for."""
    tests = [i for i in request.session.items if i.path == Path(__file__)]
    asked = [
        " ".join(map(str, i.callspec.params.values())) for i in tests if hasattr(i, "callspec")
    ]
    return result_of(start("tests.helpers.mirrored", ASKED=json.dumps(asked)))


@pytest.mark.parametrize("case", ["31", "50", "moving", "moving, no rows", "25", "apart"])
@pytest.mark.parametrize("kind", ["cca", "gcca"])
def test_replicas_give_what_one_device_gives(mirrored, kind, case):
    assert mirrored["exactness"][f"{kind} {case}"] < 1e-9


@pytest.mark.parametrize("case", ["31", "50", "apart", "25"])
@pytest.mark.parametrize(
    "kind",
    ["cca loss", "gcca penalty", "gcca loss", "cca penalty", "cca envelope"],
)
def test_losses_over_replicas_are_those_of_one_device(mirrored, kind, case):
    assert mirrored["losses"][f"{kind} {case}"] < 1e-10


@pytest.mark.parametrize("split", ["31", "50"])
@pytest.mark.parametrize("what", ["layer", "loss", "envelope"])
def test_rows_that_lack_views_over_replicas_are_those_of_one_device(mirrored, what, split):
    assert mirrored["incomplete"][f"{what} {split}"] < 1e-9


@pytest.mark.parametrize("split", ["20", "32", "64"])
@pytest.mark.parametrize("metric", ["correlation", "pairwise", "recall", "median"])
def test_metric_of_an_epoch_over_replicas_is_that_of_one_device(mirrored, metric, split):
    found = mirrored["epoch"][metric]
    assert found["one device"] > 0.1
    assert abs(found[split] - found["one device"]) < 1e-10


@pytest.mark.parametrize(
    "model",
    ["views_model", "retrieval_model", "sequence_model", "correlated_model"],
)
def test_fit_under_a_strategy_equals_one_device(mirrored, model):
    fit = mirrored["fit"][model]
    assert fit["weights"] < 1e-5
    assert all(difference < 1e-5 for difference in fit["history"].values())
    assert fit["lam"] == ([0.5, 1.0] if model == "views_model" else None)


@pytest.mark.parametrize("name", MODELS)
def test_training_under_a_strategy_equals_that_on_one_device(mirrored, name):
    found = mirrored["models"][name]
    assert found["moved"] > 1e-3
    assert found["loss"] < 1e-5
    assert found["weights"] < 1e-5


@pytest.mark.parametrize("device", ["CPU:1"])
def test_solver_device_solves_there_and_sends_only_small_matrices(mirrored, device):
    found = mirrored["solver device"][device]
    assert found["error"] < 1e-6
    # The decompositions are inside of what is called there.
    assert {"PartitionedCall", "MatrixInverse", "MatMul"} <= {*found["operations"]}
    assert found["longest"] <= 7
    assert found["by default"] == 0


def start_workers(module, **environment):
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    clusters = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        for rank in (0, 1)
    ]
    return [start(module, TF_CONFIG=json.dumps(cluster), **environment) for cluster in clusters]


def results_of(processes):
    try:
        return [result_of(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_workers_fit_as_one_device():
    chief, other = results_of(start_workers("tests.helpers.worker"))
    assert chief["chief"] and not other["chief"]
    for one in (chief, other):
        assert one["replicas"] == 2
        assert one["moved"] > 1e-2
        assert one["names"] == ["loss", "mae", "val_loss", "val_mae"]
    assert chief["weights"] < 1e-5
    assert chief["history"] < 1e-5


@pytest.mark.slow
def test_two_workers_go_on_after_one_was_killed(tmp_path):
    """And end where one device ends that was never interrupted."""
    module, backup = "tests.helpers.fit_worker", str(tmp_path)
    chief, other = start_workers(module, BACKUP=backup, KILL="1")
    try:
        _, errors = chief.communicate(timeout=600)
        other.communicate(timeout=60)
    finally:
        chief.kill()
        other.kill()
    assert other.returncode == -signal.SIGKILL
    assert chief.returncode == 1 and "UnavailableError" in errors
    assert json.loads((tmp_path / "backup/training_metadata.json").read_text())["epoch"] == 2

    chief, other = results_of(start_workers(module, BACKUP=backup))
    for one in (chief, other):
        assert one["loop"] < 1e-6
        assert one["epochs"] == [2, 3]
    assert chief["backup"] is False  # nothing is left to restore
    assert chief["checkpoint"] == 0.0
    assert chief["weights"] < 1e-5
    assert chief["prediction"] < 1e-5
    assert {"accuracy", "lam", "unsolved", "val_accuracy"} < {*chief["history"]}
    assert max(chief["history"].values()) < 1e-5


@pytest.mark.parametrize(
    ("jobs", "task", "expected"),
    [
        ({}, (None, None), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("chief", 0), True),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("worker", 0), False),
    ],
)
def test_one_worker_is_the_chief(jobs, task, expected):
    class Place:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type=task[0], task_id=task[1]
        )

    assert MultiWorkerStrategy.is_chief.fget(Place) is expected


def test_reductions_of_one_worker():
    strategy = MultiWorkerStrategy()
    values = strategy.run(lambda: {"scalar": tf.constant(3.0), "rows": tf.constant([1.0, 4.0])})
    assert float(strategy.reduce("MEAN", values["scalar"], axis=0)) == 3.0
    assert float(strategy.reduce("MEAN", values["rows"], axis=0)) == 2.5
    assert strategy.reduce("SUM", values["rows"], axis=None).numpy().tolist() == [1.0, 4.0]
    assert strategy.reduce("MEAN", values, axis=None)["rows"].numpy().tolist() == [1.0, 4.0]
