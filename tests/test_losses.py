import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CCALoss, GCCALoss, cca_loss, gcca_loss
from tests.helpers import multiview_reference as reference
from tests.helpers.data import SIZES, THREE, shared_views


def expected_loss(x, k=3, epsilon=1e-4):
    return reference.cca_value_and_gradient(np.float64(x), SIZES[0], k, epsilon)[0]


@pytest.mark.parametrize("k, epsilon", [(None, 1e-4), (2, 1e-2), (3, 0.0)])
def test_value_and_gradient(k, epsilon):
    x = shared_views(20, SIZES, seed=1)
    direction = np.random.default_rng(2).normal(size=x.shape)
    value = cca_loss(x[:, :3], x[:, 3:], k, epsilon)
    np.testing.assert_allclose(value, expected_loss(x, k or 3, epsilon), atol=1e-10)
    loss = CCALoss(k, epsilon, split=SIZES, dtype="float64")
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = loss(np.zeros(20), variable)
    np.testing.assert_allclose(value, expected_loss(x, k or 3, epsilon), atol=1e-10)
    h = 1e-5
    plus = expected_loss(x + h * direction, k or 3, epsilon)
    minus = expected_loss(x - h * direction, k or 3, epsilon)
    slope = (tape.gradient(value, variable).numpy() * direction).sum()
    np.testing.assert_allclose(slope, (plus - minus) / (2 * h), atol=1e-7)


@pytest.mark.parametrize(
    "dtypes, expected",
    [
        (("float16", "float16"), "float32"),
        (("float32", "float32"), "float32"),
        (("float32", "float64"), "float64"),
    ],
)
def test_dtype_is_that_of_the_wider_view(dtypes, expected):
    x, y = np.split(shared_views(20, SIZES), [3], 1)
    value = cca_loss(x.astype(dtypes[0]), y.astype(dtypes[1]))
    assert value.dtype == expected
    np.testing.assert_allclose(value, expected_loss(np.c_[x, y]), atol=2e-3)


def test_single_row_has_no_correlation():
    assert float(cca_loss(np.ones((1, 3)), np.ones((1, 4)))) == 0.0


@pytest.mark.parametrize("half", [True, False])
def test_loss_of_halves_or_of_a_list(half):
    x = shared_views(20, (4, 4))
    y_pred = x if half else [x[:, :4], x[:, 4:]]
    expected = reference.cca_value_and_gradient(x, 4, 2, 0.1)[0]
    loss = CCALoss(2, 0.1, dtype="float64")
    np.testing.assert_allclose(loss(None, y_pred), expected, atol=1e-10)


def test_second_derivative_is_refused():
    x = tf.constant(shared_views(20, SIZES))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = cca_loss(x[:, :3], x[:, 3:])
        slope = tf.reduce_sum(inner.gradient(value, x) ** 2)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(slope, x)


def test_loss_respects_a_keras_mask():
    rng = np.random.default_rng(3)
    x = rng.normal(1.0, size=(8, 6, 5)).astype("float32")  # zeros would stand out
    valid = rng.random((8, 6)) < 0.7
    x[~valid] = 0.0
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 5)), keras.layers.Masking(), keras.layers.Dense(7, use_bias=False)]
    )
    model.compile("sgd", CCALoss(split=SIZES))
    value = model.evaluate(x, np.zeros((8, 6, 1)), batch_size=8, verbose=0)
    output = model.predict(x, verbose=0)
    np.testing.assert_allclose(value, expected_loss(output[valid]), rtol=1e-5)
    assert abs(value - expected_loss(output.reshape(48, 7))) > 1e-3


@pytest.mark.parametrize("how", ["list", "function"])
def test_masks_of_views_apart_are_found(how):
    rng = np.random.default_rng(4)
    x, y = rng.normal(1.0, size=(8, 6, 3)), rng.normal(1.0, size=(8, 6, 4))
    valid, other = (rng.random((8, 6)) < 0.7 for _ in range(2))
    x[~valid] = y[~other] = 0.0
    views = [keras.layers.Masking(dtype="float64")(v) for v in (x, y)]
    if how == "list":
        value = CCALoss(dtype="float64")(None, views)
    else:
        value = cca_loss(*views)
    both = valid & other
    expected = expected_loss(np.concatenate([x, y], 2)[both])
    np.testing.assert_allclose(value, expected, atol=1e-10)
    without = cca_loss(*views, mask=np.ones((8, 6), bool))
    expected = expected_loss(np.concatenate([x, y], 2).reshape(48, 7))
    np.testing.assert_allclose(without, expected, atol=1e-10)


def test_columns_in_different_units():
    rng = np.random.default_rng(0)
    s = rng.uniform(size=1000)
    x, y = np.c_[1e5 * rng.normal(size=1000), s], np.c_[s, rng.normal(size=1000)]
    np.testing.assert_allclose(cca_loss(x, y, 1, epsilon=0.0), -1.0, atol=1e-9)
    np.testing.assert_allclose(gcca_loss([x, y], 1, epsilon=0.0), 0.0, atol=1e-9)


