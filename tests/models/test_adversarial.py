"""AdversarialModel against training steps written by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.models.adversarial import (
    AdversarialModel,
    kl_divergence,
    normalize_per_example,
)

STEPS, FEATURES, CLASSES = 6, 3, 4
LENGTHS = np.array([6, 2, 4, 5])


def sequences(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, STEPS, FEATURES)).astype("float32")
    x[np.arange(STEPS)[None] >= LENGTHS[:, None]] = 0.0
    return x, np.array([0, 3, 1, 2])


def make_model(recurrent=None, logits=False, seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((STEPS, FEATURES))
    y = keras.layers.Masking()(inputs)
    y = keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))(y)
    y = (recurrent or keras.layers.LSTM(6, name="recurrent"))(y)
    y = keras.layers.Dense(CLASSES, None if logits else "softmax", name="head")(y)
    return keras.Model(inputs, y)


def compiled(model, learning_rate=0.5, logits=False, **settings):
    adversarial = AdversarialModel(model, from_logits=logits, **settings)
    adversarial.compile(
        keras.optimizers.SGD(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=logits),
        metrics=["accuracy"],
    )
    return adversarial


def by_hand(model, x, y, epsilon, weight, sample_weight, perturb_input):
    """Weights after one step of SGD(0.5) on the adversarial objective, written out."""
    dense, lstm, head = model.layers[2:]
    mask = tf.constant(np.arange(STEPS)[None] < LENGTHS[:, None])
    sample_weight = np.ones(len(x), "float32") if sample_weight is None else sample_weight

    def loss_of(x, r_input, r_lstm):
        z = dense(x + r_input) + r_lstm
        prediction = head(lstm(z, mask=mask))
        losses = keras.losses.sparse_categorical_crossentropy(y, prediction)
        return tf.reduce_mean(losses * sample_weight)

    zero_input, zero_lstm = tf.zeros([4, STEPS, FEATURES]), tf.zeros([4, STEPS, 5])
    with tf.GradientTape() as tape:
        tape.watch([zero_input, zero_lstm])
        loss = loss_of(x, zero_input, zero_lstm)
    gradient = tape.gradient(loss, zero_input if perturb_input else zero_lstm).numpy()
    norms = np.sqrt((gradient**2).sum(axis=(1, 2), keepdims=True))
    r = epsilon * gradient / norms
    assert not r[~mask.numpy()].any()
    r_input, r_lstm = (r, zero_lstm) if perturb_input else (zero_input, r)
    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        decay = 0.01 * tf.reduce_sum(dense.kernel**2)
        loss = loss_of(x, zero_input, zero_lstm)
        total = loss + decay + weight * loss_of(x, r_input, r_lstm)
    gradients = tape.gradient(total, variables)
    return float(total), [v.numpy() - 0.5 * g for v, g in zip(variables, gradients, strict=True)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layer", [None, "recurrent"])
def test_adversarial_step_is_the_one_written_by_hand(layer, weighted):
    x, y = sequences()
    sample_weight = np.array([1.0, 0.5, 2.0, 0.0], "float32") if weighted else None
    if weighted:  # an example of weight 0 has no direction; give it a small weight
        sample_weight[3] = 0.1
    model = make_model()
    adversarial = compiled(model, layer=layer, epsilon=0.3, weight=0.7)
    total, expected = by_hand(model, x, y, 0.3, 0.7, sample_weight, layer is None)
    history = adversarial.fit(x, y, sample_weight=sample_weight, batch_size=4, epochs=1, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], total, rtol=1e-5)
    for found, wanted in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"epsilon": 0.0, "method": "virtual"}])
def test_without_the_second_term_it_is_plain_training(settings):
    x, y = sequences()
    model, plain = make_model(), make_model()
    adversarial = compiled(model, **settings)
    plain.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    for trained in (adversarial, plain):
        trained.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    for found, wanted in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("logits", [False, True])
def test_virtual_direction_is_the_dominant_one(logits):
    """Many power iterations find the top eigenvector of the Hessian of the divergence."""
    x, y = sequences()
    x, y = x[:1], y[:1]
    model = make_model(logits=logits)
    adversarial = compiled(
        model, logits=logits, method="virtual", power_iterations=60, step=0.02, seed=1
    )
    z = tf.constant(x)
    y_pred = model(z)
    direction = adversarial._virtual_direction(lambda r: model(z + r), y_pred, z, None).numpy()

    def slope(r):
        r = tf.constant(r, z.dtype)
        with tf.GradientTape() as tape:
            tape.watch(r)
            total = tf.reduce_sum(kl_divergence(y_pred, model(z + r), logits))
        return tape.gradient(total, r).numpy().ravel()

    steps = 1e-2 * np.eye(x.size).reshape(-1, *x.shape)
    hessian = np.stack([(slope(step) - slope(-step)) / 2e-2 for step in steps])
    top = np.linalg.eigh((hessian + hessian.T) / 2)[1][:, -1]
    assert abs(top @ direction.ravel()) > 0.98


@pytest.mark.slow
def test_virtual_training_lowers_the_divergence():
    x, y = sequences()
    divergences = []
    for weight in (0.0, 20.0):
        model = make_model(seed=3)
        trained = compiled(
            model,
            learning_rate=0.1,
            method="virtual",
            layer="recurrent",
            epsilon=1.0,
            weight=weight,
            seed=2,
        )
        trained.fit(x, y, batch_size=4, epochs=40, verbose=0)
        points = trained._parts()[0](x)
        predict, z, mask = trained._from_points(points, training=False)
        np.testing.assert_array_equal(mask, np.arange(STEPS)[None] < LENGTHS[:, None])
        y_pred = predict(tf.zeros_like(z))
        direction = trained._virtual_direction(predict, y_pred, z, mask)
        divergence = kl_divergence(y_pred, predict(direction), False)
        divergences.append(float(tf.reduce_mean(divergence)))
    assert divergences[1] < 0.5 * divergences[0]


def test_normalize_per_example():
    x = tf.constant(np.random.default_rng(0).normal(size=(4, STEPS, FEATURES)))
    mask = np.arange(STEPS)[None] < np.array([6, 2, 0, 5])[:, None]
    for scale in (1.0, 1e-200):
        unit = normalize_per_example(scale * x, tf.constant(mask)).numpy()
        norms = np.sqrt((unit**2).sum(axis=(1, 2)))
        np.testing.assert_allclose(norms, [1, 1, 0, 1])
        assert not unit[~mask].any()
        np.testing.assert_allclose(unit[0], x[0] / np.linalg.norm(x[0]))
    np.testing.assert_array_equal(normalize_per_example(tf.zeros([2, 3])), np.zeros((2, 3)))


def test_kl_divergence():
    p, q = np.array([[0.2, 0.8], [0.0, 1.0]]), np.array([[0.5, 0.5], [0.3, 0.7]])
    expected = [0.2 * np.log(0.4) + 0.8 * np.log(1.6), -np.log(0.7)]
    np.testing.assert_allclose(kl_divergence(p, q, False), expected, atol=1e-5)
    logits = np.log(np.array([[0.2, 0.8], [0.1, 0.9]])) + 3.0, np.log(q) - 1.0
    second = 0.1 * np.log(0.1 / 0.3) + 0.9 * np.log(0.9 / 0.7)
    np.testing.assert_allclose(kl_divergence(*logits, True), [expected[0], second], rtol=1e-6)


def test_save_fit_metrics_and_callbacks(tmp_path):
    x, y = sequences()
    model = make_model(ProxLSTM(6, name="recurrent", jit_compile=False))
    settings = dict(
        layer="recurrent",
        method="virtual",
        epsilon=0.2,
        weight=0.5,
        power_iterations=2,
        step=0.05,
        seed=3,
    )
    adversarial = compiled(model, **settings)
    assert len(adversarial.trainable_variables) == len(model.trainable_variables)
    config = adversarial.get_config()
    assert {k: config[k] for k in settings} == settings
    path = tmp_path / "best.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="val_accuracy")
    history = adversarial.fit(
        x, y, validation_data=(x, y), epochs=2, batch_size=3, verbose=0, callbacks=[checkpoint]
    )
    assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    reloaded = keras.saving.load_model(path)
    np.testing.assert_allclose(
        reloaded.predict(x, verbose=0), adversarial.predict(x, verbose=0), atol=1e-6
    )
    assert {k: reloaded.get_config()[k] for k in settings} == settings
    reloaded.fit(x, y, epochs=1, verbose=0)
    np.testing.assert_allclose(adversarial(x), model(x))


def test_token_model_is_perturbed_after_its_embedding():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((STEPS,), dtype="int32")
    y = keras.layers.Embedding(10, 4, mask_zero=True)(tokens)
    y = keras.layers.LSTM(5, name="recurrent")(y)
    model = keras.Model(tokens, keras.layers.Dense(CLASSES, "softmax")(y))
    x = np.array([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 9]], "int32")
    trained = compiled(model, layer="recurrent", epsilon=0.5)
    before = [w.copy() for w in model.get_weights()]
    history = trained.fit(x, np.array([1, 2]), epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert min(changed) > 0
    with pytest.raises(ValueError, match="Name a `layer` after the embedding"):
        AdversarialModel(model)


def test_bad_arguments():
    model = make_model()
    for arguments, message in [
        ({"layer": "nowhere"}, "`layer` must be one of"),
        ({"method": "random"}, "`method` must be one of 'adversarial', 'virtual'"),
        ({"epsilon": -1.0}, "`epsilon` must be a finite number >= 0"),
        ({"weight": -1.0}, "`weight` must be a finite number >= 0"),
        ({"step": 0.0}, "`step` must be a finite number > 0"),
        ({"power_iterations": 0}, "`power_iterations` must be an integer >= 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            AdversarialModel(model, **arguments)
    with pytest.raises(ValueError, match="functional or a built sequential"):
        AdversarialModel(keras.Sequential([keras.layers.Dense(2)]))
    inputs = keras.Input((3,))
    bypass = keras.layers.Add()([keras.layers.Dense(3, name="inner")(inputs), inputs])
    hidden = keras.layers.Dense(3, name="first")(inputs)
    skip = keras.layers.Add()([keras.layers.Dense(3, name="second")(hidden), inputs])
    AdversarialModel(keras.Model(inputs, bypass), layer="inner")  # its input is the model's
    with pytest.raises(ValueError, match="must pass through"):
        AdversarialModel(keras.Model(inputs, skip), layer="second")
    with pytest.raises(ValueError, match="must have one input"):
        AdversarialModel(keras.Model(inputs, skip), layer=skip._keras_history.operation.name)
    two = keras.Model([inputs, keras.Input((3,), name="b")], bypass)
    with pytest.raises(ValueError, match="name the `layer`"):
        AdversarialModel(two)
