"""Variables are made before the first step of `fit`, whose graph is then traced once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf.models import DCCA, AdversarialModel, MultiviewClassifier

RNG = np.random.default_rng(0)
VIEWS = [RNG.normal(size=(12, size)).astype("float32") for size in (5, 4)]
LABELS = np.arange(12) % 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(units):
    return [keras.layers.Dense(units), keras.layers.Dense(units)]


class Encoder(keras.layers.Dense):
    """Counts how often it is traced in training."""

    traces = 0

    def call(self, inputs, training=None):
        self.traces += bool(training)
        return super().call(inputs)


@pytest.mark.parametrize("metrics", [None, ["accuracy"]])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_step_of_a_model_that_was_not_built_is_traced_once(kind, metrics):
    encoder = Encoder(2)
    model = MultiviewClassifier([encoder, *dense(2)[1:]], dense(3))
    model.compile("adam", LOSS, metrics=metrics)
    data = VIEWS, LABELS
    if kind == "dataset":
        data = (tf.data.Dataset.from_tensor_slices((tuple(VIEWS), LABELS)).batch(4),)
    size = None if kind == "dataset" else 4
    history = model.fit(*data, batch_size=size, epochs=2, shuffle=False, verbose=0)
    assert encoder.traces == 1
    assert np.isfinite(history.history["loss"]).all()
    assert ("accuracy" in history.history) == (metrics is not None)


def test_an_adversarial_step_is_traced_once():
    encoder = Encoder(3)
    model = AdversarialModel(keras.Sequential([keras.Input((5,)), encoder]))
    model.compile("adam", LOSS, metrics=["accuracy"])
    model.fit(VIEWS[0], LABELS, batch_size=4, verbose=0)
    assert encoder.traces == 2  # of the point, and of the perturbed one


def test_what_was_trained_and_measured_is_as_in_keras():
    """The same steps through `train_on_batch`, where the first step makes the variables."""
    keras.utils.set_random_seed(0)
    parts = dense(2), dense(3)
    model = MultiviewClassifier(*parts)
    model.build([(None, 5), (None, 4)])
    start = model.get_weights()
    model.compile("adam", LOSS, metrics=["accuracy"])
    history = model.fit(VIEWS, LABELS, batch_size=4, shuffle=False, verbose=0).history
    found = model.get_weights()

    model.set_weights(start)
    model.compile("adam", LOSS, metrics=["accuracy"])
    logs = [
        model.train_on_batch([x[rows] for x in VIEWS], LABELS[rows], return_dict=True)
        for rows in np.arange(12).reshape(3, 4)
    ]
    for a, b in zip(found, model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for name in ("loss", "accuracy"):
        mean = np.mean([log[name] for log in logs])
        np.testing.assert_allclose(history[name][0], mean, rtol=1e-6)


def test_a_stage_without_targets_is_traced_once():
    traces = []

    class Recorder(keras.layers.Dense):
        def call(self, inputs):
            traces.append(isinstance(inputs, keras.KerasTensor))
            return super().call(inputs)

    model = DCCA([Recorder(2), Recorder(2)], dense(3))
    model.pretrain(VIEWS, batch_size=12, epochs=2, verbose=0)
    assert len(traces) == 6  # of each view: the model, the stage, and one step


class WithOwnStep(MultiviewClassifier):
    """Batches of another form, a part that the step makes, and a metric of what the step left."""

    def train_step(self, data):
        views, labels = [data["a"], data["b"]], data["y"]
        with tf.GradientTape() as tape:
            if not hasattr(self, "extra"):
                self.extra = keras.layers.Dense(3)
            logits = self(views, training=True)
            logits = logits + self.extra(views[0])
            loss = self.compute_loss(x=views, y=labels, y_pred=logits)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        self.left = loss
        return self.compute_metrics(views, labels, logits)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred, sample_weight) | {"left": self.left}


def test_a_subclass_with_a_step_of_its_own():
    model = WithOwnStep(dense(2), dense(3))
    model.compile("adam", LOSS, metrics=["accuracy"])
    rows = {"a": VIEWS[0], "b": VIEWS[1], "y": LABELS}
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    history = model.fit(batches, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all() and np.isfinite(history["left"]).all()
