"""Settings by one search for every method, then the same seeds for all: words, images, speech.

Every method that trains has the same number of settings, a Latin hypercube of the ranges of its
parameters. Each setting is trained once with a seed of its own and judged on validation data. The
best one is trained with every seed and judged on test data. Finished runs are lines of a log; the
same command goes on after a stop. A line says how many runs are done and how long the others may
take.
"""

import time

import keras
import numpy as np
import tensorflow as tf
from labels import draw
from methods import NAMES, lam_callbacks
from report import Log, markdown, mean_and_spread

TUNING_SEED = 100
# The methods of images and speech, in the order of their tables.
TITLES = {"vanilla": NAMES["vanilla"], "linear": "linear CCA, then classifier", **NAMES}
KERNELS = {
    "kernel": keras.initializers.GlorotUniform,
    "recurrent_kernel": keras.initializers.Orthogonal,
}
WORST = 100.0  # validation error of a training that did not end with finite numbers


def spaces(rate, ridge, weight, lam, methods):
    """What is searched for each of the methods of images and speech, from the ranges."""
    all_of_them = {
        "vanilla": {"lr": rate},
        "linear": {"lr2": rate, "ridge": (1e-3, 10.0)},
        "dcca": {"lr": rate, "lr2": rate, "ridge": ridge},
        "dccae": {"lr": rate, "lr2": rate, "ridge": ridge, "reconstruction": (3e-2, 10.0)},
        "rrm": {"lr": rate, "ridge": ridge, "weight": weight},
        "prox": {"lr": rate, "ridge": ridge, "lam": lam, "rise": (3.0, 300.0)},
        "own": {"lr": rate, "ridge": ridge, "lam": lam, "weight": weight},
    }
    return {name: space for name, space in all_of_them.items() if name in methods}


def draw_settings(space, count):
    """`count` settings of a space: a pair of numbers is a range, log-uniform, a list a choice."""
    ranges = {name: ends for name, ends in space.items() if isinstance(ends, tuple)}
    drawn = draw(ranges, ranges, count, 0)
    for name, values in space.items():
        if name not in ranges:
            generator = np.random.default_rng([*name.encode()])
            for settings in drawn:
                settings[name] = generator.choice(values).item()
    return drawn


