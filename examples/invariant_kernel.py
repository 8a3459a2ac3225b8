"""Invariant kernel features: what do unlabelled points say about two labels?

Two moons with one label each. The labelled point that is nearest in the space of kernel features
names the class. Features that are made flat at the unlabelled points (`"gradient_flatness"`) or
along the graph of their neighbours (`"graph_laplacian"`) follow the moons.

To copy: `ProxKernelFeatures(landmarks=..., invariances=[...], lam=...)` before any classifier.
"""

import numpy as np
import show
from sklearn.datasets import make_moons

from proxnet_tf import Invariance, ProxKernelFeatures

CASES = {
    "points themselves": None,
    "plain kernel": [],
    "flat at the points": [Invariance("gradient_flatness")],
    "flat along neighbours": [Invariance("graph_laplacian", num_neighbors=6)],
    "both": [Invariance("gradient_flatness"), Invariance("graph_laplacian", num_neighbors=6)],
}


def accuracy(features, moon, labelled):
    """Share of the unlabelled points nearer to the labelled point of their own moon, %."""
    distances = [np.linalg.norm(features - features[i], axis=1) for i in labelled]
    right = moon[labelled][np.argmin(distances, 0)] == moon
    return 100 * float(np.delete(right, labelled).mean())


def main(arguments=None):
    options = show.options(__doc__, arguments)
    count, lams = (60, (0.1,)) if options.small else (200, (10.0, 1.0, 0.1, 0.01))
    points, moon = make_moons(count, noise=0.1, random_state=0)
    labelled = [points[:, 0].argmin(), points[:, 0].argmax()]
    rows = []
    for name, invariances in CASES.items():
        cells = []
        for lam in lams:
            features = points
            if invariances is not None:
                layer = ProxKernelFeatures(
                    "gaussian",
                    landmarks=points,
                    kernel_options={"length_scale": 0.3},
                    invariances=invariances,
                    lam=lam,
                    dtype="float64",
                )
                features = layer(points).numpy()
            cells.append(f"{accuracy(features, moon, labelled):.1f}")
        rows.append((name, *cells))
    header = ("accuracy, %, 1 label a moon", *(f"lam {lam:g}" for lam in lams))
    show.table(header, rows, options.output)
    return rows


if __name__ == "__main__":
    main()
