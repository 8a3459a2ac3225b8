"""Archives, folders and pickles: what is read, and errors that name file and source."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from readers.files import folder_of, read_lines, read_npz, read_pickle

SOURCE = "https://example.org/data"


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_archives(make, tmp_path):
    """A Mac's additions are not looked at; half an archive is refused."""
    content = np.random.default_rng(0).bytes(5000)
    members = {"__MACOSX/set/._a.txt": b"\0", "set/._a.txt": b"\0", "set/a.txt": content}
    make(tmp_path / "archive", members)
    with folder_of(tmp_path / "archive", "*a.txt", SOURCE) as root:
        assert root.name == "set"
        assert (root / "a.txt").read_bytes() == content
    assert not root.exists()
    (tmp_path / "archive").write_bytes((tmp_path / "archive").read_bytes()[:2500])
    with pytest.raises(ValueError, match=rf"archive: it cannot be unpacked.*{SOURCE}"):
        with folder_of(tmp_path / "archive", "*a.txt", SOURCE):
            pass


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_no_member_leaves_the_folder(make, tmp_path):
    make(tmp_path / "archive", {"../../evil.txt": b"2", "a.txt": b"1"})
    try:
        with folder_of(tmp_path / "archive", "a.txt", SOURCE) as root:
            place = root.parents[1]
            assert not (place / "evil.txt").exists()
    except ValueError as error:  # a tar archive as a whole
        assert "cannot be unpacked" in str(error)


def test_folders_and_a_zip_in_a_zip(tmp_path):
    (tmp_path / "x/y/train").mkdir(parents=True)
    (tmp_path / "x/y/train/a.txt").write_text("1")
    with folder_of(tmp_path, "train/a.txt", SOURCE) as root:
        assert root == tmp_path / "x/y"
    inner = io.BytesIO()
    make_zip(inner, {"data/train/a.txt": b"7"})
    make_zip(tmp_path / "outer.zip", {"inner.zip": inner.getvalue()})
    with folder_of(tmp_path / "outer.zip", "train/a.txt", SOURCE) as root:
        assert (root / "train/a.txt").read_text() == "7"
    for path, problem in (("outer.zip", "'b.txt' is missing"), ("no", "there is no such file")):
        with pytest.raises(ValueError, match=rf"{path}: {problem}.*{SOURCE}"):
            with folder_of(tmp_path / path, "b.txt", SOURCE):
                pass


class Trap:
    def __reduce__(self):
        return print, ("a pickle was loaded",)


def test_pickles_need_the_flag(tmp_path, capsys):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="allow_pickle=True"):
        read_pickle(path, False, SOURCE)
    assert capsys.readouterr().out == ""
    path.write_bytes(pickle.dumps([1, "b"]))
    assert read_pickle(path, True, SOURCE) == [1, "b"]
    path.write_bytes(pickle.dumps(list(range(99)))[:-9])
    with pytest.raises(ValueError, match=f"not a whole pickle.*{SOURCE}"):
        read_pickle(path, True, SOURCE)
    with pytest.raises(ValueError, match=r"it is a folder; a file is expected.*available at"):
        read_pickle(tmp_path, True, SOURCE)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_as_on_every_system(mark, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(mark + "one\r\nzwöi\x85\u2028\rthree\n\nfive".encode())
    assert read_lines(path, SOURCE) == ["one", "zwöi\x85\u2028", "three", "", "five"]
    path.write_bytes(path.read_bytes() + b"\r\n")
    assert read_lines(path, SOURCE) == ["one", "zwöi\x85\u2028", "three", "", "five"]
    for content in (b"caf\xe9", "one".encode("utf-16")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.txt: it is not UTF-8 text.*{SOURCE}"):
            read_lines(path, SOURCE)


def test_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.array([{}], object))
    np.testing.assert_array_equal(read_npz(path, ["x"], SOURCE)["x"], [0, 1, 2])
    with pytest.raises(ValueError, match=rf"no w, z, only x, y.*{SOURCE}"):
        read_npz(path, ["x", "z", "w"], SOURCE)
    with pytest.raises(ValueError, match=rf"cannot be read as arrays.*{SOURCE}"):
        read_npz(path, ["y"], SOURCE)
    path.write_bytes(path.read_bytes()[:300])
    np.save(tmp_path / "b.npy", np.arange(3))
    for name in ("a.npz", "b.npy"):
        with pytest.raises(ValueError, match=rf"{name}: it cannot be read as arrays.*{SOURCE}"):
            read_npz(tmp_path / name, ["x"], SOURCE)
