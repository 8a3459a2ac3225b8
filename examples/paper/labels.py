"""Error against the number of labels: which way of making two views agree helps, and when?

    python examples/paper/labels.py --output DIR             # the whole study, about three hours
    python examples/paper/labels.py --output DIR --report    # tables and figure of what is there

Every finished run is a line of DIR/labels.jsonl; the same command continues after a stop.

The protocol, written before the first run (the sizes after timing single runs and a look at their
errors on validation rows, most of Vanilla and RRM, some of six other methods):

* Pairs of views: digits `fou`+`zer` (alike: shape) and `pix`+`mor` (unlike: 240 pixels, 6
  morphological features) with a hidden layer of 64 as encoder; glyphs (a photo and a sketch of one
  of 10 characters, drawn once with seed 0) with two convolutions. 10 classes, of each 120 rows to
  train, 30 to choose settings, 50 to test. The test rows are the same for every seed, and in no
  training or validation part; the seed deals out the rest, initial weights and batches, the same
  for all methods. Codes of d = 10 with unit variance (batch statistics); classifiers with a
  hidden layer of 64 on each code; the loss is the mean of the views' cross-entropies, the
  prediction averages their logits. 288 steps of Adam (24 epochs, batches of 100; Vanilla's
  training loss is near 0 by then), a constant learning rate, the weights after the last step.
* Few labels: every training row is in the batches; the cross-entropy leaves out rows without a
  label (weight 0). A row that has a label among 5 a class has it among 10.
* Methods: `METHODS` below. DCCA and DCCAE train encoders for 288 steps in batches of 400, then the
  classifiers for 288 steps. Linear CCA is of the raw columns (of glyphs: means of 4 x 4
  pixels). Moved codes, dropout and so on act in training; at test time codes pass
  unchanged. Inference "moving" and "batch" are measured on the models of ProxCCA with constant lam.
  "Dropout" is there because a layer that acts in training only could be no more than noise.
* Settings are chosen at 10 labels a class, the middle of the range (on a log scale), and used at
  every number of labels: 20 settings for every pair and method, a Latin hypercube on the log scale
  of `SPACE` (learning rates are the same for all methods); all on seed 100, the best four also
  on seeds 101 and 102; the least mean validation error over the three seeds wins. If a chosen value
  lies in the first or last twentieth of its range, the range grows there by half its length (on
  the log scale) and 20 new settings are tried, at most twice.
* Then seeds 0 to 9 at 2, 5, 10, 20, 50 and all 120 labels a class. The falling schedule (the
  settings of the rising one, backwards: no search) at 5, 10 and 50. Test rows are seen only
  here.
* Differences are paired by seed. Wilcoxon's signed-rank test, two-sided, against Vanilla; Holm's
  correction over the methods of one pair and number of labels (a longer family could never be
  significant: with ten seeds p is at least 0.002).
* Robustness, of the same models: one view missing (the other's logits alone), noisy (normal noise
  of deviation 1 on scaled columns or pixels), replaced (by that of another test row). Each is the
  mean over both views. Mispaired training: 10 and 30 % of the training rows exchange second views,
  at 10 labels, seeds 0 to 4, the settings above; a label is that of the first view.
* The solver's tolerance is 1e-4 (default 1e-8), a quarter faster.
* A change after a first run on glyphs: learning rates go up to 0.3 there, for every method. In that
  run (validation and test errors of most methods were seen) Vanilla's best rate on the shorter
  range had 45 % validation error, and one three times the end of the range 33 %; methods whose
  range happened to grow were ahead of the others.
* Two additions, written down before their first run and run by themselves: many classes
  (`--pairs glyphs50`: 50 characters, of each 24 rows to train, 6 to choose settings, 10 to test)
  and small batches (`--pairs fou+zer --batch 25`: the same 24 epochs, four times the steps).
* A third addition, written down before its first run: the method "ProxCCA with its envelope"
  (`ProxCCA(10, lam=.., weight=..)`: the layer, and the value of its own problem in the loss), with
  lam, weight, ridge and learning rate searched as for the others; the envelope alone, the output of
  the layer left out, at all six numbers of labels; inference "moving" and "batch" of the new method
  too. And a fourth pair, `halves`: the left and the right half of scikit-learn's 8 x 8 digits, 32
  pixels each, where neither half tells all. Its classes have 174 images at least: 120 to train, 20
  to choose settings, 34 to test; all methods.
* Order: settings and seeds 0 to 4 of every pair, mispaired rows, seeds 5 to 9. RESULTS.md says
  what was cut for lack of time.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from labels_data import COUNTS, load, part_of
from labels_training import Trainer, linear
from report import Log, positive

LABELS = (2, 5, 10, 20, 50, COUNTS[0])
PAIRS = ("fou+zer", "pix+mor", "halves", "glyphs")
ADDITIONS = ("glyphs50",)
TUNING_LABELS, TUNING_SEEDS, FINALISTS = 10, (100, 101, 102), 4
SHARES = (0.1, 0.3)
MISPAIRED = ("vanilla", "rrm", "prox", "own", "prox+", "dcca", "dccae", "barlow", "vicreg")


class Method(NamedTuple):
    """A method's name in tables, its kind of `Trainer`, and what is searched."""

    title: str
    kind: str
    searched: tuple[str, ...]
    labels: tuple[int, ...] = LABELS


