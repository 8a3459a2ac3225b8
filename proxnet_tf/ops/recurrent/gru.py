"""The equations of a GRU. Its gates stand in the order z, r, n of Keras, n the candidate."""

import dataclasses
from typing import ClassVar

import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import (
    Adjoint,
    Coupling,
    Equations,
    NewState,
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

    def new_state(
        self, z: tf.Tensor, c_prev: tf.Tensor, coupling: Coupling | None = None
    ) -> NewState:
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

    def adjoint(
        self,
        z: tf.Tensor,
        c_prev: tf.Tensor,
        c: tf.Tensor,
        dh: tf.Tensor,
        coupling: Coupling | None = None,
    ) -> Adjoint:
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


@dataclasses.dataclass(frozen=True)
class GRUBeforeEquations(GRUEquations):
    """A GRU whose reset gate acts before U: n = activation(p + (r o c_prev) U_n).

    The three pre-activations are those of z and r, and p. With the slopes

        [(c_prev - n) o z', c_prev o r', (1 - z) o n'],

    the second gate reaches s through U_n and the third slope, see `Coupling`.
    """

    coupled: ClassVar[bool] = True

    def from_input(self, xw: tf.Tensor) -> tf.Tensor:
        return xw

    def to_input(self, dz: tf.Tensor) -> tf.Tensor:
        return dz

    def from_recurrent(self, yu: tf.Tensor) -> tf.Tensor:
        return tf.concat([yu, tf.zeros_like(yu[..., : yu.shape[-1] // 2])], axis=-1)

    def to_recurrent(self, dz: tf.Tensor) -> tf.Tensor:
        return _split(dz)[0]

    def new_state(
        self, z: tf.Tensor, c_prev: tf.Tensor, coupling: Coupling | None = None
    ) -> NewState:
        assert coupling is not None
        z_zr, p = _split(z)
        z_and_r, d_zr = value_and_slope(self.recurrent_activation, z_zr)
        z, r = tf.split(z_and_r, 2, axis=-1)
        kept = c_prev if coupling.scale is None else c_prev * coupling.scale
        n, dn = value_and_slope(self.activation, p + (r * kept) @ coupling.kernel)
        slopes = tf.concat([c_prev - n, kept, 1.0 - z], axis=-1) * tf.concat([d_zr, dn], axis=-1)
        return NewState(z * c_prev + (1.0 - z) * n, slopes, None)

    def adjoint(
        self,
        z: tf.Tensor,
        c_prev: tf.Tensor,
        c: tf.Tensor,
        dh: tf.Tensor,
        coupling: Coupling | None = None,
    ) -> Adjoint:
        assert coupling is not None
        z_zr, p = _split(z)
        z_and_r, d_zr, dd_zr = value_slope_curvature(self.recurrent_activation, z_zr)
        z, r = tf.split(z_and_r, 2, axis=-1)
        dz, dr = tf.split(d_zr, 2, axis=-1)
        ddz, ddr = tf.split(dd_zr, 2, axis=-1)
        kept = c_prev if coupling.scale is None else c_prev * coupling.scale
        n, dn, ddn = value_slope_curvature(self.activation, p + (r * kept) @ coupling.kernel)
        slope_z, slope_n = (c_prev - n) * dz, (1.0 - z) * dn

        def finish(ds: tf.Tensor, d_slopes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_slope_z, d_slope_r, d_slope_n = tf.split(d_slopes, 3, axis=-1)
            d_p = ds * slope_n + d_slope_n * (1.0 - z) * ddn - d_slope_z * dz * dn
            d_z = ds * slope_z + d_slope_z * (c_prev - n) * ddz - d_slope_n * dz * dn
            d_product = tf.matmul(d_p, coupling.kernel, transpose_b=True)  # cotangent of r o kept
            d_r = kept * (d_product * dr + d_slope_r * ddr)
            d_kept = r * d_product + d_slope_r * dr
            if coupling.scale is not None:
                d_kept *= coupling.scale
            return tf.concat([d_z, d_r, d_p], axis=-1), ds * z + d_slope_z * dz + d_kept

        slopes = tf.concat([slope_z, kept * dr, slope_n], axis=-1)
        return Adjoint(dh, slopes, finish, r * kept)


def _split(x: tf.Tensor) -> list[tf.Tensor]:
    """What belongs to the gates z and r, and what belongs to the candidate."""
    units = x.shape[-1] // 3
    return tf.split(x, [2 * units, units], axis=-1)
