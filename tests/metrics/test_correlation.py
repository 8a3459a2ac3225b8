import keras
import numpy as np
import pytest

from proxnet_tf import CanonicalCorrelation, CCALoss
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views

SIZES = (3, 4)


def expected_correlations(x, d1=3):
    return reference.linear_correlations(x[:, :d1], x[:, d1:])


def metric_of(x, batches=None, sample_weight=None, **arguments):
    metric = CanonicalCorrelation(**({"split": SIZES, "dtype": "float64"} | arguments))
    weights = np.ones(len(x)) if sample_weight is None else sample_weight
    for part in np.split(np.arange(len(x)), batches or []):
        given = None if sample_weight is None else weights[part]
        metric.update_state(None, x[part], given)
    return metric


@pytest.mark.parametrize("batches", [None, [1, 7, 8, 33], [0, 58]])
def test_epoch_is_all_rows_at_once(batches):
    x = shared_views(60, SIZES, seed=1)
    metric = metric_of(x, batches)
    expected = expected_correlations(x)
    np.testing.assert_allclose(metric.correlations(), expected, atol=1e-10)
    np.testing.assert_allclose(metric.result(), expected.sum(), atol=1e-10)
    assert (np.diff(metric.correlations()) < 0).all()


def test_ridge_and_number_of_components():
    x = shared_views(60, SIZES, seed=2)
    value = -reference.cca_value_and_gradient(x, 3, 2, 0.3)[0]
    np.testing.assert_allclose(metric_of(x, [25], num_components=2, epsilon=0.3).result(), value)


def test_rank_deficient_views_are_compared_in_their_row_spaces():
    x = shared_views(40, (2, 4), seed=6)
    expected = expected_correlations(x, 2)
    deficient = np.c_[x[:, :2], x[:, :2] @ [[1.0], [2.0]], x[:, 2:]]  # rank 2 in three columns
    values = metric_of(deficient, [11]).correlations()
    np.testing.assert_allclose(values, [*expected, 0.0], atol=1e-7)


@pytest.mark.parametrize("column", [True, False])
def test_sample_weight_repeats_rows(column):
    x = shared_views(30, SIZES, seed=7)
    weight = np.random.default_rng(8).integers(0, 4, size=30)
    expected = expected_correlations(np.repeat(x, weight, axis=0))
    x[weight == 0] = np.nan  # takes no part
    given = weight[:, None] if column else weight
    np.testing.assert_allclose(metric_of(x, [13], given).correlations(), expected, atol=1e-10)


@pytest.mark.parametrize("per_step", [True, False])
def test_sample_weight_of_sequences(per_step):
    x = shared_views(40, SIZES, seed=9).reshape(8, 5, 7)
    rng = np.random.default_rng(10)
    weight = rng.integers(0, 3, size=(8, 5) if per_step else (8,))
    rows = np.broadcast_to(weight if per_step else weight[:, None], (8, 5)).ravel()
    metric = metric_of(x, [3], weight)
    expected = expected_correlations(np.repeat(x.reshape(40, 7), rows, axis=0))
    np.testing.assert_allclose(metric.correlations(), expected, atol=1e-10)


def test_large_mean():
    offset = 1e6
    x = shared_views(60, SIZES, seed=12) + offset
    np.testing.assert_allclose(
        metric_of(x, [20, 40]).correlations(), expected_correlations(x - offset), atol=1e-7
    )


def test_list_of_views_and_nested_numbers():
    x = shared_views(20, SIZES, seed=13)
    metric = CanonicalCorrelation(dtype="float64")
    metric.update_state(None, [x[:, :3], x[:, 3:].astype("float32")])
    np.testing.assert_allclose(metric.correlations(), expected_correlations(x), atol=1e-5)
    metric = CanonicalCorrelation(dtype="float64")
    metric.update_state(None, x[:, :4].tolist())
    np.testing.assert_allclose(metric.correlations(), expected_correlations(x[:, :4], 2))


