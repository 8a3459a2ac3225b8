"""AdversarialModel: training with perturbed inputs of a named layer."""

import keras
import tensorflow as tf

from proxnet_tf.checks import check_bool, check_choice, check_integer, check_number


def normalize_per_example(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """x scaled to L2 norm 1 example by example, 0 where it is 0 or masked.

    Args:
        x: `(batch, ...)`.
        mask: Boolean `(batch, time)`, or `None`.
    """
    if mask is not None:
        shape = tf.concat([tf.shape(mask), tf.ones([tf.rank(x) - 2], tf.int32)], axis=0)
        x = tf.where(tf.reshape(tf.cast(mask, tf.bool), shape), x, tf.zeros_like(x))
    axes = tf.range(1, tf.rank(x))
    # Scaled first, so that the squares of small gradients do not vanish.
    x = tf.math.divide_no_nan(x, tf.reduce_max(tf.abs(x), axis=axes, keepdims=True))
    norm = tf.sqrt(tf.reduce_sum(x * x, axis=axes, keepdims=True))
    return tf.math.divide_no_nan(x, norm)


def kl_divergence(p: tf.Tensor, q: tf.Tensor, from_logits: bool) -> tf.Tensor:
    """KL(p || q) of the class probabilities on the last axis, one value an example.

    Args:
        p: `(batch, ..., classes)`, probabilities or logits.
        q: the same.
        from_logits: whether p and q are logits.
    """
    if from_logits:
        log_p, log_q = tf.nn.log_softmax(p), tf.nn.log_softmax(q)
    else:
        tiny = keras.config.epsilon()
        log_p, log_q = (tf.math.log(tf.clip_by_value(t, tiny, 1.0)) for t in (p, q))
    return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)


