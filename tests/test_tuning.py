"""Searches with KerasTuner: the default space, lam in a trial, failures, resuming."""

import copy
import importlib
import json
import pickle
import sys

import keras
import keras_tuner
import numpy as np
import pytest
from keras.layers import Dense

from proxnet_tf import linear_lambda
from proxnet_tf.solvers import Newton
from proxnet_tf.tuning import MultiviewHyperModel, ProxLSTMHyperModel
from proxnet_tf.tuning.multiview import METHODS
from tests.helpers.data import shared_views
from tests.test_callbacks import Ridge

# KerasTuner asks for the name of its thread the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:currentThread:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:getName:DeprecationWarning"),
]

SHAPES = [(5,), (4,)]
ROWS = shared_views(120, (5, 4)).astype("float32")
X = [ROWS[:, :5], ROWS[:, 5:]]
Y = (X[0][:, 0] > 0).astype("int64")
FIT = {"validation_data": (X, Y), "verbose": 0}


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def small_encoder(hp, view_shape, num_components):
    return keras.Sequential([Dense(hp.Choice("width", [8, 16]), "tanh"), Dense(3)])


class Small(MultiviewHyperModel):
    """Run eagerly, to be quick."""

    def __init__(self, method="prox", **options):
        options = {"encoder": small_encoder, "pretrain_epochs": 2} | options
        if method == "prox":
            options["solver"] = Newton(jit_compile=False)
        super().__init__(SHAPES, 2, method=method, **options)

    def compile(self, hp, model):
        super().compile(hp, model)
        model.run_eagerly = True


class Cheap(Small):
    """A model of the user's own, with a layer that has lam."""

    def build(self, hp):
        views = [keras.Input(shape) for shape in SHAPES]
        joined = Ridge()(keras.layers.Concatenate()(views))
        return self._compiled(hp, keras.Model(views, Dense(2)(joined)))


def tuner_of(cls, hypermodel, tmp_path, objective="val_accuracy", **options):
    options = {"directory": tmp_path, "project_name": "search", "seed": 1} | options
    return cls(hypermodel, objective, **options)


def space_of(hypermodel, tmp_path):
    """The space before the first trial: name -> (default, values or range, conditions)."""
    tuner = tuner_of(keras_tuner.RandomSearch, hypermodel, tmp_path)
    space = {}
    for hp in tuner.oracle.get_space().space:
        config = hp.get_config()
        values = config.get("values") or [config["min_value"], config["max_value"]]
        parents = {c["config"]["name"]: c["config"]["values"] for c in config["conditions"]}
        space[hp.name] = (hp.default, values, config.get("sampling"), parents)
    return space


TRAINING = {
    "batch_size": (100, [100, 200, 300, 400], None, {}),
    "learning_rate": (1e-3, [1e-4, 1e-2], "log", {}),
    "weight_decay": (1e-4, [1e-6, 1e-2], "log", {}),
}
SCHEDULE = {
    "lam_schedule": ("linear", ["linear", "fixed"], None, {}),
    "alpha0": (0.1, [1e-3, 10.0], "log", {"lam_schedule": ["linear"]}),
    "k": (0.5, [1e-2, 1.0], "log", {"lam_schedule": ["linear"]}),
    "lam": (0.1, [0.001, 0.01, 0.1, 1.0, 10.0], None, {"lam_schedule": ["fixed"]}),
}
MULTIVIEW = {
    **TRAINING,
    "num_components": (20, [10, 50], "linear", {}),
    "width": (256, [256, 512, 1024, 2048], None, {}),
    "depth": (1, [1, 4], "linear", {}),
}
WEIGHT = (0.1, [1e-3, 10.0], "log", {})
OF_METHOD = {
    "vanilla": {},
    "rrm": {"correlation_weight": WEIGHT},
    "prox": SCHEDULE | {"weight": (0.1, [0.0, 0.01, 0.1, 1.0], None, {})},
    "dcca": {},
    "dccae": {"reconstruction_weight": WEIGHT},
}


@pytest.mark.parametrize("method", METHODS)
def test_default_space_of_the_multiview_methods(method, tmp_path):
    hypermodel = MultiviewHyperModel(SHAPES, 2, method=method)
    assert space_of(hypermodel, tmp_path) == MULTIVIEW | OF_METHOD[method]


def test_default_space_of_prox_lstm(tmp_path):
    assert space_of(ProxLSTMHyperModel((6, 3), 2), tmp_path) == {
        **TRAINING,
        **SCHEDULE,
        "filters": (32, [32, 64], None, {}),
        "kernel_size": (3, [3, 8], None, {}),
        "units": (64, [64, 128], None, {}),
        "delta": (1.0, [0.1, 10.0], "log", {}),
    }


