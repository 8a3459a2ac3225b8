"""Models that have all variables before `fit` traces its first step.

TensorFlow traces a function twice if the first trace makes a variable, and a variable that is made
inside a trace costs ten times one that is made outside. Keras makes a model's weights, the slots
of its optimizer and the state of its metrics in the first step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


class BuiltModel(keras.Model):
    """A `keras.Model` that makes its variables when `fit` meets its first batches.

    It does so where the batches show what they are: dense tensors out of a dataset or of arrays,
    on one device, and if the step is the package's or Keras's own. Elsewhere the first step makes
    them, as in Keras.
    """

    train_function: Any

    def make_train_function(self, force: bool = False) -> Any:
        """As in `keras.Model`; `fit` and `train_on_batch` call it first."""
        before = self.train_function
        super().make_train_function(force)
        known = not self.run_eagerly and _is_known(type(self))
        if self.train_function is not before and known:
            self.train_function = self._after_building(self.train_function)
        return self.train_function

    def _after_building(self, step: Callable[[Iterator], Any]) -> Callable[[Iterator], Any]:
        def first(batches: Iterator) -> Any:
            self.train_function = step
            if isinstance(batches, tf.data.Iterator):
                _make_variables(self, batches.element_spec)
            return step(batches)

        return first


def _is_known(model_class: type) -> bool:
    """Whether no user's method says what a batch is, or makes variables of its own."""
    methods = ("build", "call", "train_step", "compute_loss", "compute_metrics")
    homes = {getattr(model_class, name).__module__.split(".")[0] for name in methods}
    return homes <= {"keras", "proxnet_tf"}


def _make_variables(model: keras.Model, batch: Any) -> None:
    """Builds a compiled model, its optimizer and its metrics for batches of this `TypeSpec`."""
    parts = tf.nest.flatten(batch)
    if not all(isinstance(part, tf.TensorSpec) and part.shape.rank for part in parts):
        return
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    try:
        if not model.built:
            model.build(tf.nest.map_structure(lambda part: (None, *part.shape[1:]), x))
        symbols = tf.nest.map_structure(lambda part: keras.KerasTensor(part.shape, part.dtype), x)
        outputs = model.compute_output_spec(symbols)
    except Exception:  # what is wrong with the model or the data, the first step says
        return
    if not all(layer.built for layer in model._flatten_layers(include_self=False)):
        return
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if y is not None:
        outputs = keras.tree.map_structure(
            lambda part: tf.TensorSpec(part.shape, part.dtype), outputs
        )
        # The trace makes the variables, and updates none.
        tf.function(model.compute_metrics).get_concrete_function(x, y, outputs, sample_weight)
