"""The start of the demo: no notices, but whatever the script itself says."""

import subprocess
import sys
from pathlib import Path

QUIETLY = Path(__file__).parents[3] / "examples" / "paper" / "quietly.py"


def test_notices_of_the_start_are_held_back(tmp_path):
    (tmp_path / "other.py").write_text("NAME = 'imported'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tensorflow, other\n"
        "print(other.NAME, sys.argv[1:], __name__)\n"
        "print('problem', file=sys.stderr)\n"
        "raise SystemExit(3)\n"
    )
    command = [sys.executable, str(QUIETLY), str(script), "--seeds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("imported ['--seeds', '0'] __main__\n", "problem\n")
    assert done.returncode == 3


def test_a_failing_import_is_shown(tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nos.write(2, b'a notice\\n')\nraise ImportError('broken')\n"
    )
    command = [sys.executable, str(QUIETLY), "script.py"]
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "a notice\n" in done.stderr and "ImportError: broken" in done.stderr
    assert done.returncode == 1
