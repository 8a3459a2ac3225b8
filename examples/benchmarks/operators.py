"""Speed of the proximal operators: ratios of medians, measured in one process.

    python examples/benchmarks/operators.py

Each operator at (1024, 256) in float32 is compared with reading and writing its input once
(x -> 1.5 x), and its largest difference from float64 is shown. The nuclear norm is compared with
`tf.linalg.svd`, the simplex with `tf.sort` alone, total variation at (256, 1024) with pyproximal's
`TV`, called for every row with the iterations that an error of 1e-6 takes. The generic solver is
compared on a quadratic R with the closed form, and on functions R at (100, 20) with one value of R
and its gradient.
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
    return median_times([function], *arguments, repeats=repeats)[0]


def median_times(functions, *arguments, repeats=9):
    """Median seconds of each function, called in turn so that all see the same machine."""
    for function in functions:
        function(*arguments)
    times = []
    for _ in range(repeats):
        row = []
        for function in functions:
            begin = time.perf_counter()
            tf.nest.map_structure(lambda t: t.numpy(), function(*arguments))
            row.append(time.perf_counter() - begin)
        times.append(row)
    return [float(t) for t in np.median(times, axis=0)]


def forward_and_gradient(name, lam, columns):
    """The map of an operator, and the map with its vector-Jacobian product for z itself."""
    operator = OPERATORS[name]
    differences = np.diff(np.eye(columns), axis=0)
    options = {"matrix": differences.T @ differences} if name == "quadratic" else {}
    prepared = operator.prepare(**options) if operator.prepare else {}

    def forward(v):
        return operator.prox(v, tf.constant(lam, v.dtype), **prepared)

    def both(v):
        with tf.GradientTape() as tape:
            tape.watch(v)
            z = forward(v)
        return z, tape.gradient(z, v, v)

    return tf.function(forward), tf.function(both)


def operator_table(rng, shape=(1024, 256), lam=2.0):
    """Each operator over the I/O cost, and what float32 differs from float64 by."""
    x = tf.constant(rng.standard_normal(shape), tf.float32)
    copy, svd = tf.function(lambda v: 1.5 * v), tf.function(tf.linalg.svd)
    copied, decomposed = median_times([copy, svd], x)
    print(f"x -> 1.5 x at {shape}: {1e3 * copied:.3f} ms; tf.linalg.svd: {1e3 * decomposed:.1f} ms")
    print(
        "| operator | forward, ms | of x -> 1.5 x | of the SVD | with gradient, ms | "
        "of x -> 1.5 x | of the SVD | error of z | error of the gradient |"
    )
    print("|" + " --- |" * 9)
    ratios = {}
    for name in OPERATORS:
        forward, both = forward_and_gradient(name, lam, shape[1])
        functions = [copy, forward, both]
        if name == "nuclear":
            functions.append(svd)
        copied, one, two, *rest = median_times(functions, x)
        of_svd = [f"{t / rest[0]:.2f}" if rest else "" for t in (one, two)]
        errors = [
            float(tf.reduce_max(tf.abs(tf.cast(single, tf.float64) - double)))
            for single, double in zip(both(x), both(tf.cast(x, tf.float64)), strict=True)
        ]
        ratios[name] = one / copied, two / copied
        print(
            f"| {name} | {1e3 * one:.2f} | {one / copied:.1f} | {of_svd[0]} | {1e3 * two:.2f} | "
            f"{two / copied:.1f} | {of_svd[1]} | {errors[0]:.1e} | {errors[1]:.1e} |"
        )
    sort = tf.function(lambda v: tf.sort(v, axis=-1))
    simplex = tf.function(lambda v: OPERATORS["simplex"].prox(v, 1.0))
    sorting, projecting = median_times([sort, simplex], x)
    print(
        f"simplex {1e3 * projecting:.2f} ms, tf.sort {1e3 * sorting:.2f} ms: "
        f"{projecting / sorting:.2f}"
    )
    return ratios, projecting / sorting


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
                dtype=dtype,
            )
            generic(x)  # eager, for the status
            fast, slow = tf.function(closed), tf.function(generic)
            errors = [np.abs(f(x).numpy() - exact).max() for f in (fast, slow)]
            a, b = median_time(fast, x), median_time(slow, x, repeats=7)
            print(
                f"| {dtype}, {lam} | {errors[0]:.1e} | {errors[1]:.1e} | "
                f"{generic.status['unsolved']:.3f} | {1e3 * a:.2f} | {1e3 * b:.1f} |"
            )


def function_table(rng, shape=(100, 20)):
    """The generic solver with its gradient, in units of one value of R and its gradient."""
    mixing = tf.constant(rng.standard_normal((shape[1], shape[1])), tf.float32)
    cases = {  # R, lam, the size of x, where the solver starts
        "sum log cosh z": (lambda z: tf.math.log(tf.cosh(z)), 0.3, 1.0, None),
        "sum z^4, from far": (lambda z: z**4, 0.1, 100.0, None),
        "sum z log z": (lambda z: z * tf.math.log(z), 1.0, 1.0, 0.5),
        "sum softplus(3 z M)": (lambda z: tf.math.softplus(3 * z @ mixing), 0.1, 1.0, None),
        "25 sum of squared differences": (
            lambda z: 25 * (z[:, 1:] - z[:, :-1]) ** 2, 0.5, 1.0, None
        ),
    }  # fmt: skip
    print("| R, lam | first call, s | a step, ms | R and its gradient, ms | ratio | iterations |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (entries, lam, size, start) in cases.items():
        x = tf.constant(size * rng.standard_normal(shape), tf.float32)
        layer = Prox(
            lambda z, f=entries: tf.reduce_sum(f(z), -1), lam=lam, start=start, monitor="all"
        )

        def step(v, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(v)
                z = layer(v)
            return tape.gradient(z, v, v)

        def once(v, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(v)
                value = layer.regularizer(v)
            return tape.gradient(value, v)

        begin = time.perf_counter()
        steps = tf.function(step)
        steps(x)
        first = time.perf_counter() - begin
        whole, one = median_times([steps, tf.function(once)], x)
        print(
            f"| {name}, {lam} | {first:.1f} | {1e3 * whole:.1f} | {1e3 * one:.2f} | "
            f"{whole / one:.0f} | {layer.status['iterations']:.0f} |"
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    tables = {
        "operators": operator_table,
        "total_variation": total_variation_table,
        "generic": generic_table,
        "functions": function_table,
    }
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    args = parser.parse_args(arguments)
    for name in args.tables:
        tables[name](np.random.default_rng(args.seed))
        print()


if __name__ == "__main__":
    main()
