"""Tables and figures of `sequence_classification.py`."""

import numpy as np
from labels_report import interval, with_p
from report import figure, markdown, mean_and_spread, write

# Which methods are compared, the second taken from the first.
PAIRS = (
    ("AdvLSTM", "LSTM"),
    ("ProxLSTM", "LSTM"),
    ("both at once", "LSTM"),
    ("ProxLSTM", "AdvLSTM"),
    ("both at once", "AdvLSTM"),
    ("both at once", "ProxLSTM"),
    ("ProxLSTM after AdvLSTM", "AdvLSTM"),
)


def accuracies(runs):
    """{count: {method: {seed: {column: accuracy}}}}, all training series (count None) first."""
    found = {None: {}}
    for one in runs:
        run = one["run"]
        if run["stage"] == "test":
            by_seed = found.setdefault(run["count"], {}).setdefault(run["method"], {})
            by_seed[run["seed"]] = {k: v for k, v in one["result"].items() if k != "points"}
    return found


def column(by_seed, key):
    return [by_seed[seed][key] for seed in sorted(by_seed)]


def paired(a, b, key):
    """Differences of two dicts by seed, on the seeds that both have."""
    return np.array([a[s][key] - b[s][key] for s in sorted(a.keys() & b.keys())])


def main_table(methods, paper):
    """Mean ± std over seeds."""
    names = list(methods)
    rows = []
    if any(paper):
        values = dict(zip(("LSTM", "AdvLSTM", "ProxLSTM"), paper, strict=True))
        row = (values.get(name, "") for name in names)
        rows.append(("paper (another implementation and split)", *row))
    for key in next(iter(next(iter(methods.values())).values())):
        rows.append((key, *(mean_and_spread(column(methods[n], key), 2) for n in names)))
    return markdown(("test accuracy, %", *names), rows)


def difference_table(methods):
    """Paired differences, mean ± std, with p; and the gain of the mean with its 95 % interval."""
    pairs = [(a, b) for a, b in PAIRS if a in methods and b in methods]
    if not pairs:
        return ""
    rows = []
    for key in next(iter(next(iter(methods.values())).values())):
        differences = [paired(methods[a], methods[b], key) for a, b in pairs]
        rows.append((key, *with_p(differences)))
    clean = [paired(methods[a], methods[b], "clean") for a, b in pairs]
    cells = [f"{np.mean(d):+.2f} ± {interval(d):.2f}" for d in clean]
    rows.append(("clean, 95 % interval of the mean", *cells))
    return markdown(("difference, points", *(f"{a} - {b}" for a, b in pairs)), rows)


def count_table(found, names):
    """Accuracy and differences against the number of training series a class."""
    counts = [*sorted(count for count in found if count is not None), None]
    titles = ["all" if count is None else str(count) for count in counts]
    rows = []
    for name in names:
        cells = [column(found[c].get(name, {}), "clean") for c in counts]
        rows.append((name, *(mean_and_spread(cell, 2) for cell in cells)))
    pairs = [(a, b) for a, b in PAIRS if a in names and b in names]
    columns = [
        with_p([paired(found[c].get(a, {}), found[c].get(b, {}), "clean") for a, b in pairs])
        for c in counts
    ]
    for k, (a, b) in enumerate(pairs):
        rows.append((f"{a} - {b}", *(texts[k] for texts in columns)))
    return markdown(("series a class: test accuracy, %", *titles), rows)


def settings_table(runs):
    """What was tried, mean validation accuracy by value; what was chosen is bold."""
    rows = []
    for one in runs:
        if one["run"]["stage"] == "chosen":
            chosen = one["result"]
            best = chosen["settings"].get(chosen["kind"], 0.0)
            tried = ", ".join(
                f"**{value:g}: {accuracy:.2f}**" if value == best else f"{value:g}: {accuracy:.2f}"
                for value, accuracy, _ in chosen["tried"]
            )
            edge = " (at an edge)" if chosen["at_edge"] else ""
            rows.append((one["run"]["method"], chosen["kind"], tried + edge))
    return markdown(("method", "searched", "validation accuracy, %, by value"), rows)


def draw_curve(found, names, path):
    """Accuracy against the number of training series; bands are 95 % intervals of the mean."""
    counts = [*sorted(count for count in found if count is not None), None]
    places = [str(c) if c else "all" for c in counts]

    def fill(_, axes):
        for axis, base in zip(axes, (None, "LSTM"), strict=True):
            for colour, name in enumerate(names):
                values = [
                    column(found[c][name], "clean")
                    if base is None
                    else paired(found[c][name], found[c][base], "clean")
                    for c in counts
                ]
                means = np.array([np.mean(v) for v in values])
                half = np.array([interval(v) for v in values])
                axis.plot(places, means, "o-", markersize=3, color=f"C{colour}", label=name)
                ends = means - half, means + half
                axis.fill_between(places, *ends, color=f"C{colour}", alpha=0.1)
            axis.set_xlabel("training series a class")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("test accuracy, %")
        axes[1].set_ylabel("minus LSTM, points")
        axes[0].legend(fontsize=8)

    figure(path, fill, 1, 2, figsize=(8.5, 3.4), layout="constrained", dpi=100)


def draw_states(runs, path):
    """t-SNE of the last hidden state of every method, on the first seed."""
    shown = {
        one["run"]["method"]: one["result"]["points"]
        for one in runs
        if one["run"]["stage"] == "test" and "points" in one["result"]
    }
    if not shown:
        return

    def fill(_, axes):
        for axis, (name, points) in zip(axes[0], shown.items(), strict=True):
            x, y, labels = np.transpose(points)
            axis.scatter(x, y, c=labels, cmap="tab10", s=6)
            axis.set(title=name, xticks=[], yticks=[])

    size = (4 * len(shown), 4)
    figure(path, fill, 1, len(shown), figsize=size, squeeze=False, layout="tight")


def report(runs, task, stem):
    """Prints and writes the tables (`stem`.md) and figures; returns the accuracies."""
    found = accuracies(runs)
    parts = []
    if found[None]:
        parts += [main_table(found[None], task.paper), difference_table(found[None])]
    if len(found) > 1:
        few = next(by_method for count, by_method in found.items() if count is not None)
        parts.append(count_table(found, list(few)))
        draw_curve(found, list(few), stem.with_name(f"{stem.name}_curve.png"))
    parts.append(settings_table(runs))
    text = "\n".join(part for part in parts if part)
    write(stem.with_suffix(".md"), text)
    draw_states(runs, stem.with_name(f"{stem.name}_tsne.png"))
    print(text, end="")
    return found
