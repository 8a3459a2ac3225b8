"""Tables and figure of `labels.py`."""

import itertools

import numpy as np
from report import figure, markdown, mean_and_spread, write

LEAST = 0.05
INFERENCE = ("clean", "moving", "batch")  # "clean": identity
SHOWN = ("vanilla", "dropout", "rrm", "vicreg", "dccae", "prox", "own")  # in the figure


def wilcoxon(differences):
    """Two-sided p of Wilcoxon's signed-rank test, over all patterns of signs; zeros left out."""
    from scipy.stats import rankdata

    differences = np.round(differences, 9)  # errors are multiples of a number of rows
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    ranks = rankdata(np.abs(differences))
    signs = np.array(list(itertools.product((-1, 1), repeat=len(ranks))))
    return float(np.mean(np.abs(signs @ ranks) >= abs(np.sign(differences) @ ranks) - 1e-9))


def holm(p):
    """Holm's correction of a list of p."""
    p = np.asarray(p, float)
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(corrected, 1.0)


def interval(values):
    """Half the width of the 95 % interval of the mean, by Student's t."""
    from scipy.stats import t

    if len(values) < 2:
        return float("nan")
    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


def paired(a, b):
    """The differences of two dicts by seed, on the seeds that both have."""
    return np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])


def with_p(differences):
    """Texts of lists of differences: mean, deviation, and p after Holm's correction over them."""
    texts = []
    for d, p in zip(differences, holm([wilcoxon(d) for d in differences]), strict=True):
        shown = f"{p:.3f}" if p >= 0.001 else "<0.001"
        texts.append(f"{mean_and_spread(d, sign='+')}, p {shown}")
    return texts


class Errors:
    """Test errors by pair, method, labels and share of mispaired rows, in the order of seeds."""

    def __init__(self, runs):
        self.runs, self.chosen = {}, {}
        for one in runs:
            run = one["run"]
            if run["stage"] == "chosen":
                self.chosen[run["pair"], run["method"]] = one["result"]
            elif run["stage"] == "test":
                key = run["pair"], run["method"], run["labels"], run["mispaired"]
                self.runs.setdefault(key, {})[run["seed"]] = one["result"]

    def of(self, pair, method, labels, column="clean", mispaired=0.0):
        """{seed: error}; "missing", "noisy" and "replaced" are means over both views."""
        found = {}
        for seed, result in self.runs.get((pair, method, labels, mispaired), {}).items():
            names = [column] if column in result else [f"{column} 0", f"{column} 1"]
            if all(name in result for name in names):
                found[seed] = float(np.mean([result[name] for name in names]))
        return found

    def minus(self, pair, method, other, labels, column="clean"):
        """Differences on the seeds that both methods have."""
        return paired(*(self.of(pair, name, labels, column) for name in (method, other)))

    def labels(self, pair):
        return sorted({key[2] for key in self.runs if key[0] == pair})

    @property
    def pairs(self):
        return list(dict.fromkeys(key[0] for key in self.runs))

    def methods(self, pair, labels=None):
        from labels import METHODS

        have = {key[1] for key in self.runs if key[0] == pair and labels in (None, key[2])}
        return [name for name in METHODS if name in have]


def title(method):
    from labels import METHODS

    return METHODS[method].title


def error_table(errors, pair):
    """Mean and deviation of the test error by method and number of labels."""
    columns = errors.labels(pair)
    rows = []
    for name in errors.methods(pair):
        cells = [list(errors.of(pair, name, count).values()) for count in columns]
        rows.append((title(name), *map(mean_and_spread, cells)))
    return markdown((f"{pair}: test error, %", *map(str, columns)), rows)


def difference_table(errors, pair, base="vanilla"):
    """Paired differences to a base, and p after Holm's correction over the methods of a column."""
    columns, cells = errors.labels(pair), {}
    for count in columns:
        names = [name for name in errors.methods(pair, count) if name != base]
        found = [errors.minus(pair, name, base, count) for name in names]
        names = [name for name, d in zip(names, found, strict=True) if len(d)]
        found = [d for d in found if len(d)]
        cells |= {(name, count): text for name, text in zip(names, with_p(found), strict=True)}
    rows = [
        (title(name), *(cells.get((name, count), "") for count in columns))
        for name in errors.methods(pair)
        if name != base
    ]
    return markdown((f"{pair}: minus {title(base)}", *map(str, columns)), rows)


def glance(errors):
    """The best method, by the mean, of every pair at few, some and all labels."""
    header = ("views", "labels a class", "Vanilla, %", "best", "its gain", "gain of ProxCCA")
    rows = []
    for pair in errors.pairs:
        columns = errors.labels(pair)
        for count in [count for count in columns if count in (2, 10, 50) or count == columns[-1]]:
            gains = {}
            for name in errors.methods(pair, count):
                difference = errors.minus(pair, "vanilla", name, count)
                if name != "vanilla" and len(difference):
                    gains[name] = difference
            if not gains:
                continue
            best = max(gains, key=lambda name: gains[name].mean())
            prox = gains.get("prox", np.array([]))
            vanilla = mean_and_spread(list(errors.of(pair, "vanilla", count).values()))
            rows.append((pair, count, vanilla, title(best), gain(gains[best]), gain(prox)))
    return markdown(header, rows)


