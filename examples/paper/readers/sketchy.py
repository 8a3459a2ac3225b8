"""Sketchy: photos of objects and sketches people drew of them."""

import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from readers.files import as_float32, bad_data, folder_of, read_pickle, visible

SOURCE = "https://sketchy.eye.gatech.edu"


class Pairs(NamedTuple):
    """Photos and sketches; row i of both shows the same object.

    Attributes:
        photos: `(n, height, width, channels)`, 0 to 255.
        sketches: `(n, height, width, channels)`, 0 to 255.
        labels: int32 `(n,)`, from 0.
    """

    photos: np.ndarray
    sketches: np.ndarray
    labels: np.ndarray


def split_pairs(pairs, train=0.8, seed=0):
    """Splits the pairs of every class at random; returns the training and the test part.

    Args:
        pairs: what `load_sketchy` returns.
        train: share of the training part in each class, in (0, 1), rounded to whole pairs.
        seed: of the split.

    Raises:
        ValueError: a class too small to be in both parts.
    """
    rng = np.random.default_rng(seed)
    parts = [], []
    for label in np.unique(pairs.labels):
        rows = rng.permutation(np.flatnonzero(pairs.labels == label))
        cut = round(train * len(rows))
        if not 0 < cut < len(rows):
            raise ValueError(
                f"Class {label} has {len(rows)} pairs: too few for a training share of {train}."
            )
        parts[0].append(rows[:cut])
        parts[1].append(rows[cut:])
    return tuple(Pairs(*(a[np.concatenate(rows)] for a in pairs)) for rows in parts)


def load_sketchy(path, num_classes=125, *, pairs_per_class=100, size=128, seed=0):
    """Pairs of a photo and one of its sketches from Sketchy's folders (or their archive).

        photo/CLASS/NAME.jpg                     or  photo/tx_000000000000/CLASS/...
        sketch/CLASS/NAME-K.png, K = 1, 2, ...   or  sketch/tx_000000000000/CLASS/...

    Of the classes, of the photos of each and of the sketches of each photo those taken are drawn
    at random, without replacement.

    Args:
        path: folder that has `photo` and `sketch` in it or up to three levels below, or a zip or
            tar archive of it.
        num_classes: >= 1; 125 are all.
        pairs_per_class: >= 1.
        size: height and width that the images are resized to. All images are held in memory:
            `6 * size**2` bytes a pair.
        seed: of the draw.

    Returns:
        `Pairs` with uint8 images `(n, size, size, 3)`, sorted by class; classes are numbered in
        the order of their names.

    Raises:
        ValueError: folders, classes, pairs or whole images are missing.

    Reference: Sangkloy, Burnell, Ham, Hays, "The Sketchy database: learning to retrieve badly
    drawn bunnies", SIGGRAPH 2016, https://sketchy.eye.gatech.edu.
    """
    rng = np.random.default_rng([seed, 1])  # `split_pairs` draws by the seed itself
    with folder_of(path, "photo", SOURCE) as root:
        folders = [_class_folders(root / kind) for kind in ("photo", "sketch")]
        unpaired = sorted(set(folders[0]) ^ set(folders[1]))
        if unpaired:
            problem = f"classes with photos or sketches alone: {', '.join(unpaired[:5])}."
            raise bad_data(root, problem, SOURCE)
        names = sorted(folders[0])
        if not 1 <= num_classes <= len(names):
            problem = f"it has {len(names)} classes; num_classes={num_classes} cannot be taken."
            raise bad_data(root, problem, SOURCE)
        files = [], []
        for index in np.sort(rng.permutation(len(names))[:num_classes]):
            pairs = _pairs_of(*(part[names[index]] for part in folders))
            if not 1 <= pairs_per_class <= len(pairs):
                problem = f"{len(pairs)} photos of {names[index]!r} have a sketch; "
                problem += f"pairs_per_class={pairs_per_class} cannot be taken."
                raise bad_data(root, problem, SOURCE)
            for k in rng.permutation(len(pairs))[:pairs_per_class]:
                photo, sketches = pairs[k]
                files[0].append(photo)
                files[1].append(sketches[rng.integers(len(sketches))])
        images = [np.stack([_image(file, size) for file in part]) for part in files]
    return Pairs(*images, np.repeat(np.arange(num_classes, dtype=np.int32), pairs_per_class))


def _class_folders(folder):
    if not folder.is_dir():
        raise bad_data(folder, "there is no such folder.", SOURCE)
    folders = {entry.name: entry for entry in visible(folder, "*") if entry.is_dir()}
    plain = "tx_000000000000"  # the other ones are shifted and scaled
    return _class_folders(folders[plain]) if plain in folders else folders


