"""What every layer that takes views shares."""

from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.layers.multiview.views import Border
from proxnet_tf.ops.multiview.correlation import Correlation


class MultiviewLayer(keras.layers.Layer):
    """A layer from views to views of the same structure and shapes.

    Args:
        border: checks the views, and converts them to rows and back.
        **kwargs: of `keras.layers.Layer`.
    """

    num_components: int | None
    epsilon: float
    split: tuple[int, ...] | None
    nan_is_missing: bool
    synchronized: bool

    def __init__(self, border: Border, **kwargs: Any):
        super().__init__(**kwargs)
        self.border = border
        for name, value in border.get_config().items():  # the arguments, as attributes
            setattr(self, name, value)
        self.correlation: Correlation | None = None  # known once built
        self.supports_masking = True
        self.supports_jit = False  # eigh and svd have no good XLA kernels

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for x in keras.tree.flatten(args):
            if "float" in str(getattr(x, "dtype", "")):  # neither `training` nor a mask
                raise ValueError(
                    f"{type(self).__name__} takes its views as one argument: pass "
                    f"layer([x, y]), not layer(x, y). Received {1 + len(args)} positional "
                    "arguments."
                )
        if any(x is None for x in keras.tree.flatten(inputs)):
            raise ValueError(
                f"{type(self).__name__} takes a tensor for each view. Received None in place of "
                "one. `mask=` says which rows lack a view, or NaN with `nan_is_missing=True`."
            )
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: Any) -> None:
        self.correlation = self.border.correlation_of(input_shape)
        self.built = True

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.border.check(inputs, self.correlation)  # Keras does not run `call` on symbolic inputs
        return super().compute_output_spec(inputs, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    @property
    def _losses(self) -> list[Any]:
        """What `add_loss` was given, where Keras keeps it: here a list for each replica.

        The replicas of a strategy share the layer and take turns inside `call` when they exchange
        sums. With one list, one replica would find or clear the loss of another.
        """
        replica = tf.distribute.get_replica_context()
        index = tf.get_static_value(replica.replica_id_in_sync_group) if replica else 0
        return self.__dict__.setdefault("_losses_of_replicas", {}).setdefault(int(index or 0), [])

    @_losses.setter
    def _losses(self, losses: list[Any]) -> None:
        self._losses[:] = losses

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.border.get_config()}
