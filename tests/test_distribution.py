"""Global-batch maps over replicas, in processes of their own (devices are fixed at start-up)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
def mirrored():
    return result_of(start("tests.helpers.mirrored"))


@pytest.mark.parametrize("case", ["25", "31", "50", "moving", "moving, no rows", "apart"])
@pytest.mark.parametrize("kind", ["cca", "gcca"])
def test_replicas_give_what_one_device_gives(mirrored, kind, case):
    assert mirrored["exactness"][f"{kind} {case}"] < 1e-9


@pytest.mark.parametrize("case", ["25", "31", "50", "apart"])
@pytest.mark.parametrize(
    "kind", ["cca loss", "gcca loss", "cca penalty", "cca envelope", "gcca penalty"]
)
def test_losses_over_replicas_are_those_of_one_device(mirrored, kind, case):
    assert mirrored["losses"][f"{kind} {case}"] < 1e-10


@pytest.mark.parametrize("split", ["31", "50"])
@pytest.mark.parametrize("what", ["layer", "loss", "envelope"])
def test_rows_that_lack_views_over_replicas_are_those_of_one_device(mirrored, what, split):
    assert mirrored["incomplete"][f"{what} {split}"] < 1e-9


@pytest.mark.parametrize("split", ["32", "20", "64"])
@pytest.mark.parametrize("metric", ["correlation", "pairwise", "recall", "median"])
def test_metric_of_an_epoch_over_replicas_is_that_of_one_device(mirrored, metric, split):
    found = mirrored["epoch"][metric]
    assert found["one device"] > 0.1
    assert abs(found[split] - found["one device"]) < 1e-10


@pytest.mark.parametrize(
    "model", ["views_model", "sequence_model", "retrieval_model", "correlated_model"]
)
def test_fit_under_a_strategy_equals_one_device(mirrored, model):
    fit = mirrored["fit"][model]
    assert fit["weights"] < 1e-5
    assert all(difference < 1e-5 for difference in fit["history"].values())
    assert fit["lam"] == ([0.5, 1.0] if model == "views_model" else None)


def test_solver_device_solves_there_and_sends_only_small_matrices(mirrored):
    found = mirrored["solver device"]
    assert found["error"] < 1e-6
    # The decompositions are inside of what is called there.
    assert {"PartitionedCall", "MatrixInverse", "MatMul"} <= {*found["operations"]}
    assert found["longest"] <= 7
    assert found["by default"] == 0


def test_two_workers_in_a_custom_loop():
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    for rank in (0, 1):
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        processes.append(start("tests.helpers.worker", TF_CONFIG=json.dumps(cluster)))
    try:
        found = [result_of(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for one in found:
        assert one["replicas"] == 2
        assert one["error"] < 1e-6
