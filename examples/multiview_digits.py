"""Two views of handwritten digits: networks without and with a proximal CCA layer (ProxNet).

    python examples/multiview_digits.py

Each view has its encoder and its classifier; the prediction averages their logits. ProxNet puts
`ProxCCA` between them: in training, the codes of a mini-batch are moved towards high canonical
correlation, less and less as lam grows; at test time they pass unchanged. Writes a table, a figure
and the trained model, which is reloaded in a new process.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import keras
import matplotlib
import numpy as np

from proxnet_tf import CanonicalCorrelation, LambdaSchedule, ProxCCA, linear_lambda
from proxnet_tf.datasets import load_multiple_features

METHODS = ("Vanilla", "ProxNet")
# Predicts with both saved forms; the SavedModel without importing proxnet_tf.
RELOAD = """
import sys
import numpy as np, tensorflow as tf
folder = sys.argv[1]
with np.load(folder + "/predictions.npz") as stored:
    views = [stored[f"view{j}"] for j in range(len(stored) - 1)]
    wanted = stored["logits"]
artifact = tf.saved_model.load(folder + "/saved_model")
exported = artifact.serve(views).numpy()
assert "proxnet_tf" not in sys.modules
import keras, proxnet_tf
loaded = keras.saving.load_model(folder + "/model.keras").predict(views, verbose=0)
print(max(np.abs(exported - wanted).max(), np.abs(loaded - wanted).max()))
"""


def split_data(view_names, seed):
    """Train, validation and test parts (120, 30 and 50 digits a class), scaled by the first."""
    views, labels = load_multiple_features(view_names)
    order = np.random.default_rng(seed).permutation(len(labels))
    rank = np.zeros(len(labels), int)  # position of a digit among those of its class
    for label in np.unique(labels):
        rank[order[labels[order] == label]] = np.arange(np.sum(labels == label))
    parts = {
        "train": order[rank[order] < 120],
        "valid": order[(rank[order] >= 120) & (rank[order] < 150)],
        "test": order[rank[order] >= 150],
    }
    scaled = []
    for view in views.values():
        mean, scale = view[parts["train"]].mean(0), view[parts["train"]].std(0)
        scaled.append((view - mean) / np.where(scale > 0, scale, 1.0))
    return {name: ([x[rows] for x in scaled], labels[rows]) for name, rows in parts.items()}


def build(method, widths, options):
    """The classifier, and the encoders with the layer under test as the model of the codes."""
    inputs = [keras.Input((width,)) for width in widths]
    codes = []
    for x in inputs:
        hidden = keras.layers.Dense(options.hidden, activation="relu")(x)
        codes.append(keras.layers.Dense(options.components)(hidden))
    features = ProxCCA(lam=options.lam, monitor=True)(codes) if method == "ProxNet" else codes
    logits = []
    for x in features:
        hidden = keras.layers.Dense(options.hidden, activation="relu")(x)
        logits.append(keras.layers.Dense(10)(hidden))
    model = keras.Model(inputs, keras.layers.Average()(logits))
    model.compile(
        keras.optimizers.Adam(options.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, keras.Model(inputs, [codes, features])


class Progress(keras.callbacks.Callback):
    """One progress bar for a whole run, with the last epoch's figures."""

    shown = ("loss", "val_accuracy", "correlation_before", "correlation", "lam")

    def __init__(self, epochs, title):
        super().__init__()
        print(title)
        self.bar = keras.utils.Progbar(epochs, unit_name="epoch", stateful_metrics=self.shown)

    def on_epoch_end(self, epoch, logs=None):
        self.bar.update(epoch + 1, [(name, logs[name]) for name in self.shown if name in logs])


def correlations(views):
    metric = CanonicalCorrelation()
    metric.update_state(None, views)
    return np.asarray(metric.correlations())


