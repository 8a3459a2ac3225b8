import itertools

import keras
import numpy as np
import pytest
import scipy.io
import speech_recognition as example
import tensorflow as tf
from readers.speech import Pieces

from tests.helpers.markdown import table_rows

BLANK = example.BLANK


def sequences(lengths=(5, 3, 4), frames=5, seed=0):
    rng = np.random.default_rng(seed)
    valid = np.arange(frames) < np.array(lengths)[:, None]
    views = [np.where(valid[..., None], rng.normal(2, 3, (*valid.shape, d)), 0) for d in (39, 16)]
    labels = np.where(valid, rng.integers(0, 4, valid.shape), -1).astype("int32")
    return Pieces(*(x.astype("float32") for x in views), labels, np.array(lengths))


def decoded(ids):
    """What greedy decoding makes of a path."""
    return [a for a, b in zip(ids, [None, *ids], strict=False) if a != b and a != BLANK]


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            substituted = previous + (x != y)
            previous = row[j]
            row[j] = min(substituted, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def test_targets_are_labels_without_repetitions():
    labels = np.array([[0, 0, 3, 3, 0], [5, 5, 5, -1, -1]])
    rows = example.targets(sequences((5, 3))._replace(labels=labels))
    np.testing.assert_array_equal(rows, [[3, 5, 0, 3, 0], [1, 3, 5, 0, 0]])


def test_frames_side_by_side_are_one_time_step():
    part = sequences((5, 3), frames=5)
    stacked = example.stack(part.acoustic, 2)
    assert stacked.shape == (2, 3, 78)
    np.testing.assert_array_equal(stacked[0, 1], part.acoustic[0, 2:4].ravel())
    np.testing.assert_array_equal(stacked[0, 2, 39:], 0.0)
    np.testing.assert_array_equal(example.targets(part, 2)[:, 1], [3, 2])


def test_loss_is_that_of_all_paths_within_the_length():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 4, BLANK + 1)).astype("float32") * 2
    phones, frames = [[0, 7], [3]], [4, 3]
    y = np.array([[2, 4, 0, 7], [1, 3, 3, 0]], "int32")
    expected = []
    for x, wanted, length in zip(logits, phones, frames, strict=True):
        log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
        ids = [*sorted(set(wanted)), BLANK]
        paths = [path for path in itertools.product(ids, repeat=length) if decoded(path) == wanted]
        total = np.logaddexp.reduce([sum(log_p[t, i] for t, i in enumerate(p)) for p in paths])
        expected.append(-total / len(wanted))
    loss = example.CTC()(y, tf.constant(logits))
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)
    logits[1, 3] += 5.0 * rng.standard_normal(BLANK + 1)  # after the end
    np.testing.assert_allclose(example.CTC()(y, tf.constant(logits)), loss, rtol=1e-6)


def test_mini_batches_hold_every_sequence_whole_once():
    lengths = np.random.default_rng(0).integers(1, 130, 21)
    part = sequences(lengths, frames=130)
    views, y = example.normalize(part, part), example.targets(part)
    seen, spans = [], []
    for (acoustic, articulatory), rows in example.batches(views, y, 5, seed=0):
        assert acoustic.shape[1] == articulatory.shape[1] <= rows.numpy()[:, 1].max() + 49
        spans.append((rows.numpy()[:, 1].min(), rows.numpy()[:, 1].max()))
        seen += [(a.numpy().sum(), n) for a, n in zip(acoustic, rows.numpy()[:, 1], strict=True)]
    expected = list(zip(views[0].sum((1, 2)), lengths, strict=True))
    np.testing.assert_allclose(sorted(seen), sorted(expected), rtol=1e-4, atol=1e-4)
    ordered = sorted(spans)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))
    assert spans != ordered


