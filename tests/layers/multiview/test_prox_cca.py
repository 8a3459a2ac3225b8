import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA
from proxnet_tf.ops.multiview.correlation import Correlation
from proxnet_tf.ops.multiview.prox import multiview_prox
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views
from tests.helpers.layer_checks import check_config, check_layer


def layer_of(*args, **kwargs):
    # Compiling for every shape would take most of the time; jit_solver is tested where named.
    return ProxCCA(*args, **({"jit_solver": False} | kwargs))


def views(n, sizes=(4, 6), seed=0, dtype="float32"):
    """Two correlated views as a list."""
    return np.split(shared_views(n, sizes, seed).astype(dtype), [sizes[0]], axis=1)


def expected_prox(x, sizes, lam, k=None, epsilon=1e-4):
    """The proximal map from float64 rows, side by side."""
    correlation = Correlation(sizes, k or min(sizes), epsilon)
    x = tf.constant(np.asarray(x, "float64"))
    return multiview_prox(x, lam, correlation, tolerance=1e-12, jit=False).output.numpy()


def regression(layer, sizes=(4, 6), **compile_options):
    """Encoders, the layer, a head."""
    inputs = [keras.Input((size,)) for size in sizes]
    encoded = [keras.layers.Dense(size)(x) for x, size in zip(inputs, sizes, strict=True)]
    joined = keras.layers.Concatenate()(layer(encoded))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(joined))
    model.compile(**({"optimizer": "sgd", "loss": "mse"} | compile_options))
    return model


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_equals_the_full_problem(solver):
    x = shared_views(40, (4, 6), seed=1)
    layer = layer_of(3, lam=2.0, epsilon=1e-2, solver=solver, dtype="float64")
    outputs = layer(np.split(x, [4], 1), training=True)
    expected, _ = reference.prox(x, (4, 6), 2.0, 3, 1e-2)
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=2e-6)


@pytest.mark.parametrize("gradient", ["implicit", "finite_difference"])
def test_gradient_reaches_the_inputs(gradient):
    x = shared_views(30, (3, 4), seed=2)
    rng = np.random.default_rng(3)
    cotangent, direction = rng.normal(size=(2, *x.shape))
    layer = layer_of(
        lam=2.0, epsilon=1e-2, tolerance=1e-12, gradient=gradient, split=(3, 4), dtype="float64"
    )
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = tf.reduce_sum(cotangent * layer(variable, training=True))
    slope = (tape.gradient(value, variable).numpy() * direction).sum()
    h = 1e-5
    change = expected_prox(x + h * direction, (3, 4), 2.0, epsilon=1e-2)
    change = (change - expected_prox(x - h * direction, (3, 4), 2.0, epsilon=1e-2)) / (2 * h)
    # The paper's step is large: its gradient is good to about 1e-3.
    atol = 1e-6 if gradient == "implicit" else 1e-2
    np.testing.assert_allclose(slope, (change * cotangent).sum(), atol=atol * np.linalg.norm(x))


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4), (5, 5)])
def test_num_components_none_is_the_smaller_width(sizes):
    inputs = views(30, sizes)
    default = np.concatenate(layer_of()(inputs, training=True), 1)
    named = np.concatenate(layer_of(min(sizes))(inputs, training=True), 1)
    fewer = np.concatenate(layer_of(min(sizes) - 1)(inputs, training=True), 1)
    np.testing.assert_array_equal(default, named)
    assert np.abs(default - fewer).max() > 1e-3


def test_split_names_the_widths_of_views_side_by_side():
    x, y = views(30, (3, 7))
    p, q = layer_of()([x, y], training=True)
    joined = layer_of(split=(3, 7))(np.concatenate([x, y], 1), training=True)
    np.testing.assert_allclose(joined, np.concatenate([p, q], 1), atol=1e-6)
    assert np.abs(joined[:, :3] - x).max() > 1e-2


def test_halves_by_default():
    x, y = views(30, (5, 5))
    p, q = layer_of()([x, y], training=True)
    joined = layer_of()(np.concatenate([x, y], 1), training=True)
    np.testing.assert_allclose(joined, np.concatenate([p, q], 1), atol=1e-6)


