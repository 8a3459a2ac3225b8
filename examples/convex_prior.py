"""A convex prior inside a network: does it help to say that signals are piecewise constant?

Signals of 64 steps with a few jumps are seen blurred and with noise. A linear network learns to
undo blur and noise from few examples. The same network with `Prox("total_variation")` at its end
returns the nearest signal with few jumps: what is known need not be learned. This lowers the error
by a fifth to a quarter, whatever the number of examples.

To copy: a named prior as the last layer; the smaller lam, the further it moves the features.
"""

import keras
import numpy as np
import show
from keras.layers import Dense

from proxnet_tf import Prox

STEPS = 64


def signals(count, rng):
    """Piecewise constant signals, and what is seen of them."""
    jumps = (rng.random((count, STEPS)) < 0.06) * rng.normal(size=(count, STEPS))
    clean = np.cumsum(jumps, axis=1) + rng.normal(size=(count, 1))
    kernel = np.exp(-(np.arange(-4, 5) ** 2) / 4)
    blurred = np.apply_along_axis(np.convolve, 1, clean, kernel / kernel.sum(), mode="same")
    return blurred + 0.1 * rng.normal(size=clean.shape), clean


def main(arguments=None):
    options = show.options(__doc__, arguments)
    counts, epochs = ((50,), 2) if options.small else ((50, 200, 800), 150)
    rows = []
    for count in counts:
        x, y = signals(count, np.random.default_rng(0))
        x_test, y_test = signals(500, np.random.default_rng(1))
        errors = []
        for prior in ([], [Prox("total_variation", lam=5.0)]):
            keras.utils.set_random_seed(0)
            identity = keras.initializers.Identity()
            model = keras.Sequential([Dense(STEPS, kernel_initializer=identity), *prior])
            model.compile(keras.optimizers.Adam(3e-3), "mse", jit_compile=False)
            steps = max(1, count // 50)
            model.fit(x, y, batch_size=50, epochs=max(1, epochs // steps), verbose=0)
            errors.append(model.evaluate(x_test, y_test, verbose=0))
        rows.append((count, *errors, errors[1] / errors[0]))
    header = ("training signals", "error, linear", "error, with the prior", "ratio")
    show.table(header, rows, options.output)
    return rows


if __name__ == "__main__":
    main()
