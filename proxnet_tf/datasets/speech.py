"""Speech heard and articulated: acoustic and articulatory features with a phone for each frame."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from proxnet_tf.datasets.files import as_float32, bad_data, check_integer, required_file

SOURCE = "https://home.ttic.edu/~klivescu/XRMB_data/full/README (XRMB, Wisconsin X-ray Micro-Beam)"
_LAYOUT = {"MFCCS": (None, 39), "ARTICS": (None, 16), "LABELS": (None, 1), "LENGTHS": (1, None)}
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


class Sequences(NamedTuple):
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


def load_articulatory_speech(path: str | Path) -> Utterances:
    """Loads a MATLAB file with the arrays MFCCS, ARTICS, LABELS and LENGTHS, as XRMB has them.

    MFCCS is N x 39, ARTICS N x 16, LABELS N x 1 (phones 0 to 39), LENGTHS 1 x utterances with the
    sum N. Values are not normalised. SciPy is needed.

    Args:
        path: a `.mat` file of MATLAB's version 7 or older.

    Raises:
        ValueError: no such file, a damaged or truncated one or one of MATLAB 7.3 (HDF5), missing
            arrays, other shapes, values that are not finite, labels out of range, lengths that do
            not add up.

    Example:
        utterances = load_articulatory_speech("xrmb.mat")

    Reference: Westbury (1994), X-ray microbeam speech production database user's handbook.
    """
    import scipy.io

    path = required_file(path, SOURCE)
    try:
        found = scipy.io.loadmat(str(path), variable_names=list(_LAYOUT))
    except NotImplementedError:
        raise bad_data(
            path,
            "it is of MATLAB's version 7.3 (HDF5); save it again with save(..., '-v7') in MATLAB.",
            SOURCE,
        ) from None
    except Exception as error:  # SciPy raises many kinds on damaged files
        raise bad_data(path, f"it is no MATLAB file, or a part of one: {error}.", SOURCE) from (
            error
        )
    missing = [name for name in _LAYOUT if name not in found]
    if missing:
        raise bad_data(path, f"it has no {', '.join(missing)}.", SOURCE)
    arrays = {name: np.asarray(found[name]) for name in _LAYOUT}
    frames = 0
    for name, shape in _LAYOUT.items():
        array = arrays[name]
        if array.dtype.kind == "O":
            raise bad_data(path, f"{name} must be a full matrix of numbers.", SOURCE)
        wanted = (frames or shape[0], shape[1]) if shape[0] is None else shape
        fits = array.ndim == 2 and all(
            w is None or w == s for w, s in zip(wanted, array.shape, strict=True)
        )
        if not fits or not array.size:
            sizes = str(wanted).replace("None", "any number > 0")
            raise bad_data(path, f"{name} must be {sizes}, not {array.shape}.", SOURCE)
        frames = frames or len(array)
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise bad_data(path, f"{name} has values that are not finite numbers.", SOURCE)
    labels, lengths = arrays["LABELS"][:, 0], arrays["LENGTHS"][0]
    for name, array in (("LABELS", labels), ("LENGTHS", lengths)):
        if (array != np.floor(array)).any():
            raise bad_data(path, f"{name} must be whole numbers.", SOURCE)
    if labels.min() < 0 or labels.max() >= NUM_PHONES:
        problem = f"LABELS must be 0 to {NUM_PHONES - 1}, not {labels.min()} to {labels.max()}."
        raise bad_data(path, problem, SOURCE)
    inside = 1 <= lengths.min() and lengths.max() <= frames
    lengths = lengths.astype("int64") if inside else lengths
    if not inside or lengths.sum() != frames:
        problem = f"LENGTHS must be positive and add up to {frames} frames, not {lengths.sum()}."
        raise bad_data(path, problem, SOURCE)
    views = []
    for name in ("MFCCS", "ARTICS"):
        try:
            views.append(as_float32(arrays[name]))
        except ValueError as error:
            raise bad_data(path, f"{name} has {error}.", SOURCE) from None
    return Utterances(views[0], views[1], labels.astype("int32"), lengths)


def split_utterances(utterances: Utterances, train: int) -> tuple[Utterances, Utterances]:
    """The first `train` utterances, and the others.

    Args:
        utterances: what `load_articulatory_speech` returns.
        train: how many belong to the first part; both parts need one at least. In XRMB the first
            1837 are those of 35 speakers, the others those of the other 12.

    Raises:
        ValueError: a number outside its range.

    Example:
        train, test = split_utterances(utterances, 1837)
    """
    count = len(utterances.lengths)
    train = check_integer("train", train, at_most=count - 1)
    cut = utterances.lengths[:train].sum()

    def part(frames: slice, which: slice) -> Utterances:
        return Utterances(
            utterances.acoustic[frames],
            utterances.articulatory[frames],
            utterances.labels[frames],
            utterances.lengths[which],
        )

    return (
        part(slice(None, cut), slice(None, train)),
        part(slice(cut, None), slice(train, None)),
    )


def cut_utterances(utterances: Utterances, frames: int) -> Sequences:
    """Cuts every utterance into pieces of `frames` frames, the last one shorter, and pads them.

    Args:
        utterances: what `load_articulatory_speech` or `split_utterances` returns.
        frames: >= 1.

    Raises:
        ValueError: a number outside its range.

    Example:
        sequences = cut_utterances(utterances, 250)
    """
    frames = check_integer("frames", frames)
    ends = np.cumsum(utterances.lengths)
    starts = np.concatenate(
        [np.arange(end - n, end, frames) for end, n in zip(ends, utterances.lengths, strict=True)]
    )
    lengths: np.ndarray = np.diff(np.append(starts, ends[-1]))
    valid = np.arange(frames) < lengths[:, None]

    def pad(array: np.ndarray, fill: int) -> np.ndarray:
        padded = np.full((*valid.shape, *array.shape[1:]), fill, array.dtype)
        padded[valid] = array
        return padded

    return Sequences(
        pad(utterances.acoustic, 0),
        pad(utterances.articulatory, 0),
        pad(utterances.labels, -1),
        lengths,
    )