def test_hyperparameters_reach_the_model(tmp_path):
    hp = keras_tuner.HyperParameters()
    chosen = {"num_components": 7, "width": 6, "depth": 3, "learning_rate": 0.25}
    for name, value in {**chosen, "weight_decay": 0.125, "lam_schedule": "fixed"}.items():
        hp.Fixed(name, value)
    hp.Fixed("lam", 3.0)
    hp.Fixed("weight", 0.01)
    options = dict(inference="moving", predict_with=1, nan_is_missing=True)
    model = MultiviewHyperModel([(5,), (4,), (3,)], 2, **options).build(hp)
    sizes = [layer.units for layer in model.encoders[1].layers]
    assert sizes == [6, 6, 6, 7]
    assert float(model.optimizer.learning_rate) == 0.25
    assert model.optimizer.weight_decay == 0.125
    (layer,) = model.between
    assert layer.get_config()["num_components"] == 7 and float(layer.lam) == 3.0
    assert layer.weight == 0.01
    assert layer.inference == "moving" and layer.monitor
    assert model.predict_with == 1 and model.nan_is_missing
    with pytest.raises(ValueError, match=r"chooses \['lam'\].*hp.Fixed"):
        MultiviewHyperModel(SHAPES, 2, lam=1.0).build(keras_tuner.HyperParameters())


def values(**chosen):
    hp = keras_tuner.HyperParameters()
    for name, value in chosen.items():
        hp.Fixed(name, value)
    return hp


MULTI = MultiviewHyperModel(SHAPES, 2)


@pytest.mark.parametrize("kind", ["linear", "fixed"])
def test_registered_parameters_of_the_schedule_replace_those_of_the_space(kind, tmp_path):
    hp = values(lam_schedule=kind, alpha0=7.0, k=0.25, lam=33.0)
    tuner = tuner_of(keras_tuner.RandomSearch, MULTI, tmp_path, hyperparameters=hp)
    trial = tuner.oracle.create_trial("tuner").hyperparameters
    schedule = MULTI.schedule(trial)
    expected = [7.0, 8.75] if kind == "linear" else [33.0, 33.0]
    assert [schedule(epoch) for epoch in range(2)] == expected
    names = [parameter.name for parameter in tuner.oracle.get_space().space]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("chosen", "initial_epoch", "expected"),
    [
        ({"alpha0": 0.5, "k": 1.0}, 0, [0.5, 1.0]),
        ({"alpha0": 0.5, "k": 1.0}, 4, [2.5, 3.0]),
        ({"lam_schedule": "fixed", "lam": 0.25}, 1, [0.25, 0.25]),
    ],
)
def test_schedule_of_a_trial(chosen, initial_epoch, expected):
    hypermodel = Cheap()
    hp = values(**chosen)
    model = hypermodel.build(hp)
    options = FIT | {"initial_epoch": initial_epoch, "epochs": initial_epoch + 2}
    history = hypermodel.fit(hp, model, X, Y, **options).history
    assert history["lam"] == expected


@pytest.mark.parametrize("method", ["vanilla", "rrm", "dccae"])
def test_every_method_trains(method):
    hypermodel, hp = Small(method), values(batch_size=60)
    model = hypermodel.build(hp)
    history = hypermodel.fit(hp, model, X, Y, epochs=1, **FIT).history
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    assert "lam" not in history
    if method == "dccae":
        weights = [w.numpy() for w in model.encoders[0].weights]
        hypermodel.fit(hp, model, X, Y, epochs=1, **FIT)  # pretrained only once
        for before, after in zip(weights, model.encoders[0].weights, strict=True):
            np.testing.assert_array_equal(before, after.numpy())


@pytest.mark.parametrize("method", ["rrm", "prox", "dcca"])
def test_three_views_have_a_common_core_as_wide_as_the_codes(method):
    hp = keras_tuner.HyperParameters()
    hp.Fixed("num_components", 12)
    model = MultiviewHyperModel([(5,), (4,), (3,)], 2, method=method).build(hp)
    owner = model.between[0] if method in ("rrm", "prox") else model
    assert owner.get_config()["num_components"] == 12
    codes = model.encode([np.ones((2, d), "float32") for d in (5, 4, 3)])
    assert [x.shape[-1] for x in codes] == [12] * 3


