"""Calls: symbolic, eager and in a graph agree; shapes, dtypes, batches of 1 and of 0."""

import typing

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from tests.helpers.layer_checks import (
    assert_finite,
    assert_same,
    flat,
    head,
    length,
    map_inputs,
    policy,
    randomize,
    symbolic,
)
from tests.helpers.registry import LAYERS, layers, takes_views


@pytest.mark.parametrize("name", layers())
def test_symbolic_equals_eager_equals_graph(name):
    case = LAYERS[name]
    layer, call = case.make(), {"training": case.training}
    inputs = symbolic(case.inputs)
    outputs = layer(inputs, **call)
    randomize(layer)
    eager = layer(case.inputs, **call)
    assert_finite(eager)
    tree.assert_same_structure(outputs, eager)
    for spec, value in zip(tree.flatten(outputs), flat(eager), strict=True):
        assert spec.shape == (None, *value.shape[1:]) and spec.dtype == value.dtype
    if not getattr(layer, "stateful", False):
        assert_same(tf.function(lambda x: layer(x, **call))(case.inputs), eager)
        assert_same(keras.Model(inputs, outputs)(case.inputs), eager)

    for kind in (tuple, list):
        shape = map_inputs(lambda x, kind=kind: kind((None, *x.shape[1:])), case.inputs)
        if takes_views(case):
            shape = kind(shape)
        found = layer.compute_output_shape(shape)
        wanted = [(None, *value.shape[1:]) for value in flat(eager)]
        single = len(wanted) == 1
        assert [tuple(s) for s in ([found] if single else found)] == wanted
    spec = layer.compute_output_spec(inputs, **call)
    assert [(s.shape, s.dtype) for s in tree.flatten(spec)] == [
        (s.shape, s.dtype) for s in tree.flatten(outputs)
    ]
    assert len(layer.losses) == case.losses


@pytest.mark.parametrize("name", layers())
def test_dtype_of_the_policy(name):
    """Outputs in the compute dtype and near those in float32, which is what variables have."""
    case = LAYERS[name]
    single = case.make()
    expected = flat(single(case.inputs, training=case.training))
    weights = single.get_weights()
    shape = map_inputs(lambda x: x.shape, case.inputs)
    for dtype in ("mixed_float16", "mixed_bfloat16", "float64"):
        layer = type(single).from_config(_with_dtype(single.get_config(), dtype))
        layer.build(shape)
        layer.set_weights(weights)
        inner = getattr(getattr(layer, "regularizer", None), "weights", [])  # R has its own dtype
        own = {w.dtype for w in layer.weights if not any(w is v for v in inner)}
        assert own <= {"float64" if dtype == "float64" else "float32"}
        kind = keras.DTypePolicy(dtype).compute_dtype
        tolerance = {"float16": case.half, "bfloat16": 4 * case.half, "float64": 1e-3}[kind]
        outputs = layer(case.inputs, training=case.training)
        for value, want in zip(tf.nest.flatten(outputs), expected, strict=True):
            assert value.dtype == kind
            scale = np.abs(want).max()
            np.testing.assert_allclose(tf.cast(value, "float32"), want, atol=tolerance * scale)


def _with_dtype(config, dtype):
    """The configuration with another policy, for the cells inside it too."""
    config = config | {"dtype": dtype}
    if isinstance(config.get("cell"), dict):
        inner = config["cell"]
        config["cell"] = inner | {"config": _with_dtype(inner["config"], dtype)}
    return config


class Named(typing.NamedTuple):
    """Two inputs with names."""

    first: typing.Any
    second: typing.Any


@pytest.mark.parametrize("name", layers(takes_views))
def test_inputs_in_a_tuple(name):
    case = LAYERS[name]
    layer = case.make()
    expected = layer(case.inputs, training=case.training)
    kinds = [tuple] if len(case.inputs) > 2 else [tuple, lambda x: Named(*x)]
    for kind in kinds:
        given = kind(case.inputs)
        found = layer(given, training=case.training)
        assert_same(found, expected)
        spec = layer(kind(symbolic(case.inputs)), training=case.training)
        if isinstance(expected, list):
            assert type(found) is type(spec) is type(given)
        tree.assert_same_structure(spec, found)


@pytest.mark.parametrize("name", layers())
def test_compiled_by_xla_where_supported(name):
    case = LAYERS[name]
    layer = case.make()
    expected = layer(case.inputs)
    assert layer.supports_jit == case.jit
    if case.jit:
        assert_same(tf.function(layer, jit_compile=True)(case.inputs), expected, 1e-4)


@pytest.mark.parametrize("name", layers(lambda case: case.rows == "apart"))
def test_one_example_and_none(name):
    case = LAYERS[name]
    layer = case.make()
    expected = flat(layer(case.inputs, training=case.training))
    for rows in (1, 0) if case.empty else (1,):
        given = map_inputs(lambda x, rows=rows: tf.constant(x[:rows]), case.inputs)
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs = tf.nest.flatten(layer(given, training=case.training))
            total = tf.add_n([tf.reduce_sum(tf.cast(o, "float32") ** 2) for o in outputs])
        assert_same(outputs, [e[:rows] for e in expected], 1e-4)
        gradients = tf.nest.flatten(tape.gradient(total, given))
        assert_finite(gradients)
        assert [g.shape for g in gradients] == [x.shape for x in tf.nest.flatten(given)]


