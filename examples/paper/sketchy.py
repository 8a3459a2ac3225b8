"""Photos and sketches of the same object: the image experiment of the paper.

    python examples/paper/sketchy.py                                       # the stand-in: glyphs
    python examples/paper/sketchy.py --data 256x256 --rates 3e-4 3e-3      # Sketchy's folders
    python examples/paper/sketchy.py --data sketchy.pkl --allow-pickle --rates 3e-4 3e-3

An encoder per view, codes, a classifier per view, averaged logits. Sketchy: ResNet-18, codes of
d = 20, three sigmoid layers of 512, 80 pairs of every class to train and 20 to test, augmented; the
seed draws pairs, split, initial weights and augmentation. Batches of 100, Adam, the learning rate
divided by 10 after two thirds. Glyphs: the networks (two convolutions, d = 10, a hidden layer of
64) and the training of `labels.py`, one graph for all runs of a method, which is quick; 20
characters, 60 pairs of each to train, 15 to choose settings, 25 to test, all labelled, drawn once;
the seed deals out all but the test pairs, initial weights and batches. 288 steps (24 epochs).

The protocol, written before the first run: for every method `--trials` settings, a Latin hypercube
of `spaces` (learning rates are the same for all), trained with seed 100 and judged on validation
pairs: those of `labels.py`, or a fifth of the training pairs at the first of `--classes`. The best
one is used for every number of classes. ProxNet is as published, lam rising linearly to `rise`
times its first value; "ProxCCA with its envelope" has a constant lam. DCCA and DCCAE train encoders
for as many steps as classifiers; linear CCA is of the means of 4 x 4 pixels.

A first try on glyphs, 100 steps of the networks for Sketchy, was stopped after four runs of the
search: Vanilla had validation errors of 51 to 78 %, and a run took 5 seconds.

Writes a table, a figure and `runs.jsonl` to `--output` after every run; the same command goes on
after a stop.
"""

import argparse
import functools
from pathlib import Path

import keras
import labels
import numpy as np
from glyphs import CHARACTERS
from images import (
    BATCH,
    COMPONENTS,
    load,
    make_decoder,
    make_encoder,
    make_predictor,
    normalize,
    test_batches,
    training_batches,
)
from keras import layers
from labels_data import load as load_glyphs
from labels_data import part_of
from methods import TWO_STAGES, assemble
from report import learning_curves, markdown, mean_and_spread, positive, write
from search import TITLES, Kept, Study, scheduled, spaces

from proxnet_tf import DCCA, CanonicalCorrelation, LinearCCA

GLYPHS = len(CHARACTERS)
PAPER = {  # test error, %
    "vanilla": {20: "18.7 ± 1.1", 50: "24.8 ± 0.9", 100: "30.9 ± 0.5", 125: "31.8 ± 0.5"},
    "dcca": {20: "16.9 ± 0.5", 50: "22.2 ± 0.4", 100: "28.7 ± 0.4", 125: "29.8 ± 0.4"},
    "dccae": {20: "16.6 ± 0.3", 50: "22.1 ± 0.3", 100: "29.2 ± 0.5", 125: "30.4 ± 0.6"},
    "rrm": {20: "15.2 ± 0.6", 50: "20.1 ± 0.4", 100: "26.8 ± 0.5", 125: "28.1 ± 0.4"},
    "prox": {20: "13.7 ± 0.3", 50: "17.9 ± 0.5", 100: "20.2 ± 0.3", 125: "22.0 ± 0.4"},
}
RATE = (3e-3, 0.1)  # see --rates
RIDGE, WEIGHT, LAM = (1e-3, 1.0), (1e-2, 10.0), (3e-2, 30.0)


