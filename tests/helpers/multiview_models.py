"""Small multiview models and data for them."""

import keras
import numpy as np
from keras.layers import Dense

from proxnet_tf import DCCA, DCCAE

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
    "dcca": lambda **k: DCCA(encoders(), predictors(), **k),
    "dccae": lambda **k: DCCAE(encoders(), decoders(), predictors(), concatenate_inputs=True, **k),
}


def train(model, views, labels, epochs=1, **options):
    model.compile("adam", entropy(), metrics=["accuracy"], run_eagerly=True)
    return model.fit(views, labels, epochs=epochs, batch_size=40, verbose=0, **options)


def training_loss(model, views, labels, **options):
    model.compile(keras.optimizers.SGD(0.0), entropy(), run_eagerly=True)
    return model.fit(views, labels, batch_size=120, verbose=0, **options).history["loss"][0]
