"""How the examples make tables, curves and files.

Files are written in one step, so that a stop leaves the old or the new one whole.
"""

import os
from pathlib import Path

import matplotlib
import numpy as np


def markdown(header, rows):
    """A table in Markdown, its columns aligned to be read as text, too."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [map(str.ljust, row, widths) for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_and_spread(values, digits=1, sign=""):
    """Mean ± standard deviation, without the latter for one value; "" for none."""
    if not len(values):
        return ""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.{digits}f}{spread}"


def learning_curves(histories, path):
    """Draws the training loss, and the total correlation before and after the proximal layer.

    `histories[group][label]` is a list of one `{name: values by epoch}` a seed. A group is a row of
    the figure; lines are means over seeds, bands go from the least to the largest value.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = list(dict.fromkeys(label for group in histories.values() for label in group))
    panels = (("loss", ("loss",)), ("total correlation", ("correlation_before", "correlation")))
    size = (10, 1 + 3 * len(histories))
    figure, axes = pyplot.subplots(len(histories), 2, figsize=size, squeeze=False)
    for row, (group, methods) in zip(axes, histories.items(), strict=True):
        for axis, (title, names) in zip(row, panels, strict=True):
            for label, name in ((label, name) for label in methods for name in names):
                runs = np.array([run[name] for run in methods[label] if name in run])
                if not len(runs):
                    continue
                colour = f"C{labels.index(label)}"
                epochs = np.arange(1, runs.shape[1] + 1)
                after = name == "correlation"
                text = f"{label}, after the layer" if after else label
                axis.plot(epochs, runs.mean(0), "--" if after else "-", color=colour, label=text)
                axis.fill_between(epochs, runs.min(0), runs.max(0), color=colour, alpha=0.15)
            axis.set(xlabel="epoch", title=f"{group}: {title}")
            axis.grid(alpha=0.3)
            if axis.lines:
                axis.legend(fontsize=8)
            else:
                axis.set_axis_off()
    figure.tight_layout()
    save_figure(figure, path)
    pyplot.close(figure)


def write(path, text):
    """Writes a text file."""
    _replace(path, lambda partial: partial.write_text(text))


def save_figure(figure, path, dpi=120):
    """Writes a figure of matplotlib as PNG; makes the folder if needed."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _replace(path, lambda partial: figure.savefig(partial, dpi=dpi, format="png"))


def _replace(path, fill):
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    fill(partial)
    os.replace(partial, path)
