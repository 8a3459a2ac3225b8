"""Ours beside other programs for the same thing: time, and error against float64.

    pip install -e '.[peers]'
    python examples/benchmarks/peers.py [cca_loss linear_cca operators prox_lstm retrieval]

A peer that is not installed is named and left out. Both programs run in one process, in turn, on
the same data, each with as many threads as there are cores; times are medians of at least seven.
The usual deep CCA loss of public TensorFlow code is written out here.
"""

import os

# OpenMP threads that wait for work in a busy loop take cores from TensorFlow, and the reverse.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import functools
import importlib
import importlib.metadata
import warnings

import keras
import numpy as np
import tensorflow as tf
from operators import iterations_for
from prox_cca import error, views
from prox_lstm import training_step
from timing import compare

from proxnet_tf import CCALoss, LinearCCA, ProxLSTM, RecallAtK
from proxnet_tf.ops.convex.table import OPERATORS

EPSILON = 1e-4
# The cores that this process may use: with `taskset -c 0` every program runs on one.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
HEADER = ("case", "peer", "ours, ms", "peer, ms", "ours / peer", "least to largest")
HEADER += ("error of ours", "of the peer")


def row(case, peer, found, ours="", theirs=""):
    """A row of a table: a `Comparison`, and two errors."""
    times = (f"{1e3 * t:.3g}" for t in (found.ours, found.reference))
    ratios = f"{found.ratio:.2g}", f"{found.least:.2g} to {found.largest:.2g}"
    errors = (e if isinstance(e, str) else f"{e:.0e}" for e in (ours, theirs))
    return (case, peer, *times, *ratios, *errors)


def peer(module):
    """A module of another program with its name and version, or None and why it is left out."""
    try:
        found = importlib.import_module(module)
    except ImportError as problem:
        name = module.split(".")[0]
        return None, f"{name}: skipped ({str(problem).split(';')[0]})"
    distribution = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    if distribution in ("cca_zoo", "cvxpylayers"):
        importlib.import_module("torch").set_num_threads(CORES)
    return found, f"{distribution} {importlib.metadata.version(distribution)}"


def skipped(case, why):
    return (case, why, *[""] * (len(HEADER) - 2))


# --- the loss of deep CCA -------------------------------------------------------------------


def exact_loss(x, y, slope):
    """- sum f(sigma_i) and its gradients, NumPy in float64; `slope` gives (f, f') of sigma."""
    x, y = (np.asarray(v, "float64") - np.mean(v, 0, dtype="float64") for v in (x, y))
    n = len(x)

    def inverse_root(s):
        w, v = np.linalg.eigh(s / (n - 1) + EPSILON * np.eye(len(s)))
        return (v / np.sqrt(w)) @ v.T

    a, b = inverse_root(x.T @ x), inverse_root(y.T @ y)
    u, s, vt = np.linalg.svd(a @ (x.T @ y / (n - 1)) @ b, full_matrices=False)
    f, df = slope(s)
    left, right = a @ u, b @ vt.T
    of_xy, of_xx, of_yy = ((p * w) @ q.T for p, w, q in (
        (left, df, right), (left, df * s, left), (right, df * s, right)
    ))  # fmt: skip
    return -f.sum(), ((x @ of_xx - y @ of_xy.T) / (n - 1), (y @ of_yy - x @ of_xy) / (n - 1))


def usual_loss(x, y):
    """Deep CCA in plain TensorFlow: trace((T^T T)^(1/2)), T from two eigendecompositions."""

    def inverse_root(s):
        w, v = tf.linalg.eigh(s + EPSILON * tf.eye(s.shape[0], dtype=s.dtype))
        return tf.matmul(v / tf.sqrt(w), v, transpose_b=True)

    x, y = x - tf.reduce_mean(x, 0), y - tf.reduce_mean(y, 0)
    xx, xy, yy = (
        tf.matmul(p, q, transpose_a=True) / (p.shape[0] - 1.0) for p, q in ((x, x), (x, y), (y, y))
    )
    t = tf.matmul(tf.matmul(inverse_root(xx), xy), inverse_root(yy))
    squares = tf.linalg.eigvalsh(tf.matmul(t, t, transpose_a=True))
    return -tf.reduce_sum(tf.sqrt(tf.maximum(squares, 1e-12)))


