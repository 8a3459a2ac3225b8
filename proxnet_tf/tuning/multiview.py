"""The search over the multiview methods."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import keras_tuner

from proxnet_tf.checks import check_choice, check_integer
from proxnet_tf.layers.multiview.penalty import CCARegularizer, GCCARegularizer
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.models import DCCA, DCCAE, MultiviewClassifier
from proxnet_tf.tuning.base import CheckLogs, ProxHyperModel

METHODS = ("vanilla", "rrm", "prox", "dcca", "dccae")


class MultiviewHyperModel(ProxHyperModel):
    """A KerasTuner search over one of the paper's multiview methods.

    Every trial builds an encoder and a predictor per view and the model of the method around
    them, compiles it with Adam, sparse cross-entropy on logits and "accuracy", and trains it. The
    search space is the paper's, and `weight`:

        num_components         10 .. 50, the width d of the codes
        width, depth           {256, 512, 1024, 2048} and 1 .. 4, of the hidden ReLU layers
        learning_rate          1e-4 .. 1e-2, log scale, default 1e-3
        weight_decay           1e-6 .. 1e-2, log scale, default 1e-4
        batch_size             {100, 200, 300, 400}
        lam_schedule           "linear" or "fixed" ("prox")
          alpha0, k            1e-3 .. 10 and 0.01 .. 1, log scale: lam = (1 + k t) alpha0
          lam                  {0.001, 0.01, 0.1, 1, 10}
        weight                 {0, 0.01, 0.1, 1}, default 0.1 ("prox"); 0 is the paper's layer
        correlation_weight     1e-3 .. 10, log scale ("rrm")
        reconstruction_weight  1e-3 .. 10, log scale ("dccae")

    Register a hyperparameter of the same name beforehand to replace one of these (second example).

    Args:
        view_shapes: shapes of the views without the batch, such as `[(76,), (47,)]`; two or more.
        num_classes: width of the output, >= 2.
        method: "prox" (default, `ProxCCA` between codes and predictors), "rrm" (`CCARegularizer`),
            "vanilla" (no layer between), "dcca" or "dccae". For more than two views the layers are
            `ProxGCCA` and `GCCARegularizer`. Search each method on its own, so that all get as
            many trials.
        encoder: callable `(hp, view_shape, num_components)` that returns the encoder of a view as
            a new Keras layer, None (the default) is a perceptron. It may tune what it likes.
        pretrain_epochs: epochs of the first stage of "dcca" and "dccae", default 50.
        name: name of the HyperModel.
        **arguments: `predict_with` and `nan_is_missing` of the model, and further arguments of the
            layer between, such as `epsilon` or `inference`; for "dcca" and "dccae" all are of
            `DCCA` or `DCCAE`. `monitor` of `ProxCCA` is True unless set here.

    To change more override `build_encoder`, `build_predictor`, `build_decoder`, `build_between`,
    `optimizer`, `compile`, `batch_size` or `schedule`.

    Searching: `search(views, labels, validation_data=(views, labels), epochs=...)`, arrays only.
    `fit` sets lam by `LambdaSchedule`. `Hyperband` counts epochs absolutely, so a trial that it
    continues also continues its schedule. The checkpoint of a trial is that of its best epoch, and
    a model of `get_best_models` has that epoch's lam, which matters for `inference="batch"` only.
    To train such a model further, set lam by a schedule from a matching epoch on.

    Objectives: "val_accuracy", "val_loss" and, with a proximal layer,
    `keras_tuner.Objective("val_correlation", "max")` (also "correlation", "correlation_before",
    "unsolved"; more with `monitor="all"`). Another name ends the search after the first epoch.

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
        **arguments: Any,
    ):
        super().__init__(num_classes, encoder, name)
        ok = isinstance(view_shapes, list | tuple) and len(view_shapes) > 1
        if not ok or not all(isinstance(shape, list | tuple) for shape in view_shapes):
            raise ValueError(
                "`view_shapes` must be a list of two or more shapes without the batch, such as "
                f"[(76,), (47,)]. Received: view_shapes={view_shapes!r}"
            )
        self.view_shapes = [
            tuple(check_integer(f"view_shapes[{j}][{i}]", size) for i, size in enumerate(shape))
            for j, shape in enumerate(view_shapes)
        ]
        self.method = check_choice("method", method, METHODS)
        self.pretrain_epochs = check_integer("pretrain_epochs", pretrain_epochs)
        self.arguments = arguments
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

    def build_between(
        self, hp: keras_tuner.HyperParameters, **arguments: Any
    ) -> list[keras.layers.Layer]:
        """The layers between codes and predictors; `arguments` are those of the user."""
        two = len(self.view_shapes) == 2
        tuned: dict = {} if two else {"num_components": self.num_components(hp)}
        if self.method == "rrm":
            tuned["weight"] = _weight(hp, "correlation_weight")
            regularizer = CCARegularizer if two else GCCARegularizer
            return [regularizer(**self._with(tuned, arguments))]
        tuned["lam"] = self.schedule(hp)(0)
        tuned["weight"] = hp.Choice("weight", [0.0, 0.01, 0.1, 1.0], default=0.1)
        prox = ProxCCA if two else ProxGCCA
        return [prox(**self._with(tuned, {"monitor": True, **arguments}))]

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """The compiled model of a trial."""
        views = range(len(self.view_shapes))
        tuned: dict = {
            "encoders": [self.build_encoder(hp, j) for j in views],
            "predictors": [self.build_predictor(hp, j) for j in views],
        }
        given = dict(self.arguments)
        kind: Any = MultiviewClassifier
        if self.method in ("dcca", "dccae"):
            kind = DCCA if self.method == "dcca" else DCCAE
            if len(views) > 2:
                tuned["num_components"] = self.num_components(hp)
        if self.method == "dccae":
            tuned["decoders"] = [self.build_decoder(hp, j) for j in views]
            tuned["reconstruction_weight"] = _weight(hp, "reconstruction_weight")
        if self.method in ("rrm", "prox"):
            of_model = {"predict_with", "nan_is_missing"} & given.keys()
            own = {name: given.pop(name) for name in of_model}
            tuned["between"], given = self.build_between(hp, **given), own
        model = kind(**self._with(tuned, given))
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
                callbacks=[CheckLogs()],
            )
        return super()._train(hp, model, x, *args, **kwargs)


def _perceptron(hp: Any, units: int) -> keras.Sequential:
    width = hp.Choice("width", [256, 512, 1024, 2048])
    depth = hp.Int("depth", 1, 4)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([*hidden, keras.layers.Dense(units)])


def _weight(hp: Any, name: str) -> float:
    return hp.Float(name, 1e-3, 10.0, sampling="log", default=0.1)