def test_nothing_seen_or_one_row_gives_zero():
    metric = CanonicalCorrelation(2)
    assert float(metric.result()) == 0.0
    metric.update_state(None, np.ones((1, 4), "float32"))
    assert float(metric.result()) == 0.0


def test_respects_a_keras_mask():
    rng = np.random.default_rng(15)
    x = rng.normal(1.0, size=(8, 6, 5)).astype("float32")  # zeros would stand out
    valid = rng.random((8, 6)) < 0.7
    x[~valid] = 0.0
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 5)), keras.layers.Masking(), keras.layers.Dense(4, use_bias=False)]
    )
    model.compile("sgd", CCALoss(), metrics=[CanonicalCorrelation()])
    logs = model.evaluate(x, np.zeros((8, 6, 1)), batch_size=8, verbose=0, return_dict=True)
    output = np.float64(model.predict(x, verbose=0))
    expected = expected_correlations(output[valid], 2).sum()
    np.testing.assert_allclose(logs["canonical_correlation"], expected, rtol=1e-5)
    value = reference.cca_value_and_gradient(output[valid], 2, 2, 1e-4)[0]
    np.testing.assert_allclose(logs["loss"], value, rtol=1e-5)
    assert abs(expected - expected_correlations(output.reshape(48, 4), 2).sum()) > 1e-3


def test_columns_in_different_units():
    rng = np.random.default_rng(0)
    s = rng.uniform(size=1000)
    x = np.c_[1e5 * rng.normal(size=1000), s, s, rng.normal(size=1000)]
    values = metric_of(x, [300], split=(2, 2)).correlations()
    np.testing.assert_allclose(values, expected_correlations(x, 2), atol=1e-9)
    np.testing.assert_allclose(values[0], 1.0, atol=1e-9)


def test_a_constant_column_of_float32_is_rounding():
    x = shared_views(40, SIZES, seed=16).astype("float32")
    x[:, 0] = np.float32(1e4) * (1 + np.finfo("float32").eps * (np.arange(40) % 2))
    x[:, 3] = x[:, 0]
    values = metric_of(x, [13]).correlations()  # the two are one column, but of rounding
    others = np.delete(x, [0, 3], 1)
    np.testing.assert_allclose(values, [*expected_correlations(others, 2), 0.0], atol=1e-3)


def test_missing_rows_take_no_part():
    x = shared_views(30, SIZES, seed=17)
    x[4, 1] = x[20, 5] = np.nan
    used = np.isfinite(x).all(1)
    metric = metric_of(x, [13], nan_is_missing=True)
    np.testing.assert_allclose(metric.correlations(), expected_correlations(x[used]), atol=1e-10)
    assert np.isnan(metric_of(x, [13]).result())


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_a_weight_that_is_not_a_count_gives_nan(bad):
    x = shared_views(30, SIZES, seed=19)
    weight = np.ones(30)
    weight[7] = bad
    assert np.isnan(metric_of(x, [13], weight).result())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: CanonicalCorrelation(0), "`num_components` must be an integer >= 1.*=0"),
        (lambda x: CanonicalCorrelation(epsilon=-1), "`epsilon` must be a finite number >= 0"),
        (lambda x: CanonicalCorrelation()(None, x), "width 7, which has no halves"),
        (lambda x: CanonicalCorrelation(split=(3, 3))(None, x), "add up to the width 7"),
        (
            lambda x: CanonicalCorrelation(4, split=SIZES)(None, x),
            r"at most min\(d1, d2\) = 3.*num_components=4",
        ),
        (
            lambda x: CanonicalCorrelation(split=SIZES)(None, x.astype("int32")),
            "floating-point dtype.*Received: int32",
        ),
        (
            lambda x: metric_of(x, split=None, num_components=None).update_state(None, x[:, :6]),
            "width 7, which has no halves",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(shared_views(20, SIZES))
