"""What the multiview models share: views, masks, missing views, the loss of each view."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import DCCA, DCCAE, CCARegularizer, MultiviewClassifier, ProxCCA, ProxGCCA
from tests.helpers.multiview_models import decoders, encoders, entropy, make_data, predictors
from tests.helpers.registry import PLAIN


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def test_views_in_a_dict_are_refused():
    views, labels = make_data()
    named = {"a": views[0], "b": views[1]}
    model = MultiviewClassifier(encoders(), predictors())
    with pytest.raises(ValueError, match=r"list of 2 views.*dict with the keys"):
        model(named)
    model.compile("adam", entropy(), run_eagerly=True)
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
            lambda: MultiviewClassifier(encoders(), predictors(), "prox"),
            "`between` .*a list of layers or None.*between='prox'",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), [CCARegularizer(), 3]),
            "`between` must be a Keras layer",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), nan_is_missing=1),
            "`nan_is_missing`",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), predict_with=2),
            "one of the 2 views.*predict_with=2",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), predict_with="first"),
            "'average'.*predict_with='first'",
        ),
        (lambda: DCCA(encoders(), predictors(), epsilon=-1.0), "epsilon=-1.0"),
        (lambda: DCCA(encoders(3), predictors(3)), "num_components=None, 3 views"),
        (lambda: DCCA(encoders(), predictors(), num_components=0), "num_components=0"),
        (
            lambda: DCCA(encoders(), predictors(), concatenate_inputs="no"),
            "`concatenate_inputs` .*'no'",
        ),
        (
            lambda: DCCAE(encoders(), decoders(), predictors(), reconstruction_weight=-1.0),
            "reconstruction_weight=-1.0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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
    model = MultiviewClassifier(encoders(), predictors(), ProxCCA(4))
    with pytest.raises(ValueError, match=r"min\(d1, d2\) = 3.*num_components=4"):
        model(views[:2])
    model = MultiviewClassifier(encoders(), [Dense(2), Dense(3)])
    with pytest.raises(ValueError, match=r"outputs of one shape.*\(None, 2\), \(None, 3\)"):
        model(views[:2])
    model = MultiviewClassifier(encoders(), predictors(), keras.layers.Concatenate(name="join"))
    with pytest.raises(ValueError, match=r"return a list of 2 codes.*from the layer 'join'"):
        model(views[:2])


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


@pytest.mark.parametrize("name, predict_with", [("vanilla", "average"), ("concatenated", 0)])
def test_padding_takes_no_part_in_losses_and_metrics(name, predict_with):
    options = dict(predict_with=predict_with)
    parts = maskers(), predictors()
    if name == "vanilla":
        model = MultiviewClassifier(*parts, **options)
    else:
        model = DCCA(*parts, concatenate_inputs=True, **options)
    model.compile(keras.optimizers.SGD(0.0), entropy(), metrics=["accuracy"], run_eagerly=True)
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
    model = MultiviewClassifier(maskers(), predictors())
    model(views)
    inputs = [keras.Input(x.shape[1:]) for x in views]
    logits = [p(f(x)) for p, f, x in zip(model.predictors, model.encoders, inputs, strict=True)]
    functional = keras.Model(inputs, keras.layers.Average()(logits))
    weights = np.random.default_rng(0).random(8)
    losses = []
    for one in (model, functional):
        one.compile("sgd", entropy(), weighted_metrics=["accuracy"], run_eagerly=True)
        for sample_weight in (None, weights[:, None]):  # Keras itself refuses (n,) with a mask
            losses.append(one.evaluate(views, labels, 8, 0, sample_weight=sample_weight))
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-6)
    assert abs(losses[0][0] - losses[1][0]) > 1e-3


@pytest.mark.parametrize("views, predict_with", [(2, 1), (3, "average")])
def test_missing_views(views, predict_with):
    data, labels = make_data(40, views)
    missing = np.random.default_rng(2).random((40, views)) < 0.3
    missing[:3] = True  # nothing is known of these
    holes = [np.where(gap[:, None], np.nan, x) for gap, x in zip(missing.T, data, strict=True)]
    for hole in holes[1:]:
        hole[:, 1:] = np.nan_to_num(hole[:, 1:])  # one NaN is enough
    kind = ProxCCA if views == 2 else ProxGCCA
    options = dict(nan_is_missing=True, predict_with=predict_with)
    layer = kind(2, **PLAIN)
    model = MultiviewClassifier(encoders(views), predictors(views), layer, **options)
    model.compile(keras.optimizers.SGD(0.0), entropy(), run_eagerly=True)
    found = model.fit(holes, labels, batch_size=40, verbose=0).history["loss"][0]

    codes = [np.array(e(np.nan_to_num(x))) for e, x in zip(model.encoders, holes, strict=True)]
    whole = ~missing.any(1)
    moved = kind(2, **PLAIN)([code[whole] for code in codes], training=True)
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
    model.compile("sgd", entropy(), run_eagerly=True)
    model.fit(holes, labels, epochs=1, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_models_as_predictors_get_and_give_masks():
    views, labels, valid = padded()
    networks = [keras.Sequential([Dense(4, activation="relu"), Dense(2)]) for _ in range(2)]
    for network in networks:
        network.supports_masking = True  # else Keras warns, and hands the mask on all the same
    model = MultiviewClassifier(maskers(), networks)
    model.compile("sgd", entropy(), run_eagerly=True)
    found = model.evaluate(views, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(found, loss_over(model(views), labels, valid), rtol=1e-5)
    data, labels = make_data(20)
    data[0][:5] = np.nan
    networks = [
        keras.Sequential([keras.layers.Reshape((2, 2)), keras.layers.Flatten(), Dense(2)])
        for _ in range(2)
    ]
    codes = [Dense(4), Dense(4)]
    model = MultiviewClassifier(codes, networks, nan_is_missing=True)
    logits = [np.asarray(p(f(np.nan_to_num(x)))) for p, f, x in zip(networks, codes, data)]  # noqa: B905
    np.testing.assert_allclose(model(data)[:5], logits[1][:5], atol=1e-6)
    np.testing.assert_allclose(model(data)[5:], (logits[0] + logits[1])[5:] / 2, atol=1e-6)


def test_missing_steps():
    views, labels, valid = padded()
    holes = [x.copy() for x in views]
    holes[0][0, 0, 1] = holes[1][1, 1, 0] = np.nan
    model = MultiviewClassifier(maskers(), predictors(), nan_is_missing=True)
    masks = [code._keras_mask.numpy() for code in model.encode(holes)]
    wanted = [valid.copy(), valid.copy()]
    wanted[0][0, 0] = wanted[1][1, 1] = False
    np.testing.assert_array_equal(masks, wanted)
    model.compile("adam", entropy(), run_eagerly=True)
    assert np.isfinite(model.fit(holes, labels, verbose=0).history["loss"]).all()


class Own(keras.layers.Layer):
    """As users write it: no `build`, no `compute_output_shape`."""

    def __init__(self, units):
        super().__init__()
        self.dense = Dense(units)

    def call(self, x):
        return self.dense(x)


def test_parts_without_an_output_shape():
    views, labels = make_data(24)
    classes = int(labels.max()) + 1
    parts = [Own(3), Own(3)], [Own(classes), Own(classes)]
    model = MultiviewClassifier(*parts)
    model.compile("sgd", entropy(), run_eagerly=True)
    model.fit(views, labels, verbose=0)
    assert len(model.trainable_variables) == 8
    codes = [part.dense(x) for part, x in zip(parts[0], views, strict=True)]
    logits = [part.dense(code) for part, code in zip(parts[1], codes, strict=True)]
    np.testing.assert_allclose(model(views), (logits[0] + logits[1]) / 2, rtol=1e-5)


@pytest.mark.parametrize("make", [MultiviewClassifier, DCCA])
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
    model = MultiviewClassifier(encoders, predictors)
    views = [np.ones((4, 5), "float32"), np.ones((4, 4), "float32")]
    a, b = (p(code) for p, code in zip(predictors, model.encode(views), strict=True))
    found = model(views)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, (tf.cast(a, tf.float32) + b) / 2, atol=1e-6)
