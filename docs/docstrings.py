"""Turns the sections of this package's docstrings into what mkdocstrings shows well."""

import re
import textwrap

import griffe

PARAGRAPHS = r"^(Output|Reference|Call arguments and output):[ \t]*(.*)$"
LISTS = r"^(Call arguments(?: \(.*\))?|Attributes \(.*\)):$"

# The words of formulas in docstrings. A block with any other word stays as it is.
LETTERS = {"lam": r"\lambda", "eps": r"\epsilon", "Zt": r"\tilde Z"}
LETTERS |= {name: rf"\{name}" for name in ("delta", "sigma", "mu", "phi", "sum", "min", "max")}
LETTERS |= {f"S{name}": f"S_{{{name}}}" for name in ("xx", "xy", "yy")}
LETTERS |= {name: rf"\operatorname{{{name}}}" for name in ("sigmoid", "activation", "tr", "power")}
LETTERS |= {"argmin": r"\operatorname*{argmin}", "subject": r"\text{subject}", "to": r"\text{ to }"}
LETTERS |= {"loss": r"\text{loss}"}
SIGNS = {"||": r"\|", "<=": r"\le ", " o ": r" \circ ", "{": r"\{", "}": r"\}"}
TOKENS = re.compile(
    r"(?P<circle> o )|(?P<space>\s+)|(?P<half>([A-Za-z]+(\^2)?|\d+)/(\(\w+\)|\d+|lam\b))"
    r"|(?P<script>[_^](\{[^{}]*\}|\([^()]*\)|-?[A-Za-z]+|-?\d+))"
    r"|(?P<word>[A-Za-z]+)|(?P<sign>\|\||<=|[-+=*/(),.;{}]|\d+)"
)


def _tex(text: str) -> str | None:
    """A line of a formula as TeX, `None` if it holds anything that is not of a formula."""
    out, start = "", 0
    while start < len(text):
        match = TOKENS.match(text, start)
        if match is None:
            return None
        kind, token, start = match.lastgroup, match[0], match.end()
        parts: list[str | None] = []
        if kind == "space":
            out += r" \quad " if len(token) > 1 else " "
        elif kind == "half":
            above, _, below = token.partition("/")
            parts = [_tex(above), _tex(below.strip("()"))]
            out += rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
        elif kind == "script":
            inner = token[1:].strip("(){}")
            if inner == "T":
                parts = [r"\top"]
            else:  # indices stand side by side, and -1/2 on one line
                plain = "/" in inner or (inner.isalpha() and inner not in LETTERS)
                parts = [inner if plain else _tex(inner)]
            out += f"{token[0]}{{{parts[0]}}}"
        elif kind == "word":
            parts = [LETTERS.get(token, token if len(token) == 1 else None)]
            out += f"{parts[0]}"
        else:
            out += SIGNS.get(token, token)
        if None in parts:
            return None
    return out


def _formula(block: list[str]) -> list[str] | None:
    """An indented block as a typeset formula, `None` if it is none."""
    lines = [_tex(line.strip()) for line in block]
    if None in lines or not re.search(r"argmin|sum_|\^", " ".join(block)):
        return None
    rows = [line.replace("=", "&=", 1) if line else "" for line in lines[:1]]
    for line in lines[1:]:
        rows.append(f"&{line}" if line and line.startswith("=") else rf"&\quad {line}")
    return ["", r"$$\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}$$", ""]


def _block(lines: list[str], start: int) -> tuple[list[str], int]:
    """The indented lines from `start` on, and the index of the line after them."""
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    return textwrap.dedent("\n".join(lines[start:end])).strip("\n").splitlines(), end


def _entries(block: list[str]) -> list[list[str]]:
    """The entries `name: text` of a section, each with the lines that continue it."""
    found: list[list[str]] = []
    for line in block:
        if found and (line.startswith(" ") or not line.strip()):
            found[-1].append(line.strip())
        elif line.strip():
            found.append([line])
    return found


def _names(text: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in text.split(",") if name.strip())


def _arguments(block: list[str]) -> tuple[list[str], list[str]]:
    """The lines of `Args:`, and a sentence for each entry that names several arguments at once."""
    lines, sentences = [], []
    for entry in _entries(block):
        names, _, text = " ".join(entry).partition(": ")
        if "," in names:
            sentences += ["", f"{_names(names)}: {text}"]
        else:
            lines += ["    " + entry[0], *("        " + line for line in entry[1:])]
    return lines, sentences


def rewrite(text: str) -> str:
    """A docstring with every section in a form that Markdown or griffe knows."""
    lines, out, i = text.splitlines(), [], 0
    while i < len(lines):
        line, i = lines[i], i + 1
        if re.match(r"^Example( of .*)?:$", line):
            block, i = _example(lines, i)
            language = "pycon" if block and block[0].startswith(">>>") else "python"
            out += ["", f"**{line[:-1]}**", "", f"```{language}", *block, "```", ""]
        elif match := re.match(PARAGRAPHS, line):
            block, i = _block(lines, i)
            out += ["", f"**{match[1]}:** " + " ".join([match[2], *block]).strip(), ""]
        elif match := re.match(LISTS, line):
            block, i = _block(lines, i)
            out += ["", f"**{match[1]}**", ""]
            for entry in _entries(block):
                names, _, rest = " ".join(entry).partition(": ")
                out.append(f"- {_names(names)}: {rest}" if rest else f"- {names}")
            out.append("")
        elif line == "Args:":
            block, i = _block(lines, i)
            kept, sentences = _arguments(block)
            out += [*(["Args:", *kept] if kept else []), "", *sentences, ""]
        elif line.startswith("    ") and not lines[i - 2].strip():
            start = i - 1
            block, i = _block(lines, start)
            out += _formula([part for part in block if part]) or lines[start:i]
        else:
            out.append(line)
    return "\n".join(out)


def _example(lines: list[str], start: int) -> tuple[list[str], int]:
    """The code after `Example:`, indented or not, up to the next empty line before other text."""
    while start < len(lines) and not lines[start].strip():
        start += 1
    if lines[start].startswith(" "):
        return _block(lines, start)
    end = start
    while end < len(lines) and lines[end].strip():
        end += 1
    return lines[start:end], end


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        self._visit(pkg)

    def _visit(self, item: griffe.Object | griffe.Alias) -> None:
        if item.is_alias:
            return
        if item.docstring is not None:
            item.docstring.value = rewrite(item.docstring.value)
        for member in item.members.values():
            self._visit(member)
