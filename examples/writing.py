"""How the examples write their numbers and tables."""

import os


def write(path, text):
    """Writes a text file in one step: a run that is stopped leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)
