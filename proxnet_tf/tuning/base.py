"""What the HyperModels share: lam, optimizer, batch size, and the checks of a trial."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import keras_tuner

from proxnet_tf.callbacks import LambdaSchedule, linear_lambda
from proxnet_tf.checks import check_integer


class ProxHyperModel(keras_tuner.HyperModel):
    """A search over lam, optimizer and batch size; subclasses build the model."""

    _scheduled = True

    def __init__(self, num_classes: int, encoder: Callable | None, name: str | None = None):
        super().__init__(name=name)
        self.num_classes = check_integer("num_classes", num_classes, at_least=2)
        if encoder is not None and not callable(encoder):
            raise ValueError(
                "`encoder` must be a callable that returns a Keras layer, as the docstring has it. "
                f"Received: encoder={encoder!r}"
            )
        self.encoder = encoder

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
        with _under(hp, "alpha0", "linear"):
            alpha0 = hp.Float("alpha0", 1e-3, 10.0, sampling="log", default=0.1)
        with _under(hp, "k", "linear"):
            k = hp.Float("k", 1e-2, 1.0, sampling="log", default=0.5)
        with _under(hp, "lam", "fixed"):
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

    def _with(self, tuned: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a layer or a model: those of the search, and those that the user gave."""
        twice = tuned.keys() & given.keys()
        if twice:
            raise keras_tuner.errors.FatalValueError(
                f"The search chooses {sorted(twice)}: leave it out of the arguments of the "
                "HyperModel, and to fix it register it first, hp.Fixed(name, value)."
            )
        return {**tuned, **given}

    def _compiled(self, hp: Any, model: keras.Model) -> keras.Model:
        self.compile(hp, model)
        # So that a checkpoint restores the optimizer's state, too.
        model.optimizer.build(model.trainable_variables)
        return model

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
        parts = x if isinstance(x, list | tuple) else [x]
        if "batch_size" in kwargs or not all(hasattr(part, "shape") for part in parts):
            received = f"batch_size={kwargs.get('batch_size')}, x of the type {type(x).__name__}"
            raise keras_tuner.errors.FatalValueError(
                "The search tunes the batch size: pass arrays to `search`, and to fix the size "
                "register it first, hp.Fixed('batch_size', 100), and give the tuner "
                f"hyperparameters=hp. Received: {received}"
            )
        own: list = [CheckLogs(callbacks)]
        if self._scheduled:
            own.append(LambdaSchedule(self.schedule(hp)))
        return self._train(hp, model, x, *args, callbacks=[*own, *callbacks], **kwargs)

    def _train(
        self, hp: Any, model: keras.Model, x: Any, *args: Any, **kwargs: Any
    ) -> keras.callbacks.History:
        return model.fit(x, *args, batch_size=self.batch_size(hp), **kwargs)


class CheckLogs(keras.callbacks.Callback):
    """Marks a trial failed if a loss is not finite; ends the search if its objective is missing.

    Args:
        callbacks: those of the search; KerasTuner's own knows the objective.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback] = ()):
        super().__init__()
        objectives = [getattr(callback, "objective", None) for callback in callbacks]
        objectives = [each for each in objectives if isinstance(each, keras_tuner.Objective)]
        self.wanted = [
            part.name for each in objectives for part in getattr(each, "objectives", [each])
        ]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        for name in ("loss", "val_loss"):
            value = logs.get(name, 0.0)
            if not math.isfinite(value):
                raise keras_tuner.errors.FailedTrialError(
                    f"`{name}` is {value} after epoch {epoch + 1}."
                )
        for name in self.wanted:
            if name not in logs:
                hint = ""
                if name.startswith("val_") and name[4:] in logs:
                    hint = " Pass `validation_data` to `search`."
                raise keras_tuner.errors.FatalValueError(
                    f"The objective {name!r} is not among the metrics of this model, "
                    f"{sorted(logs)}.{hint}"
                )


def _under(hp: Any, name: str, kind: str) -> contextlib.AbstractContextManager:
    """The scope of a parameter that matters for one kind of schedule only.

    A parameter that the user registered without a condition gets none: under a condition KerasTuner
    would take the same name for another parameter.
    """
    if any(known.name == name and not known.conditions for known in hp.space):
        return contextlib.nullcontext()
    return hp.conditional_scope("lam_schedule", [kind])
