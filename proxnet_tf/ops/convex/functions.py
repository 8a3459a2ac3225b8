"""Closed-form proximal maps, batched over all axes but the last.

    prox_R(x; lam) = argmin_z R(z) + lam/2 ||z - x||^2

A large lam keeps z near x, a small one brings it to the minimum of R. For every R there is its
value `R(z)` and its map `prox_R(x, lam)`; inputs are float32 or float64, lam is a scalar > 0 that
receives its gradient as well. For a weight w, prox of w R at lam is prox of R at lam / w. Each
docstring says which of the possible Jacobians the gradient uses where the map is not smooth.
The entropy and the nuclear norm have modules of their own, as have the projections (`sets`) and
total variation; `table.OPERATORS` lists all of them by name. An empty last axis comes out empty.
A NaN affects only its own vector (or group). Where all entries of a vector depend on each other it
makes the whole vector NaN, value and gradient.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.convex.sets import Jacobian, l1_ball_point, l2_ball_point, symmetric_map
from proxnet_tf.ops.linear.norms import norm
from proxnet_tf.ops.linear.number import inverse, real_array, scalar

# l1 and the elastic net ------------------------------------------------------------------------


def l1(z: tf.Tensor) -> tf.Tensor:
    """sum_i |z_i|; shape of `z` without its last axis."""
    return tf.reduce_sum(tf.abs(z), axis=-1)


def prox_l1(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z ||z||_1 + lam/2 ||z - x||^2: the soft threshold at 1/lam.

    The gradient is 0 where |x_i| <= 1/lam, 1 elsewhere.

    Example:
        >>> prox_l1([3.0, -0.5], 1.0).numpy().tolist()
        [2.0, 0.0]
    """
    x = tf.convert_to_tensor(x)
    threshold = inverse(lam, x.dtype)
    return x - tf.clip_by_value(x, -threshold, threshold)


def elastic_net(z: tf.Tensor, ridge: float = 1.0) -> tf.Tensor:
    """||z||_1 + ridge/2 ||z||^2; shape of `z` without its last axis."""
    return l1(z) + ridge / 2 * tf.reduce_sum(z**2, axis=-1)


def prox_elastic_net(x: tf.Tensor, lam: float | tf.Tensor, ridge: float = 1.0) -> tf.Tensor:
    """argmin_z ||z||_1 + ridge/2 ||z||^2 + lam/2 ||z - x||^2: soft threshold, then a scaling.

    The gradient is 0 where |x_i| <= 1/lam.

    Example:
        >>> prox_elastic_net([3.0, -0.5], 1.0).numpy().tolist()
        [1.0, 0.0]
    """
    x = tf.convert_to_tensor(x)
    return prox_l1(x, lam) / (1 + ridge * inverse(lam, x.dtype))


# l2 norms --------------------------------------------------------------------------------------


def l2(z: tf.Tensor) -> tf.Tensor:
    """||z||_2 (not squared); shape of `z` without its last axis."""
    return norm(z)


