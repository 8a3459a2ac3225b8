"""Photos and sketches of the same object: the image experiment of the paper.

    python examples/sketchy.py                                     # the stand-in: glyphs
    python examples/sketchy.py --data 256x256 --epochs 300         # Sketchy's folders
    python examples/sketchy.py --data sketchy.pkl --allow-pickle --epochs 300

An encoder per view (ResNet-18; a small convolutional one for the stand-in), code of d = 20, a
classifier of three sigmoid layers of 512 per view, averaged logits. ProxNet has `ProxCCA` in
between, with lam_t = (1 + k t) alpha0 at epoch t. 80 pairs of every class train, 20 test. Writes a
table and the numbers to `--output` after every run. Started again with the same arguments it goes
on where it was stopped: finished runs are kept, an unfinished one goes on from its last epoch.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from glyphs import glyph_pairs
from keras import layers
from writing import learning_curves, markdown, write

from proxnet_tf import (
    DCCA,
    DCCAE,
    CanonicalCorrelation,
    LambdaSchedule,
    MultiviewClassifier,
    linear_lambda,
)
from proxnet_tf.datasets import load_sketchy, load_sketchy_pickle, split_pairs

NAMES = {"vanilla": "Vanilla", "dcca": "DCCA", "dccae": "DCCAE", "rrm": "RRM", "prox": "ProxNet"}
PAPER = {  # test error, %
    "Vanilla": {20: "18.7 ± 1.1", 50: "24.8 ± 0.9", 100: "30.9 ± 0.5", 125: "31.8 ± 0.5"},
    "DCCA": {20: "16.9 ± 0.5", 50: "22.2 ± 0.4", 100: "28.7 ± 0.4", 125: "29.8 ± 0.4"},
    "DCCAE": {20: "16.6 ± 0.3", 50: "22.1 ± 0.3", 100: "29.2 ± 0.5", 125: "30.4 ± 0.6"},
    "RRM": {20: "15.2 ± 0.6", 50: "20.1 ± 0.4", 100: "26.8 ± 0.5", 125: "28.1 ± 0.4"},
    "ProxNet": {20: "13.7 ± 0.3", 50: "17.9 ± 0.5", 100: "20.2 ± 0.3", 125: "22.0 ± 0.4"},
}
# Ridge on the covariances, the better of 1e-4 and 0.1 on held-out pairs of 20 classes of glyphs.
EPSILON = {"vanilla": 0.0, "dcca": 0.1, "dccae": 0.1, "rrm": 0.1, "prox": 1e-4}
BATCH = 100
COMPONENTS = 20


def conv(x, filters, strides=1, size=3):
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def resnet18(inputs):
    """ResNet-18 without its top (He et al. 2016): features (batch, 512)."""
    x = layers.ReLU()(conv(inputs, 64, 2, 7))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for filters in (64, 128, 256, 512):
        for block in range(2):
            strides = 2 if filters > 64 and block == 0 else 1
            y = conv(layers.ReLU()(conv(x, filters, strides)), filters)
            x = layers.ReLU()(y + (conv(x, filters, strides, 1) if strides > 1 else x))
    return layers.GlobalAveragePooling2D()(x)


def small(inputs):
    """Two strided convolutions: features (batch, (size / 8)^2 * 64)."""
    x = layers.ReLU()(conv(inputs, 32, 4, 4))
    return layers.Flatten()(layers.ReLU()(conv(x, 64, 2)))


def make_encoder(shape, backbone):
    """Images to codes of zero mean and unit variance."""
    inputs = keras.Input(shape)
    code = layers.Dense(COMPONENTS)({"resnet18": resnet18, "small": small}[backbone](inputs))
    norm = layers.BatchNormalization(momentum=0.9, center=False, scale=False)
    return keras.Model(inputs, norm(code))


def make_decoder(shape):
    """Codes to images of `shape`, by transposed convolutions."""
    size, filters = shape[0] // 8, 64
    decoder = keras.Sequential([keras.Input((COMPONENTS,)), layers.Dense(size * size * filters)])
    decoder.add(layers.Reshape((size, size, filters)))
    for filters in (32, 16):
        decoder.add(layers.ReLU())
        decoder.add(layers.Conv2DTranspose(filters, 3, 2, padding="same"))
    decoder.add(layers.ReLU())
    decoder.add(layers.Conv2DTranspose(shape[-1], 3, 2, padding="same"))
    return decoder


def make_predictor(classes, units):
    hidden = [layers.Dense(units, activation="sigmoid") for _ in range(3)]
    return keras.Sequential([*hidden, layers.Dense(classes)])


def make_model(method, shapes, classes, options):
    """One of the five methods; the parts are the same for all."""
    encoders = [make_encoder(shape, options.backbone) for shape in shapes]
    predictors = [make_predictor(classes, options.hidden) for _ in shapes]
    epsilon = EPSILON[method] if options.epsilon is None else options.epsilon
    if method == "dcca":
        return DCCA(encoders, predictors, epsilon=epsilon)
    if method == "dccae":
        decoders = [make_decoder(shape) for shape in shapes]
        more = {"reconstruction_weight": options.reconstruction_weight}
        return DCCAE(encoders, decoders, predictors, epsilon=epsilon, **more)
    more = {"epsilon": epsilon}
    if method == "rrm":
        more["correlation_weight"] = options.rrm_weight
    if method == "prox":
        more.update(lam=options.alpha0, monitor=True)
    return MultiviewClassifier(encoders, predictors, method=method, **more)


def normalize(images):
    """Pixels 0..255 to -1..1."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0