def with_tensorflow(loss, x, y):
    """Functions without arguments: the loss, and the loss with its gradients."""

    @tf.function
    def both(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            value = loss(x, y)
        return value, tape.gradient(value, [x, y])

    forward = tf.function(loss)
    x, y = tf.constant(x), tf.constant(y)
    return lambda: forward(x, y), lambda: both(x, y)


def with_torch(loss, x, y):
    import torch

    x, y = (torch.from_numpy(v).requires_grad_() for v in (x, y))

    def both():
        value = loss([x, y])
        return value.detach(), torch.autograd.grad(value, [x, y])

    def forward():
        with torch.no_grad():
            return loss([x, y])

    return forward, both


def loss_errors(run, reference):
    """Relative errors of the value and of the gradients."""
    value, gradients = run()
    exact, right = reference
    found = np.concatenate([g.numpy() for g in gradients], 1)
    return abs(float(value) - exact) / abs(exact), error(found, np.concatenate(right, 1))


SIZES = tuple((n, d, 0) for n in (200, 1000, 10_000) for d in (10, 50, 200))


def cca_loss(sizes=(*SIZES, (1000, 20, 3)), repeats=9):
    """`CCALoss` beside plain TensorFlow, and beside cca_zoo's loss, the sum of sigma_i^2.

    The third of `sizes` is how many columns of either view are constant, as dead units are.
    """
    zoo, name = peer("cca_zoo.deep.objectives")
    rows = []
    for n, d, dead in sizes:
        case = f"n = {n}, d = {d}" + (f", {dead} constant" if dead else "")
        if n < 2 * d:
            rows.append(skipped(case, "left out: with n < 2 d every correlation is near 1"))
            continue
        x, y = views(n, d, d)
        k = d - dead
        x[:, k:], y[:, :dead] = 1, 1
        loss = CCALoss(k, epsilon=EPSILON)
        ours = with_tensorflow(lambda x, y, loss=loss: loss(None, [x, y]), x, y)
        sums = exact_loss(x, y, lambda s, k=k: (s[:k], np.arange(len(s)) < k))
        peers = [("eigh, autodiff", with_tensorflow(usual_loss, x, y), sums)]
        if zoo is not None:
            squares = exact_loss(x, y, lambda s: (s**2, 2 * s))
            peers.append((name, with_torch(zoo.CCALoss(reg_covar=EPSILON), x, y), squares))
        errors = loss_errors(ours[1], sums)
        for label, theirs, right in peers:
            wrong = loss_errors(theirs[1], right)
            for i, kind in enumerate(("value", "with gradient")):
                found = compare(ours[i], theirs[i], repeats)
                rows.append(row(f"{case}, {kind}", label, found, errors[i], wrong[i]))
        if zoo is None:
            rows.append(skipped(case, name))
    return rows


# --- linear CCA -----------------------------------------------------------------------------


def exact_correlations(x, y, k):
    """By Björck and Golub: orthonormal bases of the views, singular values of their product."""
    bases = [np.linalg.qr(v - v.mean(0))[0] for v in (x, y)]
    return np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[:k]


def correlations_of(x, y):
    """Of the columns of two lists of variates, pair by pair."""
    return np.array([np.corrcoef(p, q)[0, 1] for p, q in zip(x.T, y.T, strict=True)])


def linear_cca(sizes=((200, 10, 2), (1000, 50, 2), (10_000, 20, 2)), repeats=7):
    """`LinearCCA.fit` beside the same of scikit-learn and cca_zoo, rows in float64."""
    rows = []
    sklearn, sklearn_name = peer("sklearn.cross_decomposition")
    zoo, zoo_name = peer("cca_zoo.linear")
    for n, d, k in sizes:
        case = f"n = {n}, d = {d}, k = {k}"
        x, y = (np.asarray(v, "float64") for v in views(n, d, d))
        exact = exact_correlations(x, y, k)

        def ours(x=x, y=y, k=k):
            return LinearCCA(k).fit(x, y)

        def of_sklearn(x=x, y=y, k=k):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 500 iterations may not do; the error shows it
                return sklearn.CCA(k).fit(x, y)

        def of_zoo(x=x, y=y, k=k):
            return zoo.CCA(k).fit([x, y])

        mine = np.abs(ours().correlations_ - exact).max()
        for module, name, fit in (
            (sklearn, sklearn_name, of_sklearn),
            (zoo, zoo_name, of_zoo),
        ):
            if module is None:
                rows.append(skipped(case, name))
                continue
            found = compare(ours, fit, repeats)
            variates = fit().transform(x, y) if fit is of_sklearn else fit().transform([x, y])
            theirs = np.abs(correlations_of(*variates) - exact).max()
            rows.append(row(case, name, found, mine, theirs))
    return rows


# --- operators ------------------------------------------------------------------------------


def operators(shape=(256, 256), few=8, repeats=7):
    """Each operator on a batch of rows beside pyproximal, and the simplex beside cvxpylayers.

    Errors are the largest, against ours in float64. Total variation has `few` rows.
    """
    rng = np.random.default_rng(0)
    data = rng.standard_normal(shape).astype("float32")
    return [*beside_pyproximal(data, few, repeats), *beside_cvxpylayers(data, few, repeats)]


def by_rows(operator, x):
    return lambda: np.stack([operator.prox(one, 1.0) for one in x])


def beside_pyproximal(data, few, repeats, lam=1.0):
    module, name = peer("pyproximal")
    if module is None:
        return [skipped("operators", name)]
    n, short, rows = data.shape[1], data[:few], []

    def maps(kind, x):
        prox = tf.function(OPERATORS[kind].prox)
        exact = prox(tf.constant(x, tf.float64), tf.constant(lam, tf.float64)).numpy()
        return functools.partial(prox, tf.constant(x), tf.constant(lam)), exact

    exact = maps("total_variation", short)[1]
    enough = max(
        iterations_for(one, z, 1 / lam, 1e-4)
        for one, z in zip(short.astype("float64"), exact, strict=True)
    )
    cases = (
        ("l1", "soft threshold", data, lambda: module.L1().prox(data, 1 / lam)),
        ("simplex", "simplex", data, by_rows(module.Simplex(n, 1.0), data)),
        ("l1_ball", "l1 ball", data, by_rows(module.L1Ball(n, 1.0), data)),
        ("nuclear", "nuclear norm", data,
         lambda: module.Nuclear(data.shape).prox(data.ravel(), 1 / lam)),
        ("total_variation", "total variation, the peer's 10 iterations", short,
         by_rows(module.TV((n,)), short)),
        ("total_variation", f"total variation, {enough} iterations", short,
         by_rows(module.TV((n,), niter=enough, rtol=0.0), short.astype("float64"))),
    )  # fmt: skip
    for kind, label, x, theirs in cases:
        ours, exact = maps(kind, x)
        wrong = [np.abs(np.reshape(f(), exact.shape) - exact).max() for f in (ours, theirs)]
        found = compare(ours, theirs, repeats)
        rows.append(row(f"{label}, {x.shape}", name, found, *wrong))
    return rows


def beside_cvxpylayers(data, few, repeats):
    """The projection onto the simplex as a quadratic problem, and its gradient for a cotangent."""
    module, name = peer("cvxpylayers.torch")
    if module is None:
        return [skipped("simplex", name)]
    import cvxpy
    import torch

    x = data[:few]
    n, cotangent = x.shape[1], np.random.default_rng(1).standard_normal(x.shape).astype("float32")
    parameter, z = cvxpy.Parameter(n), cvxpy.Variable(n)
    objective = cvxpy.Minimize(cvxpy.sum_squares(z - parameter))
    problem = cvxpy.Problem(objective, [z >= 0, cvxpy.sum(z) == 1])
    layer = module.CvxpyLayer(problem, parameters=[parameter], variables=[z])
    accuracy = {"eps": 1e-9}  # by default errors are up to 8e-4 in the value, 0.7 in the gradient
    point = torch.from_numpy(x.astype("float64")).requires_grad_()
    direction = torch.from_numpy(cotangent.astype("float64"))

    def forward():
        return layer(point, solver_args=accuracy)[0].detach()

    def both():
        (value,) = layer(point, solver_args=accuracy)
        return value.detach(), torch.autograd.grad(value, point, direction)[0]

    @tf.function
    def prox(x):
        return OPERATORS["simplex"].prox(x, 1.0)

    @tf.function
    def with_gradient(x, g):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = prox(x)
        return value, tape.gradient(value, x, g)

    single = tf.constant(x), tf.constant(cotangent)
    exact = with_gradient(*(tf.cast(v, tf.float64) for v in single))
    wrong = [
        [np.abs(a.numpy() - b.numpy()).max() for a, b in zip(found, exact, strict=True)]
        for found in (with_gradient(*single), both())
    ]
    case = f"simplex, {x.shape}, "
    found = compare(lambda: prox(single[0]), forward, repeats)
    rows = [row(f"{case}value", name, found, wrong[0][0], wrong[1][0])]
    found = compare(lambda: with_gradient(*single), both, repeats)
    return [*rows, row(f"{case}with gradient", name, found, wrong[0][1], wrong[1][1])]


# --- recurrent layers -----------------------------------------------------------------------


def prox_lstm(sizes=((32, 30, 32, 64), (32, 128, 64, 128)), compiled=(False, True), repeats=9):
    """`ProxLSTM` beside `keras.layers.LSTM`, which does less: what the proximal step costs.

    Without `jit_compile`, `ProxLSTM` by default compiles its loop with XLA for itself.
    """
    rows, name = [], f"Keras {keras.__version__}, LSTM"
    for size in sizes:
        batch, length, features, units = size
        x = tf.random.stateless_normal((batch, length, features), seed=(0, 1))
        for jit_compile in compiled:
            layers = [ProxLSTM(units), keras.layers.LSTM(units)]
            both = [training_step(layer, x, jit_compile) for layer in layers]
            calls = [tf.function(layer, jit_compile=jit_compile) for layer in layers]
            forward = [functools.partial(call, x, training=True) for call in calls]
            case = f"{size}, {'XLA' if jit_compile else 'no XLA'}"
            for kind, steps in (("forward", forward), ("with gradient", both)):
                rows.append(row(f"{case}, {kind}", name, compare(*steps, repeats)))
    return rows


# --- retrieval ------------------------------------------------------------------------------


def exact_recall(x, y, k):
    """The share of rows, in both directions, whose partner is among the k nearest by cosine."""
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    cosines = x @ y.T
    partner = np.diag(cosines)
    return np.mean(
        [(cosines > p).sum(axis) < k for p, axis in ((partner[:, None], 1), (partner, 0))]
    )


def retrieval(sizes=((1000, 16), (4000, 16), (4000, 64)), k=10, batch=256, repeats=7):
    """`RecallAtK` over an epoch in batches beside scikit-learn's search among all codes at its end.

    Errors are absolute differences of the recall.
    """
    module, name = peer("sklearn.neighbors")
    rows = []
    for n, d in sizes:
        case = f"n = {n}, d = {d}"
        if module is None:
            rows.append(skipped(case, name))
            continue
        x, y = views(n, d, d)
        parts = [(tf.constant(x[i : i + batch]), tf.constant(y[i : i + batch]))
                 for i in range(0, n, batch)]  # fmt: skip
        metric = RecallAtK(k, capacity=n)
        update = tf.function(lambda x, y, m=metric: m.update_state(None, [x, y]))

        def ours(metric=metric, update=update, parts=parts):
            metric.reset_state()
            for part in parts:
                update(*part)
            return metric.result()

        def theirs(x=x, y=y):
            found = []
            for queries, stored in ((x, y), (y, x)):
                search = module.NearestNeighbors(n_neighbors=k, metric="cosine").fit(stored)
                nearest = search.kneighbors(queries, return_distance=False)
                found.append((nearest == np.arange(len(x))[:, None]).any(1))
            return np.mean(found)

        exact = exact_recall(*(v.astype("float64") for v in (x, y)), k)
        wrong = [abs(float(f()) - exact) for f in (ours, theirs)]
        rows.append(row(case, name, compare(ours, theirs, repeats), *wrong))
    return rows


COMPARISONS = {
    f.__name__: f for f in (cca_loss, linear_cca, operators, prox_lstm, retrieval)
}  # fmt: skip
QUICK = {
    "cca_loss": {"sizes": ((200, 10, 0), (1000, 20, 3))},
    "linear_cca": {"sizes": ((200, 10, 2),)},
    "operators": {"shape": (128, 128)},
    "prox_lstm": {"sizes": ((32, 30, 32, 64),), "compiled": (False,)},
    "retrieval": {"sizes": ((1000, 16),)},
}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="COMPARISON", help=", ".join(COMPARISONS))
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    options = parser.parse_args(arguments)
    if unknown := set(options.which) - set(COMPARISONS):
        parser.error(f"no such comparison: {', '.join(sorted(unknown))}")
    for name in options.which or COMPARISONS:
        function = COMPARISONS[name]
        print(f"{function.__doc__.splitlines()[0]}\n")
        rows = function(**(QUICK[name] if options.quick else {}))
        for cells in (HEADER, ["---"] * len(HEADER), *rows):
            print("|", *(f"{cell} |" for cell in cells), flush=True)
        print()


if __name__ == "__main__":
    main()