def _pairs_of(photos, sketches):
    """(photo, its sketches) for the photos of a class that have any, in the order of names."""
    drawn = {}
    for file in visible(sketches, "*.png"):
        match = re.fullmatch(r"(.+)-\d+", file.stem)
        if match:
            drawn.setdefault(match[1], []).append(file)
    files = visible(photos, "*.jpg")
    return [(file, drawn[file.stem]) for file in files if file.stem in drawn]


def _image(file, size):
    try:
        image = tf.io.decode_image(file.read_bytes(), expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise bad_data(file, "it is not a whole image.", SOURCE) from error
    if image.shape[-1] in (2, 4):  # a transparent ground is white
        opaque = tf.cast(image[..., -1:], tf.float32) / 255.0
        image = tf.cast(image[..., :-1], tf.float32) * opaque + 255.0 * (1.0 - opaque)
    if image.shape[-1] == 1:
        image = tf.repeat(image, 3, axis=-1)
    image = tf.image.resize(image, [size, size], antialias=True)
    return np.rint(image.numpy()).clip(0, 255).astype(np.uint8)


def load_sketchy_pickle(path, num_classes=None, *, allow_pickle=False):
    """The pickle published with the paper, (train, test), of Python 2 or 3.

    It holds a dict of dicts, {"v1": {"train": .., "test": ..}, "v2": .., "label": ..}, with the
    images of both views as arrays `(n, height, width, channels)` or `(n, channels, height, width)`
    and integer labels `(n,)`.

    Args:
        path: of the pickle.
        num_classes: keep the classes with the smallest labels only; None keeps all.
        allow_pickle: must be True. A pickle can run any program when it is loaded: only load one
            from a source that you trust.

    Returns:
        Two `Pairs`, v1 as photos and v2 as sketches, channels last. Images of integers are as
        stored; others are scaled to 0..255 by the extremes of the training part of their view.

    Raises:
        ValueError: without `allow_pickle=True`; a missing or truncated file, missing keys, arrays
            of other shapes, values that are not finite, fewer classes than asked for.
    """
    stored = read_pickle(path, allow_pickle, SOURCE)
    train, test = (_pickled(stored, part, path) for part in ("train", "test"))
    classes = np.unique(train.labels)
    if not np.isin(test.labels, classes).all():
        raise bad_data(path, "test has labels that train has not.", SOURCE)
    if num_classes is not None and not 1 <= num_classes <= len(classes):
        problem = f"it has {len(classes)} classes; num_classes={num_classes} cannot be taken."
        raise bad_data(path, problem, SOURCE)
    return tuple(_rescaled(part, train, classes[:num_classes]) for part in (train, test))


def _pickled(stored, part, path):
    """The `Pairs` of "train" or "test" as stored, channels last."""
    try:
        photos, sketches, labels = (np.asarray(stored[v][part]) for v in ("v1", "v2", "label"))
    except (KeyError, TypeError) as error:
        problem = f"it has no v1, v2 and label, each with {part!r}."
        raise bad_data(path, problem, SOURCE) from error
    photos, sketches = (_channels_last(images, path) for images in (photos, sketches))
    if not len(photos) == len(sketches) == labels.size or labels.dtype.kind not in "iu":
        problem = f"{part} has {len(photos)} and {len(sketches)} images and {labels.dtype} labels "
        raise bad_data(path, f"{problem}{labels.shape}; an integer an image is expected.", SOURCE)
    return Pairs(photos, sketches, labels.reshape(-1))


def _channels_last(images, path):
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = np.moveaxis(images, 1, -1)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype.kind not in "iuf":
        problem = "images (n, height, width, 1 or 3) are expected, not "
        raise bad_data(path, f"{problem}{images.dtype} {images.shape}.", SOURCE)
    if not np.isfinite(images).all():
        raise bad_data(path, "it has images with values that are not finite.", SOURCE)
    return images


def _rescaled(part, train, classes):
    """The pairs of the `classes`, renumbered from 0."""
    rows = np.isin(part.labels, classes)
    views = []
    for images, reference in zip(part[:2], train[:2], strict=True):
        if images.dtype.kind == "f":
            low, high = float(reference.min()), float(reference.max())
            images = as_float32(255.0 * (images.astype(np.float64) - low) / (high - low))
        views.append(images[rows])
    return Pairs(*views, np.searchsorted(classes, part.labels[rows]).astype(np.int32))