def augment(images, flip):
    """A random part of each image, 85 to 100 % of its sides, perhaps mirrored, as large again."""
    count, height, width = (images.shape[k] or tf.shape(images)[k] for k in range(3))
    side = tf.random.uniform([count, 1], 0.85, 1.0)
    corner = tf.random.uniform([count, 2]) * (1.0 - side)
    top, left = corner[:, :1], corner[:, 1:]
    right = left + side
    if flip:
        mirrored = tf.random.uniform([count, 1]) < 0.5
        left, right = tf.where(mirrored, right, left), tf.where(mirrored, left, right)
    boxes = tf.concat([top, left, top + side, right], 1)
    return tf.image.crop_and_resize(images, boxes, tf.range(count), [height, width])


def training_batches(data, seed, flip):
    """Shuffled batches of augmented images ((photos, sketches), labels)."""

    def prepare(views, labels):
        photos, sketches = (augment(normalize(images), flip) for images in views)
        light = tf.random.uniform([tf.shape(photos)[0], 1, 1, 1], 0.8, 1.2)
        return (tf.clip_by_value(photos * light, -1.0, 1.0), sketches), labels

    batches = tf.data.Dataset.from_tensor_slices(((data.photos, data.sketches), data.labels))
    batches = batches.shuffle(len(data.labels), seed=seed)
    batches = batches.batch(BATCH, drop_remainder=len(data.labels) >= BATCH)
    return batches.map(prepare, tf.data.AUTOTUNE).prefetch(2)


def test_batches(data):
    batches = tf.data.Dataset.from_tensor_slices(((data.photos, data.sketches), data.labels))
    return batches.batch(BATCH).map(lambda views, y: (tuple(map(normalize, views)), y)).prefetch(1)


class Resume(keras.callbacks.BackupAndRestore):
    """Goes on after the last epoch; builds the model for it, of views of the `shapes`."""

    def __init__(self, folder, shapes):
        super().__init__(folder)
        self.shapes = shapes

    def on_train_begin(self, logs=None):
        if not self.model.built:
            self.model.build(self.shapes)
        super().on_train_begin(logs)


