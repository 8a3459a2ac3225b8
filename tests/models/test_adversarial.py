"""AdversarialModel against training steps written by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.models.adversarial import AdversarialModel, kl_divergence, normalize_per_example

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


def compiled(model, learning_rate=0.5, logits=False, run_eagerly=True, **settings):
    adversarial = AdversarialModel(model, from_logits=logits, **settings)
    adversarial.compile(
        keras.optimizers.SGD(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=logits),
        metrics=["accuracy"],
        jit_compile=False,
        run_eagerly=run_eagerly,
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


@pytest.mark.parametrize("weighted, layer", [(False, None), (True, "recurrent")])
def test_adversarial_step_is_the_one_written_by_hand(weighted, layer):
    x, y = sequences()
    sample_weight = np.array([1.0, 0.5, 2.0, 0.0], "float32") if weighted else None
    if weighted:  # an example of weight 0 has no direction; give it a small weight
        sample_weight[3] = 0.1
    model = make_model()
    adversarial = compiled(model, layer=layer, epsilon=0.3, weight=0.7, run_eagerly=weighted)
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
    plain.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", run_eagerly=True)
    for trained in (adversarial, plain):
        trained.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    for found, wanted in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


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
    x = np.array([[[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[-1, 1], [1, 1]]])
    expected = [[[0.6, 0], [0, 0.8]], [[0, 0], [0, 0]], [[-0.5, 0.5], [0.5, 0.5]]]
    for scale in (7e37, 7e-36):  # near the ends of the range of float32
        found = normalize_per_example(tf.constant(x * scale, tf.float32))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_kl_divergence():
    p, q = np.array([[0.2, 0.8], [0.0, 1.0]]), np.array([[0.5, 0.5], [0.3, 0.7]])
    expected = [0.2 * np.log(0.4) + 0.8 * np.log(1.6), -np.log(0.7)]
    np.testing.assert_allclose(kl_divergence(p, q, False), expected, atol=1e-5)
    logits = np.log(np.array([[0.2, 0.8], [0.1, 0.9]])) + 3.0, np.log(q) - 1.0
    second = 0.1 * np.log(0.1 / 0.3) + 0.9 * np.log(0.9 / 0.7)
    np.testing.assert_allclose(kl_divergence(*logits, True), [expected[0], second], rtol=1e-6)


def test_kl_divergence_of_classes_that_are_ruled_out():
    infinite = -np.inf
    p, q = tf.constant([[1.0, 2.0, infinite]]), tf.constant([[1.5, 2.0, infinite]])
    two = kl_divergence(p[:, :2], q[:, :2], True)
    with tf.GradientTape() as tape:
        tape.watch(q)
        found = kl_divergence(p, q, True)
    np.testing.assert_allclose(found, two, rtol=1e-6)
    np.testing.assert_allclose(found, [0.026], atol=1e-3)
    gap = 1 / (1 + np.exp(0.5)) - 1 / (1 + np.exp(1.0))  # softmax(q) - softmax(p), first class
    np.testing.assert_allclose(tape.gradient(found, q), [[gap, -gap, 0.0]], atol=1e-6)
    assert kl_divergence(p[:, ::-1], q, True).numpy() == np.inf
    np.testing.assert_allclose(
        kl_divergence(np.float16([[0.0, -5e4]]), np.float16([[0.0, -6e4]]), True), 0.0
    )


def one_output(kind):
    """A model, the layer to perturb and its inputs: no mask reaches the layer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 5, 3)).astype("float32")
    dense = keras.layers.Dense(2)
    if kind == "recurrent":
        recurrent = keras.layers.LSTM(4, name="r")
        return keras.Sequential([keras.Input((5, 3)), recurrent, dense]), "r", x
    if kind == "convolution":
        layers = [keras.layers.Conv1D(4, 2), keras.layers.Flatten(name="r"), dense]
        return keras.Sequential([keras.Input((5, 3)), *layers]), "r", x
    if kind == "tokens":
        layers = [keras.layers.Embedding(7, 4), keras.layers.GRU(4, name="r"), dense]
        tokens = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
        return tokens, "r", rng.integers(0, 7, (8, 5))
    inputs = [keras.Input((5, 3), name="a"), keras.Input((2,), name="b")]
    pooled = keras.layers.GlobalAveragePooling1D()(inputs[0])
    joined = keras.layers.Concatenate()([pooled, inputs[1]])
    outputs = dense(keras.layers.Dense(4, name="r")(joined))
    arrays = [x, rng.normal(size=(8, 2)).astype("float32")]
    if kind == "dictionary":
        model = keras.Model({"a": inputs[0], "b": inputs[1]}, {"out": outputs})
        return model, "r", {"a": arrays[0], "b": arrays[1]}
    return keras.Model(inputs, outputs), "r", arrays


@pytest.mark.parametrize(
    "kind, method",
    [
        ("recurrent", "virtual"),
        ("convolution", "adversarial"),
        ("tokens", "virtual"),
        ("two inputs", "adversarial"),
        ("dictionary", "adversarial"),
    ],
)
def test_a_layer_that_no_mask_reaches(kind, method):
    keras.utils.set_random_seed(0)
    base, layer, x = one_output(kind)
    labels = np.arange(8) % 2
    y = {"out": labels} if kind == "dictionary" else labels
    plain = keras.models.clone_model(base)
    plain.set_weights(base.get_weights())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = AdversarialModel(base, layer=layer, method=method, from_logits=True, weight=0.0)
    results = []
    for trained in (model, plain):
        trained.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True)
        # batches of different sizes count by their rows
        history = trained.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0).history
        results.append([*history["loss"], trained.evaluate(x, y, verbose=0)])
    np.testing.assert_allclose(*results, rtol=1e-5)
    model = AdversarialModel(base, layer=layer, method=method, from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
    above = model.fit(x, y, batch_size=8, verbose=0).history["loss"][0]
    assert above > model.evaluate(x, y, batch_size=8, verbose=0) + 1e-3


def steps_model():
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input((None, FEATURES)),
            keras.layers.Masking(),
            keras.layers.Dense(5, "tanh"),
            keras.layers.LSTM(6, return_sequences=True, name="recurrent"),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )


