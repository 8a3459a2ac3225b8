"""Builds `proxnet_tf/datasets/data/japanese_vowels.npz` from the wheel of aeon 1.6.0.

    pip download aeon==1.6.0 --no-deps
    python examples/data/build_japanese_vowels.py aeon-1.6.0-py3-none-any.whl

The wheel carries the data set of the UCI Machine Learning Repository in the `.ts` format of the
UEA archive. The output does not depend on when or where it is built.
"""

import argparse
import io
import os
import pathlib
import tempfile
import zipfile

import numpy as np

SOURCE = "aeon/datasets/data/JapaneseVowels/JapaneseVowels_{}.ts"
TARGET = pathlib.Path(__file__).parents[2] / "proxnet_tf/datasets/data/japanese_vowels.npz"


def parse(text):
    """Series of shape (length, 12) and labels 0..8 of a `.ts` file."""
    body = text.split("@data", 1)[1]
    series, labels = [], []
    for line in body.strip().splitlines():
        *channels, label = line.strip().split(":")
        values = np.array([channel.split(",") for channel in channels], dtype=np.float64)
        series.append(values.T.astype(np.float32))
        labels.append(int(label) - 1)
    return series, np.array(labels, np.int8)


def save_reproducibly(path, arrays):
    """An `.npz` whose bytes depend on the arrays alone: fixed order, fixed dates."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(arrays):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, arrays[name], version=(1, 0))
                info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, buffer.getvalue())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=pathlib.Path, help="aeon-1.6.0-py3-none-any.whl")
    parser.add_argument("--output", type=pathlib.Path, default=TARGET)
    arguments = parser.parse_args()
    arrays = {}
    with zipfile.ZipFile(arguments.wheel) as wheel:
        for part in ("train", "test"):
            text = wheel.read(SOURCE.format(part.upper())).decode("utf-8")
            series, labels = parse(text)
            arrays[f"{part}_values"] = np.concatenate(series)
            arrays[f"{part}_lengths"] = np.array([len(s) for s in series], np.int8)
            arrays[f"{part}_labels"] = labels
    save_reproducibly(arguments.output, arrays)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
