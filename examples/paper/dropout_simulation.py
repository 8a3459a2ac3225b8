"""The dropout simulation of the paper's appendix: adaptive regularisation against a proximal map.

    python examples/paper/dropout_simulation.py --output dropout_simulation.png

On the two moons, beta minimises the logistic loss + mu sum_j a_j(beta) beta_j^2, dropout's adaptive
regulariser (Wager, Wang, Liang, 2013). The other model first maps every point,

    P(x) = argmin_z lambda/2 ||z - x||^2 + sum_j b_j(z) z_j^2

with b_j(z) = mean_i q_i (1 - q_i) x_ij^2 and q_i = sigmoid(z^T x_i), and then fits alpha with
c ||alpha||^2. The scatter plots compare both discriminants, alpha^T P(x_i) and beta^T x_i, for the
paper's two settings.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from report import figure, markdown, positive, write
from scipy.optimize import minimize
from sklearn.datasets import make_moons

from proxnet_tf.layers.convex.prox import Prox

# lambda, mu, c of the two panels
SETTINGS = ((0.5, 0.1, 0.2 * 0.5**2 * 0.1), (0.1, 0.1, 15 * 0.1**2 * 0.1))


def adaptive_discriminant(points, sign, mu):
    """beta^T x_i of dropout training in its adaptive form."""

    def objective(beta):
        discriminant = points @ beta
        p = 1 / (1 + np.exp(-discriminant))
        a = (p * (1 - p)) @ points**2 / len(points)
        return np.logaddexp(0, -sign * discriminant).mean() + mu * (a * beta**2).sum()

    starts = np.random.default_rng(0).standard_normal((5, points.shape[1]))
    fits = [minimize(objective, start, method="BFGS", tol=1e-10) for start in starts]
    return points @ min(fits, key=lambda fit: fit.fun).x


def proximal_discriminant(points, sign, lam, c):
    """alpha^T P(x_i), and the share of the points that the solver left unsolved."""
    data = tf.constant(points)

    def regularizer(z):
        """sum_j b_j(z) z_j^2 for every row."""
        q = tf.sigmoid(tf.matmul(z, data, transpose_b=True))
        b = tf.matmul(q * (1 - q), data**2) / len(points)
        return tf.reduce_sum(b * z**2, axis=-1)

    layer = Prox(regularizer, lam=lam, monitor="all", dtype="float64")
    mapped = tf.function(layer)(data).numpy()

    def objective(alpha):
        loss = np.logaddexp(0, -sign * (mapped @ alpha)).mean() + c * alpha @ alpha
        p = 1 / (1 + np.exp(sign * (mapped @ alpha)))
        return loss, -mapped.T @ (sign * p) / len(points) + 2 * c * alpha

    start = np.zeros(points.shape[1])
    alpha = minimize(objective, start, jac=True, method="BFGS", tol=1e-12).x
    return mapped @ alpha, layer.status["unsolved"]


def draw(panels, path):
    """Writes the scatter plots to `path`."""

    def scatter(_, axes):
        for axis, (lam, mu, c, beta, alpha, sign, correlation) in zip(axes, panels, strict=True):
            for label, color, marker in ((1, "#0072B2", "o"), (-1, "#D55E00", "^")):
                chosen = sign == label
                axis.scatter(
                    beta[chosen],
                    alpha[chosen],
                    s=24,
                    c=color,
                    marker=marker,
                    alpha=0.8,
                    label=f"$y$ = {label:+d}",
                )
            slope, offset = np.polyfit(beta, alpha, 1)
            ends = np.array([beta.min(), beta.max()])
            axis.plot(ends, slope * ends + offset, color="#222222", lw=1, label="least squares")
            axis.set(
                xlabel=r"dropout: $\beta_*^\top x_i$",
                ylabel=r"proximal map: $\alpha_*^\top P_R(x_i)$",
                title=rf"$\lambda$ = {lam:g}, $\mu$ = {mu:g}, $c$ = {c:g}"
                f"\ncorrelation {correlation:.4f}",
            )
            axis.legend(loc="upper left")
            axis.grid(alpha=0.3)

    size = (11, 5)
    figure(path, scatter, 1, len(panels), dpi=150, figsize=size, layout="constrained")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-points", type=positive, default=200)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="outputs/dropout_simulation.png")
    args = parser.parse_args(arguments)
    keras.utils.set_random_seed(args.seed)

    points, moon = make_moons(args.num_points, noise=args.noise, random_state=args.seed)
    sign = 2 * moon - 1
    panels = []
    rows = []
    for lam, mu, c in SETTINGS:
        beta = adaptive_discriminant(points, sign, mu)
        alpha, unsolved = proximal_discriminant(points, sign, lam, c)
        correlation = float(np.corrcoef(alpha, beta)[0, 1])
        panels.append((lam, mu, c, beta, alpha, sign, correlation))
        rows.append((lam, mu, c, f"{correlation:.4f}", f"{unsolved:.3f}"))
    table = markdown(("lam", "mu", "c", "correlation", "unsolved"), rows)
    print(table, end="")
    path = Path(args.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.with_suffix(".md"), table)
    draw(panels, path)
    print(f"wrote {args.output}")
    return [panel[-1] for panel in panels]


if __name__ == "__main__":
    main()
