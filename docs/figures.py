"""Draws the figures of the site from the package, docs/tables and pages (about a minute).

    python docs/figures.py              # all of them
    python docs/figures.py views moons  # some

The charts of the gallery come from the tables that its scripts wrote:
`python examples/NAME.py --output docs/tables` first. The one of retrieval.py runs the script.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
COLOURS = ["#00796b", "#e64a19", "#5c6bc0", "#8d6e63", "#78909c"]
plt.rcParams.update(
    {
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "legend.frameon": False,
    }
)


def save(figure, name):
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.png", dpi=130, metadata={"Software": None})
    plt.close(figure)


def rows_of(text):
    """The cells of the first table in a Markdown text: the header and the rows."""
    lines = re.search(r"((?:^\|.*\n)+)", text, re.MULTILINE)[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def results(title, page="RESULTS.md"):
    """The first table of a section of RESULTS.md, or of another page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return rows_of(text[text.index(f"## {title}") :])


# What the pieces do ----------------------------------------------------------------------------


def views():
    """Two views of one hidden number each, before ProxCCA and after it for three lam."""
    import keras

    from proxnet_tf import ProxCCA

    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(200, 1))
    x = np.hstack([hidden + 0.9 * rng.normal(size=(200, 1)), rng.normal(size=(200, 1))])
    y = np.hstack([hidden + 0.9 * rng.normal(size=(200, 1)), rng.normal(size=(200, 1))])
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.9), sharex=True, sharey=True)
    for axis, lam in zip(axes, (None, 3.0, 1.0, 0.3), strict=True):
        p, q = x, y
        if lam:
            layer = ProxCCA(1, lam=lam, dtype="float64")
            p, q = map(keras.ops.convert_to_numpy, layer([x, y], training=True))
        correlation = np.corrcoef(p[:, 0], q[:, 0])[0, 1]
        axis.scatter(p[:, 0], q[:, 0], c=hidden[:, 0], s=9, cmap="viridis")
        name = f"lam = {lam:g}" if lam else "before"
        axis.set_title(f"{name}\ncorrelation {correlation:.2f}", fontsize=10)
        axis.set_xlabel("view 1, first column")
    axes[0].set_ylabel("view 2, first column")
    save(figure, "views")


def moons():
    """Two moons, one label each, named by the nearest label in the space of features."""
    from sklearn.datasets import make_moons

    from proxnet_tf import Invariance, ProxKernelFeatures

    points, moon = make_moons(200, noise=0.1, random_state=0)
    labelled = [points[:, 0].argmin(), points[:, 0].argmax()]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharex=True, sharey=True)
    both = [Invariance("gradient_flatness"), Invariance("graph_laplacian", num_neighbors=6)]
    cases = {"plain kernel": [], "invariant kernel, lam = 0.1": both}
    for axis, (title, invariances) in zip(axes, cases.items(), strict=True):
        features = ProxKernelFeatures(
            "gaussian",
            landmarks=points,
            kernel_options={"length_scale": 0.3},
            invariances=invariances,
            lam=0.1,
            dtype="float64",
        )(points).numpy()
        distances = [np.linalg.norm(features - features[i], axis=1) for i in labelled]
        named = moon[labelled][np.argmin(distances, 0)]
        axis.scatter(*points.T, c=np.array(COLOURS)[named], s=12)
        axis.scatter(*points[labelled].T, c="black", marker="*", s=140)
        right = np.delete(named == moon, labelled).mean()
        axis.set_title(f"{title}: {100 * right:.0f} % right", fontsize=10)
    save(figure, "moons")


def dropout():
    """One entry of ProxDropout's output over the size of the input, for three lam."""
    from proxnet_tf import ProxDropout

    scale = np.linspace(0, 4, 200)
    x = scale[:, None] * np.array([[1.0, 0.3]])
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharex=True)
    for lam in (2.0, 0.5, 0.1):
        z = ProxDropout(lam=lam, dtype="float64")(x).numpy()
        for j, axis in enumerate(axes):
            axis.plot(x[:, 0], z[:, j], label=f"lam = {lam:g}")
    for j, (axis, name) in enumerate(zip(axes, ("large", "small"), strict=True)):
        axis.plot(x[:, 0], x[:, j], "k:", lw=1, label="input")
        axis.set(xlabel="large entry of the input", title=f"{name} entry of the output")
    axes[1].legend()
    save(figure, "dropout")


# From RESULTS.md and docs/recurrent.md -----------------------------------------------------------


def noise():
    """Accuracy under noise in the input, on Japanese Vowels."""
    header, rows = results("Japanese Vowels", "docs/recurrent.md")
    wanted = {"clean": 0.0, "noise 0.2": 0.2, "noise 0.5": 0.5, "noise 1": 1.0}
    found = {row[0]: row[1:] for row in rows if row[0] in wanted}
    figure, axis = plt.subplots(figsize=(6, 3.2))
    for j, name in enumerate(header[1:]):
        pairs = [[float(part) for part in found[key][j].split("±")] for key in wanted]
        mean, spread = np.transpose(pairs)
        axis.errorbar(list(wanted.values()), mean, spread, marker="o", capsize=3, label=name)
    axis.set(xlabel="noise added to the input, in its standard deviations")
    axis.set(ylabel="test accuracy, %", title="Japanese Vowels")
    axis.legend()
    save(figure, "noise")


