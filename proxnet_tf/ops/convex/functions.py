"""Closed-form proximal maps, batched over all axes but the last.

    prox_R(x; lam) = argmin_z R(z) + lam/2 ||z - x||^2

A large lam keeps z near x, a small one brings it to the minimum of R. For every R there is its
value `R(z)` and its map `prox_R(x, lam)`; inputs are float32 or float64, lam is a scalar > 0 that
receives its gradient as well. For a weight w, prox of w R at lam is prox of R at lam / w. Each
docstring says which of the possible Jacobians the gradient uses where the map is not smooth.
Projections are in `projections`, total variation and the fused lasso in `total_variation`;
`OPERATORS` lists all of them by name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.convex import sets as projections
from proxnet_tf.ops.convex import total_variation
from proxnet_tf.ops.convex.sets import norm, scalar, symmetric_map

# l1 and the elastic net ------------------------------------------------------------------------


def l1(z: tf.Tensor) -> tf.Tensor:
    """sum_i |z_i|; shape of `z` without its last axis."""
    return tf.reduce_sum(tf.abs(z), axis=-1)


def prox_l1(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z ||z||_1 + lam/2 ||z - x||^2: the soft threshold at 1/lam.

    The gradient is 0 where |x_i| <= 1/lam, 1 elsewhere.
    `prox_l1([3.0, -0.5], 1.0)` gives `[2.0, 0.0]`.
    """
    x = tf.convert_to_tensor(x)
    threshold = 1 / scalar(lam, x)
    return x - tf.clip_by_value(x, -threshold, threshold)


def elastic_net(z: tf.Tensor, ridge: float = 1.0) -> tf.Tensor:
    """||z||_1 + ridge/2 ||z||^2; shape of `z` without its last axis."""
    return l1(z) + ridge / 2 * tf.reduce_sum(z**2, axis=-1)


def prox_elastic_net(x: tf.Tensor, lam: float | tf.Tensor, ridge: float = 1.0) -> tf.Tensor:
    """argmin_z ||z||_1 + ridge/2 ||z||^2 + lam/2 ||z - x||^2: soft threshold, then a scaling.

    The gradient is 0 where |x_i| <= 1/lam.
    `prox_elastic_net([3.0, -0.5], 1.0)` gives `[1.0, 0.0]`.
    """
    x = tf.convert_to_tensor(x)
    return prox_l1(x, lam) / (1 + ridge / scalar(lam, x))


# l2 norms --------------------------------------------------------------------------------------


def l2(z: tf.Tensor) -> tf.Tensor:
    """||z||_2 (not squared); shape of `z` without its last axis."""
    return norm(z)


