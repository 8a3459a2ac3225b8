"""What the scripts of the gallery share: their options, and how they show a table or a figure.

python examples/NAME.py                  # prints
python examples/NAME.py --output DIR     # and writes DIR/NAME.md or DIR/NAME.png
python examples/NAME.py --small          # a few seconds, to see that it runs
"""

import argparse
import sys
from pathlib import Path


def options(doc, arguments=None):
    """The options `output` (a folder or None) and `small`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder to write to (none)")
    parser.add_argument("--small", action="store_true", help="as short as possible")
    return parser.parse_args(arguments)


def table(header, rows, output=None):
    """Prints a Markdown table, and writes it under the script's name to the folder `output`."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [list(map(str.ljust, row, widths)) for row in (header, *cells)]
    lines.insert(1, ["-" * width for width in widths])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(text, end="")
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / f"{Path(sys.argv[0]).stem}.md").write_text(text, encoding="utf-8")
