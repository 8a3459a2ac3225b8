"""LSTM, AdvLSTM and ProxLSTM: the sequence classification of the paper.

    python examples/paper/sequence_classification.py             # Japanese Vowels, about 10 minutes
    python examples/paper/sequence_classification.py --seeds 1 --epochs 20 --fine-tune 10
    python examples/paper/sequence_classification.py --dataset har --data "UCI HAR Dataset"
    python examples/paper/sequence_classification.py --dataset arabic_digits --data FOLDER
    python examples/paper/sequence_classification.py --dataset uea --data FOLDER --name NAME
    python examples/paper/sequence_classification.py --dataset imdb --data imdb.npz

Conv1D -> LSTM -> Dense; for IMDB Embedding -> LSTM -> Dense(30) -> Dense. For every seed the
training set is split into five sixths and a sixth (validation); a plain LSTM is trained, and its
weights start all three methods, each trained on for the same number of epochs. For IMDB, as in the
paper, AdvLSTM is trained from scratch, as long as the LSTM, and its weights start AdvLSTM and
ProxLSTM. epsilon of AdvLSTM and lam of ProxLSTM are chosen on the validation parts, from grids of
one size. A mini-batch holds sequences of similar length, except for IMDB. Writes a table, the
numbers and a t-SNE of the last hidden state to `--output`.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from padded import WithMask, by_length
from report import figure, markdown, mean_and_spread, positive, write
from scipy.stats import wilcoxon
from sklearn.manifold import TSNE

from proxnet_tf import AdversarialModel, ProxLSTM
from proxnet_tf.datasets import (
    load_imdb,
    load_japanese_vowels,
    load_spoken_arabic_digits,
    load_uci_har,
    load_uea,
)
from proxnet_tf.models.adversarial import normalize_per_example

LAMS = (1.0, 0.1, 0.01)  # ProxLSTM, with delta = 1
TUNING_SEEDS = 2
NOISES = (0.2, 0.5, 1.0)  # standard deviation, in units of that of a feature
PREDICT = 500  # rows at a time
RADII = (0.5, 1.0, 2.0)  # L2 norm of the perturbation of a whole normalized sequence


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set, its network and the paper's accuracies (LSTM, AdvLSTM, ProxLSTM)."""

    title: str
    load: object
    units: int
    paper: tuple = ("", "", "")
    filters: int = 64
    kernel: int = 3
    batch: int = 64
    by_length: bool = False
    words: bool = False
    epsilons: tuple = (1.0, 3.0, 10.0)  # AdvLSTM, norm of the perturbation of the LSTM's input

    def optimizer(self):
        if self.words:
            return keras.optimizers.Adam(
                keras.optimizers.schedules.ExponentialDecay(5e-4, 1, 0.9998)
            )
        return keras.optimizers.Adam(1e-3, weight_decay=1e-4)


def load_reviews(options):
    return load_imdb(
        options.data,
        num_words=options.words,
        max_length=options.steps,
        allow_pickle=options.allow_pickle,
    )


TASKS = {
    "japanese_vowels": Task(
        "Japanese Vowels",
        lambda options: load_japanese_vowels(),
        64,
        ("94.02 ± 0.72", "94.96 ± 0.44", "95.52 ± 0.63"),
        filters=32,
        batch=45,
        by_length=True,
    ),
    "har": Task(
        "UCI HAR",
        lambda options: load_uci_har(options.data),
        128,
        ("89.75 ± 0.59", "92.01 ± 0.18", "92.08 ± 0.23"),
        kernel=8,
    ),
    "arabic_digits": Task(
        "Spoken Arabic Digits",
        lambda options: load_spoken_arabic_digits(options.data),
        64,
        ("96.32 ± 0.55", "97.45 ± 0.38", "97.99 ± 0.29"),
        by_length=True,
    ),
    "uea": Task("UEA", lambda options: load_uea(options.data, options.name), 64, by_length=True),
    "imdb": Task(
        "IMDB",
        load_reviews,
        64,
        ("92.65 ± 0.04", "93.65 ± 0.03", "94.16 ± 0.11"),
        words=True,
        epsilons=(0.1, 0.5, 2.0),
    ),
}


