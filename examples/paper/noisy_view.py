"""What one view learns from another: one view corrupted at test time (the paper's table 2).

    python examples/paper/noisy_view.py

Each method predicts the test digits with the corrupted view alone (trained with a loss per view)
and with averaged logits (trained with a loss of these). Noise of the level a mixes the features of
every test digit with those of another: (1 - a) x + a x_other.
"""

import argparse
import json

import keras
import numpy as np
from digits import (
    NAMES,
    SETTINGS,
    add_data_arguments,
    check_data_arguments,
    error_of,
    fit,
    make_model,
    split_data,
    summary,
)
from report import markdown, write

LEVELS = (0.0, 0.2, 0.5, 0.8)


def corrupt(view, labels, level, seed=0):
    """Mixes each row with a row of another digit."""
    generator = np.random.default_rng(seed)
    others = [generator.choice(np.flatnonzero(labels != label)) for label in labels]
    return (1 - level) * view + level * view[others]


def run(method, seed, options):
    """Test errors, %, by mode and noise level."""
    data = split_data(options.views, seed, options.labels_per_class)
    views, labels, _ = data["test"]
    errors = {}
    for mode, predict_with in (("alone", options.noisy), ("average", "average")):
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed)
        widths = [x.shape[1] for x in views]
        model = make_model(method, widths, SETTINGS[method], predict_with)
        title = f"{NAMES[method]}, {mode}, seed {seed}"
        fit(model, method, data, SETTINGS[method], options, title)
        errors[mode] = []
        for level in LEVELS:
            noisy = list(views)
            noisy[options.noisy] = corrupt(views[options.noisy], labels, level)
            errors[mode].append(error_of(model, noisy, labels))
    return errors


def table(results):
    """Mean +- std over seeds, one row a method and mode, one column a noise level."""
    rows = []
    for method, runs in results.items():
        for mode in ("alone", "average"):
            cells = [summary([one[mode][i] for one in runs]) for i in range(len(LEVELS))]
            rows.append((NAMES[method], mode, *cells))
    return markdown(("test error, %", "mode", *(f"{level:.0%}" for level in LEVELS)), rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_data_arguments(parser)
    parser.add_argument("--methods", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--noisy", type=int, default=0, help="index of the corrupted view")
    options = check_data_arguments(parser, parser.parse_args(arguments))
    if not 0 <= options.noisy < len(options.views):
        parser.error(f"--noisy must be the index of one of the {len(options.views)} views")
    results = {}
    for method in options.methods:
        for seed in options.seeds:
            results.setdefault(method, []).append(run(method, seed, options))
            write(options.output / "noisy_view.md", table(results))
            write(options.output / "noisy_view.json", json.dumps(results))
    print(f"\nviews {', '.join(options.views)}; corrupted: {options.views[options.noisy]}")
    print(table(results), end="")
    return results


if __name__ == "__main__":
    main()
