import json

import keras
import labels
import labels_data
import labels_report
import labels_training
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import DCCA, DCCAE, CCARegularizer, MultiviewClassifier, ProxCCA
from tests.helpers.markdown import table_rows

PAIR = "fou+zer"


def trainer(kind, **options):
    views = labels_data.load(PAIR).views
    made = labels_training.Trainer(kind, [x.shape[1:] for x in views], 10)
    made.reset(0, lr=3e-3, **options)
    return made


def small_part(rows=100, labels_per_class=10):
    part = labels_data.part_of(PAIR, "train", 0, labels_per_class)
    chosen = np.random.default_rng(0).permutation(len(part.labels))[:rows]
    return labels_data.Part(
        [x[chosen] for x in part.views], part.labels[chosen], part.weights[chosen]
    )


def test_labels_are_nested_and_weights_have_mean_1():
    few, more = (labels_data.part_of(PAIR, "train", 3, count) for count in (5, 10))
    assert set(np.flatnonzero(few.weights)) < set(np.flatnonzero(more.weights))
    np.testing.assert_array_equal(np.bincount(few.labels[few.weights > 0]), [5] * 10)
    np.testing.assert_allclose([few.weights.mean(), more.weights.mean()], 1.0, rtol=1e-5)
    assert np.all(labels_data.part_of(PAIR, "train", 3).weights == 1.0)


def test_mispaired_rows_exchange_second_views_only():
    part, wrong = (labels_data.part_of(PAIR, "train", 0, mispaired=share) for share in (0.0, 0.3))
    np.testing.assert_array_equal(part.views[0], wrong.views[0])
    np.testing.assert_array_equal(part.labels, wrong.labels)
    assert np.any(part.views[1] != wrong.views[1], axis=1).sum() == 360
    ordered = (np.sort(views.views[1], axis=0) for views in (part, wrong))
    np.testing.assert_array_equal(*ordered)


