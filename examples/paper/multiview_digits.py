"""Views of handwritten digits: ProxNet beside Vanilla, RRM, DCCA and DCCAE.

    python examples/paper/multiview_digits.py --labels-per-class 2                # few labels
    python examples/paper/multiview_digits.py --methods all --seeds 0 1 2 3 4     # the comparison
    python examples/paper/multiview_digits.py --methods all --tune 6              # with tuning

`make demo` runs it with two labels a class and five methods.

Each view has its encoder and its classifier; the prediction averages their logits. ProxNet puts
`ProxCCA` between encoders and classifiers: in training, the codes of a mini-batch are moved towards
high canonical correlation; at test time they pass unchanged (`--inference`). Writes a table, a
figure and the trained model, and reloads the model in a new process.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import time

import keras
import numpy as np
from digits import (
    NAMES,
    SETTINGS,
    Settings,
    add_data_arguments,
    check_data_arguments,
    correlations,
    error_of,
    fit,
    make_model,
    split_data,
    summary,
)
from methods import PROX
from report import figure, markdown, write

from proxnet_tf import LinearCCA

# The tuning tries all pairs of the first two and draws the others at random.
STRENGTHS = {
    "vanilla": [0.0],
    "dcca": [0.0],
    "dccae": [0.01, 0.1, 1.0],
    "rrm": [0.01, 0.1, 0.5],
    "prox": [0.1, 1.0, 10.0],
    "prox+": [0.1, 1.0, 10.0],
    "own": [0.1, 1.0, 10.0],
}
LEGEND = {
    "vanilla": "plain networks",
    "prox": "ProxCCA between encoders and classifiers, as published",
    "prox+": "the same, and the correlation of the codes as a term of the loss",
    "own": "ProxCCA, and the value of its own problem in the loss (`weight`)",
    "rrm": "the correlation of the codes as a term of the loss",
    "dcca": "encoders trained for correlation first",
    "dccae": "encoders trained for correlation and reconstruction first",
}
NORMALIZE = [0, 1]
CHOICES = {
    "growth": [0.0, 0.5],
    "epsilon": [1e-4, 1e-2, 1e-1],
    "hidden": [128, 256],
    "dropout": [0.0, 0.3],
    "learning_rate": [1e-3, 3e-3],
    "weight": [0.1, 1.0, 5.0],
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
    after = model.between[-1](codes, training=True) if method in PROX else codes
    measured = {
        "error": error_of(model, views, labels),
        "valid_error": curve,
        "before": correlations(codes),
        "after": correlations(after),
        "seconds": time.perf_counter() - started,
    }
    return model, views, measured


def draw(method, trial):
    """The settings of a trial of the tuning; shared settings are the same for all methods."""
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
        views = data["train"][0][:2]
        cca = LinearCCA(min(components, *(x.shape[1] for x in views))).fit(*views)
        totals.append(
            sum(correlations(cca.project(x, j) for j, x in enumerate(data["test"][0][:2])))
        )
    return totals


def table(results):
    """Test error, its paired difference to Vanilla, total correlation: mean +- std over seeds."""
    rows = []
    for method, runs in results.items():
        errors = np.array([one["error"] for one in runs])
        paired = ""
        if "vanilla" in results and method != "vanilla":
            paired = summary(errors - [one["error"] for one in results["vanilla"]])
        before = summary([sum(one["before"]) for one in runs])
        after = summary([sum(one["after"]) for one in runs]) if method in PROX else ""
        seconds = np.mean([one["seconds"] for one in runs])
        rows.append((NAMES[method], summary(errors), paired, before, after, f"{seconds:.1f}"))
    header = (
        "method",
        "error on test digits, %",
        "change from Vanilla, points",
        "correlation of the codes",
        "after the layer",
        "seconds",
    )
    return markdown(header, rows)


def findings(results):
    """Text: what the methods are, and which has the lowest error."""
    errors = {name: np.mean([one["error"] for one in runs]) for name, runs in results.items()}
    best = min(errors, key=errors.get)
    lines = [f"{NAMES[name]}: {LEGEND[name]}" for name in results]
    lines.append(
        f"Lowest error on digits not seen in training: {NAMES[best]}, {errors[best]:.1f} %"
    )
    if "vanilla" in errors and best != "vanilla":
        lines[-1] += f", where the plain networks have {errors['vanilla']:.1f} %"
    return "\n".join(lines) + "."


def plot(results, path):
    """Validation error by epoch, and the canonical correlations of the codes of the test part."""

    def draw(_, axes):
        left, right = axes
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
        title = "Canonical correlations, test part"
        right.set(xlabel="component", ylabel="correlation", title=title)
        for panel in axes:
            panel.legend()
            panel.grid(alpha=0.3)

    figure(path, draw, 1, 2, figsize=(10, 4), layout="constrained")


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
    options = check_data_arguments(parser, parser.parse_args(arguments))
    if "all" in options.methods:
        options.methods = list(NAMES)
    return options


def main(arguments=None):
    options = parse(arguments)
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Settings)}
    given = {name: value for name, value in given.items() if value is not None}
    results, chosen = {}, {}
    for method in options.methods:
        settings = tune(method, options) if options.tune else SETTINGS[method]
        settings = dataclasses.replace(settings, **given)
        chosen[method] = dataclasses.asdict(settings)
        if options.tune:
            print(f"{NAMES[method]}: {settings}")
        runs = [run(method, seed, settings, options) for seed in options.seeds]
        results[method] = [measured for _, _, measured in runs]
        spent = sum(one["seconds"] for one in results[method])
        print(
            f"{len(results)} of {len(options.methods)}: {NAMES[method]}, {spent:.0f} s", flush=True
        )
        record = json.dumps({"settings": chosen, "results": results})
        write(options.output / "multiview_digits.json", record)
    model, views, _ = runs[-1]
    labels = options.labels_per_class or "all"
    print(f"\nviews {', '.join(options.views)}; seeds {options.seeds}; labels a class: {labels}")
    print(table(results))
    print(findings(results))
    write(options.output / "multiview_digits.md", table(results))
    linear = summary(linear_correlation(options))
    print(f"correlation of linear CCA of the raw views, 10 components: {linear}")
    path = options.output / "multiview_digits.png"
    plot(results, path)
    print(f"\nfigure: {path}")
    difference = check_saved(model, views, options.output)
    print(f"model.keras and saved_model in a new process: logits differ by {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("The reloaded model does not predict what the trained one does.")
    return results


if __name__ == "__main__":
    main()
