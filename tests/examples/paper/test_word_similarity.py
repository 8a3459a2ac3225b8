import json

import numpy as np
import pytest
import word_similarity as example
from readers.words import SIMILARITY_SETS, load_crosslingual

from proxnet_tf.solvers import Newton
from tests.helpers.markdown import table_rows

WIDTH, HIDDEN, WORDS = 12, 4, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Words of a hidden meaning, which both languages' vectors have with noise of their own."""
    folder = tmp_path_factory.mktemp("words")
    rng = np.random.default_rng(0)
    count = 600
    meaning = rng.standard_normal((count + WORDS, HIDDEN))
    names = [[f"{language}{i}" for i in range(len(meaning))] for language in ("e", "d")]
    arrays = {}
    for language, words in zip(("en", "de"), names, strict=True):
        mix = rng.standard_normal((HIDDEN, WIDTH))
        noise = rng.standard_normal((WIDTH, WIDTH)) * np.linspace(0.2, 1.0, WIDTH)
        vectors = meaning @ mix + rng.standard_normal((len(meaning), WIDTH)) @ noise
        for part, rows in (("", slice(0, count)), ("eval_", slice(count, None))):
            arrays[f"{part}{language}_words"] = np.array(words[rows])
            arrays[f"{part}{language}_vectors"] = vectors[rows].astype("float16")
        arrays[f"eval_pairs_{language}"] = np.arange(WORDS - 1)
    np.savez(folder / "cross.npz", **arrays)
    known = meaning[count:] / np.linalg.norm(meaning[count:], axis=1, keepdims=True)
    pairs = np.array([(i, j) for i in range(WORDS) for j in range(i)])
    for name, size in SIMILARITY_SETS.items():
        chosen = pairs[rng.integers(len(pairs), size=size)]
        for j, language in enumerate(("en", "de")):
            lines = ["Word1\tWord2\tScore"]
            for a, b in chosen:
                score = 5 + 5 * known[a] @ known[b]
                lines.append(f"{names[j][count + a]}\t{names[j][count + b]}\t{score:.4f}")
            (folder / f"{name}_{language}.tsv").write_text("\n".join(lines))
    return folder


def run(folder, output, *more):
    arguments = ["--data", folder / "cross.npz", "--similarity", folder, "--output", output]
    small = "--codes 6 --widths 16 --depths 1 --shares 2 4 12 --batch-size 100"
    return example.main([*map(str, arguments), *small.split(), *more])


def test_baseline_and_linear_cca(folder, tmp_path):
    results = run(folder, tmp_path, "--methods", "baseline", "linear", "--seeds", "0")
    columns = list(example.COLUMNS.values())
    baseline, linear = (
        np.array([results[name][column][0] for column in columns])
        for name in ("baseline", "linear")
    )
    # What both languages share is what the scores were made of.
    assert (linear > baseline + 5).all()
    assert results["linear"]["mean"][0] == pytest.approx(linear.mean())
    lines = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    (tuned,) = (
        line["result"]
        for line in lines
        if (line["run"]["stage"], line["run"].get("method")) == ("tune", "linear")
    )
    assert tuned["projection"]["components"] in (4, 12)
    assert tuned["error"] == pytest.approx(100 - tuned["projection"]["score"])
    rows = table_rows((tmp_path / "word_similarity.md").read_text())
    assert rows[1] == ["Baseline", f"{baseline.mean():.1f}", *(f"{v:.1f}" for v in baseline)]
    assert ["paper: ProxNet", "65.0", "75.4", "69.2"] in [row[:4] for row in rows]


@pytest.mark.slow
def test_the_networks_learn(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(example.SOLVER, "solver", Newton(1e-3, 20, jit_compile=False))
    options = "--methods vanilla dcca dccae prox own --trials 1 --epochs 20 --seeds 0"
    results = run(folder, tmp_path, *options.split())
    assert list(results) == ["vanilla", "dcca", "dccae", "prox", "own"]
    for method, found in results.items():
        assert found["mean"][0] > 25.0  # without learning it is near 0
        assert ("mean, layer" in found) == (method in ("prox", "own"))
    assert "10 of 10 runs, 0 min left; own, test words" in capsys.readouterr().out


def test_reciprocal_rank():
    first = np.eye(3)
    assert example.reciprocal_rank(first, 5 * first) == pytest.approx(100.0)
    second = np.array([[1.0, 0, 0], [0, 1.0, 0.5], [0, 1.0, 0]])  # the third is nearer to row 2
    # From the first side the ranks are 1, 2, 2; from the second 1, 1, 2.
    expected = 100 * np.mean([1, 1 / 2, 1 / 2, 1, 1, 1 / 2])
    assert example.reciprocal_rank(first, second) == pytest.approx(expected)


def test_normalisation_takes_the_moments_of_the_training_pairs(folder):
    data = load_crosslingual(folder / "cross.npz")
    views, evaluated = example.normalize(data)
    for j in range(2):
        np.testing.assert_allclose(views[j].mean(0), 0.0, atol=1e-5)
        np.testing.assert_allclose(views[j].std(0), 1.0, atol=1e-5)
        lengths = np.linalg.norm(data.vectors[j], axis=1, keepdims=True)
        training = data.vectors[j] / lengths
        own = data.eval_vectors[j][0] / np.linalg.norm(data.eval_vectors[j][0])
        expected = (own - training.mean(0)) / training.std(0)
        np.testing.assert_allclose(evaluated[j][0], expected, rtol=1e-3, atol=1e-4)
