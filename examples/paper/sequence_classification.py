"""LSTM, AdvLSTM, ProxLSTM, and both at once: the sequence classification of the paper, and more.

    python examples/paper/sequence_classification.py           # Japanese Vowels, about 30 minutes
    python examples/paper/sequence_classification.py --dataset arabic_digits --data FOLDER
    python examples/paper/sequence_classification.py --dataset har --data "UCI HAR Dataset"
    python examples/paper/sequence_classification.py --dataset uea --data FOLDER --name NAME
    python examples/paper/sequence_classification.py --dataset imdb --data imdb.npz

Every finished run is a line of OUTPUT/DATASET.jsonl; the same command continues after a stop.
Tables, a t-SNE of the last hidden state and the curve of accuracy against the number of training
series are made of these lines.

The protocol, written before the first run (the sizes after timing single steps):

* Network: Conv1D -> LSTM of 64 -> Dense (IMDB: Embedding -> LSTM -> Dense(30) -> Dense), Adam with
  the paper's learning rate and weight decay, which are not searched. A mini-batch holds series
  of similar length, padded to the longest of them, rounded up to a multiple of 16 steps (IMDB:
  random ones, all 200 steps).
* Every method has two stages, equally long for all methods; the weights after the last step count.
  First stage: a plain LSTM, or one that is trained adversarially. Second stage, from those weights
  with a fresh optimizer:
      LSTM                       plain, then plain;
      AdvLSTM                    plain, then adversarial training (AdversarialModel);
      ProxLSTM                   plain, then a ProxLSTM in the place of the LSTM;
      both at once               plain, then adversarial training of a ProxLSTM;
      ProxLSTM after AdvLSTM     adversarial, then a ProxLSTM (the paper's order for IMDB).
  On IMDB the first stage of AdvLSTM and of both at once is adversarial, too, as in the paper.
* Validation: a sixth of every class; of Spoken Arabic Digits a sixth of the training speakers (11
  of 66), with all that they say. The seed deals out this part, initial weights and batches, the
  same for all methods. Features are normalized over the training part.
* Settings: epsilon of AdvLSTM; lam of each of the three methods with a ProxLSTM (delta = 1), with
  the epsilon of AdvLSTM where there is one. A grid starts with three values, half decades of
  epsilon (1, 3, 10; IMDB 0.1, 0.3, 1), decades of lam (0.01, 0.1, 1; for the other two methods
  around ProxLSTM's), and grows on the side where the best value lies at an edge, up to nine values
  (on IMDB lam stops at 0.001, where a run takes a quarter of an hour).
  The best mean validation accuracy on separate seeds (100, 101, ...) wins; the validation loss
  breaks ties. Settings are chosen with all training series and used at every number of series.
* Then seeds 0, 1, ... on the test part, which nothing else sees. Noise: normal, of standard
  deviation 0.2, 0.5 and 1 in units of a feature's, on all test series. Attack: five steps of
  projected gradient ascent of the loss in an L2 ball of radius 0.5, 1 and 2 around a whole
  normalized series, on at most 500 test series (of Spoken Arabic Digits 200). Neither on IMDB.
* Fewer training series (Japanese Vowels: 5, 10, 15, 20 of 25 a class, those of 5 among those of
  10): as many steps of the same batch size, the first four methods.
* Sizes (epochs of the first and the second stage, seeds for settings, for tests): Japanese Vowels
  60, 30, 3, 10 (fewer series: 5); Spoken Arabic Digits, the first four methods, 100 training
  series a digit of the 550 after the split: 20, 10, 2, 3; IMDB, 5,000 reviews to train and 5,000
  to test, of 200 words of a vocabulary of 10,000: 6, 3, 1, 5.
* Differences are paired by seed. Wilcoxon's signed-rank test, two-sided; Holm's correction over the
  comparisons of a row.
"""

import argparse
import dataclasses
import functools
import pathlib
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from report import Log, positive
from sequence_report import report
from sequence_training import (
    TASKS,
    Network,
    first,
    fresh_weights,
    normalized,
    split,
)

FIRST_TUNING_SEED = 100
LAMS = (-2, -1, 0)  # decades
MOST = 9  # values of a grid
NOISES = (0.2, 0.5, 1.0)  # standard deviation, in units of that of a feature
RADII = (0.5, 1.0, 2.0)  # L2 norm of the perturbation of a whole normalized series
SHOWN = 500  # points of a t-SNE


class Method(NamedTuple):
    """A method's second stage; whether its first is adversarial ("words": on IMDB only)."""

    prox: bool = False
    adversarial: bool = False
    adversarial_first: bool | str = False


METHODS = {
    "LSTM": Method(),
    "AdvLSTM": Method(adversarial=True, adversarial_first="words"),
    "ProxLSTM": Method(prox=True),
    "both at once": Method(prox=True, adversarial=True, adversarial_first="words"),
    "ProxLSTM after AdvLSTM": Method(prox=True, adversarial_first=True),
}


