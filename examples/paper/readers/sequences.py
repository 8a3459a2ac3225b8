"""Sequences: UCI HAR, Spoken Arabic Digits, pairs of the UEA archive, IMDB."""

import numpy as np

from proxnet_tf.datasets.japanese_vowels import Sequences
from readers.files import (
    bad_data,
    folder_of,
    parse_numbers,
    read_lines,
    read_npz,
    read_table,
    visible,
)

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


def load_uci_har(path):
    """Human Activity Recognition Using Smartphones, (train, test), from its folder or zip.

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

    Reference: Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, "A public domain dataset for human activity
    recognition using smartphones", ESANN 2013; UCI Machine Learning Repository,
    doi:10.24432/C54S4K.
    """
    with folder_of(path, "train/y_train.txt", HAR) as root:
        return tuple(_har_part(root / part, part) for part in ("train", "test"))


def _har_part(folder, part):
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
    return Sequences(values, np.ones(values.shape[:2], bool), labels.astype(np.int32) - 1)


def load_spoken_arabic_digits(path):
    """Spoken Arabic Digit, (train, test), from the folder (or archive) of its text files.

    6600 and 2200 utterances of the digits 0 to 9, 4 to 93 frames of 13 cepstral coefficients. In
    `Train_Arabic_Digit.txt` and `Test_Arabic_Digit.txt` a line is a frame, blank lines separate
    the utterances, and each digit has as many utterances as the next, in the order of the digits.

    Args:
        path: folder with the two files in it or up to three levels below, or a zip or tar file.

    Returns:
        Two `Sequences`, zero after the end of an utterance; labels are the digits.

    Raises:
        ValueError: a missing or truncated file, lines that are not 13 numbers.

    Reference: Hammami, Bedda, "Improved tree model for Arabic speech recognition", ICCSIT 2010; UCI
    Machine Learning Repository, doi:10.24432/C52C9Q. The UEA archive has it as a `.ts` pair
    (`load_uea`).
    """
    with folder_of(path, "Train_Arabic_Digit.txt", ARABIC) as root:
        parts = [_arabic_part(root / f"{part}_Arabic_Digit.txt") for part in ("Train", "Test")]
    return _padded(*parts)


def _arabic_part(file):
    """Series (time, 13) and their labels."""
    series = [[]]
    for number, line in enumerate(read_lines(file, ARABIC), 1):
        words = line.split()
        if words:
            series[-1].append(_numbers(words, file, number, ARABIC))
            if len(words) != 13:
                problem = f"line {number} has {len(words)} numbers, not 13."
                raise bad_data(file, problem, ARABIC)
        elif series[-1]:
            series.append([])
    series = [np.stack(one) for one in series if one]
    count, rest = divmod(len(series), 10)
    if rest or not count:
        problem = f"{len(series)} utterances are not equally many of 10 digits: it is incomplete."
        raise bad_data(file, problem, ARABIC)
    return series, np.repeat(np.arange(10), count)


def _numbers(words, file, number, source):
    try:
        return parse_numbers(words)
    except ValueError as error:
        raise bad_data(file, f"line {number} has {error}.", source) from None


def _padded(*parts):
    """`Sequences` of (list of (time, features), labels), all padded to the longest of all."""
    steps = max(len(one) for series, _ in parts for one in series)
    padded = []
    for series, labels in parts:
        mask = np.arange(steps) < np.array([len(one) for one in series])[:, None]
        values = np.zeros((*mask.shape, series[0].shape[1]), np.float32)
        values[mask] = np.concatenate(series)
        padded.append(Sequences(values, mask, np.asarray(labels, np.int32)))
    return tuple(padded)


def load_uea(path, name=None):
    """A pair `NAME_TRAIN.ts`, `NAME_TEST.ts` of the UEA and UCR archives, (train, test).

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

    Reference: Bagnall et al., "The UEA multivariate time series classification archive, 2018",
    arXiv 1811.00075.
    """
    with folder_of(path, f"{name or '*'}_TRAIN.ts", UEA) as root:
        files = visible(root, f"{name or '*'}_TRAIN.ts")
        if len(files) > 1:
            names = ", ".join(file.name.removesuffix("_TRAIN.ts") for file in files)
            raise ValueError(f"{root} has several pairs: choose `name` out of {names}.")
        stem = files[0].name.removesuffix("_TRAIN.ts")
        train, train_classes = _read_ts(root / f"{stem}_TRAIN.ts")
        test, test_classes = _read_ts(root / f"{stem}_TEST.ts")
    if train_classes != test_classes or train[0][0].shape[1] != test[0][0].shape[1]:
        problem = "the headers of the two files differ in classes or dimensions."
        raise bad_data(root / stem, problem, UEA)
    return _padded(train, test)


