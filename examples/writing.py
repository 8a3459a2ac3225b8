"""How the examples write files: in one step, so that a stop leaves the old or the new one whole."""

import os
from pathlib import Path


def markdown(header, rows):
    """A table in Markdown, its columns aligned to be read as text, too."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [map(str.ljust, row, widths) for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
