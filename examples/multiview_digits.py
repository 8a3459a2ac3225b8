"""Views of handwritten digits: ProxNet beside Vanilla, RRM, DCCA and DCCAE.

    python examples/multiview_digits.py                                     # the demo
    python examples/multiview_digits.py --methods all --seeds 0 1 2 3 4     # the comparison
    python examples/multiview_digits.py --methods all --tune 6              # with tuning
    python examples/multiview_digits.py --methods all --labels-per-class 5  # few labels

Each view has its encoder and its classifier; the prediction averages their logits. ProxNet puts
`ProxCCA` between them: in training, the codes of a mini-batch are moved towards high canonical
correlation; at test time they pass unchanged (`--inference`). Writes a table, a figure and the
trained model, which is reloaded in a new process.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import keras
import matplotlib
import numpy as np
from keras.layers import BatchNormalization, Dense, Dropout
from writing import markdown, save_figure, write

from proxnet_tf import (
    DCCA,
    DCCAE,
    CanonicalCorrelation,
    LambdaSchedule,
    LinearCCA,
    MultiviewClassifier,
    linear_lambda,
)
from proxnet_tf.datasets import load_multiple_features

NAMES = {
    "vanilla": "Vanilla",
    "dcca": "DCCA",
    "dccae": "DCCAE",
    "rrm": "RRM",
    "prox": "ProxNet",
    "prox+": "ProxNet+L",  # as published: minus the mean correlation of the codes in the loss too
}
PROX = ("prox", "prox+")


@dataclasses.dataclass
class Settings:
    """What is tuned. `strength` is lam at epoch 0 (prox), or the weight of L (rrm) or of the
    reconstruction errors (dccae). `normalize` gives the codes unit variance (batch statistics)."""

    strength: float = 0.0
    growth: float = 0.0
    epsilon: float = 1e-4
    components: int = 10
    hidden: int = 128
    dropout: float = 0.0
    normalize: int = 0
    learning_rate: float = 1e-3


SETTINGS = {
    "vanilla": Settings(normalize=1),
    "dcca": Settings(epsilon=1e-1, hidden=256, dropout=0.3, learning_rate=3e-3),
    "dccae": Settings(strength=0.1, epsilon=1e-1, hidden=256, dropout=0.3, learning_rate=3e-3),
    "rrm": Settings(strength=0.1, normalize=1),
    "prox": Settings(strength=0.3, growth=0.5, normalize=1),
    "prox+": Settings(strength=0.3, growth=0.5, normalize=1),
}
# The tuning crosses the first two and draws the others.
STRENGTHS = {
    "vanilla": [0.0],
    "dcca": [0.0],
    "dccae": [0.01, 0.1, 1.0],
    "rrm": [0.01, 0.1, 0.5],
    "prox": [0.1, 1.0, 10.0],
    "prox+": [0.1, 1.0, 10.0],
}
NORMALIZE = [0, 1]
CHOICES = {
    "growth": [0.0, 0.5],
    "epsilon": [1e-4, 1e-2, 1e-1],
    "hidden": [128, 256],
    "dropout": [0.0, 0.3],
    "learning_rate": [1e-3, 3e-3],
}
# Predicts with both saved forms; the SavedModel without importing proxnet_tf.
RELOAD = """
import sys
import numpy as np, tensorflow as tf
folder = sys.argv[1]
with np.load(folder + "/predictions.npz") as stored:
    views = [stored[f"view{j}"] for j in range(len(stored) - 1)]
    wanted = stored["logits"]
artifact = tf.saved_model.load(folder + "/saved_model")
exported = artifact.serve(tuple(tf.constant(view) for view in views)).numpy()
assert "proxnet_tf" not in sys.modules
import keras, proxnet_tf.models
loaded = keras.saving.load_model(folder + "/model.keras").predict(views, verbose=0)
print(max(np.abs(exported - wanted).max(), np.abs(loaded - wanted).max()))
"""


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
    """One of the methods; the parts are the same for all."""

    def network(units, *last):
        hidden = Dense(settings.hidden, activation="relu")
        return keras.Sequential([hidden, Dropout(settings.dropout), Dense(units), *last])

    def code():
        norm = BatchNormalization(momentum=0.9, center=False, scale=False)
        return network(settings.components, *([norm] if settings.normalize else []))

    encoders = [code() for _ in widths]
    predictors = [network(10) for _ in widths]
    options = {"epsilon": settings.epsilon, "predict_with": predict_with}
    if len(widths) > 2:
        options["num_components"] = settings.components
    if method == "dcca":
        return DCCA(encoders, predictors, **options)
    if method == "dccae":
        decoders = [network(width) for width in widths]
        options["reconstruction_weight"] = settings.strength
        return DCCAE(encoders, decoders, predictors, **options)
    if method == "rrm":
        options["correlation_weight"] = settings.strength
    if method == "prox+":
        options["correlation_weight"] = 1 / settings.components
    if method in PROX:
        method = "prox"
        options.update(lam=settings.strength, monitor=True, inference=inference)
    return MultiviewClassifier(encoders, predictors, method=method, **options)


class Progress(keras.callbacks.Callback):
    """One progress bar for a whole run, with the last epoch's figures."""

    shown = ("loss", "val_accuracy", "correlation_before", "correlation", "lam")

    def __init__(self, epochs, title):
        super().__init__()
        print(title)
        self.bar = keras.utils.Progbar(epochs, unit_name="epoch", stateful_metrics=self.shown)

    def on_epoch_end(self, epoch, logs=None):
        self.bar.update(epoch + 1, [(name, logs[name]) for name in self.shown if name in logs])