def _read_ts(file):
    """The series and labels of a `.ts` file, and the names of its classes."""
    lines = enumerate(map(str.strip, read_lines(file, UEA)), 1)
    header = {}
    for number, line in lines:
        if line.startswith("@"):
            key, *values = line[1:].split()
            header[key.lower()] = values
            if key.lower() == "data":
                break
        elif line and line[0] not in "#%":
            raise bad_data(file, f"line {number} is before @data and has no @: {line!r}.", UEA)
    else:
        raise bad_data(file, "it has no @data.", UEA)
    for key in ("timestamps", "missing"):
        if header.get(key, ["false"])[0].lower() == "true":
            raise bad_data(file, f"series with @{key} cannot be read.", UEA)
    says, *classes = header.get("classlabel", ["false"])
    if says.lower() != "true" or not classes:
        raise bad_data(file, "it has no @classLabel true with the classes.", UEA)
    dimensions = int(header["dimensions"][0]) if "dimensions" in header else None
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
    if not series:
        raise bad_data(file, "it has no series.", UEA)
    return (series, np.array(labels)), classes


def load_imdb(path, *, num_words=20000, max_length=400, allow_pickle=False):
    """The IMDB reviews, (train, test), as word ids from an `.npz` file.

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

    Reference: Maas, Daly, Pham, Huang, Ng, Potts, "Learning word vectors for sentiment analysis",
    ACL 2011.
    """
    if num_words < 3 or max_length < 1:
        raise ValueError(
            "`num_words` must be >= 3 and `max_length` >= 1. Received: "
            f"num_words={num_words!r}, max_length={max_length!r}"
        )
    parts = ("train", "test")
    names = [f"{array}_{part}" for part in parts for array in "xy"]
    if allow_pickle:
        arrays = read_npz(path, names, IMDB, allow_pickle=True)
        reviews = {part: _from_ranks(arrays[f"x_{part}"], path) for part in parts}
    else:
        split = [f"x_{part}_{end}" for part in parts for end in ("ids", "lengths")]
        try:
            arrays = read_npz(path, [*split, *names[1::2]], IMDB)
        except ValueError as error:
            raise ValueError(
                f"{error} In the layout of Keras the reviews are a pickle, which can run any "
                "program when it is loaded: if you trust the file, pass allow_pickle=True."
            ) from error
        reviews = {part: _split_ids(arrays, part, path) for part in parts}
    found = []
    for part in parts:
        labels = arrays[f"y_{part}"]
        if labels.shape != (len(reviews[part]),) or not np.isin(labels, (0, 1)).all():
            problem = f"y_{part} must be 0 or 1 for each of {len(reviews[part])} reviews."
            raise bad_data(path, problem, IMDB)
        found.append(_ids(reviews[part], labels, num_words, max_length, path))
    return tuple(found)


def _from_ranks(reviews, path):
    """Ids from 2, of ranks from 1."""
    ranks = [np.asarray(list(one)) for one in reviews]
    if any(one.ndim != 1 or one.dtype.kind not in "iu" for one in ranks):
        raise bad_data(path, "x_train and x_test must hold lists of ids.", IMDB)
    return [one.astype(np.int64) + 1 for one in ranks]


def _split_ids(arrays, part, path):
    ids, lengths = arrays[f"x_{part}_ids"], arrays[f"x_{part}_lengths"].astype(np.int64)
    if not len(lengths) or lengths.min() < 1 or lengths.sum() != len(ids):
        problem = f"x_{part}_lengths must be positive and add up to the size of x_{part}_ids."
        raise bad_data(path, problem, IMDB)
    return np.split(ids, np.cumsum(lengths)[:-1])


def _ids(reviews, labels, num_words, max_length, path):
    mask = np.arange(max_length) < np.array([len(one) for one in reviews])[:, None]
    values = np.zeros(mask.shape, np.int32)
    kept = np.concatenate([one[-max_length:] for one in reviews])
    if not mask[:, 0].all() or kept.min() < 1:
        raise bad_data(path, "it has an empty review or an id below 1.", IMDB)
    values[mask] = np.where(kept < num_words, kept, 1)
    return Sequences(values, mask, labels.astype(np.int32))
