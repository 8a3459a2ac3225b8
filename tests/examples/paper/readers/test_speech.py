import numpy as np
import pytest
import scipy.io
from readers.speech import cut_utterances, load_articulatory_speech, split_utterances


def arrays(lengths=(4, 7, 3)):
    rng = np.random.default_rng(0)
    frames = sum(lengths)
    return {
        "MFCCS": rng.standard_normal((frames, 39)).astype("float32"),
        "ARTICS": rng.standard_normal((frames, 16)),
        "LABELS": np.repeat(np.arange(frames) * 5 % 40, 1)[:, None].astype("uint8"),
        "LENGTHS": np.array([lengths], "int32"),
        "PHONES": np.array([["sil", "a"]], dtype=object),
    }


def test_the_published_layout(tmp_path):
    stored = arrays()
    scipy.io.savemat(tmp_path / "speech.mat", stored, do_compression=True)
    found = load_articulatory_speech(tmp_path / "speech.mat")
    np.testing.assert_array_equal(found.acoustic, stored["MFCCS"])
    np.testing.assert_allclose(found.articulatory, stored["ARTICS"], rtol=1e-6)
    np.testing.assert_array_equal(found.labels, stored["LABELS"][:, 0])
    np.testing.assert_array_equal(found.lengths, [4, 7, 3])
    dtypes = [array.dtype.name for array in found]
    assert dtypes == ["float32", "float32", "int32", "int64"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ARTICS", None, "has no ARTICS"),
        ("ARTICS", np.ones((14, 15)), r"ARTICS must be \(14, 16\), not \(14, 15\)"),
        ("MFCCS", np.full((14, 39), np.nan), "MFCCS or ARTICS has a value that is not finite"),
        ("LABELS", np.full((14, 1), 40), "LABELS must be 0 to 39"),
        ("LENGTHS", np.array([[4, 7, 4]]), "add up to 14 frames, not 15"),
    ],
)
def test_other_layouts_are_refused(tmp_path, name, value, message):
    stored = arrays() | {name: value}
    path = tmp_path / "speech.mat"
    scipy.io.savemat(path, {n: a for n, a in stored.items() if a is not None})
    with pytest.raises(ValueError, match=rf"speech\.mat: .*{message}.*XRMB"):
        load_articulatory_speech(path)


def test_a_missing_file_and_one_of_matlab_7_3(tmp_path):
    path = tmp_path / "speech.mat"
    with pytest.raises(ValueError, match=r"speech\.mat: there is no such file.*XRMB"):
        load_articulatory_speech(path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\0" * 400)
    with pytest.raises(ValueError, match=r"7\.3 \(HDF5\); save it again with save\(..., '-v7'\)"):
        load_articulatory_speech(path)


def test_split_and_cut(tmp_path):
    scipy.io.savemat(tmp_path / "speech.mat", arrays())
    found = load_articulatory_speech(tmp_path / "speech.mat")
    train, test = split_utterances(found, 2)
    np.testing.assert_array_equal(train.lengths, [4, 7])
    np.testing.assert_array_equal(test.acoustic, found.acoustic[11:])
    np.testing.assert_array_equal(test.lengths, [3])
    for count in (0, 3):
        with pytest.raises(ValueError, match="`train` must be >= 1 and <= 2"):
            split_utterances(found, count)
    pieces = cut_utterances(train, 3)
    np.testing.assert_array_equal(pieces.lengths, [3, 1, 3, 3, 1])
    assert pieces.acoustic.shape == (5, 3, 39)
    assert pieces.articulatory.shape == (5, 3, 16)
    np.testing.assert_array_equal(pieces.acoustic[1, 0], found.acoustic[3])
    np.testing.assert_array_equal(pieces.acoustic[1, 1:], 0)
    np.testing.assert_array_equal(pieces.articulatory[3], found.articulatory[7:10])
    np.testing.assert_array_equal(pieces.labels[4], [found.labels[10], -1, -1])
