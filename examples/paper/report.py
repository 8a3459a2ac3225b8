"""How the experiments make tables, figures and files.

Files are written in one step, so that a stop leaves the old or the new one whole. If a figure
cannot be drawn, a line on standard error says so, and the result is kept.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np


def positive(text):
    """The type of an option that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def markdown(header, rows):
    """A table in Markdown, its columns aligned to be read as text, too."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [map(str.ljust, row, widths) for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_and_spread(values, digits=1, sign=""):
    """Mean ± standard deviation; the mean alone for one value; "" for none."""
    if not len(values):
        return ""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.{digits}f}{spread}"


def figure(path, draw, *grid, dpi=120, **options):
    """Writes what `draw(figure, axes)` draws as PNG; makes the folder if needed.

    The other arguments are those of `matplotlib.pyplot.subplots`. An error is reported on standard
    error, and the program goes on without the figure.
    """
    try:
        matplotlib.use("Agg")
        from matplotlib import pyplot

        drawn, axes = pyplot.subplots(*grid, **options)
        try:
            draw(drawn, axes)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _replace(path, lambda partial: drawn.savefig(partial, dpi=dpi, format="png"))
        finally:
            pyplot.close(drawn)
    except Exception as error:
        print(f"{path} was not drawn: {type(error).__name__}: {error}", file=sys.stderr)


def learning_curves(histories, path):
    """Draws the training loss, and the total correlation before and after the proximal layer.

    Nothing where nothing was trained.

    `histories[group][label]` is a list of one `{name: values by epoch}` a seed. A group is a row of
    the figure; lines are means over seeds, bands go from the least to the largest value.
    """
    labels = list(dict.fromkeys(label for group in histories.values() for label in group))
    panels = (("loss", ("loss",)), ("total correlation", ("correlation_before", "correlation")))

    def draw(_, axes):
        for row, (group, methods) in zip(axes, histories.items(), strict=True):
            for axis, (title, names) in zip(row, panels, strict=True):
                for label, name in ((label, name) for label in methods for name in names):
                    curve(axis, label, name, [run[name] for run in methods[label] if name in run])
                axis.set(xlabel="epoch", title=f"{group}: {title}")
                axis.grid(alpha=0.3)
                if axis.lines:
                    axis.legend(fontsize=8)
                else:
                    axis.set_axis_off()

    def curve(axis, label, name, runs):
        if not runs:
            return
        length = min(map(len, runs))  # a run that met a NaN is shorter
        runs = np.array([run[:length] for run in runs])
        style = {"color": f"C{labels.index(label)}"}
        epochs = np.arange(1, length + 1)
        after = name == "correlation"
        text = f"{label}, after the layer" if after else label
        axis.plot(epochs, runs.mean(0), "--" if after else "-", label=text, **style)
        axis.fill_between(epochs, runs.min(0), runs.max(0), alpha=0.15, **style)

    size = (10, 1 + 3 * len(histories))
    if histories:
        figure(path, draw, len(histories), 2, figsize=size, squeeze=False, layout="tight")


class Log:
    """Finished runs, a line of JSON each; a line that a stop cut short is dropped.

    A line has the key of the run, its result, and the seconds of CPU time that it took.
    """

    def __init__(self, path):
        self.path, self.runs = path, {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = []
        for line in text.splitlines():
            try:
                run = json.loads(line)
            except json.JSONDecodeError:
                continue
            whole.append(line + "\n")
            self.runs[self.key(run["run"])] = run
        if "".join(whole) != text:
            write(path, "".join(whole))

    @staticmethod
    def key(run):
        return json.dumps(run, sort_keys=True)

    def once(self, compute, **run):
        """The result of a run: from the file, or of `compute()`, which is written to the file."""
        key = self.key(run)
        if key not in self.runs:
            began = time.process_time()
            found = {"run": run, "result": compute(), "seconds": time.process_time() - began}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.runs[key] = found
        return self.runs[key]["result"]


def write(path, text):
    """Writes a text file (UTF-8)."""
    _replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _replace(path, fill):
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    fill(partial)
    os.replace(partial, path)
