"""Two or more views of handwritten digits: data, networks, training, measurement."""

import dataclasses
import sys
from pathlib import Path

import keras
import methods
import numpy as np
from keras.layers import BatchNormalization, Dense, Dropout
from methods import TWO_STAGES
from report import positive

from proxnet_tf import CanonicalCorrelation
from proxnet_tf.datasets import load_multiple_features

NAMES = methods.NAMES | methods.PUBLISHED


@dataclasses.dataclass
class Settings:
    """The tuned settings. `strength` is lam at epoch 0 (prox), or the weight of L (rrm) or of the
    reconstruction errors (dccae), `weight` that of the envelope. `normalize` gives the codes unit
    variance (batch statistics)."""

    strength: float = 0.0
    growth: float = 0.0
    epsilon: float = 1e-4
    components: int = 10
    hidden: int = 128
    dropout: float = 0.0
    normalize: int = 0
    learning_rate: float = 1e-3
    weight: float = 0.0


# Chosen by `labels.py` on the views `fou` and `zer`, at 10 labels a class; rounded.
SETTINGS = {
    "vanilla": Settings(normalize=1, learning_rate=1e-2),
    "dcca": Settings(epsilon=1e-2, normalize=1, learning_rate=1e-2),
    "dccae": Settings(strength=0.8, epsilon=3e-3, normalize=1, learning_rate=3e-3),
    "rrm": Settings(strength=0.5, epsilon=3e-2, normalize=1, learning_rate=2e-3),
    "prox": Settings(strength=0.06, epsilon=1e-1, normalize=1, learning_rate=1e-2),
    "own": Settings(strength=13.0, epsilon=0.4, normalize=1, learning_rate=2e-3, weight=6.5),
    "prox+": Settings(strength=3.0, epsilon=1e-2, normalize=1, learning_rate=1.5e-3),
}


def split_data(view_names, seed, labels_per_class=None):
    """Training, validation and test parts (120, 30 and 50 digits a class).

    The test part is always the same; `seed` shuffles the others. Returns for each part its views,
    scaled by the training part, its labels and the weights of its rows: 0 for the training rows
    without a label.
    """
    views, labels = load_multiple_features(view_names)
    parts = {"train": [], "valid": [], "test": []}
    for label in range(10):
        rows = np.random.default_rng(label).permutation(np.flatnonzero(labels == label))
        rest = np.random.default_rng([label, seed]).permutation(rows[50:])
        parts["train"].append(rest[:120])
        parts["valid"].append(rest[120:])
        parts["test"].append(rows[:50])
    known = np.tile(np.arange(120) < (labels_per_class or 120), 10)
    weights = {"train": known / known.mean()}
    scaled = []
    for view in views.values():
        rows = np.concatenate(parts["train"])
        mean, scale = view[rows].mean(0), view[rows].std(0)
        scaled.append((view - mean) / np.where(scale > 0, scale, 1.0))
    data = {}
    for name, rows in parts.items():
        rows = np.concatenate(rows)
        weight = weights.get(name, np.ones(len(rows))).astype("float32")
        data[name] = ([x[rows] for x in scaled], labels[rows], weight)
    return data


def make_model(method, widths, settings, predict_with="average", inference="identity"):
    """The model of a method; all methods use the same networks."""

    def network(units, *last):
        hidden = Dense(settings.hidden, activation="relu")
        return keras.Sequential([hidden, Dropout(settings.dropout), Dense(units), *last])

    def code():
        norm = BatchNormalization(momentum=0.9, center=False, scale=False)
        return network(settings.components, *([norm] if settings.normalize else []))

    encoders = [code() for _ in widths]
    predictors = [network(10) for _ in widths]
    options = {"num_components": settings.components} if len(widths) > 2 else {}
    weights = {"rrm": settings.strength, "own": settings.weight}
    return methods.assemble(
        method,
        encoders,
        predictors,
        lambda: [network(width) for width in widths],
        correlation_weight=weights.get(method, 1 / settings.components),
        reconstruction_weight=settings.strength,
        lam=settings.strength,
        inference=inference,
        epsilon=settings.epsilon,
        predict_with=predict_with,
        **options,
    )


class Progress(keras.callbacks.Callback):
    """One line a model with the last epoch's figures; on a terminal it changes with the epochs."""

    shown = ("loss", "val_accuracy", "correlation_before", "correlation", "lam")

    def __init__(self, epochs, title):
        super().__init__()
        self.epochs, self.title, self.line = epochs, title, ""

    def on_epoch_end(self, epoch, logs=None):
        figures = "".join(f", {name} {logs[name]:.4g}" for name in self.shown if name in logs)
        self.line = f"{self.title}: epoch {epoch + 1}/{self.epochs}{figures}"
        if sys.stdout.isatty():
            print(f"\r\x1b[K{self.line}", end="", flush=True)

    def on_train_end(self, logs=None):
        print(f"\r\x1b[K{self.line}" if sys.stdout.isatty() else self.line, flush=True)


def fit(model, method, data, settings, options, title=""):
    """Trains a model (both stages of DCCA and DCCAE); returns the validation error by epoch, %."""
    views, labels, weights = data["train"]
    schedule = {"batch_size": options.batch_size, "epochs": options.epochs, "verbose": 0}
    if method in TWO_STAGES:
        model.pretrain(
            views,
            optimizer=keras.optimizers.Adam(settings.learning_rate),
            **schedule | {"batch_size": 4 * options.batch_size, "epochs": options.pretrain_epochs},
        )
    callbacks = methods.lam_callbacks(method, settings.strength, settings.growth)
    if title:
        callbacks.append(Progress(options.epochs, title))
    model.compile(
        keras.optimizers.Adam(settings.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiling takes longer than these small networks run
    )
    history = model.fit(
        views,
        labels,
        sample_weight=weights,
        validation_data=data["valid"][:2],
        validation_freq=1 if title else min(5, options.epochs),
        callbacks=callbacks,
        **schedule,
    ).history
    return [100 * (1 - accuracy) for accuracy in history["val_accuracy"]]


def error_of(model, views, labels):
    """Rows predicted wrongly, %."""
    return float(100 * np.mean(np.argmax(model.predict(views, verbose=0), 1) != labels))


def correlations(views):
    """Canonical correlations of the first two of a list of views, descending."""
    metric = CanonicalCorrelation()
    metric.update_state(None, list(views)[:2])
    return np.asarray(metric.correlations()).tolist()


def summary(values):
    spread = f" +- {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def add_data_arguments(parser):
    """The options that the examples on these data share."""
    parser.add_argument("--views", nargs="+", default=["fou", "zer"], metavar="VIEW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=positive, default=30)
    parser.add_argument("--batch-size", type=positive, default=100)
    parser.add_argument(
        "--pretrain-epochs",
        type=positive,
        default=150,
        help="of DCCA and DCCAE, in batches 4 x as large",
    )
    parser.add_argument("--labels-per-class", type=int, help="labelled training digits (all: 120)")
    parser.add_argument("--output", type=Path, default=Path("outputs"))


def check_data_arguments(parser, options):
    """Refuses values that would fail only after the training."""
    if len(options.views) < 2:
        parser.error("--views needs two or more views")
    if options.labels_per_class is not None and not 1 <= options.labels_per_class <= 120:
        parser.error("--labels-per-class must be in 1..120")
    options.output.mkdir(parents=True, exist_ok=True)
    return options
