"""Word vectors of two languages, translation pairs, and word similarity as people judge it."""

import gzip
import pathlib
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proxnet_tf.datasets.files import (
    as_float32,
    bad_data,
    check_integer,
    parse_numbers,
    read_lines,
    read_npz,
    required,
    required_file,
)

Path = str | pathlib.Path

SIMILARITY_SETS = {"ws353_all": 350, "ws353_sim": 201, "ws353_rel": 252, "simlex999": 999}
LANGUAGES = ("en", "de")

VECTORS_SOURCE = (
    "https://fasttext.cc/docs/en/crawl-vectors.html (cc.en.300.vec.gz and cc.de.300.vec.gz)"
)
PAIRS_SOURCE = (
    "https://github.com/facebookresearch/MUSE (dictionaries) and https://www.statmt.org (News "
    "Commentary, to be aligned)"
)
SIMILARITY_SOURCE = "https://github.com/nmrksic/eval-multilingual-simlex (folder evaluation)"
CROSSLINGUAL_SOURCE = (
    f"{VECTORS_SOURCE} and {PAIRS_SOURCE}; `build_crosslingual` puts vectors and pairs together"
)


class Similarity(NamedTuple):
    """How alike people find two words.

    Attributes:
        pairs: a tuple (word, word) for each pair.
        scores: float64 `(n,)`, larger is more alike.
    """

    pairs: list[tuple[str, str]]
    scores: np.ndarray


class Crosslingual(NamedTuple):
    """Vectors of translation pairs, and of words to evaluate; each attribute has both languages.

    Attributes:
        words: two arrays of n words; word i of the second translates word i of the first.
        vectors: two float32 arrays `(n, d_j)`.
        eval_words: two arrays of words without repetition.
        eval_vectors: their float32 vectors `(m_j, d_j)`.
        eval_pairs: int64 `(p, 2)`, rows of `eval_words` that translate each other.
    """

    words: tuple[np.ndarray, np.ndarray]
    vectors: tuple[np.ndarray, np.ndarray]
    eval_words: tuple[np.ndarray, np.ndarray]
    eval_vectors: tuple[np.ndarray, np.ndarray]
    eval_pairs: np.ndarray


