"""Makes the pages of the site that come from other files: API, gallery, results, changelog."""

import ast
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Page of the API: what it says first, and the names it shows.
GROUPS: dict[str, tuple[str, list[str]]] = {
    "Two and more views": (
        "Proximal layers for views, and the correlation of views as a loss, a layer or a metric.",
        [
            "ProxCCA",
            "ProxGCCA",
            "CCARegularizer",
            "GCCARegularizer",
            "CCALoss",
            "GCCALoss",
            "cca_loss",
            "gcca_loss",
            "CanonicalCorrelation",
            "LinearCCA",
        ],
    ),
    "Retrieval": (
        "How well codes of one view find their partners in another view, over both directions.",
        ["RecallAtK"],
    ),
    "Recurrent layers": (
        "Recurrent layers whose state depends less on small changes of the input.",
        ["ProxLSTM", "ProxLSTMCell", "ProxGRU", "ProxGRUCell", "ProxRNNCell"],
    ),
    "Priors": (
        "Proximal maps of named priors, of functions of your own, of activations, and of dropout.",
        ["Prox", "Regularizer", "prox_of_activation", "ProxDropout"],
    ),
    "Kernels": (
        "Features of a kernel that change little where you say so.",
        ["ProxKernelFeatures", "Invariance"],
    ),
    "Models": (
        "Whole models of views, and a model that is trained adversarially.",
        [
            "MultiviewClassifier",
            "DCCA",
            "DCCAE",
            "AdversarialModel",
        ],
    ),
    "Training": (
        "Schedules of lam, training on several machines, solvers, and searches with KerasTuner.",
        [
            "LambdaSchedule",
            "linear_lambda",
            "MultiWorkerStrategy",
            "solvers.Newton",
            "solvers.LBFGS",
            "tuning.MultiviewHyperModel",
            "tuning.ProxLSTMHyperModel",
        ],
    ),
    "Data sets": (
        "Semi-supervised batches, and two small data sets inside the package.",
        [
            "datasets.with_unlabelled",
            "datasets.load_multiple_features",
            "datasets.load_japanese_vowels",
        ],
    ),
}
MODULES = ("layers", "models", "datasets", "tuning")  # besides the package itself
SHOWN = [name for _, names in GROUPS.values() for name in names]


def public_names(module: str) -> list[str]:
    """The names in `__all__` of a module of the package, without importing it."""
    folder = ROOT / "proxnet_tf" / module
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":  # type: ignore
            return ast.literal_eval(node.value)
    raise PluginError(f"{path} has no __all__")


def check_names() -> None:
    """Every public name has a page, and every page a public name."""
    flat = set(public_names(""))
    wanted = flat | {f"{m}.{n}" for m in MODULES for n in public_names(m) if n not in flat}
    missing, unknown = wanted - set(SHOWN), set(SHOWN) - wanted
    unknown -= {"solvers.Newton", "solvers.LBFGS"}
    if missing or unknown or len(set(SHOWN)) < len(SHOWN):
        raise PluginError(
            f"GROUPS in docs/pages.py: without a page {missing}, unknown {unknown}, or a name twice"
        )


def page_of(name: str) -> str:
    return f"api/{name}.md"


def api_pages() -> tuple[dict[str, str], list[Any]]:
    """A page for every public name, an index of them, and the section's navigation."""
    pages, nav = {}, ["api/index.md"]
    index = ["# API\n\nEvery public name. Those without a dot are attributes of `proxnet_tf`.\n"]
    for title, (words, names) in GROUPS.items():
        index.append(f"\n## {title}\n\n{words}\n\n| name | what it is |\n| --- | --- |")
        for name in names:
            pages[page_of(name)] = f"::: proxnet_tf.{name}\n"
            index.append(f"| [`{name}`]({name}.md) | {first_line(name)} |")
        nav.append({title: [{name.split(".")[-1]: page_of(name)} for name in names]})
    pages["api/index.md"] = "\n".join(index) + "\n"
    return pages, nav


