"""Runs the notebooks of the built site, cell by cell, each in a process and a folder of its own.

    python docs/notebooks.py            # all, `main([])` as short as possible
    python docs/notebooks.py few_labels search

The cells hold plain Python, so that no kernel is needed. Ends with 1 if one of them raises.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GALLERY = Path(__file__).resolve().parents[1] / "site" / "gallery"
RUN = """
import json, sys
namespace = {"__name__": "__main__"}
for number, cell in enumerate(json.load(sys.stdin)):
    exec(compile(cell, f"cell {number}", "exec"), namespace)
"""


def cells(path: Path) -> list[str]:
    """The source of the code cells, the last one made short."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(c["source"]) for c in found if c["cell_type"] == "code"]
    if "main([])" not in code[-1]:
        raise ValueError(f"{path} should end with a cell that calls main([]).")
    return [*code[:-1], code[-1].replace("main([])", "main(['--small'])", 1)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of notebooks (all)")
    wanted = parser.parse_args(arguments).names
    paths = sorted(GALLERY.glob("*.ipynb"))
    missing = {*wanted} - {p.stem for p in paths}
    if missing or not paths:
        parser.error(f"no notebook {', '.join(sorted(missing)) or 'at all'}: run `make docs` first")
    failed = []
    environment = {"MPLBACKEND": "agg", "TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ
    for path in paths:
        if wanted and path.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", RUN],
                input=json.dumps(cells(path)),
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        print(f"{path.stem}: {'failed' if done.returncode else 'ran'}", flush=True)
        if done.returncode:
            failed.append(path.stem)
            print(done.stderr, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
