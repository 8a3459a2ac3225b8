"""`make benchmark`: what is measured in turn, and one table of all scripts."""

import importlib.util
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.markdown import table_rows

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks"

GOOD = """
import timing

def benchmark():
    print("a remark")
    found = timing.Comparison(0.002, 0.004, 0.5, 0.25, 1.0)
    return [timing.row("slow", found, "1e-9"), timing.row("fast", found, inverse=True)]
"""
PLAIN = """
def main(arguments):
    assert arguments == ["--quick"]
    print("| its | table |")
"""
BAD = """
def benchmark():
    raise ValueError("no luck")
"""
ENDLESS = """
import time

def benchmark():
    print("begun", flush=True)
    time.sleep(60)
"""


def load(name, folder=FOLDER):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timing", None)
    return load("timing")


def test_two_things_are_timed_in_turn(timing, monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call(name, lengths):
        def function():
            now[0] += lengths[sum(c == name for c in calls)]
            calls.append(name)

        return function

    # The first calls, which trace, do not count.
    found = timing.compare(call("a", [99, 1, 2, 3, 4, 5, 6, 7]), call("b", [99, *[2] * 7]))
    assert calls == list("ababbaabbaabbaab")
    assert (found.ours, found.reference) == (4.0, 2.0)
    assert (found.ratio, found.least, found.largest) == (2.0, 0.5, 3.5)
    with pytest.raises(ValueError, match="at least 7"):
        timing.compare(None, None, repeats=6)


def test_what_is_timed_is_waited_for(timing):
    class Tensor:
        def numpy(self):
            done.append(self)

    done, tensors = [], [Tensor() for _ in range(3)]
    assert timing.seconds(lambda: [tensors[0], (tensors[1], None), tensors[2]]) >= 0.0
    assert done == tensors


@pytest.mark.slow
def test_one_table_of_all_scripts(timing, tmp_path, monkeypatch, capfd):
    sources = {"good": GOOD, "plain": PLAIN, "bad": BAD, "endless": ENDLESS}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    for name in ("all", "timing"):
        (tmp_path / f"{name}.py").write_text((FOLDER / f"{name}.py").read_text())
    module = load("all", tmp_path)
    limits, run = [], module.run

    def limited(name, limit):
        limits.append(limit)
        return run(name, 10.0 if name == "endless" else 300.0)

    monkeypatch.setattr(module, "run", limited)
    assert module.main(["--minutes", "2", "--output", str(tmp_path / "out")]) == 2
    assert limits[0] == pytest.approx(30.0, abs=2.0)
    text = (tmp_path / "out" / "benchmark.md").read_text()
    assert "bad failed (exit code 1): ValueError: no luck" in text
    assert "endless was stopped after 10 s" in text and "begun" in text
    rows = table_rows(text)
    assert rows[1] == ["good", "slow", "2", "4", "0.5", "0.25 to 1", "1e-9"]
    assert rows[2] == ["good", "fast", "2", "4", "2 x faster", "1 to 4", ""]
    assert rows[3] == ["its", "table"]
    assert "## good\n\na remark" in text
    assert "| its | table |" in capfd.readouterr().out


def test_the_scripts_are_those_of_the_folder(timing):
    module = load("all")
    assert {"operators", "prox_cca", "prox_lstm", "scaling"} <= set(module.scripts())
    assert not {"all", "timing"} & set(module.scripts())


def test_every_script_is_called_in_a_way_it_knows(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in load("all").scripts():
        module = load(name)
        if not hasattr(module, "benchmark"):
            inspect.signature(module.main).bind([])


@pytest.mark.slow
def test_the_generic_solver_is_compared_with_the_closed_form(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    load("operators").generic_table(np.random.default_rng(0), shape=(3, 2))
    rows = table_rows(capsys.readouterr().out)
    assert len(rows) == 7 and all(float(row[2]) < 1e-5 and row[3] == "0.000" for row in rows[1:])


@pytest.mark.slow
def test_scaling(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    rows = load("scaling").main(["--quick", "--output", str(tmp_path)])
    assert [kind for kind, _ in rows] == ["rows"] * 2 + ["width"] * 2 + ["replicas"] * 2
    for _, row in rows:
        assert 0 < row["seconds"] < 5 and row["peak"] > 0
        assert row["residual"] <= row["tolerance"] and row["iterations"] > 1
    single, double = rows[4][1], rows[5][1]
    assert double["iterations"] == single["iterations"]
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
