"""Models on two devices against one, for `mirrored`."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf import DCCA, AdversarialModel, MultiviewClassifier, ProxCCA
from tests.helpers.data import shared_views

DATA = shared_views(40, (3, 4), seed=3).astype("float32")
VIEWS = [DATA[:, :3], DATA[:, 3:]]
LABELS = (DATA[:, 0] > DATA[:, 4]).astype("int64")
STEPS = np.random.default_rng(4).normal(size=(40, 5, 3)).astype("float32")
STEPS[::3, 3:] = 0.0


def dense(units):
    return keras.layers.Dense(units, kernel_regularizer=keras.regularizers.L2(0.1))


def classifier(between=None, **options):
    return MultiviewClassifier([dense(3), dense(3)], [dense(2), dense(2)], between, **options)


def adversarial(**options):
    inputs = keras.Input((5, 3))
    hidden = keras.layers.Dense(4)(keras.layers.Masking()(inputs))
    hidden = keras.layers.LSTM(4, name="r")(hidden)
    model = keras.Model(inputs, dense(2)(hidden))
    return AdversarialModel(model, layer="r", from_logits=True, **options)


def pretrained(**options):
    model = DCCA([dense(3), dense(3)], [dense(2), dense(2)], **options)
    model.build([view.shape for view in VIEWS])
    model.pretrained.assign(1.0)
    return model


MODELS = {
    "vanilla": (lambda: classifier(predict_with=0), VIEWS),
    "prox": (lambda: classifier(ProxCCA(lam=0.5, synchronized=True, inference="moving")), VIEWS),
    "dcca": (pretrained, VIEWS),
    "adversarial": (lambda: adversarial(weight=0.7), STEPS),
    "virtual": (lambda: adversarial(method="virtual", power_iterations=3, weight=3.0), STEPS),
}


def fitted(name, scope, eagerly=False):
    make, x = MODELS[name]
    keras.utils.set_random_seed(0)
    with scope:
        model = make()
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=eagerly,
        )
    history = model.fit(x, LABELS, batch_size=20, epochs=2, shuffle=False, verbose=0).history
    for layer in getattr(model, "between", []):
        layer.lam = 0.25
        assert float(tf.convert_to_tensor(layer.lam)) == 0.25
    loss = [*history["loss"], model.evaluate(x, LABELS, batch_size=20, verbose=0)]
    return [np.asarray(w) for w in model.get_weights()], loss


# The random start of a power iteration, the same on all replicas.
@mock.patch("keras.random.normal", lambda shape, dtype, seed: tf.ones(shape, dtype))
def compared(strategy, name):
    """Differences of weights and losses, and how far the loss moved."""
    one, losses = fitted(name, tf.device("CPU:0"), eagerly=True)
    two, others = fitted(name, strategy.scope())
    return {
        "weights": max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)),
        "loss": float(np.abs(np.subtract(losses, others)).max()),
        "moved": float(abs(losses[0] - losses[1])),
    }
