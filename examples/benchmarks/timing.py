"""How the benchmarks measure: two things in turn, medians of at least seven, their spread.

A script of this folder that defines

    def benchmark():
        return [row("n = 100, lam = 1", compare(ours, published), accuracy="residual 3e-9"), ...]

has its rows in the one table of `make benchmark`; `python THIS_SCRIPT.py` can do whatever it likes.
"""

import dataclasses
import time

import numpy as np


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Medians in seconds, and their ratio: median, least and largest of the pairs measured."""

    ours: float
    reference: float
    ratio: float
    least: float
    largest: float


def wait(result):
    """Returns when the tensors in nested lists and tuples are computed."""
    if isinstance(result, list | tuple):
        for one in result:
            wait(one)
    elif hasattr(result, "numpy"):
        result.numpy()


def seconds(function):
    """The time of one call, until its tensors are computed."""
    began = time.perf_counter()
    wait(function())
    return time.perf_counter() - began


def compare(ours, reference, repeats=7):
    """Times two functions without arguments in turn; ratio is ours / reference.

    Both are called once before, so that nothing is traced or compiled in what is measured. Which
    of a pair comes first alternates: a machine that slows down does so for both.
    """
    if repeats < 7:
        raise ValueError(f"`repeats` must be at least 7. Received: repeats={repeats!r}")
    seconds(ours), seconds(reference)
    pairs = []
    for turn in range(repeats):
        if turn % 2:
            second = seconds(reference)
            pairs.append((seconds(ours), second))
        else:
            pairs.append((seconds(ours), seconds(reference)))
    times = np.array(pairs)
    ratios = times[:, 0] / times[:, 1]
    medians = np.median(times, 0)
    return Comparison(*medians, float(np.median(ratios)), ratios.min(), ratios.max())


HEADER = ("case", "ours, ms", "reference, ms", "ratio", "least to largest", "accuracy")


def row(case, found, accuracy="", inverse=False):
    """A row of the table: a `Comparison`, how exact ours is; `inverse`: how often as fast."""
    ratio, least, largest = found.ratio, found.least, found.largest
    if inverse:
        ratio, least, largest = 1 / ratio, 1 / largest, 1 / least
    times = (f"{1e3 * t:.3g}" for t in (found.ours, found.reference))
    sign = " x faster" if inverse else ""
    return (case, *times, f"{ratio:.3g}{sign}", f"{least:.3g} to {largest:.3g}", str(accuracy))
