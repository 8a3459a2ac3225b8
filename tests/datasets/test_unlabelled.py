import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Average, Dense

from proxnet_tf import CCARegularizer, MultiviewClassifier, cca_loss
from proxnet_tf.datasets import with_unlabelled

KNOWN, OTHERS = 6, 17


def views_of(n, start=0):
    """Rows that say which they are in their first column."""
    rng = np.random.default_rng(start + 1)
    views = [rng.normal(size=(n, d)).astype("float32") for d in (4, 3)]
    for view in views:
        view[:, 0] = start + np.arange(n)
    return views


LABELLED = views_of(KNOWN), np.arange(KNOWN) % 2 + 1
UNLABELLED = views_of(OTHERS, 100)


def batches(*arguments, **options):
    return [
        ([np.asarray(v) for v in x], np.asarray(y), np.asarray(w))
        for x, y, w in with_unlabelled(*arguments, **options)
    ]


def test_what_a_batch_is():
    found = batches(LABELLED, UNLABELLED, batch_size=4, unlabelled_batch_size=5, shuffle=False)
    assert len(found) == 4  # of 17 by 5
    for step, (x, y, w) in enumerate(found):
        known = np.arange(4 * step, 4 * step + 4) % KNOWN
        others = np.arange(5 * step, 5 * step + 5) % OTHERS
        for view, first, second in zip(x, LABELLED[0], UNLABELLED, strict=True):
            np.testing.assert_array_equal(view, np.concatenate([first[known], second[others]]))
        np.testing.assert_array_equal(y, [*LABELLED[1][known], 0, 0, 0, 0, 0])
        np.testing.assert_allclose(w, [9 / 4] * 4 + [0.0] * 5)


@pytest.mark.parametrize("sizes, steps", [((2, 20), 3), ((6, 4), 5), ((50, None), 1)])
def test_every_row_comes_in_every_epoch(sizes, steps):
    data = with_unlabelled(
        LABELLED, UNLABELLED, batch_size=sizes[0], unlabelled_batch_size=sizes[1]
    )
    assert len(data) == steps
    orders = []
    for _ in range(2):
        x = [np.asarray(x[0][:, 0]) for x, _, w in data]
        assert len({len(part) for part in x}) == 1
        orders.append(np.concatenate(x))
        assert {*orders[-1]} == {*range(KNOWN), *range(100, 100 + OTHERS)}
    assert (orders[0] != orders[1]).any()