def make_model(task, data, recurrent, vocabulary):
    """The paper's network around a recurrent layer."""
    classes = int(data.labels.max()) + 1
    inputs = keras.Input(data.values.shape[1:])
    if task.words:
        y = keras.layers.Embedding(vocabulary, task.units, mask_zero=True)(inputs)
        y = keras.layers.Dense(30, activation="relu")(recurrent(y))
        return keras.Model(inputs, keras.layers.Dense(classes)(y))
    y = keras.layers.Conv1D(task.filters, task.kernel, padding="same", activation="relu")(inputs)
    y = recurrent(WithMask()([y, inputs]))
    return keras.Model(inputs, keras.layers.Dense(classes)(y))


def batches(x, y, size, similar, seed):
    """Mini-batches in random order: of similar length, cut out of the sequences sorted by it (ties
    at random), or of random sequences."""
    if not similar:
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=seed)
        return data.batch(size).prefetch(1)
    order = by_length(np.any(x != 0.0, axis=-1).sum(axis=1), seed)
    data = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(size)
    return data.shuffle(-(-len(y) // size), seed=seed).prefetch(1)


class Method:
    """A network that is trained again and again: its graphs are compiled once."""

    def __init__(self, task, data, vocabulary, prox=False, epsilon=None):
        self.task = task
        if prox:
            self.recurrent = ProxLSTM(task.units, name="recurrent")
        else:
            self.recurrent = keras.layers.LSTM(task.units, name="recurrent", use_cudnn=False)
        self.network = make_model(task, data, self.recurrent, vocabulary)
        self.model = self.network
        if epsilon is not None:
            self.model = AdversarialModel(self.network, layer="recurrent", epsilon=epsilon)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = task.optimizer()
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
        data = batches(*data, self.task.batch, self.task.by_length, seed)
        self.model.fit(data, epochs=epochs, shuffle=False, verbose=0)

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
        return 100 * float(np.mean(self.logits(x).argmax(-1) == y))

    def logits(self, x):
        return self.network.predict(x, batch_size=min(len(x), PREDICT), verbose=0)

    def validation(self, x, y):
        """(accuracy, -loss), to be compared."""
        logits = self.logits(x)
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
        size, limit = tf.constant(2.0 * radius / steps), tf.constant(radius)
        moved = []
        for rows in np.split(np.arange(len(y)), range(PREDICT, len(y), PREDICT)):
            part, labels, valid = (tf.constant(t[rows]) for t in (x, y, mask))
            r = tf.zeros_like(part)
            for _ in range(steps):
                r = self.step(part, r, labels, valid, size, limit)
            moved.append(part + r)
        return self.accuracy(np.concatenate(moved), y)


def split(data, seed):
    """Indices of 5/6 of the examples of every class, and of the rest."""
    rng = np.random.default_rng(seed)
    order = [rng.permutation(np.flatnonzero(data.labels == k)) for k in np.unique(data.labels)]
    cut = [len(o) * 5 // 6 for o in order]
    train = np.concatenate([o[:c] for o, c in zip(order, cut, strict=True)])
    return train, np.concatenate([o[c:] for o, c in zip(order, cut, strict=True)])


def normalized(task, train, test, fitted):
    """Both with mean 0 and deviation 1 by feature over the valid steps of the `fitted` examples."""
    if task.words:
        return train.values, test.values
    steps = train.values[fitted][train.mask[fitted]]
    mean, std = steps.mean(axis=0), np.maximum(steps.std(axis=0), 1e-6)
    return [
        np.where(part.mask[..., None], (part.values - mean) / std, 0.0).astype(np.float32)
        for part in (train, test)
    ]


def first(data, count, seed):
    """At most `count` examples, drawn at random."""
    if count is None or count >= len(data.labels):
        return data
    rows = np.random.default_rng(seed).permutation(len(data.labels))[:count]
    return type(data)(*(part[rows] for part in data))


def table(results, robust, paper):
    """Markdown: mean ± std over seeds, and the paired differences."""
    names = list(results)
    rows = []
    if any(paper):
        rows.append(("paper (another implementation and split)", *paper))
    for key in ("clean", *robust):
        values = [[r[key] for r in results[name]] for name in names]
        rows.append((key, *(mean_and_spread(v, 2) for v in values)))
    differences = []
    for key in ("clean", *robust):
        for better, base in (("ProxLSTM", "LSTM"), ("AdvLSTM", "LSTM"), ("ProxLSTM", "AdvLSTM")):
            pairs = zip(results[better], results[base], strict=True)
            d = np.array([a[key] - b[key] for a, b in pairs])
            p = wilcoxon(d).pvalue if d.any() else 1.0
            spread = mean_and_spread(d, 2, "+")
            differences.append((f"{better} - {base}, {key}", spread, f"{p:.3f}"))
    titles = ("paired difference", "mean ± std", "Wilcoxon p")
    return f"{markdown(('test accuracy, %', *names), rows)}\n{markdown(titles, differences)}"


def plot(methods, x, y, path):
    """t-SNE of the last hidden state of every method."""

    def draw(_, axes):
        for axis, (name, method) in zip(axes, methods.items(), strict=True):
            state = keras.Model(method.network.inputs[0], method.recurrent.output)
            states = state.predict(x, batch_size=min(len(x), PREDICT), verbose=0)
            perplexity = min(30.0, (len(x) - 1) / 3)
            points = TSNE(perplexity=perplexity, random_state=0).fit_transform(states)
            axis.scatter(*points.T, c=y, cmap="tab10", s=6)
            axis.set(title=name, xticks=[], yticks=[])

    figure(path, draw, 1, len(methods), figsize=(4 * len(methods), 4), layout="tight")


def run(arguments):
    began = time.time()
    task = TASKS[arguments.dataset]
    if arguments.units:
        task = dataclasses.replace(task, units=arguments.units)
    if arguments.random_batches:
        task = dataclasses.replace(task, by_length=False)
    train, test = (first(part, arguments.examples, 0) for part in task.load(arguments))
    counts = f"{len(train.labels)} and {len(test.labels)} examples"
    print(f"{task.title}: {counts}, up to {train.mask.shape[1]} steps", flush=True)
    build = functools.partial(Method, task, train, arguments.words)
    methods = {"LSTM": build(), "ProxLSTM": build(prox=True)}
    adversarial = {epsilon: build(epsilon=epsilon) for epsilon in task.epsilons}
    prox = methods["ProxLSTM"]

    @functools.cache
    def prepare(seed):
        """Normalized training, validation and test parts, fresh weights, a converged LSTM's."""
        fitted, held_out = split(train, seed)
        x, x_test = normalized(task, train, test, fitted)
        fit, held = ((x[k], train.labels[k]) for k in (fitted, held_out))
        keras.utils.set_random_seed(seed)
        fresh = build().get()
        methods["LSTM"].train(fresh, fit, arguments.epochs, seed)
        return fit, held, x_test, fresh, methods["LSTM"].get()

    def note(text):
        print(f"{text} ({time.time() - began:.0f} s)", flush=True)

    def tuned(kind, values, start_of):
        """The value with the best mean validation accuracy, then loss."""
        means = {}
        for value in values:
            method = adversarial[value] if kind == "epsilon" else prox
            if kind == "lam":
                prox.recurrent.lam.assign(value)
            scores = []
            for seed in range(min(arguments.tuning_seeds, arguments.seeds)):
                fit, held, *_ = prepare(seed)
                method.train(start_of(seed), fit, arguments.fine_tune, seed)
                scores.append(method.validation(*held))
            means[value] = tuple(np.mean(scores, axis=0))
            accuracy, loss = means[value]
            note(f"validation: {kind} = {value:g}: accuracy {accuracy:.2f}, loss {-loss:.4f}")
        return max(means, key=means.get)

    epsilon = tuned("epsilon", task.epsilons, lambda seed: prepare(seed)[-1])
    methods = {"LSTM": methods["LSTM"], "AdvLSTM": adversarial[epsilon], "ProxLSTM": prox}

    @functools.cache
    def start_of_robust(seed):
        """What AdvLSTM and ProxLSTM start from."""
        fit, _, _, fresh, converged = prepare(seed)
        if not task.words:
            return converged
        methods["AdvLSTM"].train(fresh, fit, arguments.epochs, seed)
        return methods["AdvLSTM"].get()

    lam = tuned("lam", LAMS, start_of_robust)
    prox.recurrent.lam.assign(lam)
    note(f"chosen: epsilon = {epsilon:g}, lam = {lam:g}")

    settings = {k: str(v) for k, v in vars(arguments).items()} | {"epsilon": epsilon, "lam": lam}
    results = {name: [] for name in methods}
    robust = [] if task.words else [f"noise {s:g}" for s in NOISES]
    robust += [] if task.words else [f"L2 attack {r:g}" for r in RADII]
    for seed in range(arguments.seeds):
        fit, _, x_test, _, converged = prepare(seed)
        valid = test.mask[..., None]
        for name, method in methods.items():
            start = converged if name == "LSTM" else start_of_robust(seed)
            method.train(start, fit, arguments.fine_tune, seed)
            row = {"clean": method.accuracy(x_test, test.labels)}
            if robust:
                rng = np.random.default_rng(1000 + seed)
                noise = rng.normal(size=x_test.shape).astype(np.float32)
                for key, sigma in zip(robust, NOISES, strict=False):
                    row[key] = method.accuracy(x_test + sigma * noise * valid, test.labels)
                for key, radius in zip(robust[len(NOISES) :], RADII, strict=True):
                    row[key] = method.attacked(x_test, test.labels, test.mask, radius)
            results[name].append(row)
        clean = ", ".join(f"{name} {results[name][-1]['clean']:.2f}" for name in methods)
        note(f"seed {seed}: {clean} ")
        record = {"settings": settings, "results": results}
        stem = arguments.output / arguments.dataset
        write(stem.with_suffix(".json"), json.dumps(record, indent=1))
        tables = table(results, robust, task.paper)
        write(stem.with_suffix(".md"), tables)
        if seed == 0:
            shown = first(test, 1000, 0)
            points = first(test._replace(values=x_test), 1000, 0).values
            plot(methods, points, shown.labels, stem.with_name(f"{stem.name}_tsne.png"))
    print(tables, end="")
    return results


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--dataset", choices=TASKS, default="japanese_vowels")
    parser.add_argument("--data", type=pathlib.Path, help="folder, archive or file of the data")
    parser.add_argument("--name", help="of a UEA pair, where the folder has several")
    parser.add_argument("--allow-pickle", action="store_true", help="only of a file you trust")
    parser.add_argument(
        "--examples", type=positive, help="at most so many to train and to test (all)"
    )
    parser.add_argument("--seeds", type=positive, default=10)
    parser.add_argument("--tuning-seeds", type=positive, default=TUNING_SEEDS)
    parser.add_argument("--epochs", type=positive, default=100, help="of the first LSTM")
    parser.add_argument(
        "--fine-tune", type=positive, default=50, help="epochs of every method after it"
    )
    parser.add_argument(
        "--units", type=positive, help="of the LSTM, and IMDB's embedding (the task's)"
    )
    parser.add_argument(
        "--words", type=positive, default=20000, help="IMDB: size of the vocabulary"
    )
    parser.add_argument("--steps", type=positive, default=400, help="IMDB: words kept of a review")
    parser.add_argument(
        "--random-batches", action="store_true", help="not of sequences of similar length"
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("outputs"))
    arguments = parser.parse_args(argv)
    if arguments.data is None and arguments.dataset != "japanese_vowels":
        parser.error(f"--dataset {arguments.dataset} needs --data")
    arguments.output.mkdir(parents=True, exist_ok=True)
    return run(arguments)


if __name__ == "__main__":
    main()
