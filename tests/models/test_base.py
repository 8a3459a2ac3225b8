import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import (
    CanonicalCorrelation,
    CCALoss,
    ProxCCA,
    ProxGCCA,
    ProxRNNCell,
    RecallAtK,
    gcca_loss,
)
from proxnet_tf.models import DCCA, DCCAE, METHODS, MultiviewClassifier, multiview_model
from tests.helpers.layer_checks import assert_same, constructor_arguments
from tests.helpers.multiview_models import (
    CODES,
    MODELS,
    decoders,
    encoders,
    entropy,
    make_data,
    predictors,
    train,
)

pytestmark = pytest.mark.usefixtures("eager_fit")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def averaged(name):
    marks = [pytest.mark.in_graph] if name in ("prox", "dcca") else []
    return pytest.param(name, "average", marks=marks)


@pytest.mark.parametrize(
    ("name", "predict_with"), [*map(averaged, MODELS), ("prox", 1), ("dcca", 1)]
)
def test_every_model_fits_predicts_saves_and_reloads(name, predict_with, tmp_path):
    views, labels = make_data()
    model = MODELS[name](predict_with=predict_with)
    history = train(model, views, labels, validation_data=(views, labels)).history
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    wanted = model.predict(views, verbose=0)
    assert wanted.shape == (120, 2)
    loss, accuracy = model.evaluate(views, labels, verbose=0)[:2]
    np.testing.assert_allclose(accuracy, np.mean(wanted.argmax(1) == labels), atol=1e-6)

    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(reloaded) is type(model)
    assert json.dumps(reloaded.get_config()) == json.dumps(model.get_config())
    assert_same(reloaded.predict(views, verbose=0), wanted, 1e-6)
    np.testing.assert_allclose(reloaded.evaluate(views, labels, verbose=0)[0], loss, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_config_returns_every_argument(name):
    options = dict(nan_is_missing=True, predict_with=1, dtype="float64", name="mine")
    model = MODELS[name](**options)
    config = model.get_config()
    for cls in type(model).__mro__[: -len(keras.Model.__mro__)]:
        if cls.__module__.startswith("proxnet_tf") and "__init__" in vars(cls):
            assert constructor_arguments(cls).keys() <= config.keys()
    assert json.dumps(type(model).from_config(config).get_config()) == json.dumps(config)


@pytest.mark.parametrize("method", METHODS)
def test_models_by_name(method):
    model = multiview_model(
        method, encoders(), predictors(), decoders=decoders(), epsilon=0.01, predict_with=1
    )
    assert type(model).__name__ == {"dcca": "DCCA", "dccae": "DCCAE"}.get(
        method, "MultiviewClassifier"
    )
    assert getattr(model, "method", method) == method
    assert (model.epsilon, model.predict_with) == (1e-4 if method == "vanilla" else 0.01, 1)


@pytest.mark.parametrize("name", ["rrm", "dcca", "dccae"])
def test_three_views_with_a_common_core(name, tmp_path):
    views, labels = make_data(views=3)
    options = dict(num_components=4, epsilon=0.1)
    if name == "rrm":
        model = MultiviewClassifier(
            encoders(3), predictors(3), method="rrm", correlation_weight=0.5, **options
        )
    elif name == "dcca":
        model = DCCA(encoders(3), predictors(3), **options)
    else:
        model = DCCAE(encoders(3), decoders(3), predictors(3), **options)
    if name == "rrm":
        core = gcca_loss(model.encode(views), 4, 0.1)
        model.compile("adam", entropy())
        with_core = model.evaluate(views, labels, batch_size=120, verbose=0)
        risk = entropy()(labels, model(views))
        np.testing.assert_allclose(with_core, risk + 0.5 * core, rtol=1e-5)
        train(model, views, labels)
    else:
        before = gcca_loss(model.encode(views), 4, 0.1)
        model.pretrain(views, epochs=20, batch_size=60, verbose=0)
        assert gcca_loss(model.encode(views), 4, 0.1) < before - 0.5
        model.compile("adam", entropy())
        model.fit(views, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(reloaded(views), model(views), 1e-6)


def test_views_in_a_dict_are_refused():
    views, labels = make_data()
    named = {"a": views[0], "b": views[1]}
    model = MultiviewClassifier(encoders(), predictors())
    with pytest.raises(ValueError, match=r"list of 2 views.*dict with the keys"):
        model(named)
    model.compile("adam", entropy())
    with pytest.raises(ValueError, match=r"list of 2 views.*dict with the keys"):
        model.fit(named, labels, verbose=0)
    with pytest.raises(ValueError, match=r"list of 2 views.*dict with the keys"):
        DCCA(encoders(), predictors()).pretrain(named, verbose=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiviewClassifier(encoders()[:1], predictors()), "`encoders` .*two or more"),
        (lambda: MultiviewClassifier(encoders(), predictors(3)), "`predictors` .*2 Keras layers"),
        (lambda: MultiviewClassifier(encoders(), [len, len]), "`predictors` .*Keras layers"),
        (lambda: DCCAE(encoders(), decoders(3), predictors()), "`decoders` .*2 Keras layers"),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), method="dcca"),
            "'vanilla', 'rrm', 'prox'.*method='dcca'",
        ),
        (
            lambda: MultiviewClassifier(
                encoders(), predictors(), method="vanilla", correlation_weight=0.1
            ),
            "correlation_weight=0.1",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), correlation_weight=-1.0),
            "correlation_weight=-1.0",
        ),
        (lambda: MultiviewClassifier(encoders(), predictors(), lam=0.0), "`lam` .*lam=0.0"),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), prox_options={"momentum": 0.5}),
            "pass what it held by itself",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), method="rrm", momentum=0.5),
            "momentum",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), method="vanilla", momentum=0.5),
            "method='vanilla' has no layer that takes momentum",
        ),
        (lambda: MultiviewClassifier(encoders(), predictors(), momentum=-1), "`momentum`"),
        (lambda: MultiviewClassifier(encoders(), predictors(), lam=0.0), "`lam`.*lam=0.0"),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), nan_is_missing=1),
            "`nan_is_missing`",
        ),
        (lambda: multiview_model("dccae", encoders(), predictors()), "needs `decoders`"),
        (lambda: multiview_model("cca", encoders(), predictors()), "method='cca'"),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), predict_with=2),
            "one of the 2 views.*predict_with=2",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), predict_with="first"),
            "'average'.*predict_with='first'",
        ),
        (lambda: DCCA(encoders(), predictors(), epsilon=-1.0), "epsilon=-1.0"),
        (lambda: MultiviewClassifier(encoders(3), predictors(3)), "num_components=None, 3 views"),
        (lambda: DCCA(encoders(3), predictors(3)), "num_components=None, 3 views"),
        (
            lambda: MultiviewClassifier(encoders(3), predictors(3), method="rrm"),
            "num_components=None, 3 views",
        ),
        (lambda: DCCA(encoders(), predictors(), num_components=0), "num_components=0"),
        (
            lambda: DCCAE(encoders(), decoders(), predictors(), reconstruction_weight=-1.0),
            "reconstruction_weight=-1.0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [np.int64(1), tf.constant(1)])
def test_numbers_of_other_libraries_are_saved_as_numbers(value):
    for model in (
        MultiviewClassifier(encoders(), predictors(), num_components=value),
        DCCA(encoders(), predictors(), num_components=value),
    ):
        config = json.loads(json.dumps(model.get_config()))
        assert config["num_components"] == 1
        assert type(model).from_config(config).num_components == 1
    layer = RecallAtK(np.int64(3) if isinstance(value, np.int64) else tf.constant(3))
    assert layer.name == "recall_at_3" and json.dumps(layer.get_config())
    cell = ProxRNNCell(keras.layers.GRUCell(2), state_index=value * 0)
    assert json.dumps(cell.get_config()["state_index"]) == "0"


@pytest.mark.parametrize("value", ["no", None, 1])
def test_flags_are_true_or_false(value):
    with pytest.raises(ValueError, match=f"`concatenate_inputs` .*{value!r}"):
        DCCA(encoders(), predictors(), concatenate_inputs=value)


@pytest.mark.parametrize("method", ["vanilla", "rrm"])
def test_old_options_of_a_layer_that_is_not_there_are_left_out(method):
    config = MultiviewClassifier(encoders(), predictors(), method=method).get_config()
    old = config | {"prox_options": {"momentum": 0.5, "solver": "lbfgs"}}
    assert json.dumps(MultiviewClassifier.from_config(old).get_config()) == json.dumps(config)


@pytest.mark.parametrize(
    ("method", "argument", "value"),
    [
        *[(m, "lam", 2.0) for m in ("rrm", "vanilla")],
        *[(m, "inference", "moving") for m in ("rrm", "vanilla")],
        *[(m, "monitor", True) for m in ("rrm", "vanilla")],
        ("vanilla", "num_components", 1),
        ("vanilla", "epsilon", 0.5),
    ],
)
def test_arguments_of_another_method_are_refused(method, argument, value):
    message = rf"method='{method}' has no layer that takes {argument}.*{value!r}"
    with pytest.raises(ValueError, match=message):
        MultiviewClassifier(encoders(), predictors(), method=method, **{argument: value})
    # Files saved by 0.1.0 may hold such values, which had no effect.
    config = MultiviewClassifier(encoders(), predictors(), method=method).get_config()
    model = MultiviewClassifier.from_config(config | {argument: value})
    assert json.dumps(model.get_config()) == json.dumps(config)


def test_bad_views_are_refused():
    views, _ = make_data(views=3)
    model = MultiviewClassifier(encoders(), predictors())
    with pytest.raises(ValueError, match=r"2 views, one per encoder.* Received: 3"):
        model(views)
    with pytest.raises(ValueError, match=r"one per encoder.* Received: one tensor"):
        model(views[0])
    model = DCCAE(encoders(), decoders()[::-1], predictors())
    with pytest.raises(ValueError, match="decoder must return the shape of its view"):
        model.build([x.shape for x in views[:2]])
    model = MultiviewClassifier(encoders(), predictors(), num_components=4)
    with pytest.raises(ValueError, match=r"min\(d1, d2\) = 3.*num_components=4"):
        model(views[:2])
    model = MultiviewClassifier(encoders(), [Dense(2), Dense(3)])
    with pytest.raises(ValueError, match=r"outputs of one shape.*\(None, 2\), \(None, 3\)"):
        model(views[:2])


def test_a_loss_of_two_outputs_in_fit():
    # Keras hands one output to a loss: the views go side by side in one output of the model.
    views, _ = make_data(400)
    inputs = [keras.Input((x.shape[1],)) for x in views]
    codes = [encoder(x) for encoder, x in zip(encoders(), inputs, strict=True)]
    model = keras.Model(inputs, keras.layers.Concatenate()(codes))
    model.compile(
        keras.optimizers.Adam(0.01),
        loss=CCALoss(2, split=CODES[:2]),
        metrics=[CanonicalCorrelation(2, split=CODES[:2])],
    )
    dummy = np.zeros((400, 1), "float32")
    history = model.fit(views, dummy, epochs=15, batch_size=200, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] - 0.05
    found = history["canonical_correlation"]
    assert found[-1] > found[0] + 0.05


def padded(labels_of_padding=0, seed=5):
    """Two views of sequences, zeros at padded steps, a label a step; which steps are valid."""
    rng = np.random.default_rng(seed)
    valid = np.arange(6) < rng.integers(2, 7, (8, 1))
    views = [rng.normal(size=(8, 6, d)).astype("float32") * valid[..., None] for d in (3, 4)]
    labels = rng.integers(0, 2, (8, 6))
    return views, np.where(valid, labels, labels_of_padding), valid


def maskers():
    return [keras.Sequential([keras.layers.Masking(), Dense(2)]) for _ in range(2)]


def loss_over(logits, labels, valid):
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return float(np.mean(np.asarray(losses)[valid]))


@pytest.mark.parametrize("predict_with", ["average", 0])
@pytest.mark.parametrize("name", ["vanilla", "dcca", "concatenated"])
def test_padding_takes_no_part_in_losses_and_metrics(name, predict_with):
    options = dict(predict_with=predict_with)
    parts = maskers(), predictors()
    if name == "vanilla":
        model = MultiviewClassifier(*parts, method="vanilla", **options)
    else:
        model = DCCA(*parts, concatenate_inputs=name == "concatenated", **options)
    model.compile(keras.optimizers.SGD(0.0), entropy(), metrics=["accuracy"])
    found = []
    for padding in (0, 1):
        views, labels, valid = padded(padding)
        model(views)
        if name != "vanilla":
            model.pretrained.assign(1.0)
        history = model.fit(views, labels, batch_size=8, verbose=0).history
        found.append([history["loss"][0], history["accuracy"][0]])
        found[-1] += model.evaluate(views, labels, batch_size=8, verbose=0)[:2]
    np.testing.assert_allclose(*found, rtol=1e-6)

    features = [np.asarray(code) for code in model.encode(views)]
    if name == "concatenated":
        features = [np.concatenate(pair, -1) for pair in zip(features, views, strict=True)]
    logits = [np.asarray(p(f)) for p, f in zip(model.predictors, features, strict=True)]
    predicted = logits[0] if predict_with == 0 else (logits[0] + logits[1]) / 2
    trained = logits if predict_with == 0 else [predicted]
    fitted = np.mean([loss_over(x, labels, valid) for x in trained])
    accuracy = np.mean((predicted.argmax(-1) == labels)[valid])
    wanted = [fitted, accuracy, loss_over(predicted, labels, valid), accuracy]
    np.testing.assert_allclose(found[1], wanted, rtol=1e-5)


def test_it_evaluates_as_the_functional_model():
    views, labels, _ = padded()
    views[1] = np.concatenate([views[1][:, 1:], views[1][:, :1] * 0], 1)  # other steps are padding
    model = MultiviewClassifier(maskers(), predictors(), method="vanilla")
    model(views)
    inputs = [keras.Input(x.shape[1:]) for x in views]
    logits = [p(f(x)) for p, f, x in zip(model.predictors, model.encoders, inputs, strict=True)]
    functional = keras.Model(inputs, keras.layers.Average()(logits))
    weights = np.random.default_rng(0).random(8)
    losses = []
    for one in (model, functional):
        one.compile("sgd", entropy(), weighted_metrics=["accuracy"])
        for sample_weight in (None, weights[:, None]):  # Keras itself refuses (n,) with a mask
            losses.append(one.evaluate(views, labels, 8, 0, sample_weight=sample_weight))
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-6)
    assert abs(losses[0][0] - losses[1][0]) > 1e-3


