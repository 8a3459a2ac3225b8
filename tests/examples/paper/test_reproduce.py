import argparse
import importlib
import json
import shlex

import pytest
import reproduce
from reproduce import Data, Experiment

SCRIPT = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--epochs", type=int)
parser.add_argument("--output", type=pathlib.Path)
options = parser.parse_args()
print(f"{options.epochs} epochs")
with open(options.output / "runs", "a") as file:
    file.write(".")
if options.data and options.data.read_text() == "cut":
    raise SystemExit("the file is cut")
(options.output / "table.md").write_text(f"| error | {options.epochs} |\\n")
(options.output / "curve.png").write_bytes(b"PNG")
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Two experiments: of a script that needs no data, and of one that needs a file."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr(reproduce, "FOLDER", tmp_path)
    data = Data((("--data", ("one.txt", "two.txt")),), "https://example.org")
    first = Experiment("First", "script.py", "--epochs 2", "--epochs 100", (data,))
    second = Experiment("Second", "script.py", "--epochs 3", "--epochs 90", stand_in="made here")
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {"first": first, "second": second})
    return tmp_path


def run(folder, *more):
    return reproduce.main(["--data", str(folder / "data"), "--output", str(folder / "out"), *more])


def test_the_list_says_what_was_found_and_where_the_rest_is(tmp_path, capsys):
    nested = tmp_path / "sets" / "speech"
    nested.mkdir(parents=True)
    (nested / "xrmb.mat").touch()
    (tmp_path / "crosslingual.npz").touch()  # without the similarity sets
    assert reproduce.main(["--data", str(tmp_path)]) == 0
    blocks, block = {}, None
    for line in capsys.readouterr().out.splitlines()[1:]:
        if line.startswith(" "):
            block.append(line.strip())
        else:
            block = blocks.setdefault(line.split(":")[0], [])
    assert list(blocks) == list(reproduce.EXPERIMENTS)
    assert blocks["speech"] == [f"found: {nested / 'xrmb.mat'}"]
    assert blocks["images"][0] == "glyphs, drawn by the script"
    assert blocks["images"][1].endswith("source: https://sketchy.eye.gatech.edu")
    assert blocks["words"][0] == blocks["har"][0] == "cannot run"
    assert blocks["words"][2].startswith("not found: wordsim or evaluation; source: ")
    assert "archive.ics.uci.edu" in blocks["har"][1]
    assert blocks["digits"] == ["digits, in the package"]


def test_what_needs_missing_data_is_not_started(scripts, capsys):
    with pytest.raises(SystemExit):
        run(scripts, "--run", "second", "first")
    assert "the data of first is missing" in capsys.readouterr().err
    assert not (scripts / "out").exists()
    assert run(scripts, "--run", "all") == 0
    assert {p.name for p in (scripts / "out" / "small").iterdir()} == {"second", "report.md"}


def test_tables_and_figures_come_into_one_report(scripts, capsys):
    (scripts / "data" / "a b").mkdir(parents=True)
    (scripts / "data" / "a b" / "two.txt").write_text("whole")
    assert run(scripts, "--run", "all", "--size", "paper") == 0
    folder = scripts / "out" / "paper"
    text = (folder / "report.md").read_text()
    assert text.index("## First") < text.index("| error | 100 |") < text.index("## Second")
    assert "| error | 90 |" in text and "![curve](second/curve.png)" in text
    command = shlex.split(text.split("`")[1])
    assert command[:6] == ["python", "examples/paper/script.py", "--epochs", "100", "--data",
                           str(scripts / "data" / "a b" / "two.txt")]  # fmt: skip
    assert "TensorFlow" in text or "tensorflow" in text
    known = json.loads((folder / "first" / "run.json").read_text())
    assert f"(commit {known['commit'] or 'unknown'}, {known['date']}, " in text
    assert (folder / "first" / "log.txt").read_text() == "100 epochs\n"
    assert "100 epochs" in capsys.readouterr().out


def test_one_that_fails_does_not_stop_the_others_and_is_run_again(scripts, capsys):
    (scripts / "data").mkdir()
    file = scripts / "data" / "one.txt"
    file.write_text("cut")
    assert run(scripts, "--run", "all") == 1
    folder = scripts / "out" / "small"
    assert capsys.readouterr().err == "failed: first\n"
    assert json.loads((folder / "first" / "run.json").read_text())["code"] == 1
    assert "the file is cut" in (folder / "first" / "log.txt").read_text()
    report = (folder / "report.md").read_text()
    assert "Failed (exit code 1), see first/log.txt." in report and "| error | 3 |" in report

    file.write_text("whole")
    assert run(scripts, "--run", "all") == 0
    assert "second is finished" in capsys.readouterr().out
    assert "Failed" not in (folder / "report.md").read_text()
    runs = [(folder / name / "runs").read_text() for name in ("first", "second")]
    assert runs == ["..", "."]
    assert run(scripts, "--run", "second", "--again") == 0
    assert (folder / "second" / "runs").read_text() == "."  # in a new folder
    assert "| error | 2 |" in (folder / "report.md").read_text()


class Parsed(Exception):
    pass


@pytest.mark.parametrize("size", reproduce.SIZES)
@pytest.mark.parametrize("name", list(reproduce.EXPERIMENTS))
def test_the_scripts_take_the_arguments(name, size, tmp_path, monkeypatch):
    experiment = reproduce.EXPERIMENTS[name]
    choices = [[]] if experiment.stand_in else []
    for data in experiment.data:
        for _, names in data.files:
            (tmp_path / names[0]).touch()
        choices.append(data.search(tmp_path)[0])
    parse = argparse.ArgumentParser.parse_args

    def stop(self, arguments=None, namespace=None):
        raise Parsed(parse(self, arguments, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    main = importlib.import_module(experiment.script.removesuffix(".py")).main
    assert choices
    for arguments in choices:
        with pytest.raises(Parsed):
            main([*shlex.split(getattr(experiment, size)), *arguments])
