"""What `ProxLSTM` and `ProxGRU` share: one loop over time."""

import inspect
import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from proxnet_tf.checks import HasLam, steps_mask
from proxnet_tf.layers.recurrent.gated_cell import GatedCell, with_lam
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.recurrent.scan import prox_sequence


def _cell_arguments(cls: type["GatedRNN"]) -> set[str]:
    """The arguments of the Keras cell without `units`."""
    names = inspect.signature(cls.cell_class.plain_class.__init__).parameters
    return {*names, "implementation"} - {"self", "units", "kwargs"}


def _input_shape(layer: keras.layers.RNN) -> tuple[int | None, ...]:
    """The input shape of a layer that is built."""
    batch = layer.states[0].shape[0] if layer.stateful else None
    return batch, None, layer.cell.kernel.shape[0]


class GatedRNN(HasLam, keras.layers.RNN):
    """A layer that makes its own cell, and runs all steps in one loop where possible.

    Attributes of a class:
        cell_class: the class of the cell.
        plain_class: the layer of Keras with the same weights.
        short_name: what the name of the cell starts with.
        num_states: 2 where the output is a state too, else 1.
    """

    cell_class: ClassVar[type[GatedCell]]
    plain_class: ClassVar[type[keras.layers.RNN]]
    short_name: ClassVar[str]
    num_states: ClassVar[int]

    def __init_subclass__(cls, **kwargs: Any):
        """Gives a class the attributes that a Keras layer takes from its cell."""
        super().__init_subclass__(**kwargs)
        for name in _cell_arguments(cls):
            if not hasattr(cls, name):
                setattr(cls, name, property(operator.attrgetter(f"cell.{name}")))

    def __init__(
        self,
        units: int,
        *,
        lam: float = 1.0,
        delta: float = 1.0,
        output_from_prox: bool = False,
        tolerance: float | None = None,
        max_iterations: int | None = None,
        jit_compile: bool | str = "auto",
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        cell_arguments = {
            name: kwargs.pop(name) for name in _cell_arguments(type(self)) & set(kwargs)
        }
        cell = self.cell_class(
            units,
            lam=lam,
            delta=delta,
            output_from_prox=output_from_prox,
            tolerance=tolerance,
            max_iterations=max_iterations,
            jit_compile=jit_compile,
            monitor=monitor,
            dtype=kwargs.get("dtype"),
            trainable=kwargs.get("trainable", True),
            name=f"{self.short_name}_cell",
            **cell_arguments,
        )
        super().__init__(cell, **kwargs)
        self.input_spec = keras.layers.InputSpec(ndim=3)
        cell.solves.owner = self.name

    @classmethod
    def _from_keras(cls, layer: keras.layers.Layer, arguments: dict[str, Any]) -> Any:
        """A layer with the weights and the configuration (but the name) of a Keras layer."""
        if isinstance(layer, keras.layers.Bidirectional):
            return cls._from_bidirectional(layer, arguments)
        if not isinstance(layer, cls.plain_class):
            kind = f"keras.layers.{cls.plain_class.__name__}"
            raise ValueError(
                f"`layer` must be a `{kind}`, or a `keras.layers.Bidirectional` of it. For another "
                f"cell use `keras.layers.RNN(ProxRNNCell(cell))`. Received: layer={layer!r}"
            )
        config = layer.get_config()
        del config["name"]
        config["implementation"] = layer.cell.implementation
        prox = cls(**{**config, **arguments})
        if layer.built:
            prox.build(_input_shape(layer))
            prox.set_weights(layer.get_weights())
        return prox

    @classmethod
    def _from_bidirectional(
        cls, layer: keras.layers.Bidirectional, arguments: dict[str, Any]
    ) -> keras.layers.Bidirectional:
        """`Bidirectional` makes its forward layer anew, so the weights are set once it is built."""
        forward = cls._from_keras(layer.forward_layer, arguments)
        backward = cls._from_keras(layer.backward_layer, arguments)
        prox = keras.layers.Bidirectional(
            forward,
            merge_mode=layer.merge_mode,
            backward_layer=backward,
            dtype=layer.dtype_policy,
            trainable=layer.trainable,
        )
        if forward.built:
            prox.build(_input_shape(forward))
            prox.forward_layer.set_weights(forward.get_weights())
        return prox

    units = property(operator.attrgetter("cell.units"), doc="Size of the state.")
    lam = property(operator.attrgetter("cell.lam"), doc="The scalar weight lambda.")
    delta = property(operator.attrgetter("cell.delta"), doc="The bound on the perturbation.")
    jit_compile = property(
        operator.attrgetter("cell.jit_compile"), doc="Whether XLA compiles the loop over time."
    )
    status = property(
        operator.attrgetter("cell.status"), doc="How the problems were solved, see the cell."
    )

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets weights taken from this class, or from the Keras layer (then lam is kept)."""
        super().set_weights(with_lam(self, weights))

    def call(
        self,
        sequences: tf.Tensor,
        initial_state: Any = None,
        mask: tf.Tensor | None = None,
        training: bool = False,
    ) -> Any:
        expected = self.states[0].shape[0] if self.stateful and self.states else None
        if expected is not None and sequences.shape[0] not in (None, expected):
            raise ValueError(
                "A stateful layer keeps one state an example, so every batch must have the size "
                f"it was built with, {expected}. Received: sequences.shape={sequences.shape}. "
                "Drop or pad the last batch, or use `stateful=False`."
            )
        mask = mask[0] if isinstance(mask, list | tuple) else mask
        mask = None if mask is None else steps_mask(mask, sequences)
        if initial_state is not None:
            states = tf.nest.flatten(initial_state)
            units = self.cell.units
            shapes = [tuple(getattr(state, "shape", ())) for state in states]
            if len(states) != self.num_states or any(s[-1:] != (units,) for s in shapes):
                form = "[h, c], each" if self.num_states == 2 else "one state"
                raise ValueError(
                    f"`initial_state` must be {form} of shape (batch, {units}). "
                    f"Received: tensors of the shapes {shapes}"
                )
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def __call__(self, sequences: Any, *args: Any, **kwargs: Any) -> Any:
        check_real("The input", sequences)
        return super().__call__(sequences, *args, **kwargs)

    def inner_loop(
        self, sequences: tf.Tensor, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        cell = self.cell
        dropout = training and cell.recurrent_dropout > 0.0
        if self.unroll or dropout or cell.implementation == 1:
            if mask is not None:  # padding may hold any values
                sequences = tf.where(mask[..., None], sequences, tf.zeros_like(sequences))
            return super().inner_loop(sequences, initial_state, mask=mask, training=training)
        kernel, recurrent_kernel, bias, sqrt_rho = cell.tensors()
        masks = cell.input_masks(sequences[:, 0, :], training)
        if mask is not None:
            mask = tf.transpose(mask)
        time_major = tf.transpose(tf.cast(sequences, kernel.dtype), [1, 0, 2])
        if self.go_backwards:
            time_major = tf.reverse(time_major, [0])
            mask = None if mask is None else tf.reverse(mask, [0])
        jit_compile = self.jit_compile
        if jit_compile == "auto":
            jit_compile = not tf.executing_eagerly() and sequences.shape[1] is not None
        shape = [tf.shape(sequences)[0], cell.units]  # a state may be one row for all examples
        states = [tf.broadcast_to(tf.cast(s, kernel.dtype), shape) for s in initial_state]
        carry = states[-1]
        hidden = states[0] if len(states) == 2 else tf.zeros_like(carry)
        solves, valid = cell.solves, mask
        observer = solves.backward(training)
        hidden, carry, report = prox_sequence(
            time_major,
            hidden,
            carry,
            kernel,
            recurrent_kernel,
            bias,
            sqrt_rho,
            cell.equations,
            mask,
            None if masks is None else masks[0],
            lambda report: observer(report, valid),
            bool(jit_compile),
        )

        def given() -> dict[str, Any]:
            counted = time_major if valid is None else time_major[valid]
            return {
                "the input": counted,
                "the initial state": initial_state,
                "lam": sqrt_rho,
                "a weight": [w.value for w in cell.trainable_variables],
            }

        solves.forward(report, valid, given)
        last = [hidden[-1], carry] if len(states) == 2 else [carry]
        outputs = hidden
        if mask is not None:
            # Keras repeats the last output at masked steps, and zeros before the first one.
            shown = mask
            if not self.zero_output_for_mask:
                shown = tf.cumsum(tf.cast(mask, tf.int32)) > 0
            outputs = tf.where(shown[..., None], hidden, tf.zeros_like(hidden))
        outputs = outputs if self.return_sequences else outputs[-1:]
        return outputs[-1], tf.transpose(outputs, [1, 0, 2]), last

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["cell"]
        cell = self.cell.get_config()
        for name in ("name", "trainable", "dtype"):
            cell.pop(name, None)
        return {
            **config,
            **cell,
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GatedRNN":
        return cls(**config)
