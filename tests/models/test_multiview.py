import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import (
    CanonicalCorrelation,
    CCALoss,
    LambdaSchedule,
    ProxCCA,
    ProxGCCA,
    cca_loss,
    gcca_loss,
)
from proxnet_tf.models.multiview import DCCA, DCCAE, MultiviewClassifier
from tests.helpers.layer_checks import assert_same, constructor_arguments

WIDTHS = (7, 5, 6)
CODES = (3, 4, 3)


def make_data(n=120, views=2, seed=0):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 2))
    arrays = [
        (signal @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(n, d))).astype("float32")
        for d in WIDTHS[:views]
    ]
    return arrays, (signal[:, 0] > 0).astype("int64")


def encoders(views=2):
    return [keras.Sequential([Dense(8, activation="tanh"), Dense(d)]) for d in CODES[:views]]


def decoders(views=2):
    return [Dense(d) for d in WIDTHS[:views]]


def predictors(views=2):
    return [Dense(2) for _ in range(views)]


def entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


MODELS = {
    "vanilla": lambda **k: MultiviewClassifier(encoders(), predictors(), method="vanilla", **k),
    "rrm": lambda **k: MultiviewClassifier(encoders(), predictors(), method="rrm", **k),
    "prox": lambda **k: MultiviewClassifier(
        encoders(),
        predictors(),
        lam=0.5,
        inference="moving",
        correlation_weight=0.3,
        monitor=True,
        **k,
    ),
    "dcca": lambda **k: DCCA(encoders(), predictors(), **k),
    "dccae": lambda **k: DCCAE(encoders(), decoders(), predictors(), concatenate_inputs=True, **k),
}


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def train(model, views, labels, epochs=1, **options):
    if isinstance(model, DCCA):
        model.pretrain(views, epochs=2, batch_size=60, verbose=0)
    model.compile("adam", entropy(), metrics=["accuracy"])
    return model.fit(views, labels, epochs=epochs, batch_size=40, verbose=0, **options)


