"""A KerasTuner search over ProxNet on two views of handwritten digits.

    python examples/paper/tune_multiview.py                  # 24 trials, under 3 minutes on 2 cores
    python examples/paper/tune_multiview.py --trials 60      # continues the search above
    python examples/paper/tune_multiview.py --workers 2      # a chief and two workers: 2 minutes

Tunes lam (schedule or constant), the width of the codes, the networks, the optimizer and the batch
size by validation accuracy. Prints a line for each trial and a table of the best, and writes to
--output the search itself (tune_multiview/), the numbers, a plot of validation error against lam,
and the best model as a SavedModel. A search that was stopped continues when it is started again;
--overwrite begins anew.

With --workers N the script starts KerasTuner's chief, which hands out the trials, and N workers
as processes that talk over the loopback interface. A worker that dies is reported; the others go
on, and the same command started again runs what is missing. On several machines with one file
system start each process yourself, the chief on the machine at KERASTUNER_ORACLE_IP:

    export KERASTUNER_ORACLE_IP=127.0.0.1 KERASTUNER_ORACLE_PORT=8000
    KERASTUNER_TUNER_ID=chief  python examples/paper/tune_multiview.py &
    KERASTUNER_TUNER_ID=tuner0 python examples/paper/tune_multiview.py &
    KERASTUNER_TUNER_ID=tuner1 python examples/paper/tune_multiview.py

The chief then waits for a worker that died: start the worker again with the same
KERASTUNER_TUNER_ID, and it gets its trial again; or stop the chief and start everything again.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import keras_tuner
import numpy as np
from digits import error_of, split_data
from report import figure, markdown, positive, write

from proxnet_tf.tuning import MultiviewHyperModel

SHOWN = ("num_components", "width", "depth", "batch_size", "learning_rate", "weight_decay")


class Search(keras_tuner.RandomSearch):
    """Random search that prints a line a trial."""

    def on_trial_begin(self, trial):
        super().on_trial_begin(trial)
        self.started = time.perf_counter()

    def on_trial_end(self, trial):
        super().on_trial_end(trial)
        trial = self.oracle.get_trial(trial.trial_id)
        seconds = time.perf_counter() - self.started
        result = trial.status.lower()
        if trial.status == "COMPLETED":
            result = f"validation error {error(trial):.2f} %, lam {final_lam(trial):.3g}"
        print(
            f"{self.tuner_id}: trial {trial.trial_id} of {self.oracle.max_trials}: {result} "
            f"({seconds:.0f} s)",
            flush=True,
        )


def error(trial):
    """Validation error, %, of the best epoch."""
    return 100 * (1 - trial.score)


def final_lam(trial):
    """lam in the best epoch."""
    return trial.metrics.get_best_value("lam")


def make_tuner(options):
    """The search, new or as it was left."""
    space = keras_tuner.HyperParameters()  # smaller networks than the default space's
    space.Int("num_components", 5, 30, step=5)  # a new width costs a compilation
    space.Choice("width", [64, 128, 256])
    space.Int("depth", 1, 2)
    widths = [x.shape[1:] for x in options.data["train"][0]]
    return Search(
        MultiviewHyperModel(widths, num_classes=10, epsilon=1e-2),
        "val_accuracy",
        max_trials=options.trials,
        hyperparameters=space,
        seed=options.seed,
        directory=options.output,
        project_name="tune_multiview",
    )


def launch(options, arguments):
    """Runs the search in a chief and workers on this machine; returns the workers that died."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, __file__, *(a for a in arguments if a != "--overwrite")]
    address = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": port}
    processes = {}
    try:
        for name in ("chief", *(f"tuner{j}" for j in range(options.workers))):
            environment = os.environ | address | {"KERASTUNER_TUNER_ID": name}
            processes[name] = subprocess.Popen([*command, "--workers", "0"], env=environment)
            print(f"{name}: process {processes[name].pid}", flush=True)
        chief, running = processes["chief"], set(processes) - {"chief"}
        died = {}
        while running:
            time.sleep(0.2)
            if chief.poll() is not None:
                raise SystemExit(f"The chief ended with exit code {chief.returncode}.")
            for name in [name for name in running if processes[name].poll() is not None]:
                running.remove(name)
                code = processes[name].returncode
                if code:
                    died[name] = code
                    print(f"{name} died (exit code {code}), its trial is unfinished", flush=True)
        return died
    finally:
        for process in processes.values():  # the chief's work is on disk after every trial
            process.terminate()
            process.wait()


