"""Archives stay in their folder, pickles need a flag, errors name file and source."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

from proxnet_tf.datasets import (
    load_articulatory_speech,
    load_crosslingual,
    load_imdb,
    load_word_pairs,
    load_word_similarity,
    load_word_vectors,
    unpack,
)
from proxnet_tf.datasets.files import (
    check_integer,
    folder_of,
    read_lines,
    read_npz,
    read_pickle,
    read_table,
    read_text,
    required,
)

SOURCE = "https://example.org/data"


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            if content is None:
                entry.external_attr = 0o120777 << 16
            archive.writestr(entry, content or "/etc")


MAKERS = pytest.mark.parametrize("make", [make_zip, make_tar])


@MAKERS
def test_unpack_writes_the_members(make, tmp_path):
    make(tmp_path / "a", {"one/two.txt": b"2", "three.txt": b"3"})
    unpack(tmp_path / "a", tmp_path / "out")
    assert (tmp_path / "out/one/two.txt").read_bytes() == b"2"
    assert (tmp_path / "out/three.txt").read_bytes() == b"3"


@MAKERS
@pytest.mark.parametrize("name", ["../evil.txt", "one/../../evil.txt", "link"])
def test_unpack_refuses_members_that_leave_the_folder(make, name, tmp_path):
    make(tmp_path / "a", {"good.txt": b"1", name: None if name == "link" else b"2"})
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(tmp_path / "a", tmp_path / "out/deep")
    assert not [p for p in tmp_path.rglob("*") if p.name in ("evil.txt", "good.txt", "link")]


def test_unpack_refuses_absolute_names(tmp_path):
    make_zip(tmp_path / "a.zip", {str(tmp_path / "evil.txt"): b"2"})
    with pytest.raises(ValueError, match=r"evil.txt.*leaves the folder"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@MAKERS
def test_unpack_refuses_truncated_archives(make, tmp_path):
    content = np.random.default_rng(0).bytes(5000)
    make(tmp_path / "a", {"one.bin": content})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:2500])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(tmp_path / "a", tmp_path / "out")


def test_folder_of_searches_folders_and_archives(tmp_path):
    (tmp_path / "x/y/train").mkdir(parents=True)
    (tmp_path / "x/y/train/a.txt").write_text("1")
    with folder_of(tmp_path, "train/a.txt", SOURCE) as root:
        assert root == tmp_path / "x/y"
    inner = io.BytesIO()
    make_zip(inner, {"data/train/a.txt": b"7"})
    make_zip(tmp_path / "outer.zip", {"inner.zip": inner.getvalue()})
    with folder_of(tmp_path / "outer.zip", "train/a.txt", SOURCE) as root:
        assert (root / "train/a.txt").read_text() == "7"
    assert not root.exists()
    with pytest.raises(ValueError, match=rf"'b.txt' is missing.*{SOURCE}"):
        with folder_of(tmp_path / "outer.zip", "b.txt", SOURCE):
            pass


def test_unpack_takes_names_of_windows_and_refuses_encryption(tmp_path):
    make_zip(tmp_path / "a.zip", {"one\\two.txt": b"2"})
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert (tmp_path / "out/one/two.txt").read_bytes() == b"2"
    make_zip(tmp_path / "b.zip", {"..\\evil.txt": b"2"})
    with pytest.raises(ValueError, match="leaves the folder"):
        unpack(tmp_path / "b.zip", tmp_path / "out")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1  # "this member is encrypted"
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be unpacked: .*(encrypted|password)"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_what_a_mac_adds_is_not_looked_at(tmp_path):
    members = {"__MACOSX/set/._a.txt": b"\0", "set/._a.txt": b"\0", "set/a.txt": b"1"}
    make_zip(tmp_path / "a.zip", members)
    with folder_of(tmp_path / "a.zip", "*a.txt", SOURCE) as root:
        assert root.name == "set"


class Trap:
    def __reduce__(self):
        return print, ("a pickle was loaded",)


def test_pickles_need_the_flag(tmp_path, capsys):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Trap()))
    for flag in (False, 1, "yes"):
        with pytest.raises(ValueError, match="allow_pickle=True"):
            read_pickle(tmp_path / "a.pkl", flag, SOURCE)
    assert capsys.readouterr().out == ""
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([1, "b"]))
    assert read_pickle(tmp_path / "a.pkl", True, SOURCE) == [1, "b"]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(list(range(99)))[:-9])
    with pytest.raises(ValueError, match=f"not a whole pickle.*{SOURCE}"):
        read_pickle(tmp_path / "a.pkl", True, SOURCE)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_as_on_every_system(mark, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(mark + "one\r\nzwöi\x85\u2028\rthree\n\nfive".encode())
    assert read_lines(path, SOURCE) == ["one", "zwöi\x85\u2028", "three", "", "five"]
    path.write_bytes(path.read_bytes() + b"\r\n")
    assert read_lines(path, SOURCE) == ["one", "zwöi\x85\u2028", "three", "", "five"]
    path.write_bytes(mark)
    assert read_lines(path, SOURCE) == []
    for content in (b"caf\xe9", "one".encode("utf-16")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.txt: it is not UTF-8 text.*{SOURCE}"):
            read_lines(path, SOURCE)
    with pytest.raises(ValueError, match="it is a folder; a file is expected"):
        read_lines(tmp_path, SOURCE)


def test_a_pickle_of_python_2(tmp_path):
    # pickle.dumps({"v1": numpy.array([1, -2], "int16"), "\xe9": 1}, 2) there.
    content = (
        b"\x80\x02}q\x01(U\x02v1q\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
        b"q\x04K\x00\x85q\x05U\x01bq\x06\x87q\x07Rq\x08(K\x01K\x02\x85q\tcnumpy\ndtype\nq\nU\x02i2"
        b"q\x0bK\x00K\x01\x87q\x0cRq\r(K\x03U\x01<q\x0eNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
        b"q\x0fb\x89U\x04\x01\x00\xfe\xffq\x10tq\x11bU\x01\xe9q\x12K\x01u."
    )
    (tmp_path / "a.pkl").write_bytes(content)
    found = read_pickle(tmp_path / "a.pkl", True, SOURCE)
    assert list(found) == ["v1", "\xe9"] and found["v1"].dtype == np.int16
    np.testing.assert_array_equal(found["v1"], [1, -2])


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_text(path, SOURCE),
        lambda path: read_table(path, 1, SOURCE),
        lambda path: read_npz(path, ["x"], SOURCE),
        lambda path: read_pickle(path, True, SOURCE),
        load_imdb,
        load_crosslingual,
        load_word_vectors,
        load_word_pairs,
        load_word_similarity,
        load_articulatory_speech,
    ],
)
def test_a_folder_in_place_of_a_file(read, tmp_path):
    with pytest.raises(ValueError, match=r"it is a folder; a file is expected.*available at"):
        read(tmp_path)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, 6])
def test_integers(value):
    with pytest.raises(ValueError, match=rf"`n` must be an integer >= 1 and <= 5.*n={value!r}"):
        check_integer("n", value, at_most=5)
    assert check_integer("n", np.int32(5), at_most=5) == 5


def test_arrays_and_tables(tmp_path):
    with pytest.raises(ValueError, match=rf"no.txt: there is no such file.*{SOURCE}"):
        required(tmp_path / "no.txt", SOURCE)
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.array([{}], object))
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz", ["x"], SOURCE)["x"], [0, 1, 2])
    with pytest.raises(ValueError, match=rf"no w, z, only x, y.*{SOURCE}"):
        read_npz(tmp_path / "a.npz", ["x", "z", "w"], SOURCE)
    with pytest.raises(ValueError, match=SOURCE):
        read_npz(tmp_path / "a.npz", ["y"], SOURCE)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:300])
    with pytest.raises(ValueError, match=rf"cannot be read as arrays.*{SOURCE}"):
        read_npz(tmp_path / "a.npz", ["x"], SOURCE)

    np.save(tmp_path / "b.npy", np.arange(3))
    (tmp_path / "b.txt").write_text("1 2 3\n")
    for name in ("b.npy", "b.txt"):
        with pytest.raises(ValueError, match=rf"{name}: .*not an .npz file.*{SOURCE}"):
            read_npz(tmp_path / name, ["x"], SOURCE)

    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbf 1.5e0 2\r\n-3 4\r\n\r\n")
    table = read_table(tmp_path / "t.txt", 2, SOURCE)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, [[1.5, 2.0], [-3.0, 4.0]])
    for content, problem in (
        ("1 2\n3", "rows of 2 numbers are expected; line 2 has 1"),
        ("1 2 3\n", "rows of 2 numbers"),
        ("1 b\n", "not a table"),
        ("1 nan\n", "line 1 has a value that is not finite"),
        ("1 2\n1 1e39\n", "line 2 has a value that is not finite"),
        ("1 1_0\n", "not a table"),
        ("", "no numbers"),
    ):
        (tmp_path / "t.txt").write_text(content)
        with pytest.raises(ValueError, match=problem):
            read_table(tmp_path / "t.txt", 2, SOURCE)
    (tmp_path / "t.txt").write_text("1 2\n3\n")
    with pytest.raises(ValueError, match="not a table of numbers: line 2 has 1, the first 2"):
        read_table(tmp_path / "t.txt", None, SOURCE)