def test_seed_and_weights():
    labelled = (*LABELLED, np.arange(1.0, 7.0))
    one, same, other = (batches(labelled, UNLABELLED, batch_size=3, seed=s) for s in (1, 1, 2))
    for (x, y, w), (x2, y2, w2) in zip(one, same, strict=True):
        for a, b in zip((*x, y, w), (*x2, y2, w2), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(w[:3], 2.0 * (x[0][:3, 0] + 1))  # two halves of a batch
        assert w.dtype == "float32" and not w[3:].any()
    assert any((a[0][0] != b[0][0]).any() for a, b in zip(one, other, strict=True))


def dataset(x, *more, size=4):
    return tf.data.Dataset.from_tensor_slices((tuple(x), *more)).batch(size)


def test_datasets():
    known = dataset(*LABELLED)  # batches of 4 and 2
    views = tf.data.Dataset.from_tensor_slices(tuple(UNLABELLED)).batch(7)
    wanted = batches(known, views)
    assert len(wanted) == 3 and len(with_unlabelled(known, views)) == 3
    for (x, _, w), m, u in zip(wanted, (4, 2, 4), (7, 7, 3), strict=True):
        assert len(x[1]) == m + u
        np.testing.assert_allclose(w, [(m + u) / m] * m + [0.0] * u, rtol=1e-6)
    alone = tf.data.Dataset.from_tensor_slices((tuple(UNLABELLED),)).batch(7)
    for other in (alone, dataset(UNLABELLED, np.ones(OTHERS), size=7)):
        for one, same in zip(wanted, batches(known, other), strict=True):
            np.testing.assert_array_equal(one[0][1], same[0][1])
            np.testing.assert_array_equal(one[1], same[1])
    mixed = batches(known, UNLABELLED, unlabelled_batch_size=9, shuffle=False)
    assert [len(w) for _, _, w in mixed] == [13, 11]


def unknown(data):
    """`data` with a length that nobody knows before it is read."""
    return data.filter(lambda *_: True)


def generated(x, size=4):
    def batches():
        for start in range(0, len(x[0]), size):
            yield tuple(view[start : start + size] for view in x)

    signature = tuple(tf.TensorSpec((None, view.shape[1]), "float32") for view in x)
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


SETS = {
    "arrays": lambda x, y: (x, y),
    "dataset": dataset,
    "unknown": lambda x, y: unknown(dataset(x, y)),
}


@pytest.mark.parametrize("labelled", SETS)
@pytest.mark.parametrize("unlabelled", ["filter", "generator"])
def test_every_row_of_sets_without_a_known_length(labelled, unlabelled):
    others = unknown(dataset(UNLABELLED)) if unlabelled == "filter" else generated(UNLABELLED)
    data = with_unlabelled(SETS[labelled](*LABELLED), others)
    for _ in range(2):
        rows = [np.asarray(x[0][:, 0]) for x, *_ in data]
        assert len(rows) == 5  # of 17 by 4
        assert {*np.concatenate(rows)} == {*range(KNOWN), *range(100, 100 + OTHERS)}


@pytest.mark.parametrize("size, steps", [(OTHERS, 3), (4, 5)])
def test_every_row_of_a_labelled_set_without_a_known_length(size, steps):
    """It is the longer one, or the shorter one."""
    known = unknown(dataset(*LABELLED, size=2))
    data = with_unlabelled(known, UNLABELLED, unlabelled_batch_size=size)
    rows = [np.asarray(x[0][:, 0]) for x, *_ in data]
    assert len(rows) == steps
    assert {*np.concatenate(rows)} == {*range(KNOWN), *range(100, 100 + OTHERS)}


@pytest.mark.parametrize("endless", ["labelled", "unlabelled", "both"])
def test_an_endless_set_goes_on_where_it_stopped(endless):
    """Two epochs of three steps see six batches one after the other."""
    known, others = dataset(*LABELLED, size=2), dataset(UNLABELLED, size=2)
    if endless != "unlabelled":
        known = known.repeat()
    if endless != "labelled":
        others = others.repeat()
    seen = []

    class Model(keras.Model):
        def train_step(self, batch):
            seen.append(np.asarray(batch[0][0][:, 0]))
            return {"loss": tf.zeros([])}

    model = Model()
    model.compile("sgd", "mse", run_eagerly=True)
    data = with_unlabelled(known, others)
    model.fit(data, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0)
    wanted = [[2 * i % KNOWN, 2 * i % KNOWN + 1, 100 + 2 * i, 101 + 2 * i] for i in range(6)]
    np.testing.assert_array_equal(seen, wanted)


def test_the_two_sets_are_shuffled_apart():
    """Of 40 pairs of rows one on average has equal numbers when the shuffles are independent."""
    x = np.arange(40.0)[:, None]
    shared = []
    for seed in range(10):
        sizes = {"batch_size": 8, "unlabelled_batch_size": 8, "seed": seed}
        rows = [np.asarray(x[:, 0]) for x, *_ in with_unlabelled((x, np.arange(40)), x, **sizes)]
        shared += [np.mean(part[:8] == part[8:]) for part in rows]
    assert np.mean(shared) < 0.1


def test_one_tensor_dicts_and_several_targets():
    x = {"a": UNLABELLED[0], "b": UNLABELLED[1]}
    y = {"c": np.ones((OTHERS, 3)), "d": np.ones(OTHERS, "int32")}
    ((both, targets, _),) = with_unlabelled((x, y), x, batch_size=OTHERS)
    assert both["b"].shape == (2 * OTHERS, 3) and targets["c"].shape == (2 * OTHERS, 3)
    assert targets["d"].dtype == "int32"
    ((joined, _, w),) = with_unlabelled(
        (UNLABELLED[0], np.zeros(OTHERS), np.ones((OTHERS, 1))), UNLABELLED[0], batch_size=OTHERS
    )
    assert joined.shape == (2 * OTHERS, 4) and w.shape == (2 * OTHERS, 1)


def model_of(between=None):
    keras.utils.set_random_seed(0)
    model = MultiviewClassifier([Dense(2), Dense(2)], [Dense(3), Dense(3)], between)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, weighted_metrics=["accuracy"])
    return model


def test_without_a_correlation_the_model_learns_as_from_the_labelled_rows():
    sizes = {"batch_size": 3, "unlabelled_batch_size": 9, "shuffle": False}
    one, other = model_of(), model_of()
    views = [x / 100 for x in LABELLED[0]]
    both = with_unlabelled((views, LABELLED[1]), [x / 100 for x in UNLABELLED], **sizes)
    found = one.fit(both, epochs=3, shuffle=False, verbose=0).history
    wanted = other.fit(views, LABELLED[1], batch_size=3, epochs=3, shuffle=False, verbose=0).history
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


def test_the_correlation_is_that_of_all_rows():
    views = [x / 100 for x in LABELLED[0]], [x / 100 for x in UNLABELLED]
    model = model_of(CCARegularizer(0.3, epsilon=0.1))
    data = with_unlabelled(
        (views[0], LABELLED[1]), views[1], batch_size=6, unlabelled_batch_size=17
    )
    ((x, y, _),) = data
    entropy = float(model.loss(y[:6], model([v[:6] for v in x])))
    correlation = float(cca_loss(*model.encode(list(x)), epsilon=0.1))
    alone = float(cca_loss(*model.encode([v[:6] for v in x]), epsilon=0.1))
    assert abs(alone - correlation) > 0.05
    found = model.fit(data, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, [entropy + 0.3 * correlation], rtol=1e-5)


