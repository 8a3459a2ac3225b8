def table_rows(text):
    """The cells of every line of the tables in a Markdown text, without the rules below headers."""
    lines = [line for line in text.splitlines() if line.startswith("|") and set(line) - set("|- ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
