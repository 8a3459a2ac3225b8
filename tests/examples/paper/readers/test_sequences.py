"""The published layouts of UCI HAR, Spoken Arabic Digits, UEA pairs and IMDB, in miniature."""

import numpy as np
import pytest
from readers.sequences import load_imdb, load_spoken_arabic_digits, load_uci_har, load_uea

SIGNALS = [f"{s}_{a}" for s in ("body_acc", "body_gyro", "total_acc") for a in "xyz"]


@pytest.fixture
def har(tmp_path):
    """Signal k of window i at step t is 100 i + k + t / 1000, its label i + 1."""
    for part, count in (("train", 6), ("test", 3)):
        folder = tmp_path / "UCI HAR Dataset" / part
        (folder / "Inertial Signals").mkdir(parents=True)
        for k, name in enumerate(SIGNALS):
            rows = 100 * np.arange(count)[:, None] + k + np.arange(128) / 1000
            np.savetxt(folder / "Inertial Signals" / f"{name}_{part}.txt", rows, fmt=" %.7e")
        np.savetxt(folder / f"y_{part}.txt", np.arange(count) + 1, fmt="%d")
    return tmp_path


def test_har(har):
    train, test = load_uci_har(har)
    assert (train.values.shape, test.values.shape) == ((6, 128, 9), (3, 128, 9))
    assert (train.values.dtype, train.mask.dtype, train.labels.dtype) == ("f4", "?", "i4")
    np.testing.assert_allclose(train.values[5, 7, :], 500.007 + np.arange(9), rtol=1e-6)
    np.testing.assert_array_equal(train.labels, np.arange(6))
    assert train.mask.all() and test.mask.all()


def test_incomplete_har_is_refused(har):
    source = "archive.ics.uci.edu/dataset/240"
    folder = har / "UCI HAR Dataset"
    signal = folder / "test/Inertial Signals/body_gyro_y_test.txt"
    text = signal.read_text()
    signal.write_text("\n".join(text.splitlines()[:2]))
    problem = "2 lines, but 3 labels in y_test.txt"
    with pytest.raises(ValueError, match=rf"body_gyro_y_test.txt: .*{problem}.*{source}"):
        load_uci_har(har)
    (folder / "train/y_train.txt").write_text("1\n2\n7\n")
    with pytest.raises(ValueError, match="labels must be 1 to 6"):
        load_uci_har(har)


