"""Runs every benchmark of this folder in at most fifteen minutes and writes one table.

    python examples/benchmarks/all.py --output outputs

A script that defines `benchmark()` (see timing.py) gives rows of the table. Any other script is
run as it is, with --quick if it has that option, and its output comes below the table. Each runs in
a process of its own, with its share of the time; the report names scripts that fail or run longer.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from timing import HEADER

FOLDER = Path(__file__).parent
ROWS = "rows of the table: "  # what a process prints before its rows


def scripts():
    return sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in ("all", "timing"))


def run_one(name):
    """In a process of its own: prints the rows of `benchmark()`, or whatever the script prints."""
    module = importlib.import_module(name)
    if hasattr(module, "benchmark"):
        rows = module.benchmark()
        print(ROWS + json.dumps([[str(cell) for cell in row] for row in rows]), flush=True)
    else:
        quick = "--quick" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        module.main(["--quick"] if quick else [])


def run(name, limit):
    """(rows, other text, what went wrong or "") of a script."""
    command = [sys.executable, str(FOLDER / "all.py"), "--script", name]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"} | os.environ
    problem = ""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
        printed = done.stdout
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            problem = f"failed (exit code {done.returncode}): {last}"
    except subprocess.TimeoutExpired as expired:
        printed = (expired.stdout or b"").decode()
        problem = f"was stopped after {limit:.0f} s"
    rows, text = [], []
    for line in printed.splitlines():
        if line.startswith(ROWS):
            rows = json.loads(line.removeprefix(ROWS))
        else:
            text.append(line)
    return rows, "\n".join(text), problem


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--script", choices=scripts(), help="only this one, in this process")
    parser.add_argument("--minutes", type=float, default=15.0, help="for all together (15)")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    options = parser.parse_args(arguments)
    if options.script:
        return run_one(options.script)
    began, rows, others, problems = time.monotonic(), [], [], []
    names = scripts()
    for index, name in enumerate(names):
        left = 60 * options.minutes - (time.monotonic() - began)
        print(f"{name} ...", flush=True)
        found, text, problem = run(name, left / (len(names) - index))
        rows += [[name, *row] for row in found]
        others += [f"## {name}\n\n{text}\n"] if text.strip() else []
        problems += [f"{name} {problem}"] if problem else []
    machine = f"Python {platform.python_version()}, {os.cpu_count()} CPU cores, "
    machine += f"{time.monotonic() - began:.0f} s in all."
    parts = [machine, *problems, markdown(("script", *HEADER), rows) if rows else "", *others]
    text = "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"
    print(f"\n{text}", end="")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "benchmark.md").write_text(text, encoding="utf-8")
    return len(problems)


if __name__ == "__main__":
    raise SystemExit(main() and 1)