class Study:
    """The runs of an experiment.

    Args:
        folder: of the log, `runs.jsonl`.
        size: what all runs depend on; a log of another size is refused.
        spaces: for every method what is searched; nothing for one that has no settings.
        trials: settings tried for each method.
        seeds: of the tests.
        conditions: what is tested, the first one with every seed before the second.
        validate: `validate(method, settings, seed)` returns the validation error, or a dict with
            "error" and what else the tests need to know.
        test: `test(method, settings, seed, condition)` returns {column: number}; `settings` are
            the chosen ones, with the results of the validation.
    """

    def __init__(self, folder, size, spaces, trials, seeds, conditions, validate, test):
        self.log = Log(folder / "runs.jsonl")
        size = {name: str(value) for name, value in size.items()}
        if self.log.once(lambda: size, stage="size") != size:
            raise SystemExit(f"{self.log.path} holds runs of another size than {size}")
        self.spaces, self.validate, self.test = spaces, validate, test
        self.searches = {
            method: [
                dict(stage="tune", method=method, trial=i, settings=settings)
                for i, settings in enumerate(draw_settings(space, trials if space else 1))
            ]
            for method, space in spaces.items()
        }
        self.tests = [
            dict(stage="test", method=method, seed=seed, condition=condition)
            for condition in conditions
            for seed in seeds
            for method in spaces
        ]
        self.chosen = {}
        self.began = time.perf_counter(), time.process_time()

    def run(self, save):
        """All runs that are missing; `save()` is called after each of the tests."""
        for method, trials in self.searches.items():
            found = [self._once(self.validate, run, run["settings"], TUNING_SEED) for run in trials]
            best = min(range(len(found)), key=lambda i: found[i]["error"])
            if found[best]["error"] >= WORST:
                raise SystemExit(f"No setting of {method} ended with finite numbers.")
            self.chosen[method] = trials[best]["settings"] | found[best]
        for run in self.tests:
            settings = self.chosen[run["method"]]
            self._once(self.test, run, settings, run["seed"], run["condition"])
            save()

    def _once(self, compute, run, *arguments):
        new = Log.key(run) not in self.log.runs
        result = self.log.once(lambda: compute(run["method"], *arguments), **run)
        if new:
            name = f"{run['method']}, {run['stage']} {run.get('trial', run.get('condition', ''))}"
            numbers = ", ".join(f"{k} {v:.1f}" for k, v in result.items() if isinstance(v, float))
            print(f"{time.strftime('%H:%M')} {self.left()}; {name}: {numbers}", flush=True)
        return result

    def left(self):
        """How many runs are done, and how many minutes the others may take."""
        done, waiting = [], []
        for run in (*(run for runs in self.searches.values() for run in runs), *self.tests):
            found = self.log.runs.get(Log.key(run))
            waiting.append(run) if found is None else done.append(found)

        def typical(run):
            alike = [one for one in done if one["run"]["method"] == run["method"]]
            return np.mean([one["seconds"] for one in alike or done])

        # The log has seconds of CPU time: scale by the wall time of this process over its CPU time.
        wall = time.perf_counter() - self.began[0]
        cpu = max(1e-3, time.process_time() - self.began[1])
        minutes = sum(map(typical, waiting)) / 60 * wall / cpu
        return f"{len(done)} of {len(done) + len(waiting)} runs, {minutes:.0f} min left"

    def results(self):
        """{method: {column: {seed: number}}} of the tests that are done."""
        found = {}
        for run in self.tests:
            known = self.log.runs.get(Log.key(run))
            for column, number in known["result"].items() if known else ():
                found.setdefault(run["method"], {}).setdefault(column, {})[run["seed"]] = number
        return found

    def histories(self, names):
        """What `learning_curves` draws: the figures of every epoch, where a test returned them."""
        drawn = {}
        for run in self.tests:
            known = self.log.runs.get(Log.key(run), {}).get("result", {})
            if f"history {run['condition']}" in known:
                group = drawn.setdefault(str(run["condition"]), {})
                runs = group.setdefault(names[run["method"]], [])
                runs.append(known[f"history {run['condition']}"])
        return drawn

    def tables(self, what, names, columns, paper, base="vanilla"):
        """Markdown: the numbers, the paper's, paired differences to `base`, and the settings.

        Mean ± standard deviation over seeds. `paper[method][column]` is a string.
        """
        found = self.results()
        rows, differences, settings = [], [], []
        for method in [m for m in names if m in found]:
            values = [found[method].get(c, {}) for c in columns]
            rows.append((names[method], *(mean_and_spread(list(v.values())) for v in values)))
            if method != base and base in found:
                pairs = [(v, found[base].get(c, {})) for v, c in zip(values, columns, strict=True)]
                paired = [[v[s] - b[s] for s in v if s in b] for v, b in pairs]
                cells = [mean_and_spread(v, sign="+") for v in paired]
                differences.append((names[method], *cells))
            cost = [
                r["seconds"] for r in self.log.runs.values() if r["run"].get("method") == method
            ]
            chosen = ", ".join(
                f"{name} {self.chosen[method][name]:.2g}" for name in self.spaces[method]
            )
            error = self.chosen[method]["error"]
            settings.append((names[method], f"{error:.1f}", chosen, f"{np.mean(cost):.0f}"))
        for method in [m for m in names if m in paper]:
            cells = [paper[method].get(column, "") for column in columns]
            rows.append((f"paper: {names[method]}", *cells))
        return "\n".join(
            (
                markdown((what, *columns), rows),
                markdown((f"minus {names[base]}'s on the same seed", *columns), differences),
                markdown(("method", "validation error, %", "chosen", "CPU s a run"), settings),
            )
        )


class Kept:
    """A model that is built and traced once, and reset for every run.

    Args:
        model: built and compiled.
        networks: whose kernels are drawn anew, in this order; other variables take the values
            they have now.
        between: layers of weight 1 whose losses and ridge `reset` sets.
    """

    def __init__(self, model, networks, between=()):
        self.model = model
        self.kernels = [v for part in networks for v in part.variables if v.name in KERNELS]
        self.initial = [(v, np.array(v)) for v in model.variables]
        self.weight, self.ridge = tf.Variable(1.0), tf.Variable(1e-4, dtype="float64")
        for layer in between:
            layer.epsilon = self.ridge
            self._weigh(layer)

    def _weigh(self, layer):
        add = layer.add_loss
        layer.add_loss = lambda loss: add(self.weight * loss)

    def reset(self, seed, learning_rate, weight=1.0, ridge=1e-4):
        """Resets the weights, by the seed, and the optimizer; returns the model."""
        self.weight.assign(weight)
        self.ridge.assign(ridge)
        for variable, value in self.initial:
            variable.assign(value)
        for i, variable in enumerate(self.kernels):
            variable.assign(KERNELS[variable.name](seed=1000 * seed + i)(variable.shape))
        for variable in self.model.optimizer.variables:
            variable.assign(np.zeros(variable.shape))
        self.model.optimizer.learning_rate = learning_rate
        keras.utils.set_random_seed(seed)
        return self.model


def scheduled(method, settings, epochs):
    """The schedule of lam: constant, or linear up to `rise` times as much in the last epoch."""
    growth = (settings.get("rise", 1.0) - 1.0) / max(1, epochs - 1)
    return lam_callbacks(method, settings.get("lam", 1.0), growth)
