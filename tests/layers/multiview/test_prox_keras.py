"""ProxCCA and ProxGCCA as Keras layers: configuration, files, models of every form."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import ProxCCA
from proxnet_tf.solvers import LBFGS
from tests.helpers.layer_checks import check_config
from tests.layers.multiview.cases import CCA, PLAIN

pytestmark = pytest.mark.usefixtures("eager_fit")

EVERY_ARGUMENT = dict(
    lam=0.7,
    weight=0.3,
    epsilon=2e-2,
    solver=LBFGS(1e-7, 150, jit_compile=False, device="CPU:0"),
    gradient="finite_difference",
    inference="moving",
    momentum=0.9,
    monitor="views",
    nan_is_missing=True,
)


def every_argument(kind, **other):
    return kind.layer(**EVERY_ARGUMENT | {"split": kind.sizes} | other)


def test_config_holds_every_argument(kind):
    layer = every_argument(kind)
    check_config(layer, allow_default=("synchronized",))  # it needs the other gradient
    config = layer.get_config()
    assert type(layer).from_config(config).solver == EVERY_ARGUMENT["solver"]
    expected = EVERY_ARGUMENT | {"num_components": kind.k, "split": kind.sizes}
    expected["solver"] = keras.saving.serialize_keras_object(expected["solver"])
    assert {name: config[name] for name in expected} == expected
    replicas = kind.layer(synchronized=True)
    assert type(replicas).from_config(replicas.get_config()).synchronized


def test_keras_does_not_compile_the_whole_model(kind):
    model = kind.regression(kind.layer())
    assert kind.layer().supports_jit is False and model.jit_compile is False
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)


@pytest.mark.parametrize("path", ["model.keras", "all.weights.h5"])
def test_files_keep_a_changed_lam_and_the_moving_weights(kind, path, tmp_path):
    def make():
        return kind.regression(kind.layer(lam=1.0, inference="moving", momentum=0.5))

    model, views = make(), kind.views(24)
    (layer,) = [item for item in model.layers if isinstance(item, kind.cls)]
    model.fit(views, np.zeros((24, 1)), verbose=0)
    layer.lam = 0.25
    if path.endswith("keras"):
        model.save(tmp_path / path)
        reloaded = keras.saving.load_model(tmp_path / path)  # without custom_objects
    else:
        model.save_weights(tmp_path / path)
        reloaded = make()
        reloaded.load_weights(tmp_path / path)
    (copy,) = [item for item in reloaded.layers if isinstance(item, kind.cls)]
    assert float(copy.lam) == 0.25 and copy.get_config()["lam"] == 1.0
    assert np.abs(np.asarray(copy.moving_map) - np.eye(sum(kind.sizes))).max() > 1e-2
    for a, b in zip(copy.weights, layer.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    for training in (False, True):
        both = (m(views, training=training) for m in (reloaded, model))
        np.testing.assert_allclose(*both, atol=1e-5)


@pytest.mark.in_graph
def test_fit_evaluate_and_predict(kind):
    rng = np.random.default_rng(0)
    views = kind.views(46)  # batches of 20, 20 and 6 rows: fewer than columns
    target = rng.normal(size=(46, 1)).astype("float32")
    model = kind.regression(kind.layer(lam=2.0, inference="batch"))
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(views, target, batch_size=20, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    changed = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert sum(c > 0 for c in changed) == len(model.trainable_weights)
    predicted = model.predict(views, batch_size=20, verbose=0)
    parts = [model([v[i : i + 20] for v in views]) for i in (0, 20, 40)]
    np.testing.assert_allclose(predicted, np.concatenate(parts), atol=1e-4)
    loss = model.evaluate(views, target, batch_size=20, verbose=0)
    np.testing.assert_allclose(loss, np.mean((predicted - target) ** 2), rtol=1e-4)


def test_sequential_model(kind):
    layer = kind.layer(lam=2.0, split=kind.sizes)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(sum(kind.sizes)), layer])
    x = np.random.default_rng(1).normal(size=(24, 5)).astype("float32")
    codes = model.layers[0](x).numpy()
    np.testing.assert_allclose(model(x, training=True), kind.expected(codes, 2.0), atol=2e-5)
    np.testing.assert_array_equal(model(x, training=False), codes)


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    """Two layers of a kind in a row, the second on all views side by side."""

    def __init__(self, first, second, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = first, second
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        joined = keras.ops.concatenate(self.first(inputs, training=training), axis=-1)
        return self.head(self.second(joined, training=training))

    def get_config(self):
        layers = {"first": self.first, "second": self.second}
        layers = {n: keras.saving.serialize_keras_object(v) for n, v in layers.items()}
        return super().get_config() | layers

    @classmethod
    def from_config(cls, config):
        names = ("first", "second")
        layers = {n: keras.saving.deserialize_keras_object(config.pop(n)) for n in names}
        return cls(**config, **layers)


@pytest.mark.parametrize("path", ["model.keras", "all.weights.h5"])
def test_two_of_a_kind_in_a_subclassed_model(kind, path, tmp_path):
    def make():
        return Subclassed(
            kind.layer(lam=2.0, inference="moving", momentum=0.5),
            kind.layer(lam=4.0, inference="moving", momentum=0.2, split=kind.sizes),
        )

    model, views = make(), kind.views(24)
    model.compile("sgd", "mse")
    model.fit(views, np.zeros((24, 1)), verbose=0)
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths)
    assert len(keras.tree.flatten(model.get_state_tree())) >= len(paths)
    moved = kind.expected(kind.expected(np.concatenate(views, 1), 2.0), 4.0)
    np.testing.assert_allclose(model(views, training=True), model.head(moved), atol=1e-4)
    if path.endswith("keras"):
        model.save(tmp_path / path)
        reloaded = keras.saving.load_model(tmp_path / path)
    else:
        model.save_weights(tmp_path / path)
        reloaded = make()
        reloaded(views)
        reloaded.load_weights(tmp_path / path)
    assert float(reloaded.second.lam) == 4.0
    np.testing.assert_allclose(reloaded(views), model(views), atol=1e-5)
    assert np.abs(reloaded.first.moving_map - reloaded.second.moving_map).max() > 1e-3


def test_clone_of_a_model_with_two_of_a_kind(kind):
    inputs, moved = kind.encoded(kind.layer(lam=2.0, inference="moving"))
    again = kind.layer(lam=4.0, inference="moving")(moved)
    model = keras.Model(inputs, again)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    views = kind.views(24)
    for a, b in zip(model(views, training=True), copy(views, training=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("steps", [3, None])
def test_in_time_distributed_every_step_is_a_batch(kind, steps):
    x = np.stack([kind.joined(24, seed) for seed in range(3)], 1)
    layer = kind.layer(lam=2.0, split=kind.sizes, inference="batch")
    wrapped = keras.layers.TimeDistributed(layer)
    inputs = keras.Input((steps, sum(kind.sizes)))
    model = keras.Model(inputs, wrapped(inputs))
    expected = np.stack([kind.expected(x[:, t], 2.0) for t in range(3)], 1)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=2e-5)


def test_in_a_shared_position():
    # The same layer twice, with statistics of both batches, one after the other.
    layer = CCA.layer(lam=2.0, inference="moving", momentum=0.5, split=CCA.sizes)
    a, b = keras.Input((7,)), keras.Input((7,))
    model = keras.Model([a, b], [layer(a), layer(b)])
    x, y = CCA.joined(24, 1), CCA.joined(24, 2)
    for moved, rows in zip(model([x, y], training=True), (x, y), strict=True):
        np.testing.assert_allclose(moved, CCA.expected(rows, 2.0), atol=2e-5)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * (x.mean(0) + y.mean(0)), atol=1e-5)


@pytest.mark.in_graph
def test_mixed_precision_model_trains(kind):
    model = kind.regression(kind.layer(dtype="mixed_float16", lam=2.0))
    history = model.fit(kind.views(24), np.ones((24, 1)), batch_size=8, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.slow
def test_hundred_steps_on_noise_stay_finite(kind):
    rng = np.random.default_rng(4)
    views = [rng.normal(size=(32, d)).astype("float32") for d in kind.sizes]
    target = rng.normal(size=(32, 1)).astype("float32")
    model = kind.regression(kind.layer(lam=0.1), optimizer="adam")
    losses = [model.train_on_batch(views, target) for _ in range(100)]
    assert np.isfinite(losses).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert losses[-1] < losses[0]


def test_two_layers_that_differ_in_the_ridge_agree_with_their_references(kind):
    x = kind.joined(24, 5)
    for epsilon in (1e-3, 0.1):
        layer = kind.layer(epsilon=epsilon, lam=2.0, split=kind.sizes)
        run = tf.function(lambda x, layer=layer: layer(x, training=True))
        np.testing.assert_allclose(run(x), kind.expected(x, 2.0, epsilon=epsilon), atol=2e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(num_components=0), "`num_components` must be an integer >= 1.*num_components=0"),
        (dict(num_components=2.5), "`num_components` must be an integer.*num_components=2.5"),
        (dict(lam=0.0), "`lam` must be a finite number > 0.*lam=0.0"),
        (dict(lam=-1), "`lam` must be a finite number > 0.*lam=-1"),
        (dict(lam=float("nan")), "`lam` must be a finite number > 0.*lam=nan"),
        (dict(lam="big"), "`lam` must be a finite number > 0.*lam='big'"),
        (dict(epsilon=-1e-9), "`epsilon` must be a finite number >= 0.*epsilon=-1e-09"),
        (dict(solver="sgd"), "`solver` must be 'newton', 'lbfgs' or one of.*solver='sgd'"),
        (dict(gradient="auto"), "`gradient` must be one of 'implicit', 'finite.*gradient='auto'"),
        (dict(inference="none"), "must be one of 'identity', 'batch', 'moving'.*inference='none'"),
        (dict(momentum=1.0), r"`momentum` must be in \[0, 1\).*momentum=1.0"),
        (dict(momentum=-0.1), "`momentum` must be a finite number >= 0.*momentum=-0.1"),
        (dict(monitor=""), "`monitor` must be True, False, 'all' or a string.*monitor=''"),
        (dict(nan_is_missing="no"), "`nan_is_missing` must be True or False.*='no'"),
        (dict(synchronized=1), "`synchronized` must be True or False.*=1"),
        (
            dict(synchronized=True, gradient="finite_difference"),
            "`synchronized=True` needs gradient='implicit'.*'finite_difference'",
        ),
        (dict(weight=-1.0), "`weight` must be a finite number >= 0.*weight=-1.0"),
        (dict(split=7), "`split` must be a tuple with the widths.*split=7"),
        (dict(split=(3,)), r"`split` must be a tuple with the widths.*split=\(3,\)"),
        (dict(split=(0, 3)), "`split` must be an integer >= 1.*split=0"),
    ],
)
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind.cls(**{"num_components": 2} | arguments)


def test_the_core_needs_a_width():
    with pytest.raises(ValueError, match=r"`num_components` must be an integer >= 1.*=None"):
        keras.saving.get_registered_object("proxnet_tf>ProxGCCA")()
    assert ProxCCA(solver=PLAIN).get_config()["num_components"] is None