def test_sample_weight_is_refused():
    x = shared_views(10, SIZES)
    with pytest.raises(ValueError, match="cannot weight its rows"):
        CCALoss(split=SIZES)(np.zeros(10), x, sample_weight=np.ones(10))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, y: cca_loss(x, y, 0), "`num_components` must be an integer >= 1"),
        (lambda x, y: cca_loss(x, y, 4), r"at most min\(d1, d2\) = 3.*num_components=4"),
        (lambda x, y: cca_loss(x, y, epsilon=-1.0), "`epsilon` must be a finite number >= 0"),
        (lambda x, y: cca_loss(x, y[:5]), r"same batch size.*\(20, 3\), \(5, 4\)"),
        (lambda x, y: cca_loss(x, y.astype(int)), "floating-point dtype.*Received: int64"),
        (lambda x, y: CCALoss(-1), "`num_components` must be an integer >= 1.*=-1"),
        (lambda x, y: CCALoss(epsilon=-1.0), "`epsilon` must be a finite number >= 0"),
        (lambda x, y: CCALoss()(None, np.c_[x, y]), "width 7, which has no halves"),
        (lambda x, y: CCALoss(split=(2, 2))(None, np.c_[x, y]), "add up to the width 7"),
        (lambda x, y: gcca_loss([x, y], 8), "at most d_1 .*= 7.*num_components=8"),
        (lambda x, y: gcca_loss([x], 2), "two or more views"),
        (lambda x, y: GCCALoss(None), "`num_components` must be an integer >= 1.*=None"),
    ],
)
def test_bad_input(call, message):
    x, y = np.split(shared_views(20, SIZES), [3], 1)
    with pytest.raises(ValueError, match=message):
        call(x, y)


# --- two or more views ---------------------------------------------------------------------------


def expected_core(x, k, epsilon, sizes=THREE):
    return reference.gcca_value_and_gradient(np.float64(x), sizes, k, epsilon)[0]


@pytest.mark.parametrize("n, k, epsilon", [(20, 4, 1e-3), (20, 9, 0.1), (6, 3, 1e-3)])
def test_common_core_value_and_gradient(n, k, epsilon):
    x = shared_views(n, THREE, seed=6)
    direction = np.random.default_rng(7).normal(size=x.shape)
    value = gcca_loss(np.split(x, [3, 7], 1), k, epsilon)
    np.testing.assert_allclose(value, expected_core(x, k, epsilon), atol=1e-9)
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = GCCALoss(k, epsilon, split=THREE, dtype="float64")(np.zeros(n), variable)
    np.testing.assert_allclose(value, expected_core(x, k, epsilon), atol=1e-9)
    h = 1e-5
    difference = expected_core(x + h * direction, k, epsilon)
    difference -= expected_core(x - h * direction, k, epsilon)
    slope = (tape.gradient(value, variable).numpy() * direction).sum()
    np.testing.assert_allclose(slope, difference / (2 * h), atol=1e-7)


def test_common_core_of_two_views_is_their_correlation():
    x = shared_views(20, SIZES, seed=8)
    views = np.split(x, [3], 1)
    np.testing.assert_allclose(
        gcca_loss(views, 2, 1e-10), 2 + float(cca_loss(*views, 2, 1e-10)), atol=1e-8
    )
    assert float(gcca_loss([v[:1] for v in views], 2)) == 4.0


def test_rows_with_a_missing_view_take_no_part():
    x = shared_views(30, THREE, seed=9)
    present = np.random.default_rng(10).random((3, 30)) < 0.85
    for rows, columns in zip(present, np.split(np.arange(9), [3, 7]), strict=True):
        x[np.ix_(~rows, columns)] = np.nan
    expected = expected_core(x[present.all(0)], 4, 0.1)
    loss = GCCALoss(4, 0.1, split=THREE, nan_is_missing=True, dtype="float64")
    np.testing.assert_allclose(loss(None, x), expected, atol=1e-9)
    assert np.isnan(GCCALoss(4, 0.1, split=THREE)(None, x))


@pytest.mark.parametrize("scale", [1e10, 1e-10])
def test_gradient_in_far_units(scale):
    """Columns of one size, and of sizes that differ by 1e6."""
    rng = np.random.default_rng(0)
    views = rng.normal(size=(12, 5))
    views[:, 3:] += views[:, :2]
    for sizes in (np.full(5, scale), scale * np.array([1.0, 1e-3, 1e3, 1.0, 1e3])):

        def gradient(x):
            x = tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = CCALoss(1, 0.0, (3, 2), dtype=x.dtype.name)(None, x)
            return tape.gradient(value, x).numpy()

        found = gradient((views * sizes).astype("float32")).astype("float64") * sizes
        np.testing.assert_allclose(found, gradient(views), atol=1e-6)
