"""Tables and figure of `labels.py`."""


def report(runs, output):
    return runs
