"""The equations of an LSTM. Its gates stand in the order i, f, g, o of Keras."""

import dataclasses
from typing import ClassVar

import tensorflow as tf

from proxnet_tf.ops.recurrent.equations import (
    Adjoint,
    Coupling,
    Equations,
    NewState,
    side_by_side,
    value_and_slope,
    value_slope_curvature,
)


@dataclasses.dataclass(frozen=True)
class LSTMEquations(Equations):
    """s = f o c_prev + i o g, h = o o activation(s); z = x W + h_prev U + b.

    The slopes of (9) are [g o i', c_prev o f', i o g'].
    """

    blocks: ClassVar[int] = 4
    feeds_output: ClassVar[bool] = True

    def from_input(self, xw: tf.Tensor) -> tf.Tensor:
        return xw

    def to_input(self, dz: tf.Tensor) -> tf.Tensor:
        return dz

    def from_recurrent(self, yu: tf.Tensor) -> tf.Tensor:
        return yu

    def to_recurrent(self, dz: tf.Tensor) -> tf.Tensor:
        return dz

    def new_state(
        self, z: tf.Tensor, c_prev: tf.Tensor, coupling: Coupling | None = None
    ) -> NewState:
        units = c_prev.shape[-1]
        z_if, z_g, z_o = tf.split(z, [2 * units, units, units], axis=-1)
        i_and_f, d_if = value_and_slope(self.recurrent_activation, z_if)
        i, f = tf.split(i_and_f, 2, axis=-1)
        g, dg = value_and_slope(self.activation, z_g)
        slopes = tf.concat([g, c_prev, i], axis=-1) * tf.concat([d_if, dg], axis=-1)
        return NewState(f * c_prev + i * g, slopes, self.recurrent_activation(z_o))

    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        return gate * self.activation(state)

    def adjoint(
        self,
        z: tf.Tensor,
        c_prev: tf.Tensor,
        c: tf.Tensor,
        dh: tf.Tensor,
        coupling: Coupling | None = None,
    ) -> Adjoint:
        units = c_prev.shape[-1]
        z_if, z_g, z_o = tf.split(z, [2 * units, units, units], axis=-1)
        i_and_f, d_if, dd_if = value_slope_curvature(self.recurrent_activation, z_if)
        g, dg, ddg = value_slope_curvature(self.activation, z_g)
        o, do, _ = value_slope_curvature(self.recurrent_activation, z_o)
        i, f = tf.split(i_and_f, 2, axis=-1)
        di, df = tf.split(d_if, 2, axis=-1)
        factors = tf.concat([g, c_prev, i], axis=-1)
        slopes = factors * tf.concat([d_if, dg], axis=-1)  # also ds/dz
        y, dy, _ = value_slope_curvature(
            self.activation, c if self.output_from_prox else f * c_prev + i * g
        )

        def finish(ds: tf.Tensor, d_slopes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_slope_i, d_slope_f, d_slope_g = tf.split(d_slopes, 3, axis=-1)
            cross = di * dg  # slope_i depends on g, and slope_g on i
            dz = side_by_side(ds) * slopes + d_slopes * factors * tf.concat([dd_if, ddg], axis=-1)
            dz_i, dz_f, dz_g = tf.split(dz, 3, axis=-1)
            dz = [dz_i + d_slope_g * cross, dz_f, dz_g + d_slope_i * cross, dh * y * do]
            return tf.concat(dz, axis=-1), ds * f + d_slope_f * df

        return Adjoint(dh * o * dy, slopes, finish)


TANH_SIGMOID = LSTMEquations()
