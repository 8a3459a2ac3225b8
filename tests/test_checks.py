import copy
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import Prox, Regularizer
from proxnet_tf.checks import LamWeight, check_integer
from tests.helpers.registry import LAYERS, layers

REFUSED = r"`lam` must be a finite number > 0\. Received: lam="
ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


@pytest.fixture(params=layers(lambda case: {"lam", "cell"} & set(case.arguments())))
def case(request):
    """The layer, what holds its `lam`, the inputs."""
    layer = LAYERS[request.param].make()
    return layer, getattr(layer, "cell", layer), LAYERS[request.param].inputs


def outputs(layer, inputs):
    return [np.asarray(part) for part in tf.nest.flatten(layer(inputs, training=True))]


def test_setting_lam_assigns(case):
    layer, owner, inputs = case
    weight, first = owner.lam, float(owner.lam)
    assert isinstance(weight, LamWeight)
    before = outputs(layer, inputs)
    for value in (0.05, np.float32(0.05), tf.constant(0.05), keras.Variable(0.05)):
        owner.lam = 0.5
        owner.lam = value
        assert owner.lam is weight
        assert float(weight) == np.float32(0.05)
    owner.lam *= 2.0
    assert float(weight) == np.float32(0.1)
    assert [v.name for v in layer.non_trainable_weights].count("lam") == 1
    assert type(owner).from_config(owner.get_config()).lam.numpy() == np.float32(first)
    after = outputs(layer, inputs)
    moved = max(np.abs(a - b).max() for a, b in zip(after, before, strict=True))
    form = getattr(layer, "regularizer", None) or getattr(layer, "constraint", None)
    is_projection = isinstance(form, Regularizer) and form.operator.is_set
    assert moved == 0.0 if is_projection else moved > 1e-4


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-50, 1e39, np.float64(-1)])
def test_lam_outside_its_range_is_refused(value):
    layer = Prox("l1", lam=0.5)
    with pytest.raises(ValueError, match=REFUSED):
        layer.lam = value
    with pytest.raises(ValueError, match=REFUSED):
        layer.lam.assign(value)
    with pytest.raises(ValueError, match=REFUSED):
        layer.lam.assign_sub(0.5)
    with pytest.raises(ValueError, match=REFUSED):
        layer.set_weights([np.float64(value)])
    with pytest.raises(ValueError, match=REFUSED):
        Prox("l1", lam=value)
    assert float(layer.lam) == 0.5


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.array(0.5), tf.constant(0.5), tf.Variable(0.5)]
)
def test_scalar_arrays_and_tensors_are_numbers(value):
    layer = Prox("l1", lam=value)
    assert layer.get_config()["lam"] == 0.5 and isinstance(layer.get_config()["lam"], float)
    assert check_integer("k", tf.constant(3)) == 3
    for wrong in (np.array([0.5]), tf.constant([0.5]), tf.constant(True), tf.constant("0.5")):
        with pytest.raises(ValueError, match=REFUSED):
            Prox("l1", lam=wrong)
        with pytest.raises(ValueError, match="must be an integer"):
            check_integer("k", wrong)


@pytest.mark.parametrize("value", [True, "0.5"])
def test_lam_that_is_no_number_is_refused(value):
    layer = Prox("l1", lam=0.5)
    with pytest.raises(ValueError, match=REFUSED):
        layer.lam = value
    assert float(layer.lam) == 0.5


def test_constants_in_a_graph_are_refused():
    layer = Prox("l1", lam=0.5)

    @tf.function
    def assign():
        layer.lam = tf.constant(-1.0)

    with pytest.raises(ValueError, match="`lam` must be a finite number > 0"):
        assign()


def test_lam_in_float64_keeps_its_digits():
    layer = Prox("l1", lam=0.1, dtype="float64")
    assert layer.lam.numpy() == 0.1
    layer.lam = 1e-50
    assert layer.lam.numpy() == 1e-50


def test_what_a_graph_assigns_shows_as_nan(case):
    layer, owner, inputs = case
    outputs(layer, inputs)
    state = layer.get_weights()

    @tf.function
    def call(value):
        owner.lam.assign(value)
        return layer(inputs, training=True)

    for value in (0.0, -1.0, math.nan, math.inf):
        for part in tf.nest.flatten(call(tf.constant(value))):
            sequence = isinstance(layer, keras.layers.RNN) and len(part.shape) == 3
            # The first output of a cell that returns its own comes before the proximal state.
            assert np.isnan(part[:, 1:] if sequence else part).all()
    assert all(np.isfinite(part).all() for part in tf.nest.flatten(call(tf.constant(0.5))))
    for weight, value in zip(layer.weights, state, strict=True):
        assert np.isfinite(weight.numpy()).all(), weight.path  # moving averages stay good
        if weight.name == "moving_count":
            assert weight.numpy() == value + 1  # the one good step
        elif not weight.name.startswith("moving"):
            wanted = 0.5 if weight is owner.lam else value
            np.testing.assert_array_equal(weight.numpy(), wanted)


def test_lam_in():
    layer = Prox("l1", lam=2.0)
    assert layer.lam_in("float32").numpy() == 2.0
    layer.lam.value.assign(-2.0)
    assert np.isnan(layer.lam_in(tf.float64).numpy())


def test_inside_a_subclassed_model():
    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="mine")
            self.parts = [Prox("l1", name="left"), Prox("l1", name="right")]

        def call(self, x):
            return self.parts[0](x) + self.parts[1](x)

    model = Model()
    assert [v.path for v in model.weights] == ["left/lam", "right/lam"]
    model(ROWS)
    assert [v.path for v in model.weights] == ["mine/left/lam", "mine/right/lam"]


def test_copies_are_of_their_own():
    layer = Prox("l1", lam=0.5)
    layer(ROWS)
    twin = copy.deepcopy(layer)
    twin.lam = 3.0
    assert (float(layer.lam), float(twin.lam)) == (0.5, 3.0)
    assert twin.lam._layer is twin