def load_word_vectors(
    path: Path, wanted: Collection[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Loads word vectors from the text format of fastText (`.vec` or `.vec.gz`).

    The first line has the number of words and the dimension d, every other line a word and its d
    numbers, separated by spaces. Bytes of a word that are not UTF-8, which published files have,
    are read as U+FFFD.

    Args:
        path: the file.
        wanted: the words to keep, in the file's order; None (the default) keeps all. Every line
            must have d entries in either case; that they are finite numbers is checked for the
            words kept.

    Returns:
        The words, and their vectors, float32 `(n, d)`. A word that stands twice in the file
        stands twice here.

    Raises:
        ValueError: no such file, not this format, an entry that is no finite number, or fewer
            lines than the first line announces.

    Example:
        words, vectors = load_word_vectors("cc.en.300.vec.gz", wanted={"tiger", "cat"})

    Reference: Grave, Bojanowski, Gupta, Joulin, Mikolov (2018), Learning word vectors for 157
    languages.
    """
    path = required_file(path, VECTORS_SOURCE)
    if isinstance(wanted, str):
        raise ValueError(
            f"`wanted` must be a set or list of words, or None. Received: wanted={wanted!r}"
        )
    wanted = None if wanted is None else frozenset(wanted)

    def fail(problem: str) -> ValueError:
        return bad_data(path, problem, VECTORS_SOURCE)

    words: list[str] = []
    rows: list[np.ndarray] = []
    line_number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="\n") as file:
            try:
                count, dimension = map(int, file.readline().split())
                check_integer("dimension", dimension)
            except ValueError:
                raise fail(
                    "its first line must be the number of words and the dimension, at least 1."
                ) from None
            for line_number, line in enumerate(file, start=1):
                word, *numbers = line.rstrip(" \r\n").split(" ")
                if len(numbers) != dimension:
                    raise fail(
                        f"word {line_number} ({word!r}) has {len(numbers)} numbers, not "
                        f"{dimension}."
                    )
                if wanted is None or word in wanted:
                    words.append(word)
                    try:
                        rows.append(parse_numbers(numbers))
                    except ValueError as error:
                        raise fail(f"word {line_number} ({word!r}) has {error}.") from None
    except (EOFError, OSError, zlib.error) as error:
        raise fail(f"it is damaged or only a part of the file ({error}).") from error
    if line_number != count:
        raise fail(f"it announces {count} words and has {line_number}.")
    return words, np.array(rows, "float32").reshape(len(rows), dimension)


def load_word_pairs(path: Path) -> list[tuple[str, str]]:
    """Loads translation pairs: two words on every line, separated by a tab or spaces.

    Args:
        path: a UTF-8 text file.

    Raises:
        ValueError: no such file, a line without exactly two words, or no line.

    Example:
        pairs = load_word_pairs("en-de.txt")
    """
    pairs = []
    for number, line in enumerate(_entries(path, PAIRS_SOURCE), start=1):
        words = re.findall(r"[^ \t]+", line)  # other white space can be part of a word
        if len(words) != 2:
            raise bad_data(path, f"line {number} is not two words: {line!r}.", PAIRS_SOURCE)
        pairs.append((words[0], words[1]))
    if not pairs:
        raise bad_data(path, "it is empty.", PAIRS_SOURCE)
    return pairs


def load_word_similarity(path: Path) -> Similarity:
    """Loads one table of word similarity: a header, then word, word, score, separated by tabs.

    Args:
        path: a UTF-8 text file.

    Raises:
        ValueError: no such file, no header, a line that is not two words and a number, or no pair.

    Example:
        pairs, scores = load_word_similarity("simlex999_en.tsv")
    """
    header, *lines = _entries(path, SIMILARITY_SOURCE) or [""]
    if _scored_pair(header)[2] is not None:
        problem = f"its first line is not a header but a pair: {header!r}."
        raise bad_data(path, problem, SIMILARITY_SOURCE)
    pairs, scores = [], []
    for number, line in enumerate(lines, start=2):
        first, second, value = _scored_pair(line)
        if not (first and second and value is not None and np.isfinite(value)):
            raise bad_data(
                path, f"line {number} is not two words and a score: {line!r}.", SIMILARITY_SOURCE
            )
        pairs.append((first, second))
        scores.append(value)
    if not pairs:
        raise bad_data(path, "it has no pair of words.", SIMILARITY_SOURCE)
    return Similarity(pairs, np.array(scores))


def load_similarity_sets(folder: Path) -> dict[str, dict[str, Similarity]]:
    """Loads WordSim-353 (all, similarity, relatedness) and SimLex-999 in English and German.

    Args:
        folder: has the files ws353_all_en.tsv, ws353_sim_en.tsv, ws353_rel_en.tsv,
            simlex999_en.tsv and the same with _de.

    Returns:
        A dict from "ws353_all", "ws353_sim", "ws353_rel", "simlex999" to a dict from "en", "de" to
        the `Similarity` (350, 201, 252 and 999 pairs).

    Raises:
        ValueError: no such folder or table, as `load_word_similarity`, or a table with fewer
            pairs than it should have.

    Example:
        sets = load_similarity_sets("wordsim")
        sets["simlex999"]["de"].scores

    Reference: Finkelstein et al. (2002); Agirre et al. (2009); Hill, Reichart, Korhonen (2015);
    Leviant, Reichart (2015).
    """
    folder = required(folder, SIMILARITY_SOURCE)
    sets: dict[str, dict[str, Similarity]] = {}
    for name, size in SIMILARITY_SETS.items():
        sets[name] = {}
        for language in LANGUAGES:
            path = folder / f"{name}_{language}.tsv"
            table = load_word_similarity(path)
            if len(table.pairs) < size:
                problem = f"it has {len(table.pairs)} pairs, {name} has {size}."
                raise bad_data(path, problem, SIMILARITY_SOURCE)
            sets[name][language] = table
    return sets


def load_crosslingual(path: Path) -> Crosslingual:
    """Loads English and German word vectors of translation pairs from one .npz file.

    The file has the arrays en_words, de_words (n words that translate each other), en_vectors,
    de_vectors `(n, d)`, eval_en_words, eval_de_words, eval_en_vectors, eval_de_vectors and
    eval_pairs_en, eval_pairs_de (indices of evaluation words that translate each other).

    Args:
        path: the file; it is read without pickles.

    Raises:
        ValueError: no such file, a damaged file, missing arrays, shapes that do not fit, values
            that are not finite, indices out of range.

    Example:
        data = load_crosslingual("crosslingual.npz")
    """
    names = [f"{part}{language}_{what}" for part in ("", "eval_") for language in LANGUAGES
             for what in ("words", "vectors")]  # fmt: skip
    pairs = [f"eval_pairs_{language}" for language in LANGUAGES]
    arrays = read_npz(path, [*names, *pairs], CROSSLINGUAL_SOURCE)

    def both(pattern: str) -> tuple[np.ndarray, np.ndarray]:
        first, second = (arrays[pattern.format(language)] for language in LANGUAGES)
        return first, second

    def check(correct: bool, problem: str) -> None:
        if not correct:
            shapes = {name: array.shape for name, array in arrays.items()}
            raise bad_data(pathlib.Path(path), f"{problem}; {shapes}.", CROSSLINGUAL_SOURCE)

    words, eval_words, indices = both("{}_words"), both("eval_{}_words"), both("eval_pairs_{}")
    for part in ("", "eval_"):
        for language in LANGUAGES:
            labels, vectors = (arrays[f"{part}{language}_{what}"] for what in ("words", "vectors"))
            fits = labels.ndim == 1 and vectors.ndim == 2 and len(labels) == len(vectors) > 0
            check(
                fits and labels.dtype.kind == "U", f"{part}{language}: not a vector for each word"
            )
            name = f"{part}{language}_vectors"
            check(
                vectors.dtype.kind == "f",
                f"{name} must be of a floating type and is of {vectors.dtype}",
            )
            try:
                arrays[name] = as_float32(vectors)
            except ValueError as error:
                check(False, f"{name} has {error}")
    for j, language in enumerate(LANGUAGES):
        widths = {arrays[f"{part}{language}_vectors"].shape[1] for part in ("", "eval_")}
        check(len(widths) == 1, f"the {language} vectors differ in width")
        check(widths != {0}, f"the {language} vectors have no entries")
        integers = indices[j].ndim == 1 and indices[j].dtype.kind in "iu"
        inside = integers and bool(np.all((indices[j] >= 0) & (indices[j] < len(eval_words[j]))))
        check(inside, f"eval_pairs_{language} must be indices of the evaluation words")
    check(len(words[0]) == len(words[1]), "there is not a German word for each English one")
    check(len(indices[0]) == len(indices[1]), "eval_pairs_en and eval_pairs_de differ in length")
    rows = np.stack(indices, 1).astype("int64")
    return Crosslingual(words, both("{}_vectors"), eval_words, both("eval_{}_vectors"), rows)


def build_crosslingual(
    vector_files: Sequence[Path],
    pairs: Sequence[tuple[str, str]],
    dictionary: Sequence[tuple[str, str]],
    sets: Mapping[str, Mapping[str, Similarity]],
) -> Crosslingual:
    """Puts a `Crosslingual` together from `.vec` files of two languages and lists of pairs.

    A word without a vector in its spelling takes that of its lower-case or capitalised spelling.
    Pairs and evaluation words without vectors are left out, and so are training pairs with an
    evaluation word.

    Args:
        vector_files: the English and the German `.vec` or `.vec.gz` file.
        pairs: translation pairs to train on, the most frequent first.
        dictionary: translation pairs for the evaluation.
        sets: what `load_similarity_sets` returns; their words are the evaluation words, with those
            of the dictionary.

    Raises:
        ValueError: as `load_word_vectors`; no training pair has vectors.

    Example:
        sets = load_similarity_sets("wordsim")
        pairs = load_word_pairs("train.txt")
        data = build_crosslingual(["en.vec", "de.vec"], pairs, load_word_pairs("test.txt"), sets)
    """
    found: list[dict[str, np.ndarray]] = []
    evaluated: list[list[str]] = []
    for j, (language, path) in enumerate(zip(LANGUAGES, vector_files, strict=True)):
        of_sets = [w for tables in sets.values() for pair in tables[language].pairs for w in pair]
        words = dict.fromkeys([*of_sets, *(pair[j] for pair in dictionary)])
        every = [*words, *(pair[j] for pair in pairs)]
        spellings = {spelling for word in every for spelling in _spellings(word)}
        known = dict(zip(*load_word_vectors(path, spellings), strict=True))
        vector_of = {
            word: next(known[s] for s in _spellings(word) if s in known)
            for word in every
            if any(s in known for s in _spellings(word))
        }
        found.append(vector_of)
        evaluated.append([word for word in words if word in vector_of])
    reserved = [{word.lower() for word in words} for words in evaluated]
    kept = [
        pair
        for pair in dict.fromkeys(pairs)
        if all(word in found[j] and word.lower() not in reserved[j] for j, word in enumerate(pair))
    ]
    if not kept:
        raise ValueError(
            f"None of the {len(pairs)} training pairs has vectors in both files and is not among "
            f"the words to evaluate. {PAIRS_SOURCE}"
        )
    index = [{word: i for i, word in enumerate(words)} for words in evaluated]
    linked = [
        (index[0][first], index[1][second])
        for first, second in dict.fromkeys(dictionary)
        if first in index[0] and second in index[1]
    ]

    def vectors(j: int, words: list[str]) -> np.ndarray:
        return np.stack([found[j][word] for word in words])

    columns = [[pair[j] for pair in kept] for j in range(2)]
    return Crosslingual(
        (np.array(columns[0]), np.array(columns[1])),
        (vectors(0, columns[0]), vectors(1, columns[1])),
        (np.array(evaluated[0]), np.array(evaluated[1])),
        (vectors(0, evaluated[0]), vectors(1, evaluated[1])),
        np.array(linked, "int64").reshape(-1, 2),
    )


def _scored_pair(line: str) -> tuple[str, str, float | None]:
    """Two words and a score; None for a line that has no number in its place."""
    try:
        first, second, score = line.split("\t")
        return first.strip(), second.strip(), None if "_" in score else float(score)
    except ValueError:
        return "", "", None


def _spellings(word: str) -> tuple[str, str, str]:
    return word, word.lower(), word[:1].upper() + word[1:]


def _entries(path: Path, source: str) -> list[str]:
    """The lines of a text file without the blank ones at its end."""
    lines = read_lines(path, source)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines
