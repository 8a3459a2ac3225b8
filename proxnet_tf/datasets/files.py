"""What the readers of published files share: errors that name the source, arrays."""

import pickle
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_BROKEN = (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error)


def bad_data(path: Any, problem: str, source: str) -> ValueError:
    """The error for a file that is missing, incomplete or of another layout."""
    return ValueError(f"{path}: {problem} The data set is available at {source}.")


def required(path: Any, source: str) -> Path:
    """`path` if there is something, or a `ValueError`."""
    path = Path(path)
    if not path.exists():
        raise bad_data(path, "there is no such file or folder.", source)
    return path


def read_npz(
    path: Any, names: Iterable[str], source: str, allow_pickle: bool = False
) -> dict[str, np.ndarray]:
    """The arrays `names` of an `.npz` file."""
    path = required(path, source)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=allow_pickle) as stored:
            missing = sorted(set(names) - set(stored.files))
            if missing:
                raise KeyError(f"it has no {', '.join(missing)}, only {', '.join(stored.files)}")
            return {name: stored[name] for name in names}
    except KeyError as error:
        raise bad_data(path, f"{error.args[0]}.", source) from error
    except (*_BROKEN, AttributeError, pickle.UnpicklingError) as error:
        raise bad_data(path, f"it cannot be read as arrays: {error}.", source) from error
