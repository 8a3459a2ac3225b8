"""Word vectors of two languages, translation pairs, and word similarity as people judge it."""

import gzip
import re
import zlib
from typing import NamedTuple

import numpy as np

from readers.files import (
    as_float32,
    bad_data,
    parse_numbers,
    read_lines,
    read_npz,
    required,
    required_file,
)

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


def load_word_vectors(path, wanted=None):
    """Word vectors from the text format of fastText (`.vec` or `.vec.gz`).

    The first line has the number of words and the dimension d, every other line a word and its d
    numbers, separated by spaces. Bytes of a word that are not UTF-8, which published files have,
    are read as U+FFFD.

    Args:
        path: the file.
        wanted: the set of words to keep, in the file's order; None (the default) keeps all. Every
            line must have d entries in either case; that they are finite numbers is checked for
            the words kept.

    Returns:
        The words, and their vectors, float32 `(n, d)`. A word that stands twice in the file
        stands twice here.

    Raises:
        ValueError: no such file, not this format, an entry that is no finite number, or fewer
            lines than the first line announces.

    Reference: Grave, Bojanowski, Gupta, Joulin, Mikolov (2018), Learning word vectors for 157
    languages.
    """
    path = required_file(path, VECTORS_SOURCE)

    def fail(problem):
        return bad_data(path, problem, VECTORS_SOURCE)

    words, rows, line_number = [], [], 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="\n") as file:
            try:
                count, dimension = map(int, file.readline().split())
            except ValueError:
                raise fail(
                    "its first line must be the number of words and the dimension."
                ) from None
            for line_number, line in enumerate(file, start=1):
                word, *numbers = line.rstrip(" \r\n").split(" ")
                place = f"word {line_number} ({word!r})"
                if len(numbers) != dimension:
                    raise fail(f"{place} has {len(numbers)} numbers, not {dimension}.")
                if wanted is None or word in wanted:
                    words.append(word)
                    try:
                        rows.append(parse_numbers(numbers))
                    except ValueError as error:
                        raise fail(f"{place} has {error}.") from None
    except (EOFError, OSError, zlib.error) as error:
        raise fail(f"it is damaged or only a part of the file ({error}).") from error
    if line_number != count:
        raise fail(f"it announces {count} words and has {line_number}.")
    return words, np.array(rows, "float32").reshape(len(rows), dimension)


def load_word_pairs(path):
    """Translation pairs: two words on every line of a UTF-8 file, separated by a tab or spaces.

    Raises a `ValueError` for no such file, a line without exactly two words, or no line.
    """
    pairs = []
    for number, line in enumerate(_entries(path, PAIRS_SOURCE), start=1):
        words = re.findall(r"[^ \t]+", line)  # other white space can be part of a word
        if len(words) != 2:
            raise bad_data(path, f"line {number} is not two words: {line!r}.", PAIRS_SOURCE)
        pairs.append(tuple(words))
    if not pairs:
        raise bad_data(path, "it is empty.", PAIRS_SOURCE)
    return pairs


def load_word_similarity(path):
    """One table of word similarity, UTF-8: a header, then word, word, score, separated by tabs.

    Raises a `ValueError` for no such file, a line that is not two words and a number, or no pair.
    """
    pairs, scores = [], []
    for number, line in enumerate(_entries(path, SIMILARITY_SOURCE)[1:], start=2):
        try:
            first, second, score = line.split("\t")
            scores.append(float(score))
        except ValueError:
            problem = f"line {number} is not two words and a score: {line!r}."
            raise bad_data(path, problem, SIMILARITY_SOURCE) from None
        pairs.append((first.strip(), second.strip()))
    if not pairs:
        raise bad_data(path, "it has no pair of words.", SIMILARITY_SOURCE)
    return Similarity(pairs, np.array(scores))


