"""Readers of published sequence sets: UCI HAR, Spoken Arabic Digits, UEA pairs, IMDB."""

from collections.abc import Sequence as ListOf
from pathlib import Path
from typing import Any

import numpy as np

from proxnet_tf.datasets.files import (
    bad_data,
    check_integer,
    folder_of,
    parse_numbers,
    read_lines,
    read_npz,
    read_table,
    required,
    visible,
)
from proxnet_tf.datasets.japanese_vowels import Sequences

# Series (time, features) of different lengths, and their labels.
Part = tuple[list[np.ndarray], np.ndarray]

HAR = "https://archive.ics.uci.edu/dataset/240 (Human Activity Recognition Using Smartphones)"
ARABIC = "https://archive.ics.uci.edu/dataset/195 (Spoken Arabic Digit)"
UEA = "https://www.timeseriesclassification.com"
IMDB = (
    "https://ai.stanford.edu/~amaas/data/sentiment, and as ids through `keras.datasets.imdb` "
    "(imdb.npz)"
)

_SIGNALS = tuple(
    f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)


def load_uci_har(path: Any) -> tuple[Sequences, Sequences]:
    """Loads Human Activity Recognition Using Smartphones, (train, test), from its folder or zip.

    7352 and 2947 windows of 128 steps of 9 inertial signals (body acceleration, angular velocity
    and total acceleration, three axes each), six activities. For each part P (train, test):

        P/Inertial Signals/SIGNAL_AXIS_P.txt     128 numbers a line
        P/y_P.txt                                1 to 6

    Args:
        path: folder with `train` and `test` in it or up to three levels below, or the zip file.

    Returns:
        Two `Sequences`; labels are 0 to 5 (walking, upstairs, downstairs, sitting, standing,
        laying).

    Raises:
        ValueError: a missing or truncated file, files of different lengths.

    Example:
        train, test = load_uci_har("UCI HAR Dataset")

    Reference: Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, "A public domain dataset for human activity
    recognition using smartphones", ESANN 2013; UCI Machine Learning Repository,
    doi:10.24432/C54S4K.
    """
    with folder_of(path, "train/y_train.txt", HAR) as root:
        train, test = (_har_part(root / part, part) for part in ("train", "test"))
    return train, test


def _har_part(folder: Path, part: str) -> Sequences:
    labels = read_table(folder / f"y_{part}.txt", 1, HAR)[:, 0]
    if not np.isin(labels, np.arange(1, 7)).all():
        raise bad_data(folder / f"y_{part}.txt", "labels must be 1 to 6.", HAR)
    channels = []
    for name in _SIGNALS:
        file = folder / "Inertial Signals" / f"{name}_{part}.txt"
        channels.append(read_table(file, 128, HAR))
        if len(channels[-1]) != len(labels):
            problem = f"{len(channels[-1])} lines, but {len(labels)} labels in y_{part}.txt."
            raise bad_data(file, problem, HAR)
    values = np.stack(channels, -1)
    mask = np.ones(values.shape[:2], bool)
    return Sequences(values, mask, labels.astype(np.int32) - 1)


def load_spoken_arabic_digits(path: Any) -> tuple[Sequences, Sequences]:
    """Loads Spoken Arabic Digit, (train, test), from the folder (or archive) of its text files.

    6600 and 2200 utterances of the digits 0 to 9, 4 to 93 frames of 13 cepstral coefficients. In
    `Train_Arabic_Digit.txt` and `Test_Arabic_Digit.txt` a line is a frame, blank lines separate
    the utterances, and each digit has as many utterances as the next, in the order of the digits.

    Args:
        path: folder with the two files in it or up to three levels below, or a zip or tar file.

    Returns:
        Two `Sequences`, zero after the end of an utterance; labels are the digits.

    Raises:
        ValueError: a missing or truncated file, lines that are not 13 numbers.

    Example:
        train, test = load_spoken_arabic_digits("spoken+arabic+digit.zip")

    Reference: Hammami, Bedda, "Improved tree model for Arabic speech recognition", ICCSIT 2010; UCI
    Machine Learning Repository, doi:10.24432/C52C9Q. The UEA archive has it as a `.ts` pair
    (`load_uea`).
    """
    with folder_of(path, "Train_Arabic_Digit.txt", ARABIC) as root:
        parts = [_arabic_part(root / f"{part}_Arabic_Digit.txt") for part in ("Train", "Test")]
    train, test = _padded(*parts)
    return train, test


