"""Synthetic views and the worked example of the tests."""

import numpy as np

# The widths of two views and of three, and how many components, wherever another choice shows
# nothing more: tests that share them share traced and compiled solvers.
SIZES, COMPONENTS = (3, 4), 2
THREE, CORE = (3, 4, 2), 4

WORKED_X = np.array(
    [[0, 0.3], [-0.27, -0.89], [-0.45, -0.99], [0.06, 1.34], [-0.49, -0.62], [0.49, 0.36]]
)
WORKED_Y = np.array(
    [
        [-1.12, -1.31, -1.43],
        [-0.81, 0.56, 0.61],
        [-0.63, 1.62, -1.3],
        [0.56, -1.89, -0.54],
        [-1.55, 0.95, -0.39],
        [-0.26, -0.2, -0.74],
    ]
)


def shared_views(n, sizes, seed=0, noise=0.5):
    """Views that are random mixtures of the same latent variables plus noise, side by side."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, max(sizes)))
    mixed = [
        latent @ rng.normal(size=(max(sizes), d)) / max(sizes) ** 0.5
        + noise * rng.normal(size=(n, d))
        for d in sizes
    ]
    return np.concatenate(mixed, 1)