def prox_l2(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z ||z||_2 + lam/2 ||z - x||^2: the block soft threshold x (1 - 1/(lam ||x||))_+.

    Where ||x|| <= 1/lam both z and the gradient are 0.
    `prox_l2([3.0, 4.0], 1.0)` gives `[2.4, 3.2]`.
    """

    def solve(x, lam):
        length = norm(x, keepdims=True)
        shrink = tf.math.divide_no_nan(1 / lam, length)
        active = length > 1 / lam
        keep = tf.where(active, 1 - shrink, tf.zeros_like(shrink))
        unit = tf.math.divide_no_nan(x, length)

        def jacobian(y):
            radial = tf.reduce_sum(unit * y, axis=-1, keepdims=True) * unit
            return tf.where(active, keep * (y - radial) + radial, tf.zeros_like(y))

        return keep * x, jacobian

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
    `prox_group_l2([3.0, 4.0, 0.1, 0.1], 1.0)` gives `[2.4, 3.2, 0.0, 0.0]`.
    """
    return tf.reshape(prox_l2(_grouped(x, group_size), lam), tf.shape(x))


# Quadratics ------------------------------------------------------------------------------------


def squared_l2(z: tf.Tensor) -> tf.Tensor:
    """1/2 ||z||^2; shape of `z` without its last axis."""
    return tf.reduce_sum(z**2, axis=-1) / 2


def prox_squared_l2(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z 1/2 ||z||^2 + lam/2 ||z - x||^2 = x / (1 + 1/lam).

    `prox_squared_l2([3.0], 2.0)` gives `[2.0]`.
    """
    x = tf.convert_to_tensor(x)
    return x / (1 + 1 / scalar(lam, x))


def spectrum(matrix: Any) -> dict[str, np.ndarray]:
    """Eigenvalues and eigenvectors of a positive semidefinite `matrix`, the one factorisation.

    Args:
        matrix: symmetric (n, n), positive semidefinite: an array, a `tf.SparseTensor` or a SciPy
            sparse matrix, a graph Laplacian for instance.

    Raises:
        ValueError: if it is not square, symmetric, finite and positive semidefinite.
    """
    if isinstance(matrix, tf.SparseTensor):
        matrix = tf.sparse.to_dense(tf.sparse.reorder(matrix))
    elif hasattr(matrix, "toarray"):
        matrix = matrix.toarray()
    dense = np.asarray(matrix, dtype="float64")
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or not np.isfinite(dense).all():
        raise ValueError(
            f"`matrix` must be a finite square matrix. Received: an array of shape {dense.shape}."
        )
    rounding = 1e-6 * max(np.abs(dense).max(initial=0.0), 1e-300)
    if np.abs(dense - dense.T).max(initial=0.0) > rounding:
        raise ValueError(
            "`matrix` must be symmetric. Received: one that differs from its transpose; "
            "pass (matrix + matrix.T) / 2."
        )
    values, vectors = np.linalg.eigh(dense)
    if values.min(initial=0.0) < -len(values) * rounding:
        raise ValueError(
            "`matrix` must be positive semidefinite, or the problem has no minimum for small lam. "
            f"Received: one with the eigenvalue {values.min():g}."
        )
    return {"eigenvalues": np.maximum(values, 0), "eigenvectors": vectors}


def quadratic(z: tf.Tensor, eigenvalues: np.ndarray, eigenvectors: np.ndarray) -> tf.Tensor:
    """1/2 z^T Q z with Q = U diag(q) U^T; shape of `z` without its last axis."""
    along = tf.tensordot(z, tf.cast(eigenvectors, z.dtype), axes=1)
    return tf.reduce_sum(tf.cast(eigenvalues, z.dtype) * along**2, axis=-1) / 2


def prox_quadratic(
    x: tf.Tensor, lam: float | tf.Tensor, eigenvalues: np.ndarray, eigenvectors: np.ndarray
) -> tf.Tensor:
    """argmin_z 1/2 z^T Q z + lam/2 ||z - x||^2 = (I + Q/lam)^{-1} x, Q = U diag(q) U^T.

    `spectrum(Q)` gives `eigenvalues` (n,) and `eigenvectors` (n, n), for every lam. Linear in x.
    `prox_quadratic([3.0, 3.0], 1.0, **spectrum([[2, 0], [0, 0]]))` gives `[1.0, 3.0]`.
    """
    x = tf.convert_to_tensor(x)
    basis, q = (tf.cast(v, x.dtype) for v in (eigenvectors, eigenvalues))
    # x - Q (lam I + Q)^{-1} x: what is taken away carries the rounding, not x.
    removed = tf.tensordot(x, basis, axes=1) * (q / (scalar(lam, x) + q))
    return x - tf.tensordot(removed, tf.transpose(basis), axes=1)


# The largest entry -----------------------------------------------------------------------------


def l_inf(z: tf.Tensor) -> tf.Tensor:
    """max_i |z_i|; shape of `z` without its last axis."""
    return tf.reduce_max(tf.abs(z), axis=-1)


def prox_l_inf(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_z max_i |z_i| + lam/2 ||z - x||^2: the largest entries are cut to one level.

    By Moreau x minus the projection onto the l1 ball of radius 1/lam. The gradient is 0 where
    ||x||_1 <= 1/lam; an entry that only touches the level keeps its own.
    `prox_l_inf([3.0, 1.0], 1.0)` gives `[2.0, 1.0]`.
    """

    def solve(x, lam):
        removed, jacobian = projections.l1_ball_point(x, 1 / lam)
        return x - removed, lambda y: y - jacobian(y)

    return symmetric_map(solve, x, lam)


# Entropy on the simplex ------------------------------------------------------------------------


def entropy(z: tf.Tensor) -> tf.Tensor:
    """sum_i z_i log z_i - z_i^2/2 on the simplex, +inf off it; shape of `z` without its last axis.

    Convex on the simplex; the square makes the map at lam = 1 the softmax (the paper, section 2).
    """
    inside = tf.reduce_sum(tf.math.xlogy(tf.nn.relu(z), tf.nn.relu(z)) - z**2 / 2, axis=-1)
    return inside + projections.simplex(z)


def prox_entropy(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin over the simplex of sum_i z_i log z_i - z_i^2/2 + lam/2 ||z - x||^2.

    At lam = 1 this is softmax(x). Smooth, the solution is interior. Differentiable once.
    `prox_entropy([0.0, log(3.0)], 1.0)` gives `[0.25, 0.75]`.
    """

    def solve(x, lam):
        z = _entropy_point(x, lam)
        slope = z / ((1 - z) + lam * z)
        total = tf.reduce_sum(slope, axis=-1, keepdims=True)

        def jacobian(y):
            mean = tf.reduce_sum(slope * y, axis=-1, keepdims=True) / total
            return lam * slope * (y - mean)

        return z, jacobian

    return symmetric_map(solve, x, lam, once=True)


def _entropy_point(x: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    """Solves log z_i + a (z_i - 1) = w_i - nu, sum z = 1; a = lam - 1, w = lam (x - max x)."""
    a = lam - 1
    precision = tf.constant(np.finfo(x.dtype.as_numpy_dtype).eps, x.dtype)
    floor = tf.constant(np.log(np.finfo(x.dtype.as_numpy_dtype).tiny), x.dtype)
    w = tf.maximum(lam * (x - tf.reduce_max(x, axis=-1, keepdims=True)), 2 * floor - tf.abs(a))

    def entries(nu):
        """z in (0, 1] by Newton on p = log z; for a > 0 the start follows Wright's omega."""
        v = w - nu + a
        above = v + tf.math.log(tf.maximum(a, 1e-30))
        start = tf.where(above > 1, v - above + tf.math.log(tf.maximum(above, 1)), v)

        def newton(p, _):
            z = tf.exp(p)
            step = (p + a * tf.math.expm1(p) - (w - nu)) / ((1 - z) + lam * z)
            return tf.minimum(p - step, 0), tf.reduce_max(tf.abs(step) / (1 - p))

        p, _ = tf.while_loop(
            lambda _, step: step > 2 * precision,
            newton,
            (tf.clip_by_value(start, floor, 0), tf.ones([], x.dtype)),
            maximum_iterations=60,
        )
        return tf.exp(p)

    def newton(nu, low, high, _):
        # sum z(nu) - 1 is convex and decreasing; the root lies between z_max = 1 and z_max = 1/n.
        z = entries(nu)
        excess = tf.reduce_sum(z, axis=-1, keepdims=True) - 1
        slope = tf.reduce_sum(z / ((1 - z) + lam * z), axis=-1, keepdims=True)
        low, high = tf.where(excess > 0, nu, low), tf.where(excess > 0, high, nu)
        nu += excess / slope
        nu = tf.where((nu >= low) & (nu <= high), nu, (low + high) / 2)
        return nu, low, high, tf.reduce_max(tf.abs(excess))

    n = tf.cast(tf.shape(x)[-1], x.dtype)
    low = tf.zeros_like(w[..., :1])
    high = low + tf.math.log(n) + a * (1 - 1 / n)
    nu, *_ = tf.while_loop(
        lambda *state: state[-1] > 1e-3 * tf.sqrt(precision),
        newton,
        (high, low, high, tf.ones([], x.dtype)),
        maximum_iterations=60,
    )
    z = entries(nu)
    return z / tf.reduce_sum(z, axis=-1, keepdims=True)


# The nuclear norm, on the last two axes --------------------------------------------------------


def nuclear(z: tf.Tensor) -> tf.Tensor:
    """Sum of the singular values of the last two axes; shape of `z` without them."""
    return tf.reduce_sum(tf.linalg.svd(z, compute_uv=False), axis=-1)


def prox_nuclear(x: tf.Tensor, lam: float | tf.Tensor) -> tf.Tensor:
    """argmin_Z ||Z||_* + lam/2 ||Z - X||_F^2: the soft threshold of the singular values at 1/lam.

    The derivative uses divided differences of the threshold, which stay in [0, 1] at equal
    singular values. A singular value of exactly 1/lam counts as cut. Differentiable once.
    `prox_nuclear([[3.0, 0.0], [0.0, 0.5]], 1.0)` gives `[[2.0, 0.0], [0.0, 0.0]]`.
    """

    def solve(x, lam):
        finite = tf.reduce_all(tf.math.is_finite(x), axis=[-2, -1], keepdims=True)
        s, u, v = tf.linalg.svd(tf.where(finite, x, tf.zeros_like(x)))
        kept = tf.nn.relu(s - 1 / lam)
        z = tf.matmul(u * kept[..., tf.newaxis, :], v, transpose_b=True)
        nan = tf.cast(float("nan"), x.dtype)
        return (
            tf.where(finite, z, nan),
            lambda y: _threshold_derivative(y, s, u, v, 1 / lam),
        )

    return symmetric_map(solve, x, lam, once=True)


def _threshold_derivative(y, s, u, v, threshold):
    """D[U f(s) V^T](Y) for f(s) = (s - threshold)_+."""
    kept = tf.nn.relu(s - threshold)
    cut = tf.nn.relu(threshold - s)
    # [f(s_i) - f(s_j)] / (s_i - s_j): 1 above, 0 below, k / (k + c) across, without cancellation.
    active = kept > 0
    both = active[..., :, tf.newaxis] & active[..., tf.newaxis, :]
    k = tf.maximum(kept[..., :, tf.newaxis], kept[..., tf.newaxis, :])
    c = tf.maximum(cut[..., :, tf.newaxis], cut[..., tf.newaxis, :])
    difference = tf.where(both, tf.ones_like(k), tf.math.divide_no_nan(k, k + c))
    # [f(s_i) + f(s_j)] / (s_i + s_j)
    total = tf.math.divide_no_nan(
        kept[..., :, tf.newaxis] + kept[..., tf.newaxis, :],
        s[..., :, tf.newaxis] + s[..., tf.newaxis, :],
    )
    b = tf.matmul(u, tf.matmul(y, v), transpose_a=True)
    bt = tf.linalg.matrix_transpose(b)
    core = difference * (b + bt) / 2 + total * (b - bt) / 2
    inside = tf.matmul(u, tf.matmul(core, v, transpose_b=True))
    # Outside the singular vectors: the ratio f(s)/s, on the left and on the right.
    ratio = tf.math.divide_no_nan(kept, s)[..., tf.newaxis, :]
    yv, ytu = tf.matmul(y, v), tf.matmul(y, u, transpose_a=True)
    left = tf.matmul((yv - tf.matmul(u, b)) * ratio, v, transpose_b=True)
    right = tf.matmul(u * ratio, ytu - tf.matmul(v, bt), transpose_b=True)
    return inside + left + right


# By name ---------------------------------------------------------------------------------------


class ProximalOperator(NamedTuple):
    """A regulariser or a set under its name.

    Attributes:
        value: (z, **options) -> R(z), +inf outside a set.
        prox: (x, lam, **options) -> z.
        is_set: whether R is an indicator, which neither lam nor a weight changes.
        padding: how steps that a mask leaves out are kept out of the rest: "zero" (they count
            nothing when set to 0), "mask" (`prox` takes `mask`), None (not possible).
        matrix: whether R sees the last two axes instead of the last one.
        jit: whether XLA can compile it on every device.
        prepare: options of the user -> options of `value` and `prox`, where they differ.
    """

    value: Callable[..., tf.Tensor]
    prox: Callable[..., tf.Tensor]
    is_set: bool = False
    padding: str | None = "zero"
    matrix: bool = False
    jit: bool = True
    prepare: Callable[..., dict[str, Any]] | None = None


def _projection(project: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    return lambda x, lam, **options: project(x, **options)


def _set(value, project, **properties) -> ProximalOperator:
    return ProximalOperator(value, _projection(project), is_set=True, **properties)


OPERATORS: dict[str, ProximalOperator] = {
    "l1": ProximalOperator(l1, prox_l1),
    "elastic_net": ProximalOperator(elastic_net, prox_elastic_net),
    "l2": ProximalOperator(l2, prox_l2),
    "group_l2": ProximalOperator(group_l2, prox_group_l2),
    "squared_l2": ProximalOperator(squared_l2, prox_squared_l2),
    "quadratic": ProximalOperator(quadratic, prox_quadratic, padding=None, prepare=spectrum),
    "l_inf": ProximalOperator(l_inf, prox_l_inf),
    "entropy": ProximalOperator(entropy, prox_entropy, padding=None),
    "nuclear": ProximalOperator(nuclear, prox_nuclear, matrix=True, jit=False),
    "total_variation": ProximalOperator(
        total_variation.total_variation, total_variation.prox_total_variation, padding="mask"
    ),
    "fused_lasso": ProximalOperator(
        total_variation.fused_lasso, total_variation.prox_fused_lasso, padding="mask"
    ),
    "box": _set(projections.box, projections.project_box),
    "nonnegative": _set(projections.nonnegative, projections.project_nonnegative),
    "l2_ball": _set(projections.l2_ball, projections.project_l2_ball),
    "l1_ball": _set(projections.l1_ball, projections.project_l1_ball),
    "simplex": _set(projections.simplex, projections.project_simplex, padding=None),
    "sparsemax": _set(projections.simplex, projections.project_simplex, padding=None),
    "isotonic": _set(projections.isotonic, projections.project_isotonic, padding=None, jit=False),
    "standardized": _set(projections.standardized, projections.project_standardized, padding=None),
}