def _arabic_part(file: Path) -> Part:
    series: list[list[np.ndarray]] = [[]]
    for number, line in enumerate(read_lines(file, ARABIC), 1):
        words = line.split()
        if words:
            series[-1].append(_numbers(words, file, number, ARABIC))
            if len(words) != 13:
                problem = f"line {number} has {len(words)} numbers, not 13."
                raise bad_data(file, problem, ARABIC)
        elif series[-1]:
            series.append([])
    series = [one for one in series if one]
    count, rest = divmod(len(series), 10)
    if rest or not count:
        problem = f"{len(series)} utterances are not equally many of 10 digits: it is incomplete."
        raise bad_data(file, problem, ARABIC)
    return [np.stack(one) for one in series], np.repeat(np.arange(10), count)


def _numbers(words: list[str], file: Path, number: int, source: str) -> np.ndarray:
    try:
        return parse_numbers(words)
    except ValueError as error:
        raise bad_data(file, f"line {number} has {error}.", source) from None


def _padded(*parts: Part) -> list[Sequences]:
    """`Sequences` of (list of (time, features), labels), all padded to the longest of all."""
    steps = max(len(one) for series, _ in parts for one in series)
    padded = []
    for series, labels in parts:
        mask = np.arange(steps) < np.array([len(one) for one in series])[:, None]
        values = np.zeros((*mask.shape, series[0].shape[1]), np.float32)
        values[mask] = np.concatenate(series)
        padded.append(Sequences(values, mask, np.asarray(labels, np.int32)))
    return padded


def load_uea(path: Any, name: str | None = None) -> tuple[Sequences, Sequences]:
    """Loads a pair `NAME_TRAIN.ts`, `NAME_TEST.ts` of the UEA and UCR archives, (train, test).

    Series may have one or more dimensions and unequal lengths. Series with time stamps, missing
    values or dimensions of different lengths are refused, and so are regression sets.

    Args:
        path: folder with the pair in it or up to three levels below, or a zip or tar file.
        name: NAME, needed if there are several pairs.

    Returns:
        Two `Sequences`, zero after the end of a series; labels are numbered from 0 in the order of
        the header's class labels.

    Raises:
        ValueError: a missing or truncated file, one that does not keep to the format, or data of a
            kind that is refused.

    Example:
        train, test = load_uea("SpokenArabicDigits.zip")

    Reference: Bagnall et al., "The UEA multivariate time series classification archive, 2018",
    arXiv 1811.00075.
    """
    with folder_of(path, f"{name or '*'}_TRAIN.ts", UEA) as root:
        files = visible(root, f"{name or '*'}_TRAIN.ts")
        if len(files) > 1:
            names = ", ".join(file.name.removesuffix("_TRAIN.ts") for file in files)
            raise ValueError(f"{root} has several pairs: choose `name` out of {names}.")
        stem = files[0].name.removesuffix("_TRAIN.ts")
        train_part, train_classes = _read_ts(root / f"{stem}_TRAIN.ts")
        test_part, test_classes = _read_ts(root / f"{stem}_TEST.ts")
    if train_classes != test_classes or train_part[0][0].shape[1] != test_part[0][0].shape[1]:
        problem = "the headers of the two files differ in classes or dimensions."
        raise bad_data(root / stem, problem, UEA)
    train, test = _padded(train_part, test_part)
    return train, test