@pytest.fixture
def arabic(tmp_path):
    """Utterance j has j % 4 + 2 frames, all of its values j + frame / 100."""
    for part, count in (("Train", 20), ("Test", 10)):
        lines = []
        for j in range(count):
            lines.append(" " * 12)  # the files begin with a blank line
            frames = j + np.arange(j % 4 + 2) / 100
            lines += [" ".join([f"{value:.4f}"] * 13) for value in frames]
        (tmp_path / f"{part}_Arabic_Digit.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_arabic_digits(arabic):
    train, test = load_spoken_arabic_digits(arabic)
    assert (train.values.shape, test.values.shape) == ((20, 5, 13), (10, 5, 13))
    np.testing.assert_array_equal(train.labels, np.repeat(np.arange(10), 2))
    np.testing.assert_array_equal(test.labels, np.arange(10))
    np.testing.assert_array_equal(train.mask.sum(1), np.arange(20) % 4 + 2)
    expected = np.where(train.mask, np.arange(20)[:, None] + np.arange(5) / 100, 0)
    np.testing.assert_allclose(train.values, expected[..., None].repeat(13, 2), rtol=1e-5)


def test_incomplete_arabic_digits_are_refused(arabic):
    source = "archive.ics.uci.edu/dataset/195"
    file = arabic / "Train_Arabic_Digit.txt"
    text = file.read_text()
    blocks = text.split(" " * 12)
    for content, problem in (
        ((" " * 12).join(blocks[:-1]), "19 utterances are not equally many"),
        (text[:-15], r"line \d+ has 12 numbers, not 13"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=rf"Train_Arabic_Digit.txt: {problem}.*{source}"):
            load_spoken_arabic_digits(arabic)


HEADER = """# A made-up set
@problemName Tiny
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true no yes
@data
"""


@pytest.fixture
def uea(tmp_path):
    (tmp_path / "Tiny_TRAIN.ts").write_text(HEADER + "1,2,3:4,5,6:yes\n-1.5:2e1:no\n")
    (tmp_path / "Tiny_TEST.ts").write_text(HEADER + "7,8,9,10:0,0,0,1:yes\n")
    return tmp_path


def test_uea_pair(uea):
    train, test = load_uea(uea)
    np.testing.assert_array_equal(train.values[0], [[1, 4], [2, 5], [3, 6], [0, 0]])
    np.testing.assert_array_equal(train.values[1], [[-1.5, 20], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(train.mask.sum(1), [3, 1])
    np.testing.assert_array_equal(train.labels, [1, 0])
    np.testing.assert_array_equal(test.values[0], [[7, 0], [8, 0], [9, 0], [10, 1]])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (HEADER, "no series"),
        (HEADER.replace("@data\n", ""), "no @data"),
        (HEADER + "1,2:3,4:maybe\n", "line 10 is not 2 dimensions"),
        (HEADER + "1,?:3,4:yes\n", "line 10 has something that is not a number"),
        (HEADER.replace("missing false", "missing true") + "1:1:no", "@missing"),
    ],
)
def test_bad_ts_files_are_refused(uea, content, problem):
    (uea / "Tiny_TEST.ts").write_text(content)
    with pytest.raises(ValueError, match=rf"Tiny_TEST.ts: .*{problem}.*timeseriesclassification"):
        load_uea(uea)


def ragged():
    return {
        "x_train_ids": np.array([5, 9, 1, 2, 2, 7], np.uint16),
        "x_train_lengths": np.array([2, 1, 3], np.int32),
        "y_train": np.array([1, 0, 1], np.uint8),
        "x_test_ids": np.array([3, 4, 8, 8], np.uint16),
        "x_test_lengths": np.array([4], np.int32),
        "y_test": np.array([0], np.uint8),
        "vocabulary": np.array(["<pad>", "<unk>"]),
    }


def test_imdb_of_joined_ids(tmp_path):
    np.savez(tmp_path / "imdb.npz", **ragged())
    train, test = load_imdb(tmp_path / "imdb.npz", num_words=8, max_length=3)
    assert (train.values.dtype, train.mask.dtype, train.labels.dtype) == ("i4", "?", "i4")
    np.testing.assert_array_equal(train.values, [[5, 1, 0], [1, 0, 0], [2, 2, 7]])
    np.testing.assert_array_equal(train.mask, train.values > 0)
    np.testing.assert_array_equal(train.labels, [1, 0, 1])
    np.testing.assert_array_equal(test.values, [[4, 1, 1]])  # the last words


def test_imdb_of_keras(tmp_path):
    reviews = np.empty(2, object)
    reviews[:] = [[1, 4, 2], [9]]
    arrays = {f"{k}_{p}": v for p in ("train", "test") for k, v in (("x", reviews), ("y", [1, 0]))}
    np.savez(tmp_path / "imdb.npz", **arrays)
    with pytest.raises(ValueError, match="allow_pickle=True"):
        load_imdb(tmp_path / "imdb.npz")
    train, _ = load_imdb(tmp_path / "imdb.npz", num_words=6, max_length=4, allow_pickle=True)
    np.testing.assert_array_equal(train.values, [[2, 5, 3, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(train.labels, [1, 0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x_train_lengths": np.array([2, 1, 2])}, "add up to the size"),
        ({"y_test": np.array([2])}, "must be 0 or 1"),
        ({"y_test": None}, "it has no y_test"),
    ],
)
def test_bad_imdb_files_are_refused(change, problem, tmp_path):
    arrays = {k: v for k, v in (ragged() | change).items() if v is not None}
    np.savez(tmp_path / "imdb.npz", **arrays)
    with pytest.raises(ValueError, match=rf"imdb.npz: .*{problem}.*ai.stanford.edu"):
        load_imdb(tmp_path / "imdb.npz")
