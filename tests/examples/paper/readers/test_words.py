import gzip

import numpy as np
import pytest
from readers.words import (
    SIMILARITY_SETS,
    build_crosslingual,
    load_crosslingual,
    load_similarity_sets,
    load_word_pairs,
    load_word_similarity,
    load_word_vectors,
)

VEC = "3 2\ntiger 0.5 -1\nKüche 1e-2 2.25\na\x85b 3 4\n"


def write_sets(folder, words):
    """The eight tables, with pairs of `words` (by language) and scores that rise."""
    for name, size in SIMILARITY_SETS.items():
        for language, known in words.items():
            lines = ["Word1\tWord2\tScore"]
            for i in range(size):
                pair = known[i % len(known)], known[(i // len(known) + 1 + i) % len(known)]
                lines.append(f"{pair[0]}\t{pair[1]}\t{10 * i / size:.3f}")
            (folder / f"{name}_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")


def crosslingual_arrays():
    rng = np.random.default_rng(0)
    return {
        "en_words": np.array(["one", "two", "three"]),
        "de_words": np.array(["Eins", "zwei", "drei"]),
        "en_vectors": rng.standard_normal((3, 4)).astype("float16"),
        "de_vectors": rng.standard_normal((3, 5)).astype("float16"),
        "eval_en_words": np.array(["cat", "dog"]),
        "eval_de_words": np.array(["Katze"]),
        "eval_en_vectors": rng.standard_normal((2, 4)).astype("float16"),
        "eval_de_vectors": rng.standard_normal((1, 5)).astype("float16"),
        "eval_pairs_en": np.array([0, 1], "int32"),
        "eval_pairs_de": np.array([0, 0], "int32"),
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_word_vectors_in_the_layout_of_fasttext(tmp_path, compressed):
    path = tmp_path / ("cc.vec.gz" if compressed else "cc.vec")
    content = VEC.encode()
    path.write_bytes(gzip.compress(content) if compressed else content)
    words, vectors = load_word_vectors(path)
    assert words == ["tiger", "Küche", "a\x85b"]
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.5, -1], [0.01, 2.25], [3, 4]], rtol=1e-6)
    words, vectors = load_word_vectors(path, wanted={"Küche", "Kuchen"})
    assert words == ["Küche"]
    np.testing.assert_allclose(vectors, [[0.01, 2.25]], rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (VEC.rsplit("a\x85b", 1)[0], "announces 3 words and has 2"),
        (VEC[:-3], "word 3 .* has 1 numbers, not 2"),
        ("1 2\ntiger 0.5 x\n", "not a number"),
        ("1 2\ntiger 0.5 1e39\n", "word 1 .* not finite"),
    ],
)
def test_word_vectors_that_are_not_whole_are_refused(tmp_path, content, message):
    path = tmp_path / "cc.vec"
    path.write_bytes(content.encode())
    with pytest.raises(ValueError, match=rf"cc\.vec: .*{message}.*fasttext\.cc"):
        load_word_vectors(path)


