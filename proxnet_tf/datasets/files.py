"""What the readers share: checks, archives, text, arrays, and errors that name the file."""

import contextlib
import lzma
import numbers
import pickle
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# RuntimeError: an encrypted member, or one of an unknown compression.
_BROKEN = (
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
_UNREADABLE = (
    *_BROKEN,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    pickle.UnpicklingError,
)


def check_integer(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """`value` as an int, or a `ValueError` that names `name`, the value and the range."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    number = int(value) if whole else 0
    if not whole or number < at_least or (at_most is not None and number > at_most):
        above = "" if at_most is None else f" and <= {at_most}"
        raise ValueError(
            f"`{name}` must be an integer >= {at_least}{above}. Received: {name}={value!r}"
        )
    return number


def bad_data(path: Any, problem: str, source: str) -> ValueError:
    """The error for a file that is missing, incomplete or of another layout."""
    return ValueError(f"{path}: {problem} The data set is available at {source}.")


def required(path: Any, source: str) -> Path:
    """`path` if there is something, or a `ValueError`."""
    path = Path(path)
    if not path.exists():
        raise bad_data(path, "there is no such file or folder.", source)
    return path


def required_file(path: Any, source: str) -> Path:
    """`path` if there is a file, or a `ValueError`."""
    path = required(path, source)
    if path.is_dir():
        raise bad_data(path, "it is a folder; a file is expected.", source)
    return path


def unpack(archive: Any, folder: Any) -> None:
    """Unpacks a zip or tar archive into `folder`.

    Backslashes in the names of a zip's members, which some Windows programs write, separate
    folders.

    Args:
        archive: path of a `.zip`, `.tar` or compressed `.tar` file.
        folder: where to; created if needed.

    Raises:
        ValueError: not such an archive, a truncated or encrypted one, or one with a member that is
            a link or would be written outside of `folder` (nothing is unpacked then).

    Example:
        unpack("UCI HAR Dataset.zip", "data")
    """
    folder = Path(folder).resolve()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.infolist():
                    member.filename = member.filename.replace("\\", "/")
                    inside = (folder / member.filename).resolve().is_relative_to(folder)
                    if not inside or stat.S_ISLNK(member.external_attr >> 16):
                        raise ValueError(f"its member {member.filename!r} leaves the folder")
                opened.extractall(folder, opened.infolist())
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


def visible(folder: Path, pattern: str) -> list[Path]:
    """What matches `pattern` in `folder`, sorted, without hidden files and folders.

    Besides its files a Mac stores `._NAME` next to NAME on foreign disks, and `__MACOSX/._NAME` in
    archives; both match the patterns that NAME matches.
    """

    def hidden(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        return any(part.startswith(".") or part == "__MACOSX" for part in parts)

    return sorted(path for path in folder.glob(pattern) if not hidden(path))


@contextlib.contextmanager
def folder_of(path: Any, marker: str, source: str) -> Iterator[Path]:
    """The folder with `marker` in it: `path`, a folder or archive, or up to three levels below.

    An archive (and a zip in a zip) is unpacked to a temporary folder for as long as the context.
    What macOS adds to archives and to foreign disks is not looked at (see `visible`).
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
            for found in visible(place, "*/" * depth + marker):
                for _ in Path(marker).parts:
                    found = found.parent
                yield found
                return
        raise bad_data(path, f"{marker!r} is missing in it.", source)


def read_text(path: Any, source: str) -> str:
    """What a UTF-8 text file holds, without a byte-order mark."""
    path = required_file(path, source)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_data(path, f"it is not UTF-8 text ({error}).", source) from error


def read_lines(path: Any, source: str) -> list[str]:
    r"""The lines of a UTF-8 text file, which end in `\n`, `\r\n` or `\r`."""
    lines = re.split("\r\n|\n|\r", read_text(path, source))
    return lines if lines[-1] else lines[:-1]


def parse_numbers(words: Iterable[str]) -> np.ndarray:
    """The numbers that `words` spell, float32.

    Raises a `ValueError` that says "something that is not a number" or "a value that is not
    finite", to be put after "line 3 has".
    """
    words = list(words)
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        values = None
    if values is None or any("_" in word for word in words):  # 1_000 is a number for Python only
        raise ValueError("something that is not a number")
    return as_float32(values)


def as_float32(values: np.ndarray) -> np.ndarray:
    """`values` in float32; a `ValueError` if one is not finite there: 1e39 becomes infinite."""
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    if not np.isfinite(single).all():
        raise ValueError("a value that is not finite (in float32)")
    return single


def read_pickle(path: Any, allow_pickle: bool, source: str) -> Any:
    """What a pickle holds. Loading one can run any code: only with `allow_pickle=True`.

    Byte strings of Python 2 become strings, one character a byte, as NumPy's arrays need it.
    """
    path = required_file(path, source)
    if allow_pickle is not True:
        raise ValueError(
            f"{path} is a pickle, and loading a pickle can run any program that it contains. If "
            f"you trust the file, pass allow_pickle=True. Received: allow_pickle={allow_pickle!r}"
        )
    try:
        with path.open("rb") as stream:
            return pickle.load(stream, encoding="latin1")
    except _UNREADABLE as error:
        raise bad_data(path, f"it is not a whole pickle: {error}.", source) from error


def read_npz(
    path: Any, names: Iterable[str], source: str, allow_pickle: bool = False
) -> dict[str, np.ndarray]:
    """The arrays `names` of an `.npz` file."""
    names = list(names)
    path = required_file(path, source)
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise ValueError("it is not an .npz file (a zip archive), or a part of one")
            stream.seek(0)
            stored = np.load(stream, allow_pickle=allow_pickle, encoding="latin1")
            with stored:
                missing = sorted({*names} - {*stored.files})
                if missing:
                    has = ", ".join(stored.files)
                    raise KeyError(f"it has no {', '.join(missing)}, only {has}")
                return {name: stored[name] for name in names}
    except KeyError as error:
        raise bad_data(path, f"{error.args[0]}.", source) from error
    except _UNREADABLE as error:
        raise bad_data(path, f"it cannot be read as arrays: {error}.", source) from error


def read_table(path: Any, columns: int | None, source: str) -> np.ndarray:
    """The numbers of a text file, float32 (rows, columns); all finite."""
    rows: list[np.ndarray] = []
    for number, line in enumerate(read_lines(path, source), 1):
        try:
            row = parse_numbers(line.split())
        except ValueError as error:
            problem = f"it is not a table of numbers: line {number} has {error}."
            raise bad_data(path, problem, source) from None
        if len(row):
            rows.append(row)
            if columns is not None and len(row) != columns:
                problem = f"rows of {columns} numbers are expected; line {number} has {len(row)}."
                raise bad_data(path, problem, source)
            if len(row) != len(rows[0]):
                problem = f"it is not a table of numbers: line {number} has {len(row)}, "
                raise bad_data(path, f"{problem}the first {len(rows[0])}.", source)
    if not rows:
        raise bad_data(path, "it has no numbers.", source)
    return np.stack(rows)
