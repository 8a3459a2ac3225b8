"""Inner products and distances of kernel features after the proximal map, without Nystroem.

With z(x) = (<z_i, k_x>)_i, K_Z = (<z_i, z_j>) and A = (lam I + K_Z)^{-1} for the representers z_i
of R, as in `proxnet_tf.ops.kernels`, everything here is exact.
"""

import tensorflow as tf

from proxnet_tf.ops.kernels import Functionals, gram


def invariant_inner_products(kernel, functionals, x, y, lam, power=-1.0):
    """Exact inner products <c_x, c_y> of the proximal representers (13), a matrix.

        k(x, y) - 2 z(x)^T A z(y) + z(x)^T A K_Z A z(y)

    With power = -1/2 those of the warped kernel of Ma et al. (2019), k - z(x)^T A z(y) (the
    appendix prints K_Z for A).

    Args:
        kernel: of `tfp.math.psd_kernels`, twice differentiable for derivatives.
        functionals: of R.
        x: (n, d) points.
        y: (m, d) points.
        lam: > 0.
        power: -1 or -1/2, the exponent of I + Z Z^T/lam applied to k_x.

    Returns:
        (n, m) tensor.
    """
    zx = gram(kernel, functionals, Functionals(x))
    zy = gram(kernel, functionals, Functionals(y))
    kz = gram(kernel, functionals, functionals)
    lam = tf.constant(lam, kz.dtype)
    factor = tf.linalg.cholesky(kz + lam * tf.eye(tf.shape(kz)[0], dtype=kz.dtype))
    ax, ay = tf.linalg.cholesky_solve(factor, zx), tf.linalg.cholesky_solve(factor, zy)
    products = kernel.matrix(x, y) - tf.matmul(zx, ay, transpose_a=True)
    if power == -0.5:
        return products
    # A K_Z A = A - lam A^2 leaves two terms of the same sign, without cancellation.
    return products - lam * tf.matmul(ax, ay, transpose_a=True)


def invariant_distances(kernel, functionals, x, y, lam, power=-1.0):
    """Exact distances ||c_x - c_y|| after the proximal map (13), a matrix; arguments as above."""
    points = tf.concat([x, y], axis=0)
    products = invariant_inner_products(kernel, functionals, points, points, lam, power)
    n = tf.shape(x)[0]
    squares = tf.linalg.diag_part(products)
    squared = squares[:n, tf.newaxis] + squares[tf.newaxis, n:] - 2 * products[:n, n:]
    return tf.sqrt(tf.maximum(squared, 0))
