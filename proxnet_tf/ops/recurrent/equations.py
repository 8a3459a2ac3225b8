"""What a gated cell computes between its matrix products: the form that `step.py` asks for."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from proxnet_tf.ops.recurrent.solve import CG, Solver

Activation = Callable[[tf.Tensor], tf.Tensor]
Masks = Sequence[tf.Tensor] | None
GATES = 3  # the state of every cell here is made of three: i, f, g of an LSTM; z, r, n of a GRU


def side_by_side(x: tf.Tensor) -> tf.Tensor:
    """[x, x, x]: the same for every gate, (..., 3 units)."""
    return tf.concat([x] * GATES, axis=-1)


def sum_gates(x: tf.Tensor) -> tf.Tensor:
    """The transpose of `side_by_side`."""
    first, second, third = tf.split(x, GATES, axis=-1)
    return first + second + third


def masked_product(x: tf.Tensor, kernel: tf.Tensor, masks: Masks) -> tf.Tensor:
    """x W with no mask, with one, or with one mask a block of W."""
    if masks is None:
        return x @ kernel
    if len(masks) == 1:
        return (x * masks[0]) @ kernel
    parts = zip(masks, tf.split(kernel, len(masks), axis=-1), strict=True)
    return tf.concat([(x * mask) @ k for mask, k in parts], axis=-1)


def value_and_slope(f: Activation, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """f(z) and its derivative, elementwise, both differentiable."""
    if f is tf.tanh:
        y = tf.tanh(z)
        return y, 1.0 - y * y
    if f is tf.sigmoid:
        y = tf.sigmoid(z)
        return y, y - y * y
    with tf.GradientTape() as tape:
        tape.watch(z)
        y = f(z)
    return y, tape.gradient(y, z, unconnected_gradients="zero")


def value_slope_curvature(f: Activation, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """f(z), its first and its second derivative, elementwise."""
    if f is tf.tanh:
        y, dy = value_and_slope(f, z)
        return y, dy, -2.0 * y * dy
    if f is tf.sigmoid:
        y, dy = value_and_slope(f, z)
        return y, dy, dy * (1.0 - 2.0 * y)
    with tf.GradientTape() as tape:
        tape.watch(z)
        y, dy = value_and_slope(f, z)
    return y, dy, tape.gradient(dy, z, unconnected_gradients="zero")


class Coupling(NamedTuple):
    """A matrix between the second gate and the state, where a gate does not act elementwise.

    Attributes:
        kernel: U_n of a GRU whose reset gate acts before it, (units, units).
        scale: the dropout mask of the state that it multiplies, (batch, units), or `None`.
    """

    kernel: tf.Tensor
    scale: tf.Tensor | None = None


class NewState(NamedTuple):
    """What a cell makes of its pre-activations.

    Attributes:
        s: the new state before the proximal map, (batch, units).
        slopes: of s in the pre-activations of the three gates, (9), (batch, 3 units).
        gate: of the output, (batch, units), or `None`.
    """

    s: tf.Tensor
    slopes: tf.Tensor
    gate: tf.Tensor | None


class Adjoint(NamedTuple):
    """The cotangents of a step, up to what a linear solve has to tell.

    Attributes:
        from_output: cotangent that the output sends to what it is made of, s or c, (batch, units).
        slopes: (9), (batch, 3 units).
        finish: from the cotangents of s and of the slopes to those of the pre-activations,
            and of the previous state, (batch, units).
        coupled: what the kernel of the coupling multiplies, (batch, units), or `None`.
    """

    from_output: tf.Tensor
    slopes: tf.Tensor
    finish: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    coupled: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Equations(abc.ABC):
    """The equations of a gated cell, and what is fixed in them besides its weights.

    A cell has pre-activations z side by side, those of its three gates first, made of x W, of y U
    and of a bias, where x is the input and y the previous output or state.

    Attributes:
        activation: elementwise, of the candidate (and of an LSTM's output).
        recurrent_activation: elementwise, of the gates.
        output_from_prox: the output is made of c instead of s.
        solver: how (7) is solved.
    """

    activation: Activation = tf.tanh
    recurrent_activation: Activation = tf.sigmoid
    output_from_prox: bool = False
    solver: Solver = CG

    blocks: ClassVar[int]  # of W and U: each is (..., blocks * units), those of the gates first
    feeds_output: ClassVar[bool]  # y is the previous output, not the previous state
    coupled: ClassVar[bool] = False  # the last block of U is a `Coupling`

    def split_recurrent(self, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """U without the kernel of the coupling, and that kernel or `None`."""
        if not self.coupled:
            return kernel, None
        units = kernel.shape[0]
        return kernel[:, :-units], kernel[:, -units:]

    @abc.abstractmethod
    def from_input(self, xw: tf.Tensor) -> tf.Tensor:
        """The part of z that comes from x W."""

    @abc.abstractmethod
    def to_input(self, dz: tf.Tensor) -> tf.Tensor:
        """The transpose of `from_input`."""

    @abc.abstractmethod
    def from_recurrent(self, yu: tf.Tensor) -> tf.Tensor:
        """The part of z that comes from y U."""

    @abc.abstractmethod
    def to_recurrent(self, dz: tf.Tensor) -> tf.Tensor:
        """The transpose of `from_recurrent`."""

    @abc.abstractmethod
    def new_state(
        self, z: tf.Tensor, c_prev: tf.Tensor, coupling: Coupling | None = None
    ) -> NewState:
        """s, its slopes and the output's gate from the pre-activations and the previous state."""

    @abc.abstractmethod
    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        """h from s or c, see `output_from_prox`, and the gate of `new_state`."""

    @abc.abstractmethod
    def adjoint(
        self,
        z: tf.Tensor,
        c_prev: tf.Tensor,
        c: tf.Tensor,
        dh: tf.Tensor,
        coupling: Coupling | None = None,
    ) -> Adjoint:
        """Cotangents of `new_state` and `output`.

        Args:
            z: the pre-activations.
            c_prev: the previous state, (batch, units).
            c: the proximal state.
            dh: cotangent of the output.
            coupling: where the cell has one.
        """
