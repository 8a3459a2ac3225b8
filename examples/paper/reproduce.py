"""The experiments, all in one place: which data is there, their tables and their figures.

    python examples/paper/reproduce.py --data DIR                    # lists them, what is missing
    python examples/paper/reproduce.py --data DIR --run speech words  # at the size of RESULTS.md
    python examples/paper/reproduce.py --data DIR --run all --size paper

Looks for the data in DIR and up to two levels of folders below. Every experiment runs as a process
of its own and has a folder OUTPUT/SIZE/NAME for what it prints (log.txt), its tables (Markdown),
figures (PNG: learning curves, correlation before and after the proximal layer, t-SNE) and numbers
(JSON). One that fails does not stop the others. OUTPUT/SIZE/report.md puts all together, with
commands, commit, date, versions and times. A finished experiment is not run again, unless with
--again. The same command goes on after a stop; words, images, speech and labels go on at the first
run that is missing. Words, images and speech also say how many runs are done and how long the
others may take.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from readers import sequences, sketchy, speech, words
from report import write

FOLDER = Path(__file__).parent
PACKAGES = ("tensorflow", "keras", "numpy")
SIZES = ("small", "paper")


@dataclasses.dataclass(frozen=True)
class Data:
    """Files that an experiment reads.

    `files` has pairs of an option of the script and the names its file or folder may have; without
    an option the file follows the one before. `more` are arguments that these files need.
    """

    files: tuple[tuple[str, tuple[str, ...]], ...]
    source: str
    more: str = ""

    def search(self, folder):
        """The arguments for the script, and the names that are missing."""
        arguments, missing = shlex.split(self.more), []
        for option, names in self.files:
            path = find(folder, names)
            if path is None:
                missing.append(" or ".join(names))
            else:
                arguments += [option, str(path)] if option else [str(path)]
        return arguments, missing


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A script, its arguments at each size, and the data that it reads: one of several choices."""

    title: str
    script: str
    small: str = ""
    paper: str = ""
    data: tuple[Data, ...] = ()
    stand_in: str = ""  # what it takes where no data is found
    output: str = ""  # file in the folder, where the script takes a file


def task(name, title, file, source, small="", paper=""):
    """A data set of `sequence_classification.py`."""
    return Experiment(
        title,
        "sequence_classification.py",
        f"--dataset {name} {small}",
        f"--dataset {name} {paper}",
        (Data((("--data", file),), source),),
    )


SIMILARITY = ("--similarity", ("wordsim", "evaluation"))
EXPERIMENTS = {
    "digits": Experiment(
        "Two views of digits",
        "multiview_digits.py",
        "--methods all --tune 6 --seeds 0 1 2 3 4",
        "--methods all --tune 24 --seeds 0 1 2 3 4 5 6 7 8 9",
        stand_in="digits, in the package",
    ),
    "labels": Experiment(
        "Error against labels",
        "labels.py",
        stand_in="digits and glyphs, in the package or drawn by the script",
    ),
    "noisy_view": Experiment(
        "One view of digits corrupted",
        "noisy_view.py",
        "--seeds 0 1 2 3 4",
        "--seeds 0 1 2 3 4 5 6 7 8 9",
        stand_in="digits, in the package",
    ),
    "correlation_gradient": Experiment(
        "What a loss asks of the codes",
        "correlation_gradient.py",
        stand_in="digits, in the package",
    ),
    "images": Experiment(
        "Photos and sketches",
        "sketchy.py",
        "",
        "--classes 20 50 100 125 --steps 4800 12000 24000 30000 --rates 3e-4 3e-3 --trials 20 "
        "--seeds 0 1 2 3 4",
        (
            Data(
                (("--data", ("256x256", "sketchy", "sketchy.zip")),),
                sketchy.SOURCE,
                "--size 256",
            ),
        ),
        stand_in="glyphs, drawn by the script",
    ),
    "speech": Experiment(
        "Speech and articulation",
        "speech_recognition.py",
        "--train-utterances 160",
        "--frames 1000 --stack 1 --noises 0 0.2 0.5 0.8 --units 256 --epochs 40 --rates 3e-4 3e-3 "
        "--trials 20",
        (
            Data((("--data", ("xrmb.mat", "XRMB.mat")),), speech.SOURCE, "--train-utterances 1837"),
            Data((("--data", ("articulatory_synth.mat",)),), "a synthesiser, in that layout"),
        ),
    ),
    "words": Experiment(
        "Words of two languages",
        "word_similarity.py",
        "--max-pairs 9000",
        "--codes 30 90 150 210 270 --widths 256 512 1024 2048 --depths 1 2 3 4 --trials 20 "
        "--shares 30 60 90 150 210 270 --epochs 300",
        (
            Data(
                (
                    ("--vectors", ("cc.en.300.vec", "cc.en.300.vec.gz")),
                    ("", ("cc.de.300.vec", "cc.de.300.vec.gz")),
                    ("--pairs", ("en-de.train.txt", "en-de.0-5000.txt")),
                    ("--dictionary", ("en-de.test.txt", "en-de.5000-6500.txt")),
                    SIMILARITY,
                ),
                f"{words.VECTORS_SOURCE}, {words.PAIRS_SOURCE}, {words.SIMILARITY_SOURCE}",
            ),
            Data((("--data", ("crosslingual.npz",)), SIMILARITY), "such files, put together"),
        ),
    ),
    "japanese_vowels": Experiment(
        "Japanese Vowels",
        "sequence_classification.py",
        "",
        "--epochs 100 --fine-tune 50",
        stand_in="Japanese Vowels, in the package",
    ),
    "har": task(
        "har",
        "UCI HAR",
        ("UCI HAR Dataset", "UCI HAR Dataset.zip"),
        sequences.HAR,
        "--seeds 3 --tuning-seeds 1 --epochs 20 --fine-tune 10",
    ),
    "arabic_digits": task(
        "arabic_digits",
        "Spoken Arabic Digits",
        ("spoken_arabic_digit", "spoken+arabic+digit.zip"),
        sequences.ARABIC,
        paper="--per-class 660 --seeds 10",
    ),
    "imdb": Experiment(
        "IMDB",
        "sequence_classification.py",
        "--dataset imdb",
        "--dataset imdb --examples 25000 --steps 400 --words 20000 --units 1024 --epochs 10 "
        "--fine-tune 5 --seeds 10 --tuning-seeds 2",
        (Data((("--data", ("imdb.npz",)),), sequences.IMDB),),
    ),
    "two_moons": Experiment(
        "Two moons", "two_moons.py", stand_in="drawn by the script", output="two_moons.png"
    ),
    "dropout": Experiment(
        "Dropout",
        "dropout_simulation.py",
        stand_in="drawn by the script",
        output="dropout_simulation.png",
    ),
}


