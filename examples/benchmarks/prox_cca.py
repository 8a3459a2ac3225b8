"""ProxCCA against the published way of computing it: time, accuracy, cost in n, memory, import.

    python examples/benchmarks/prox_cca.py [--repeats 7] [--quick] [--rows]

The published computation, written out here, runs in the same process: SciPy's L-BFGS-B with its
defaults over all 2 n d entries, with one solve forward and two backward, for a central difference
with the step 1e-2 (1 + ||h||_inf) / ||g||_inf. Times are medians; compare their ratios. Run it on a
machine that does nothing else.
"""

import argparse
import ctypes
import subprocess
import sys
import time

import keras
import numpy as np
import scipy.optimize
import tensorflow as tf
import timing

from proxnet_tf import ProxCCA, ProxGCCA
from proxnet_tf.solvers import Newton

EPSILON = 1e-4


def views(n, d, signal, seed=0, number=2):
    """Views: mixtures of `signal` shared latent variables, plus noise of their own."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, signal))
    mixed = [
        latent @ rng.normal(size=(signal, d)) / d**0.5 + 0.5 * rng.normal(size=(n, d))
        for _ in range(number)
    ]
    return [x.astype("float32") for x in mixed]


# --- the published way ---------------------------------------------------------------------


def published_objective(flat, h, d, lam):
    p = flat.reshape(h.shape)
    n = len(p)
    centred = p - p.mean(0)
    x, y = centred[:, :d], centred[:, d:]

    def inverse_root(s):
        w, v = np.linalg.eigh(s / (n - 1) + EPSILON * np.eye(d))
        return (v / np.sqrt(w)) @ v.T

    a, b = inverse_root(x.T @ x), inverse_root(y.T @ y)
    u, s, vt = np.linalg.svd(a @ (x.T @ y / (n - 1)) @ b)
    of_xy = a @ u @ vt @ b
    of_xx, of_yy = a @ (u * s) @ u.T @ a, b @ (vt.T * s) @ vt @ b
    gradient = np.concatenate([x @ of_xx - y @ of_xy.T, y @ of_yy - x @ of_xy], 1) / (n - 1)
    gradient += lam / n * (p - h)
    return lam / (2 * n) * ((p - h) ** 2).sum() - s.sum(), gradient.ravel()


def published_forward(h, d, lam):
    found, _, _ = scipy.optimize.fmin_l_bfgs_b(published_objective, h.ravel(), args=(h, d, lam))
    return found.reshape(h.shape)


def published_backward(h, g, d, lam):
    r = 1e-2 * (1 + np.abs(h).max()) / np.abs(g).max()
    plus, minus = published_forward(h + r * g, d, lam), published_forward(h - r * g, d, lam)
    return (plus - minus) / (2 * r)


# --- ours -----------------------------------------------------------------------------------


def step_of(layer):
    """Forward and backward of the layer, as a training step runs them, views side by side."""

    @tf.function
    def step(x, g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            p = layer(x, training=True)
        return p, tape.gradient(p, x, g)

    return step


def median_time(function, repeats):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def side_by_side(*arrays):
    return np.concatenate([np.asarray(a, "float64") for a in arrays], 1)


def error(value, reference):
    return np.linalg.norm(value - reference) / np.linalg.norm(reference)


def compare(n, d, lams, signal, repeats):
    h = side_by_side(*views(n, d, signal))
    g = np.random.default_rng(1).normal(size=h.shape).astype("float32").astype("float64")
    ratios = []
    for lam in lams:
        step = step_of(ProxCCA(lam=lam, epsilon=EPSILON))
        single = [tf.constant(v, tf.float32) for v in (h, g)]
        ours = median_time(lambda step=step, a=single: step(*a), max(repeats, 7))
        _, gradient = step(*single)
        exact = step_of(ProxCCA(lam=lam, epsilon=EPSILON, solver=Newton(1e-12), dtype="float64"))
        p, reference = (t.numpy() for t in exact(*(tf.constant(v) for v in (h, g))))
        layer = ProxCCA(lam=lam, epsilon=EPSILON, monitor="all")
        layer(single[0], training=True)
        logs = {m.name: float(m.result()) for m in layer.metrics}
        theirs = {}

        def published(lam=lam, theirs=theirs):
            theirs["p"] = published_forward(h, d, lam)
            theirs["g"] = published_backward(h, g, d, lam)

        their_time = median_time(published, 3 if n < 1000 else 1)
        ratios.append(their_time / ours)
        print(
            f"{n:7d} {d:3d} {signal:6d} {lam:6g} {1e3 * ours:9.2f} {1e3 * their_time:10.1f} "
            f"{ratios[-1]:7.1f} {logs['iterations']:5.0f} {logs['residual']:9.1e} "
            f"{error(gradient.numpy(), reference):9.1e} "
            f"{error(theirs['p'], p):9.1e} {error(theirs['g'], reference):9.1e}",
            flush=True,
        )
    print(
        f"        geometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.1f}", flush=True
    )


# --- rows of the table of all.py ------------------------------------------------------------


def report_of(lam, x, tolerance=1e-8):
    """Evaluations and residual of a solve."""
    layer = ProxCCA(lam=lam, epsilon=EPSILON, solver=Newton(tolerance), monitor="all")
    layer(x, training=True)
    logs = {m.name: float(m.result()) for m in layer.metrics}
    return f"residual {logs['residual']:.1e} in {logs['iterations']:.0f} evaluations"


def against_published(n, d, lam, repeats=7):
    """A step beside the published computation, in turn."""
    h = side_by_side(*views(n, d, d))
    g = np.random.default_rng(1).normal(size=h.shape).astype("float32").astype("float64")
    single = [tf.constant(v, tf.float32) for v in (h, g)]
    step = step_of(ProxCCA(lam=lam, epsilon=EPSILON))
    found = timing.compare(
        lambda: step(*single),
        lambda: (published_forward(h, d, lam), published_backward(h, g, d, lam)),
        repeats,
    )
    exact = step_of(ProxCCA(lam=lam, epsilon=EPSILON, solver=Newton(1e-12), dtype="float64"))
    reference = exact(*(tf.constant(v) for v in (h, g)))[1].numpy()
    wrong = error(step(*single)[1].numpy(), reference)
    accuracy = f"{report_of(lam, single[0])}, gradient off by {wrong:.1e}"
    return timing.row(f"ProxCCA, n = {n}, d = {d}, lam = {lam:g}", found, accuracy, True), found


def alone(case, function, accuracy="", repeats=7):
    """A row without a reference: median of the times, least to largest."""
    function()
    times = sorted(timing.seconds(function) for _ in range(repeats))
    spread = f"{1e3 * times[0]:.3g} to {1e3 * times[-1]:.3g} ms"
    return (case, f"{1e3 * np.median(times):.4g}", "", "", spread, accuracy)


def wide(n, d, signal, lam, tolerance):
    """A step of wide views."""
    x = tf.constant(side_by_side(*views(n, d, signal)), tf.float32)
    g = tf.random.stateless_normal(x.shape, (0, 1))
    step = step_of(ProxCCA(lam=lam, epsilon=EPSILON, solver=Newton(tolerance)))
    case = f"ProxCCA, n = {n}, D = {2 * d}, {signal} latent, lam = {lam:g}, tolerance {tolerance:g}"
    return alone(case, lambda: step(x, g), report_of(lam, x, tolerance))


def first_steps():
    """Runs in a process of its own: first steps of layers whose sizes are new, and known."""
    x, g = tf.constant(side_by_side(*views(100, 10, 10)), tf.float32), tf.ones((100, 20))
    for lam, epsilon in ((1.0, 1e-4), *((1.0 + i, 1e-4 + 1e-5 * i) for i in range(1, 8))):
        step = step_of(ProxCCA(lam=lam, epsilon=epsilon))
        print(timing.seconds(lambda step=step: step(x, g)))


def first_step_rows(processes=3):
    """Medians over processes: trace and compile anew, and with another lam and epsilon."""
    runs = []
    for _ in range(processes):
        command = [sys.executable, __file__, "--first"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(line) for line in done.stdout.split()])
    anew, again = np.array(runs)[:, 0], np.array(runs)[:, 1:].ravel()
    return [
        (
            case,
            f"{1e3 * np.median(t):.4g}",
            "",
            "",
            f"{1e3 * t.min():.4g} to {1e3 * t.max():.4g} ms",
            "",
        )
        for case, t in (
            ("first step of ProxCCA in a process, d = 10", anew),
            ("first step with another lam and epsilon, d = 10", again),
        )
    ]


def benchmark():
    """Every row of the table that concerns ProxCCA; see timing.py."""
    rows = []
    for n, lams in ((100, (0.1, 1.0, 10.0, 100.0)), (32_000, (0.5, 10.0))):
        found = [against_published(n, 20, lam) for lam in lams]
        rows += [row for row, _ in found]
        mean = np.exp(np.mean([-np.log(f.ratio) for _, f in found]))
        rows.append((f"ProxCCA, n = {n}, geometric mean", "", "", f"{mean:.3g} x faster", "", ""))
    rows.append(wide(400, 90, 90, 1.0, 1e-8))
    rows += [wide(2000, 256, signal, 10.0, 1e-6) for signal in (256, 100)]
    return rows + first_step_rows()


def three_views(lam, repeats):
    """A gradient step of ProxGCCA with three views against one of ProxCCA."""
    for signal in (20, 15, 10):
        two = np.concatenate(views(300, 20, signal), 1)
        three = np.concatenate(views(300, 15, signal, number=3), 1)
        steps = [(two, step_of(ProxCCA(lam=lam, epsilon=EPSILON)))]
        for k in (15, 10):
            layer = ProxGCCA(k, lam=lam, epsilon=EPSILON, split=(15, 15, 15))
            steps.append((three, step_of(layer)))
        times = []
        for x, step in ((tf.constant(x), step) for x, step in steps):
            g = tf.random.stateless_normal(x.shape, (0, 1))
            times.append(median_time(lambda a=(x, g), s=step: s(*a), max(repeats, 15)))
        print(
            f"{signal:6d} {1e3 * times[0]:8.1f} "
            + " ".join(f"{1e3 * t:12.1f} {t / times[0]:5.2f}" for t in times[1:]),
            flush=True,
        )


def growth(d, repeats):
    """The part of the time that grows with n, against the two products X^T X and X M alone."""
    times = {"layer": [], "products": []}
    sizes = (32_000, 256_000)
    step = step_of(ProxCCA(lam=10.0, epsilon=EPSILON))
    for n in sizes:
        side = tf.constant(np.concatenate(views(n, d, d), 1))
        g = tf.random.stateless_normal(side.shape, (0, 1))
        times["layer"].append(median_time(lambda a=(side, g): step(*a), max(repeats, 15)))
        square = tf.random.stateless_normal((2 * d, 2 * d), (1, 2))

        @tf.function
        def products(side, square):
            return tf.matmul(side, side, transpose_a=True), tf.matmul(side, square)

        times["products"].append(
            median_time(lambda a=(side, square), f=products: f(*a), max(repeats, 15))
        )
    slope = {k: v[1] - v[0] for k, v in times.items()}
    for k, v in times.items():
        print(f"{k:>9}: {1e3 * v[0]:7.1f} ms at n = {sizes[0]}, {1e3 * v[1]:7.1f} at {sizes[1]}")
    print(f"   growth: {slope['layer'] / slope['products']:.2f} x the two products")


def resident(key, anew=False):
    """A figure on the memory of this process (Linux), bytes; `anew`: peaks count from now on."""
    if anew:
        ctypes.CDLL(None).malloc_trim(0)  # what is free must not hide what a step needs
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def peak_memory(n, d):
    """Runs in a process of its own: peak resident memory of a step above the inputs."""
    arrays = [tf.zeros((n, 2 * d)) + tf.range(2.0 * d), tf.ones((n, 2 * d))]
    step = step_of(ProxCCA(lam=10.0, epsilon=EPSILON))
    step(*(a[:5000] for a in arrays))
    before = resident("VmRSS", anew=True)
    step(*arrays)
    above = resident("VmHWM") - before
    print(f"{n:9d} {above / 2**20:8.0f} MB {above / (8 * n * d):6.2f}")


def import_time(repeats):
    code = (
        "import time, tensorflow, keras; start = time.perf_counter(); import proxnet_tf; "
        "print(time.perf_counter() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(repeats)
    ]
    return float(np.median([float(run.stdout) for run in runs]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="n = 100 only")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows", action="store_true", help="the rows of the table of all.py")
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        first_steps()
        return
    if args.rows:
        for row in (timing.HEADER, *benchmark()):
            print(" | ".join(row), flush=True)
        return
    if args.peak:
        peak_memory(args.peak, 20)
        return
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}, NumPy {np.__version__}")
    print(
        "      n   d signal    lam  ours(ms) theirs(ms)  ratio steps  residual  grad.err "
        "their P  their grad"
    )
    compare(100, 20, (0.1, 1.0, 10.0, 100.0), 20, args.repeats)
    compare(100, 20, (0.1, 1.0, 10.0, 100.0), 10, args.repeats)
    if args.quick:
        return
    print(
        "three views: ms a step of ProxCCA (d = 20) and ProxGCCA (d = 15, ratio to ProxCCA), n = "
        "300, lam = 5\nsignal  ProxCCA   GCCA, k = 15       GCCA, k = 10"
    )
    three_views(5.0, args.repeats)
    compare(32_000, 20, (0.5, 10.0), 20, args.repeats)
    growth(20, args.repeats)
    print(
        "        n   peak of a step above its inputs, in units of one n x D float32 array",
        flush=True,
    )
    for n in (128_000, 512_000):
        subprocess.run([sys.executable, __file__, "--peak", str(n)], check=True)
    print(f"import proxnet_tf adds {import_time(args.repeats):.2f} s to tensorflow and keras")


if __name__ == "__main__":
    main()