@pytest.mark.parametrize("inference", ["identity", "batch", "moving"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("structure", [list, tuple])
def test_output_has_the_structure_of_the_input(structure, training, inference):
    inputs = structure(tf.constant(v) for v in views(12))
    outputs = layer_of(inference=inference)(inputs, training=training)
    assert type(outputs) is structure
    assert [o.shape for o in outputs] == [(12, 4), (12, 6)]


def test_symbolic_output_has_the_structure_of_the_input():
    a, b = keras.Input((4,)), keras.Input((6,))
    assert isinstance(layer_of()([a, b]), list)
    assert isinstance(layer_of()((a, b)), tuple)
    assert layer_of()(keras.Input((7, 8))).shape == (None, 7, 8)


def test_time_steps_count_as_rows():
    rows = shared_views(24, (3, 5)).astype("float32")
    flat = layer_of(split=(3, 5))(rows, training=True)
    series = rows.reshape(6, 4, 8)
    steps = layer_of()([series[..., :3], series[..., 3:]], training=True)
    assert [s.shape for s in steps] == [(6, 4, 3), (6, 4, 5)]
    np.testing.assert_allclose(np.concatenate(steps, 2).reshape(24, 8), flat, atol=1e-6)


def test_two_views_stacked_in_one_tensor_are_a_batch_of_two_sequences():
    # Documented: one tensor holds the views side by side, whatever its first axis counts.
    x = shared_views(24, (4, 4)).astype("float32").reshape(2, 12, 8)
    outputs = layer_of()(x, training=True)
    split = layer_of()([x[..., :4], x[..., 4:]], training=True)
    np.testing.assert_allclose(outputs, np.concatenate(split, 2), atol=1e-6)
    assert np.abs(outputs - x).max() > 1e-2


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_jit_solver_changes_nothing_but_rounding(lam):
    inputs = views(30, (4, 4))

    def run(jit):
        layer = ProxCCA(lam=lam, jit_solver=jit)
        x = [tf.constant(v) for v in inputs]
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = sum(tf.reduce_sum(o**3) for o in layer(x, training=True))
        return [value, *tape.gradient(value, x)]

    for with_xla, without in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(with_xla, without, rtol=2e-5, atol=2e-5)


def test_is_deterministic_whatever_batch_came_before():
    layer, inputs = layer_of(lam=0.3), views(30)
    first = layer(inputs, training=True)
    layer(views(30, seed=1), training=True)
    again = layer(inputs, training=True)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lam_is_a_weight_read_at_every_call():
    layer, inputs = layer_of(lam=1.0, split=(4, 6)), shared_views(30, (4, 6)).astype("float32")
    run = tf.function(lambda x: layer(x, training=True))
    assert [w.name for w in layer.weights] == ["lam"] and not layer.trainable_weights
    for lam in (1.0, 0.2, 50.0):
        layer.lam.assign(lam)
        np.testing.assert_allclose(run(inputs), expected_prox(inputs, (4, 6), lam), atol=2e-5)


# --- the contract of a Keras layer ---------------------------------------------------------------


EVERY_ARGUMENT = dict(
    num_components=3,
    lam=0.7,
    epsilon=1e-2,
    solver="lbfgs",
    gradient="finite_difference",
    inference="moving",
    momentum=0.9,
    max_iterations=150,
    tolerance=1e-7,
    monitor=True,
    split=(4, 6),
    jit_solver=False,
    nan_is_missing=True,
    solver_device="CPU:0",
)
# Tracing these takes long; the values of both are tested above.
SLOW = dict(solver="newton", gradient="implicit")


def test_config_holds_every_argument():
    layer = ProxCCA(**EVERY_ARGUMENT)
    check_config(layer, allow_default={"synchronized"})
    assert {name: layer.get_config()[name] for name in EVERY_ARGUMENT} == EVERY_ARGUMENT
    replicas = ProxCCA(synchronized=True)
    assert ProxCCA.from_config(replicas.get_config()).synchronized


@pytest.mark.parametrize(
    "inference, training",
    [
        ("identity", True),
        ("identity", False),
        ("batch", False),
        ("moving", True),
        ("moving", False),
    ],
)
def test_keras_contract(inference, training, tmp_path):
    layer = ProxCCA(**(EVERY_ARGUMENT | SLOW | {"inference": inference}))
    x = shared_views(20, (4, 6)).astype("float32")
    defaults = {*SLOW, "inference", "synchronized"}
    check_layer(layer, x, tmp_path, training=training, atol=1e-4, allow_default=defaults)


def test_keras_contract_of_a_list_of_sequences(tmp_path):
    layer = layer_of(2, lam=3.0, inference="batch", split=(3, 4))
    inputs = [v.reshape(5, 6, -1) for v in views(30, (3, 4))]
    defaults = {*EVERY_ARGUMENT, "synchronized"}
    defaults -= {"num_components", "lam", "inference", "split", "jit_solver"}
    check_layer(layer, inputs, tmp_path, atol=1e-4, allow_default=defaults)


def test_supports_jit_is_off_and_fit_does_not_compile_the_whole_model():
    model = regression(layer_of())
    assert layer_of().supports_jit is False
    assert model.jit_compile is False


def test_reload_keeps_a_changed_lam_and_the_moving_weights(tmp_path):
    layer = layer_of(lam=1.0, inference="moving", momentum=0.5)
    model = regression(layer)
    inputs = views(24)
    model.fit(inputs, np.zeros((24, 1)), verbose=0)
    layer.lam.assign(0.25)
    path = os.path.join(tmp_path, "model.keras")
    model.save(path)
    reloaded = keras.saving.load_model(path)  # without custom_objects
    copy = next(item for item in reloaded.layers if isinstance(item, ProxCCA))
    assert float(copy.lam) == 0.25 and copy.get_config()["lam"] == 1.0
    assert np.abs(np.asarray(copy.moving_map) - np.eye(10)).max() > 1e-2
    for a, b in zip(copy.weights, layer.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    for training in (False, True):
        np.testing.assert_allclose(
            *(m(inputs, training=training) for m in (reloaded, model)), atol=1e-5
        )


def test_fit_evaluate_and_predict():
    rng = np.random.default_rng(0)
    inputs = views(46, (10, 10))  # batches of 20, 20 and 6 rows: fewer than d
    target = rng.normal(size=(46, 1)).astype("float32")
    model = regression(layer_of(lam=2.0, inference="batch"), (10, 10))
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(inputs, target, batch_size=20, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert sum(c > 0 for c in changed) == len(model.trainable_weights)
    predicted = model.predict(inputs, batch_size=20, verbose=0)
    parts = [model([v[i : i + 20] for v in inputs]) for i in (0, 20, 40)]
    np.testing.assert_allclose(predicted, np.concatenate(parts), atol=1e-4)
    loss = model.evaluate(inputs, target, batch_size=20, verbose=0)
    np.testing.assert_allclose(loss, np.mean((predicted - target) ** 2), rtol=1e-4)


def test_sequential_model():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), layer_of(lam=0.5)])
    x = np.random.default_rng(1).normal(size=(20, 5)).astype("float32")
    features = model.layers[0](x)
    np.testing.assert_allclose(
        model(x, training=True), expected_prox(features, (4, 4), 0.5), atol=2e-5
    )
    np.testing.assert_array_equal(model(x, training=False), features)


def test_gradient_of_a_float32_layer_before_it_is_float32():
    dense = keras.layers.Dense(8)
    x = np.random.default_rng(2).normal(size=(20, 5)).astype("float32")
    layer = layer_of(lam=0.5, tolerance=1e-12)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(layer(dense(x), training=True) ** 3)
    kernel, bias = tape.gradient(value, dense.trainable_variables)
    assert kernel.dtype == bias.dtype == tf.float32
    # Moving every row by the bias moves every output by it.
    output = layer(dense(x), training=True).numpy()
    np.testing.assert_allclose(bias, (3 * output**2).sum(0), rtol=1e-4)


@pytest.mark.parametrize(
    "policy, dtype, atol",
    [
        ("float32", "float32", 2e-5),
        ("float64", "float64", 1e-7),
        ("mixed_float16", "float16", 5e-3),
        ("mixed_bfloat16", "bfloat16", 5e-2),
    ],
)
def test_dtype_policies(policy, dtype, atol):
    x, y = views(30, dtype="float64")
    layer = layer_of(lam=0.5, dtype=policy, inference="moving", momentum=0.0)
    expected = expected_prox(np.concatenate([x, y], 1), (4, 6), 0.5)
    for training in (True, False):  # with momentum 0 the moving map is that of the last batch
        outputs = layer([tf.constant(x), tf.constant(y)], training=training)
        assert [keras.backend.standardize_dtype(o.dtype) for o in outputs] == [dtype, dtype]
        joined = tf.cast(tf.concat(outputs, 1), tf.float64)
        np.testing.assert_allclose(joined, expected, atol=atol, rtol=atol)
    wide = "float64" if policy == "float64" else "float32"
    assert {w.dtype for w in layer.weights} == {wide}


def test_mixed_precision_model_trains():
    layer = layer_of(dtype="mixed_float16")
    model = regression(layer)
    history = model.fit(views(24), np.ones((24, 1)), batch_size=8, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize("n", [1, 2, 6, 33])
def test_dynamic_batch_size(n):
    layer = layer_of(lam=0.5, split=(4, 6))
    run = tf.function(
        lambda x: layer(x, training=True), input_signature=[tf.TensorSpec([None, 10], tf.float32)]
    )
    x = shared_views(n, (4, 6)).astype("float32")
    np.testing.assert_allclose(run(x), expected_prox(x, (4, 6), 0.5), atol=2e-5)


def test_hundred_steps_on_noise_stay_finite():
    rng = np.random.default_rng(4)
    inputs = [rng.normal(size=(32, 10)).astype("float32") for _ in range(2)]
    target = rng.normal(size=(32, 1)).astype("float32")
    model = regression(layer_of(lam=0.1, monitor=True), (10, 10), optimizer="adam")
    losses = [model.train_on_batch(inputs, target) for _ in range(100)]
    assert np.isfinite(losses).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert losses[-1] < losses[0]


# --- masks ---------------------------------------------------------------------------------------


def sequences(seed=0, sizes=(3, 4)):
    """Views (6, 5, d_j) and a random mask."""
    x, y = (v.reshape(6, 5, -1) for v in views(30, sizes, seed))
    return x, y, np.random.default_rng(seed).random((6, 5)) < 0.7


def masked_expectation(x, y, valid, lam):
    joined = np.concatenate([x, y], 2).astype("float64")
    joined[valid] = expected_prox(joined[valid], (x.shape[2], y.shape[2]), lam)
    return joined


@pytest.mark.parametrize("which", ["both", "first", "second", "differing", "single tensor"])
def test_mask_equals_slicing(which):
    x, y, valid = sequences()
    other = np.random.default_rng(9).random((6, 5)) < 0.8
    mask = {
        "both": [valid, valid],
        "first": [valid, None],
        "second": [None, valid],
        "differing": [valid, other],
        "single tensor": valid,
    }[which]
    used = valid & other if which == "differing" else valid
    poison = np.where(used[..., None], x, np.nan).astype("float32")  # must take no part
    expected = masked_expectation(x, y, used, 0.5)
    layer = layer_of(lam=0.5, split=(3, 4))
    inputs = tf.concat([poison, y], 2) if which == "single tensor" else [poison, y]
    outputs = layer(inputs, training=True, mask=mask)
    joined = outputs if which == "single tensor" else np.concatenate(outputs, 2)
    np.testing.assert_allclose(joined[used], expected[used], atol=2e-5)
    np.testing.assert_array_equal(joined[~used], np.concatenate([poison, y], 2)[~used])


@pytest.mark.parametrize("how", ["mask", "NaN"])
@pytest.mark.parametrize("gradient", ["implicit", "finite_difference"])
def test_rows_with_a_missing_view_pass_and_the_others_do_not_see_them(how, gradient):
    data = shared_views(40, (3, 4), seed=21)
    x, y = data[:, :3].copy(), data[:, 3:].copy()
    present = np.random.default_rng(3).random((2, 40)) < 0.8
    used = present.all(0)
    x[~present[0]] = y[~present[1]] = np.nan
    options = dict(lam=0.5, gradient=gradient, tolerance=1e-11, jit_solver=False, dtype="float64")
    layer = ProxCCA(nan_is_missing=how == "NaN", **options)
    variables = [tf.constant(x), tf.constant(y)]
    weights = np.random.default_rng(4).normal(size=(40, 7))
    with tf.GradientTape() as tape:
        tape.watch(variables)
        moved = tf.concat(
            layer(variables, training=True, mask=[*present] if how == "mask" else None), 1
        )
    slope = np.concatenate(tape.gradient(moved, variables, weights), 1)
    alone = [tf.constant(x[used]), tf.constant(y[used])]
    with tf.GradientTape() as tape:
        tape.watch(alone)
        expected = tf.concat(ProxCCA(**options)(alone, training=True), 1)
    np.testing.assert_allclose(moved.numpy()[used], expected, atol=1e-10)
    np.testing.assert_array_equal(moved.numpy()[~used], np.c_[x, y][~used])
    expected_slope = np.concatenate(tape.gradient(expected, alone, weights[used]), 1)
    np.testing.assert_allclose(slope[used], expected_slope, atol=1e-8)
    np.testing.assert_array_equal(slope[~used], weights[~used])


def test_a_mask_of_rows_in_a_functional_model():
    data = shared_views(30, (3, 4), seed=22).astype("float32")
    present = np.random.default_rng(5).random(30) < 0.7
    a, b, here = keras.Input((3,)), keras.Input((4,)), keras.Input((), dtype="bool")
    layer = ProxCCA(lam=0.5, inference="batch", jit_solver=False)
    model = keras.Model([a, b, here], layer([a, b], mask=[here, None]))
    moved = np.concatenate(model.predict([data[:, :3], data[:, 3:], present], verbose=0), 1)
    expected = np.concatenate(layer(np.split(data[present], [3], 1), training=True), 1)
    np.testing.assert_allclose(moved[present], expected, atol=1e-5)
    np.testing.assert_array_equal(moved[~present], data[~present])


@pytest.mark.parametrize("inference", ["batch", "moving"])
def test_missing_views_at_test_time_and_in_the_monitor(inference):
    data = shared_views(30, (3, 4), seed=23).astype("float32")
    data[4, 1] = data[9, 5] = np.nan
    used = np.isfinite(data).all(1)
    options = dict(lam=0.5, monitor=True, inference=inference, jit_solver=False)
    layer = ProxCCA(nan_is_missing=True, split=(3, 4), **options)
    without = ProxCCA(split=(3, 4), **options)
    for training in (True, False):
        moved, expected = layer(data, training=training), without(data[used], training=training)
        np.testing.assert_allclose(moved.numpy()[used], expected, atol=1e-5)
        np.testing.assert_array_equal(moved.numpy()[~used], data[~used])
    for one, other in zip(layer.metrics, without.metrics, strict=True):
        np.testing.assert_allclose(one.result(), other.result(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "mask, message",
    [
        (np.ones((30, 2), bool), r"shape \(batch,\).*Received 1 of the ranks \[2\]"),
        ([np.ones(30, bool)] * 3, r"each of the 2 inputs. Received 3"),
    ],
)
def test_bad_masks(mask, message):
    with pytest.raises(ValueError, match=message):
        ProxCCA()([np.ones((30, 3), "float32"), np.ones((30, 4), "float32")], mask=mask)


@pytest.mark.parametrize("inference", ["identity", "batch", "moving"])
def test_wholly_masked_batch_passes_unchanged(inference):
    x, y, _ = sequences()
    layer = layer_of(inference=inference, momentum=0.5)
    layer([x, y], training=True)
    weights = [w.numpy() for w in layer.weights]
    nothing = np.zeros((6, 5), bool)
    variables = [tf.constant(x), tf.constant(y)]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        outputs = layer(variables, training=True, mask=[nothing, None])
        value = tf.reduce_sum(outputs[0] ** 2) + tf.reduce_sum(outputs[1])
    gradient = tape.gradient(value, variables)
    np.testing.assert_array_equal(outputs[0], x)
    np.testing.assert_array_equal(outputs[1], y)
    np.testing.assert_allclose(gradient[0], 2 * x, rtol=1e-6)
    np.testing.assert_array_equal(gradient[1], np.ones_like(y))
    for before, after in zip(weights, layer.weights, strict=True):
        np.testing.assert_array_equal(after, before)


def test_masking_layer_on_one_view():
    x, y, valid = sequences()
    x[~valid] = 0.0
    a, b = keras.Input((5, 3)), keras.Input((5, 4))
    layer = layer_of(lam=0.5, inference="batch")
    model = keras.Model([a, b], layer([keras.layers.Masking()(a), b]))
    expected = masked_expectation(x, y, valid, 0.5)
    np.testing.assert_allclose(np.concatenate(model([x, y]), 2), expected, atol=2e-5)
    np.testing.assert_allclose(
        np.concatenate(model.predict([x, y], verbose=0), 2), expected, atol=2e-5
    )


def test_embedding_masks_on_both_views_train():
    rng = np.random.default_rng(5)
    tokens = [rng.integers(0, 9, size=(8, 5)) for _ in range(2)]
    inputs = [keras.Input((5,), dtype="int32") for _ in range(2)]
    embeddings = [
        keras.layers.Embedding(
            9, d, keras.initializers.RandomNormal(stddev=1.0, seed=d), mask_zero=True
        )
        for d in (3, 4)
    ]
    embedded = [e(x) for e, x in zip(embeddings, inputs, strict=True)]
    outputs = layer_of(lam=0.5)(embedded)
    model = keras.Model(inputs, outputs)
    valid = (tokens[0] != 0) & (tokens[1] != 0)
    assert 0 < valid.sum() < valid.size
    x, y = (np.asarray(e.embeddings)[t] for e, t in zip(embeddings, tokens, strict=True))
    expected = masked_expectation(x, y, valid, 0.5)
    np.testing.assert_allclose(np.concatenate(model(tokens, training=True), 2), expected, atol=2e-5)
    pooled = [keras.layers.GlobalAveragePooling1D()(o) for o in outputs]
    head = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(pooled)))
    head.compile("sgd", "mse")
    assert np.isfinite(head.fit(tokens, np.ones((8, 1)), verbose=0).history["loss"]).all()


# --- inference -----------------------------------------------------------------------------------


def test_identity_returns_the_views():
    for value, view in zip(layer_of()(views(9), training=False), views(9), strict=True):
        np.testing.assert_array_equal(value, view)


def test_batch_solves_at_test_time():
    layer, inputs = layer_of(inference="batch", lam=0.5), views(30)
    expected = expected_prox(np.concatenate(inputs, 1), (4, 6), 0.5)
    np.testing.assert_allclose(np.concatenate(layer(inputs), 1), expected, atol=2e-5)


def moving_reference(batches, momentum, lam, sizes):
    """Moving mean and map by the definition; the map of a batch from its outputs."""
    width = sum(sizes)
    mean, matrix = np.zeros(width), np.eye(width)
    for x in batches:
        x = x.astype("float64")
        centre = x.mean(0)
        moved = expected_prox(x, sizes, lam) - centre
        of_batch = np.linalg.lstsq(x - centre, moved, rcond=None)[0]
        mean = momentum * mean + (1 - momentum) * centre
        matrix = momentum * matrix + (1 - momentum) * of_batch
    return mean, matrix


def test_moving_mean_and_map_follow_the_momentum():
    sizes = (3, 4)
    batches = [(shared_views(20, sizes, seed) + seed).astype("float32") for seed in range(3)]
    layer = layer_of(inference="moving", momentum=0.8, lam=0.5, split=sizes)
    for x in batches:
        layer(x, training=True)
    mean, matrix = moving_reference(batches, 0.8, 0.5, sizes)
    np.testing.assert_allclose(layer.moving_mean, mean, atol=1e-5)
    np.testing.assert_allclose(layer.moving_map, matrix, atol=1e-4)
    # Example by example: a batch of one gets what it gets in any batch.
    test = shared_views(7, sizes, 9).astype("float32")
    expected = mean + (test - mean) @ matrix
    np.testing.assert_allclose(layer(test), expected, atol=1e-4)
    np.testing.assert_allclose(layer(test[:1]), expected[:1], atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, mean, atol=1e-5)  # left alone by inference


def test_moving_inference_leaves_masked_steps_alone():
    x, y, valid = sequences()
    layer = layer_of(inference="moving", momentum=0.0, lam=0.5)
    layer([x, y], training=True, mask=[valid, None])
    outputs = layer([x, y], mask=[valid, None])
    expected = masked_expectation(x, y, valid, 0.5)  # the statistics are those of valid rows
    np.testing.assert_allclose(np.concatenate(outputs, 2), expected, atol=5e-5)


def test_moving_weights_ignore_a_batch_with_nan():
    layer, (x, y) = layer_of(inference="moving", momentum=0.5), views(20)
    layer([x, y], training=True)
    before = [w.numpy() for w in layer.weights]
    x[3, 1] = np.nan
    layer([x, y], training=True)
    for old, new in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(new, old)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["batch of 1", "constant batch"])
