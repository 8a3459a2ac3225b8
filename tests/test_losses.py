import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CCALoss, GCCALoss, cca_loss, gcca_loss
from tests.helpers import multiview_reference as reference
from tests.helpers.data import SIZES, THREE, shared_views


def expected_loss(x, k=3, epsilon=1e-4):
    return reference.cca_value_and_gradient(np.float64(x), SIZES[0], k, epsilon)[0]


def expected_core(x, k, epsilon):
    return reference.gcca_value_and_gradient(np.float64(x), THREE, k, epsilon)[0]


# Through float32 a ridge of 1e-3 would be off by 5e-8 of its size, which shows from 1e-11 on.
@pytest.mark.parametrize(
    "cls, n, k, epsilon",
    [
        (CCALoss, 20, None, 1e-3),
        (CCALoss, 20, 2, 1e-2),
        (CCALoss, 20, 3, 0.0),
        (GCCALoss, 20, 4, 1e-3),
        (GCCALoss, 20, 9, 0.1),
        (GCCALoss, 6, 3, 1e-3),
    ],
)
def test_value_and_gradient(cls, n, k, epsilon):
    two = cls is CCALoss
    sizes, function = (
        (SIZES, lambda views, *rest: cca_loss(*views, *rest)) if two else (THREE, gcca_loss)
    )
    x = shared_views(n, sizes, seed=1)
    objective = "cca" if two else "gcca"
    expected, slope = reference.value_and_gradient(x, sizes, k or 3, epsilon, objective)
    value = function(np.split(x, np.cumsum(sizes)[:-1], 1), k, epsilon)
    np.testing.assert_allclose(value, expected, atol=1e-12)
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = cls(k, epsilon, split=sizes, dtype="float64")(np.zeros(n), variable)
    np.testing.assert_allclose(value, expected, atol=1e-12)
    np.testing.assert_allclose(tape.gradient(value, variable), slope, atol=1e-12)


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


@pytest.mark.parametrize("half", [True, False])
def test_loss_of_halves_or_of_a_list(half):
    x = shared_views(20, (4, 4))
    y_pred = x if half else [x[:, :4], x[:, 4:]]
    expected = reference.cca_value_and_gradient(x, 4, 2, 0.1)[0]
    loss = CCALoss(2, 0.1, dtype="float64")
    np.testing.assert_allclose(loss(None, y_pred), expected, atol=1e-10)


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