def make_linear(shapes, predictors):
    """DCCA whose encoders are a linear map of the means of 4 x 4 pixels."""
    encoders = [
        keras.Sequential(
            [
                keras.Input(shape),
                layers.AveragePooling2D(shape[0] // 8),
                layers.Flatten(),
                layers.Dense(COMPONENTS),
            ]
        )
        for shape in shapes
    ]
    return DCCA(encoders, predictors)


def make_model(method, shapes, classes, options):
    """The model of a method; all methods use the same networks."""
    predictors = [make_predictor(classes, options.hidden) for _ in shapes]
    if method == "linear":
        return make_linear(shapes, predictors)
    encoders = [make_encoder(shape, options.backbone) for shape in shapes]
    return assemble(
        method,
        encoders,
        predictors,
        lambda: [make_decoder(shape) for shape in shapes],
        correlation_weight=1.0,
    )


class Glyphs:
    """Trains and measures on glyphs with the networks and graphs of `labels.py`."""

    def __init__(self, options):
        self.study = labels.Study()
        self.pair = {n: "glyphs" if n == 10 else f"glyphs{n}" for n in options.classes}

    def error(self, part, method, settings, seed, classes):
        pair, settings = self.pair[classes], dict(settings)
        if method == "linear":
            settings["input_ridge"] = settings["ridge"]
        settings["growth"] = (settings.get("rise", 1.0) - 1.0) / (self.study.epochs - 1)
        method = "rising" if method == "prox" else method
        every = load_glyphs(pair).counts[0]
        predict = self.study.fit(pair, method, settings, every, seed)
        held = part_of(pair, part, seed)
        return labels.error(predict(held.views).mean(0), held.labels)

    def validate(self, method, settings, seed):
        return {"error": self.error("valid", method, settings, seed, next(iter(self.pair)))}

    def test(self, method, settings, seed, classes):
        return {f"{classes} classes": self.error("test", method, settings, seed, classes)}


class Images:
    """Trains and measures; keeps a model for every method and number of classes."""

    def __init__(self, options):
        self.options, self.kept = options, {}
        self.load = functools.lru_cache(1)(functools.partial(load, options=options))

    def model(self, method, shapes, classes):
        if (method, classes) not in self.kept:
            model = make_model(method, shapes, classes, self.options)
            model.build([(None, *shape) for shape in shapes])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            adam = keras.optimizers.Adam(weight_decay=self.options.weight_decay)
            model.compile(adam, loss, metrics=["accuracy"], jit_compile=False)
            networks = [*model.encoders, *model.predictors, *getattr(model, "decoders", [])]
            between = getattr(model, "between", [])
            self.kept[method, classes] = Kept(model, networks, between)
        return self.kept[method, classes]

    def train(self, method, settings, seed, data, classes):
        """The trained model, and its figures of every epoch."""
        views = data.photos, data.sketches
        kept = self.model(method, [x.shape[1:] for x in views], classes)
        rate = settings.get("lr2", settings.get("lr"))
        ridge = settings.get("ridge", 1e-4)
        model = kept.reset(seed, rate, settings.get("weight", 1.0), ridge)
        batches = training_batches(data, seed, self.options.data is not None)
        steps = dict(zip(self.options.classes, self.options.steps, strict=True))[classes]
        epochs = max(1, round(steps / max(1, len(data.labels) // BATCH)))

        def schedule(rate):
            lower = keras.callbacks.LearningRateScheduler(
                lambda epoch, _: rate * (0.1 if epoch >= 2 * epochs // 3 else 1.0)
            )
            return {"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": [lower]}

        if method == "linear":
            pool = [keras.Sequential(encoder.layers[:-1]) for encoder in model.encoders]
            scaled = [np.array(f(normalize(x))) for f, x in zip(pool, views, strict=True)]
            cca = LinearCCA(COMPONENTS, ridge=ridge).fit(*scaled)
            for encoder, mean, weights in zip(
                model.encoders, cca.means_, cca.weights_, strict=True
            ):
                encoder.layers[-1].set_weights([weights, -mean @ weights])
            model.pretrained.assign(1.0)
        if method in TWO_STAGES:
            model.epsilon = ridge
            model.reconstruction_weight = settings.get("reconstruction", 0.0)
            adam = keras.optimizers.Adam(weight_decay=self.options.weight_decay)
            model.pretrain(batches, optimizer=adam, **schedule(settings["lr"]))
        arguments = schedule(rate)
        arguments["callbacks"] += scheduled(method, settings, epochs)
        history = model.fit(batches, **arguments).history
        return model, {name: [round(float(v), 5) for v in h] for name, h in history.items()}

    def validate(self, method, settings, seed):
        classes = self.options.classes[0]
        data, held = self.load(classes, seed, holdout=True)
        model, _ = self.train(method, settings, seed, data, classes)
        return {"error": measure(model, held)["error"]}

    def test(self, method, settings, seed, classes):
        data, held = self.load(classes, seed)
        model, history = self.train(method, settings, seed, data, classes)
        found = measure(model, held, moved=method in ("prox", "own"), seed=seed)
        named = {f"{classes} classes": found.pop("error"), f"history {classes}": history}
        return named | {f"{name}, {classes}": value for name, value in found.items()}


def correlation(views):
    """Total canonical correlation of two views."""
    metric = CanonicalCorrelation()
    metric.update_state(None, list(views))
    return float(np.sum(metric.correlations()))


def measure(model, data, moved=False, seed=0):
    """Errors on a part (%), the correlation of its codes, and with `moved` both after the layer."""
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
    if moved:  # as the classifiers saw the codes in training
        order = np.random.default_rng(seed).permutation(len(labels))
        parts = np.array_split(order, max(1, len(order) // BATCH))
        moved = [model.between[-1]([code[rows] for code in codes], training=True) for rows in parts]
        moved = [np.concatenate(part) for part in zip(*moved, strict=True)]
        measured["error_with_layer"] = error(moved, labels[order])
        measured["correlation_with_layer"] = correlation(moved)
    return measured


def table(study, options):
    """Markdown: errors, the paper's, differences to Vanilla, settings; correlation of the codes."""
    columns = [f"{n} classes" for n in options.classes]
    paper = {m: {f"{n} classes": text for n, text in cells.items()} for m, cells in PAPER.items()}
    rows = []
    for method, found in study.results().items():
        for name in ("correlation", "correlation_with_layer", "error_with_layer"):
            cells = [list(found.get(f"{name}, {n}", {}).values()) for n in options.classes]
            if any(cells):
                label = f"{name.replace('_', ' ')}, {TITLES[method]}"
                rows.append((label, *map(mean_and_spread, cells)))
    tables = study.tables("test error, %", TITLES, columns, paper)
    if not rows:
        return tables
    return tables + "\n" + markdown(("test part", *columns), rows)


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
    parser.add_argument("--classes", nargs="+", type=positive, default=[20])
    parser.add_argument("--methods", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--backbone",
        choices=["resnet18", "small"],
        help="(resnet18 for Sketchy; glyphs have those of labels.py)",
    )
    parser.add_argument(
        "--hidden", type=positive, default=512, help="units of the classifier's layers"
    )
    parser.add_argument("--trials", type=positive, default=6, help="settings tried per method")
    parser.add_argument(
        "--rates", nargs=2, type=float, default=RATE, help="range of the learning rates"
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        type=positive,
        default=[4800],
        help="batches of a training, not of glyphs: one number, or one for each of --classes",
    )
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    options = parser.parse_args(arguments)
    if options.data is not None and options.backbone is None:
        options.backbone = "resnet18"
    if len(options.steps) not in (1, len(options.classes)):
        parser.error("--steps takes one number, or one for each of --classes")
    if len(options.steps) == 1:
        options.steps *= len(options.classes)
    if options.size < 8 or options.pairs < 5:
        parser.error("--size must be at least 8 and --pairs at least 5")
    if options.data is None and not 2 <= min(options.classes) <= max(options.classes) <= GLYPHS:
        parser.error(f"--classes must be in 2..{GLYPHS}, the glyphs there are")
    return options


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    images = Images(options) if options.backbone else Glyphs(options)
    size = ("data", "pairs", "size", "backbone", "hidden", "steps", "weight_decay")
    study = Study(
        options.output,
        {name: getattr(options, name) for name in size},
        spaces(tuple(options.rates), RIDGE, WEIGHT, LAM, options.methods),
        options.trials,
        options.seeds,
        options.classes,
        images.validate,
        images.test,
    )

    def save():
        write(options.output / "sketchy.md", table(study, options))

    study.run(save)
    learning_curves(study.histories(TITLES), options.output / "sketchy.png")
    print(table(study, options), end="")
    return study.results()


if __name__ == "__main__":
    main()
