"""What a gated cell computes between its matrix products: the equations of LSTM and GRU."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from proxnet_tf.ops.recurrent.implicit import Solver

Activation = Callable[[tf.Tensor], tf.Tensor]
GATES = 3  # the state of every cell here is made of three: i, f, g of an LSTM; z, r, n of a GRU
BLOCKS = 4  # of pre-activations: those of the gates, and one more


@tf.custom_gradient
def times(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """a o b of one shape. TensorFlow's gradient adds broadcasting, which LiteRT cannot convert."""
    return a * b, lambda y: (y * b, y * a)


def spread(x: tf.Tensor, blocks: tuple[int, ...]) -> tf.Tensor:
    """The parts of x, one for each of `blocks`, in their places among four, with zeros between."""
    if len(blocks) == BLOCKS:
        return x
    parts = dict(zip(blocks, tf.split(x, len(blocks), axis=-1), strict=True))
    nothing = tf.zeros_like(parts[0])
    return tf.concat([parts.get(block, nothing) for block in range(BLOCKS)], axis=-1)


def gather(x: tf.Tensor, blocks: tuple[int, ...]) -> tf.Tensor:
    """The transpose of `spread`."""
    if len(blocks) == BLOCKS:
        return x
    parts = tf.split(x, BLOCKS, axis=-1)
    return tf.concat([parts[block] for block in blocks], axis=-1)


@dataclasses.dataclass(frozen=True)
class Equations(abc.ABC):
    """The equations of a gated cell, and their fixed parts besides the weights.

    A cell has pre-activations z in four blocks side by side, (..., 4 units). With x the input and
    y the previous output or state,

        z = spread(x W, input_blocks) + spread(y U, recurrent_blocks) + bias.

    The new state s depends on z elementwise, and on the input through the first three blocks only.

    Attributes:
        activation: elementwise, of the candidate (and of an LSTM's output).
        recurrent_activation: elementwise, of the gates.
        output_from_prox: the output is computed from c instead of s.
        solver: how (7) is solved.
    """

    activation: Activation = tf.tanh
    recurrent_activation: Activation = tf.sigmoid
    output_from_prox: bool = False
    solver: Solver = dataclasses.field(default_factory=Solver)

    input_blocks: ClassVar[tuple[int, ...]]
    recurrent_blocks: ClassVar[tuple[int, ...]]
    feeds_output: ClassVar[bool]  # y is the previous output, not the previous state

    @abc.abstractmethod
    def new_state(self, z: tf.Tensor, c_prev: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """s, (batch, units), and the gate of the output or `None`."""

    @abc.abstractmethod
    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        """h from s or c, see `output_from_prox`, and the gate of `new_state`."""


@dataclasses.dataclass(frozen=True)
class LSTMEquations(Equations):
    """s = f o c_prev + i o g, h = o o activation(s). The blocks of z: i, f, g, o, as in Keras."""

    input_blocks: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    recurrent_blocks: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    feeds_output: ClassVar[bool] = True

    def new_state(self, z: tf.Tensor, c_prev: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        i, f, g, o = tf.split(z, BLOCKS, axis=-1)
        i, f, o = (self.recurrent_activation(gate) for gate in (i, f, o))
        return tf.add_n([times(f, c_prev), times(i, self.activation(g))]), o

    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        return gate * self.activation(state)


@dataclasses.dataclass(frozen=True)
class GRUEquations(Equations):
    """s = z o c_prev + (1 - z) o n, n = activation(p + r o q); the output is the state.

    The blocks are those of the gates z and r, p = x W_n + b_n and q = c_prev U_n + b_q: the reset
    gate acts after U, which is what Keras calls `reset_after`.
    """

    input_blocks: ClassVar[tuple[int, ...]] = (0, 1, 2)
    recurrent_blocks: ClassVar[tuple[int, ...]] = (0, 1, 3)
    feeds_output: ClassVar[bool] = False

    def new_state(self, z: tf.Tensor, c_prev: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        z, r, p, q = tf.split(z, BLOCKS, axis=-1)
        z, r = self.recurrent_activation(z), self.recurrent_activation(r)
        return z * c_prev + (1.0 - z) * self.activation(p + r * q), None

    def output(self, state: tf.Tensor, gate: tf.Tensor | None) -> tf.Tensor:
        return state