class History(keras.callbacks.Callback):
    """The figures of every epoch in a JSON file that a resumed run goes on with."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        epochs = json.loads(self.path.read_text())[:epoch] if self.path.exists() else []
        epochs.append({name: round(float(value), 5) for name, value in (logs or {}).items()})
        write(self.path, json.dumps(epochs))


def callbacks(folder, stage, shapes, options, epochs):
    """Resumes after the last epoch, divides the learning rate by 10, keeps the figures."""
    after = options.decay_epoch or 2 * epochs // 3

    def rate(epoch, _):
        return options.learning_rate * (0.1 if epoch >= after else 1.0)

    return [
        Resume(folder / f"{stage}_backup", shapes),
        keras.callbacks.LearningRateScheduler(rate),
        History(folder / f"{stage}.json"),
    ]


def train(model, method, train_data, seed, options, folder):
    """Trains a model, both stages of DCCA and DCCAE, with its checkpoints in `folder`."""
    keras.utils.set_random_seed(seed)
    batches = training_batches(train_data, seed, options.data is not None)
    shapes = [(None, *images.shape[1:]) for images in (train_data.photos, train_data.sketches)]
    model.build(shapes)
    folder.mkdir(parents=True, exist_ok=True)

    def adam():
        return keras.optimizers.Adam(options.learning_rate, weight_decay=options.weight_decay)

    if method in ("dcca", "dccae"):
        done = folder / "pretrained.weights.h5"
        if done.exists():
            model.load_weights(done)
        else:
            epochs = options.pretrain_epochs or options.epochs
            more = callbacks(folder, "pretrain", shapes, options, epochs)
            schedule = {"epochs": epochs, "callbacks": more, "verbose": options.verbose}
            model.pretrain(batches, optimizer=adam(), shuffle=False, **schedule)
            model.save_weights(folder / "partial.weights.h5")
            os.replace(folder / "partial.weights.h5", done)
    more = callbacks(folder, "fit", shapes, options, options.epochs)
    if method == "prox":
        more.insert(1, LambdaSchedule(linear_lambda(options.alpha0, options.growth)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adam(), loss, metrics=["accuracy"], jit_compile=False)
    schedule = {"epochs": options.epochs, "callbacks": more, "verbose": options.verbose}
    model.fit(batches, shuffle=False, **schedule)


def correlation(views):
    """Total canonical correlation of two views."""
    metric = CanonicalCorrelation()
    metric.update_state(None, list(views))
    return float(np.sum(metric.correlations()))


def measure(model, method, data, seed):
    """Errors on the test part (%), and the total canonical correlation of its codes there."""
    codes, labels = [], []
    for views, y in test_batches(data):
        codes.append([code.numpy() for code in model.encode(views)])
        labels.append(y.numpy())
    codes = [np.concatenate(part) for part in zip(*codes, strict=True)]
    labels = np.concatenate(labels)

    def error(codes, labels):
        logits = [p(x, training=False) for p, x in zip(model.predictors, codes, strict=True)]
        return float(100 * np.mean(np.argmax(np.mean(logits, 0), 1) != labels))

    measured = {"error": error(codes, labels), "correlation": correlation(codes)}
    if method == "prox":  # as the classifiers saw the codes in training
        order = np.random.default_rng(seed).permutation(len(labels))
        parts = np.array_split(order, max(1, len(order) // BATCH))
        moved = [model.prox([code[rows] for code in codes], training=True) for rows in parts]
        moved = [np.concatenate(part) for part in zip(*moved, strict=True)]
        measured["error_with_layer"] = error(moved, labels[order])
        measured["correlation_with_layer"] = correlation(moved)
    return measured


def load(classes, seed, options):
    """Training and test part: 80 and 20 pairs of each of `classes` classes, drawn by `seed`."""
    if options.data is None:
        pairs = glyph_pairs(classes, options.pairs, seed)
    elif options.data.is_dir():
        count = options.pairs
        pairs = load_sketchy(
            options.data, classes, pairs_per_class=count, size=options.size, seed=seed
        )
    else:
        return load_sketchy_pickle(options.data, classes, allow_pickle=options.allow_pickle)
    train_data, test_data = split_pairs(pairs, seed=seed)
    if options.holdout:
        return split_pairs(train_data, seed=seed)
    return train_data, test_data


def with_schedule(options, classes, count):
    """The options for `classes` classes of `count` training pairs: with `--steps`, that many
    batches, in which lam grows as much as in 300 epochs of the paper's schedule."""
    epochs, growth = options.epochs, 0.5
    if options.steps:
        steps = dict(zip(options.classes, options.steps, strict=True))[classes]
        epochs = max(1, round(steps / max(1, count // BATCH)))
        growth = 0.5 * 300 / epochs
    growth = growth if options.growth is None else options.growth
    return argparse.Namespace(**{**vars(options), "epochs": epochs, "growth": growth})


def folder_of(method, classes, seed, options):
    return options.output / "sketchy" / f"{classes}-{method}-{seed}"


def run(method, classes, seed, data, options):
    """Trains and measures one model, unless that is done already."""
    options = with_schedule(options, classes, len(data[0].labels))
    folder = folder_of(method, classes, seed, options)
    settings = {name: str(value) for name, value in vars(options).items() if name in RUN_SETTINGS}
    result = folder / "result.json"
    kept = folder / "settings.json"
    if kept.exists() and json.loads(kept.read_text()) != settings:
        raise ValueError(
            f"{folder} holds a run with other settings: {kept.read_text()}. Now: {settings}. "
            "Choose another --output or remove the folder."
        )
    if result.exists():
        return json.loads(result.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    write(kept, json.dumps(settings))
    started = time.perf_counter()
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    shapes = [images.shape[1:] for images in (data[0].photos, data[0].sketches)]
    model = make_model(method, shapes, classes, options)
    train(model, method, data[0], seed, options, folder)
    measured = measure(model, method, data[1], seed)
    measured["seconds"] = time.perf_counter() - started
    write(result, json.dumps(measured))
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".h5":
            path.unlink()
    return measured


RUN_SETTINGS = (
    "data",
    "pairs",
    "size",
    "backbone",
    "hidden",
    "epochs",
    "pretrain_epochs",
    "epsilon",
    "decay_epoch",
    "learning_rate",
    "weight_decay",
    "alpha0",
    "growth",
    "rrm_weight",
    "reconstruction_weight",
    "holdout",
)


def histories(results, options):
    """What `learning_curves` draws: the figures of every epoch."""
    drawn = {}
    for classes, methods in results.items():
        for method, seeds in methods.items():
            for seed in seeds:
                kept = folder_of(method, classes, seed, options) / "fit.json"
                epochs = json.loads(kept.read_text())
                run = {name: [epoch[name] for epoch in epochs] for name in epochs[0]}
                group = drawn.setdefault(f"{classes} classes", {})
                group.setdefault(NAMES[method], []).append(run)
    return drawn


def summary(values):
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.1f}"


def table(results):
    """Markdown: test error, correlation and paired differences by number of classes."""
    counts = list(results)
    methods = [m for m in NAMES if any(m in results[count] for count in counts)]
    rows = []

    def values(method, key, count):
        found = [one[key] for one in results[count].get(method, {}).values()]
        return summary(found) if found else ""

    for method in methods:
        name = NAMES[method]
        cells = [(values(method, "error", n), PAPER[name].get(n, "")) for n in counts]
        rows.append((name, *(cell for pair in cells for cell in pair)))
    columns = [f"{count} classes" for count in counts]
    paired = [title for column in columns for title in (column, "paper")]
    errors = markdown(("test error, %", *paired), rows)
    rows = []
    more = [(m, "correlation", f"correlation of the codes, {NAMES[m]}") for m in methods]
    if "prox" in methods:
        more.append(("prox", "correlation_with_layer", "correlation after the layer, ProxNet"))
        more.append(("prox", "error_with_layer", "error with the layer on, ProxNet"))
    for method, key, label in more:
        rows.append((label, *(values(method, key, n) for n in counts)))
    for method in [m for m in methods if m != "rrm" and "rrm" in methods]:
        cells = []
        for count in counts:
            found, base = (results[count].get(m, {}) for m in (method, "rrm"))
            pairs = [found[seed]["error"] - base[seed]["error"] for seed in found if seed in base]
            cells.append(summary(pairs) if pairs else "")
        rows.append((f"error minus RRM's on the same seed, {NAMES[method]}", *cells))
    return errors + "\n" + markdown(("test part", *columns), rows)


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder or pickle (none: glyphs)")
    parser.add_argument("--allow-pickle", action="store_true", help="only of a file you trust")
    parser.add_argument("--size", type=int, default=128, help="of Sketchy's images, pixels")
    parser.add_argument("--pairs", type=int, default=100, help="a class, 80 %% of them to train")
    parser.add_argument("--classes", nargs="+", type=int, default=[20, 50, 100])
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--backbone", choices=["resnet18", "small"], help="(small for glyphs)")
    parser.add_argument("--hidden", type=int, default=512, help="units of the classifier's layers")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--steps",
        nargs="+",
        type=int,
        help="batches instead of epochs: one number, or one for each of --classes",
    )
    parser.add_argument("--pretrain-epochs", type=int, help="of DCCA and DCCAE (as --epochs)")
    parser.add_argument("--epsilon", type=float, help="ridge on the covariances (the method's)")
    parser.add_argument("--decay-epoch", type=int, help="learning rate / 10 (2/3 of the epochs)")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--alpha0", type=float, default=0.1, help="lam at epoch 0")
    parser.add_argument(
        "--growth",
        type=float,
        help="k of lam_t = (1 + k t) alpha0 (0.5; with --steps 150 / epochs)",
    )
    parser.add_argument("--rrm-weight", type=float, default=0.1)
    parser.add_argument("--reconstruction-weight", type=float, default=1.0)
    parser.add_argument("--holdout", action="store_true", help="test on part of the training pairs")
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    options = parser.parse_args(arguments)
    options.backbone = options.backbone or ("resnet18" if options.data else "small")
    if options.steps and len(options.steps) not in (1, len(options.classes)):
        parser.error("--steps takes one number, or one for each of --classes")
    if options.steps and len(options.steps) == 1:
        options.steps *= len(options.classes)
    if min(options.epochs, options.size // 8, options.pairs // 2, *options.classes) < 1:
        parser.error("--epochs, --size, --pairs and --classes must be positive")
    return options


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    results = {classes: {} for classes in options.classes}
    for seed in options.seeds:
        for classes in options.classes:
            data = load(classes, seed, options)
            for method in options.methods:
                measured = run(method, classes, seed, data, options)
                results[classes].setdefault(method, {})[seed] = measured
                print(
                    f"{classes} classes, seed {seed}, {NAMES[method]}: error "
                    f"{measured['error']:.1f} % ({measured['seconds']:.0f} s)",
                    flush=True,
                )
                write(options.output / "sketchy.json", json.dumps(results, indent=1))
                write(options.output / "sketchy.md", table(results))
            learning_curves(histories(results, options), options.output / "sketchy.png")
    print(table(results), end="")
    return results


if __name__ == "__main__":
    main()