def table(trials):
    """The trials, best first."""
    rows = []
    for trial in trials:
        hp = trial.hyperparameters
        schedule = "constant"
        if hp["lam_schedule"] == "linear":
            schedule = f"{hp['alpha0']:.3g} (1 + {hp['k']:.2g} t)"
        cells = (f"{hp[name]:.3g}" for name in SHOWN)
        result = (trial.trial_id, f"{error(trial):.2f}", f"{final_lam(trial):.3g}")
        rows.append((*result, schedule, *cells))
    return markdown(("trial", "error, %", "lam", "schedule", *SHOWN), rows)


def plot(trials, path):
    """Validation error against lam in the best epoch of every trial."""

    def draw(_, axes):
        for kind, marker in (("linear", "o"), ("fixed", "s")):
            chosen = [t for t in trials if t.hyperparameters["lam_schedule"] == kind]
            label = {"linear": "(1 + k t) alpha0", "fixed": "constant"}[kind]
            points = [(final_lam(t), error(t)) for t in chosen]
            axes.plot(*np.array(points).reshape(-1, 2).T, marker, alpha=0.7, label=label)
        axes.set(xscale="log", xlabel="lam in the best epoch", ylabel="validation error (%)")
        axes.set_title(f"{len(trials)} trials of ProxNet")
        axes.legend()
        axes.grid(alpha=0.3)

    figure(path, draw, figsize=(6, 4), layout="constrained")


def export(model, path):
    """The model as a SavedModel, for prediction without proxnet_tf."""
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.export(partial, verbose=False)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)


def report(tuner, options):
    """Prints and writes what the search found; returns the completed trials, best first."""
    every = tuner.oracle.get_best_trials(len(tuner.oracle.trials))
    trials = [trial for trial in every if trial.status == "COMPLETED"]
    if not trials:
        raise SystemExit("No trial was completed.")
    print(f"\n{len(trials)} of {len(every)} trials completed; the best {options.show}:")
    print(table(trials[: options.show]), end="")
    numbers = [
        {"trial": t.trial_id, "error": error(t), "lam": final_lam(t), **t.hyperparameters.values}
        for t in trials
    ]
    write(options.output / "tune_multiview.json", json.dumps(numbers))
    plot(trials, options.output / "tune_multiview.png")
    model = tuner.get_best_models()[0]
    print(f"test error of the best model: {error_of(model, *options.data['test'][:2]):.2f} %")
    export(model, options.output / "tune_multiview_model")
    print(f"numbers, plot and model: {options.output}/tune_multiview.json, .png, _model/")
    return trials


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=positive, default=24, help="of the whole search (24)")
    parser.add_argument("--epochs", type=positive, default=10, help="of a trial (10)")
    parser.add_argument("--views", nargs=2, default=["fou", "zer"], metavar="VIEW")
    parser.add_argument("--seed", type=int, default=1, help="of the data split and the search (1)")
    parser.add_argument("--show", type=positive, default=10, help="rows of the table (10)")
    parser.add_argument("--workers", type=int, default=0, help="processes besides a chief (0: one)")
    parser.add_argument("--overwrite", action="store_true", help="begin a new search")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    return parser.parse_args(arguments)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    began = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.overwrite:
        shutil.rmtree(options.output / "tune_multiview", ignore_errors=True)
    options.data = split_data(options.views, options.seed)
    if options.workers:
        died = launch(options, arguments)
        tuner = make_tuner(options)
    else:
        died = {}
        keras.utils.set_random_seed(options.seed)
        tuner = make_tuner(options)
        tuner.search(
            *options.data["train"][:2],
            validation_data=options.data["valid"][:2],
            epochs=options.epochs,
            verbose=0,
        )
        if "chief" not in os.environ.get("KERASTUNER_TUNER_ID", "chief"):
            return None  # a worker: the chief reports
    trials = report(tuner, options)
    print(f"{time.perf_counter() - began:.0f} s")
    if died:
        raise SystemExit(f"{', '.join(died)} died; the same command continues the search.")
    return trials


if __name__ == "__main__":
    main()