def _read_ts(file: Path) -> tuple[Part, list[str]]:
    """The series and labels of a `.ts` file, and the names of its classes."""
    lines = enumerate(map(str.strip, read_lines(file, UEA)), 1)
    header: dict[str, list[str]] = {}
    for number, line in lines:
        if line.startswith("@"):
            key, *values = line[1:].split() or [""]
            if key.lower() in header:
                raise bad_data(file, f"line {number} has @{key} for the second time.", UEA)
            header[key.lower()] = values
            if key.lower() == "data":
                break
        elif line and line[0] not in "#%":
            raise bad_data(file, f"line {number} is before @data and has no @: {line!r}.", UEA)
    else:
        raise bad_data(file, "it has no @data.", UEA)
    for key in ("timestamps", "missing"):
        if _flag(header, key, file):
            raise bad_data(file, f"series with @{key} cannot be read.", UEA)
    classes = header.get("classlabel", [])[1:]
    if not classes or not _flag(header, "classlabel", file):
        raise bad_data(file, "it has no @classLabel true with the classes.", UEA)
    if len(set(classes)) < len(classes):
        raise bad_data(file, f"@classLabel names a class twice: {' '.join(classes)}.", UEA)
    dimensions, length = (_header_count(header, k, file) for k in ("dimensions", "serieslength"))
    if _flag(header, "univariate", file):
        if dimensions not in (None, 1):
            raise bad_data(file, f"@univariate true, but @dimensions {dimensions}.", UEA)
        dimensions = 1
    series, labels = [], []
    for number, line in lines:
        if not line or line.startswith("#"):
            continue
        *channels, label = line.split(":")
        rows = [_numbers(channel.split(","), file, number, UEA) for channel in channels]
        dimensions = dimensions or len(rows)
        if label.strip() not in classes or len(rows) != dimensions or len(set(map(len, rows))) > 1:
            problem = f"line {number} is not {dimensions} dimensions of one length and a label."
            raise bad_data(file, problem, UEA)
        series.append(np.stack(rows, 1))
        labels.append(classes.index(label.strip()))
    lengths = {len(one) for one in series}
    wrong = _flag(header, "equallength", file) and lengths != {length or max(lengths, default=0)}
    if not series or wrong:
        raise bad_data(file, "it has no series, or not of the length of its header.", UEA)
    return (series, np.array(labels)), classes


def _flag(header: dict[str, list[str]], key: str, file: Path) -> bool:
    """Whether the header says "true", in any case, after the key; without the key it does not."""
    words = [word.lower() for word in header.get(key, ["false"])]
    words = words[:1] if key == "classlabel" else words  # the classes follow
    if words not in (["true"], ["false"]):
        raise bad_data(file, f"@{key} must be true or false, not {header[key]}.", UEA)
    return words == ["true"]


def _header_count(header: dict[str, list[str]], key: str, file: Path) -> int | None:
    if key not in header:
        return None
    try:
        return check_integer(key, int(" ".join(header[key])))
    except ValueError:
        problem = f"@{key} must be one integer >= 1, not {' '.join(header[key]) or 'nothing'}."
        raise bad_data(file, problem, UEA) from None