@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize("kind", ["plain", "rrm", "prox", "own", "envelope"])
def test_a_step_has_the_loss_and_the_gradient_of_the_models(kind):
    ridge = 0.05
    made, part = trainer(kind, ridge=ridge, strength=0.3), small_part()
    options = dict(epsilon=ridge, solver=labels_training.SOLVER)
    between = {
        "rrm": CCARegularizer(0.3, epsilon=ridge),
        "prox": ProxCCA(lam=0.2, **options),
        "own": ProxCCA(lam=0.2, weight=0.3, **options),
        "envelope": CCARegularizer(0.3, envelope=0.2, **options),
    }.get(kind)
    if made.prox:
        made.prox.lam.assign(0.2)
    model = MultiviewClassifier(made.encoders, made.predictors, between, predict_with=0)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=entropy)
    with tf.GradientTape() as tape:
        logits = model(part.views, training=True)
        wanted = model.compute_loss(
            y=part.labels, y_pred=logits, sample_weight=tf.constant(part.weights)
        )
    gradients = tape.gradient(wanted, made.trained)
    with tf.GradientTape() as tape:
        found = made.loss(
            [tf.constant(x) for x in part.views], part.labels, part.weights, tf.constant(0)
        )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for a, b in zip(tape.gradient(found, made.trained), gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("kind", ["dcca", "dccae"])
def test_a_first_stage_is_that_of_the_model(kind):
    made, part = trainer(kind, ridge=0.05, strength=0.7), small_part()
    predictors = [labels_training.make_dense(10, 10) for _ in range(2)]
    if kind == "dcca":
        model = DCCA(made.encoders, predictors, epsilon=0.05)
    else:
        model = DCCAE(
            made.encoders, made.decoders, predictors, epsilon=0.05, reconstruction_weight=0.7
        )
    found = made.loss(
        [tf.constant(x) for x in part.views], part.labels, part.weights, tf.constant(0)
    )
    history = model.pretrain(
        part.views, optimizer=keras.optimizers.SGD(0.0), batch_size=100, verbose=0
    )
    np.testing.assert_allclose(found, history.history["loss"][0], rtol=1e-4)


def test_steps_are_those_of_adam():
    made, part = trainer("plain"), small_part(200)
    made.train(part, seed=0, epochs=3, batch=100)
    found = [w.numpy() for w in made.trained]
    made.reset(0, lr=3e-3)
    adam = keras.optimizers.Adam(3e-3, epsilon=1e-7)
    weights = [w for net in made.encoders + made.predictors for w in net.trainable_weights]
    generator = np.random.default_rng([0, 3])
    for _ in range(3):
        for rows in generator.permutation(200).reshape(-1, 100):
            views = [tf.constant(x[rows]) for x in part.views]
            with tf.GradientTape() as tape:
                loss = made.loss(views, part.labels[rows], part.weights[rows], tf.constant(0))
            adam.apply(tape.gradient(loss, made.trained), weights)
    for index, (a, b) in enumerate(zip(found, made.trained, strict=True)):
        if index not in (3, 7):  # biases before a normalization: their gradient is rounding
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_agreement_losses_by_hand():
    f = np.array([[1.0, 2.0], [-1.0, 0.0], [0.0, -2.0], [2.0, 1.0]], "float32")
    g = f[:, ::-1] * [2.0, 3.0] + 1.0
    g = g.astype("float32")
    c = np.corrcoef(f.T, g.T)[:2, 2:]
    wanted = (c[0, 0] - 1) ** 2 + (c[1, 1] - 1) ** 2 + 0.3 * (c[0, 1] ** 2 + c[1, 0] ** 2)
    np.testing.assert_allclose(labels_training.barlow_twins(f, g, 0.3), wanted, rtol=1e-5)
    f, g = 0.3 * f, 0.2 * g
    wanted = np.mean((f - g) ** 2)
    for x in (f, g):
        s = np.cov(x.T)
        wanted += np.mean(np.maximum(0.0, 1.0 - np.sqrt(np.diag(s) + 1e-4))) + 0.4 * s[0, 1] ** 2
    np.testing.assert_allclose(labels_training.vicreg(f, g, 0.4), wanted, rtol=1e-5)


def test_settings_fill_their_ranges_and_a_range_grows_at_the_end_that_was_chosen():
    space = {"lr": (1e-3, 1e-1), "lam": (0.1, 10.0)}
    settings = labels.draw(space, space, 20, 0)
    for name, (low, high) in space.items():
        place = [np.log(s[name] / low) / np.log(high / low) * 20 for s in settings]
        np.testing.assert_array_equal(np.sort(np.floor(place)), np.arange(20))
    assert labels.grown({"lr": 1e-2, "lam": 1.0}, space, 20) is None
    larger = labels.grown({"lr": 1.1e-3, "lam": 9.9}, space, 20)
    np.testing.assert_allclose([*larger["lr"], *larger["lam"]], [1e-4, 1e-1, 0.1, 100.0])


def test_the_study_runs_once_and_continues_after_a_stop(tmp_path, monkeypatch):
    command = "--pairs fou+zer --methods vanilla linear dcca --labels 10 --seeds 0 1 --epochs 1"
    command = [*command.split(), "--settings", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(labels, "grown", lambda *_: None)
    first = labels.main(command)
    path = tmp_path / "labels.jsonl"
    lines = path.read_text().splitlines()
    tests = [run for run in map(json.loads, lines) if run["run"]["stage"] == "test"]
    assert len(tests) == 3 * 2 + 2 * 2 * 2  # two seeds; two shares of mispaired rows
    assert all(0.0 <= value <= 100.0 for run in tests for value in run["result"].values())
    path.write_text("\n".join([*lines[:-3], lines[-3][:40]]))  # a stop in the middle of a line
    computed = []
    test = labels.Study.test
    monkeypatch.setattr(labels.Study, "test", lambda *args: computed.append(args) or test(*args))
    again = labels.main(command)
    assert len(computed) == 3
    assert again == first  # tables
    with pytest.raises(SystemExit, match="runs of another size"):
        labels.main([*command, "--batch", "50"])


def test_wilcoxon_and_holm():
    from scipy import stats

    d = np.random.default_rng(1).normal(0.4, size=10)
    np.testing.assert_allclose(labels_report.wilcoxon(d), stats.wilcoxon(d).pvalue, rtol=1e-9)
    np.testing.assert_allclose(labels_report.wilcoxon(np.arange(1.0, 11.0)), 2 / 1024)
    assert labels_report.wilcoxon(np.zeros(5)) == 1.0
    np.testing.assert_allclose(labels_report.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])


def test_tables_pair_the_seeds_and_say_the_gain():
    def run(method, seed, clean, **other):
        run = dict(stage="test", pair="fou+zer", method=method, labels=10, seed=seed, mispaired=0.0)
        return {"run": run, "result": {"clean": clean, **other}}

    spoiled = {"missing 0": 50.0, "missing 1": 40.0}
    runs = [run("vanilla", seed, 20.0 + seed, **spoiled) for seed in range(10)]
    runs += [run("rrm", seed, 17.0 + seed) for seed in range(10)]
    runs += [run("prox", seed, 22.0 + seed) for seed in reversed(range(9))]
    errors = labels_report.Errors(runs)
    rows = table_rows(labels_report.difference_table(errors, "fou+zer"))
    assert rows[1][1:] == ["-3.0 ± 0.0, p 0.004"]  # 2/1024, Holm over two methods
    assert rows[2][1:] == ["+2.0 ± 0.0, p 0.004"]  # nine seeds: 2/512
    glance = table_rows(labels_report.glance(errors))
    assert glance[1][3:] == [labels.METHODS["rrm"].title, "+3.0 ± 0.0", "-2.0 ± 0.0"]
    robust = table_rows(labels_report.robustness_table(errors, "fou+zer", 10))
    assert robust[1][2] == "45.0 ± 0.0 (+20.5)"