def cost():
    """Time of a step of ProxCCA over the rows of a batch, and over the columns of both views."""
    _, rows = results("ProxCCA: scaling", "docs/cost.md")
    by_rows = [(int(r[0]), float(r[4])) for r in rows if r[1:4] == ["40", "20", "1"]]
    by_width = [(int(r[1]), float(r[4])) for r in rows if r[0] == "2000" and r[3] == "1"]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    first = [pair for pair in by_rows if pair[0] != 2000]
    for axis, pairs in zip(axes, (first, by_width), strict=True):
        axis.loglog(*np.transpose(sorted(dict(sorted(pairs, reverse=True)).items())), "o-")
        axis.grid(alpha=0.3)
    axes[0].set(xlabel="rows n (D = 40 columns)", ylabel="ms a step")
    axes[1].set(xlabel="columns D of both views (n = 2000)")
    save(figure, "cost")


# The gallery -----------------------------------------------------------------------------------


def chart(name, label, columns, *, log=False, lines=False, spread=False):
    """Bars (or lines) of some columns of the table of a script."""
    header, rows = rows_of((ROOT / f"docs/tables/{name}.md").read_text(encoding="utf-8"))
    rows = [row for row in rows if all(row[j] for j in columns)]
    names = [row[0] for row in rows]
    values = np.array([[float(row[j]) for j in columns] for row in rows])
    figure, axis = plt.subplots(figsize=(6.4, 0.6 + (2.6 if lines else 0.5 * len(rows) + 0.9)))
    if lines:
        places = [float(header[j].split()[-1]) for j in columns]
        for row, line in zip(names, values, strict=True):
            axis.plot(places, line, "o-", label=row)
        axis.set(xlabel=header[columns[0]].split()[0], ylabel=label)
        axis.legend()
        return save(figure, name)
    height = 0.8 / len(columns)
    for place, j in enumerate(columns):
        y = np.arange(len(rows)) + (place - (len(columns) - 1) / 2) * height
        found = values[:, place]
        error = None
        if spread:
            ends = np.array([[float(row[j + 1]), float(row[j + 2])] for row in rows])
            error = np.abs(ends.T - found)
        bars = axis.barh(y, found, height * 0.92, xerr=error, capsize=3, label=header[j])
        axis.bar_label(bars, [f"{v:.3g}" for v in found], padding=4, fontsize=8)
    axis.set_yticks(np.arange(len(rows)), names)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.margins(x=0.12)
    if log:
        axis.set_xscale("log")
    if len(columns) > 1:
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, name)


def search():
    """Validation error of the trials over lam."""
    header, rows = rows_of((ROOT / "docs/tables/search.md").read_text(encoding="utf-8"))
    found = [dict(zip(header, row, strict=True)) for row in rows]
    figure, axis = plt.subplots(figsize=(6.4, 3))
    for width in sorted({row["codes"] for row in found}, key=int):
        some = [row for row in found if row["codes"] == width]
        x, y = ([float(row[key]) for row in some] for key in ("lam", "validation error, %"))
        axis.semilogx(x, y, "o", label=f"{width} columns a code")
    axis.set(xlabel="lam", ylabel="validation error, %")
    axis.legend()
    save(figure, "search")


def retrieval():
    """Six sketches, and the photos that are most similar to each; its own has a frame."""
    sys.path.insert(0, str(ROOT / "examples"))
    import retrieval as script

    sketches, photos, cosines = script.main([])
    figure, axes = plt.subplots(6, 7, figsize=(6, 5.4))
    for query, row in enumerate(axes):
        best = np.argsort(-cosines[query])[:6]
        for axis, image in zip(row, [sketches[query], *photos[best]], strict=True):
            axis.imshow(image, cmap="Greys")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(axis in row[1:][best == query])
    axes[0, 0].set_title("sketch")
    axes[0, 1].set_title("first hit")
    save(figure, "retrieval")


def gallery():
    chart("few_labels", "test error, %", [1], spread=True)
    chart("missing_views", "test error, %", [1, 2, 3, 4])
    chart("prox_lstm_swap", "test accuracy, %", [1, 2, 3], lines=True)
    chart("convex_prior", "error by the number of training signals", [1, 2])
    chart("own_prior", "mean squared error of the rate", [1])
    chart("invariant_kernel", "accuracy, %", [1, 2, 3, 4])
    chart("export_and_serve", "ms a call", [2, 3, 4])
    chart("more_devices", "largest difference of the weights from one device's", [2], log=True)
    search()


DRAWN = {f.__name__: f for f in (views, moons, dropout, noise, cost, retrieval, gallery)}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or DRAWN:
        DRAWN[wanted]()
