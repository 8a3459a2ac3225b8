"""One closed-form operator at one size, as functions of arrays, options not the defaults."""

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.convex.table import OPERATORS
from tests.helpers.proximal_references import REFERENCES

NON_CONVEX = {"standardized"}
CONVEX = sorted(set(OPERATORS) - NON_CONVEX)


def path_laplacian(n):
    differences = np.diff(np.eye(n), axis=0)
    return differences.T @ differences


def options_of(name, n):
    return {
        "elastic_net": {"ridge": 0.7},
        "group_l2": {"group_size": 2},
        "quadratic": {"matrix": path_laplacian(n)},
        "fused_lasso": {"sparsity": 0.4},
        "box": {"low": -0.5, "high": 0.8},
        "l2_ball": {"radius": 1.3},
        "l1_ball": {"radius": 1.3},
        "simplex": {"total": 2.0},
    }.get(name, {})


def shape_of(name, n):
    return {"nuclear": (n, 3), "group_l2": (2 * n,)}.get(name, (n,))


class Case:
    """One operator at one size, as functions of arrays."""

    def __init__(self, name, n):
        self.shape = shape_of(name, n)
        self.options = options_of(name, n)
        self.name, self.operator = name, OPERATORS[name]
        prepare = self.operator.prepare
        self.prepared = prepare(**self.options) if prepare else self.options

    def prox(self, x, lam):
        return self.operator.prox(tf.convert_to_tensor(x), lam, **self.prepared).numpy()

    def value(self, z):
        return self.operator.value(tf.convert_to_tensor(z), **self.prepared).numpy()

    def reference(self, x, lam):
        solve = REFERENCES[self.name]
        return solve(x, **self.options) if self.operator.is_set else solve(x, lam, **self.options)

    def sample(self, rng, count, scale=1.0):
        return scale * rng.standard_normal((count, *self.shape))

    def feasible(self, rng, count):
        """Random points where R is finite."""
        points = self.sample(rng, count, 2.0)
        if self.operator.is_set or self.name == "entropy":
            points = (
                np.stack([REFERENCES["simplex"](p) for p in points])
                if (self.name == "entropy")
                else np.stack([self.reference(p, 1.0) for p in points])
            )
        return points

    def gradients(self, x, y, lam):
        """(dx, dlam) for the cotangent y."""
        x, lam = tf.convert_to_tensor(x), tf.convert_to_tensor(lam, x.dtype)
        with tf.GradientTape() as tape:
            tape.watch((x, lam))
            z = self.operator.prox(x, lam, **self.prepared)
        dx, dlam = tape.gradient(z, (x, lam), y)
        return dx.numpy(), 0.0 if dlam is None else dlam.numpy()

    def jacobian(self, x, lam):
        """dz/dx as a matrix, from one batch with the unit cotangents."""
        size = x.size
        rows = np.broadcast_to(x, (size, *self.shape))
        units = np.eye(size).reshape(size, *self.shape)
        return self.gradients(rows, units, lam)[0].reshape(size, size)
