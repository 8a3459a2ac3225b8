"""KerasTuner searches: HyperModels of the multiview methods and of ProxLSTM.

The only module that needs the extra `proxnet_tf[tuner]`, and the only one that imports it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from proxnet_tf.callbacks import LambdaSchedule, linear_lambda
from proxnet_tf.checks import check_choice, check_integer
from proxnet_tf.layers.recurrent.lstm import ProxLSTM
from proxnet_tf.models import DCCA, METHODS, multiview_model

try:
    import keras_tuner
    import tensorboard  # noqa: F401  (KerasTuner imports it in every search)
except ImportError as error:
    raise ImportError(
        "proxnet_tf.tuning needs KerasTuner and TensorBoard. Install them with "
        "pip install 'proxnet_tf[tuner]'"
    ) from error

__all__ = ["MultiviewHyperModel", "ProxLSTMHyperModel"]


class _ProxHyperModel(keras_tuner.HyperModel):
    """What the two share: lam, optimizer, batch size, and the checks of a trial."""

    _scheduled = True

    def __init__(self, num_classes: int, name: str | None = None):
        super().__init__(name=name)
        self.num_classes = check_integer("num_classes", num_classes, at_least=2)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Registers what `fit` tunes, so that the space is whole before the first trial."""
        self.batch_size(hp)
        if self._scheduled:
            self.schedule(hp)

    def batch_size(self, hp: keras_tuner.HyperParameters) -> int:
        """Rows of a mini-batch."""
        return hp.Choice("batch_size", [100, 200, 300, 400])

    def schedule(self, hp: keras_tuner.HyperParameters) -> Callable[[int], float]:
        """lam by epoch: (1 + k t) alpha0, or a constant."""
        kind = hp.Choice("lam_schedule", ["linear", "fixed"])
        with hp.conditional_scope("lam_schedule", ["linear"]):
            alpha0 = hp.Float("alpha0", 1e-3, 10.0, sampling="log", default=0.1)
            k = hp.Float("k", 1e-2, 1.0, sampling="log", default=0.5)
        with hp.conditional_scope("lam_schedule", ["fixed"]):
            lam = hp.Choice("lam", [0.001, 0.01, 0.1, 1.0, 10.0], default=0.1)
        return linear_lambda(alpha0, k) if kind == "linear" else linear_lambda(lam, 0.0)

    def optimizer(self, hp: keras_tuner.HyperParameters) -> keras.optimizers.Optimizer:
        """Adam with weight decay."""
        return keras.optimizers.Adam(
            hp.Float("learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3),
            weight_decay=hp.Float("weight_decay", 1e-6, 1e-2, sampling="log", default=1e-4),
        )

    def compile(self, hp: keras_tuner.HyperParameters, model: keras.Model) -> None:
        """Compiles a model for integer labels, with the metric "accuracy"."""
        model.compile(
            self.optimizer(hp),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # every trial would compile anew
        )

    def _compiled(self, hp: Any, model: keras.Model) -> keras.Model:
        self.compile(hp, model)
        # So that a checkpoint brings the optimizer's state back, too.
        model.optimizer.build(model.trainable_variables)
        return model

    def metric_names(self, model: keras.Model) -> set[str]:
        """Names that the training of a compiled, built model writes to the logs.

        Extend it if a callback of yours writes another one that is the objective.
        """
        config = model.get_compile_config()
        compiled = [*_names(config["metrics"]), *_names(config["weighted_metrics"])]
        return {"loss", *compiled, *(metric.name for metric in model.metrics)}

    def fit(
        self,
        hp: keras_tuner.HyperParameters,
        model: keras.Model,
        x: Any,
        *args: Any,
        callbacks: Iterable[keras.callbacks.Callback] = (),
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains a trial's model on arrays; the other arguments are those of `keras.Model.fit`."""
        callbacks = list(callbacks)
        self._check_objective(model, callbacks, kwargs)
        parts = x if isinstance(x, list | tuple) else [x]
        if "batch_size" in kwargs or not all(hasattr(part, "shape") for part in parts):
            received = f"batch_size={kwargs.get('batch_size')}, x of the type {type(x).__name__}"
            raise keras_tuner.errors.FatalValueError(
                "The search tunes the batch size: pass arrays to `search`, and to fix the size "
                "register it first, hp.Fixed('batch_size', 100), and give the tuner "
                f"hyperparameters=hp. Received: {received}"
            )
        own: list = [_FailOnNaN()]
        if self._scheduled:
            own.append(LambdaSchedule(self.schedule(hp)))
        return self._train(hp, model, x, *args, callbacks=[*own, *callbacks], **kwargs)

    def _train(
        self, hp: Any, model: keras.Model, x: Any, *args: Any, **kwargs: Any
    ) -> keras.callbacks.History:
        return model.fit(x, *args, batch_size=self.batch_size(hp), **kwargs)

    def _check_objective(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        fit_arguments: Mapping[str, Any],
    ) -> None:
        """A `ValueError` that ends the search if the logs will not hold the objective."""
        known = self.metric_names(model) - {"compile_metrics"}
        if fit_arguments.get("validation_data") is not None or "validation_split" in fit_arguments:
            known |= {f"val_{name}" for name in known}
        for callback in callbacks:  # KerasTuner's checkpoint knows the objective
            objective = getattr(callback, "objective", None)
            if not isinstance(objective, keras_tuner.Objective):
                continue
            for part in getattr(objective, "objectives", [objective]):
                if part.name not in known:
                    hint = ""
                    if part.name.startswith("val_") and part.name[4:] in known:
                        hint = " Pass `validation_data` to `search`."
                    raise keras_tuner.errors.FatalValueError(
                        f"The objective {part.name!r} is not among the metrics of this model, "
                        f"{sorted(known)}.{hint}"
                    )


class MultiviewHyperModel(_ProxHyperModel):
    """A KerasTuner search over one of the paper's multiview methods.

    Every trial builds an encoder and a predictor per view and the model of the method around
    them, compiles it with Adam, sparse cross-entropy on logits and "accuracy", and trains it. The
    search space is the paper's:

        num_components         10 .. 50, the width d of the codes
        width, depth           {256, 512, 1024, 2048} and 1 .. 4, of the hidden ReLU layers
        learning_rate          1e-4 .. 1e-2, log scale, default 1e-3
        weight_decay           1e-6 .. 1e-2, log scale, default 1e-4
        batch_size             {100, 200, 300, 400}
        lam_schedule           "linear" or "fixed" ("prox")
          alpha0, k            1e-3 .. 10 and 0.01 .. 1, log scale: lam = (1 + k t) alpha0
          lam                  {0.001, 0.01, 0.1, 1, 10}
        correlation_weight     1e-3 .. 10, log scale ("rrm")
        reconstruction_weight  1e-3 .. 10, log scale ("dccae")

    Register a hyperparameter of the same name beforehand to replace one of these (second example).

    Args:
        view_shapes: shapes of the views without the batch, such as `[(76,), (47,)]`; two or more.
        num_classes: width of the output, >= 2.
        method: "prox" (default), "rrm", "vanilla", "dcca" or "dccae". Search each on its own, so
            that all get as many trials.
        encoder: callable `(hp, view_shape, num_components)` that returns the encoder of a view as
            a new Keras layer, None (the default) is a perceptron. It may tune what it likes.
        pretrain_epochs: epochs of the first stage of "dcca" and "dccae", default 50.
        name: name of the HyperModel.
        **model_arguments: further arguments of `MultiviewClassifier`, `DCCA` or `DCCAE`, such as
            `epsilon`, `inference`, `predict_with`. `monitor` is True unless set here.

    To change more override `build_encoder`, `build_predictor`, `build_decoder`, `optimizer`,
    `compile`, `batch_size` or `schedule`.

    Searching: `search(views, labels, validation_data=(views, labels), epochs=...)`, arrays only.
    `fit` drives lam by `LambdaSchedule`; the epochs of `Hyperband` are absolute, so a trial that
    is continued continues its schedule. The checkpoint of a trial is that of its best epoch and
    holds that epoch's lam: a model of `get_best_models` has it. It matters for
    `inference="batch"` only: in training from there, drive lam again from a matching epoch.

    Objectives: "val_accuracy", "val_loss" and, with a proximal layer,
    `keras_tuner.Objective("val_correlation", "max")` (also "correlation", "correlation_before",
    "residual", "iterations"). Another name ends the search before the training starts.

    A trial whose loss is not finite is marked failed at the end of that epoch and the search goes
    on; KerasTuner stops it after `max_consecutive_failed_trials` (default 3) of them in a row.
    A search that was stopped continues when it is started again with `overwrite=False`. A
    HyperModel can be pickled and deep-copied if `encoder` can.

    Raises:
        ValueError: an unknown method, fewer than two views, a number outside its range; in a
            search, an objective that the model does not report, a batch size, or no arrays.

    Example:
        hypermodel = MultiviewHyperModel([(76,), (47,)], num_classes=10)
        tuner = keras_tuner.BayesianOptimization(hypermodel, "val_accuracy", max_trials=20)
        tuner.search([x, y], labels, epochs=30, validation_data=([x2, y2], labels2))
        model = tuner.get_best_models()[0]

    Example of another space:
        hp = keras_tuner.HyperParameters()
        hp.Fixed("depth", 1)
        hp.Choice("width", [64, 128])
        tuner = keras_tuner.RandomSearch(hypermodel, "val_accuracy", hyperparameters=hp)

    Reference: Li, Ma, Zhang (2020), section 6 and the appendix on hyperparameters.
    """

    def __init__(
        self,
        view_shapes: Sequence[tuple[int, ...]],
        num_classes: int,
        *,
        method: str = "prox",
        encoder: Callable | None = None,
        pretrain_epochs: int = 50,
        name: str | None = None,
        **model_arguments: Any,
    ):
        super().__init__(num_classes, name)
        ok = isinstance(view_shapes, list | tuple) and len(view_shapes) > 1
        if not ok or not all(isinstance(shape, list | tuple) for shape in view_shapes):
            raise ValueError(
                "`view_shapes` must be a list of two or more shapes without the batch, such as "
                f"[(76,), (47,)]. Received: view_shapes={view_shapes!r}"
            )
        self.view_shapes = [tuple(shape) for shape in view_shapes]
        self.method = check_choice("method", method, METHODS)
        if encoder is not None and not callable(encoder):
            raise ValueError(
                "`encoder` must be a callable (hp, view_shape, num_components) that returns a "
                f"Keras layer. Received: encoder={encoder!r}"
            )
        self.encoder = encoder
        self.pretrain_epochs = check_integer("pretrain_epochs", pretrain_epochs)
        self.model_arguments = model_arguments
        self._scheduled = method == "prox"

    def num_components(self, hp: keras_tuner.HyperParameters) -> int:
        """Width of the codes."""
        return hp.Int("num_components", 10, 50, default=20)

    def build_encoder(self, hp: keras_tuner.HyperParameters, view: int) -> keras.layers.Layer:
        """The encoder of the view with this index."""
        if self.encoder is not None:
            return self.encoder(hp, self.view_shapes[view], self.num_components(hp))
        return _perceptron(hp, self.num_components(hp))

    def build_predictor(self, hp: keras_tuner.HyperParameters, view: int) -> keras.layers.Layer:
        """The layer from the code of the view with this index to the logits."""
        return keras.layers.Dense(self.num_classes)

    def build_decoder(self, hp: keras_tuner.HyperParameters, view: int) -> keras.layers.Layer:
        """The decoder ("dccae") of the view with this index."""
        shape = self.view_shapes[view]
        return keras.Sequential(
            [_perceptron(hp, math.prod(shape)), keras.layers.Reshape(shape)], name=f"decoder_{view}"
        )

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The compiled model of a trial."""
        views = range(len(self.view_shapes))
        encoders = [self.build_encoder(hp, j) for j in views]
        predictors = [self.build_predictor(hp, j) for j in views]
        tuned: dict = {}
        if self.method == "dccae":
            tuned["decoders"] = [self.build_decoder(hp, j) for j in views]
            tuned["reconstruction_weight"] = _weight(hp, "reconstruction_weight")
        elif self.method == "rrm":
            tuned["correlation_weight"] = _weight(hp, "correlation_weight")
        elif self.method == "prox":
            tuned["lam"] = self.schedule(hp)(0)
        if len(views) > 2 and self.method != "vanilla":
            tuned["num_components"] = self.num_components(hp)
        twice = tuned.keys() & self.model_arguments.keys()
        if twice:
            raise keras_tuner.errors.FatalValueError(
                f"The search chooses {sorted(twice)}: leave it out of the arguments of the "
                "HyperModel, and to fix it register it first, hp.Fixed(name, value)."
            )
        tuned |= self.model_arguments
        if self.method == "prox":
            tuned.setdefault("monitor", True)
        model = multiview_model(self.method, encoders, predictors, **tuned)
        model.build([(None, *shape) for shape in self.view_shapes])
        return self._compiled(hp, model)

    def _train(
        self, hp: Any, model: keras.Model, x: Any, *args: Any, **kwargs: Any
    ) -> keras.callbacks.History:
        # A trial that Hyperband continues comes with its weights.
        if isinstance(model, DCCA) and not float(model.pretrained):
            model.pretrain(
                x,
                optimizer=self.optimizer(hp),
                epochs=self.pretrain_epochs,
                batch_size=self.batch_size(hp),
                verbose=kwargs.get("verbose", "auto"),
                callbacks=[_FailOnNaN()],
            )
        return super()._train(hp, model, x, *args, **kwargs)


class ProxLSTMHyperModel(_ProxHyperModel):
    """A KerasTuner search over a network with `ProxLSTM`, for sequence classification.

    The network is the paper's: Conv1D, ProxLSTM, Dense. Steps whose features are all 0 are padding
    and masked. The search space:

        filters, kernel_size     {32, 64} and {3, 8}, of Conv1D
        units                    {64, 128}, of ProxLSTM
        delta                    0.1 .. 10, log scale, default 1
        lam_schedule, alpha0, k, lam, learning_rate, weight_decay, batch_size
                                 as in `MultiviewHyperModel`

    Args:
        input_shape: `(timesteps, features)`, timesteps may be None.
        num_classes: width of the output, >= 2.
        encoder: callable `(hp, input_shape)` that returns the layer before ProxLSTM, from
            `(batch, timesteps, features)` to the same number of steps, as a new Keras layer; None
            (the default) is Conv1D.
        name: name of the HyperModel.
        **layer_arguments: further arguments of `ProxLSTM`, such as `output_from_prox` or
            `jit_compile`.

    Objectives, failed trials, resuming and the rest are as in `MultiviewHyperModel`.

    Raises:
        ValueError: as `MultiviewHyperModel`; an input shape that is not (timesteps, features).

    Example:
        hypermodel = ProxLSTMHyperModel((29, 12), num_classes=9)
        tuner = keras_tuner.Hyperband(hypermodel, "val_accuracy", max_epochs=50)
        tuner.search(x, labels, validation_data=(x2, labels2))

    Reference: Li, Ma, Zhang (2020), section 6 and the appendix on the experiments.
    """

    def __init__(
        self,
        input_shape: tuple[int | None, int],
        num_classes: int,
        *,
        encoder: Callable | None = None,
        name: str | None = None,
        **layer_arguments: Any,
    ):
        super().__init__(num_classes, name)
        if not isinstance(input_shape, list | tuple) or len(input_shape) != 2:
            raise ValueError(
                "`input_shape` must be (timesteps, features). Received: "
                f"input_shape={input_shape!r}"
            )
        if encoder is not None and not callable(encoder):
            raise ValueError(
                "`encoder` must be a callable (hp, input_shape) that returns a Keras layer. "
                f"Received: encoder={encoder!r}"
            )
        self.input_shape = tuple(input_shape)
        self.encoder = encoder
        self.layer_arguments = layer_arguments

    def build_encoder(self, hp: keras_tuner.HyperParameters) -> keras.layers.Layer:
        """The layer before ProxLSTM."""
        if self.encoder is not None:
            return self.encoder(hp, self.input_shape)
        return keras.layers.Conv1D(
            hp.Choice("filters", [32, 64]),
            hp.Choice("kernel_size", [3, 8]),
            padding="same",
            activation="relu",
        )

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The compiled model of a trial."""
        inputs = keras.Input(self.input_shape)
        mask = keras.ops.any(keras.ops.not_equal(inputs, 0.0), axis=-1)
        layer = ProxLSTM(
            hp.Choice("units", [64, 128]),
            lam=self.schedule(hp)(0),
            delta=hp.Float("delta", 0.1, 10.0, sampling="log", default=1.0),
            **self.layer_arguments,
        )
        outputs = layer(self.build_encoder(hp)(inputs), mask=mask)
        model = keras.Model(inputs, keras.layers.Dense(self.num_classes)(outputs))
        return self._compiled(hp, model)


class _FailOnNaN(keras.callbacks.Callback):
    """Marks the trial failed when a loss is not finite."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name in ("loss", "val_loss"):
            value = (logs or {}).get(name, 0.0)
            if not math.isfinite(value):
                raise keras_tuner.errors.FailedTrialError(
                    f"`{name}` is {value} after epoch {epoch + 1}."
                )


def _perceptron(hp: Any, units: int) -> keras.Sequential:
    width = hp.Choice("width", [256, 512, 1024, 2048])
    depth = hp.Int("depth", 1, 4)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([*hidden, keras.layers.Dense(units)])


def _weight(hp: Any, name: str) -> float:
    return hp.Float(name, 1e-3, 10.0, sampling="log", default=0.1)


def _names(metrics: Any) -> Iterator[str]:
    """Names of the metrics in a serialized argument of `compile`."""
    if isinstance(metrics, str):
        yield metrics
    elif isinstance(metrics, dict) and "class_name" in metrics:
        config = metrics["config"]
        yield config["name"] if isinstance(config, dict) else config
    elif isinstance(metrics, list | tuple | dict):
        for part in metrics.values() if isinstance(metrics, dict) else metrics:
            yield from _names(part)
