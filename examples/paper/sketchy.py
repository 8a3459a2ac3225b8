"""Photos and sketches of the same object: the image experiment of the paper.

    python examples/paper/sketchy.py                                     # the stand-in: glyphs
    python examples/paper/sketchy.py --data 256x256 --epochs 300         # Sketchy's folders
    python examples/paper/sketchy.py --data sketchy.pkl --allow-pickle --epochs 300

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
from glyphs import CHARACTERS
from images import (
    BATCH,
    load,
    make_decoder,
    make_encoder,
    make_predictor,
    test_batches,
    training_batches,
)
from methods import NAMES, TWO_STAGES, assemble, lam_callbacks
from report import learning_curves, markdown, positive, write

from proxnet_tf import CanonicalCorrelation

GLYPHS = len(CHARACTERS)
PAPER = {  # test error, %
    "Vanilla": {20: "18.7 ± 1.1", 50: "24.8 ± 0.9", 100: "30.9 ± 0.5", 125: "31.8 ± 0.5"},
    "DCCA": {20: "16.9 ± 0.5", 50: "22.2 ± 0.4", 100: "28.7 ± 0.4", 125: "29.8 ± 0.4"},
    "DCCAE": {20: "16.6 ± 0.3", 50: "22.1 ± 0.3", 100: "29.2 ± 0.5", 125: "30.4 ± 0.6"},
    "RRM": {20: "15.2 ± 0.6", 50: "20.1 ± 0.4", 100: "26.8 ± 0.5", 125: "28.1 ± 0.4"},
    "ProxNet": {20: "13.7 ± 0.3", 50: "17.9 ± 0.5", 100: "20.2 ± 0.3", 125: "22.0 ± 0.4"},
}
# Ridge on the covariances, the better of 1e-4 and 0.1 on held-out pairs of 20 classes of glyphs.
EPSILON = {"vanilla": 0.0, "dcca": 0.1, "dccae": 0.1, "rrm": 0.1, "prox": 1e-4}


def make_model(method, shapes, classes, options):
    """One of the five methods; the parts are the same for all."""
    encoders = [make_encoder(shape, options.backbone) for shape in shapes]
    predictors = [make_predictor(classes, options.hidden) for _ in shapes]
    return assemble(
        method,
        encoders,
        predictors,
        lambda: [make_decoder(shape) for shape in shapes],
        correlation_weight=options.rrm_weight,
        reconstruction_weight=options.reconstruction_weight,
        lam=options.alpha0,
        epsilon=EPSILON[method] if options.epsilon is None else options.epsilon,
    )


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

    if method in TWO_STAGES:
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
    more = lam_callbacks(method, options.alpha0, options.growth)
    more += callbacks(folder, "fit", shapes, options, options.epochs)
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
        moved = [model.between[-1]([code[rows] for code in codes], training=True) for rows in parts]
        moved = [np.concatenate(part) for part in zip(*moved, strict=True)]
        measured["error_with_layer"] = error(moved, labels[order])
        measured["correlation_with_layer"] = correlation(moved)
    return measured


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
    parser.add_argument("--size", type=positive, default=128, help="of Sketchy's images, pixels")
    parser.add_argument(
        "--pairs", type=positive, default=100, help="a class, 80 %% of them to train"
    )
    parser.add_argument("--classes", nargs="+", type=positive, default=[20, 50, 100])
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--backbone", choices=["resnet18", "small"], help="(small for glyphs)")
    parser.add_argument(
        "--hidden", type=positive, default=512, help="units of the classifier's layers"
    )
    parser.add_argument("--epochs", type=positive, default=30)
    parser.add_argument(
        "--steps",
        nargs="+",
        type=positive,
        help="batches instead of epochs: one number, or one for each of --classes",
    )
    parser.add_argument("--pretrain-epochs", type=positive, help="of DCCA and DCCAE (as --epochs)")
    parser.add_argument("--epsilon", type=float, help="ridge on the covariances (the method's)")
    parser.add_argument(
        "--decay-epoch", type=positive, help="learning rate / 10 (2/3 of the epochs)"
    )
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
    if options.size < 8 or options.pairs < 5:
        parser.error("--size must be at least 8 and --pairs at least 5")
    if options.data is None and not 2 <= min(options.classes) <= max(options.classes) <= GLYPHS:
        parser.error(f"--classes must be in 2..{GLYPHS}, the glyphs there are")
    return options


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.data is not None:
        load(max(options.classes), options.seeds[0], options)  # what is missing shows now
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
