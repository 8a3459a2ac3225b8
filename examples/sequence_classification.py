"""LSTM, AdvLSTM and ProxLSTM on Japanese Vowels: the sequence classification of the paper.

    python examples/sequence_classification.py                # 10 seeds, about 10 minutes
    python examples/sequence_classification.py --seeds 1 --epochs 20 --fine-tune 10

Conv1D(32, 3) -> LSTM(64) -> Dense(9). For every seed the training set is split into 225 and 45
(validation) examples; a plain LSTM is trained, and its weights start all three methods, each
trained on for the same number of epochs. epsilon of AdvLSTM and lam of ProxLSTM are chosen on the
validation parts, from grids of one size. Writes a table, the numbers and a t-SNE of the last
hidden state to `--output`.
"""

import argparse
import functools
import json
import os
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf.datasets.japanese_vowels import load_japanese_vowels
from proxnet_tf.layers.prox_lstm import ProxLSTM
from proxnet_tf.models.adversarial import AdversarialModel, normalize_per_example

DATASETS = {"japanese_vowels": load_japanese_vowels}
EPSILONS = (1.0, 3.0, 10.0)  # AdvLSTM, norm of the perturbation of the LSTM's input
LAMS = (1.0, 0.1, 0.01)  # ProxLSTM, with delta = 1
TUNING_SEEDS = 2
BATCH = 45
NOISES = (0.2, 0.5, 1.0)  # standard deviation, in units of that of a feature
RADII = (0.5, 1.0, 2.0)  # L2 norm of the perturbation of a whole normalized sequence
PAPER = {"LSTM": "94.02 ± 0.72", "AdvLSTM": "94.96 ± 0.44", "ProxLSTM": "95.52 ± 0.63"}


class WithMask(keras.layers.Layer):
    """Features of a sequence, masked where the padded input is zero."""

    def call(self, inputs):
        return inputs[0]

    def compute_mask(self, inputs, mask=None):
        return keras.ops.any(inputs[1] != 0.0, axis=-1)


def make_model(steps, features, classes, recurrent):
    """The paper's network around a recurrent layer."""
    inputs = keras.Input((steps, features))
    y = keras.layers.Conv1D(32, 3, padding="same", activation="relu")(inputs)
    y = recurrent(WithMask()([y, inputs]))
    return keras.Model(inputs, keras.layers.Dense(classes)(y))


class Method:
    """A network that is trained again and again: its graphs are compiled once."""

    def __init__(self, data, recurrent, epsilon=None):
        _, steps, features = data.values.shape
        self.network = make_model(steps, features, int(data.labels.max()) + 1, recurrent)
        self.recurrent = recurrent
        self.model = self.network
        if epsilon is not None:
            self.model = AdversarialModel(self.network, layer=recurrent.name, epsilon=epsilon)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(1e-3, weight_decay=1e-4)
        self.model.compile(optimizer, loss, metrics=["accuracy"])
        optimizer.build(self.network.trainable_variables)
        self.fresh = [v.numpy() for v in optimizer.variables]
        self.loss = loss
        self.step = tf.function(self._attack_step)

    def train(self, start, data, epochs, seed):
        """Trains from the weights `start` (by layer) with a fresh optimizer."""
        keras.utils.set_random_seed(seed)
        self.set(start)
        for variable, value in zip(self.model.optimizer.variables, self.fresh, strict=True):
            variable.assign(value)
        self.model.fit(*data, batch_size=BATCH, epochs=epochs, verbose=0)

    def set(self, weights):
        for layer, values in zip(self.network.layers, weights, strict=True):
            layer.set_weights(values)

    def get(self):
        """Weights by layer, without lam."""
        return [
            layer.get_weights()[:3] if layer is self.recurrent else layer.get_weights()
            for layer in self.network.layers
        ]

    def accuracy(self, x, y):
        logits = self.network.predict(x, batch_size=len(x), verbose=0)
        return 100 * float(np.mean(logits.argmax(-1) == y))

    def validation(self, x, y):
        """(accuracy, -loss), to be compared."""
        logits = self.network.predict(x, batch_size=len(x), verbose=0)
        accuracy = 100 * float(np.mean(logits.argmax(-1) == y))
        return accuracy, -float(self.loss(y, logits))

    def _attack_step(self, x, r, y, mask, size, radius):
        with tf.GradientTape() as tape:
            tape.watch(r)
            loss = tf.reduce_sum(
                keras.losses.sparse_categorical_crossentropy(
                    y, self.network(x + r, training=False), from_logits=True
                )
            )
        r += size * normalize_per_example(tape.gradient(loss, r), mask)
        norm = tf.sqrt(tf.reduce_sum(r**2, axis=[1, 2], keepdims=True))
        return r * tf.minimum(1.0, radius / tf.maximum(norm, 1e-12))

    def attacked(self, x, y, mask, radius, steps=5):
        """Accuracy after projected gradient ascent of the loss in the L2 ball of `radius`."""
        tensors = [tf.constant(t) for t in (x, np.zeros_like(x), y, mask)]
        for _ in range(steps):
            size, limit = tf.constant(2.0 * radius / steps), tf.constant(radius)
            tensors[1] = self.step(*tensors, size, limit)
        return self.accuracy(x + tensors[1].numpy(), y)