@pytest.mark.parametrize("name", layers(lambda case: case.rows == "together"))
def test_small_batches_of_layers_that_see_the_batch(name):
    case = LAYERS[name]
    layer = case.make()
    layer(case.inputs, training=True)
    for rows in (1, 0):
        given = map_inputs(lambda x, rows=rows: x[:rows], case.inputs)
        for training in (True, False):
            outputs = tf.nest.flatten(layer(given, training=training))
            assert_finite(outputs)
            assert all(len(o) == rows for o in outputs)
    assert_finite(layer.weights)


@pytest.mark.parametrize("name", layers())
def test_inputs_of_another_dtype(name):
    """Floats are cast to the layer's dtype; anything else is cast too, or refused in words."""
    case = LAYERS[name]
    layer = case.make()
    layer(case.inputs, training=case.training)
    whole = map_inputs(lambda x: np.abs(np.round(3 * x)), case.inputs)
    expected = layer(whole, training=case.training)
    for dtype in ("float16", "int32", "uint8"):
        given = map_inputs(lambda x, dtype=dtype: x.astype(dtype), whole)
        try:
            outputs = layer(given, training=case.training)
        except (ValueError, TypeError) as error:
            assert not dtype.startswith("float")
            assert type(error) is ValueError and "float" in str(error) and dtype in str(error)
        else:
            assert_same(outputs, expected, 1e-4)


@pytest.mark.parametrize("name", layers(lambda case: not case.arguments().get("stateful")))
def test_gradients_of_any_size(name):
    """They are linear in that of the output, even if its square is no number of float32."""
    case = LAYERS[name]
    layer = case.make()
    inputs = map_inputs(tf.constant, case.inputs)
    layer(inputs, training=case.training)
    randomize(layer)

    def gradients(size):
        watched = [*tree.flatten(inputs), *(v.value for v in layer.trainable_variables)]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = tree.flatten(layer(inputs, training=case.training))
            factors = [np.linspace(-1, 1, tf.size(y)).astype(y.dtype.name) for y in outputs]
            pairs = zip(factors, outputs, strict=True)
            loss = sum(tf.reduce_sum(size * f * tf.reshape(y, [-1])) for f, y in pairs)
        return [tf.convert_to_tensor(g) / size for g in tape.gradient(loss, watched)]

    ordinary = gradients(1.0)
    for size in (1e-28, 1e25):
        assert_same(gradients(size), ordinary, 1e-4)


HALF = ("ProxCCA, in training", "Prox of a function", "ProxLSTM")


@pytest.mark.parametrize(
    "name, dtype",
    [
        pytest.param(*p.values, dtype, marks=p.marks)
        for dtype, among in (("float32", LAYERS), ("mixed_float16", HALF), ("mixed_bfloat16", ()))
        for p in layers(among=among)
    ],
)
def test_fit_moves_what_is_trainable_and_keeps_everything_finite(name, dtype):
    case = LAYERS[name]
    keras.utils.set_random_seed(0)
    with policy(dtype):
        layer = case.make()
        inputs = symbolic(case.inputs)
        scaled = map_inputs(lambda x: keras.layers.Dense(x.shape[-1])(x), inputs)
        model = keras.Model(inputs, head(layer(scaled)))
    before = model.get_weights()
    # Eager steps cost less than tracing; `run_layer_test` trains layers of one input in a graph.
    eager = dtype != "float32" or not takes_views(case)
    optimizer = keras.optimizers.SGD(0.1)
    if dtype == "mixed_float16":  # with Keras's own first scale gradients overflow: no step
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=16.0)
    model.compile(optimizer, "mse", run_eagerly=eager)
    target = np.ones((length(case.inputs), 1), "float32")
    history = model.fit(case.inputs, target, epochs=1, verbose=0)
    assert_finite([*history.history["loss"], *model.weights])
    assert all(v.dtype == "float32" for v in model.weights)
    for weight, value in zip(model.weights, before, strict=True):
        moved = np.abs(weight - value).max() > 0
        assert moved or not weight.trainable, weight.path
    if dtype == "float32":
        layer.trainable = False
        fixed = layer.get_weights()
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(case.inputs, target, epochs=1, verbose=0)
        assert not layer.trainable_weights
        for weight, value in zip(layer.weights, fixed, strict=True):
            np.testing.assert_array_equal(weight, value, weight.path)


@pytest.mark.parametrize("name", layers(lambda case: case.cls is not keras.layers.RNN))
def test_ragged_and_sparse_inputs_are_refused(name):
    case = LAYERS[name]
    for kind, wrong in (
        ("ragged", lambda x: tf.RaggedTensor.from_tensor(x)),
        ("sparse", lambda x: tf.sparse.from_dense(x)),
    ):
        with pytest.raises(ValueError, match=f"(?i)dense.*{kind}|{kind}.*dense"):
            case.make()(map_inputs(wrong, case.inputs))
