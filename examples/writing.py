"""How the examples write files: in one step, so that a stop leaves the old or the new one whole."""

import os
from pathlib import Path


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