def fit(model, method, data, settings, options, title=""):
    """Trains a model (both stages of DCCA and DCCAE); returns the validation error by epoch, %."""
    views, labels, weights = data["train"]
    schedule = {"batch_size": options.batch_size, "epochs": options.epochs, "verbose": 0}
    if method in ("dcca", "dccae"):
        model.pretrain(
            views,
            optimizer=keras.optimizers.Adam(settings.learning_rate),
            **schedule | {"batch_size": 4 * options.batch_size, "epochs": options.pretrain_epochs},
        )
    callbacks = [Progress(options.epochs, title)] if title else []
    if method in PROX:
        callbacks.insert(0, LambdaSchedule(linear_lambda(settings.strength, settings.growth)))
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


def run(method, seed, settings, options):
    """Trains one model; returns it, the views of the test part, and what was measured there."""
    started = time.perf_counter()
    data = split_data(options.views, seed, options.labels_per_class)
    keras.utils.set_random_seed(seed)
    widths = [x.shape[1] for x in data["train"][0]]
    model = make_model(method, widths, settings, inference=options.inference)
    curve = fit(model, method, data, settings, options, f"{NAMES[method]}, seed {seed}")
    views, labels, _ = data["test"]
    codes = model.encode(views)
    after = model.prox(codes, training=True) if method in PROX else codes
    measured = {
        "error": error_of(model, views, labels),
        "valid_error": curve,
        "before": correlations(codes),
        "after": correlations(after),
        "seconds": time.perf_counter() - started,
    }
    return model, views, measured


