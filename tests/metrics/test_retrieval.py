"""`RecallAtK` against ranks that NumPy takes one query at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import RecallAtK

DIRECTIONS = ("first_to_second", "second_to_first")


def pairs(n, d=5, seed=0, noise=1.0):
    """Codes of two views that know one another a little, of different lengths."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, d))
    first, second = (hidden + noise * rng.normal(size=(n, d)) for _ in range(2))
    return 3.0 * first, rng.uniform(0.1, 9.0, size=(n, 1)) * second


def places(first, second):
    """For each query the ranks that its partner may have, by sorting its candidates."""
    units = []
    for codes in (first, second):
        lengths = np.linalg.norm(codes, axis=1, keepdims=True)
        units.append(np.divide(codes, lengths, out=np.zeros_like(codes), where=lengths > 0))
    cosines = units[0] @ units[1].T
    ordered = -np.sort(-cosines, axis=1)
    tied = np.abs(ordered - np.diag(cosines)[:, None]) < 1e-9
    return [1 + np.flatnonzero(row) for row in tied]


def expected(first, second, direction="both", weight=None, k=3):
    if direction == "both":
        return np.mean([expected(first, second, d, weight, k) for d in DIRECTIONS])
    if direction == DIRECTIONS[1]:
        first, second = second, first
    return np.average([np.mean(r <= k) for r in places(first, second)], weights=weight)


def measured(first, second, batches=(), weight=None, **arguments):
    metric = RecallAtK(3, **{"dtype": "float64", "capacity": 64} | arguments)
    assert metric.name == "recall_at_3"
    for rows in np.split(np.arange(len(first)), batches):
        given = None if weight is None else weight[rows]
        metric.update_state(None, [first[rows], second[rows]], given)
    return float(metric.result())


@pytest.mark.parametrize("direction", ["both", *DIRECTIONS])
def test_epoch_is_all_pairs_at_once(direction):
    first, second = pairs(41, seed=4)
    wanted = expected(first, second, direction)
    for batches in ((), (0, 7, 14, 40)):
        found = measured(first, second, batches, direction=direction)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    # Not a mean over batches, and the directions differ.
    halves = [expected(first[r], second[r], direction) for r in (slice(20), slice(20, None))]
    assert abs(np.mean(halves) - wanted) > 0.01
    one, other = (expected(first, second, d) for d in DIRECTIONS)
    assert abs(one - other) > 1e-3


def test_ties_are_expectations():
    first, second = pairs(30, seed=2)
    first[4:9] = first[3]
    second[5:8] = 2.0 * second[3]
    second[20:24] = second[19] * [[3.0], [0.7], [0.1], [11.0]]  # of one direction
    first[12] = second[15] = second[16] = 0.0
    wanted = expected(first, second)
    found = [measured(first, second, batches) for batches in ((), (6, 14, 21))]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("same", [1.0, 0.0])
def test_all_tied(same):
    """The partner is anywhere: a rank from 1 to n with equal probability."""
    codes = np.full((12, 3), same)
    np.testing.assert_allclose(measured(codes, codes), 3 / 12)


def test_weights_are_those_of_queries():
    first, second = pairs(30, seed=3)
    weight = np.random.default_rng(4).integers(0, 4, size=30)
    there = weight > 0
    wanted = expected(first[there], second[there], weight=weight[there])
    first[~there] = np.nan  # takes no part
    for given in (weight, weight[:, None], 0.1 * weight):
        found = measured(first, second, (7, 19), given)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_masks_and_sequences():
    rng = np.random.default_rng(5)
    first, second = (x.reshape(6, 5, 4) for x in pairs(30, 4, seed=6))
    valid = rng.random((6, 5)) < 0.7
    wanted = expected(first[valid], second[valid], "first_to_second")
    first, second = first.astype("float32"), second.astype("float32")
    second[~valid] = 0.0
    options = {"direction": "first_to_second", "capacity": 30}
    metric = RecallAtK(3, **options)
    metric.update_state(None, [first, keras.layers.Masking()(second)])
    np.testing.assert_allclose(metric.result(), wanted, rtol=1e-5)

    second[~valid, 1] = np.nan
    joined = np.concatenate([first, second], axis=-1)
    metric = RecallAtK(3, split=(4, 4), nan_is_missing=True, **options)
    metric.update_state(None, joined)
    np.testing.assert_allclose(metric.result(), wanted, rtol=1e-5)
    metric = RecallAtK(3, split=(4, 4), **options)
    metric.update_state(None, joined)
    assert np.isnan(metric.result())