def prox_l2(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z ||z||_2 + lam/2 ||z - x||^2: the block soft threshold x (1 - 1/(lam ||x||))_+.

    By Moreau's identity it is x minus the projection onto the l2 ball of radius 1/lam. Where
    ||x|| <= 1/lam both z and the gradient are 0.

    Example:
        >>> prox_l2([6.0, 8.0], 0.2).numpy().round(4).tolist()
        [3.0, 4.0]
    """
    return _moreau(l2_ball_point, x, lam)


def _moreau(
    project: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, Jacobian]],
    x: tf.Tensor,
    lam: float | tf.Tensor,
) -> tf.Tensor:
    """The map of a norm: x minus its projection onto the ball of radius 1/lam of the dual norm."""

    def solve(x: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, Jacobian]:
        removed, jacobian = project(x, inverse(lam, x.dtype))
        return x - removed, lambda y: y - jacobian(y)

    return symmetric_map(solve, x, lam)


def _grouped(x: tf.Tensor, group_size: int) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    size = x.shape[-1]
    if size is not None and size % group_size:
        raise ValueError(
            f"The last axis must split into whole groups of {group_size}. Received: shape "
            f"{tuple(x.shape)}; choose a `group_size` that divides {size}."
        )
    return tf.reshape(x, tf.concat([tf.shape(x)[:-1], [-1, group_size]], axis=0))


def group_l2(z: tf.Tensor, group_size: int = 2) -> tf.Tensor:
    """sum_g ||z_g||_2 over consecutive groups; shape of `z` without its last axis."""
    return tf.reduce_sum(norm(_grouped(z, group_size)), axis=-1)


def prox_group_l2(x: tf.Tensor, lam: float | tf.Tensor, group_size: int = 2) -> tf.Tensor:
    """argmin_z sum_g ||z_g||_2 + lam/2 ||z - x||^2, groups of `group_size` neighbours.

    Raises a `ValueError` if `group_size` does not divide the last axis. A group with
    ||x_g|| <= 1/lam becomes 0 with gradient 0.

    Example:
        >>> prox_group_l2([6.0, 8.0, 0.1, 0.1], 0.2).numpy().round(4).tolist()
        [3.0, 4.0, 0.0, 0.0]
    """
    return tf.reshape(prox_l2(_grouped(x, group_size), lam), tf.shape(x))


# Quadratics ------------------------------------------------------------------------------------


def squared_l2(z: tf.Tensor) -> tf.Tensor:
    """1/2 ||z||^2; shape of `z` without its last axis."""
    return tf.reduce_sum(z**2, axis=-1) / 2


def prox_squared_l2(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z 1/2 ||z||^2 + lam/2 ||z - x||^2 = x / (1 + 1/lam).

    Example:
        >>> prox_squared_l2([3.0], 2.0).numpy().tolist()
        [2.0]
    """
    x = tf.convert_to_tensor(x)
    return x / (1 + inverse(lam, x.dtype))


def dense(matrix: Any) -> np.ndarray:
    """A float64 copy of an array, a `tf.SparseTensor` or a SciPy sparse matrix, as an array."""
    if isinstance(matrix, tf.SparseTensor):
        matrix = tf.sparse.to_dense(tf.sparse.reorder(matrix))
    elif hasattr(matrix, "toarray"):
        matrix = matrix.toarray()
    return real_array("`matrix`", matrix)


def spectrum(matrix: Any) -> dict[str, np.ndarray]:
    """Eigenvalues and eigenvectors of a positive semidefinite `matrix`, factorised once.

    Args:
        matrix: symmetric (n, n), positive semidefinite, a graph Laplacian for instance, of a
            type that `dense` takes.

    Raises:
        ValueError: if it is not square, symmetric, finite and positive semidefinite.
    """
    q = dense(matrix)
    if q.ndim != 2 or q.shape[0] != q.shape[1] or not np.isfinite(q).all():
        raise ValueError(
            f"`matrix` must be a finite square matrix. Received: an array of shape {q.shape}."
        )
    rounding = 1e-6 * max(np.abs(q).max(initial=0.0), 1e-300)
    if np.abs(q - q.T).max(initial=0.0) > rounding:
        raise ValueError(
            "`matrix` must be symmetric. Received: one that differs from its transpose; "
            "pass (matrix + matrix.T) / 2."
        )
    values, vectors = np.linalg.eigh(q)
    if values.min(initial=0.0) < -len(values) * rounding:
        raise ValueError(
            "`matrix` must be positive semidefinite, or the problem has no minimum for small lam. "
            f"Received: one with the eigenvalue {values.min():g}."
        )
    # Zero eigenvalues come out as rounding, which a small lam would not exceed.
    zero = len(values) * np.finfo(values.dtype).eps * values.max(initial=0.0)
    return {"eigenvalues": np.where(values > zero, values, 0.0), "eigenvectors": vectors}


def _check_width(x: tf.Tensor, eigenvalues: np.ndarray) -> None:
    size = len(eigenvalues)
    if x.shape[-1] not in (None, size):
        raise ValueError(
            f"`matrix` is {size} x {size}, so the vectors it acts on must have {size} entries. "
            f"Received: vectors of {x.shape[-1]} entries, shape {tuple(x.shape)}"
        )


def quadratic(z: tf.Tensor, eigenvalues: np.ndarray, eigenvectors: np.ndarray) -> tf.Tensor:
    """1/2 z^T Q z with Q = U diag(q) U^T; shape of `z` without its last axis."""
    z = tf.convert_to_tensor(z)
    _check_width(z, eigenvalues)
    root = tf.cast(eigenvectors * np.sqrt(eigenvalues), z.dtype)
    return tf.reduce_sum(tf.tensordot(z, root, axes=1) ** 2, axis=-1) / 2


def prox_quadratic(
    x: tf.Tensor, lam: float | tf.Tensor, eigenvalues: np.ndarray, eigenvectors: np.ndarray
) -> tf.Tensor:
    """argmin_z 1/2 z^T Q z + lam/2 ||z - x||^2 = (I + Q/lam)^{-1} x, Q = U diag(q) U^T.

    `spectrum(Q)` gives `eigenvalues` (n,) and `eigenvectors` (n, n), for every lam. Linear in x.

    Example:
        >>> prox_quadratic([3.0, 3.0], 1.0, **spectrum([[2, 0], [0, 0]])).numpy().tolist()
        [1.0, 3.0]
    """
    x = tf.convert_to_tensor(x)
    _check_width(x, eigenvalues)
    basis = tf.cast(eigenvectors, x.dtype)
    # The share of each eigenvector, in float64: x.dtype may be too narrow for lam or q.
    lam = scalar(lam, tf.float64)
    kept, removed = (tf.cast(part / (lam + eigenvalues), x.dtype) for part in (lam, eigenvalues))
    # An entry that loses little is x minus the removed part, any other is the kept part: rounding
    # is relative to the smaller part.
    shrinks = tf.linalg.matvec(basis**2, removed) > 0.5
    back = basis * tf.where(shrinks[:, None], kept, -removed)
    moved = tf.tensordot(tf.tensordot(x, basis, axes=1), tf.transpose(back), axes=1)
    return tf.where(shrinks, tf.zeros_like(x), x) + moved


# The largest entry -----------------------------------------------------------------------------


def l_inf(z: tf.Tensor) -> tf.Tensor:
    """max_i |z_i|; shape of `z` without its last axis."""
    return tf.maximum(tf.reduce_max(tf.abs(z), axis=-1), 0)  # 0 also for the empty vector


def prox_l_inf(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z max_i |z_i| + lam/2 ||z - x||^2: the largest entries are cut to one level.

    By Moreau's identity it is x minus the projection onto the l1 ball of radius 1/lam. The gradient
    is 0 where ||x||_1 <= 1/lam; an entry that only touches the level keeps its own.

    Example:
        >>> prox_l_inf([3.0, 1.0], 1.0).numpy().tolist()
        [2.0, 1.0]
    """
    return _moreau(l1_ball_point, x, lam)
