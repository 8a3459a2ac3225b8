"""Speed of the proximal operators: ratios of medians, measured in one process.

    python examples/benchmarks/operators.py

Each operator at (1024, 256) in float32 against reading and writing its input once (x -> 1.5 x);
the simplex against `tf.sort` alone; total variation at (256, 1024) against pyproximal's `TV`,
called for every row with as many iterations as an error of 1e-6 takes; the generic solver on a
quadratic R against the closed form.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.ops.convex.table import OPERATORS


def median_time(function, *arguments, repeats=15):
    """Median seconds of a call, after one that traces."""
    function(*arguments)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        tf.nest.map_structure(lambda t: t.numpy(), function(*arguments))
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def operator_table(rng, shape=(1024, 256), lam=2.0):
    """Forward and forward-with-gradient time of each operator, and both over the I/O cost."""
    x = tf.constant(rng.standard_normal(shape), tf.float32)
    copy = median_time(tf.function(lambda v: 1.5 * v), x)
    differences = np.diff(np.eye(shape[1]), axis=0)
    print(f"x -> 1.5 x at {shape}: {1e3 * copy:.3f} ms")
    print("| operator | forward, ms | of x -> 1.5 x | with gradient, ms | of x -> 1.5 x |")
    print("| --- | --- | --- | --- | --- |")
    for name, operator in OPERATORS.items():
        options = {"matrix": differences.T @ differences} if name == "quadratic" else {}
        prepared = operator.prepare(**options) if operator.prepare else {}

        @tf.function
        def forward(v, operator=operator, prepared=prepared):
            return operator.prox(v, tf.constant(lam), **prepared)

        @tf.function
        def both(v, forward=forward):
            with tf.GradientTape() as tape:
                tape.watch(v)
                z = forward(v)
            return z, tape.gradient(z, v, v)

        one, two = median_time(forward, x), median_time(both, x)
        print(
            f"| {name} | {1e3 * one:.2f} | {one / copy:.1f} | {1e3 * two:.2f} | {two / copy:.1f} |"
        )
    sort = median_time(tf.function(lambda v: tf.sort(v, axis=-1)), x)
    simplex = median_time(tf.function(lambda v: OPERATORS["simplex"].prox(v, 1.0)), x)
    print(f"simplex {1e3 * simplex:.2f} ms, tf.sort {1e3 * sort:.2f} ms: {simplex / sort:.2f}")
    return simplex / sort


def iterations_for(x, exact, tau, accuracy):
    """The fewest iterations (in doublings) of pyproximal's TV with this error on the row `x`."""
    import pyproximal

    for niter in 2 ** np.arange(5, 15):
        operator = pyproximal.TV((len(x),), niter=int(niter), rtol=0.0)
        if np.abs(operator.prox(x, tau) - exact).max() <= accuracy:
            return int(niter)
    return None


def total_variation_table(rng, shape=(256, 1024), accuracy=1e-6, sample=2):
    """Ours on the whole batch against pyproximal row by row (`sample` rows, times their number)."""
    import pyproximal

    print("| x, lam | ours, ms | max error | pyproximal: iterations | all rows, ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratios = []
    white = rng.standard_normal(shape)
    steps = np.repeat(rng.standard_normal((shape[0], 16)), shape[1] // 16, axis=1)
    prox = tf.function(OPERATORS["total_variation"].prox)
    for name, x, lam in (
        ("white noise", white, 2.0),
        ("white noise", white, 0.5),
        ("steps + noise", 3 * steps + 0.3 * white, 1.0),
    ):
        single, double = tf.constant(x, tf.float32), tf.constant(x)
        exact = prox(double, tf.constant(lam, tf.float64)).numpy()
        error = np.abs(prox(single, tf.constant(lam)).numpy() - exact).max()
        ours = median_time(prox, single, tf.constant(lam), repeats=7)
        times, counts = [], []
        for row, target in zip(x[:sample], exact[:sample], strict=True):
            niter = iterations_for(row, target, 1 / lam, accuracy)
            counts.append(niter or 2**14)
            operator = pyproximal.TV((len(row),), niter=counts[-1], rtol=0.0)
            begin = time.perf_counter()
            operator.prox(row, 1 / lam)
            times.append(time.perf_counter() - begin)
        theirs = float(np.median(times)) * shape[0]
        ratios.append(theirs / ours)
        print(
            f"| {name}, {lam} | {1e3 * ours:.0f} | {error:.1e} | {int(np.median(counts))} | "
            f"{1e3 * theirs:.0f} | {ratios[-1]:.0f} |"
        )
    return ratios


def generic_table(rng, shape=(256, 64)):
    """The generic solver on a quadratic R against its closed form, errors against a dense solve."""
    data = rng.standard_normal(shape)
    root = rng.standard_normal((shape[1], shape[1]))
    matrix = root @ root.T / shape[1]
    print("| dtype, lam | error closed | error generic | unsolved | closed, ms | generic, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for dtype in ("float64", "float32"):
        x, q = tf.constant(data, dtype), tf.constant(matrix, dtype)
        for lam in (0.125, 1.0, 8.0):
            exact = np.linalg.solve(np.eye(shape[1]) + matrix / lam, x.numpy().T).T
            closed = Prox(Regularizer("quadratic", matrix=matrix), lam=lam, dtype=dtype)
            generic = Prox(
                lambda z, q=q: tf.reduce_sum(z * tf.matmul(z, q), axis=-1) / 2,
                lam=lam,
                monitor=True,
                dtype=dtype,
            )
            fast, slow = tf.function(closed), tf.function(generic)
            errors = [np.abs(f(x).numpy() - exact).max() for f in (fast, slow)]
            a, b = median_time(fast, x), median_time(slow, x, repeats=7)
            print(
                f"| {dtype}, {lam} | {errors[0]:.1e} | {errors[1]:.1e} | "
                f"{generic.status['unsolved']:.3f} | {1e3 * a:.2f} | {1e3 * b:.1f} |"
            )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    tables = {
        "operators": operator_table,
        "total_variation": total_variation_table,
        "generic": generic_table,
    }
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    args = parser.parse_args(arguments)
    for name in args.tables:
        tables[name](np.random.default_rng(args.seed))
        print()


if __name__ == "__main__":
    main()