def strength(kind, k):
    """Value k of a grid: half decades of epsilon (1, 3, 10, ...), decades of lam."""
    return float(f"{10.0 ** (k / 2 if kind == 'epsilon' else k):.1g}")


def choose(score, start, least=None):
    """The k with the largest score, from a grid that grows while it lies at an edge.

    The grid has no k below `least`. Returns k, the scores by k, and whether k lies at an edge all
    the same.
    """
    scores = {k: score(k) for k in start if least is None or k >= least}
    while True:
        best = max(scores, key=scores.get)
        inside = min(scores) < best < max(scores)
        if inside or len(scores) >= MOST or best == min(scores) == least:
            return best, dict(sorted(scores.items())), not inside
        new = best - 1 if best == min(scores) else best + 1
        scores[new] = score(new)


class Study:
    """The runs of a data set: each is computed once."""

    def __init__(self, task, options):
        self.task, self.options = task, options
        self.train, self.test = (first(part, options.examples, 0) for part in task.load(options))
        self.log = Log(options.output / f"{options.dataset}.jsonl")
        self.network = functools.cache(
            lambda prox, adversarial: Network(task, self.train, options.words, prox, adversarial)
        )
        self.parts = functools.lru_cache(1)(self._parts)
        self.first_stage = functools.cache(self._first_stage)
        self.settings = {}

    def _parts(self, seed, count):
        """Training and validation parts, the test part's values."""
        fitted, held_out = split(
            self.train, seed, self.task.speakers, count or self.options.per_class
        )
        x, x_test = normalized(self.task, self.train, self.test, fitted)
        fit, held = ((x[k], self.train.labels[k]) for k in (fitted, held_out))
        return fit, held, x_test

    def steps(self, epochs):
        """Steps, as many for every number of training series as epochs of all series take."""
        fitted, _ = split(self.train, 0, self.task.speakers, self.options.per_class)
        return epochs * -(-len(fitted) // self.task.batch)

    def _first_stage(self, seed, count, epsilon):
        """The weights after the first stage, which is plain without epsilon."""
        network = self.network(False, epsilon is not None)
        start = fresh_weights(self.task, self.train, self.options.words, seed)
        fit = self.parts(seed, count)[0]
        network.train(start, fit, self.steps(self.options.epochs), seed, epsilon=epsilon)
        return network.get()

    def trained(self, name, settings, seed, count=None):
        """The network of a method after both stages."""
        method = METHODS[name]
        epsilon, lam = settings.get("epsilon"), settings.get("lam")
        adversarial_first = method.adversarial_first is True or (
            method.adversarial_first == "words" and self.task.words
        )
        start = self.first_stage(seed, count, epsilon if adversarial_first else None)
        network = self.network(method.prox, method.adversarial)
        network.train(
            start,
            self.parts(seed, count)[0],
            self.steps(self.options.fine_tune),
            seed,
            epsilon=epsilon if method.adversarial else None,
            lam=lam,
        )
        return network

    def validation(self, name, settings):
        """Mean validation accuracy and -loss over the seeds for settings."""

        def validate(seed):
            return self.trained(name, settings, seed).validation(*self.parts(seed, None)[1])

        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.options.tuning_seeds)
        scores = [
            self.log.once(
                functools.partial(validate, seed),
                **dict(stage="tune", method=name, settings=settings, seed=seed),
            )
            for seed in seeds
        ]
        accuracy, loss = map(float, np.mean(scores, axis=0))
        note(f"{name} {settings}: validation accuracy {accuracy:.2f}, loss {-loss:.4f}")
        return accuracy, loss

    def tune(self, name, kind, start, known):
        """The best value of `kind` of a method with the `known` settings; and all values tried."""
        best, scores, at_edge = choose(
            lambda k: self.validation(name, {**known, kind: strength(kind, k)}),
            start,
            self.task.least_lam if kind == "lam" else None,
        )
        return {
            "settings": {**known, kind: strength(kind, best)},
            "kind": kind,
            "tried": [[strength(kind, k), *values] for k, values in scores.items()],
            "at_edge": at_edge,
        }

    def settings_of(self, name):
        """The chosen settings of a method."""
        if name not in self.settings:
            method, known = METHODS[name], {}
            if name != "AdvLSTM" and (method.adversarial or method.adversarial_first):
                known = self.settings_of("AdvLSTM")
            if name == "AdvLSTM":
                found = self.tune(name, "epsilon", self.task.epsilons, known)
            elif name == "LSTM":
                tried = [[0.0, *self.validation(name, {})]]  # to compare with the others'
                found = {"settings": {}, "kind": "nothing", "tried": tried, "at_edge": False}
            elif name == "ProxLSTM":
                found = self.tune(name, "lam", LAMS, known)
            else:
                middle = round(np.log10(self.settings_of("ProxLSTM")["lam"]))
                grid = [middle + k - LAMS[len(LAMS) // 2] for k in LAMS]
                found = self.tune(name, "lam", grid, known)
            self.log.once(lambda: found, stage="chosen", method=name)
            self.settings[name] = found["settings"]
        return self.settings[name]

    def measure(self, name, seed, count=None):
        """Accuracies of a method on the test part; of all training series also the robust ones."""
        network = self.trained(name, self.settings_of(name), seed, count)
        x, (_, mask, labels) = self.parts(seed, count)[2], self.test
        found = {"clean": network.accuracy(x, labels)}
        if count is None and not self.task.words:
            rng = np.random.default_rng(1000 + seed)
            noise = rng.normal(size=x.shape).astype(np.float32) * mask[..., None]
            for sigma in NOISES:
                found[f"noise {sigma:g}"] = network.accuracy(x + sigma * noise, labels)
            some = first(self.test._replace(values=x), self.task.attacked, 0)
            for radius in RADII:
                accuracy = network.attacked(some.values, some.labels, some.mask, radius)
                found[f"L2 attack {radius:g}"] = accuracy
        if count is None and seed == 0:
            found["points"] = self.points(network, x)
        return found

    def points(self, network, x):
        """A t-SNE of the last hidden states of some test series: x, y, label."""
        from sklearn.manifold import TSNE

        some = first(self.test._replace(values=x), SHOWN, 0)
        states = network.states(some.values)
        perplexity = min(30.0, (len(states) - 1) / 3)
        placed = TSNE(perplexity=perplexity, random_state=0).fit_transform(states)
        return [
            [round(float(v), 2) for v in place] + [int(label)]
            for place, label in zip(placed, some.labels, strict=True)
        ]

    def run(self):
        """All runs that are missing, in the order of the protocol."""
        options = self.options
        names = ("units", "words", "steps", "examples", "per_class", "epochs", "fine_tune")
        names = (*names, "tuning_seeds")
        size = {name: getattr(options, name) for name in names}
        if self.log.once(lambda: size, stage="size") != size:
            raise SystemExit(f"{self.log.path} holds runs of another size than {size}")
        for name in options.methods:
            self.settings_of(name)
        few = [name for name in options.methods if name != "ProxLSTM after AdvLSTM"]
        for count in (None, *options.counts):
            methods = options.methods if count is None else few
            for seed in range(options.seeds):
                clean = {
                    name: self.log.once(
                        functools.partial(self.measure, name, seed, count),
                        **dict(stage="test", method=name, count=count, seed=seed),
                    )["clean"]
                    for name in methods
                }
                found = ", ".join(f"{name} {value:.2f}" for name, value in clean.items())
                note(f"{count or 'all'} series a class, seed {seed}: {found}")


def note(text):
    print(f"{time.strftime('%H:%M')} {text}", flush=True)


def parse(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--dataset", choices=TASKS, default="japanese_vowels")
    parser.add_argument("--data", type=pathlib.Path, help="folder, archive or file of the data")
    parser.add_argument("--name", help="of a UEA pair, where the folder has several")
    parser.add_argument("--allow-pickle", action="store_true", help="only of a file you trust")
    parser.add_argument(
        "--examples", type=positive, help="at most so many to train and to test (all; IMDB 5,000)"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="(those of the protocol)")
    parser.add_argument("--seeds", type=positive, help="(the task's, as all sizes here)")
    parser.add_argument("--tuning-seeds", type=positive)
    parser.add_argument("--epochs", type=positive, help="of the first stage")
    parser.add_argument("--fine-tune", type=positive, help="epochs of the second stage")
    parser.add_argument("--per-class", type=positive, help="training series a class at most")
    parser.add_argument("--counts", type=positive, nargs="*", help="smaller numbers of them")
    parser.add_argument("--units", type=positive, help="of the LSTM, and IMDB's embedding")
    parser.add_argument(
        "--words", type=positive, default=10000, help="IMDB: size of the vocabulary"
    )
    parser.add_argument("--steps", type=positive, default=200, help="IMDB: words kept of a review")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("outputs"))
    parser.add_argument("--report", action="store_true", help="of the runs there are; run nothing")
    options = parser.parse_args(argv)
    task = TASKS[options.dataset]
    sizes = ("seeds", "tuning_seeds", "epochs", "fine_tune", "per_class", "counts", "units")
    for name in ("methods", *sizes):
        if getattr(options, name) is None:
            setattr(options, name, getattr(task, name))
    options.examples = options.examples or task.examples
    if options.data is None and options.dataset != "japanese_vowels" and not options.report:
        parser.error(f"--dataset {options.dataset} needs --data")
    if task.speakers and options.examples:
        parser.error("--examples would tear the speakers of this data set apart")
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def main(argv=None):
    options = parse(argv)
    task = dataclasses.replace(TASKS[options.dataset], units=options.units)
    if options.report:
        runs = Log(options.output / f"{options.dataset}.jsonl").runs
    else:
        study = Study(task, options)
        study.run()
        runs = study.log.runs
    return report(list(runs.values()), task, options.output / options.dataset)


if __name__ == "__main__":
    # One thread: the steps are too small to use more.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    main()