def test_fit_of_a_functional_model():
    inputs = [keras.Input((4,)), keras.Input((3,))]
    codes = CCARegularizer(0.1)([Dense(2)(x) for x in inputs])
    model = keras.Model(inputs, Average()([Dense(3)(code) for code in codes]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    data = with_unlabelled(LABELLED, UNLABELLED, batch_size=3)
    history = model.fit(data, shuffle=False, validation_data=LABELLED, verbose=0).history
    assert np.isfinite([history["loss"], history["val_loss"]]).all()
    with pytest.raises(ValueError, match="class_weight"):
        model.fit(data, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, shuffle=False, verbose=0)


X = UNLABELLED


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: with_unlabelled(LABELLED, X[:1]), "`unlabelled` must hold the x of `labelled`"),
        (
            lambda: with_unlabelled(LABELLED, X[::-1]),
            r"beyond the batch.*and \('float32\(None, 3\)'",
        ),
        (lambda: with_unlabelled(LABELLED, [x.astype(float) for x in X]), "float64"),
        (lambda: with_unlabelled(X, X), r"hold the x of `labelled`.*float32\(None, 4\) and \("),
        (lambda: with_unlabelled(X[0], X), r"must be \(x, y\) or \(x, y, sample_weight\).*float32"),
        (lambda: with_unlabelled((X, np.zeros(3)), X), r"one number of rows.*\[3, 17\]"),
        (lambda: with_unlabelled(LABELLED, [x[:0] for x in X]), r"`unlabelled`.*at least 1.*\[0\]"),
        (lambda: with_unlabelled(LABELLED, X, batch_size=0), "`batch_size` must be.*batch_size=0"),
        (
            lambda: with_unlabelled(LABELLED, X, unlabelled_batch_size=1.5),
            "`unlabelled_batch_size` must be an integer >= 1.*=1.5",
        ),
        (
            lambda: with_unlabelled(dataset(*LABELLED), X, batch_size=3),
            "`batch_size` is for arrays; `labelled` is a dataset.*batch_size=3",
        ),
        (
            lambda: with_unlabelled(LABELLED, dataset(X), unlabelled_batch_size=3),
            "`unlabelled_batch_size` is for arrays; `unlabelled` is a dataset",
        ),
        (lambda: with_unlabelled(dataset(*LABELLED).take(0), X), "`labelled`.*empty dataset"),
        (lambda: with_unlabelled(("a", LABELLED[1]), X), r"arrays with rows. Received: <U1 \(\)"),
        (lambda: with_unlabelled(LABELLED, X, shuffle="no"), "`shuffle` must be True or.*'no'"),
        (lambda: with_unlabelled(LABELLED, X, seed="a"), "`seed` must be an integer.*seed='a'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_labels_per_step_and_no_weights():
    x, y = np.ones((4, 5, 2), "float32"), np.arange(20).reshape(4, 5) % 3
    for labelled in ((x, y), (x, y, None)):
        batch = next(iter(with_unlabelled(labelled, x, batch_size=4, shuffle=False)))
        assert batch[2].shape == (8, 1)
        np.testing.assert_allclose(tf.reduce_mean(batch[2]), 1.0)
    for wrong in (None, (row for row in x), "x"):
        with pytest.raises(ValueError, match="`unlabelled` must"):
            with_unlabelled((x, y), wrong)


@pytest.mark.parametrize("structure", [dict, tuple, list])
def test_weights_of_every_output(structure):
    """Keras takes one vector of weights for each output, in the structure of the targets."""
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in "ab"}
    x, targets = np.ones((8, 3), "float32"), {"a": np.ones((8, 2)), "b": np.ones((8, 2))}
    weights = {"a": np.arange(8.0), "b": np.zeros(8)}
    losses = {"a": "mse", "b": "mse"}
    if structure is not dict:
        outputs, targets, weights, losses = (
            structure(part.values()) for part in (outputs, targets, weights, losses)
        )
    data = with_unlabelled((x, targets, weights), x, batch_size=4, shuffle=False)
    _, _, given = next(iter(data))
    first, second = tf.nest.flatten(given)
    np.testing.assert_array_equal(first, [0, 2, 4, 6, 0, 0, 0, 0])
    np.testing.assert_array_equal(second, np.zeros(8))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", losses, run_eagerly=True)
    history = model.fit(data, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_none_among_the_weights_of_outputs_is_ones():
    x, targets = np.ones((4, 2)), (np.ones(4), np.ones((4, 3)))
    data = with_unlabelled((x, targets, [np.full(4, 0.5), None]), x, batch_size=4, shuffle=False)
    first, second = next(iter(data))[2]
    np.testing.assert_array_equal(first, [1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(second, [2, 2, 2, 2, 0, 0, 0, 0])