METHODS = {
    "vanilla": Method("Vanilla", "plain", ("lr",)),
    "dropout": Method("dropout of the codes", "dropout", ("lr", "rate")),
    "rrm": Method("RRM: correlation in the loss", "rrm", ("lr", "weight", "ridge")),
    "barlow": Method("Barlow Twins in the loss", "barlow", ("lr", "weight", "off_diagonal")),
    "vicreg": Method("VICReg in the loss", "vicreg", ("lr", "agreement", "covariance")),
    "linear": Method("linear CCA, then classifier", "codes", ("lr2", "input_ridge")),
    "dcca": Method("DCCA", "dcca", ("lr", "lr2", "ridge")),
    "dccae": Method("DCCAE", "dccae", ("lr", "lr2", "ridge", "reconstruction")),
    "prox": Method("ProxCCA, constant lam", "prox", ("lr", "lam", "ridge")),
    "own": Method("ProxCCA with its envelope", "own", ("lr", "lam", "weight", "ridge")),
    "prox+": Method("ProxCCA + RRM", "prox+", ("lr", "lam", "weight", "ridge")),
    "rising": Method("ProxCCA, rising lam (paper)", "prox", ("lr", "lam", "growth", "ridge")),
    "falling": Method("ProxCCA, falling lam", "prox", (), (5, 10, 50)),
    "envelope": Method("Moreau envelope in the loss", "envelope", ("lr", "far", "weight", "ridge")),
}
# The ends of a range, log-uniform. Codes and inputs have unit variance; lam_t = (1 + growth t) lam,
# or the same backwards.
SPACE = {
    "lr": (1e-3, 3e-2),
    "lr2": (1e-3, 3e-2),
    "weight": (1e-2, 3.0),
    "ridge": (1e-3, 1.0),
    "lam": (1e-2, 10.0),
    "far": (0.1, 30.0),
    "growth": (0.1, 10.0),
    "rate": (0.03, 0.8),
    "off_diagonal": (1e-3, 1.0),
    "agreement": (3e-2, 10.0),
    "covariance": (3e-3, 3.0),
    "reconstruction": (3e-2, 10.0),
    "input_ridge": (1e-3, 10.0),
}
# Of both pairs of glyphs; see the protocol.
GLYPHS = {"lr": (1e-3, 0.3), "lr2": (1e-3, 0.3)}


def draw(searched, space, count, attempt):
    """`count` settings, each parameter once in each of as many equal parts of its range."""
    columns = {}
    for name in searched:
        generator = np.random.default_rng([attempt, *name.encode()])
        part = generator.permutation(count) + generator.random(count)
        low, high = np.log(space[name])
        columns[name] = np.exp(low + (high - low) * part / count)
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(count)]


def grown(settings, space, count):
    """The space with longer ranges where the settings lie at an end; None if none do."""
    found = {}
    for name, value in settings.items():
        low, high = np.log(space[name])
        place = (np.log(value) - low) / (high - low) * count
        if place < 1 or place > count - 1:
            half = (high - low) / 2
            ends = (low - half, high) if place < 1 else (low, high + half)
            most = 0.95 if name == "rate" else np.inf
            found[name] = tuple(min(most, float(np.exp(end))) for end in ends)
    return {**space, **found} if found else None


class Study:
    """Trains and measures; keeps the graphs, and the last codes of a first stage."""

    def __init__(self, epochs=24, batch=100):
        self.epochs, self.batch = epochs, batch
        self.trainers, self.first_stage = {}, (None, None)

    def trainer(self, pair, kind):
        views = load(pair).views
        if (pair, kind) not in self.trainers:
            shapes = [x.shape[1:] for x in views]
            self.trainers[pair, kind] = Trainer(kind, shapes, load(pair).classes)
        return self.trainers[pair, kind]

    def lams(self, name, settings):
        """lam of every epoch."""
        growth = np.arange(self.epochs) * settings.get("growth", 0.0)
        lams = settings.get("lam", settings.get("far", 1.0)) * (1.0 + growth)
        return lams[::-1] if name == "falling" else lams

    def encoder(self, pair, name, settings, seed, mispaired):
        """A function of views to fixed codes, by linear CCA or a first stage; the last is kept."""
        key = (pair, name, seed, mispaired, tuple(settings.items()))
        if self.first_stage[0] != key:
            part = part_of(pair, "train", seed, mispaired=mispaired)
            if name == "linear":
                encode = linear(part, settings["input_ridge"], load(pair).is_image)
            else:
                trainer = self.trainer(pair, METHODS[name].kind)
                trainer.reset(
                    seed,
                    lr=settings["lr"],
                    ridge=settings["ridge"],
                    strength=settings.get("reconstruction", 0.0),
                )
                # As many steps as the classifiers, in batches four times as large.
                batch = min(4 * self.batch, len(part.labels))
                trainer.train(part, seed=seed, epochs=4 * self.epochs, batch=batch)

                def encode(views):
                    codes = trainer.codes([tf.constant(x) for x in views])
                    return [code.numpy() for code in codes]

            self.first_stage = key, encode
        return self.first_stage[1]

    def fit(self, pair, name, settings, labels, seed, mispaired=0.0):
        """Trains a method; returns a function of views (and an inference) to the logits of each."""
        method = METHODS[name]
        part = part_of(pair, "train", seed, labels, mispaired)
        encode, kind = None, method.kind
        if kind in ("codes", "dcca", "dccae"):
            encode, kind = self.encoder(pair, name, settings, seed, mispaired), "codes"
            part = part._replace(views=encode(part.views))
        trainer = self.trainer(pair, kind)
        weight = settings.get("weight", settings.get("agreement", 0.0))
        other = settings.get("off_diagonal", settings.get("covariance", weight))
        trainer.reset(
            seed,
            lr=settings["lr2" if kind == "codes" else "lr"],
            ridge=settings.get("ridge", 1e-4),
            strength=weight,
            second=other,
            rate=settings.get("rate", 0.0),
        )
        lams = self.lams(name, settings)
        trainer.train(part, seed=seed, epochs=self.epochs, batch=self.batch, lams=lams)

        def predict(views, inference="identity"):
            return trainer.logits(encode(views) if encode else views, inference, self.batch)

        return predict

    def validate(self, pair, name, settings, seed):
        """Error on the validation part, %."""
        predict = self.fit(pair, name, settings, TUNING_LABELS, seed)
        part = part_of(pair, "valid", seed)
        return error(predict(part.views).mean(0), part.labels)

    def test(self, pair, name, settings, labels, seed, mispaired=0.0):
        """Errors on the test part, %: clean, and with each view missing, noisy or replaced."""
        predict = self.fit(pair, name, settings, labels, seed, mispaired)
        part = part_of(pair, "test", seed)
        generator = np.random.default_rng([seed, 4])
        logits = predict(part.views)
        noisy = [x + generator.normal(size=x.shape).astype("float32") for x in part.views]
        noisy = predict(noisy)
        other = logits[:, generator.permutation(len(part.labels))]
        errors = {"clean": error(logits.mean(0), part.labels)}
        for j in range(2):
            errors[f"missing {j}"] = error(logits[1 - j], part.labels)
            errors[f"noisy {j}"] = error(logits[1 - j] + noisy[j], part.labels)
            errors[f"replaced {j}"] = error(logits[1 - j] + other[j], part.labels)
        if name in ("prox", "own"):
            for inference in ("moving", "batch"):
                shown = part.views
                order = generator.permutation(len(part.labels))  # batches of mixed classes
                moved = predict([x[order] for x in shown], inference).mean(0)
                errors[inference] = error(moved, part.labels[order])
        return errors


def error(logits, labels):
    """Rows predicted wrongly, %."""
    return float(100 * np.mean(logits.argmax(1) != labels))


def choose(study, log, pair, name, options):
    """The settings of a method on a pair: {"settings", "valid", "attempts", "space"}."""
    searched = METHODS[name].searched
    ranges = {**SPACE, **GLYPHS} if pair.startswith("glyphs") else SPACE
    space = {key: ranges[key] for key in searched}
    for attempt in range(3):
        trials = draw(searched, space, options.settings, attempt)

        def validate(trial, seed, attempt=attempt, trials=trials):
            return log.once(
                lambda: study.validate(pair, name, trials[trial], seed),
                **dict(stage="tune", pair=pair, method=name, attempt=attempt, trial=trial),
                seed=seed,
                settings=trials[trial],
            )

        first = [validate(trial, TUNING_SEEDS[0]) for trial in range(len(trials))]
        best = np.argsort(first, kind="stable")[:FINALISTS]
        means = [np.mean([validate(int(trial), seed) for seed in TUNING_SEEDS]) for trial in best]
        chosen = trials[best[np.argmin(means)]]
        larger = grown(chosen, space, options.settings)
        if larger is None:
            break
        space, used = larger, space
    return {
        "settings": chosen,
        "valid": float(min(means)),
        "attempts": attempt + 1,
        "space": space if larger is None else used,
        "at_edge": larger is not None,
    }


def run(options):
    """All runs that are missing, in the order of the protocol; returns the log."""
    log = Log(options.output / "labels.jsonl")
    size = {name: getattr(options, name) for name in ("settings", "epochs", "batch")}
    if log.once(lambda: size, stage="size") != size:
        raise SystemExit(f"{log.path} holds runs of another size than {size}")
    study = Study(options.epochs, options.batch)
    chosen = {}

    def final(pair, name, labels, seed, mispaired=0.0):
        settings = chosen[pair, name]["settings"]
        found = log.once(
            lambda: study.test(pair, name, settings, labels, seed, mispaired),
            **dict(stage="test", pair=pair, method=name, labels=labels, seed=seed),
            mispaired=mispaired,
        )
        return found["clean"]

    def finals(seeds):
        for pair in options.pairs:
            for name in options.methods:
                if (pair, name) not in chosen:
                    searched = "rising" if name == "falling" else name
                    found = choose(study, log, pair, searched, options)
                    log.once(lambda f=found: f, stage="chosen", pair=pair, method=searched)
                    chosen[pair, name] = found
                most = load(pair).counts[0]
                numbers = [n for n in METHODS[name].labels if n in options.labels and n <= most]
                errors = [[final(pair, name, n, seed) for n in numbers] for seed in seeds]
                shown = " ".join(f"{mean:.1f}" for mean in np.mean(errors, 0))
                print(f"{time.strftime('%H:%M')} {pair}, {name}: {shown}", flush=True)

    early, late = options.seeds[:5], options.seeds[5:]
    finals(early)
    for pair in options.pairs:
        for name in [name for name in MISPAIRED if name in options.methods]:
            for share in SHARES:
                for seed in early:
                    final(pair, name, TUNING_LABELS, seed, share)
    if late:
        finals(late)
    return log


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", choices=(*PAIRS, *ADDITIONS), default=PAIRS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--labels", nargs="+", type=int, choices=LABELS, default=LABELS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--settings", type=positive, default=20, help="tried per method")
    parser.add_argument("--epochs", type=positive, default=24)
    parser.add_argument("--batch", type=positive, default=100)
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    parser.add_argument("--report", action="store_true", help="of the runs there are; run nothing")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def main(arguments=None):
    from labels_report import report

    options = parse(arguments)
    log = Log(options.output / "labels.jsonl") if options.report else run(options)
    return report(list(log.runs.values()), options.output)


if __name__ == "__main__":
    # One thread: the steps are too small to use more.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    main()