def run(method, seed, options):
    """Trains one model; returns it, its inputs for the test part, and what was measured."""
    data = split_data(options.views, seed)
    keras.utils.set_random_seed(seed)
    model, coder = build(method, [x.shape[1] for x in data["train"][0]], options)
    callbacks = [Progress(options.epochs, f"{method}, seed {seed}")]
    if method == "ProxNet":
        callbacks.insert(0, LambdaSchedule(linear_lambda(options.lam, options.growth)))
    history = model.fit(
        *data["train"],
        validation_data=data["valid"],
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=0,
        callbacks=callbacks,
    ).history
    views, labels = data["test"]
    error = 100 * np.mean(np.argmax(model.predict(views, verbose=0), 1) != labels)
    codes, features = coder(views, training=True)
    measured = {
        "error": float(error),
        "valid_error": [100 * (1 - a) for a in history["val_accuracy"]],
        "before": correlations(codes).tolist(),
        "after": correlations(features).tolist(),
    }
    return model, views, measured


def check_saved(model, views, folder):
    """Saves the model in both forms; returns the error of their predictions in a new process."""
    logits = model.predict(views, verbose=0)
    np.savez(
        folder / "predictions.npz", logits=logits, **{f"view{j}": x for j, x in enumerate(views)}
    )
    model.save(folder / "model.keras")
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(folder / "saved_model")
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"The saved model could not be used in a new process:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def plot(results, path):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, (method, runs) in enumerate(results.items()):
        curves = np.array([run["valid_error"] for run in runs])
        epochs = np.arange(1, curves.shape[1] + 1)
        left.plot(epochs, curves.mean(0), label=method, color=f"C{colour}")
        left.fill_between(epochs, curves.min(0), curves.max(0), color=f"C{colour}", alpha=0.2)
        before, after = (np.mean([run[k] for run in runs], 0) for k in ("before", "after"))
        index = np.arange(1, len(before) + 1)
        right.plot(index, before, "o-", label=f"{method}, codes", color=f"C{colour}")
        if not np.allclose(before, after):
            right.plot(index, after, "s--", label=f"{method}, after the layer", color=f"C{colour}")
    left.set(xlabel="epoch", ylabel="validation error (%)", title="Learning curves")
    right.set(xlabel="component", ylabel="correlation", title="Canonical correlations, test part")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def table(results):
    """Test error and total correlation of the codes, mean and standard deviation over seeds."""
    lines = [f"{'method':10} {'test error %':>14} {'correlation before':>19} {'after':>14}"]
    for method, runs in results.items():
        columns = [
            [run["error"] for run in runs],
            [np.sum(run["before"]) for run in runs],
            [np.sum(run["after"]) for run in runs],
        ]
        cells = [f"{np.mean(c):6.2f} +- {np.std(c):4.2f}" for c in columns]
        lines.append(f"{method:10} {cells[0]:>14} {cells[1]:>19} {cells[2]:>14}")
    return "\n".join(lines)


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--views", nargs=2, default=["fou", "zer"], metavar="VIEW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--components", type=int, default=10, help="width of the codes")
    parser.add_argument("--hidden", type=int, default=128, help="units of the hidden layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--lam", type=float, default=0.1, help="lam at epoch 0")
    parser.add_argument("--growth", type=float, default=0.5, help="k of lam_t = (1 + k t) lam")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    results = {}
    for method in METHODS:
        runs = [run(method, seed, options) for seed in options.seeds]
        results[method] = [measured for _, _, measured in runs]
    model, views, _ = runs[-1]
    print(f"\nviews {' and '.join(options.views)}, seeds {options.seeds}")
    print(table(results))
    figure = options.output / "multiview_digits.png"
    plot(results, figure)
    (options.output / "multiview_digits.json").write_text(json.dumps(results))
    difference = check_saved(model, views, options.output)
    print(f"\nfigure: {figure}")
    print(
        f"model.keras and saved_model, reloaded in a new process: logits differ by {difference:.1e}"
    )
    if difference > 1e-5:
        raise SystemExit("The reloaded model does not predict what the trained one does.")
    return results


if __name__ == "__main__":
    main()
