import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import (
    CanonicalCorrelation,
    cca_loss,
    gcca_loss,
)
from proxnet_tf.models import DCCA, DCCAE
from tests.helpers.layer_checks import assert_same
from tests.helpers.multiview_models import (
    CODES,
    MODELS,
    WIDTHS,
    decoders,
    encoders,
    entropy,
    make_data,
    predictors,
)

pytestmark = pytest.mark.usefixtures("eager_fit")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


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
    model.fit(train_views, labels[:400], batch_size=100, epochs=15, verbose=0)
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


def test_pretraining_leaves_frozen_layers_alone(tmp_path):
    views, _ = make_data()
    pairs = [
        [keras.Sequential([Dense(4), Dense(width)]) for width in widths]
        for widths in (CODES[:2], WIDTHS[:2])
    ]
    for pair in pairs:
        pair[0].layers[0].trainable = False  # a part
        pair[1].trainable = False  # the whole
    model = DCCAE(*pairs, predictors())
    model.build([x.shape for x in views])
    model.save(tmp_path / "model.keras")
    for trained in (model, keras.saving.load_model(tmp_path / "model.keras")):
        for _ in range(2):
            parts = [layer for f in (*trained.encoders, *trained.decoders) for layer in f.layers]
            before = [part.kernel.numpy() for part in parts]
            trained.pretrain(views, verbose=0)
            moved = [bool(np.any(p.kernel != k)) for p, k in zip(parts, before, strict=True)]
            assert moved == [False, True, False, False] * 2
            assert not any(f.trainable for f in (*trained.encoders, *trained.decoders))


def test_encoders_that_another_model_has_fixed_are_trained():
    views, _ = make_data()
    shared = encoders()
    DCCA(shared, predictors())
    model = DCCA(shared, predictors())
    model.build([x.shape for x in views])
    before = model.encoders[0].get_weights()[0]
    model.pretrain(views, verbose=0)
    assert np.any(model.encoders[0].get_weights()[0] != before)


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


def make(kind):
    keras.utils.set_random_seed(0)
    views, labels = make_data(24)
    model = MODELS[kind]()
    model.compile("sgd", entropy())
    return model, views, labels


@pytest.mark.parametrize("kind", ["dcca", "dccae"])
def test_training_before_pretraining_is_refused(kind):
    model, views, labels = make(kind)
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=r"call `pretrain\(views\)` before `fit`"):
            train(views, labels)
    assert float(model.evaluate(views, labels, verbose=0)) > 0


def test_weights_in_a_batch_of_pretraining_are_refused():
    model, views, labels = make("dcca")
    weights = np.ones(len(labels), "float32")
    batches = tf.data.Dataset.from_tensor_slices((tuple(views), labels, weights)).batch(12)
    with pytest.raises(ValueError, match="leave the third part of a batch out of `pretrain`"):
        model.pretrain(batches, shuffle=False, verbose=0)
    with pytest.raises(ValueError, match="leave the third part of a batch out of `pretrain`"):
        model.pretrain(views, validation_data=(views, labels, weights), verbose=0)


@pytest.mark.parametrize("kind", ["dcca", "dccae"])
def test_callbacks_of_pretraining_save_the_model_and_continue(kind, tmp_path):
    model, views, labels = make(kind)
    model(views)
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss")
    settings = {"batch_size": 12, "shuffle": False, "verbose": 0}
    model.pretrain(views, epochs=2, callbacks=[saved], **settings)
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_allclose(loaded(views), model(views), rtol=1e-6)
    loaded.compile("sgd", entropy())
    loaded.fit(views, labels, verbose=0)  # it counts as pretrained

    def run(epochs, callbacks=()):
        one, _, _ = make(kind)
        one.pretrain(views, epochs=epochs, callbacks=list(callbacks), **settings)
        return one(views)

    whole = run(3)

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        run(3, [keras.callbacks.BackupAndRestore(tmp_path / "backup"), Stop()])
    continued = run(3, [keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    np.testing.assert_allclose(continued, whole, rtol=1e-5)


@pytest.mark.in_graph
@pytest.mark.parametrize("kind", ["dcca", "dccae"])
def test_an_exported_model_takes_views_as_fit_hands_them_on(kind, tmp_path):
    model, views, labels = make(kind)
    model.pretrain(views, verbose=0)  # which builds it
    model.fit(views, labels, verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    served = loaded.serve(tuple(map(tf.constant, views)))
    np.testing.assert_allclose(served, model(views), atol=1e-5)


def test_parts_of_the_loss_are_means_over_the_examples_as_the_loss_is():
    """A last batch of 8 rows beside one of 32."""
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(40, d)).astype("float32") for d in (5, 4)]
    layers = [[keras.layers.Dense(d) for d in widths] for widths in ((3, 3), (5, 4), (2, 2))]
    model = DCCAE(*layers, reconstruction_weight=0.5)
    history = model.pretrain(views, optimizer=keras.optimizers.SGD(0.0), verbose=0).history
    parts = history["correlation_loss"][0] + 0.5 * history["reconstruction_loss"][0]
    assert history["loss"][0] == pytest.approx(parts, abs=1e-5)
