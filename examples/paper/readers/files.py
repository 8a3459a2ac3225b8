"""What the readers share: archives, text, arrays, and errors that name the file."""

import contextlib
import lzma
import pickle
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

# RuntimeError: an encrypted member of a zip.
BROKEN = (EOFError, OSError, RuntimeError, ValueError, lzma.LZMAError, tarfile.TarError,
          zipfile.BadZipFile, zlib.error)  # fmt: skip
UNREADABLE = (*BROKEN, AttributeError, ImportError, LookupError, TypeError, pickle.UnpicklingError)


def bad_data(path, problem, source):
    """The error for a file that is missing, incomplete or of another layout."""
    return ValueError(f"{path}: {problem} The data set is available at {source}.")


def required(path, source):
    """`path` if there is something, or a `ValueError`."""
    path = Path(path)
    if not path.exists():
        raise bad_data(path, "there is no such file or folder.", source)
    return path


def required_file(path, source):
    """`path` if there is a file, or a `ValueError`."""
    path = required(path, source)
    if path.is_dir():
        raise bad_data(path, "it is a folder; a file is expected.", source)
    return path


def visible(folder, pattern):
    """What matches `pattern` in `folder`, sorted, without hidden files and folders.

    Besides its files a Mac stores `._NAME` next to NAME on foreign disks, and `__MACOSX/._NAME` in
    archives; both match the patterns that NAME matches.
    """

    def hidden(path):
        parts = path.relative_to(folder).parts
        return any(part.startswith(".") or part == "__MACOSX" for part in parts)

    return sorted(path for path in folder.glob(pattern) if not hidden(path))


def _unpack(archive, folder):
    """A zip or tar archive; no member leaves `folder`."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    else:
        raise ValueError("it is no zip or tar archive, or a part of one")


@contextlib.contextmanager
def folder_of(path, marker, source):
    """The folder with `marker` in it: `path`, a folder or archive, or up to three levels below.

    An archive (and a zip in a zip) is unpacked to a temporary folder for as long as the context.
    """
    path = required(path, source)
    with contextlib.ExitStack() as stack:
        place = path
        if path.is_file():
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                _unpack(path, place)
                for inner in list(place.glob("*.zip")):
                    _unpack(inner, place)
            except BROKEN as error:
                raise bad_data(path, f"it cannot be unpacked: {error}.", source) from error
        for depth in range(4):
            for found in visible(place, "*/" * depth + marker):
                yield found.parents[len(Path(marker).parts) - 1]
                return
        raise bad_data(path, f"{marker!r} is missing in it.", source)


def read_lines(path, source):
    r"""The lines of a UTF-8 text file, which end in `\n`, `\r\n` or `\r`."""
    path = required_file(path, source)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise bad_data(path, f"it is not UTF-8 text ({error}).", source) from error
    return lines if lines[-1] else lines[:-1]


def parse_numbers(words):
    """The numbers that `words` spell, float32.

    Raises a `ValueError` that says "something that is not a number" or "a value that is not
    finite", to be put after "line 3 has".
    """
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        raise ValueError("something that is not a number") from None
    return as_float32(values)


def as_float32(values):
    """`values` in float32; a `ValueError` if one is not finite there: 1e39 becomes infinite."""
    with np.errstate(over="ignore"):
        single = np.asarray(values).astype(np.float32)
    if not np.isfinite(single).all():
        raise ValueError("a value that is not finite (in float32)")
    return single


def read_table(path, columns, source):
    """The numbers of a text file with `columns` of them on each line, float32; all finite."""
    rows = []
    for number, line in enumerate(read_lines(path, source), 1):
        words = line.split()
        try:
            row = parse_numbers(words)
        except ValueError as error:
            raise bad_data(path, f"line {number} has {error}.", source) from None
        if len(row) not in (0, columns):
            problem = f"rows of {columns} numbers are expected; line {number} has {len(row)}."
            raise bad_data(path, problem, source)
        if len(row):
            rows.append(row)
    if not rows:
        raise bad_data(path, "it has no numbers.", source)
    return np.stack(rows)


def read_pickle(path, allow_pickle, source):
    """What a pickle holds. Loading one can run any code: only with `allow_pickle=True`.

    Byte strings of Python 2 become strings, one character a byte, as NumPy's arrays need it.
    """
    path = required_file(path, source)
    if not allow_pickle:
        raise ValueError(
            f"{path} is a pickle, and loading a pickle can run any program that it contains. If "
            f"you trust the file, pass allow_pickle=True. Received: allow_pickle={allow_pickle!r}"
        )
    try:
        with path.open("rb") as stream:
            return pickle.load(stream, encoding="latin1")
    except UNREADABLE as error:
        raise bad_data(path, f"it is not a whole pickle: {error}.", source) from error


def read_npz(path, names, source, allow_pickle=False):
    """The arrays `names` of an `.npz` file."""
    path = required_file(path, source)
    try:
        with (
            path.open("rb") as stream,
            np.load(stream, allow_pickle=allow_pickle, encoding="latin1") as stored,
        ):
            missing = sorted({*names} - {*stored.files})
            if not missing:
                return {name: stored[name] for name in names}
            has = ", ".join(stored.files)
    except UNREADABLE as error:
        raise bad_data(path, f"it cannot be read as arrays: {error}.", source) from error
    raise bad_data(path, f"it has no {', '.join(missing)}, only {has}.", source)
