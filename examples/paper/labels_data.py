"""The pairs of views of `labels.py`: parts, labels, mispaired rows, scaling."""

import functools
from typing import NamedTuple

import numpy as np
from glyphs import glyph_pairs
from sklearn.datasets import load_digits

from proxnet_tf.datasets import load_multiple_features

COUNTS = (120, 30, 50)  # of each of ten classes: to train, to choose settings, to test
HALVES = (120, 20, 34)  # the same of the halves of 8 x 8 digits


class Pair(NamedTuple):
    """Two views of the same things, and how many of each class train, choose settings and test."""

    views: tuple[np.ndarray, np.ndarray]
    labels: np.ndarray
    counts: tuple[int, int, int]

    @property
    def classes(self):
        return int(self.labels[-1]) + 1

    @property
    def is_image(self):
        return self.views[0].ndim == 4


@functools.cache
def load(name):
    """A pair by its name: "glyphs", "glyphs50", "halves" (the left and the right half of the 8 x 8
    digits of scikit-learn), or two views of digits such as "fou+zer"."""
    if name == "halves":
        images, labels = load_digits(return_X_y=True)
        order = np.argsort(labels, kind="stable")
        images, labels = images.reshape(-1, 8, 8)[order].astype("float32"), labels[order]
        views = tuple(half.reshape(len(half), 32) for half in np.split(images, 2, axis=2))
        return Pair(views, labels, HALVES)
    if name.startswith("glyphs"):
        classes = int(name.removeprefix("glyphs") or 10)
        drawn = glyph_pairs(classes, 2000 // classes, seed=0)
        views = tuple(x.astype("float32") for x in (drawn.photos, drawn.sketches))
        train, valid, test = (10 * count // classes for count in COUNTS)
        return Pair(views, drawn.labels, (train, valid, test))
    views, labels = load_multiple_features(name.split("+"))
    return Pair(tuple(views.values()), labels, COUNTS)


class Part(NamedTuple):
    """Rows of both views, their labels and weights (0: the row is trained on without its label)."""

    views: list[np.ndarray]
    labels: np.ndarray
    weights: np.ndarray


@functools.lru_cache(4)
def _scaled(name, seed):
    """Both views scaled by the training part, and the rows of the parts."""
    pair = load(name)
    train, valid, test = pair.counts
    rows = {"train": [], "valid": [], "test": []}
    for label in range(pair.classes):
        of_class = np.random.default_rng(label).permutation(np.flatnonzero(pair.labels == label))
        rest = np.random.default_rng([label, seed]).permutation(of_class[test:])
        for part, chosen in zip(rows, (rest[:train], rest[train:], of_class[:test]), strict=True):
            rows[part].append(chosen[:valid] if part == "valid" else chosen)
    rows = {part: np.concatenate(chosen) for part, chosen in rows.items()}
    axes = None if pair.is_image else 0
    views = []
    for x in pair.views:
        mean, scale = x[rows["train"]].mean(axes), x[rows["train"]].std(axes)
        views.append((x - mean) / np.where(scale > 0, scale, 1.0).astype("float32"))
    return views, rows


def part_of(name, part, seed, labels_per_class=None, mispaired=0.0):
    """A `Part` of a pair of views.

    The test part is the same for every seed; the seed shuffles the rest into training and
    validation rows. Every class has a label on its first `labels_per_class` training rows (all by
    default). A share `mispaired` of the training rows, drawn over all classes, exchange their
    second views among each other; a row's label is that of its first view.
    """
    views, rows = _scaled(name, seed)
    labels, chosen = load(name).labels[rows[part]], rows[part]
    known = np.ones(len(chosen), bool)
    partner = chosen
    if part == "train":
        train = load(name).counts[0]
        known = np.tile(np.arange(train) < (labels_per_class or train), load(name).classes)
        moved = np.random.default_rng([seed, 1]).permutation(len(chosen))
        moved = moved[: round(mispaired * len(chosen))]
        partner = chosen.copy()
        partner[moved] = chosen[np.roll(moved, 1)]
    weights = (known / known.mean()).astype("float32")
    return Part([views[0][chosen], views[1][partner]], labels.astype("int32"), weights)