def gain(differences):
    """A mean gain with its 95 % interval."""
    if not len(differences):
        return ""
    return f"{differences.mean():+.1f} ± {interval(differences):.1f}"


def robustness_table(errors, pair, labels):
    """Test errors with one view missing, noisy or replaced, and the rise of the error."""
    columns = ("clean", "missing", "noisy", "replaced")
    rows = []
    for name in errors.methods(pair, labels):
        clean = errors.of(pair, name, labels)
        cells = []
        for column in columns:
            found = errors.of(pair, name, labels, column)
            text = mean_and_spread(list(found.values()))
            if column != "clean" and found:
                text += f" ({np.mean([found[s] - clean[s] for s in found]):+.1f})"
            cells.append(text)
        rows.append((title(name), *cells))
    return markdown((f"{pair}, {labels} labels a class", *columns), rows)


def mispaired_table(errors, pair, labels):
    """Test errors after training with mispaired rows, on the seeds that all shares have."""
    shares = sorted({key[3] for key in errors.runs})
    rows = []
    for name in errors.methods(pair, labels):
        found = [errors.of(pair, name, labels, mispaired=share) for share in shares]
        seeds = set.intersection(*map(set, found))
        if len(shares) > 1 and seeds:
            cells = [mean_and_spread([by_seed[s] for s in sorted(seeds)]) for by_seed in found]
            lost = np.array([found[-1][s] - found[0][s] for s in sorted(seeds)])
            rows.append((title(name), *cells, mean_and_spread(lost, sign="+")))
    header = [f"{share:.0%} mispaired" for share in shares]
    return markdown((f"{pair}, {labels} labels a class", *header, "last minus first"), rows)


def inference_table(errors, name):
    """The same models of a method with ProxCCA, with the layer on or off at test time.

    Differences are paired; p is Holm's over the numbers of labels of a pair of views.
    """
    rows = []
    for pair in errors.pairs:
        counts = [n for n in errors.labels(pair) if errors.of(pair, name, n)]
        found = {n: [errors.of(pair, name, n, c) for c in INFERENCE] for n in counts}
        moving = [found[n][1] for n in counts]
        columns = [
            with_p([paired(a, b) for a, b in zip(moving, others, strict=True)])
            for others in (
                [found[n][0] for n in counts],
                [errors.of(pair, "vanilla", n) for n in counts],
            )
        ]
        for n, *more in zip(counts, *columns, strict=True):
            shown = (mean_and_spread(list(c.values())) for c in found[n])
            rows.append((pair, n, *shown, *more))
    header = (f"{title(name)}, test error, %", "labels", "identity", "moving", "batch")
    return markdown((*header, "moving minus identity", "moving minus Vanilla"), rows)


def settings_table(errors):
    """The chosen settings, and the number of searches."""
    rows = []
    for (pair, name), found in errors.chosen.items():
        values = ", ".join(f"{key} {value:.2g}" for key, value in found["settings"].items())
        searches = f"{found['attempts']}{' (at an edge)' if found['at_edge'] else ''}"
        rows.append((pair, title(name), values, f"{found['valid']:.1f}", searches))
    return markdown(("views", "method", "settings", "validation error, %", "searches"), rows)


def draw(errors, path):
    """Error against labels, a panel a pair; bands are 95 % intervals of the mean."""
    pairs = errors.pairs

    def fill(_, axes):
        for axis, pair in zip(axes[0], pairs, strict=True):
            for colour, name in enumerate(SHOWN):
                counts = [n for n in errors.labels(pair) if errors.of(pair, name, n)]
                values = [list(errors.of(pair, name, n).values()) for n in counts]
                means = np.array([np.mean(v) for v in values])
                half = np.array([interval(v) for v in values])
                axis.plot(counts, means, "o-", markersize=3, color=f"C{colour}", label=title(name))
                axis.fill_between(counts, means - half, means + half, color=f"C{colour}", alpha=0.1)
            axis.set(xscale="log", xlabel="labels a class", title=pair)
            axis.set_xticks(errors.labels(pair), [str(n) for n in errors.labels(pair)])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("test error, %")
        axes[0][0].legend(fontsize=9)

    size = (1 + 4 * len(pairs), 4.2)
    figure(path, fill, 1, len(pairs), figsize=size, squeeze=False, layout="constrained", dpi=90)


def report(runs, output):
    """Prints and writes the tables (labels.md) and the figure (labels.png); returns the text."""
    from labels import TUNING_LABELS

    errors = Errors(runs)
    seeds = sorted({len(by_seed) for key, by_seed in errors.runs.items() if key[3] == 0.0})
    parts = [f"Seeds a cell: {seeds[0]} to {seeds[-1]}\n"] if seeds else []
    parts += [glance(errors)]
    for pair in errors.pairs:
        parts += [error_table(errors, pair), difference_table(errors, pair)]
        parts += [robustness_table(errors, pair, TUNING_LABELS)]
        parts += [mispaired_table(errors, pair, TUNING_LABELS)]
    parts += [inference_table(errors, name) for name in ("prox", "own")]
    parts += [settings_table(errors)]
    text = "\n".join(parts)
    write(output / "labels.md", text)
    draw(errors, output / "labels.png")
    print(text)
    return text