def test_search_restores_the_best_epoch_with_its_lam(tmp_path):
    tuner = tuner_of(
        keras_tuner.RandomSearch, Small(inference="batch"), tmp_path, max_trials=1,
        objective=keras_tuner.Objective("val_correlation", "max"),
        hyperparameters=values(batch_size=60, lam_schedule="linear"),
    )  # fmt: skip
    tuner.search(X, Y, epochs=3, **FIT)
    (trial,), (model,) = tuner.oracle.get_best_trials(), tuner.get_best_models()
    assert trial.status == "COMPLETED"
    hp = trial.hyperparameters
    lam = linear_lambda(hp["alpha0"], hp["k"])(trial.best_step)
    assert float(model.between[0].lam) == pytest.approx(lam, rel=1e-6)
    assert trial.metrics.get_best_value("lam") == pytest.approx(lam)
    measured = model.evaluate(*FIT["validation_data"], verbose=0, return_dict=True)
    assert measured["correlation"] == pytest.approx(trial.score, abs=1e-4)
    assert int(model.optimizer.iterations) == 2 * (trial.best_step + 1)


@pytest.mark.slow
def test_hyperband_continues_the_schedule(tmp_path):
    tuner = tuner_of(
        keras_tuner.Hyperband, Cheap(), tmp_path, max_epochs=2, factor=2,
        hyperparameters=values(lam_schedule="linear"),
    )  # fmt: skip
    tuner.search(X, Y, **FIT)
    continued = 0
    for trial in tuner.oracle.trials.values():
        hp = trial.hyperparameters
        first = hp["tuner/initial_epoch"]
        epoch = first + trial.best_step
        lam = linear_lambda(hp["alpha0"], hp["k"])(epoch)
        assert trial.metrics.get_best_value("lam") == pytest.approx(lam)
        continued += first > 0
    assert continued


@pytest.mark.slow
def test_continued_multiview_trial_keeps_weights_and_optimizer(tmp_path):
    hp = values()
    hypermodel = Small(inference="moving")
    first, second = hypermodel.build(hp), hypermodel.build(hp)
    hypermodel.fit(hp, first, X, Y, epochs=1, **FIT)
    first.save_weights(tmp_path / "checkpoint.weights.h5")
    second.build_from_config(json.loads(json.dumps(first.get_build_config())))  # as Hyperband does
    second.load_weights(tmp_path / "checkpoint.weights.h5")
    for a, b in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert int(second.optimizer.iterations) == 2


class Diverging(Cheap):
    def compile(self, hp, model):
        super().compile(hp, model)
        if hp.Boolean("diverge", default=True):
            model.compile("sgd", lambda y, p: keras.ops.sum(p) * np.nan, metrics=["accuracy"])


def test_a_trial_with_a_nan_loss_fails_and_the_search_goes_on(tmp_path):
    hp = keras_tuner.HyperParameters()
    hp.Boolean("diverge", default=True)
    options = {"hyperparameters": hp, "tune_new_entries": False}
    tuner = tuner_of(keras_tuner.GridSearch, Diverging(), tmp_path, **options)
    tuner.search(X, Y, epochs=2, **FIT)
    status = {t.hyperparameters["diverge"]: t for t in tuner.oracle.trials.values()}
    assert (status[True].status, status[False].status) == ("FAILED", "COMPLETED")
    assert "`loss` is nan after epoch 1" in status[True].message
    assert tuner.get_best_hyperparameters()[0]["diverge"] is False


class Interrupt(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:The optimal value found")  # of a Gaussian process on one point
def test_an_interrupted_search_resumes(tmp_path):
    def search(max_trials, *callbacks):
        tuner = tuner_of(
            keras_tuner.BayesianOptimization, Cheap(), tmp_path, max_trials=max_trials,
            num_initial_points=2,
        )  # fmt: skip
        tuner.search(X, Y, epochs=1, callbacks=list(callbacks), **FIT)
        return tuner.oracle

    before = search(1).trials["0"]
    with pytest.raises(KeyboardInterrupt):
        search(3, Interrupt())
    with open(tmp_path / "search" / "trial_1" / "trial.json") as file:
        interrupted = json.load(file)
    assert interrupted["status"] == "RUNNING"
    after = search(3)
    assert [t.status for t in after.trials.values()] == ["COMPLETED"] * 3
    assert after.trials["0"].score == before.score
    assert after.trials["1"].hyperparameters.values == interrupted["hyperparameters"]["values"]
    assert after.start_order == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        ("val_loss", {"verbose": 0}, "'val_loss' is not among .*Pass `validation_data`"),
        (keras_tuner.Objective("val_acc", "max"), FIT, r"'val_acc' is not .*'val_accuracy'"),
        (["loss", keras_tuner.Objective("lost", "min")], FIT, "'lost' is not among"),
    ],
)
def test_a_wrong_objective_ends_the_search_after_an_epoch(objective, options, message, tmp_path):
    begun = []
    watch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    tuner = tuner_of(keras_tuner.RandomSearch, Cheap(), tmp_path, objective, max_trials=2)
    with pytest.raises(ValueError, match=message):
        tuner.search(X, Y, epochs=2, callbacks=[watch], **options)
    assert begun == [0]