def draw(method, trial):
    """The settings of a trial of the tuning; what all methods have is the same for all."""
    generator = np.random.default_rng(trial)
    strengths = STRENGTHS[method]
    return Settings(
        strength=strengths[trial // len(NORMALIZE) % len(strengths)],
        normalize=NORMALIZE[trial % len(NORMALIZE)],
        **{name: generator.choice(values).item() for name, values in CHOICES.items()},
    )


def tune(method, options):
    """The best of `--tune` settings by the mean validation error over the tuning seeds."""
    best, lowest = None, np.inf
    for trial in range(options.tune):
        settings = draw(method, trial)
        errors = []
        for seed in options.tuning_seeds:
            data = split_data(options.views, seed, options.labels_per_class)
            keras.utils.clear_session()
            keras.utils.set_random_seed(seed)
            widths = [x.shape[1] for x in data["train"][0]]
            model = make_model(method, widths, settings, inference=options.inference)
            errors.append(np.mean(fit(model, method, data, settings, options)[-2:]))
        print(f"{NAMES[method]}, trial {trial}: {np.mean(errors):.2f} % {settings}", flush=True)
        if np.mean(errors) < lowest:
            best, lowest = settings, np.mean(errors)
    return best


def linear_correlation(options, components=10):
    """Total correlation on the test part of linear CCA's projections of the first two raw views."""
    totals = []
    for seed in options.seeds:
        data = split_data(options.views, seed)
        cca = LinearCCA(components).fit(*data["train"][0][:2])
        totals.append(sum(correlations(cca.transform(*data["test"][0][:2]))))
    return totals


def summary(values):
    return f"{np.mean(values):.2f} +- {np.std(values, ddof=1 if len(values) > 1 else 0):.2f}"


def table(results):
    """Test error, its paired difference to RRM, total correlation: mean +- std over seeds."""
    rows = []
    for method, runs in results.items():
        errors = np.array([one["error"] for one in runs])
        paired = ""
        if "rrm" in results and method != "rrm":
            paired = summary(errors - [one["error"] for one in results["rrm"]])
        before = summary([sum(one["before"]) for one in runs])
        after = summary([sum(one["after"]) for one in runs]) if method in PROX else ""
        seconds = np.mean([one["seconds"] for one in runs])
        rows.append((NAMES[method], summary(errors), paired, before, after, f"{seconds:.1f}"))
    header = ("method", "test error, %", "minus RRM", "correlation", "after the layer", "seconds")
    return markdown(header, rows)


def plot(results, path):
    """Validation error by epoch, and the canonical correlations of the codes of the test part."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, (method, runs) in enumerate(results.items()):
        curves = np.array([one["valid_error"] for one in runs])
        style = {"color": f"C{colour}", "label": NAMES[method]}
        epochs = np.arange(1, curves.shape[1] + 1)
        left.plot(epochs, curves.mean(0), **style)
        left.fill_between(epochs, curves.min(0), curves.max(0), color=f"C{colour}", alpha=0.15)
        before, after = (np.mean([one[k] for one in runs], 0) for k in ("before", "after"))
        index = np.arange(1, len(before) + 1)
        right.plot(index, before, "o-", **style)
        if method in PROX:
            style["label"] += ", after the layer"
            right.plot(index, after, "s--", **style)
    left.set(xlabel="epoch", ylabel="validation error (%)", title="Learning curves")
    right.set(xlabel="component", ylabel="correlation", title="Canonical correlations, test part")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    save_figure(figure, path)
    pyplot.close(figure)


def check_saved(model, views, folder):
    """Saves the model in both forms; returns the error of their predictions in a new process."""
    logits = model.predict(views, verbose=0)
    arrays = {f"view{j}": view for j, view in enumerate(views)}
    np.savez(folder / "predictions.npz", logits=logits, **arrays)
    model.save(folder / "model.keras")
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(folder / "saved_model")
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"The saved model could not be used in a new process:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def add_data_arguments(parser):
    """What the examples on these data share."""
    parser.add_argument("--views", nargs="+", default=["fou", "zer"], metavar="VIEW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument(
        "--pretrain-epochs",
        type=int,
        default=150,
        help="of DCCA and DCCAE, in batches 4 x as large",
    )
    parser.add_argument("--labels-per-class", type=int, help="labelled training digits (all: 120)")
    parser.add_argument("--output", type=Path, default=Path("outputs"))


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_data_arguments(parser)
    parser.add_argument(
        "--methods", nargs="+", choices=["all", *NAMES], default=["vanilla", "prox"]
    )
    parser.add_argument("--tune", type=int, default=0, help="settings tried per method")
    parser.add_argument("--tuning-seeds", nargs="+", type=int, default=[100])
    parser.add_argument(
        "--inference",
        choices=["identity", "batch", "moving"],
        default="identity",
        help="what the proximal layer does at test time",
    )
    for field in dataclasses.fields(Settings):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=field.type, help="instead of the method's own setting")
    options = parser.parse_args(arguments)
    if len(options.views) < 2:
        parser.error("--views needs two or more views")
    if options.labels_per_class is not None and not 1 <= options.labels_per_class <= 120:
        parser.error("--labels-per-class must be in 1..120")
    if "all" in options.methods:
        options.methods = list(NAMES)
    return options


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Settings)}
    given = {name: value for name, value in given.items() if value is not None}
    results, chosen = {}, {}
    for method in options.methods:
        settings = tune(method, options) if options.tune else SETTINGS[method]
        settings = dataclasses.replace(settings, **given)
        chosen[method] = dataclasses.asdict(settings)
        print(f"{NAMES[method]}: {settings}")
        runs = [run(method, seed, settings, options) for seed in options.seeds]
        results[method] = [measured for _, _, measured in runs]
        record = json.dumps({"settings": chosen, "results": results})
        write(options.output / "multiview_digits.json", record)
    model, views, _ = runs[-1]
    labels = options.labels_per_class or "all"
    print(f"\nviews {', '.join(options.views)}; seeds {options.seeds}; labels a class: {labels}")
    print(table(results), end="")
    write(options.output / "multiview_digits.md", table(results))
    linear = summary(linear_correlation(options))
    print(f"correlation of linear CCA of the raw views, 10 components: {linear}")
    figure = options.output / "multiview_digits.png"
    plot(results, figure)
    print(f"\nfigure: {figure}")
    difference = check_saved(model, views, options.output)
    print(f"model.keras and saved_model in a new process: logits differ by {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("The reloaded model does not predict what the trained one does.")
    return results


if __name__ == "__main__":
    main()