def test_nothing_to_correlate_passes_unchanged(case):
    x = shared_views(1, (4, 4)).astype("float32")
    x = np.repeat(x, 5, axis=0) if case == "constant batch" else x
    cotangent = np.random.default_rng(6).normal(size=x.shape).astype("float32")
    layer, variable = layer_of(monitor=True), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        output = layer(variable, training=True)
    np.testing.assert_allclose(output, x, atol=1e-6)
    gradient = tape.gradient(output, variable, tf.constant(cotangent))
    np.testing.assert_allclose(gradient, cotangent, atol=1e-6)
    assert [float(m.result()) for m in layer.metrics[:3]] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("inference", ["identity", "batch", "moving"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_nan(bad, inference):
    x, y = views(20)
    x[3, 1] = bad
    layer = layer_of(inference=inference, monitor=True)
    run = tf.function(lambda inputs: layer(inputs, training=True))
    outputs = run([tf.constant(x), tf.constant(y)])
    assert all(np.isnan(o).all() for o in outputs)
    good = run([tf.constant(v) for v in views(20)])
    assert all(np.isfinite(o).all() for o in good)


def test_one_iteration_shows_in_the_monitor():
    inputs = views(30)
    short = layer_of(lam=0.05, max_iterations=1, monitor=True)
    full = layer_of(lam=0.05, monitor=True)
    outputs = short(inputs, training=True)
    full(inputs, training=True)
    assert all(np.isfinite(o).all() for o in outputs)
    monitor = {m.name: float(m.result()) for m in short.metrics}
    assert monitor["residual"] > 1e-3 > short.tolerance and monitor["iterations"] == 1.0
    monitor = {m.name: float(m.result()) for m in full.metrics}
    assert monitor["residual"] <= full.tolerance and monitor["iterations"] > 1.0


def test_second_derivative_is_refused():
    layer, x = layer_of(), tf.constant(shared_views(12, (3, 3)), tf.float32)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = tf.reduce_sum(layer(x, training=True) ** 3)
        slope = tf.reduce_sum(inner.gradient(value, x) ** 2)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(slope, x)


# --- the monitor ---------------------------------------------------------------------------------


def ridge_correlation(x, sizes, epsilon):
    return -reference.cca_value_and_gradient(np.float64(x), sizes[0], min(sizes), epsilon)[0]


@pytest.mark.parametrize("inference", ["identity", "batch", "moving"])
def test_monitor_reports_means_over_the_batches(inference):
    sizes, epsilon = (3, 4), 1e-2
    x = shared_views(40, sizes).astype("float32")
    layer = layer_of(
        lam=0.5, epsilon=epsilon, inference=inference, momentum=0.0, monitor=True, split=sizes
    )
    model = keras.Sequential([keras.Input((7,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = dict(batch_size=20, verbose=0)
    history = model.fit(x, np.zeros((40, 1)), epochs=2, shuffle=False, **options).history
    batches = [x[:20], x[20:]]
    before = np.mean([ridge_correlation(b, sizes, epsilon) for b in batches])
    moved = [expected_prox(b, sizes, 0.5, epsilon=epsilon) for b in batches]
    after = np.mean([ridge_correlation(b, sizes, epsilon) for b in moved])
    # The layer sees the same batches in both epochs: it comes first.
    np.testing.assert_allclose(history["correlation_before"], [before] * 2, rtol=1e-5)
    np.testing.assert_allclose(history["correlation"], [after] * 2, rtol=1e-5)
    assert after > before + 0.1
    assert np.less_equal(history["residual"], layer.tolerance).all()
    assert np.greater(history["iterations"], 1).all()

    logs = model.evaluate(x, np.zeros((40, 1)), return_dict=True, **options)
    if inference == "moving":
        mean, matrix = layer.moving_mean.numpy(), layer.moving_map.numpy()
        np.testing.assert_allclose(mean, x[20:].mean(0), atol=1e-5)
        mapped = [mean + (b - mean) @ matrix for b in batches]
        after = np.mean([ridge_correlation(b, sizes, epsilon) for b in mapped])
    elif inference == "identity":
        after = before
    np.testing.assert_allclose(logs["correlation_before"], before, rtol=1e-5)
    np.testing.assert_allclose(logs["correlation"], after, rtol=1e-5)
    assert (logs["iterations"] > 0) == (inference == "batch")


def test_no_metrics_without_monitor():
    assert layer_of().metrics == []


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(num_components=0), "`num_components` must be an integer >= 1.*num_components=0"),
        (dict(num_components=2.5), "`num_components` must be an integer.*num_components=2.5"),
        (dict(lam=0.0), "`lam` must be a finite number > 0.*lam=0.0"),
        (dict(lam=-1), "`lam` must be a finite number > 0.*lam=-1"),
        (dict(lam=float("nan")), "`lam` must be a finite number > 0.*lam=nan"),
        (dict(lam="big"), "`lam` must be a finite number > 0.*lam='big'"),
        (dict(epsilon=-1e-9), "`epsilon` must be a finite number >= 0.*epsilon=-1e-09"),
        (dict(solver="sgd"), "`solver` must be one of 'newton', 'lbfgs'.*solver='sgd'"),
        (dict(gradient="auto"), "`gradient` must be one of 'implicit', 'finite.*gradient='auto'"),
        (dict(inference="none"), "must be one of 'identity', 'batch', 'moving'.*inference='none'"),
        (dict(momentum=1.0), r"`momentum` must be in \[0, 1\).*momentum=1.0"),
        (dict(momentum=-0.1), "`momentum` must be a finite number >= 0.*momentum=-0.1"),
        (dict(max_iterations=0), "`max_iterations` must be an integer >= 1.*max_iterations=0"),
        (
            dict(synchronized=True, gradient="finite_difference"),
            "`synchronized=True` needs gradient='implicit'.*'finite_difference'",
        ),
        (dict(solver_device="host"), "such as \"CPU:0\" .*solver_device='host'"),
        (dict(solver_device=0), "name of a device.*solver_device=0"),
        (dict(tolerance=0.0), "`tolerance` must be a finite number > 0.*tolerance=0.0"),
        (dict(split=7), "`split` must be a tuple with the widths.*split=7"),
        (dict(split=(3,)), r"`split` must be a tuple with the widths.*split=\(3,\)"),
        (dict(split=(0, 3)), "`split` must be an integer >= 1.*split=0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        layer_of(**arguments)


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(
    "arguments, shapes, message",
    [
        ({}, [(8, 4)], r"takes two views.*Received 1 of the shapes \[\(.*4\)\]"),
        ({}, [(8, 4)] * 3, "takes two views.*Received 3 of the shapes"),
        ({}, [(8, 4), (9, 5)], r"same batch size.*\(8, 4\), \(9, 5\)"),
        ({}, [(8, 3, 4), (8, 2, 5)], r"same number of time steps.*\(8, 3, 4\), \(8, 2, 5\)"),
        ({}, [(8, 3, 4), (8, 5)], r"all of the rank 2 or all of 3.*\(8, 3, 4\), \(8, 5\)"),
        ({}, [(8,), (8,)], r"all of the rank 2 or all of 3.*\(8,\)"),
        ({}, (8, 7), r"one tensor of the width 7, which has no halves: give `split"),
        (dict(split=(2, 4)), (8, 7), r"add up to the width 7.*split=\(2, 4\)"),
        (dict(split=(2, 4, 1)), (8, 7), r"widths of two views.*split=\(2, 4, 1\)"),
        (dict(split=(2, 4)), [(8, 4), (8, 4)], r"`split`=\(2, 4\) does not match .* \(4, 4\)"),
        (dict(num_components=5), [(8, 4), (8, 6)], r"min\(d1, d2\) = 4.*\(4, 6\).*components=5"),
    ],
)
def test_bad_views(arguments, shapes, message, symbolic):
    rng = np.random.default_rng(0)
    shapes_of = shapes if isinstance(shapes, list) else [shapes]
    if symbolic:
        tensors = [keras.Input(batch_shape=s) for s in shapes_of]
    else:
        tensors = [tf.constant(rng.normal(size=s), tf.float32) for s in shapes_of]
    inputs = tensors if isinstance(shapes, list) else tensors[0]
    with pytest.raises(ValueError, match=message):
        layer_of(**arguments)(inputs)


@pytest.mark.parametrize("symbolic", [True, False])
def test_integer_views(symbolic):
    def view(dtype):
        return keras.Input((4,), dtype=dtype) if symbolic else tf.ones((8, 4), dtype)

    with pytest.raises(ValueError, match="floating-point dtype; cast them first"):
        layer_of()([view("float32"), view("int32")])


@pytest.mark.parametrize("symbolic", [True, False])
def test_dict_of_views(symbolic):
    view = keras.Input((4,)) if symbolic else tf.ones((8, 4))
    with pytest.raises(ValueError, match=r"a dict with the keys \['a', 'b'\]: pass a list"):
        layer_of()({"b": view, "a": view})


@pytest.mark.parametrize("symbolic", [True, False])
def test_other_widths_than_built_for(symbolic):
    layer = layer_of()
    layer(views(8, (4, 4)))
    other = keras.Input((10,)) if symbolic else tf.ones((8, 10))
    with pytest.raises(ValueError, match=r"built for .* widths \(4, 4\). Received: \(5, 5\)"):
        layer(other)


def test_ragged_and_sparse_views():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match="pad ragged views and pass a mask"):
        layer_of()([ragged, ragged])
    steps = tf.RaggedTensor.from_row_lengths(tf.ones((3, 4)), [1, 2])
    with pytest.raises(ValueError, match=r"needs dense views; .* Received a ragged tensor"):
        layer_of()([steps, steps])
    with pytest.raises(ValueError, match=r"needs dense views; .* Received a sparse tensor"):
        layer_of()(tf.sparse.from_dense(tf.ones((3, 4))))
    with pytest.raises(ValueError, match=r"needs dense views; .* Received a sparse tensor"):
        layer_of()(keras.Input((4,), sparse=True))