def find(folder, names):
    """The first of `names` that is in `folder` or up to two levels of folders below."""
    for name in names:
        for level in ("", "*/", "*/*/"):
            paths = sorted(folder.glob(level + name))
            if paths:
                return paths[0]
    return None


def located(experiment, folder):
    """Arguments for the data, or None where they are missing, and lines about them."""
    lacking = []
    for data in experiment.data:
        arguments, missing = data.search(folder)
        if not missing:
            found = "found: " + ", ".join(a for a in arguments if Path(a).is_absolute())
            break
        lacking.append(f"not found: {', '.join(missing)}; source: {data.source}")
    else:
        arguments, found = None, "cannot run"
        if experiment.stand_in:
            arguments, found = [], experiment.stand_in
    return arguments, [found, *lacking]


def listing(places):
    """The experiments, and which data was found for each."""
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines.append(f"{name}: {experiment.title} ({experiment.script})")
        lines += [f"    {line}" for line in places[name][1]]
    return "\n".join(lines)


def state(folder):
    """What is known of the run in a folder."""
    path = folder / "run.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def versions():
    """Versions of Python and the packages; one that goes by another name is left out."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit():
    """The commit that is checked out; "" without git."""
    command = ["git", "-C", str(FOLDER), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def run(experiment, arguments, size, folder):
    """Runs a script; returns its exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    script = FOLDER / experiment.script
    command = [str(script), *shlex.split(getattr(experiment, size)), *arguments]
    command += ["--output", str(folder / experiment.output)]
    print(f"\n{experiment.title}: python {shlex.join(command)}", flush=True)
    known = {"versions": versions(), "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"} | os.environ
    began = time.perf_counter()
    with (
        open(folder / "log.txt", "a", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                log.write(line)
                log.flush()
        except BaseException:
            process.terminate()
            raise
    record = {
        "command": shlex.join(["python", f"examples/paper/{experiment.script}", *command[1:]]),
        "code": process.returncode,
        "seconds": time.perf_counter() - began,
        **known,
    }
    write(folder / "run.json", json.dumps(record, indent=1))
    return process.returncode


def report(folder):
    """Markdown: every experiment that was run, its command, tables and figures."""
    parts = ["# Experiments\n"]
    for name, experiment in EXPERIMENTS.items():
        known = state(folder / name)
        if not known:
            continue
        parts.append(f"## {experiment.title}\n")
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
        made = f"commit {known['commit'] or 'unknown'}, {known['date']}"
        parts.append(f"`{known['command']}` ({made}, {known['seconds']:.0f} s; {versions})\n")
        if known["code"]:
            parts.append(f"Failed (exit code {known['code']}), see {name}/log.txt.\n")
        parts += [path.read_text(encoding="utf-8") for path in sorted((folder / name).glob("*.md"))]
        figures = sorted((folder / name).glob("*.png"))
        parts += [f"![{path.stem}]({name}/{path.name})\n" for path in figures]
    return "\n".join(parts)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--run", nargs="+", choices=["all", *EXPERIMENTS], default=[])
    parser.add_argument("--size", choices=SIZES, default="small", help="here, or as in the paper")
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--output", type=Path, default=Path("outputs/reproduce"))
    options = parser.parse_args(arguments)
    data = options.data.resolve()
    places = {name: located(one, data) for name, one in EXPERIMENTS.items()}
    print(f"Data in {data}:\n{listing(places)}", flush=True)
    chosen = [name for name, (found, _) in places.items() if found is not None]
    if "all" not in options.run:
        chosen = [name for name in EXPERIMENTS if name in options.run]
        missing = [name for name in chosen if places[name][0] is None]
        if missing:
            parser.error(f"the data of {', '.join(missing)} is missing, see the list above")
    failed = []
    for name in chosen:
        folder = options.output / options.size / name
        if state(folder).get("code") == 0 and not options.again:
            print(f"\n{name} is finished: {folder} (--again runs it again)")
            continue
        if options.again and folder.exists():
            shutil.rmtree(folder)
        if run(EXPERIMENTS[name], places[name][0], options.size, folder):
            failed.append(name)
        write(options.output / options.size / "report.md", report(folder.parent))
    if chosen:
        print(f"\nreport: {options.output / options.size / 'report.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main() and 1)
