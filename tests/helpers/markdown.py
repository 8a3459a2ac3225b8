"""Tables and blocks of code in Markdown."""

import re


def table_rows(text):
    """The cells of every line of the tables in a Markdown text, without the rules below headers."""
    lines = [line for line in text.splitlines() if line.startswith("|") and set(line) - set("|- ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def fenced_blocks(text):
    """(language, content) of every fenced block; the language is "" where none is named."""
    pattern = r"^```([^\n]*)\n(.*?)^```[ \t]*$"
    return [(m[1].strip(), m[2]) for m in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)]


def commands(text):
    """The commands that a text shows: lines of `sh` blocks, and inline code that begins like one.

    Inline code may go over the end of a line; comments are left out.
    """
    found = []
    for language, content in fenced_blocks(text):
        if language == "sh":
            lines = content.replace("\\\n", " ").splitlines()
            found += [line.split(" #")[0].split("# ")[0].strip() for line in lines]
    prose = re.sub(r"^```.*?^```[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", prose):
        if re.match(r"(python|make|pip) ", code):
            found.append(" ".join(code.split()))
    return [command for command in found if command]