def first_line(name: str) -> str:
    """The first sentence of a docstring, found in the sources without importing them."""
    short = name.split(".")[-1]
    for path in (ROOT / "proxnet_tf").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == short:
                return (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
    return ""


def gallery_pages() -> tuple[dict[str, str | bytes], list[Any]]:
    """A page and a notebook for every script of the gallery, and the section's navigation."""
    pages: dict[str, str | bytes] = {}
    nav: list[Any] = ["gallery/index.md"]
    index = [
        "# Gallery\n\nEach script answers one question in at most 80 lines, and prints one table. "
        "`--small` runs it in\nseconds. Each page has the code, what it printed, and a notebook.\n"
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.stem == "show":
            continue
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        first, _, rest = (ast.get_docstring(tree) or "").partition("\n\n")
        title, _, question = first.partition(": ")
        question = question[:1].upper() + question[1:]
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
        name = path.stem
        output = ROOT / "docs" / "tables" / f"{name}.md"
        figure = ROOT / "docs" / "figures" / f"{name}.png"
        for file in (output, figure):
            if not file.exists():
                raise PluginError(
                    f"{file} is missing: run examples/{name}.py, then docs/figures.py"
                )
        text = [f"# {title}", f"**{question}**", rest]
        text += [f"![What the script found](../figures/{name}.png)", "## What it prints"]
        text += [output.read_text(encoding="utf-8"), "## The script"]
        text += [f"[Notebook]({name}.ipynb){{ .md-button download }}"]
        text += [f"`python examples/{name}.py`", f"```python\n{code}\n```"]
        pages[f"gallery/{name}.md"] = "\n\n".join(text) + "\n"
        pages[f"gallery/{name}.ipynb"] = notebook(first, rest, code)
        nav.append({title: f"gallery/{name}.md"})
        index.append(
            f"\n## [{title}]({name}.md)\n\n{question}\n\n"
            f"[![What the script {name} found](../figures/{name}.png){{ width=420 }}]"
            f"({name}.md)"
        )
    pages["gallery/index.md"] = "\n".join(index) + "\n"
    return pages, nav


def notebook(title: str, rest: str, code: str) -> bytes:
    """The script as a notebook that runs where the package is installed, and nothing else."""
    shared = (ROOT / "examples" / "show.py").read_text(encoding="utf-8")
    cells = [
        f"# %% [markdown]\n# # {title}\n#\n" + "\n".join(f"# {line}" for line in rest.splitlines()),
        "# %% [markdown]\n# The options and the table that the scripts of the gallery share:",
        "# %%\nfrom pathlib import Path\n\nPath('show.py').write_text(" + repr(shared) + ")",
        "# %%\n" + code.split("\n\nif __name__")[0].rstrip(),
        "# %%\nfound = main([])  # main(['--small']) takes seconds",
    ]
    made = jupytext.reads("\n\n".join(cells) + "\n", fmt="py:percent")
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    return nbformat.writes(made, version=4).encode()


def copied(name: str) -> str:
    """A file of the root as a page: links to other files of the repository become names."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\.md\)", r"\1", text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    check_names()
    filled = {"API": api_pages()[1], "Gallery": gallery_pages()[1]}
    for entry in config.nav or []:
        for title in filled.keys() & entry.keys():
            entry[title] = filled[title]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made: dict[str, str | bytes] = {**api_pages()[0], **gallery_pages()[0]}
    made["results.md"] = copied("RESULTS.md")
    made["changelog.md"] = copied("CHANGELOG.md")
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(html: str, **kwargs: Any) -> str:
    """Links public names in inline code to the API, and figures to themselves in full size."""
    html = re.sub(
        r'(?<!">)(<img [^>]*src="([^"]*figures/[^"]*)"[^>]*>)', r'<a href="\2">\1</a>', html
    )
    kept = r"(<(pre|h\d|a|autoref)\b.*?</\2>)"
    parts = re.split(kept, html, flags=re.DOTALL)
    for i in range(0, len(parts), 3):  # between what is kept: its text and its tag
        parts[i] = re.sub(r"<code>(?:proxnet_tf\.)?([\w.]+)</code>", _link, parts[i])
    return "".join(part for i, part in enumerate(parts) if i % 3 < 2)


def _link(match: re.Match[str]) -> str:
    known = {name.split(".")[-1]: name for name in SHOWN} | {name: name for name in SHOWN}
    name = known.get(match[1])
    return f'<autoref identifier="proxnet_tf.{name}">{match[0]}</autoref>' if name else match[0]
