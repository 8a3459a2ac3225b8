import copy
import pickle

import keras
import numpy as np
import pytest

from proxnet_tf import LambdaSchedule, ProxCCA, linear_lambda
from proxnet_tf.callbacks import lam_variables
from proxnet_tf.checks import HasLam
from proxnet_tf.solvers import Newton
from tests.helpers.data import COMPONENTS, SIZES, shared_views

X = shared_views(16, SIZES).astype("float32")


def model_of(*layers):
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(7), *layers])
    model.compile("sgd", "mse")
    return model


@keras.saving.register_keras_serializable(package="tests")
class Ridge(HasLam, keras.layers.Layer):
    """The prox of 1/(2 lam) ||x||^2: a layer with `lam` that costs nothing to trace."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_lam(7.0)

    def call(self, x):
        return x * self.lam / (1.0 + self.lam)


def fit(model, *callbacks, **options):
    options = {"epochs": 3, "batch_size": 8, "verbose": 0} | options
    return model.fit(X, np.zeros((16, 7)), callbacks=list(callbacks), **options).history


@pytest.mark.parametrize("alpha0, k", [(0.5, 0.0), (0.1, 2.0)])
def test_linear_lambda(alpha0, k):
    schedule = linear_lambda(alpha0, k)
    assert [schedule(t) for t in range(4)] == [(1 + k * t) * alpha0 for t in range(4)]
    assert pickle.loads(pickle.dumps(schedule))(3) == schedule(3)


@pytest.mark.parametrize(
    "arguments, message",
    [((0.0, 1.0), "`alpha0` must be .* > 0.*0.0"), ((1.0, -0.5), "`k` must be .* >= 0.*-0.5")],
)
def test_bad_linear_lambda(arguments, message):
    with pytest.raises(ValueError, match=message):
        linear_lambda(*arguments)


def test_sets_lam_before_the_batches_and_logs_it():
    layer, seen = ProxCCA(COMPONENTS, lam=7.0, split=SIZES, solver=Newton(jit_compile=False)), []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(layer.lam))
    )
    history = fit(model_of(layer), LambdaSchedule(linear_lambda(0.5, 1.0)), watch)
    assert history["lam"] == [0.5, 1.0, 1.5]
    assert seen == [0.5, 0.5, 1.0, 1.0, 1.5, 1.5]  # two batches an epoch


def test_drives_all_layers_in_nested_models():
    layers = [Ridge(), Ridge(), Ridge()]
    inner = keras.Sequential([keras.Input((7,)), layers[0], keras.layers.Dense(7)])
    middle = keras.Sequential([keras.Input((7,)), inner, layers[1]])
    model = model_of(middle, layers[2])
    assert len(lam_variables(model)) == 3
    fit(model, LambdaSchedule(linear_lambda(0.5, 1.0)), epochs=2)
    assert [float(layer.lam) for layer in layers] == [1.0] * 3


def test_drives_a_subclassed_model():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(7)
            self.proxes = [Ridge()]

        def call(self, x, training=False):
            return self.proxes[0](self.dense(x), training=training)

    model = Model()
    model.compile("sgd", "mse")
    fit(model, LambdaSchedule(linear_lambda(0.5, 1.0)))
    assert float(model.proxes[0].lam) == 1.5


def test_a_deep_copy_drives_the_model_it_is_fitted_with():
    first, second = Ridge(), Ridge()
    callback = LambdaSchedule(linear_lambda(0.5, 1.0))
    early = copy.deepcopy(callback)
    fit(model_of(first), callback, epochs=1)
    late = copy.deepcopy(callback)  # holds the first model, too
    for duplicate, expected in ((early, 0.5), (late, 1.0)):
        history = fit(model_of(second), duplicate, initial_epoch=int(expected), epochs=2)
        assert history["lam"][0] == 0.5 + 0.5 * int(expected)
    assert float(second.lam) == 1.0
    assert float(first.lam) == 0.5


def test_initial_epoch_continues_the_schedule():
    layer = Ridge()
    history = fit(
        model_of(layer), LambdaSchedule(linear_lambda(0.5, 1.0)), initial_epoch=4, epochs=6
    )
    assert history["lam"] == [2.5, 3.0]


def test_early_stopping_and_checkpoints_keep_the_lam_of_the_best_epoch(tmp_path):
    model, path, best = (
        model_of(Ridge()),
        tmp_path / "best.keras",
        {"monitor": "lam", "mode": "min"},
    )
    stop = keras.callbacks.EarlyStopping(**best, patience=1, restore_best_weights=True)
    kept = keras.callbacks.ModelCheckpoint(path, **best, save_best_only=True)
    history = fit(model, LambdaSchedule(linear_lambda(0.5, 1.0)), stop, kept)
    assert history["lam"] == [0.5, 1.0]  # it stopped after the second epoch
    assert [float(m.layers[-1].lam) for m in (model, keras.saving.load_model(path))] == [0.5] * 2


@pytest.mark.parametrize("verbose", [0, 1])
def test_verbose(verbose, capsys):
    fit(model_of(Ridge()), LambdaSchedule(linear_lambda(0.5, 1.0), verbose=verbose), epochs=2)
    printed = capsys.readouterr().out
    assert ("Epoch 2: LambdaSchedule sets lam to 1." in printed) == bool(verbose)


@pytest.mark.parametrize("schedule", [0.5, None, "linear"])
def test_schedule_must_be_callable(schedule):
    with pytest.raises(ValueError, match=r"must be a callable.*Received: schedule="):
        LambdaSchedule(schedule)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), None, "big"])
def test_schedule_must_return_a_positive_number(value):
    layer = Ridge()
    callback = LambdaSchedule(lambda epoch: value if epoch else 1.0)
    with pytest.raises(ValueError, match=r"finite number > 0. Received .* for epoch 1"):
        fit(model_of(layer), callback, epochs=2)
    assert float(layer.lam) == 1.0


def test_model_without_lam():
    with pytest.raises(ValueError, match="found no layer with a variable `lam`"):
        fit(model_of(), LambdaSchedule(linear_lambda(0.5, 1.0)))
