"""What the readers of published files share: errors that name the source, archives, arrays."""

import contextlib
import pickle
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_BROKEN = (EOFError, OSError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def bad_data(path: Any, problem: str, source: str) -> ValueError:
    """The error for a file that is missing, incomplete or of another layout."""
    return ValueError(f"{path}: {problem} The data set is available at {source}.")


def required(path: Any, source: str) -> Path:
    """`path` if there is something, or a `ValueError`."""
    path = Path(path)
    if not path.exists():
        raise bad_data(path, "there is no such file or folder.", source)
    return path


def unpack(archive: Any, folder: Any) -> None:
    """Unpacks a zip or tar archive into `folder`.

    Args:
        archive: path of a `.zip`, `.tar` or compressed `.tar` file.
        folder: where to; created if needed.

    Raises:
        ValueError: not such an archive, a truncated one, or one with a member that is a link or
            would be written outside of `folder` (nothing is unpacked then).

    Example:
        unpack("UCI HAR Dataset.zip", "data")
    """
    folder = Path(folder).resolve()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.infolist():
                    inside = (folder / member.filename).resolve().is_relative_to(folder)
                    if not inside or stat.S_ISLNK(member.external_attr >> 16):
                        raise ValueError(f"its member {member.filename!r} leaves the folder")
                opened.extractall(folder)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as opened_tar:
                members = opened_tar.getmembers()
                for entry in members:
                    tarfile.data_filter(entry, str(folder))
                opened_tar.extractall(folder, members, filter="data")
        else:
            raise ValueError("it is neither a zip nor a tar archive")
    except _BROKEN as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}.") from error


@contextlib.contextmanager
def folder_of(path: Any, marker: str, source: str) -> Iterator[Path]:
    """The folder with `marker` in it: `path`, a folder or archive, or up to three levels below.

    An archive (and a zip in a zip) is unpacked to a temporary folder for as long as the context.
    """
    path = required(path, source)
    with contextlib.ExitStack() as stack:
        if path.is_file():
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                unpack(path, place)
                for inner in list(place.glob("*.zip")):
                    unpack(inner, place)
            except ValueError as error:
                raise bad_data(path, str(error), source) from error
        else:
            place = path
        for depth in range(4):
            for found in sorted(place.glob("*/" * depth + marker)):
                for _ in Path(marker).parts:
                    found = found.parent
                yield found
                return
        raise bad_data(path, f"{marker!r} is missing in it.", source)


def read_pickle(path: Any, allow_pickle: bool, source: str) -> Any:
    """What a pickle holds. Loading one can run any code: only with `allow_pickle=True`."""
    path = required(path, source)
    if allow_pickle is not True:
        raise ValueError(
            f"{path} is a pickle, and loading a pickle can run any program that it contains. If "
            f"you trust the file, pass allow_pickle=True. Received: allow_pickle={allow_pickle!r}"
        )
    try:
        with path.open("rb") as stream:
            return pickle.load(stream)
    except (*_BROKEN, pickle.UnpicklingError, AttributeError, ImportError, IndexError) as error:
        raise bad_data(path, f"it is not a whole pickle: {error}.", source) from error


def read_npz(
    path: Any, names: Iterable[str], source: str, allow_pickle: bool = False
) -> dict[str, np.ndarray]:
    """The arrays `names` of an `.npz` file."""
    names = list(names)
    path = required(path, source)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=allow_pickle) as stored:
            missing = sorted({*names} - {*stored.files})
            if missing:
                raise KeyError(f"it has no {', '.join(missing)}, only {', '.join(stored.files)}")
            return {name: stored[name] for name in names}
    except KeyError as error:
        raise bad_data(path, f"{error.args[0]}.", source) from error
    except (*_BROKEN, AttributeError, pickle.UnpicklingError) as error:
        raise bad_data(path, f"it cannot be read as arrays: {error}.", source) from error


def read_table(path: Any, columns: int | None, source: str) -> np.ndarray:
    """The numbers of a text file, float64 (rows, columns); all finite."""
    path = required(path, source)
    try:
        table = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise bad_data(path, f"it is not a table of numbers: {error}.", source) from error
    if not table.size or (columns is not None and table.shape[1] != columns):
        wanted = f"rows of {columns} numbers" if columns else "rows of numbers"
        raise bad_data(path, f"{wanted} are expected, not {table.shape}.", source)
    if not np.isfinite(table).all():
        raise bad_data(path, "it has values that are not finite.", source)
    return table
