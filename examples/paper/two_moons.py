"""Figure 1 of the paper: two moons before and after the proximal map of gradient flatness.

    python examples/paper/two_moons.py --output two_moons.png

The data have two labelled points, at the outer ends of the moons. The proximal map of R(f) = 1/2
sum_i ||grad f(x_i)||^2 in the space of a Gaussian kernel pulls each moon together. Writes a figure
and, beside it, tables: the accuracy of 1-nearest-neighbour on the two labels, before and after;
and, over lambda, the predictions of the regularised risk (P1) and those of the proximal features
(P2).
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from exact_kernels import invariant_distances, invariant_inner_products
from report import figure, markdown, positive, write
from sklearn.datasets import make_moons

from proxnet_tf.layers.kernels.features import ProxKernelFeatures
from proxnet_tf.ops.kernels import Functionals

LEFT, RIGHT, INK = "#0072B2", "#D55E00", "#222222"  # Okabe and Ito: safe for colour blindness


def moons(num_points: int, noise: float, seed: int):
    """Points, moon of every point, and the labelled point at the outer end of each moon."""
    points, moon = make_moons(num_points, noise=noise, random_state=seed)
    return points, moon, (int(points[:, 0].argmin()), int(points[:, 0].argmax()))


def nearest_label_accuracy(distances: np.ndarray, moon: np.ndarray, labelled) -> float:
    """Share of the unlabelled points whose nearer labelled point lies on their own moon."""
    nearer = np.asarray(labelled)[distances[:, labelled].argmin(axis=1)]
    unlabelled = np.setdiff1d(np.arange(len(moon)), labelled)
    return float((moon[nearer] == moon)[unlabelled].mean())


def kernel_pca(products: np.ndarray) -> np.ndarray:
    """The top two principal components of the points with these inner products."""
    centred = products - products.mean(axis=0) - products.mean(axis=1)[:, np.newaxis]
    centred += products.mean()
    values, vectors = np.linalg.eigh(centred)
    return vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))


def compare_p1_p2(points, moon, width, lams, ridge=0.01, seed=0):
    """Held-out accuracy and discriminants of P1 and P2 with every label, for each lambda.

    P1: mean logistic loss of <f, phi(x)> + ridge (lambda ||f||^2 + 2 R(f))
    P2: mean logistic loss of <h, c_x> + ridge lambda ||h||^2
    With f = (I + grad R/lambda)^{-1} h they predict the same, and P2 has the squared spectrum.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(points))
    train, test = order[: len(points) // 2], order[len(points) // 2 :]
    sign = 2.0 * moon - 1
    shared = dict(landmarks=points[train], kernel_options={"length_scale": width}, dtype="float64")
    plain = ProxKernelFeatures("gaussian", invariances=(), **shared)(points).numpy()
    rows = []
    for lam in lams:
        layer = ProxKernelFeatures("gaussian", lam=lam, **shared)
        proximal = layer(points).numpy()
        # c_x = M phi(x), so that grad R = lam (M^{-1} - I).
        m = np.linalg.lstsq(plain, proximal, rcond=None)[0]
        m = (m + m.T) / 2
        energy = lam * (np.linalg.pinv(m) - np.eye(len(m)))
        identity = np.eye(len(m))
        f = fit(plain[train], sign[train], ridge * (lam * identity + energy))
        h = fit(proximal[train], sign[train], ridge * lam * identity)
        p1, p2 = plain @ f, proximal @ h
        rows.append(
            (
                lam,
                float((np.sign(p1) == sign)[test].mean()),
                float((np.sign(p2) == sign)[test].mean()),
                float((np.sign(p1) == np.sign(p2))[test].mean()),
                float(np.corrcoef(p1[test], p2[test])[0, 1]),
            )
        )
    return rows


def fit(features, sign, penalty, steps=50):
    """Newton for the mean logistic loss + w^T penalty w."""
    w = np.zeros(features.shape[1])
    n = len(features)
    for _ in range(steps):
        margin = np.clip(sign * (features @ w), -500, 500)
        p = 1 / (1 + np.exp(margin))
        gradient = -features.T @ (sign * p) / n + 2 * penalty @ w
        hessian = (features.T * (p * (1 - p))) @ features / n + 2 * penalty
        w -= np.linalg.solve(hessian + 1e-12 * np.eye(len(w)), gradient)
    return w


def draw(points, moon, labelled, embedded, grid, contour, reach, accuracies, lam, path):
    """Writes the three panels of Figure 1 to `path`."""

    def panels(drawn, axes):
        before, after = accuracies

        def scatter(axis, places, faint=1.0):
            for which, color, marker, name in ((0, LEFT, "o", "upper"), (1, RIGHT, "^", "lower")):
                chosen = moon == which
                axis.scatter(
                    *places[chosen].T,
                    s=26,
                    c=color,
                    marker=marker,
                    alpha=faint,
                    label=f"{name} moon",
                )
            for index, marker, name in (
                (labelled[0], "P", "label +"),
                (labelled[1], "X", "label -"),
            ):
                axis.scatter(
                    *places[index],
                    s=190,
                    c="#F0E442",
                    marker=marker,
                    edgecolors=INK,
                    linewidths=1.5,
                    zorder=3,
                    label=name,
                )

        scatter(axes[0], points)
        axes[0].set(xlabel="$x_1$", ylabel="$x_2$", title=f"(a) Data: 1-NN accuracy {before:.3f}")
        axes[0].legend(loc="lower left", fontsize=8)
        scatter(axes[1], embedded)
        axes[1].set(
            xlabel="principal component 1",
            ylabel="principal component 2",
            title=f"(b) After the proximal map: 1-NN accuracy {after:.3f}",
        )
        axes[1].legend(loc="best", fontsize=8)
        for axis in axes[:2]:
            axis.locator_params(nbins=5)
        # Away from the data the distance is near 1, and between them far smaller: show that range.
        levels = np.linspace(0, reach, 16)
        filled = axes[2].contourf(*grid, contour, cmap="cividis", levels=levels, extend="max")
        axes[2].contour(*grid, contour, levels=levels, colors="white", linewidths=0.4)
        bar = drawn.colorbar(filled, ax=axes[2], format="%.3f")
        bar.set_label(r"distance $\|c_x - c_{x_0}\|$")
        axes[2].scatter(*points.T, s=7, c="white", alpha=0.7, edgecolors=INK, linewidths=0.3)
        axes[2].scatter(
            *points[labelled[0]],
            s=130,
            c="#F0E442",
            marker="D",
            edgecolors=INK,
            zorder=3,
            label="leftmost labelled point $x_0$",
        )
        axes[2].set(
            xlabel="$x_1$",
            ylabel="$x_2$",
            title=rf"(c) Distance to $x_0$ after the map ($\lambda$ = {lam:g})",
        )
        axes[2].legend(loc="lower left", fontsize=8)

    figure(path, panels, 1, 3, dpi=150, figsize=(15, 4.6), layout="constrained")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-points", type=positive, default=200)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--width", type=float, default=0.3, help="of the Gaussian kernel")
    parser.add_argument("--lam", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="outputs/two_moons.png")
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)

    points, moon, labelled = moons(args.num_points, args.noise, args.seed)
    kernel = tfp.math.psd_kernels.ExponentiatedQuadratic(length_scale=np.float64(args.width))
    flat = Functionals(points, derivative=True)
    plain = np.linalg.norm(points[:, np.newaxis] - points, axis=-1)
    before = nearest_label_accuracy(plain, moon, labelled)
    nearest = [("none", f"{before:.3f}")]
    for lam in sorted({0.01, 0.1, args.lam}):
        distances = invariant_distances(kernel, flat, points, points, lam).numpy()
        after = nearest_label_accuracy(distances, moon, labelled)
        nearest.append((f"{lam:g}", f"{after:.3f}"))
        if lam == args.lam:
            chosen, to_label = after, distances[:, labelled[0]]

    comparison = compare_p1_p2(points, moon, args.width, (0.01, 0.1, 1.0, 10.0))
    rows = [
        (f"{lam:g}", f"{p1:.3f}", f"{p2:.3f}", f"{same:.3f}", f"{correlation:.4f}")
        for lam, p1, p2, same, correlation in comparison
    ]
    tables = (
        "1-nearest-neighbour on the two labels, after the proximal map of lam:\n\n"
        + markdown(("lam", "accuracy"), nearest)
        + "\nRegularised risk (P1) beside proximal features (P2), every label, held-out half:\n\n"
        + markdown(("lam", "P1 accuracy", "P2 accuracy", "same prediction", "correlation"), rows)
    )
    print(tables, end="")
    path = Path(args.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.with_suffix(".md"), tables)

    axis = [
        np.linspace(low - 0.4, high + 0.4, 90) for low, high in zip(*_range(points), strict=True)
    ]
    grid = np.meshgrid(*axis)
    where = np.stack([g.ravel() for g in grid], axis=1)
    contour = tf.concat(
        [
            invariant_distances(kernel, flat, part, points[[labelled[0]]], args.lam)[:, 0]
            for part in np.array_split(where, 20)
        ],
        axis=0,
    )
    products = invariant_inner_products(kernel, flat, points, points, args.lam).numpy()
    draw(
        points,
        moon,
        labelled,
        kernel_pca(products),
        grid,
        contour.numpy().reshape(grid[0].shape),
        1.5 * np.quantile(to_label, 0.98),
        (before, chosen),
        args.lam,
        args.output,
    )
    print(f"wrote {args.output}")
    return before, chosen, comparison


def _range(points):
    return points.min(axis=0), points.max(axis=0)


if __name__ == "__main__":
    main()
