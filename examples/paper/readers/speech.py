"""Speech heard and articulated: acoustic and articulatory features with a phone for each frame."""

from typing import NamedTuple

import numpy as np
import scipy.io

from readers.files import as_float32, bad_data, required_file

SOURCE = "https://home.ttic.edu/~klivescu/XRMB_data/full/README (XRMB, Wisconsin X-ray Micro-Beam)"
NUM_PHONES = 40


class Utterances(NamedTuple):
    """Utterances one after the other.

    Attributes:
        acoustic: float32 (frames, 39), MFCC with first and second differences.
        articulatory: float32 (frames, 16), displacements of points of the vocal tract.
        labels: int32 (frames,), phones 0 to 39.
        lengths: int64 (utterances,), frames of each; they add up to all frames.
    """

    acoustic: np.ndarray
    articulatory: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray


class Pieces(NamedTuple):
    """Padded pieces of utterances.

    Attributes:
        acoustic: float32 (n, time, 39), zero after the end.
        articulatory: float32 (n, time, 16), zero after the end.
        labels: int32 (n, time), -1 after the end.
        lengths: int64 (n,), frames of each piece.
    """

    acoustic: np.ndarray
    articulatory: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray


def load_articulatory_speech(path):
    """A MATLAB file with the arrays MFCCS, ARTICS, LABELS and LENGTHS, as XRMB has them.

    MFCCS is N x 39, ARTICS N x 16, LABELS N x 1 (phones 0 to 39), LENGTHS 1 x utterances with the
    sum N. Values are not normalised.

    Args:
        path: a `.mat` file of MATLAB's version 7 or older.

    Raises:
        ValueError: no such file, a damaged or truncated one or one of MATLAB 7.3 (HDF5), missing
            arrays, other shapes, values that are not finite, labels out of range, lengths that do
            not add up.

    Reference: Westbury (1994), X-ray microbeam speech production database user's handbook.
    """
    path = required_file(path, SOURCE)

    def check(correct, problem):
        if not correct:
            raise bad_data(path, problem, SOURCE)

    names = ("MFCCS", "ARTICS", "LABELS", "LENGTHS")
    try:
        found = scipy.io.loadmat(str(path), variable_names=list(names))
    except NotImplementedError:
        problem = "it is of MATLAB's version 7.3 (HDF5); save it again with save(..., '-v7')."
        raise bad_data(path, problem, SOURCE) from None
    except Exception as error:  # SciPy raises many kinds on damaged files
        problem = f"it is no MATLAB file, or a part of one: {error}."
        raise bad_data(path, problem, SOURCE) from error
    missing = [name for name in names if name not in found]
    check(not missing, f"it has no {', '.join(missing)}.")
    acoustic, articulatory, labels, lengths = (found[name] for name in names)
    shapes = {"MFCCS": (len(acoustic), 39), "ARTICS": (len(acoustic), 16),
              "LABELS": (len(acoustic), 1), "LENGTHS": (1, lengths.size)}  # fmt: skip
    for name, shape in shapes.items():
        problem = f"{name} must be {shape}, not {found[name].shape}."
        check(found[name].shape == shape and found[name].size, problem)
    lengths, labels = lengths[0].astype("int64"), labels[:, 0].astype("int32")
    inside = 0 <= labels.min() and labels.max() < NUM_PHONES
    problem = f"LABELS must be 0 to {NUM_PHONES - 1}, not {labels.min()} to {labels.max()}."
    check(inside, problem)
    problem = f"LENGTHS must be positive and add up to {len(labels)} frames, not {lengths.sum()}."
    check(lengths.min() > 0 and lengths.sum() == len(labels), problem)
    try:
        views = [as_float32(view) for view in (acoustic, articulatory)]
    except ValueError as error:
        raise bad_data(path, f"MFCCS or ARTICS has {error}.", SOURCE) from None
    return Utterances(*views, labels, lengths)


def split_utterances(utterances, train):
    """The first `train` utterances, and the others.

    Args:
        utterances: what `load_articulatory_speech` returns.
        train: how many belong to the first part; both parts need one at least. In XRMB the first
            1837 are those of 35 speakers, the others those of the other 12.

    Raises:
        ValueError: a number outside its range.
    """
    count = len(utterances.lengths)
    if not 1 <= train < count:
        raise ValueError(f"`train` must be >= 1 and <= {count - 1}. Received: train={train!r}")
    cut = utterances.lengths[:train].sum()
    *frames, lengths = utterances
    return (
        Utterances(*(array[:cut] for array in frames), lengths[:train]),
        Utterances(*(array[cut:] for array in frames), lengths[train:]),
    )


def cut_utterances(utterances, frames):
    """Cuts every utterance into pieces of `frames` frames, the last one shorter, and pads them.

    Args:
        utterances: what `load_articulatory_speech` or `split_utterances` returns.
        frames: >= 1.
    """
    ends = np.cumsum(utterances.lengths)
    starts = np.concatenate(
        [np.arange(end - n, end, frames) for end, n in zip(ends, utterances.lengths, strict=True)]
    )
    lengths = np.diff(np.append(starts, ends[-1]))
    valid = np.arange(frames) < lengths[:, None]

    def pad(array, fill):
        padded = np.full((*valid.shape, *array.shape[1:]), fill, array.dtype)
        padded[valid] = array
        return padded

    return Pieces(
        pad(utterances.acoustic, 0),
        pad(utterances.articulatory, 0),
        pad(utterances.labels, -1),
        lengths,
    )