def split(data, seed):
    """Indices of 5/6 of the examples of every class, and of the rest."""
    rng = np.random.default_rng(seed)
    order = [rng.permutation(np.flatnonzero(data.labels == k)) for k in np.unique(data.labels)]
    cut = [len(o) * 5 // 6 for o in order]
    train = np.concatenate([o[:c] for o, c in zip(order, cut, strict=True)])
    return train, np.concatenate([o[c:] for o, c in zip(order, cut, strict=True)])


def normalized(train, test, fitted):
    """Both with mean 0 and deviation 1 by feature over the valid steps of the `fitted` examples."""
    steps = train.values[fitted][train.mask[fitted]]
    mean, std = steps.mean(axis=0), steps.std(axis=0)
    return [
        np.where(part.mask[..., None], (part.values - mean) / std, 0.0).astype(np.float32)
        for part in (train, test)
    ]


def table(results, robust):
    """Lines of Markdown."""
    from scipy.stats import wilcoxon

    names = list(results)
    lines = ["| test accuracy, % | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]

    def row(label, cells):
        lines.append(f"| {label} | " + " | ".join(cells) + " |")

    clean = {name: np.array([r["clean"] for r in results[name]]) for name in names}
    row("paper (another implementation and split)", [PAPER[name] for name in names])
    row("clean", [f"{v.mean():.2f} ± {v.std(ddof=1):.2f}" for v in clean.values()])
    for key in robust:
        values = [np.array([r[key] for r in results[name]]) for name in names]
        row(key, [f"{v.mean():.2f} ± {v.std(ddof=1):.2f}" for v in values])
    lines += ["", "| paired difference | mean ± std | Wilcoxon p |", "|---|---|---|"]
    for key in ("clean", *robust):
        for better, base in (("ProxLSTM", "LSTM"), ("AdvLSTM", "LSTM"), ("ProxLSTM", "AdvLSTM")):
            pairs = zip(results[better], results[base], strict=True)
            d = np.array([a[key] - b[key] for a, b in pairs])
            p = wilcoxon(d).pvalue if d.any() else 1.0
            spread = f"{d.mean():+.2f} ± {d.std(ddof=1):.2f}"
            lines.append(f"| {better} - {base}, {key} | {spread} | {p:.3f} |")
    return lines


def plot(methods, x, y, path):
    """t-SNE of the last hidden state of every method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from sklearn.manifold import TSNE

    figure, axes = plt.subplots(1, len(methods), figsize=(4 * len(methods), 4))
    for axis, (name, method) in zip(axes, methods.items(), strict=True):
        state = keras.Model(method.network.inputs[0], method.recurrent.output)
        points = TSNE(random_state=0).fit_transform(state.predict(x, batch_size=len(x), verbose=0))
        axis.scatter(*points.T, c=y, cmap="tab10", s=6)
        axis.set(title=name, xticks=[], yticks=[])
    figure.tight_layout()
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=120)
    os.replace(temporary, path)


def write(path, text):
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def run(arguments):
    began = time.time()
    train, test = DATASETS[arguments.dataset]()
    methods = {
        "LSTM": Method(train, keras.layers.LSTM(64, name="recurrent", use_cudnn=False)),
        "ProxLSTM": Method(train, ProxLSTM(64, name="recurrent")),
    }
    adversarial = {
        epsilon: Method(train, keras.layers.LSTM(64, name="recurrent", use_cudnn=False), epsilon)
        for epsilon in EPSILONS
    }
    prox = methods["ProxLSTM"]

    @functools.cache
    def prepare(seed):
        """Normalized training, validation and test parts, and a converged LSTM's weights."""
        fitted, held_out = split(train, seed)
        x, x_test = normalized(train, test, fitted)
        fit, held = ((x[k], train.labels[k]) for k in (fitted, held_out))
        keras.utils.set_random_seed(seed)
        fresh = Method(train, keras.layers.LSTM(64, name="recurrent", use_cudnn=False)).get()
        methods["LSTM"].train(fresh, fit, arguments.epochs, seed)
        return fit, held, x_test, methods["LSTM"].get()

    scores = {("epsilon", e): [] for e in EPSILONS} | {("lam", v): [] for v in LAMS}
    for seed in range(min(TUNING_SEEDS, arguments.seeds)):
        fit, held, _, start = prepare(seed)
        for kind, value in scores:
            method = adversarial[value] if kind == "epsilon" else prox
            if kind == "lam":
                prox.recurrent.lam.assign(value)
            method.train(start, fit, arguments.fine_tune, seed)
            scores[kind, value].append(method.validation(*held))
    means = {key: tuple(np.mean(value, axis=0)) for key, value in scores.items()}
    for (kind, value), (accuracy, loss) in means.items():
        print(f"validation: {kind} = {value:g}: accuracy {accuracy:.2f}, loss {-loss:.4f}")
    epsilon = max(EPSILONS, key=lambda e: means["epsilon", e])
    lam = max(LAMS, key=lambda v: means["lam", v])
    elapsed = f"({time.time() - began:.0f} s)"
    print(f"chosen: epsilon = {epsilon:g}, lam = {lam:g} {elapsed}", flush=True)
    methods = {"LSTM": methods["LSTM"], "AdvLSTM": adversarial[epsilon], "ProxLSTM": prox}
    prox.recurrent.lam.assign(lam)

    settings = {k: str(v) for k, v in vars(arguments).items()} | {"epsilon": epsilon, "lam": lam}
    results = {name: [] for name in methods}
    robust = [f"noise {s:g}" for s in NOISES] + [f"L2 attack {r:g}" for r in RADII]
    for seed in range(arguments.seeds):
        fit, _, x_test, start = prepare(seed)
        valid = test.mask[..., None]
        noise = np.random.default_rng(1000 + seed).normal(size=x_test.shape).astype(np.float32)
        for name, method in methods.items():
            method.train(start, fit, arguments.fine_tune, seed)
            row = {"clean": method.accuracy(x_test, test.labels)}
            for key, sigma in zip(robust, NOISES, strict=False):
                row[key] = method.accuracy(x_test + sigma * noise * valid, test.labels)
            for key, radius in zip(robust[len(NOISES) :], RADII, strict=True):
                row[key] = method.attacked(x_test, test.labels, test.mask, radius)
            results[name].append(row)
        clean = ", ".join(f"{name} {results[name][-1]['clean']:.2f}" for name in methods)
        print(f"seed {seed}: {clean}  ({time.time() - began:.0f} s)", flush=True)
        record = {"settings": settings, "results": results}
        write(arguments.output / "japanese_vowels.json", json.dumps(record, indent=1))
        if seed > 0:
            lines = table(results, robust)
            write(arguments.output / "japanese_vowels.md", "\n".join(lines) + "\n")
        if seed == 0:
            plot(methods, x_test, test.labels, arguments.output / "japanese_vowels_tsne.png")
    if arguments.seeds > 1:
        print("\n".join(lines))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", choices=DATASETS, default="japanese_vowels")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100, help="of the first LSTM")
    parser.add_argument("--fine-tune", type=int, default=50, help="epochs of every method after it")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("outputs"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    run(arguments)


if __name__ == "__main__":
    main()
