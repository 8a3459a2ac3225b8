"""Losses and metrics as Keras uses them: compiled, saved, in every dtype, over batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import CanonicalCorrelation
from tests.helpers.layer_checks import assert_finite, assert_same, policy, same_config
from tests.helpers.registry import CONFIGURED, PAIR, TRIPLE

LOSSES = {"CCALoss": PAIR, "GCCALoss": TRIPLE}
METRICS = {"CanonicalCorrelation": PAIR, "RecallAtK": PAIR[:, 1:]}
TARGET = np.zeros((len(PAIR), 1), "float32")


def dense(width, *losses, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width)])
    model.compile("sgd", *losses, **({"jit_compile": False} | compiled))
    return model


@pytest.mark.parametrize("name", ["CCALoss", pytest.param("GCCALoss", marks=pytest.mark.slow)])
def test_losses_survive_saving_and_train(name, tmp_path):
    x = LOSSES[name]
    model = dense(x.shape[1], CONFIGURED[name]())
    before = model.evaluate(x, TARGET, verbose=0)
    np.testing.assert_allclose(before, CONFIGURED[name]()(TARGET, model(x)), rtol=1e-4)
    model.fit(x, TARGET, epochs=3, batch_size=len(x), verbose=0)
    after = model.evaluate(x, TARGET, verbose=0)
    assert after < before
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    same_config(reloaded.loss, model.loss)
    np.testing.assert_allclose(reloaded.evaluate(x, TARGET, verbose=0), after, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", LOSSES)
def test_dtype_of_a_loss_is_that_of_its_result(name, dtype):
    x = LOSSES[name]
    config = CONFIGURED[name]().get_config() | {"dtype": dtype}
    loss = type(CONFIGURED[name]()).from_config(config)
    with tf.GradientTape() as tape:
        rows = tf.constant(x)
        tape.watch(rows)
        value = loss(TARGET, rows)
    assert keras.backend.standardize_dtype(value.dtype) == dtype
    assert tape.gradient(value, rows).dtype == rows.dtype
    wanted = type(loss).from_config(config | {"dtype": "float64"})(TARGET, x.astype("float64"))
    tolerance = {"float32": 1e-5, "float64": 1e-6, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    np.testing.assert_allclose(np.float64(value), wanted, rtol=tolerance)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_small_batches_are_finite(name, rows):
    x = LOSSES[name]
    assert_finite(CONFIGURED[name]()(TARGET[:rows], x[:rows]))


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_train_under_every_policy(name, dtype):
    x = LOSSES[name]
    with policy(dtype):
        model = dense(x.shape[1], CONFIGURED[name](), run_eagerly=True)
        history = model.fit(x, TARGET, epochs=2, verbose=0, batch_size=len(x)).history["loss"]
    assert_finite([*history, *model.weights])
    assert history[1] < history[0]


@pytest.mark.parametrize("name", METRICS)
def test_metric_is_that_of_the_epoch_and_survives_saving(name, tmp_path):
    make, x = CONFIGURED[name], METRICS[name]
    whole = make()
    whole.update_state(TARGET, x)
    parts = make()
    for _ in range(2):  # the second time after a reset
        parts.reset_state()
        for rows in np.split(np.arange(len(x)), [1, 5]):
            parts.update_state(TARGET[rows], x[rows])
        assert_same(parts.result(), whole.result())
    assert_same(type(whole).from_config(whole.get_config())(TARGET, x), whole.result())
    assert_same(make()(TARGET, x), whole.result())

    model = dense(x.shape[1], "mse", metrics=[make()])
    target = np.zeros_like(x)
    first = model.evaluate(x, target, batch_size=5, verbose=0, return_dict=True)
    again = make()(target, model(x))
    np.testing.assert_allclose(first["agreement"], again, rtol=1e-4)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    second = reloaded.evaluate(x, target, batch_size=5, verbose=0, return_dict=True)
    assert second == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("name", METRICS)
def test_two_metrics_in_one_model(name):
    names = ("one", "other")
    kind, split = type(CONFIGURED[name]()), CONFIGURED[name]().get_config()["split"]
    sizes = (1, 2) if kind is CanonicalCorrelation else (3, 9)
    metrics = [kind(k, split=split, name=name) for k, name in zip(sizes, names, strict=True)]
    model = dense(sum(split), "mse", metrics=metrics)
    found = model.evaluate(METRICS[name], np.zeros_like(METRICS[name]), verbose=0, return_dict=True)
    assert found["other"] > found["one"] > 0
    paths = [v.path for v in model.variables] + [v.path for m in metrics for v in m.variables]
    assert len(set(paths)) == len(paths), paths
    model.get_state_tree()
