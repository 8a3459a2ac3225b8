"""AdversarialModel: training with perturbed inputs of a named layer."""

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
from proxnet_tf.models.base import mask_of, over_last_axes, with_mask
from proxnet_tf.ops.linear.norms import polar


def normalize_per_example(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """x `(batch, ...)`, each example scaled to L2 norm 1; masked `(batch, time)` steps are 0."""
    dtype, x = x.dtype, tf.cast(x, at_least_float32(x.dtype))
    if mask is not None:
        x = tf.where(over_last_axes(mask, x), x, tf.zeros_like(x))
    shape = tf.shape(x)
    rows = tf.reshape(x, [shape[0], tf.reduce_prod(shape[1:])])
    return tf.cast(tf.ensure_shape(tf.reshape(polar(rows).unit, shape), x.shape), dtype)


def kl_divergence(p: tf.Tensor, q: tf.Tensor, from_logits: bool) -> tf.Tensor:
    """KL(p || q) of probabilities or logits `(batch, ..., classes)`, over the last axis.

    A class of probability 0 in p adds 0, also where its logit is -inf in both.
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
    # The selection comes before the difference: -inf - (-inf) has no gradient either.
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
class AdversarialModel(keras.Model):
    """Trains a model on a layer's input as it is, and on that input adversarially perturbed.

    With z the input of the chosen layer, p(z) the prediction and r of norm `epsilon`,

        method="adversarial":  loss(z) + weight * loss(z + r),
                               r = epsilon g/||g||,  g = dloss/dz;
        method="virtual":      loss(z) + weight * KL(p(z) || p(z + r)),
                               r = epsilon times the direction in which the KL divergence grows
                               fastest, by power iteration.

    r is one vector an example (over time and features) and zero at masked steps. The gradient takes
    r, and in the second method p(z), as a constant. The divergence is averaged as the loss is: with
    sample weights, and without steps that the mask of the output leaves out. Prediction and
    evaluation are those of the model.

    Args:
        model: A functional or sequential `keras.Model` with one output.
        layer: Name of the layer whose input (of its first use) is perturbed; everything from the
            model's inputs to its output must pass through that input. `None` perturbs the model's
            only input (or the output of a `Masking` on it, which keeps its mask). This input must
            be dense and floating point. The paper perturbs the input of the LSTM.
        method: `"adversarial"` or `"virtual"`.
        epsilon: Float >= 0, the L2 norm of a perturbation.
        weight: Float >= 0, weight of the second term.
        power_iterations: Positive integer, for `method="virtual"`.
        step: Positive float, length of the perturbation at which power iteration differentiates.
        from_logits: Boolean, whether the model's output is logits; used by `"virtual"` only.
        seed: Integer or `None`, of the random start of the power iteration.
        **kwargs: `name`, `dtype` of a Keras model.

    Call arguments:
        inputs: Those of `model`.

    Output:
        That of `model`. In `fit`, `"loss"` is the whole objective; metrics are those of the
        unperturbed predictions.

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
        # Not by Keras's `__setattr__`, which would track the layers of the model a second time.
        object.__setattr__(self, "_parts", _split(model, layer))
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        """A step of training on the whole objective, in `fit`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        # Keras divides every loss by the number of replicas, and adds up their gradients.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync

        def objective(y_pred: Any) -> tf.Tensor:
            return self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)

        with tf.GradientTape() as tape:
            predict, z, mask = self._from_points(x)
            with tf.GradientTape() as inner:
                r = tf.zeros_like(z)
                inner.watch(r)
                y_pred = predict(r)
                loss = objective(y_pred)
                inner_loss = self.optimizer.scale_loss(loss)  # small losses vanish in 16 bits
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
                extra = self._divergence(y_pred, perturbed, sample_weight, "sum_over_batch_size")
            total = loss + self.weight * tf.cast(extra, loss.dtype)
            scaled = self.optimizer.scale_loss(total)
        variables = self.trainable_weights
        if variables:
            gradients = tape.gradient(scaled, [v.value for v in variables])
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        rows = tf.shape(tf.nest.flatten(x)[0])[0]
        self._loss_tracker.update_state(total * replicas, sample_weight=rows)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _from_points(self, x: Any) -> tuple[Callable, tf.Tensor, Any]:
        """The prediction as a function of the perturbation, the perturbed tensor and its mask."""
        front, back = self._parts
        z, *others = (tf.convert_to_tensor(p) for p in tf.nest.flatten(front(x, training=True)))
        masks = [p for p in others if p.dtype == tf.bool]
        mask = masks[0] if masks else mask_of(z)

        def predict(perturbation: tf.Tensor) -> Any:
            return back([with_mask(z + perturbation, mask_of(z)), *others], training=True)

        return predict, z, mask

    def _divergence(self, y_pred: Any, perturbed: Any, weight: Any, reduction: str) -> tf.Tensor:
        """KL(y_pred || perturbed) with y_pred a constant, weighted and masked."""
        (target,), (output,) = tf.nest.flatten(y_pred), tf.nest.flatten(perturbed)
        weight = weight if weight is None else tf.nest.flatten(weight)[0]
        dtype = at_least_float32(output.dtype).name
        loss = _Divergence(self.from_logits, reduction=reduction, dtype=dtype)
        return loss(tf.stop_gradient(target), output, weight)

    def _virtual_direction(
        self, predict: Callable, y_pred: Any, z: tf.Tensor, mask: Any, sample_weight: Any
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

    def export(self, filepath: Any, **kwargs: Any) -> None:
        """Exports the wrapped model, see `keras.Model.export`: only training perturbs."""
        self.model.export(filepath, **kwargs)

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
    def from_config(cls, config: dict[str, Any]) -> "AdversarialModel":
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("model")), **config)


class FromLayer(keras.Model):
    """The model from the input of a layer on; its layers give the output its mask."""

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        return None


def _split(model: Any, layer: str | None) -> tuple[keras.Model, keras.Model]:
    """Splits a model at the input of a layer; the first part returns the perturbed tensor first."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not isinstance(model, keras.Model) or not inputs or not outputs:
        raise ValueError(
            "`model` must be a functional or a built sequential keras.Model (give a sequential "
            f"one a keras.Input). Received: model={model!r}"
        )
    if len(outputs) != 1:
        raise ValueError(f"`model` must have one output. Received a model with {len(outputs)}.")
    # The nodes from the inputs to the output; other nodes of a layer belong to other models.
    by_depth = sorted(keras.Function(inputs, outputs)._nodes_by_depth.items(), reverse=True)
    nodes = [node for _, at_this_depth in by_depth for node in at_this_depth if not node.is_input]
    if layer is None:
        if len(inputs) != 1:
            raise ValueError(
                f"The model has {len(inputs)} inputs: name the `layer` whose input is perturbed. "
                "Received: layer=None"
            )
        points = inputs
        for node in nodes:
            first = node.input_tensors[0] is inputs[0]
            if first and isinstance(node.operation, keras.layers.Masking):
                points = [node.output_tensors[0], mask_of(node.output_tensors[0])]
    else:
        uses = [node for node in nodes if node.operation.name == layer]
        if not uses:
            names = [part.name for part in model.layers]
            raise ValueError(f"`layer` must be one of {names}. Received: layer={layer!r}")
        points = uses[0].input_tensors  # Keras lists the mask of a recurrent layer, too
    floating = [part for part in points if tf.as_dtype(part.dtype).is_floating]
    if len(floating) > 1:
        raise ValueError(f"The layer must have one input. Received: layer={layer!r}, {points}")
    if not floating or floating[0].sparse:
        raise ValueError(
            "Only dense floating point numbers can be perturbed. Received: "
            f"layer={layer!r}, whose input is {points[0]}. Name a `layer` after the one that takes "
            "them, such as an embedding."
        )
    points = [*floating, *(part for part in points if part is not floating[0])]
    try:
        # A sequential model that was never called has neither `input` nor `output`.
        one = isinstance(model, keras.Sequential)
        front = keras.Model(inputs[0] if one else model.input, points)
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
    return front, back