def test_the_model_as_a_layer_hands_its_mask_on():
    views, labels, valid = padded()
    inputs = [keras.Input(x.shape[1:]) for x in views]
    part = MultiviewClassifier(maskers(), predictors(), method="vanilla")
    model = keras.Model(inputs, part(inputs))
    model.compile("sgd", entropy())
    found = model.evaluate(views, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, loss_over(model(views), labels, valid), rtol=1e-5)


@pytest.mark.parametrize("predict_with", ["average", 1])
@pytest.mark.parametrize("views", [2, 3])
def test_missing_views(views, predict_with):
    data, labels = make_data(40, views)
    missing = np.random.default_rng(2).random((40, views)) < 0.3
    missing[:3] = True  # nothing is known of these
    holes = [np.where(gap[:, None], np.nan, x) for gap, x in zip(missing.T, data, strict=True)]
    for hole in holes[1:]:
        hole[:, 1:] = np.nan_to_num(hole[:, 1:])  # one NaN is enough
    k = dict(num_components=2)
    model = MultiviewClassifier(
        encoders(views), predictors(views), nan_is_missing=True, predict_with=predict_with, **k
    )
    model.compile(keras.optimizers.SGD(0.0), entropy())
    found = model.fit(holes, labels, batch_size=40, verbose=0).history["loss"][0]

    codes = [np.array(e(np.nan_to_num(x))) for e, x in zip(model.encoders, holes, strict=True)]
    whole = ~missing.any(1)
    layer = (ProxCCA if views == 2 else ProxGCCA)(2)
    moved = layer([code[whole] for code in codes], training=True)
    for code, part in zip(codes, moved, strict=True):
        code[whole] = part
    logits = np.stack([p(code) for p, code in zip(model.predictors, codes, strict=True)])
    present = ~missing.T
    if predict_with == "average":
        kept = np.where(present[..., None], logits, 0.0)
        mean = kept.sum(0) / np.maximum(present.sum(0), 1)[:, None]
        wanted = loss_over(mean, labels, present.any(0))
        assert np.isfinite(model.predict(holes, verbose=0)).all()
    else:
        wanted = np.mean([loss_over(x, labels, p) for x, p in zip(logits, present, strict=True)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    model.compile("sgd", entropy())
    model.fit(holes, labels, epochs=1, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("name", MODELS)
def test_output_shape(name):
    assert MODELS[name]().compute_output_shape([(12, 7), (12, 5)]) == (12, 2)
    model = MODELS[name](predict_with=1)
    inputs = [keras.Input((7,)), keras.Input((5,))]
    assert model(inputs).shape == (None, 2)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_precisions_of_pretraining(dtype):
    old = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        model = MODELS["dccae"]()
        history = model.pretrain(make_data(20)[0], epochs=1, verbose=0).history
    finally:
        keras.config.set_dtype_policy(old)
    assert np.isfinite([values[0] for values in history.values()]).all()


def test_models_as_predictors_get_and_give_masks():
    views, labels, valid = padded()
    networks = [keras.Sequential([Dense(4, activation="relu"), Dense(2)]) for _ in range(2)]
    for network in networks:
        network.supports_masking = True  # else Keras warns, and hands the mask on all the same
    model = MultiviewClassifier(maskers(), networks, method="vanilla")
    model.compile("sgd", entropy())
    found = model.evaluate(views, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, loss_over(model(views), labels, valid), rtol=1e-5)
    data, labels = make_data(20)
    data[0][:5] = np.nan
    networks = [
        keras.Sequential([keras.layers.Reshape((2, 2)), keras.layers.Flatten(), Dense(2)])
        for _ in range(2)
    ]
    codes = [Dense(4), Dense(4)]
    model = MultiviewClassifier(codes, networks, method="vanilla", nan_is_missing=True)
    logits = [np.asarray(p(f(np.nan_to_num(x)))) for p, f, x in zip(networks, codes, data)]  # noqa: B905
    np.testing.assert_allclose(model(data)[:5], logits[1][:5], atol=1e-6)
    np.testing.assert_allclose(model(data)[5:], (logits[0] + logits[1])[5:] / 2, atol=1e-6)


def test_missing_steps():
    views, labels, valid = padded()
    holes = [x.copy() for x in views]
    holes[0][0, 0, 1] = holes[1][1, 1, 0] = np.nan
    model = MultiviewClassifier(maskers(), predictors(), method="vanilla", nan_is_missing=True)
    masks = [code._keras_mask.numpy() for code in model.encode(holes)]
    wanted = [valid.copy(), valid.copy()]
    wanted[0][0, 0] = wanted[1][1, 1] = False
    np.testing.assert_array_equal(masks, wanted)
    model.compile("adam", entropy())
    assert np.isfinite(model.fit(holes, labels, verbose=0).history["loss"]).all()


def test_pretraining_with_missing_views():
    data, _ = make_data(40)
    holes = [x.copy() for x in data]
    holes[0][:5] = np.nan
    holes[1][5:10, 0] = np.nan
    options = dict(reconstruction_weight=0.5, epsilon=0.1, nan_is_missing=True)
    model = DCCAE(encoders(), decoders(), predictors(), **options)
    history = model.pretrain(holes, batch_size=40, verbose=0).history
    assert np.isfinite([v for values in history.values() for v in values]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())


class Own(keras.Model):
    """As users write it: no `build`, no `compute_output_shape`."""

    def __init__(self, units):
        super().__init__()
        self.dense = Dense(units)

    def call(self, x):
        return self.dense(x)


class OwnLayer(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = Dense(units)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize("kind", [Own, OwnLayer])
def test_parts_without_an_output_shape(kind):
    views, labels = make_data(24)
    classes = int(labels.max()) + 1
    parts = [kind(3), kind(3)], [kind(classes), kind(classes)]
    model = MultiviewClassifier(*parts, method="vanilla")
    model.compile("sgd", entropy())
    model.fit(views, labels, verbose=0)
    assert len(model.trainable_variables) == 8
    codes = [part.dense(x) for part, x in zip(parts[0], views, strict=True)]
    logits = [part.dense(code) for part, code in zip(parts[1], codes, strict=True)]
    np.testing.assert_allclose(model(views), (logits[0] + logits[1]) / 2, rtol=1e-5)


@pytest.mark.parametrize("make", [lambda e, p: MultiviewClassifier(e, p, method="vanilla"), DCCA])
def test_a_shared_encoder_stays_shared_in_copies(make):
    encoder, predictor = keras.layers.Dense(3), keras.layers.Dense(2)
    model = make([encoder, encoder], [predictor, predictor])
    views = [np.ones((4, 5), "float32"), np.ones((4, 5), "float32")]
    model(views)
    copy = keras.models.clone_model(model)
    copy(views)
    assert copy.encoders[0] is copy.encoders[1] and copy.encoders[0] is not encoder
    assert copy.predictors[0] is copy.predictors[1]
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(views), model(views))


def test_predictors_of_two_dtypes_are_averaged():
    predictors = [keras.layers.Dense(2, dtype="float16"), keras.layers.Dense(2)]
    encoders = [keras.layers.Dense(3), keras.layers.Dense(3)]
    model = MultiviewClassifier(encoders, predictors, method="vanilla")
    views = [np.ones((4, 5), "float32"), np.ones((4, 4), "float32")]
    a, b = (p(code) for p, code in zip(predictors, model.encode(views), strict=True))
    found = model(views)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, (tf.cast(a, tf.float32) + b) / 2, atol=1e-6)