def load_imdb(
    path: Any,
    *,
    num_words: int = 20000,
    max_length: int = 400,
    allow_pickle: bool = False,
) -> tuple[Sequences, Sequences]:
    """Loads the IMDB reviews, (train, test), as word ids from an `.npz` file.

    Two layouts are read. `imdb.npz` of `keras.datasets.imdb` has the arrays `x_train`, `y_train`,
    `x_test`, `y_test`, with lists of word ranks (1 is the most frequent) as objects: a pickle. The
    other needs none: `x_train_ids`, all reviews one after the other (0 is not used, 1 is any other
    word, then the words, most frequent first), `x_train_lengths`, `y_train`, and so for `test`.

    Args:
        path: of the file.
        num_words: size of the vocabulary with padding (0) and any other word (1), >= 3.
        max_length: only the last words of longer reviews are kept, >= 1.
        allow_pickle: must be True for the layout of Keras. A pickle can run any program when it
            is loaded.

    Returns:
        Two `Sequences` with int32 ids `(n, max_length)` as values; labels are 1 for positive.

    Raises:
        ValueError: a missing or truncated file, missing arrays, arrays that do not fit together,
            a pickle without `allow_pickle=True`.

    Example:
        train, test = load_imdb("imdb.npz", num_words=10000, allow_pickle=True)

    Reference: Maas, Daly, Pham, Huang, Ng, Potts, "Learning word vectors for sentiment analysis",
    ACL 2011.
    """
    num_words = check_integer("num_words", num_words, at_least=3)
    max_length = check_integer("max_length", max_length)
    parts = ("train", "test")
    if _is_ragged(path):
        names = [f"{kind}_{part}{end}" for part in parts for kind, end in _RAGGED]
        arrays = read_npz(path, names, IMDB)
        reviews = {part: _split_ids(arrays, part, path) for part in parts}
    else:
        if allow_pickle is not True:
            raise ValueError(
                f"{required(path, IMDB)} has no array x_train_ids. In the layout of Keras the "
                "reviews are a pickle, which can run any program when it is loaded: if you trust "
                f"the file, pass allow_pickle=True. Received: allow_pickle={allow_pickle!r}"
            )
        names = [f"{kind}_{part}" for part in parts for kind in "xy"]
        arrays = read_npz(path, names, IMDB, allow_pickle=True)
        reviews = {part: _from_ranks(arrays[f"x_{part}"], path) for part in parts}
    found = []
    for part in parts:
        labels = arrays[f"y_{part}"]
        if labels.shape != (len(reviews[part]),) or not np.isin(labels, (0, 1)).all():
            problem = f"y_{part} must be 0 or 1 for each of {len(reviews[part])} reviews."
            raise bad_data(path, problem, IMDB)
        found.append(_ids(reviews[part], labels, num_words, max_length, path))
    return found[0], found[1]


_RAGGED = (("x", "_ids"), ("x", "_lengths"), ("y", ""))


def _from_ranks(reviews: np.ndarray, path: Any) -> list[np.ndarray]:
    """Ids from 2, of ranks from 1."""
    try:
        ranks = [np.asarray(list(one)) for one in reviews]  # reviews of one length make a matrix
    except (TypeError, ValueError):
        ranks = []
    if not ranks or any(one.ndim != 1 or one.dtype.kind not in "iu" for one in ranks if one.size):
        raise bad_data(path, "x_train and x_test must hold lists of ids.", IMDB)
    return [one.astype(np.int64) + 1 for one in ranks]


def _is_ragged(path: Any) -> bool:
    try:
        read_npz(path, ["x_train_ids"], IMDB)
    except ValueError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        return False
    return True


def _split_ids(arrays: dict[str, np.ndarray], part: str, path: Any) -> list[np.ndarray]:
    ids, lengths = arrays[f"x_{part}_ids"], arrays[f"x_{part}_lengths"]
    for name, array in ((f"x_{part}_ids", ids), (f"x_{part}_lengths", lengths)):
        if array.dtype.kind not in "iu" or array.ndim != 1:
            problem = f"{name} must be integers in one row, not {array.dtype} {array.shape}."
            raise bad_data(path, problem, IMDB)
    inside = len(lengths) and 1 <= lengths.min() and lengths.max() <= len(ids)
    if not inside or lengths.sum() != len(ids):
        problem = f"x_{part}_lengths must be positive and add up to the size of x_{part}_ids."
        raise bad_data(path, problem, IMDB)
    return np.split(ids, np.cumsum(lengths.astype(np.int64))[:-1])


def _ids(
    reviews: ListOf[np.ndarray], labels: np.ndarray, num_words: int, max_length: int, path: Any
) -> Sequences:
    mask = np.arange(max_length) < np.array([len(one) for one in reviews])[:, None]
    values = np.zeros(mask.shape, np.int32)
    kept = np.concatenate([one[-max_length:] for one in reviews])
    if not mask[:, 0].all() or kept.min() < 1:
        raise bad_data(path, "it has an empty review or an id below 1.", IMDB)
    values[mask] = np.where(kept < num_words, kept, 1)
    return Sequences(values, mask, labels.astype(np.int32))
