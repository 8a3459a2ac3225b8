"""Turns the sections of this package's docstrings into what mkdocstrings shows well."""

import re
import textwrap

import griffe

PARAGRAPHS = r"^(Output|Reference|Call arguments and output):[ \t]*(.*)$"
LISTS = r"^(Call arguments(?: \(.*\))?|Attributes \(.*\)):$"


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