def test_word_pairs(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("cat Katze\ndog\tHund\n", encoding="utf-8")
    assert load_word_pairs(path) == [("cat", "Katze"), ("dog", "Hund")]
    for content, message in (("cat Katze\ndog\n", "line 2 is not two words"), ("", "empty")):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            load_word_pairs(path)


def test_word_similarity(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("word 1\tword 2\tscore\nalt\tneu\t0.0769\nklug\tweise\t9.5", encoding="utf-8")
    table = load_word_similarity(path)
    assert table.pairs == [("alt", "neu"), ("klug", "weise")]
    np.testing.assert_array_equal(table.scores, [0.0769, 9.5])
    for line in ("klug\twei", "klug\tweise\tvery", ""):
        path.write_text(f"word 1\tword 2\tscore\nalt\tneu\t1\n{line}\na\tb\t1\n")
        with pytest.raises(ValueError, match="line 3 is not two words and a score"):
            load_word_similarity(path)
    path.write_text("word 1\tword 2\tscore\n")
    with pytest.raises(ValueError, match="no pair"):
        load_word_similarity(path)


def test_similarity_sets_and_a_table_that_lost_its_end(tmp_path):
    write_sets(tmp_path, {"en": ["a", "b", "c"], "de": ["d", "e"]})
    sets = load_similarity_sets(tmp_path)
    for name, size in SIMILARITY_SETS.items():
        assert [len(sets[name][language].pairs) for language in ("en", "de")] == [size, size]
    assert sets["simlex999"]["de"].pairs[0] == ("d", "e")
    path = tmp_path / "ws353_rel_de.tsv"
    path.write_text("\n".join(path.read_text().splitlines()[:100]))
    with pytest.raises(ValueError, match="99 pairs, ws353_rel has 252"):
        load_similarity_sets(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"ws353_rel_de\.tsv: there is no"):
        load_similarity_sets(tmp_path)


def test_crosslingual(tmp_path):
    arrays = crosslingual_arrays()
    np.savez_compressed(tmp_path / "cross.npz", **arrays)
    data = load_crosslingual(tmp_path / "cross.npz")
    for j, language in enumerate(("en", "de")):
        np.testing.assert_array_equal(data.words[j], arrays[f"{language}_words"])
        np.testing.assert_array_equal(data.vectors[j], arrays[f"{language}_vectors"])
        np.testing.assert_array_equal(data.eval_words[j], arrays[f"eval_{language}_words"])
        np.testing.assert_array_equal(data.eval_vectors[j], arrays[f"eval_{language}_vectors"])
        assert data.vectors[j].dtype == data.eval_vectors[j].dtype == np.float32
    np.testing.assert_array_equal(data.eval_pairs, [[0, 0], [1, 0]])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("de_vectors", None, "has no de_vectors"),
        ("de_vectors", np.ones((2, 5)), "not a vector for each word"),
        ("eval_en_vectors", np.full((2, 4), 1e39), "eval_en_vectors has a value .* not finite"),
        ("de_vectors", np.ones((3, 6)), "de vectors differ in width"),
        ("eval_pairs_de", np.array([0, 1]), "must be indices"),
    ],
)
def test_crosslingual_arrays_that_do_not_fit(tmp_path, name, value, message):
    arrays = crosslingual_arrays()
    arrays[name] = value
    np.savez(tmp_path / "cross.npz", **{n: a for n, a in arrays.items() if a is not None})
    with pytest.raises(ValueError, match=rf"{message}.*available at"):
        load_crosslingual(tmp_path / "cross.npz")


def test_crosslingual_from_vectors_and_pairs(tmp_path):
    english = {"cat": 1, "dog": 2, "tree": 3, "house": 4, "unlisted": 5}
    german = {"Katze": 1, "hund": 2, "Baum": 3, "Haus": 4}
    files = []
    for name, values in (("en.vec", english), ("de.vec", german)):
        lines = [f"{len(values)} 2", *(f"{word} {x} {-x}" for word, x in values.items())]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(tmp_path / name)
    write_sets(tmp_path, {"en": ["cat", "dog", "ghost"], "de": ["katze", "Hund", "Geist"]})
    sets = load_similarity_sets(tmp_path)
    pairs = [("tree", "Baum"), ("house", "Haus"), ("Cat", "Haus"), ("tree", "Geist"),
             ("tree", "Baum"), ("house", "missing")]  # fmt: skip
    dictionary = [("cat", "katze"), ("ghost", "Geist"), ("dog", "Hund")]
    data = build_crosslingual(files, pairs, dictionary, sets)
    # Without the evaluation words, in any spelling, the words without vectors and repetitions.
    assert list(zip(*(words.tolist() for words in data.words), strict=True)) == pairs[:2]
    np.testing.assert_array_equal(data.vectors[1], [[3, -3], [4, -4]])
    assert [words.tolist() for words in data.eval_words] == [["cat", "dog"], ["katze", "Hund"]]
    # "katze" takes the vector of "Katze", "Hund" that of "hund".
    np.testing.assert_array_equal(data.eval_vectors[1], [[1, -1], [2, -2]])
    np.testing.assert_array_equal(data.eval_pairs, [[0, 0], [1, 1]])
    with pytest.raises(ValueError, match="None of the 1 training pairs"):
        build_crosslingual(files, [("cat", "Katze")], dictionary, sets)
