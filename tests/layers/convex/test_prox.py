"""`Prox` and `Regularizer`: closed forms, solved functions, their gradients and their files."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxDropout
from proxnet_tf.layers.convex.activations import prox_of_activation
from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.ops.convex.table import OPERATORS
from tests.helpers.differences import central_difference
from tests.helpers.proximal_references import REFERENCES
from tests.helpers.registry import log_cosh, roughness, spread

RNG = np.random.default_rng(0)


@keras.saving.register_keras_serializable(package="proxnet_tf_tests")
def near_context(z, context):
    """Quadratic pull towards the context: z = (lam x + 3 context) / (lam + 3)."""
    return 1.5 * tf.reduce_sum((z - context) ** 2, axis=-1)


def inputs(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def gradient_of(function, *arguments):
    @tf.function
    def gradients(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = function(*arguments)
        return tape.gradient(loss, arguments)

    return [np.asarray(g) for g in gradients(*map(tf.convert_to_tensor, arguments))]


# Closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"nuclear"}))
def test_every_name_equals_its_reference_in_float16_float32_float64(name):
    options = {
        "elastic_net": {"ridge": 1.0},
        "group_l2": {"group_size": 2},
        "quadratic": {"matrix": np.eye(6) + np.ones((6, 6))},
        "fused_lasso": {"sparsity": 1.0},
        "box": {"low": -1.0, "high": 1.0},
        "l2_ball": {"radius": 1.0},
        "l1_ball": {"radius": 1.0},
        "simplex": {"total": 1.0},
    }.get(name, {})
    x = inputs(3, 6, dtype="float16").astype("float64")  # exact in every dtype
    reference = REFERENCES[name]
    lam = () if OPERATORS[name].is_set else (2.0,)
    expected = np.stack([reference(row, *lam, **options) for row in x])
    for dtype, atol in (("float64", 1e-9), ("float32", 2e-6), ("mixed_float16", 2e-3)):
        layer = Prox(Regularizer(name, **options), lam=2.0, dtype=dtype)
        np.testing.assert_allclose(np.asarray(layer(x), "float64"), expected, atol=atol)


def test_weight_scales_r():
    x = inputs(3, 4)
    heavy = Prox(Regularizer("l1", weight=3.0), lam=6.0)(x)
    np.testing.assert_allclose(heavy, Prox("l1", lam=2.0)(x), atol=1e-6)
    np.testing.assert_allclose(Regularizer("l1", weight=3.0)(x), 3 * np.abs(x).sum(1), rtol=1e-6)


def test_time_and_batch_are_transposes():
    x = inputs(3, 5, 2)
    along = Prox("total_variation", lam=1.5)
    rows = np.swapaxes(along(np.swapaxes(x, 1, 2)), 1, 2)
    np.testing.assert_allclose(Prox("total_variation", lam=1.5, over="time")(x), rows, atol=1e-6)
    batch = np.moveaxis(along(np.moveaxis(x, 0, -1)), -1, 0)
    np.testing.assert_allclose(Prox("total_variation", lam=1.5, over="batch")(x), batch, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param("total_variation", marks=pytest.mark.slow), "l2", "nuclear"]
)
def test_mask_over_time_equals_slicing(name):
    x = inputs(2, 6, 3)
    mask = np.ones((2, 6), bool)
    mask[0, 4:] = False
    layer = Prox(name, lam=1.5, over="time")
    z = layer(x, mask=mask)
    np.testing.assert_allclose(z[:1, :4], layer(x[:1, :4]), atol=1e-6)
    np.testing.assert_allclose(z[1:], layer(x[1:]), atol=1e-6)
    np.testing.assert_array_equal(z[0, 4:], x[0, 4:])
    weights = inputs(2, 6, 3)
    dx = gradient_of(lambda v: tf.reduce_sum(layer(v, mask=mask) * weights), x)[0]
    short = gradient_of(lambda v: tf.reduce_sum(layer(v) * weights[:1, :4]), x[:1, :4])[0]
    np.testing.assert_allclose(dx[:1, :4], short, atol=1e-5)
    np.testing.assert_array_equal(dx[0, 4:], weights[0, 4:])


# Solved functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quadratic_r_is_within_1e_6_of_the_closed_form(dtype):
    root = inputs(6, 6, dtype="float64")
    matrix = root @ root.T / 6
    x = inputs(20, 6, dtype=dtype)
    q = tf.constant(matrix, dtype)
    solved = Prox(
        lambda z: tf.reduce_sum(z * (z @ q), axis=-1) / 2, lam=0.1, dtype=dtype, monitor="all"
    )
    closed = Prox(Regularizer("quadratic", matrix=matrix), lam=0.1, dtype=dtype)
    np.testing.assert_allclose(tf.function(solved)(x), closed(x), atol=1e-6)
    assert solved.status["unsolved"] == 0
    assert solved.status["residual"] < 1e-5


def test_gradient_reaches_the_context_and_a_variable_of_r():
    scale = keras.Variable(np.array([0.5, 1.0, 2.0]), dtype="float64")
    weights = inputs(2, 3, dtype="float64")
    x, context = inputs(2, 3, dtype="float64"), inputs(2, 3, dtype="float64")
    layer = Prox(lambda z, c: tf.reduce_sum(scale * (z - c) ** 2, axis=-1), dtype="float64")
    # z = (x + 2 s c) / (1 + 2 s)
    s = scale.numpy()
    ours = gradient_of(lambda x, c: tf.reduce_sum(layer([x, c]) * weights), x, context)
    np.testing.assert_allclose(ours[0], weights / (1 + 2 * s), atol=1e-8)
    np.testing.assert_allclose(ours[1], weights * 2 * s / (1 + 2 * s), atol=1e-8)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(layer([x, context]) * weights)
    exact = (weights * 2 * (context - x) / (1 + 2 * s) ** 2).sum(axis=0)
    np.testing.assert_allclose(tape.gradient(value, scale.value), exact, atol=1e-8)


@pytest.mark.parametrize("constraint", ["simplex", "nonnegative"])
def test_constrained_solution_and_gradient(constraint):
    root = inputs(4, 4, dtype="float64")
    matrix = tf.constant(root @ root.T / 4)
    weights, x = inputs(3, 4, dtype="float64"), inputs(3, 4, dtype="float64")
    layer = Prox(
        Regularizer("quadratic", matrix=matrix.numpy()),
        lam=0.75,
        constraint=constraint,
        tolerance=1e-11,
        dtype="float64",
        monitor=True,
    )
    compiled = tf.function(lambda v: layer(v))
    z = compiled(x).numpy()
    assert layer.status["unsolved"] == 0
    # Variational inequality of the minimiser: <gradient, y - z> >= 0 for every y in C.
    slope = z @ matrix.numpy() + 0.75 * (z - x)
    project = REFERENCES[constraint]
    for point in 2 * RNG.standard_normal((30, 4)):
        assert ((project(point) - z) * slope).sum(axis=1).min() > -1e-8
    loss = tf.function(lambda v: tf.reduce_sum(layer(v) * weights))
    numeric = central_difference(lambda v: float(loss(tf.constant(v))), [x], 0)
    np.testing.assert_allclose(gradient_of(loss, x)[0], numeric, atol=1e-6)


def test_over_time_and_batch_see_the_whole():
    x = inputs(3, 5, 2, dtype="float64")
    differences = np.diff(np.eye(5), axis=0)
    smoothing = np.linalg.inv(np.eye(5) + differences.T @ differences / 2.0)
    z = Prox(roughness, lam=2.0, over="time", dtype="float64")(x)
    np.testing.assert_allclose(z, np.einsum("st,btf->bsf", smoothing, x), atol=1e-8)
    rows = inputs(4, 3, dtype="float64")
    z = Prox(spread, lam=2.0, over="batch", dtype="float64")(rows)
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(z, rows.mean(axis=0) + centred / 1.5, atol=1e-8)


# Trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Prox("l3"), "must be one of 'l1'"),
        (lambda: Prox(), "needs a `regularizer`"),
        (lambda: Prox(3), "must be a name, a Regularizer, a callable"),
        (lambda: Prox("l1", lam=0.0), "`lam` must be a finite number > 0"),
        (lambda: Prox("l1", over="space"), "'example', 'time', 'batch'"),
        (lambda: Prox("l1", constraint="simplex"), "must be smooth"),
        (lambda: Prox(log_cosh, constraint="l1"), "of a set"),
        (
            lambda: Prox("l1", over="time")(inputs(2, 3, 1), mask=np.ones((2, 4), bool)),
            r"`mask` must have the shape \(batch, time\) of the input, \(2, 3\)",
        ),
        (lambda: Prox(Regularizer("quadratic", matrix=np.eye(3)))(inputs(2, 4)), "3 x 3.*of 4"),
        (lambda: Prox(log_cosh, max_iterations=0), "max_iterations"),
        (lambda: Prox("l1")([inputs(2, 3), inputs(2, 3)]), "takes a context"),
        (lambda: Prox(near_context)([inputs(2, 3)] * 3), "list of 3"),
        (lambda: Prox("nuclear")(inputs(2, 3)), "rows, columns"),
        (
            lambda: Prox("isotonic", over="time")(inputs(2, 3, 1), mask=np.ones((2, 3), bool)),
            "mask",
        ),
        (lambda: Prox(roughness, over="time")(inputs(2, 3, 1), mask=np.ones((2, 3), bool)), "mask"),
        (lambda: Prox(lambda z: z**2)(inputs(2, 3)), r"one number a row.*\(2, 3\)"),
        (lambda: Prox(lambda z: tf.zeros(tf.shape(z)[0]))(inputs(2, 3)), "no gradient"),
        (lambda: Prox(lambda z: tf.cast(log_cosh(z), "float64"))(inputs(2, 3)), "dtype"),
        (lambda: Regularizer("l1", ridge=1.0), "takes the options: none"),
        (lambda: Regularizer("elastic_net", ridge=-1.0), "ridge"),
        (lambda: Regularizer("l2_ball", radius=0.0), "radius"),
        (lambda: Regularizer("group_l2", group_size=0), "group_size"),
        (lambda: Regularizer("box", low=2.0), "must not exceed"),
        (lambda: Regularizer("box", low=float("inf")), "`low` must be a number or -inf"),
        (lambda: Regularizer("box", high=float("-inf")), "`high` must be a number or inf"),
        (lambda: Prox("l1")(tf.constant([["a", "b"]])), "must be numbers"),
        (lambda: Regularizer("quadratic"), "needs `matrix`"),
        (lambda: Regularizer("l1", weight=0.0), "weight"),
        (lambda: prox_of_activation("gelu"), "'sigmoid', 'tanh'"),
        (lambda: ProxDropout(lam=float("nan")), "lam"),
    ],
)
def test_bad_input_says_what_and_how(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "constraint, regularizer",
    [
        (None, lambda z: tf.reduce_sum(tf.math.sqrt(z - 100.0), axis=-1)),  # NaN everywhere
        ("box", lambda z: tf.reduce_sum(0.0 * z, axis=-1) + float("inf")),
    ],
)
def test_nan_or_infinite_r_is_visible_and_ends(regularizer, constraint):
    layer = Prox(regularizer, lam=1.0, constraint=constraint, max_iterations=20, monitor=True)
    x = inputs(3, 4)
    z = tf.function(layer)(x)
    assert layer.status["unsolved"] == 1.0
    np.testing.assert_allclose(z, np.clip(x, -1, 1) if constraint else x, atol=1e-6)


def test_non_convex_r_gives_a_stationary_point_or_says_not():
    layer = Prox(
        lambda z: tf.reduce_sum(tf.cos(3 * z), axis=-1), lam=1.0, dtype="float64", monitor=True
    )
    x = inputs(50, 2, dtype="float64")
    z = tf.function(layer)(x).numpy()
    solved = np.abs(-3 * np.sin(3 * z) + z - x).max(axis=1) < 1e-8
    assert layer.status["unsolved"] == pytest.approx((~solved).mean(), abs=1e-6)
    assert solved.mean() > 0.9


def test_too_few_iterations_are_visible():
    """Eager and unmonitored: said once a layer, and kept in the status."""
    layer = Prox(
        lambda z: tf.reduce_sum(z**4, axis=-1),
        lam=0.01,
        constraint="simplex",
        max_iterations=1,
        name="hasty",
    )
    x = inputs(3, 4)
    with pytest.warns(UserWarning, match="'hasty' left 100% of its proximal problems unsolved"):
        layer(x)
    layer(x)  # warnings are errors: no second one
    assert layer.status["unsolved"] == 1.0
    assert layer.status["iterations"] == 1.0
    assert layer.status["residual"] > 1e-5


# Files -----------------------------------------------------------------------------------------


def test_what_happens_to_an_array_later_changes_nothing():
    matrix, bound = np.eye(3), np.array(0.5)
    forms = [
        Regularizer("quadratic", matrix=matrix),
        Regularizer("box", low=-bound, high=float("inf")),
    ]
    x = tf.constant([[1.0, -2.0, 4.0]])
    expected = [form.prox(x, 1.0).numpy() for form in forms]
    np.testing.assert_array_equal(expected[1], [[1.0, -0.5, 4.0]])
    matrix *= 100.0
    for form, value in zip(forms, expected, strict=True):
        again = Regularizer.from_config(json.loads(json.dumps(form.get_config())))
        np.testing.assert_array_equal(again.prox(x, 1.0), value)


# Activations -----------------------------------------------------------------------------------


def value_and_gradient(function, x):
    @tf.function
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
            loss = tf.reduce_sum(value**2)
        return value, tape.gradient(loss, x)

    return both(tf.constant(x))


@pytest.mark.parametrize(
    "name", ["sigmoid", pytest.param("tanh", marks=pytest.mark.slow), "relu", "hard_tanh"]
)
def test_activation_is_a_proximal_map(name):
    x = np.linspace(-4, 4, 40).reshape(8, 5).astype("float32")
    theirs = value_and_gradient(getattr(keras.activations, name), x)
    layer = Prox(**prox_of_activation(name))
    for a, b in zip(value_and_gradient(layer, x), theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_batch_normalization_is_a_proximal_map():
    x = inputs(8, 5)
    layer = Prox(**prox_of_activation("batch_normalization"), over="batch")
    expected = keras.layers.BatchNormalization(epsilon=1e-12)(x, training=True)
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)
