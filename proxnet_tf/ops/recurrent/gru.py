"""The equations of a GRU. Its gates stand in the order z, r, n of Keras, n the candidate."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import (
    Adjoint,
    Equations,
    Masks,
    NewState,
    masked_product,
    value_and_slope,
    value_slope_curvature,
)


@dataclasses.dataclass(frozen=True)
class GRUEquations(Equations):
    """s = z o c_prev + (1 - z) o n, n = activation(p + r o q); the reset gate acts after U.

    The four pre-activations are those of the gates z and r, p = x W_n + b_n and
    q = c_prev U_n + b_q. The slopes of (9) are

        [(c_prev - n) o z', (1 - z) o n' o q o r', (1 - z) o n'].
    """

    blocks: ClassVar[int] = 3
    feeds_output: ClassVar[bool] = False

    def from_input(self, xw: tf.Tensor) -> tf.Tensor:
        gates, p = _split(xw)
        return tf.concat([gates, p, tf.zeros_like(p)], axis=-1)

    def to_input(self, dz: tf.Tensor) -> tf.Tensor:
        return dz[..., : 3 * (dz.shape[-1] // 4)]

    def from_recurrent(self, yu: tf.Tensor) -> tf.Tensor:
        gates, q = _split(yu)
        return tf.concat([gates, tf.zeros_like(q), q], axis=-1)

    def to_recurrent(self, dz: tf.Tensor) -> tf.Tensor:
        units = dz.shape[-1] // 4
        return tf.concat([dz[..., : 2 * units], dz[..., 3 * units :]], axis=-1)

    def new_state(self, z: tf.Tensor, c_prev: tf.Tensor) -> NewState:
        units = c_prev.shape[-1]
        z_zr, p, q = tf.split(z, [2 * units, units, units], axis=-1)
        z_and_r, d_zr = value_and_slope(self.recurrent_activation, z_zr)
        z, r = tf.split(z_and_r, 2, axis=-1)
        dz, dr = tf.split(d_zr, 2, axis=-1)
        n, dn = value_and_slope(self.activation, p + r * q)
        slope_n = (1.0 - z) * dn
        slopes = tf.concat([(c_prev - n) * dz, slope_n * q * dr, slope_n], axis=-1)
        return NewState(z * c_prev + (1.0 - z) * n, slopes, None)

    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        return state

    def adjoint(self, z: tf.Tensor, c_prev: tf.Tensor, c: tf.Tensor, dh: tf.Tensor) -> Adjoint:
        units = c_prev.shape[-1]
        z_zr, p, q = tf.split(z, [2 * units, units, units], axis=-1)
        z_and_r, d_zr, dd_zr = value_slope_curvature(self.recurrent_activation, z_zr)
        z, r = tf.split(z_and_r, 2, axis=-1)
        dz, dr = tf.split(d_zr, 2, axis=-1)
        ddz, ddr = tf.split(dd_zr, 2, axis=-1)
        n, dn, ddn = value_slope_curvature(self.activation, p + r * q)
        slope_z, slope_n, q_dr = (c_prev - n) * dz, (1.0 - z) * dn, q * dr

        def finish(ds: tf.Tensor, d_slopes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_slope_z, d_slope_r, d_slope_n = tf.split(d_slopes, 3, axis=-1)
            d_dn = d_slope_n + d_slope_r * q_dr  # cotangent of (1 - z) o n', twice in the slopes
            inner = d_slope_r * slope_n
            d_p = ds * slope_n + d_dn * (1.0 - z) * ddn - d_slope_z * dz * dn
            d_z = ds * slope_z + d_slope_z * (c_prev - n) * ddz - d_dn * dz * dn
            d_r = d_p * q_dr + inner * q * ddr
            d_q = d_p * r + inner * dr
            return tf.concat([d_z, d_r, d_p, d_q], axis=-1), ds * z + d_slope_z * dz

        return Adjoint(dh, tf.concat([slope_z, slope_n * q_dr, slope_n], axis=-1), finish)


def state_reset_before(
    x: tf.Tensor,
    c_prev: tf.Tensor,
    weights: Sequence[tf.Tensor],
    equations: Equations,
    input_masks: Masks = None,
    recurrent_masks: Masks = None,
) -> tf.Tensor:
    """s of a GRU whose reset gate acts before U: n = activation(x W_n + (r o c_prev) U_n + b_n).

    Here r reaches s through U_n, so (9) does not hold.

    Args:
        x: the input, (batch, features).
        c_prev: the previous state, (batch, units).
        weights: kernel, (features, 3 units), recurrent kernel, (units, 3 units), and bias,
            (3 units,).
        equations: the activations.
        input_masks: dropout masks of x: `None`, one, or one for each of z, r, n.
        recurrent_masks: dropout masks of c_prev where U multiplies it.
    """
    kernel, recurrent_kernel, bias = weights
    z, r, n = tf.split(masked_product(x, kernel, input_masks) + bias, 3, axis=-1)
    u_zr, u_n = _split(recurrent_kernel)
    masks = [None] * 3 if recurrent_masks is None else recurrent_masks
    masked = [c_prev if mask is None else c_prev * mask for mask in masks]
    u_z, u_r = tf.split(u_zr, 2, axis=-1)
    z = equations.recurrent_activation(z + masked[0] @ u_z)
    r = equations.recurrent_activation(r + masked[1] @ u_r)
    n = equations.activation(n + (r * masked[2]) @ u_n)
    return z * c_prev + (1.0 - z) * n


def _split(x: tf.Tensor) -> list[tf.Tensor]:
    """What belongs to the gates z and r, and what belongs to the candidate."""
    units = x.shape[-1] // 3
    return tf.split(x, [2 * units, units], axis=-1)