@pytest.mark.parametrize(
    ("name", "predict_with"), [*((name, "average") for name in MODELS), ("prox", 1), ("dcca", 1)]
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
    config = MODELS[name]().get_config()
    assert constructor_arguments(MODELS[name]().__class__).keys() <= config.keys()


def test_exported_model_predicts_the_same(tmp_path):
    views, labels = make_data()
    model = MODELS["prox"]()
    train(model, views, labels)
    model.export(tmp_path / "saved_model")
    artifact = tf.saved_model.load(tmp_path / "saved_model")
    assert_same(artifact.serve(tuple(views)), model.predict(views, verbose=0), 1e-5)


def test_prediction_is_the_average_of_the_logits_or_one_views():
    views, _ = make_data()
    for method in ("vanilla", "rrm", "prox"):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        average = model(views)
        logits = [p(f) for p, f in zip(model.predictors, model.encode(views), strict=True)]
        assert_same(average, (logits[0] + logits[1]) / 2, 1e-6)
        single = MultiviewClassifier(
            model.encoders, model.predictors, method=method, predict_with=1
        )
        assert_same(single(views), logits[1], 1e-6)


def test_prox_puts_the_layer_between_encoders_and_predictors_in_training():
    views, _ = make_data()
    model = MultiviewClassifier(encoders(), predictors(), num_components=2, lam=0.3, epsilon=1e-3)
    codes = model.encode(views)
    moved = ProxCCA(2, lam=0.3, epsilon=1e-3)(codes, training=True)
    assert not np.allclose(moved[0], codes[0], atol=1e-2)
    logits = [p(f) for p, f in zip(model.predictors, moved, strict=True)]
    assert_same(model(views, training=True), (logits[0] + logits[1]) / 2, 1e-5)


def training_loss(model, views, labels, **options):
    model.compile(keras.optimizers.SGD(0.0), entropy())
    return model.fit(views, labels, batch_size=120, verbose=0, **options).history["loss"][0]


@pytest.mark.parametrize("views", [2, 3])
def test_options_of_the_layer(views, tmp_path):
    data, _ = make_data(views=views)
    options = {"tolerance": 1e-3, "solver_device": "CPU:0", "synchronized": True}
    model = MultiviewClassifier(
        encoders(views), predictors(views), num_components=2, prox_options=options
    )
    config = model.prox.get_config()
    assert {name: config[name] for name in options} == options
    assert not np.array_equal(model(data, training=True), model(data))
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert reloaded.prox.get_config()["tolerance"] == 1e-3


def test_correlation_terms_are_added_to_the_loss():
    views, labels = make_data()
    for method, weight in (("rrm", 0.7), ("prox", 0.2)):
        model = MultiviewClassifier(
            encoders(), predictors(), method=method, correlation_weight=weight, epsilon=1e-2
        )
        data_loss = entropy()(labels, model(views, training=True))
        correlation = cca_loss(*model.encode(views), epsilon=1e-2)
        assert correlation < -1.0
        wanted = float(data_loss + weight * correlation)
        np.testing.assert_allclose(training_loss(model, views, labels), wanted, rtol=1e-5)


def test_defaults_of_the_correlation_weight():
    for method, weight in (("rrm", 1.0), ("prox", 0.0), ("vanilla", 0.0)):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        assert model.correlation_weight == weight


@pytest.mark.parametrize("method", ["vanilla", "rrm"])
def test_a_view_index_trains_with_the_mean_of_the_views_losses(method):
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), method=method, predict_with=0)
    logits = model(views, training=True)
    assert [x.shape for x in logits] == [(120, 2), (120, 2)]
    weights = np.random.default_rng(0).random(120).astype("float32")
    losses = [float(entropy()(labels, x, sample_weight=weights)) for x in logits]
    extra = float(cca_loss(*model.encode(views))) if method == "rrm" else 0.0
    found = training_loss(model, views, labels, sample_weight=weights)
    np.testing.assert_allclose(found, np.mean(losses) + extra, rtol=1e-5)


def test_a_view_index_trains_every_view():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), method="vanilla", predict_with=0)
    model(views)
    before = [w.copy() for w in model.get_weights()]
    train(model, views, labels)
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert min(moved) > 1e-4


def test_rows_of_weight_zero_feed_only_the_correlation():
    views, labels = make_data()
    weights = np.zeros(120, "float32")
    weights[:30] = 4.0
    wrong = np.where(weights > 0, labels, 1 - labels)
    for method in ("rrm", "prox"):
        model = MultiviewClassifier(encoders(), predictors(), method=method)
        wanted = entropy()(labels[:30], model(views, training=True)[:30])
        if method == "rrm":
            wanted += cca_loss(*model.encode(views))
        found = training_loss(model, views, wrong, sample_weight=weights)
        np.testing.assert_allclose(found, float(wanted), rtol=1e-5)


def test_lambda_schedule_drives_the_layer_in_the_model():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), lam=0.5, monitor=True)
    model.compile("adam", entropy())
    history = model.fit(
        views, labels, epochs=2, verbose=0, callbacks=[LambdaSchedule(lambda t: 2.0 + t)]
    ).history
    assert history["lam"] == [2.0, 3.0]
    assert float(model.prox.lam) == 3.0
    assert history["correlation"][0] > history["correlation_before"][0]


def test_sequences_with_a_mask_reach_the_layer():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(6, 5, d)).astype("float32") for d in (3, 2)]
    for view in views:
        view[:, 3:] = 0.0
    layers = [keras.Sequential([keras.layers.Masking(), Dense(2)]) for _ in views]
    model = MultiviewClassifier(layers, predictors(), lam=0.2)
    shorter = model([view[:, :3] for view in views], training=True)
    assert_same(model(views, training=True)[:, :3], shorter, 1e-5)