def fitted_loss(model, x, y, sample_weight=None, **settings):
    """The objective, without a change of the weights."""
    adversarial = compiled(model, learning_rate=0.0, **settings)
    options = dict(batch_size=len(x), verbose=0, sample_weight=sample_weight)
    return adversarial.fit(x, y, **options).history["loss"][0]


@pytest.mark.parametrize("method, layer", [("adversarial", "recurrent"), ("virtual", None)])
def test_masked_steps_take_no_part(method, layer, monkeypatch):
    # The random start of the power iteration, the same for all lengths.
    monkeypatch.setattr(keras.random, "normal", lambda shape, dtype, seed: tf.ones(shape, dtype))
    x, _ = sequences()
    valid = np.arange(STEPS) < LENGTHS[:, None]
    labels = np.where(valid, np.random.default_rng(0).integers(0, CLASSES, (4, STEPS)), 0)
    longer = np.concatenate([x, np.zeros((4, 20, FEATURES), "float32")], 1)
    more = np.concatenate([labels, np.full((4, 20), 3)], 1)
    settings = dict(method=method, layer=layer, power_iterations=3, epsilon=0.5)
    model = steps_model()
    plain = fitted_loss(model, x, labels, method=method, layer=layer, weight=0.0)
    prediction = np.asarray(model(x))
    rows, steps = np.nonzero(valid)
    wanted = -np.log(prediction[rows, steps, labels[rows, steps]]).mean()
    np.testing.assert_allclose(plain, wanted, rtol=1e-5)
    short = fitted_loss(model, x, labels, **settings)
    assert short > plain + 1e-4
    np.testing.assert_allclose(fitted_loss(model, longer, more, **settings), short, rtol=1e-5)


@pytest.mark.parametrize("method", ["adversarial", "virtual"])
def test_sample_weights_of_every_shape(method):
    weights = np.array([0.2, 1.0, 3.0, 0.5], "float32")
    x, y = sequences()
    settings = dict(method=method, layer="recurrent", seed=3)
    model = make_model()
    one = fitted_loss(model, x, y, weights, **settings)
    np.testing.assert_allclose(fitted_loss(model, x, y, weights[:, None], **settings), one)
    assert abs(one - fitted_loss(model, x, y, **settings)) > 1e-3
    model = steps_model()
    labels = np.repeat(y[:, None], STEPS, 1)
    found = [
        fitted_loss(model, x, labels, w, **settings)
        for w in (weights[:, None], np.repeat(weights[:, None], STEPS, 1))
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


def test_the_virtual_term_by_hand():
    x, y = sequences()
    weights = np.array([0.2, 1.0, 3.0, 0.5], "float32")
    model = make_model()
    settings = dict(method="virtual", epsilon=0.4, step=0.2, power_iterations=3, seed=3)
    plain = fitted_loss(model, x, y, weights[:, None], weight=0.0, **settings)
    found = fitted_loss(model, x, y, weights[:, None], weight=2.0, **settings)
    valid = np.broadcast_to((np.arange(STEPS)[None] < LENGTHS[:, None])[..., None], x.shape)

    def unit(r):
        """Padding stays as it is."""
        r = np.asarray(r) * valid
        return tf.constant(r / np.sqrt((r**2).sum((1, 2), keepdims=True)))

    r = unit(keras.random.normal(x.shape, seed=keras.random.SeedGenerator(3)))
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(r)
            divergences = kl_divergence(model(x), model(x + 0.2 * r), False)
            total = tf.reduce_sum(weights * divergences)
        r = unit(tape.gradient(total, r))
    divergences = kl_divergence(model(x), model(x + 0.4 * r), False).numpy()
    np.testing.assert_allclose(found, plain + 2.0 * np.mean(weights * divergences), rtol=1e-4)


@pytest.mark.parametrize(
    "dtype, method", [("mixed_float16", "adversarial"), ("mixed_bfloat16", "virtual")]
)
def test_precisions(dtype, method):
    x, y = sequences()
    y = np.repeat(y[:, None], STEPS, 1)
    old = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        trained = compiled(steps_model(), 0.01, method=method, layer="recurrent")
    finally:
        keras.config.set_dtype_policy(old)
    before = [w.copy() for w in trained.get_weights()]
    history = trained.fit(x, y, epochs=2, batch_size=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    moved = [np.abs(a - b).max() for a, b in zip(before, trained.get_weights(), strict=True)]
    assert max(moved) > 0


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
    adversarial = compiled(model, run_eagerly=False, **settings)
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
    reloaded.run_eagerly = True
    reloaded.fit(x, y, epochs=1, verbose=0)
    np.testing.assert_allclose(adversarial(x), model(x))


def test_a_layer_of_two_models():
    shared = keras.layers.LSTM(6, name="recurrent")
    for seed in (0, 1):
        model = compiled(make_model(shared, seed=seed), layer="recurrent")
        assert np.isfinite(model.fit(*sequences(), verbose=0).history["loss"]).all()


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
    tokens = keras.Input((STEPS,), dtype="int32")
    for of, message in (
        (tokens, "whose input is .*int32.* Name a `layer` after .* such as an embedding"),
        (keras.Input((3,), sparse=True), "Only dense .*sparse=True"),
    ):
        with pytest.raises(ValueError, match=message):
            AdversarialModel(keras.Model(of, keras.layers.Identity()(of)))
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