def test_error_rate_against_a_reference_and_in_parts():
    rng = np.random.default_rng(1)
    count, frames = 12, 9
    ids = rng.choice([0, 1, 2, BLANK], size=(count, frames))
    logits = 4 * np.eye(BLANK + 1, dtype="float32")[ids]
    lengths = rng.integers(2, frames + 1, count)
    sizes = rng.integers(1, 6, count)
    y = np.zeros((count, 7), "int32")
    y[:, 0], y[:, 1] = sizes, lengths
    y[:, 2:] = rng.integers(0, 3, (count, 5))
    errors = [
        levenshtein(decoded(row[:n]), list(target[2 : 2 + size]))
        for row, n, target, size in zip(ids, lengths, y, sizes, strict=True)
    ]
    metric = example.PhoneErrorRate()
    assert float(metric.result()) == 0.0
    for part in (slice(0, 5), slice(5, None)):
        metric.update_state(y[part], tf.constant(logits[part]))
    assert 0.2 < sum(errors) / sizes.sum() < 2.0
    np.testing.assert_allclose(metric.result(), sum(errors) / sizes.sum(), rtol=1e-6)
    metric.reset_state()
    empty = 4 * np.eye(BLANK + 1, dtype="float32")[np.full((1, 3), BLANK)]
    metric.update_state(np.array([[2, 3, 0, 1]]), tf.constant(empty))
    assert float(metric.result()) == 1.0


def test_noise_is_a_share_of_another_sequence():
    lengths = np.array([4, 2, 3])
    acoustic = np.zeros((3, 5, 1), "float32")
    for i, length in enumerate(lengths):
        acoustic[i, :length, 0] = 10.0 ** (i + 1) * np.arange(1, length + 1)
    noisy = example.add_noise(acoustic, lengths, 0.5, seed=0)
    for i, length in enumerate(lengths):
        added = (noisy - acoustic)[i, :length, 0]
        candidates = [
            0.5 * acoustic[j, np.arange(length) % lengths[j], 0] for j in range(3) if j != i
        ]
        assert any(np.allclose(added, candidate) for candidate in candidates)
        np.testing.assert_array_equal(noisy[i, length:], 0.0)


def test_padding_does_not_reach_the_proximal_layer():
    options = example.parse(["--data", "none", "--units", "6", "--code", "3"])
    part = sequences((6, 6, 6, 6), frames=6)
    views = example.normalize(part, part)
    keras.utils.set_random_seed(0)
    model = example.make_model("prox", "logit-avg", [39, 16], options)
    model.build([x.shape for x in views])
    padded = [np.pad(x, [(0, 0), (0, 3), (0, 0)]) for x in views]
    plain = model(views, training=True)
    assert np.abs(plain - model(views, training=False)).max() > 1e-3
    np.testing.assert_allclose(model(padded, training=True)[:, :6], plain, atol=1e-4)


def write_corpus(path):
    """A .mat file whose acoustics tell the phone."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(12, 20, 24)
    labels = np.repeat(rng.integers(0, 4, lengths.sum()), 4)[: lengths.sum()]
    views = [
        np.eye(4)[labels] @ rng.normal(size=(4, d)) + 0.1 * rng.normal(size=(len(labels), d))
        for d in (39, 16)
    ]
    arrays = {"MFCCS": views[0], "ARTICS": views[1], "LABELS": labels[:, None].astype("uint8")}
    scipy.io.savemat(path, arrays | {"LENGTHS": lengths[None].astype("int32")})


def run(tmp_path, more):
    write_corpus(tmp_path / "speech.mat")
    arguments = f"--data {tmp_path / 'speech.mat'} --output {tmp_path} --frames 12 --units 16"
    arguments += " --stack 1 --code 4 --batch-size 8"
    return example.main([*arguments.split(), *more.split()])


@pytest.mark.slow
def test_every_method_learns_in_both_modes(tmp_path):
    results = run(tmp_path, "--noises 0.2 --seeds 0 --epochs 30 --trials 1 --rates 0.019 0.021")
    assert list(results) == list(example.TITLES)
    columns = ["noise 0.2, logit-avg", "noise 0.2, acoustic"]
    for found in results.values():
        assert all(found[column][0] < 70.0 for column in columns)  # 100 for an empty answer
    history = results["prox"]["history [0.2, 'acoustic']"][0]
    assert len(history["lam"]) == 30
    np.testing.assert_allclose(np.diff(history["lam"], 2), 0.0, atol=1e-4)
    assert history["lam"][-1] > 2.9 * history["lam"][0]
    assert max(history["unsolved"]) == 0.0
    rows = table_rows((tmp_path / "speech_recognition.md").read_text())
    assert rows[0] == ["PER, %", *columns]
    assert ["ProxNet", *(f"{results['prox'][column][0]:.1f}" for column in columns)] in rows
    assert ["paper: RRM", "16.9", "16.6"] in rows