def test_batch_size_and_datasets_are_refused():
    hypermodel, hp = Cheap(), values()
    model = hypermodel.build(hp)
    with pytest.raises(ValueError, match=r"hp.Fixed\('batch_size', 100\).*batch_size=32"):
        hypermodel.fit(hp, model, X, Y, batch_size=32)
    with pytest.raises(ValueError, match=r"pass arrays .* x of the type generator"):
        hypermodel.fit(hp, model, (batch for batch in [(X, Y)]))


def test_pickle_and_deepcopy(tmp_path):
    hypermodel = Small()
    expected = space_of(hypermodel, tmp_path / "original")
    for name, duplicate in [
        ("pickle", pickle.loads(pickle.dumps(hypermodel))),
        ("copy", copy.deepcopy(hypermodel)),
    ]:
        assert space_of(duplicate, tmp_path / name) == expected
        assert duplicate.build.__self__ is duplicate


def test_prox_lstm_trains_and_masks_padding(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6, 3)).astype("float32")
    x[::2, 4:] = 0.0
    y = (x[:, 0, 0] > 0).astype("int64")
    hypermodel = ProxLSTMHyperModel((None, 3), 2, jit_compile=False)
    tuner = tuner_of(
        keras_tuner.RandomSearch, hypermodel, tmp_path, "accuracy", max_trials=1,
        hyperparameters=values(units=4, filters=3, kernel_size=3, lam_schedule="linear"),
    )  # fmt: skip
    tuner.search(x, y, epochs=2, verbose=0)
    (trial,), (model,) = tuner.oracle.get_best_trials(), tuner.get_best_models()
    assert trial.status == "COMPLETED"
    hp = trial.hyperparameters
    layer = next(layer for layer in model.layers if hasattr(layer, "delta"))
    assert layer.delta == hp["delta"]
    lam = linear_lambda(hp["alpha0"], hp["k"])(trial.best_step)
    assert float(layer.lam) == pytest.approx(lam, rel=1e-6)
    longer = np.concatenate([x, np.zeros((40, 5, 3), "float32")], axis=1)
    x, longer = model.predict(x, verbose=0), model.predict(longer, verbose=0)
    np.testing.assert_allclose(longer, x, atol=1e-5)


@pytest.mark.parametrize("missing", ["keras_tuner", "tensorboard"])
def test_without_keras_tuner(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "proxnet_tf.tuning")
    with pytest.raises(ImportError, match=r"pip install 'proxnet_tf\[tuner\]'"):
        importlib.import_module("proxnet_tf.tuning")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiviewHyperModel([(5,)], 2), r"`view_shapes` .*Received: .*\[\(5,\)\]"),
        (lambda: MultiviewHyperModel([5, 4], 2), "`view_shapes` must be a list of two or more"),
        (
            lambda: MultiviewHyperModel([(5,), (0,)], 2),
            r"`view_shapes\[1\]\[0\]` must be an integer",
        ),
        (lambda: MultiviewHyperModel(SHAPES, 1), "`num_classes` must be an integer >= 2"),
        (lambda: MultiviewHyperModel(SHAPES, 2, method="cca"), "`method` must be one of"),
        (lambda: MultiviewHyperModel(SHAPES, 2, encoder=3), "`encoder` must be a callable"),
        (lambda: MultiviewHyperModel(SHAPES, 2, pretrain_epochs=0), "`pretrain_epochs` must be"),
        (lambda: ProxLSTMHyperModel((5,), 2), r"`input_shape` must be \(timesteps, features\)"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_prox_lstm_search_refuses_what_it_chooses():
    hypermodel = ProxLSTMHyperModel((6, 3), 3, delta=3)
    with pytest.raises(keras_tuner.errors.FatalValueError, match=r"chooses \['delta'\]"):
        hypermodel.build(keras_tuner.HyperParameters())
