"""Proximal maps in a reproducing kernel Hilbert space, for regularisers of bounded functionals.

    c_x = argmin_g R(g) + lam/2 ||g - k_x||^2,     R(f) = 1/2 sum_i <z_i, f>^2               (12)
    c_x = (I + Z Z^T/lam)^{-1} k_x                                                            (13)

(the paper prints an argmax in (12)). The columns z_i of Z represent `Functionals`: the values
f(x_i), the partial derivatives of f at x_i, or linear combinations of either.
Kernels are `tfp.math.psd_kernels` on vectors; rows are points.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Functionals(NamedTuple):
    """Bounded linear functionals of f at `points`.

    Attributes:
        points: (p, d).
        derivative: False for the p values f(x_i), True for the p d partial derivatives, x_i by
            x_i.
        combination: (r, p) or (r, p d), the rows combine those; None for the identity.
    """

    points: tf.Tensor
    derivative: bool = False
    combination: tf.Tensor | None = None


def graph_laplacian(points: np.ndarray, adjacency: np.ndarray) -> Functionals:
    """R(f) = 1/2 sum_ij w_ij (f(x_i) - f(x_j))^2 = f^T (D - W) f, W = `adjacency`.

    The representers are the p rows of a square root of 2 (D - W), not one for each edge.
    """
    values, vectors = np.linalg.eigh(2 * (np.diag(adjacency.sum(axis=1)) - adjacency))
    root = np.sqrt(np.maximum(values, 0))[:, np.newaxis] * vectors.T
    return Functionals(points, False, tf.constant(root))


def neighbor_adjacency(points: np.ndarray, num_neighbors: int = 5) -> np.ndarray:
    """Symmetric 0/1 adjacency that links every point with its `num_neighbors` nearest ones.

    Example:
        >>> neighbor_adjacency(np.array([[0.0], [1.0], [3.0]]), 1).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    distances = ((points[:, np.newaxis] - points[np.newaxis]) ** 2).sum(axis=-1)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :num_neighbors]
    adjacency = np.zeros_like(distances)
    np.put_along_axis(adjacency, nearest, 1.0, axis=1)
    return np.maximum(adjacency, adjacency.T)


def gram(kernel: Any, left: Functionals, right: Functionals) -> tf.Tensor:
    """(<z_i, z'_j>) for the representers of `left` and `right`, by differentiating the kernel."""
    if left.derivative and right.derivative:
        block = _mixed_derivatives(kernel, left.points, right.points)
    elif left.derivative:
        block = _left_derivatives(kernel, left.points, right.points)
    elif right.derivative:
        block = tf.transpose(_left_derivatives(kernel, right.points, left.points))
    else:
        block = kernel.matrix(left.points, right.points)
    if left.combination is not None:
        block = tf.matmul(left.combination, block)
    if right.combination is not None:
        block = tf.matmul(block, right.combination, transpose_b=True)
    return block


def _pairs(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Both points of every pair, (p, q, d), so that one backward pass serves all pairs."""
    shape = [tf.shape(a)[0], tf.shape(b)[0], tf.shape(a)[1]]
    return tf.broadcast_to(a[:, tf.newaxis], shape), tf.broadcast_to(b[tf.newaxis], shape)


def _left_derivatives(kernel: Any, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """dk(a_i, b_j)/da_i as a matrix (p d, q)."""
    left, right = _pairs(a, b)
    with tf.GradientTape() as tape:
        tape.watch(left)
        value = kernel.apply(left, right)
    slope = tf.convert_to_tensor(tape.gradient(value, left))
    return tf.reshape(tf.transpose(slope, [0, 2, 1]), [-1, tf.shape(b)[0]])


def _mixed_derivatives(kernel: Any, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """d^2 k(a_i, b_j)/da_i db_j as a matrix (p d, q d)."""
    left, right = _pairs(a, b)
    size = a.shape[1]
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(right)
        with tf.GradientTape() as inner:
            inner.watch(left)
            value = kernel.apply(left, right)
        slope = inner.gradient(value, left)
        columns = [slope[..., k] for k in range(size)]
    mixed = tf.stack([outer.gradient(column, right) for column in columns])  # (d, p, q, d)
    return tf.reshape(tf.transpose(mixed, [1, 0, 2, 3]), [-1, tf.shape(b)[0] * size])


def nystroem(kernel: Any, landmarks: tf.Tensor, threshold: float = 1e-12) -> tf.Tensor:
    """K_W^{-1/2}, so that phi(x) = K_W^{-1/2} k_W(x) embeds k_x; W = `landmarks` (m, d).

    A pseudo-inverse: eigenvalues below `threshold` times the largest count as 0.
    """
    values, vectors = tf.linalg.eigh(kernel.matrix(landmarks, landmarks))
    kept = values > threshold * values[-1]
    roots = tf.where(kept, tf.math.rsqrt(tf.where(kept, values, 1)), tf.zeros_like(values))
    return tf.matmul(vectors * roots, vectors, transpose_b=True)


def embedded_representers(
    kernel: Any, landmarks: tf.Tensor, whitening: tf.Tensor, functionals: Functionals
) -> tf.Tensor:
    """The Nystroem embeddings of the z_i as columns, (m, r); `whitening` from `nystroem`."""
    return tf.matmul(whitening, gram(kernel, Functionals(landmarks), functionals))