def test_mixed_precision():
    views, labels = make_data()
    model = MultiviewClassifier(encoders(), predictors(), lam=0.5, dtype="mixed_float16")
    assert np.isfinite(train(model, views, labels).history["loss"]).all()
    assert model.prox.compute_dtype == "float16"


def held_out_correlation(model, views):
    metric = CanonicalCorrelation()
    metric.update_state(None, model.encode(views))
    return float(metric.result())


@pytest.mark.parametrize("name", ["dcca", "dccae"])
def test_pretraining_raises_the_correlation_of_the_codes(name):
    views, labels = make_data(600)
    model = MODELS[name]()
    train_views = [x[:400] for x in views]
    test_views = [x[400:] for x in views]
    model.build([x.shape for x in views])
    before = held_out_correlation(model, test_views)
    history = model.pretrain(
        train_views,
        epochs=20,
        batch_size=200,
        optimizer=keras.optimizers.Adam(0.03),
        validation_data=(test_views,),
        verbose=0,
    ).history
    assert history["correlation_loss"][-1] < history["correlation_loss"][0] - 0.1
    assert "val_correlation_loss" in history
    assert held_out_correlation(model, test_views) > before + 0.1
    if name == "dccae":
        assert history["reconstruction_loss"][-1] < 0.5 * history["reconstruction_loss"][0]
    model.compile(keras.optimizers.Adam(0.03), entropy(), metrics=["accuracy"])
    model.fit(train_views, labels[:400], epochs=10, verbose=0)
    assert model.evaluate(test_views, labels[400:], verbose=0)[1] > 0.8


def test_pretraining_objective_of_dccae():
    views, _ = make_data()
    model = DCCAE(encoders(), decoders(), predictors(), reconstruction_weight=0.3, epsilon=1e-2)
    model.build([x.shape for x in views])
    codes = model.encode(views)
    errors = [
        np.mean((x - np.asarray(g(f))) ** 2)
        for x, f, g in zip(views, codes, model.decoders, strict=True)
    ]
    correlation = float(cca_loss(*codes, epsilon=1e-2))
    history = model.pretrain(
        views, optimizer=keras.optimizers.SGD(0.0), batch_size=120, verbose=0
    ).history
    np.testing.assert_allclose(history["reconstruction_loss"][0], sum(errors), rtol=1e-5)
    np.testing.assert_allclose(history["correlation_loss"][0], correlation, rtol=1e-5)
    np.testing.assert_allclose(history["loss"][0], correlation + 0.3 * sum(errors), rtol=1e-5)


@pytest.mark.parametrize("views", [2, 3])
def test_pretraining_leaves_padding_out(views):
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(20, 6, d)).astype("float32") for d in WIDTHS[:views]]
    valid = np.arange(6) < rng.integers(2, 7, (20, 1))
    for view in x:
        view[~valid] = 0.0
    maskers = [keras.Sequential([keras.layers.Masking(), Dense(d)]) for d in CODES[:views]]
    options = dict(num_components=3, epsilon=0.1, reconstruction_weight=0.5)
    model = DCCAE(maskers, decoders(views), predictors(views), **options)
    model.build([v.shape for v in x])
    frames = [v[valid] for v in x]
    codes = [c.numpy()[valid] for c in model.encode(x)]
    correlation = cca_loss(*codes, 3, 0.1) if views == 2 else gcca_loss(codes, 3, 0.1)
    error = sum(
        np.mean((f - decoder(c)) ** 2)
        for f, c, decoder in zip(frames, codes, model.decoders, strict=True)
    )
    frozen = keras.optimizers.SGD(0.0)
    history = model.pretrain(x, optimizer=frozen, epochs=1, batch_size=20, verbose=0).history
    np.testing.assert_allclose(history["correlation_loss"][0], correlation, rtol=1e-4)
    np.testing.assert_allclose(history["reconstruction_loss"][0], error, rtol=1e-4)