def load_similarity_sets(folder):
    """WordSim-353 (all, similarity, relatedness) and SimLex-999 in English and German.

    Args:
        folder: has the files ws353_all_en.tsv, ws353_sim_en.tsv, ws353_rel_en.tsv,
            simlex999_en.tsv and the same with _de.

    Returns:
        A dict from "ws353_all", "ws353_sim", "ws353_rel", "simlex999" to a dict from "en", "de" to
        the `Similarity` (350, 201, 252 and 999 pairs).

    Raises:
        ValueError: no such folder or table, as `load_word_similarity`, or a table with fewer
            pairs than it should have.

    Reference: Finkelstein et al. (2002); Agirre et al. (2009); Hill, Reichart, Korhonen (2015);
    Leviant, Reichart (2015).
    """
    folder = required(folder, SIMILARITY_SOURCE)
    sets = {}
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


def load_crosslingual(path):
    """English and German word vectors of translation pairs from one .npz file, without pickles.

    The file has the arrays en_words, de_words (n words that translate each other), en_vectors,
    de_vectors `(n, d)`, eval_en_words, eval_de_words, eval_en_vectors, eval_de_vectors and
    eval_pairs_en, eval_pairs_de (indices of evaluation words that translate each other).

    Raises a `ValueError` for no such file, a damaged file, missing arrays, shapes that do not fit,
    values that are not finite, indices out of range.
    """
    kinds = ("{}_words", "{}_vectors", "eval_{}_words", "eval_{}_vectors", "eval_pairs_{}")
    names = [kind.format(language) for kind in kinds for language in LANGUAGES]
    arrays = read_npz(path, names, CROSSLINGUAL_SOURCE)

    def check(correct, problem):
        if not correct:
            shapes = {name: array.shape for name, array in arrays.items()}
            raise bad_data(path, f"{problem}; {shapes}.", CROSSLINGUAL_SOURCE)

    for part in ("", "eval_"):
        for language in LANGUAGES:
            labels, vectors = (arrays[f"{part}{language}_{what}"] for what in ("words", "vectors"))
            fits = labels.ndim == 1 and vectors.ndim == 2 and len(labels) == len(vectors) > 0
            check(
                fits and labels.dtype.kind == "U", f"{part}{language}: not a vector for each word"
            )
            try:
                arrays[f"{part}{language}_vectors"] = as_float32(vectors)
            except ValueError as error:
                check(False, f"{part}{language}_vectors has {error}")
    for language in LANGUAGES:
        widths = {arrays[f"{part}{language}_vectors"].shape[1] for part in ("", "eval_")}
        check(len(widths) == 1, f"the {language} vectors differ in width")
        index, count = arrays[f"eval_pairs_{language}"], len(arrays[f"eval_{language}_words"])
        inside = index.dtype.kind in "iu" and bool(np.all((index >= 0) & (index < count)))
        check(inside, f"eval_pairs_{language} must be indices of the evaluation words")
    words, vectors, eval_words, eval_vectors, pairs = (
        tuple(arrays[kind.format(language)] for language in LANGUAGES) for kind in kinds
    )
    check(len(words[0]) == len(words[1]), "there is not a German word for each English one")
    check(len(pairs[0]) == len(pairs[1]), "eval_pairs_en and eval_pairs_de differ in length")
    return Crosslingual(
        words, vectors, eval_words, eval_vectors, np.stack(pairs, 1).astype("int64")
    )


def build_crosslingual(vector_files, pairs, dictionary, sets):
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
    """
    found = []
    evaluated = []
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

    def vectors(j, words):
        return np.stack([found[j][word] for word in words])

    columns = [[pair[j] for pair in kept] for j in range(2)]
    return Crosslingual(
        (np.array(columns[0]), np.array(columns[1])),
        (vectors(0, columns[0]), vectors(1, columns[1])),
        (np.array(evaluated[0]), np.array(evaluated[1])),
        (vectors(0, evaluated[0]), vectors(1, evaluated[1])),
        np.array(linked, "int64").reshape(-1, 2),
    )


def _spellings(word):
    return word, word.lower(), word[:1].upper() + word[1:]


def _entries(path, source):
    """The lines of a text file without the blank ones at its end."""
    lines = read_lines(path, source)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines
