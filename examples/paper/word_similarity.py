"""Word similarity from two languages: the paper's crosslingual word embedding.

    python examples/paper/word_similarity.py --data crosslingual.npz --similarity wordsim
    python examples/paper/word_similarity.py --vectors cc.en.300.vec.gz cc.de.300.vec.gz \\
        --pairs en-de.train.txt --dictionary en-de.test.txt --similarity wordsim

Every method learns codes of English and German words from translation pairs; linear CCA, fitted on
the codes of the pairs, projects them; the cosine of two words of one language is compared with
people's judgement (Spearman's correlation). ProxNet reconstructs the vectors from the output of
the proximal layer; DCCAE, which is the RRM variant here, from the codes.

Settings are chosen on a tenth of the training pairs, by the mean reciprocal rank of a word's
translation among those of all held-out pairs; the similarity sets are not looked at. Every network
has the same number of trials. Writes its tables and the numbers to `--output` as it goes.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import keras
import numpy as np
from keras.layers import Concatenate, Dense
from methods import lam_callbacks
from readers.words import (
    build_crosslingual,
    load_crosslingual,
    load_similarity_sets,
    load_word_pairs,
)
from report import learning_curves, markdown, mean_and_spread, positive, write
from scipy.stats import spearmanr

from proxnet_tf import (
    CCALoss,
    CCARegularizer,
    LinearCCA,
    ProxCCA,
)
from proxnet_tf.solvers import Newton

NAMES = {
    "baseline": "Baseline",
    "linear": "LinCCA",
    "linear_narrow": "LinCCA, as narrow as the codes",
    "dcca": "DCCA",
    "dccae": "DCCAE / RRM",
    "prox": "ProxNet",
    "prox_at_test": "ProxNet, layer on at test",
}
NETWORKS = ("dcca", "dccae", "prox")
COLUMNS = [(name, j) for name in ("ws353_all", "ws353_sim", "ws353_rel", "simlex999")
           for j in range(2)]  # fmt: skip
PAPER = {
    "baseline": (73.4, 52.7, 77.8, 63.3, 67.7, 44.2, 37.2, 29.1),
    "linear": (73.8, 68.5, 76.1, 73.0, 67.0, 62.9, 37.8, 43.3),
    "dcca": (73.9, 69.1, 78.7, 74.1, 66.6, 64.7, 38.78, 43.29),
    "dccae": (72.4, 69.7, 75.7, 74.7, 65.9, 64.2, 36.7, 41.8),
    "prox": (75.4, 69.2, 78.3, 75.4, 71.0, 66.8, 40.0, 44.2),
}
# lam at epoch 0 (prox), or the weight of L beside the reconstruction errors (dccae). The tuning
# goes through these in turn and draws the rest.
STRENGTHS = {"dcca": [0.0], "dccae": [0.001, 0.01, 0.1], "prox": [100.0, 30.0, 10.0]}
GROWTHS = [0.0, 0.5]
LEARNING_RATES = [0.1, 0.03, 0.01]
RIDGES = [0.0, 0.1, 1.0]  # of the last projection, in units of the codes' mean variance
WEIGHT_DECAY = 5e-4
# Small lam and wide codes take many steps; the residual is reported.
SOLVER = {"solver": Newton(tolerance=1e-3, max_iterations=20)}


@dataclasses.dataclass
class Settings:
    """What is tuned."""

    strength: float = 0.0
    growth: float = 0.0
    code: int = 90
    width: int = 512
    depth: int = 1
    learning_rate: float = 0.1


@dataclasses.dataclass
class Projection:
    """Linear CCA of codes: also tuned. `score` is the mean reciprocal rank it had, %."""

    components: int = 0
    ridge: float = 0.0
    score: float = -np.inf

    def fit(self, codes):
        """Returns the two functions that project codes of a language."""
        scales = [np.sqrt(code.var(0).mean()) for code in codes]
        scaled = [code / scale for code, scale in zip(codes, scales, strict=True)]
        cca = LinearCCA(self.components, ridge=self.ridge).fit(*scaled)
        return (
            lambda code: cca.project(code / scales[0], 0),
            lambda code: cca.project(code / scales[1], 1),
        )


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def normalize(data):
    """Unit length, then mean and deviation by dimension of the training pairs taken off."""
    views, evaluated = [], []
    for vectors, others in zip(data.vectors, data.eval_vectors, strict=True):
        vectors = unit(vectors)
        mean, deviation = vectors.mean(0), vectors.std(0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        views.append(((vectors - mean) / deviation).astype("float32"))
        evaluated.append(((unit(others) - mean) / deviation).astype("float32"))
    return views, evaluated


def hold_out(words, seed):
    """Which pairs are held out: all those of a tenth of the German words."""
    distinct, which = np.unique(np.char.lower(words[1]), return_inverse=True)
    chosen = np.random.default_rng(seed).permutation(len(distinct))[: max(2, len(distinct) // 10)]
    return np.isin(which, chosen)


def reciprocal_rank(first, second):
    """Mean of 1 / rank of the translation by cosine, over both directions, %."""
    cosine = unit(first) @ unit(second).T
    right = np.diag(cosine)
    ranks = [1 + (cosine > right[:, None]).sum(1), 1 + (cosine > right).sum(0)]
    return float(100 * np.mean([1.0 / rank for rank in ranks]))


def best_projection(codes, held_out, shares):
    """The best projection fitted on `codes` for the codes of held-out pairs.

    `shares` are the numbers of components to try, relative to the width of the input vectors.
    """
    best = Projection()
    width = min(code.shape[1] for code in codes)
    for ridge in RIDGES:
        first, second = Projection(width, ridge).fit(codes)
        projected = first(held_out[0]), second(held_out[1])
        for components in sorted({min(width, share) for share in shares}):
            score = reciprocal_rank(*(z[:, :components] for z in projected))
            if score > best.score:
                best = Projection(components, ridge, score)
    return best


def make_model(method, widths, settings):
    """The model to train, and the encoders in it."""

    def network(hidden, units):
        decay = keras.regularizers.L2(WEIGHT_DECAY / 2)  # its gradient is WEIGHT_DECAY * weight
        layers = [Dense(n, "relu", kernel_regularizer=decay) for n in hidden]
        return keras.Sequential([*layers, Dense(units, kernel_regularizer=decay)])

    hidden = [settings.width] * settings.depth
    views = [keras.Input((width,)) for width in widths]
    encoders = [network(hidden, settings.code) for _ in views]
    codes = [encoder(view) for encoder, view in zip(encoders, views, strict=True)]
    if method == "dcca":
        return keras.Model(views, Concatenate()(codes)), encoders
    if method == "dccae":
        codes = CCARegularizer(settings.strength)(codes)
    else:
        codes = ProxCCA(lam=settings.strength, **SOLVER, monitor="all", name="prox")(codes)
    decoders = [network(hidden[::-1], width) for width in widths]
    outputs = [decoder(code) for decoder, code in zip(decoders, codes, strict=True)]
    return keras.Model(views, outputs), encoders


def train(method, views, settings, epochs, batch_size, seed):
    """Trains a network on the pairs; returns the model, its encoders, the figures by epoch."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model, encoders = make_model(method, [x.shape[1] for x in views], settings)
    loss, target = ("mse", views)
    if method == "dcca":
        loss, target = CCALoss(), np.zeros((len(views[0]), 1), "float32")
    model.compile(
        keras.optimizers.SGD(settings.learning_rate, momentum=0.99), loss, jit_compile=False
    )

    def rate(epoch, _):  # a tenth after one third of the epochs, and after two
        return settings.learning_rate * 0.1 ** (3 * epoch // epochs)

    callbacks = lam_callbacks(method, settings.strength, settings.growth)
    callbacks += [keras.callbacks.LearningRateScheduler(rate), keras.callbacks.TerminateOnNaN()]
    history = model.fit(
        views, target, batch_size=batch_size, epochs=epochs, callbacks=callbacks, verbose=0
    ).history
    return model, encoders, {name: list(map(float, values)) for name, values in history.items()}


def encode(encoders, views):
    return [
        encoder.predict(x, batch_size=2048, verbose=0)
        for encoder, x in zip(encoders, views, strict=True)
    ]


def tune(method, views, held, options, report):
    """The best of `--trials` settings of a network by the score on held-out pairs."""
    best = None
    for trial in range(options.trials):
        rng = np.random.default_rng(trial)  # but for the strength, the same for all networks
        strengths = STRENGTHS[method]
        settings = Settings(
            strength=strengths[trial % len(strengths)],
            growth=rng.choice(GROWTHS).item(),
            code=rng.choice(options.codes).item(),
            width=rng.choice(options.widths).item(),
            depth=rng.choice(options.depths).item(),
            learning_rate=rng.choice(LEARNING_RATES).item(),
        )
        started = time.perf_counter()
        _, encoders, history = train(
            method, [x[~held] for x in views], settings, options.tuning_epochs,
            options.batch_size, seed=trial,
        )  # fmt: skip
        codes = encode(encoders, views)
        projection = Projection()
        if all(np.isfinite(code).all() for code in codes):
            projection = best_projection(
                [c[~held] for c in codes], [c[held] for c in codes], options.shares
            )
        report(
            f"{NAMES[method]}, trial {trial}: {projection} {settings} "
            f"loss {history['loss'][-1]:.4f}, {time.perf_counter() - started:.0f} s"
        )
        if best is None or projection.score > best[1].score:
            best = settings, projection
    if best is None or not np.isfinite(best[1].score):
        raise SystemExit(f"No trial of {NAMES[method]} ended with finite codes.")
    return best


def judge(vectors, data, sets):
    """Spearman's correlation (x 100) of the cosines and people's scores, for every column."""
    scores = []
    rows = [{word: i for i, word in enumerate(words)} for words in data.eval_words]
    normal = [unit(v) for v in vectors]
    for name, j in COLUMNS:
        pairs, judged = sets[name][("en", "de")[j]]
        known = [k for k, pair in enumerate(pairs) if all(word in rows[j] for word in pair)]
        ends = np.array([[rows[j][word] for word in pairs[k]] for k in known])
        cosine = np.sum(normal[j][ends[:, 0]] * normal[j][ends[:, 1]], axis=1)
        scores.append(float(100 * spearmanr(cosine, judged[known]).statistic))
    return scores


def covered(data, sets):
    """How many pairs of each column have vectors."""
    counts = []
    for name, j in COLUMNS:
        known = set(data.eval_words[j].tolist())
        pairs = sets[name][("en", "de")[j]].pairs
        counts.append(f"{sum(known.issuperset(pair) for pair in pairs)} of {len(pairs)}")
    return counts


def with_translations(codes, eval_codes, pairs):
    """Both codes of every evaluation word of both languages: its own, and its translations' mean.

    A word without a translation in the dictionary gets the mean of the training pairs.
    """
    sides: list[list[np.ndarray]] = [[], []]
    for j in range(2):
        own, other = eval_codes[j], eval_codes[1 - j]
        total, count = np.zeros((len(own), other.shape[1])), np.zeros((len(own), 1))
        np.add.at(total, pairs[:, j], other[pairs[:, 1 - j]])
        np.add.at(count, pairs[:, j], 1)
        translated = np.where(count > 0, total / np.maximum(count, 1), codes[1 - j].mean(0))
        sides[j].append(own)
        sides[1 - j].append(translated)
    return [np.concatenate(side).astype("float32") for side in sides]


def words_of(model, encoders, views, evaluated, projection, pairs):
    """The projected evaluation words of a network, without and (prox) with the layer."""
    codes, eval_codes = encode(encoders, views), encode(encoders, evaluated)

    def project(fitted_on, words):
        transforms = projection.fit(fitted_on)
        return [transform(word) for transform, word in zip(transforms, words, strict=True)]

    found = {"": project(codes, eval_codes)}
    if any(layer.name == "prox" for layer in model.layers):
        layer = model.get_layer("prox")
        moved = [np.asarray(z) for z in layer(codes, training=True)]
        both = [np.asarray(z) for z in layer(
            with_translations(codes, eval_codes, pairs), training=True
        )]  # fmt: skip
        cut = len(eval_codes[0])
        found["_at_test"] = project(moved, [both[0][:cut], both[1][cut:]])
    return found


def table(results):
    """Markdown: mean (± std over seeds) for every method, the paper's below."""
    header = [f"{name.replace('ws353', 'WS').replace('_', '-')} {('EN', 'DE')[j]}"
              for name, j in COLUMNS]  # fmt: skip
    header = [h.replace("simlex", "SimLex") for h in header]
    rows = []
    for method, runs in results.items():
        rows.append((NAMES[method], *map(mean_and_spread, zip(*runs, strict=True))))
    for method, numbers in PAPER.items():
        cells = [f"{number:.1f}" for number in numbers]
        rows.append((f"paper: {NAMES[method]}", *cells))
    return markdown(("Spearman x 100", *header), rows)


def load(options):
    sets = load_similarity_sets(options.similarity)
    if options.data:
        return load_crosslingual(options.data), sets
    pairs, dictionary = (load_word_pairs(path) for path in (options.pairs, options.dictionary))
    return build_crosslingual(options.vectors, pairs, dictionary, sets), sets


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, help=".npz file with pairs and their vectors")
    parser.add_argument("--vectors", type=Path, nargs=2, help="English and German .vec files")
    parser.add_argument("--pairs", type=Path, help="translation pairs to train on")
    parser.add_argument("--dictionary", type=Path, help="translation pairs of the evaluation words")
    parser.add_argument("--similarity", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--methods", nargs="+", choices=list(PAPER), default=list(PAPER))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--trials", type=positive, default=3, help="settings tried per network")
    parser.add_argument("--tuning-epochs", type=positive, default=4)
    parser.add_argument("--epochs", type=positive, default=9)
    parser.add_argument("--batch-size", type=positive, default=400)
    parser.add_argument("--codes", nargs="+", type=positive, default=[30, 60], help="paper: to 270")
    parser.add_argument(
        "--widths", nargs="+", type=positive, default=[256, 512], help="paper: to 2048"
    )
    parser.add_argument("--depths", nargs="+", type=positive, default=[1, 2], help="paper: to 4")
    parser.add_argument("--shares", nargs="+", type=positive, default=[30, 60, 90, 150, 210, 270],
                        help="components of the last projection to try")  # fmt: skip
    parser.add_argument("--max-pairs", type=positive, help="train on the first pairs only")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    options = parser.parse_args(arguments)
    if not options.data and not (options.vectors and options.pairs and options.dictionary):
        parser.error("give --data, or --vectors, --pairs and --dictionary")
    return options


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    data, sets = load(options)
    views, evaluated = normalize(data)
    views = [x[: options.max_pairs] for x in views]
    held = hold_out([words[: options.max_pairs] for words in data.words], seed=0)
    log, results, chosen, histories = [], {}, {}, {}
    began = time.perf_counter()

    def save():
        settings = {name: str(value) for name, value in vars(options).items()}
        record = {"options": settings, "chosen": chosen, "results": results}
        record |= {"log": log, "histories": histories}
        write(options.output / "word_similarity.json", json.dumps(record, indent=1))
        write(options.output / "word_similarity.md", table(results))

    def report(line):
        print(line, flush=True)
        log.append(line)
        save()

    def keep(method, scores):
        results.setdefault(method, []).append(scores)
        save()

    report(f"{len(held)} pairs, {held.sum()} held out in the tuning; with vectors: "
           f"{', '.join(covered(data, sets))}")  # fmt: skip
    for method in options.methods:
        if method == "baseline":
            keep(method, judge(data.eval_vectors, data, sets))
            continue
        if method == "linear":
            fitted, others = [x[~held] for x in views], [x[held] for x in views]
            for name, shares in (("", options.shares), ("_narrow", options.codes)):
                projection = best_projection(fitted, others, shares)
                report(f"{NAMES[method + name]}: {projection}")
                chosen[method + name] = dataclasses.asdict(projection)
                transforms = projection.fit(views)
                projected = [t(x) for t, x in zip(transforms, evaluated, strict=True)]
                keep(method + name, judge(projected, data, sets))
            continue
        settings, projection = tune(method, views, held, options, report)
        report(f"{NAMES[method]}: chosen {settings} {projection}")
        chosen[method] = dataclasses.asdict(settings) | {
            "projection": dataclasses.asdict(projection)
        }
        for seed in options.seeds:
            model, encoders, history = train(
                method, views, settings, options.epochs, options.batch_size, seed
            )
            shown = ", ".join(f"{name} {values[-1]:.4g}" for name, values in history.items())
            runs = histories.setdefault(NAMES[method], {NAMES[method]: []})
            runs[NAMES[method]].append(history)
            learning_curves(histories, options.output / "word_similarity.png")
            report(f"{NAMES[method]}, seed {seed}: {shown} ({time.perf_counter() - began:.0f} s)")
            found = words_of(model, encoders, views, evaluated, projection, data.eval_pairs)
            for variant, vectors in found.items():
                keep(method + variant, judge(vectors, data, sets))
    print(table(results), end="")
    return results


if __name__ == "__main__":
    main()