def test_stages_train_only_their_own_weights():
    views, labels = make_data()
    model = DCCAE(encoders(), decoders(), predictors())
    model.build([x.shape for x in views])

    def snapshot():
        groups = (model.encoders, model.decoders, model.predictors)
        return [[w for layer in group for w in layer.get_weights()] for group in groups]

    def moved(before, after):
        return [
            max(np.abs(a - b).max() for a, b in zip(x, y, strict=True)) > 0
            for x, y in zip(before, after, strict=True)
        ]

    start = snapshot()
    model.pretrain(views, verbose=0)
    middle = snapshot()
    assert moved(start, middle) == [True, True, False]
    model.compile("adam", entropy())
    model.fit(views, labels, verbose=0)
    assert moved(middle, snapshot()) == [False, False, True]
    assert len(model.trainable_variables) == 4


def test_pretraining_needs_no_target_and_takes_a_dummy_one():
    views, _ = make_data()
    dummy = np.zeros((120, 1), "float32")
    both = tf.data.Dataset.from_tensor_slices((tuple(views), dummy)).batch(120)
    whole = {"batch_size": 120}
    losses = []
    for arguments in (
        {"x": views, **whole},
        {"x": views, "y": dummy, **whole},
        {"x": both.map(lambda x, y: (x,))},
        {"x": both},
    ):
        keras.utils.set_random_seed(1)
        history = DCCA(encoders(), predictors()).pretrain(**arguments, shuffle=False, verbose=0)
        losses.append(history.history["correlation_loss"][0])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


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


def test_three_views_without_a_correlation():
    views, labels = make_data(views=3)
    model = MultiviewClassifier(encoders(3), predictors(3), method="vanilla")
    train(model, views, labels)
    logits = [p(f) for p, f in zip(model.predictors, model.encode(views), strict=True)]
    assert_same(model(views), sum(logits) / 3, 1e-6)


def test_three_views_pass_through_the_generalised_layer(tmp_path):
    views, labels = make_data(views=3)
    model = MultiviewClassifier(encoders(3), predictors(3), num_components=4, lam=0.5)
    codes = model.encode(views)
    moved = ProxGCCA(4, lam=0.5)(codes, training=True)
    assert not np.allclose(moved[2], codes[2], atol=1e-3)
    logits = [p(f) for p, f in zip(model.predictors, moved, strict=True)]
    assert_same(model(views, training=True), sum(logits) / 3, 1e-5)
    train(model, views, labels)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(reloaded(views), model(views), 1e-6)


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


def test_a_reloaded_model_remembers_that_it_was_pretrained(tmp_path):
    views, labels = make_data()
    model = DCCA(encoders(), predictors())
    model.pretrain(views, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(reloaded.encode(views), model.encode(views), 1e-6)
    reloaded.compile("adam", entropy())
    reloaded.fit(views, labels, verbose=0)


def test_fit_before_pretrain_is_refused():
    views, labels = make_data()
    model = DCCA(encoders(), predictors())
    model.compile("adam", entropy())
    with pytest.raises(ValueError, match="two stages: call `pretrain"):
        model.fit(views, labels, verbose=0)


@pytest.mark.parametrize("name", ["sample_weight", "class_weight"])
def test_pretraining_refuses_weights(name):
    views, _ = make_data()
    with pytest.raises(ValueError, match=f"leave {name} out of `pretrain`"):
        DCCA(encoders(), predictors()).pretrain(views, **{name: np.ones(120)})


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
            lambda: MultiviewClassifier(encoders(), predictors(), prox_options={"lam": 2.0}),
            "'solver_device'.*prox_options={'lam': 2.0}",
        ),
        (
            lambda: MultiviewClassifier(
                encoders(), predictors(), method="rrm", prox_options={"tolerance": 1e-4}
            ),
            "method='rrm'.*tolerance",
        ),
        (
            lambda: MultiviewClassifier(encoders(), predictors(), prox_options={"tolerance": -1}),
            "`tolerance`",
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