def test_what_is_not_a_number_shows():
    first, second = pairs(9, seed=7)
    for bad in (np.nan, -1.0):
        weight = np.ones(9)
        weight[2] = bad
        assert np.isnan(measured(first, second, (4,), weight))
    for bad in (np.nan, np.inf):
        first[3, 1] = bad
        assert np.isnan(measured(first, second, (5,)))
        assert np.isnan(measured(second, first, (5,)))


def test_more_than_has_place():
    first, second = pairs(20, seed=8)
    with pytest.warns(UserWarning, match="recall_at_3 is NaN.*capacity=19 pairs. Received: 20"):
        assert np.isnan(measured(first, second, (7,), capacity=19))
    metric = RecallAtK(3, capacity=19)
    in_graph = tf.function(metric.__call__)
    assert np.isnan(in_graph(None, [tf.constant(first), tf.constant(second)]))
    metric.reset_state()
    metric.update_state(None, [first[:9], second[:9]])
    np.testing.assert_allclose(metric.result(), expected(first[:9], second[:9]), rtol=1e-6)


def test_nothing_seen():
    metric = RecallAtK(3)
    assert float(metric.result()) == 0.0
    metric.update_state(None, [np.ones((0, 3)), np.ones((0, 3))])
    assert float(metric.result()) == 0.0
    assert measured(np.ones((1, 2)), np.ones((1, 2))) == 1.0


def test_blocks_of_a_large_batch_in_a_graph():
    """A batch that is compared in two blocks of 512 rows, the last one not full, under XLA."""
    first, second = pairs(700, seed=9)
    second[3:5] = second[2]
    metric = RecallAtK(3, dtype="float64")
    update = tf.function(lambda x, y: metric.update_state(None, [x, y]), jit_compile=True)
    metric.update_state(None, [first[:1], second[:1]])
    metric.reset_state()
    for rows in (slice(100), slice(100, None)):
        update(tf.constant(first[rows]), tf.constant(second[rows]))
    result = tf.function(metric.result, jit_compile=True)()
    wanted = expected(first, second)
    np.testing.assert_allclose(result, wanted, rtol=1e-12)


def test_fit_and_evaluate():
    """As metrics of a model of Keras, compiled by XLA as Keras likes."""
    x = np.concatenate(pairs(50, 4, seed=12), axis=1).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6)])
    recall, weighted = RecallAtK(3, capacity=50), RecallAtK(3, capacity=50, name="weighted")
    model.compile("sgd", "mse", metrics=[recall], weighted_metrics=[weighted])
    target = np.zeros((50, 6), "float32")
    weight = np.arange(50) % 2.0
    data = (x, target, weight)
    history = model.fit(
        x, target, sample_weight=weight, batch_size=16, verbose=0, validation_data=data
    ).history
    logs = model.evaluate(
        x, target, sample_weight=weight, batch_size=16, verbose=0, return_dict=True
    )
    output = np.split(np.float64(model.predict(x, verbose=0)), 2, axis=1)
    for found in (logs["recall_at_3"], history["val_recall_at_3"][-1]):
        np.testing.assert_allclose(found, expected(*output), rtol=1e-5)
    assert np.isfinite(history["recall_at_3"][-1])
    half = [o[1::2] for o in output]
    np.testing.assert_allclose(logs["weighted"], expected(*half), rtol=1e-5)


X = np.ones((4, 3), "float32")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: RecallAtK(0), "`k` must be an integer >= 1.*k=0"),
        (lambda: RecallAtK(capacity=0), "`capacity` must be an integer >= 1.*capacity=0"),
        (lambda: RecallAtK(direction="up"), "`direction` .*'second_to_first'.*direction='up'"),
        (lambda: RecallAtK()(None, [X, X[:, :2]]), r"one width.*`LinearCCA.project`.*\(3, 2\)"),
        (lambda: RecallAtK()(None, X), "width 3, which has no halves"),
        (lambda: RecallAtK()(None, [X]), "two views.*Received 1"),
        (lambda: RecallAtK()(None, [X.astype(int)] * 2), "floating-point dtype.*int64"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_inputs_that_are_no_pairs_of_arrays():
    x = np.random.default_rng(0).normal(size=(5, 3))
    metric = RecallAtK(1)
    with pytest.raises(ValueError, match="pass arrays"):
        metric.update_state(None, [x.tolist(), x.tolist()])
    for wrong in (np.ones(4), np.ones((5, 2)), np.ones((5, 1, 1))):
        with pytest.raises(ValueError, match=r"shape of the rows, \(5,\)"):
            metric.update_state(None, [x, x], wrong)
    metric.update_state(None, [x, x], [1.0, np.inf, 1.0, 1.0, 1.0])
    assert np.isnan(float(metric.result()))