@keras.saving.register_keras_serializable(package="proxnet_tf")
class AdversarialModel(keras.Model):
    """Adds to a model's loss that under the worst small perturbation of a layer's input.

    With z the input of the chosen layer, p(z) the prediction and r of norm `epsilon`,

        method="adversarial":  loss(z) + weight * loss(z + r),
                               r = epsilon g/||g||,  g = dloss/dz;
        method="virtual":      loss(z) + weight * KL(p(z) || p(z + r)),
                               r = epsilon times the direction in which the KL divergence grows
                               fastest, by power iteration.

    r is one vector an example (over time and features), zero at masked steps, and a constant for
    the gradient; in the second method p(z) is one too. Prediction and evaluation are the model's.

    Args:
        model: A functional or sequential `keras.Model` with one output.
        layer: Name of the layer whose input is perturbed; everything from the model's inputs to
            its output must pass through that input. `None` perturbs the model's only input, which
            then must be floating point. The paper perturbs the input of the LSTM.
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
            layer that is bypassed or has several inputs, integers to be perturbed, a bad number.

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
        model,
        *,
        layer=None,
        method="adversarial",
        epsilon=1.0,
        weight=1.0,
        power_iterations=1,
        step=0.1,
        from_logits=False,
        seed=None,
        **kwargs,
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
        parts = _split(model, layer)
        # In a closure Keras does not list the parts as sublayers: their layers are the model's.
        self._parts = lambda: parts

    def call(self, inputs, training=None):
        return self.model(inputs, training=training)

    def build(self, input_shape=None):
        self.built = True

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        front, _, _ = self._parts()

        def objective(y_pred):
            return self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)

        with tf.GradientTape() as tape:
            points = front(x, training=True)
            predict, z, mask = self._from_points(points, training=True)
            with tf.GradientTape() as inner:
                r = tf.zeros_like(z)
                inner.watch(r)
                y_pred = predict(r)
                loss = objective(y_pred)
            with tape.stop_recording():
                if self.method == "adversarial":
                    direction = normalize_per_example(inner.gradient(loss, r), mask)
                else:
                    direction = self._virtual_direction(predict, y_pred, z, mask)
                r = self.epsilon * direction
            perturbed = predict(r)
            if self.method == "adversarial":
                penalties = tf.add_n(self.losses) if self.losses else 0.0
                extra = objective(perturbed) - penalties  # count weight decay once
            else:
                target = tf.stop_gradient(y_pred)
                divergence = kl_divergence(target, perturbed, self.from_logits)
                if sample_weight is not None:
                    divergence *= tf.cast(sample_weight, divergence.dtype)
                extra = tf.reduce_mean(divergence)
            total = loss + self.weight * extra
            scaled = self.optimizer.scale_loss(total)
        variables = self.trainable_weights
        gradients = tape.gradient(scaled, [v.value for v in variables])
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(total)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _from_points(self, points, training):
        """The prediction as a function of the perturbation, the perturbed tensor and its mask."""
        _, back, position = self._parts()
        points = [tf.convert_to_tensor(p) for p in points]
        z = points[position]
        masks = [p for p in points if p.dtype == tf.bool]

        def predict(perturbation):
            moved = [*points[:position], z + perturbation, *points[position + 1 :]]
            return back(moved, training=training)

        return predict, z, masks[0] if masks else None

    def _virtual_direction(self, predict, y_pred, z, mask):
        noise = keras.random.normal(tf.shape(z), dtype=z.dtype, seed=self.seed_generator)
        direction = normalize_per_example(noise, mask)
        for _ in range(self.power_iterations):
            with tf.GradientTape() as tape:
                tape.watch(direction)
                divergence = kl_divergence(
                    tf.stop_gradient(y_pred), predict(self.step * direction), self.from_logits
                )
                total = tf.reduce_sum(divergence)
            direction = normalize_per_example(tape.gradient(total, direction), mask)
        return direction

    def get_config(self):
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
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        model = keras.saving.deserialize_keras_object(
            config.pop("model"), custom_objects=custom_objects
        )
        return cls(model, **config)


def _split(model, layer):
    """The model up to the input of a layer, and from there on."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not isinstance(model, keras.Model) or not inputs or not outputs:
        raise ValueError(
            "`model` must be a functional or a built sequential keras.Model (give a sequential "
            f"one a keras.Input). Received: model={model!r}"
        )
    if len(outputs) != 1:
        raise ValueError(f"`model` must have one output. Received a model with {len(outputs)}.")
    if layer is None:
        if len(inputs) != 1:
            raise ValueError(
                f"The model has {len(inputs)} inputs: name the `layer` whose input is perturbed. "
                "Received: layer=None"
            )
        point = inputs[0]
    else:
        names = [part.name for part in model.layers]
        if layer not in names:
            raise ValueError(f"`layer` must be one of {names}. Received: layer={layer!r}")
        point = model.get_layer(layer).input
    points = tf.nest.flatten(point)  # Keras lists the mask of a recurrent layer as an input
    floating = [k for k, part in enumerate(points) if tf.as_dtype(part.dtype).is_floating]
    if len(floating) > 1:
        raise ValueError(f"The layer must have one input. Received: layer={layer!r}, {points}")
    if not floating:
        raise ValueError(
            f"Only floating point numbers can be perturbed. Received: layer={layer!r}, whose "
            f"input is {points[0].dtype}. Name a `layer` after the embedding."
        )
    try:
        back = keras.Model(points, outputs[0])
        given = {id(part) for part in points}
        sources = [t for t in tf.nest.flatten(model.inputs) if id(t) not in given]
        if any(t._keras_history.operation in back.operations for t in sources):
            raise ValueError("an input of the model reaches its output past the layer")
    except ValueError as error:
        raise ValueError(
            "Everything between the model's inputs and its output must pass through the input of "
            f"`layer`. Received: layer={layer!r}"
        ) from error
    if layer is None:
        return (lambda x, training: [x]), back, floating[0]
    # A sequential model that was never called has no `input`.
    source = inputs[0] if isinstance(model, keras.Sequential) else model.input
    front = keras.Model(source, points)
    return front, back, floating[0]
