"""AdversarialModel: training with perturbed inputs of a named layer."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from proxnet_tf.checks import (
    at_least_float32,
    check_bool,
    check_choice,
    check_integer,
    check_number,
)
from proxnet_tf.models.base import BuiltModel, mask_of, over_last_axes, with_mask
from proxnet_tf.ops.linear.norms import polar


def normalize_per_example(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """x scaled to L2 norm 1 example by example, 0 where it is 0 or masked.

    Args:
        x: `(batch, ...)`.
        mask: Boolean `(batch, time)`, or `None`.
    """
    dtype, x = x.dtype, tf.cast(x, at_least_float32(x.dtype))
    if mask is not None:
        x = tf.where(over_last_axes(mask, x), x, tf.zeros_like(x))
    shape = tf.shape(x)
    rows = tf.reshape(x, [shape[0], tf.reduce_prod(shape[1:])])
    return tf.cast(tf.ensure_shape(tf.reshape(polar(rows).unit, shape), x.shape), dtype)


def kl_divergence(p: tf.Tensor, q: tf.Tensor, from_logits: bool) -> tf.Tensor:
    """KL(p || q) of the class probabilities on the last axis, one value for each of the others.

    A class of probability 0 in p adds 0, also where its logit is -inf in both.

    Args:
        p: `(batch, ..., classes)`, probabilities or logits.
        q: the same.
        from_logits: whether p and q are logits.
    """
    p, q = (tf.cast(t, at_least_float32(t.dtype)) for t in map(tf.convert_to_tensor, (p, q)))
    if from_logits:
        log_p, log_q = tf.nn.log_softmax(p), tf.nn.log_softmax(q)
    else:
        tiny = keras.config.epsilon()
        log_p, log_q = (tf.math.log(tf.clip_by_value(t, tiny, 1.0)) for t in (p, q))
    probability = tf.exp(log_p)
    some = probability > 0
    zero = tf.zeros_like(log_p)
    # Selected before the difference: -inf - (-inf) has no gradient either.
    difference = tf.where(some, log_p, zero) - tf.where(some, log_q, zero)
    return tf.reduce_sum(probability * difference, axis=-1)


class _Divergence(keras.losses.Loss):
    """KL(y_true || y_pred), reduced, masked and weighted as every Keras loss is."""

    def __init__(self, from_logits: bool, **kwargs: Any):
        super().__init__(name="divergence", **kwargs)
        self.from_logits = from_logits

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return kl_divergence(y_true, y_pred, self.from_logits)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class AdversarialModel(BuiltModel):
    """Trains a model on a layer's input as it is, and moved by the worst small perturbation.

    With z the input of the chosen layer, p(z) the prediction and r of norm `epsilon`,

        method="adversarial":  loss(z) + weight * loss(z + r),
                               r = epsilon g/||g||,  g = dloss/dz;
        method="virtual":      loss(z) + weight * KL(p(z) || p(z + r)),
                               r = epsilon times the direction in which the KL divergence grows
                               fastest, by power iteration.

    r is one vector an example (over time and features), zero at masked steps, and a constant for
    the gradient; so is p(z) in the second method. The divergence is averaged as the loss is: sample
    weights weight it, and the mask of the output leaves steps out. Prediction and evaluation are
    those of the model.

    Args:
        model: A functional or sequential `keras.Model` with one output.
        layer: Name of the layer whose input (of its first use) is perturbed; everything from the
            model's inputs to its output must pass through that input. `None` perturbs the model's
            only input (behind a `Masking`, which keeps its mask), which then must be dense and
            floating point. The paper perturbs the input of the LSTM.
        method: `"adversarial"` or `"virtual"`.
        epsilon: Float >= 0, the L2 norm of a perturbation.
        weight: Float >= 0, weight of the second term.
        power_iterations: Positive integer, for `method="virtual"`.
        step: Positive float, the size of the step by which power iteration differentiates.
        from_logits: Boolean, whether the model's output is logits; used by `"virtual"` only.
        seed: Integer or `None`, of the random start of the power iteration.
        **kwargs: `name`, `dtype` of a Keras model.

    Call arguments:
        inputs: Those of `model`.

    Output:
        That of `model`. In `fit`, `"loss"` is the whole objective; metrics are of the unperturbed
        predictions.

    Raises:
        ValueError: for a model that is not built or not a graph of layers, an unknown layer, a
            layer that is bypassed or has several inputs, integers or sparse numbers to be
            perturbed, a bad number.

    Example:

    >>> lstm = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.Dense(2)])
    >>> model = AdversarialModel(lstm, epsilon=0.1)
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("adam", loss)

    Reference:
        Miyato, Dai, Goodfellow (2017), "Adversarial training methods for semi-supervised text
        classification", eq. (2) to (8); the baseline AdvLSTM of Li, Ma, Zhang (2020).
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        layer: str | None = None,
        method: str = "adversarial",
        epsilon: float = 1.0,
        weight: float = 1.0,
        power_iterations: int = 1,
        step: float = 0.1,
        from_logits: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.method = check_choice("method", method, ("adversarial", "virtual"))
        self.epsilon = check_number("epsilon", epsilon, at_least=0.0)
        self.weight = check_number("weight", weight, at_least=0.0)
        self.power_iterations = check_integer("power_iterations", power_iterations)
        self.step = check_number("step", step, above=0.0)
        self.from_logits = check_bool("from_logits", from_logits)
        self.layer = layer
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.model = model
        self._parts  # noqa: B018 (a model that cannot be split is refused here)
        self.supports_masking = True
        self.build(keras.tree.map_structure(lambda x: tuple(x.shape), _inputs_of(model)))

    @functools.cached_property
    def _parts(self) -> tuple[keras.Model, keras.Model, int]:
        # Cached past Keras's `__setattr__`: the layers of the parts are those of the model.
        return _split(self.model, self.layer)

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """None: the model gives its outputs their masks."""

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.model.compute_output_shape(input_shape)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model.compute_output_spec(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        """A step of training on the whole objective, in `fit`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        front, _, _ = self._parts
        # Keras divides every loss by their number, and the gradients are added up over them.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync

        def objective(y_pred: Any) -> tf.Tensor:
            return self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)

        with tf.GradientTape() as tape:
            predict, z, mask = self._from_points(front(x, training=True), training=True)
            with tf.GradientTape() as inner:
                r = tf.zeros_like(z)
                inner.watch(r)
                y_pred = predict(r)
                loss = objective(y_pred)
                inner_loss = self.optimizer.scale_loss(loss)  # small ones vanish in 16 bits
            with tape.stop_recording():
                if self.method == "adversarial":
                    direction = normalize_per_example(inner.gradient(inner_loss, r), mask)
                else:
                    direction = self._virtual_direction(predict, y_pred, z, mask, sample_weight)
                r = self.epsilon * direction
            perturbed = predict(r)
            if self.method == "adversarial":
                penalties = tf.add_n(self.losses) if self.losses else 0.0
                extra = objective(perturbed) - penalties / replicas  # count weight decay once
            else:
                extra = self._divergence(y_pred, perturbed, sample_weight)
            total = loss + self.weight * tf.cast(extra, loss.dtype)
            scaled = self.optimizer.scale_loss(total)
        variables = self.trainable_weights
        if variables:
            gradients = tape.gradient(scaled, [v.value for v in variables])
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        for metric in self.metrics:
            if metric.name == "loss":
                size = tf.shape(tf.nest.flatten(x)[0])[0]
                metric.update_state(total * replicas, sample_weight=size)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    _known_steps = (train_step,)

    def _from_points(self, points: Any, training: bool) -> tuple[Callable, tf.Tensor, Any]:
        """The prediction as a function of the perturbation, the perturbed tensor and its mask."""
        _, back, position = self._parts
        # Keras returns one output as a tensor.
        points = [tf.convert_to_tensor(p) for p in tf.nest.flatten(points)]
        z = points[position]
        masks = [p for k, p in enumerate(points) if p.dtype == tf.bool and k != position]
        mask = masks[0] if masks else mask_of(z)

        def predict(perturbation: tf.Tensor) -> Any:
            moved = with_mask(z + perturbation, mask_of(z))
            return back([*points[:position], moved, *points[position + 1 :]], training=training)

        return predict, z, mask

    def _divergence(
        self, y_pred: Any, perturbed: Any, sample_weight: Any, reduction: str = "mean"
    ) -> tf.Tensor:
        """KL(y_pred || perturbed) with y_pred a constant, weighted and masked."""
        (target,), (output,) = tf.nest.flatten(y_pred), tf.nest.flatten(perturbed)
        if sample_weight is not None:
            (sample_weight,) = tf.nest.flatten(sample_weight)
        reduction = "sum_over_batch_size" if reduction == "mean" else reduction
        loss = _Divergence(
            self.from_logits, reduction=reduction, dtype=at_least_float32(output.dtype).name
        )
        return loss(tf.stop_gradient(target), output, sample_weight)

    def _virtual_direction(
        self, predict: Callable, y_pred: Any, z: tf.Tensor, mask: Any, sample_weight: Any = None
    ) -> tf.Tensor:
        """Power iteration from a random start, `power_iterations` steps."""
        noise = keras.random.normal(tf.shape(z), dtype=z.dtype, seed=self.seed_generator)
        direction = normalize_per_example(noise, mask)
        for _ in range(self.power_iterations):
            with tf.GradientTape() as tape:
                tape.watch(direction)
                moved = predict(self.step * direction)
                total = self._divergence(y_pred, moved, sample_weight, "sum")
            direction = normalize_per_example(tape.gradient(total, direction), mask)
        return direction

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "layer": self.layer,
            "method": self.method,
            "epsilon": self.epsilon,
            "weight": self.weight,
            "power_iterations": self.power_iterations,
            "step": self.step,
            "from_logits": self.from_logits,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "AdversarialModel":
        config = dict(config)
        model = keras.saving.deserialize_keras_object(
            config.pop("model"), custom_objects=custom_objects
        )
        return cls(model, **config)


class FromLayer(keras.Model):
    """A model from the input of a layer on, whose layers give the output its mask."""

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        return None


def _split(model: Any, layer: str | None) -> tuple[keras.Model, keras.Model, int]:
    """The model up to the input of a layer, from there on, and which input is perturbed."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not isinstance(model, keras.Model) or not inputs or not outputs:
        raise ValueError(
            "`model` must be a functional or a built sequential keras.Model (give a sequential "
            f"one a keras.Input). Received: model={model!r}"
        )
    if len(outputs) != 1:
        raise ValueError(f"`model` must have one output. Received a model with {len(outputs)}.")
    # The nodes from the inputs to the output: a layer may have others, of other models.
    by_depth = sorted(keras.Function(inputs, outputs)._nodes_by_depth.items(), reverse=True)
    nodes = [node for _, at_this_depth in by_depth for node in at_this_depth if not node.is_input]
    if layer is None:
        if len(inputs) != 1:
            raise ValueError(
                f"The model has {len(inputs)} inputs: name the `layer` whose input is perturbed. "
                "Received: layer=None"
            )
        points = inputs
        first = [node for node in nodes if any(x is inputs[0] for x in node.input_tensors)]
        # The mask is made of the input by operations that are no layers.
        first = [node for node in first if isinstance(node.operation, keras.layers.Layer)]
        if len(first) == 1 and isinstance(first[0].operation, keras.layers.Masking):
            (point,) = first[0].output_tensors
            points = [point, mask_of(point)]
    else:
        names = [part.name for part in model.layers]
        if layer not in names:
            raise ValueError(f"`layer` must be one of {names}. Received: layer={layer!r}")
        uses = [node for node in nodes if node.operation is model.get_layer(layer)]
        if not uses:
            raise ValueError(
                f"`layer` must lead to the output of the model. Received: layer={layer!r}"
            )
        points = uses[0].input_tensors  # Keras lists the mask of a recurrent layer, too
    floating = [k for k, part in enumerate(points) if tf.as_dtype(part.dtype).is_floating]
    if len(floating) > 1:
        raise ValueError(f"The layer must have one input. Received: layer={layer!r}, {points}")
    if not floating or points[floating[0]].sparse:
        what = f"sparse {points[floating[0]].dtype}" if floating else points[0].dtype
        raise ValueError(
            "Only dense floating point numbers can be perturbed. Received: "
            f"layer={layer!r}, whose input is {what}. Name a `layer` after "
            f"{'the one that takes them' if floating else 'the embedding'}."
        )
    try:
        one = isinstance(model, keras.Sequential)
        back = FromLayer(points, outputs[0] if one else model.output)
        if any(
            x._keras_history.operation in back.operations and x is not points[0] for x in inputs
        ):
            raise ValueError("an input of the model reaches its output past the layer")
    except ValueError as error:
        raise ValueError(
            "Everything between the model's inputs and its output must pass through the input of "
            f"`layer`. Received: layer={layer!r}"
        ) from error
    return keras.Model(_inputs_of(model), points), back, floating[0]


def _inputs_of(model: keras.Model) -> Any:
    """The symbolic inputs in the structure in which the model takes them."""
    # A sequential model that was never called has no `input`.
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
