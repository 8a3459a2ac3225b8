"""How a gradient step of ProxCCA scales: with rows, with the width of the views, with replicas.

    python examples/benchmarks/scaling.py [--output outputs] [--quick]

Each row runs in a process of its own: median time of a step (forward and backward in one graph),
ratio to the two products X^T X and X M alone, solver evaluations and residual, and the peak
memory of the step above its inputs (Linux). Replicas are logical devices of the same CPU, so
their row shows what synchronizing costs, not a speed-up. Writes a table and a figure.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import tensorflow as tf
from prox_cca import EPSILON, median_time, resident, step_of, views

from proxnet_tf import ProxCCA
from proxnet_tf.solvers import Newton

ROWS = (100, 1_000, 10_000, 50_000, 200_000)
WIDTHS = (10, 40, 100, 200, 512)
REPLICAS = (1, 2, 4)


def data(n, width, signal):
    x = np.concatenate(views(n, width // 2, signal), 1)
    return tf.constant(x), tf.random.stateless_normal(x.shape, (0, 1))


def replicated(count, lam, tolerance):
    """A step of the synchronized layer on `count` logical CPUs."""
    names = [f"CPU:{i}" for i in range(count)]
    strategy = tf.distribute.MirroredStrategy(names)
    with strategy.scope():
        layer = ProxCCA(lam=lam, epsilon=EPSILON, solver=Newton(tolerance), synchronized=True)
    step = step_of(layer)

    def parts(x, g):
        def part(context):
            rows = np.array_split(np.arange(len(x)), count)[context.replica_id_in_sync_group]
            return tf.gather(x, rows), tf.gather(g, rows)

        return strategy.experimental_distribute_values_from_function(part)

    run = tf.function(lambda values: strategy.run(step, args=values))
    return lambda x, g: run(parts(x, g))


def step_and_data(case):
    """What a row runs, in this process."""
    if case["replicas"] > 1:
        device = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * case["replicas"]
        tf.config.set_logical_device_configuration(device, logical)
    x, g = data(case["n"], case["width"], case["signal"])
    options = dict(lam=case["lam"], epsilon=EPSILON, solver=Newton(case["tolerance"]))
    if case["replicas"] > 1:
        step = replicated(case["replicas"], case["lam"], case["tolerance"])
    else:
        step = step_of(ProxCCA(**options))
    return step, x, g


def measure_memory(case):
    """Peak memory of a step above the memory in use before, outputs included (Linux).

    The results of earlier steps are kept, so that the step cannot use memory that they freed.
    """
    step, x, g = step_and_data(case)
    held = [step(x, g), step(x, g)]
    before = resident("VmRSS", anew=True)
    held.append(step(x, g))
    return {"peak": resident("VmHWM") - before}


def measure(case):
    """Times of one row."""
    step, x, g = step_and_data(case)
    seconds = median_time(lambda: step(x, g), case["repeats"])
    square = tf.random.stateless_normal((case["width"],) * 2, (1, 2))

    @tf.function
    def products(x, square):
        return tf.matmul(x, x, transpose_a=True), tf.matmul(x, square)

    options = dict(lam=case["lam"], epsilon=EPSILON, solver=Newton(case["tolerance"]))
    layer = ProxCCA(monitor="all", **options)
    layer(x, training=True)
    logs = {m.name: float(m.result()) for m in layer.metrics}
    return case | {
        "seconds": seconds,
        "products": median_time(lambda: products(x, square), case["repeats"]),
        "iterations": logs["iterations"],
        "residual": logs["residual"],
    }


def in_process(case, *arguments):
    """`measure` or `measure_memory` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"The case {case} failed:\n{done.stderr[-3000:]}")
    row = next(s for s in done.stdout.splitlines() if s.startswith("ROW "))
    return json.loads(row.removeprefix("ROW "))


def cases(quick):
    base = dict(n=2000, width=40, signal=20, lam=10.0, tolerance=1e-8, replicas=1, repeats=7)
    for n in ROWS[:2] if quick else ROWS:
        yield "rows", base | {"n": n}
    for width in WIDTHS[:2] if quick else WIDTHS:
        wide = {"width": width, "signal": width // 2}
        if width == 512:
            wide |= {"tolerance": 1e-6, "repeats": 3}
        yield "width", base | wide
    if not quick:
        yield "width", base | {"width": 512, "signal": 100, "tolerance": 1e-6, "repeats": 3}
    for replicas in REPLICAS[:2] if quick else REPLICAS:
        yield "replicas", base | {"replicas": replicas}


def line(row):
    return (
        f"{row['n']:8d} {row['width']:5d} {row['signal']:6d} {row['replicas']:8d} "
        f"{1e3 * row['seconds']:10.2f} {row['seconds'] / row['products']:12.1f} "
        f"{row['iterations']:6.0f} {row['residual']:9.1e} {row['peak'] / 2**20:8.1f}"
    )


def plot(rows, path):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for axis, (kind, key) in zip(
        axes, (("rows", "n"), ("width", "width"), ("replicas", "replicas")), strict=True
    ):
        chosen = [r for k, r in rows if k == kind and (r["width"], r["signal"]) != (512, 100)]
        x = [r[key] for r in chosen]
        axis.plot(x, [r["seconds"] for r in chosen], "o-", label="ProxCCA")
        axis.plot(x, [r["products"] for r in chosen], "s--", label="X'X and X M alone")
        axis.set(xlabel=kind, ylabel="seconds a step", yscale="log")
        axis.set_xscale("log", base=2 if kind == "replicas" else 10)
        axis.legend()
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    parser.add_argument("--quick", action="store_true", help="the small cases only")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        row = (measure_memory if options.memory else measure)(options.case)
        print("ROW", json.dumps(row))
        return None
    options.output.mkdir(parents=True, exist_ok=True)
    print(
        "       n     D signal replicas   ms a step  to products  steps  residual  peak MB",
        flush=True,
    )
    rows = []
    for kind, case in cases(options.quick):
        rows.append((kind, in_process(case) | in_process(case, "--memory")))
        print(line(rows[-1][1]), flush=True)
    plot(rows, options.output / "scaling.png")
    return rows


if __name__ == "__main__":
    main()
