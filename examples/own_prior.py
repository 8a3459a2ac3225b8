"""A prior of one's own: can any smooth convex R, written as a function, be a layer?

Counts per hour are noisy; their rate is positive and changes slowly. R(z) = strength * sum of
sqrt((z_t - z_{t-1})^2 + 0.1^2) - sum log z_t says so in two terms, and `Prox(R)` returns the
minimiser of R(z) + lam/2 ||z - x||^2 for every row, with the exact gradient with respect to x.

To copy: R in TensorFlow operations, one number a row, +inf where R is undefined; `start` inside
the domain of R; `status` after an eager call says whether every row was solved.
"""

import numpy as np
import show
import tensorflow as tf

from proxnet_tf import Prox


def make_prior(strength):
    def prior(z):
        steps = z[:, 1:] - z[:, :-1]
        rough = tf.reduce_sum(tf.sqrt(steps**2 + 0.1**2), axis=-1)
        inside = tf.reduce_all(z > 0.0, axis=-1)
        barrier = -tf.reduce_sum(tf.math.log(tf.where(z > 0.0, z, 1.0)), axis=-1)
        return tf.where(inside, strength * rough + 0.1 * barrier, float("inf"))

    return prior


def main(arguments=None):
    options = show.options(__doc__, arguments)
    rows, hours = (20, 24) if options.small else (100, 48)
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 2 * np.pi, (rows, 1))
    rate = 3.0 + 2.0 * np.sign(np.sin(2 * np.pi * np.arange(hours) / 24 + phase))
    counts = rng.poisson(rate).astype("float32")
    found = [
        ("the counts themselves", f"{np.mean((counts - rate) ** 2):.3f}", f"{counts.min():.2f}", "")
    ]
    for strength in (0.5, 2.0, 5.0):
        layer = Prox(make_prior(strength), lam=1.0, start=1.0)
        smooth = layer(counts)
        error = float(np.mean((smooth - rate) ** 2))
        residual = layer.status["residual"]
        found.append(
            (f"strength {strength}", f"{error:.3f}", f"{np.min(smooth):.2f}", f"{residual:.0e}")
        )
    header = ("rate estimated by", "mean squared error", "least value", "residual")
    show.table(header, found, options.output)
    return found


if __name__ == "__main__":
    main()
