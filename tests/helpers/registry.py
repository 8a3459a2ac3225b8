"""Every public layer, cell, loss, metric and model, with arguments that are not the defaults.

The contract tests run over what stands here. A new public class goes in here once, and a new
argument of a constructor needs a value that is not its default in one of the cases of its class.

`make test` runs a contract for one layer of each kind, `always=True`. The others are `slow`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense

from proxnet_tf import (
    DCCA,
    DCCAE,
    AdversarialModel,
    CanonicalCorrelation,
    CCALoss,
    CCARegularizer,
    GCCALoss,
    GCCARegularizer,
    Invariance,
    MultiviewClassifier,
    Prox,
    ProxCCA,
    ProxDropout,
    ProxGCCA,
    ProxGRU,
    ProxGRUCell,
    ProxKernelFeatures,
    ProxLSTM,
    ProxLSTMCell,
    ProxRNNCell,
    RecallAtK,
    Regularizer,
    prox_of_activation,
)
from proxnet_tf.solvers import LBFGS, Newton
from tests.helpers.data import COMPONENTS, CORE, SIZES, THREE, shared_views

BATCH, STEPS, FEATURES, UNITS = 4, 4, 3, 3


def _array(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


ROWS = _array(BATCH, 6, seed=1)
SEQUENCES = _array(BATCH, STEPS, FEATURES, seed=2)
PAIR = shared_views(12, SIZES, seed=3).astype("float32")
TRIPLE = shared_views(12, THREE, seed=4).astype("float32")
VIEWS = np.split(TRIPLE, np.cumsum(THREE)[:-1], axis=1)
VIEW_SEQUENCES = [v.reshape(3, 4, -1) for v in np.split(PAIR, [SIZES[0]], axis=1)]
LANDMARKS = _array(4, 3, seed=5).astype("float64")


def register(thing):
    return keras.saving.register_keras_serializable(package="proxnet_tf_tests")(thing)


@register
def log_cosh(z):
    """A smooth R, row by row."""
    return tf.reduce_sum(tf.math.log(tf.cosh(z)), axis=-1)


@register
def roughness(z):
    """An R of a whole sequence."""
    return tf.reduce_sum((z[:, 1:] - z[:, :-1]) ** 2, axis=[1, 2]) / 2


@register
def spread(z):
    """An R of a whole batch."""
    return tf.reduce_sum((z - tf.reduce_mean(z, axis=0)) ** 2) / 2


@register
def wide_kernel(dtype):
    """A kernel made by a function."""
    from tensorflow_probability import math as tfp_math

    return tfp_math.psd_kernels.ExponentiatedQuadratic(length_scale=tf.constant(1.5, dtype))


@register
class Pull(keras.layers.Layer):
    """An R with a context and with weights of its own: how strongly each entry is pulled."""

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)  # it keeps the dtype of the solver

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")
        self.built = True

    def call(self, z, context):
        distance = z - tf.cast(context, z.dtype)  # a context of integers stays one
        return tf.reduce_sum(tf.cast(self.scale, z.dtype) ** 2 * distance**2, axis=-1) / 2


@register
class LeakyCell(keras.layers.Layer):
    """A cell written by a user: one state, an integer `state_size`, the state not in a list."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.state_size = units
        self.output_size = units

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], self.units))
        self.built = True

    def call(self, inputs, states):
        state = states[0] if isinstance(states, list | tuple) else states
        state = 0.5 * state + keras.ops.tanh(keras.ops.matmul(inputs, self.kernel))
        return state, state

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of the contract tests.

    Attributes:
        cls, arguments: the layer is `cls(**arguments())`.
        inputs: a float32 array or a list of them, batch first.
        weights: numbers of trainable weights, of non-trainable weights and of seed generators.
        training: the mode in which outputs are compared.
        rows: "apart" where each example is a problem of its own, "together" where the batch is one.
        masks: what a mask (batch, time) does: "passed" (the layer acts on each step by itself and
            hands the mask on), "respected" (masked steps take no part), "steps" (a recurrent
            layer), or "" for layers without time steps.
        losses: how many losses a call adds.
        jit: whether XLA compiles a model that holds the layer.
        empty: whether a batch without rows is allowed (`keras.layers.LSTMCell` does not).
        half: tolerance of the 16-bit outputs relative to those in float32.
        always: whether the layer stands for its kind, so that its contracts are not `slow`.
    """

    cls: type
    arguments: Callable[[], dict]
    inputs: Any
    weights: tuple[int, int, int]
    training: bool = False
    rows: str = "apart"
    masks: str = ""
    losses: int = 0
    jit: bool = False
    empty: bool = True
    half: float = 0.03
    always: bool = False

    def make(self, **more):
        return self.cls(**self.arguments(), **more)


# Compiling a solver takes seconds for every size.
PLAIN = {"solver": Newton(jit_compile=False)}


def _views(cls, inputs, weights=(0, 1, 0), always=False, **arguments):
    """A layer that sees the batch: in training, if it has no other inference; masks of steps."""
    two, maps = cls in (ProxCCA, CCARegularizer), cls in (ProxCCA, ProxGCCA)
    defaults = {"lam": 0.5, **PLAIN} if maps else {"epsilon": 0.1}
    arguments = {"num_components": COMPONENTS if two else CORE, **defaults, **arguments}
    return Layer(
        cls,
        lambda: arguments,
        inputs,
        weights,
        training=maps and "inference" not in arguments,
        rows="together",
        masks="respected" if tf.nest.flatten(inputs)[0].ndim == 3 else "",
        losses=int("weight" in arguments),
        always=always,
    )


def _prox(inputs, arguments, weights=(0, 1, 0), **more):
    return Layer(Prox, lambda: arguments() | {"lam": 2.0}, inputs, weights, **more)


def _kernel(**arguments):
    return lambda: {
        "kernel": "gaussian",
        "landmarks": LANDMARKS,
        "kernel_options": {"length_scale": 0.9},
        "lam": 0.3,
        **arguments,
    }


def _gates(**arguments):
    return lambda: {"units": UNITS, "lam": 0.7, "delta": 1.3, **arguments}


def wrapped(cell, **arguments):
    """A `ProxRNNCell` whose proximal state moves far from the cell's."""
    return ProxRNNCell(cell, lam=0.7, delta=1.3, **arguments)


CELLS = {
    "ProxLSTMCell": lambda **k: ProxLSTMCell(**_gates(**k)()),
    "ProxGRUCell": lambda **k: ProxGRUCell(**_gates(**k)()),
    "ProxRNNCell of GRUCell": lambda **k: wrapped(keras.layers.GRUCell(UNITS, **k)),
    "ProxRNNCell of LSTMCell": lambda **k: wrapped(keras.layers.LSTMCell(UNITS, **k)),
    "ProxRNNCell of a user's cell": lambda **k: wrapped(LeakyCell(UNITS, **k)),
}


def _rnn(name, weights, **more):
    return Layer(
        keras.layers.RNN,
        lambda: {"cell": CELLS[name](), "return_sequences": True},
        SEQUENCES,
        weights,
        masks="steps",
        jit=True,
        **more,
    )


LAYERS = {
    "ProxCCA": _views(ProxCCA, PAIR, epsilon=0.01, inference="batch", split=SIZES),
    "ProxCCA, moving, sequences": _views(
        ProxCCA, VIEW_SEQUENCES, (0, 4, 0), inference="moving", momentum=0.5
    ),
    "ProxCCA, in training": _views(
        ProxCCA, PAIR.reshape(3, 4, -1), always=True, split=SIZES, nan_is_missing=True
    ),
    "ProxGCCA": _views(ProxGCCA, VIEWS, epsilon=0.1, inference="batch"),
    "ProxGCCA, moving": _views(
        ProxGCCA, TRIPLE, (0, 4, 0), always=True, inference="moving", split=THREE
    ),
    "ProxGCCA, weighted": _views(
        ProxGCCA, TRIPLE.reshape(3, 4, -1), weight=0.2, split=THREE, nan_is_missing=True
    ),
    "CCARegularizer": _views(CCARegularizer, VIEW_SEQUENCES, (0, 0, 0), always=True, weight=0.3),
    "CCARegularizer, envelope": _views(
        CCARegularizer, VIEW_SEQUENCES, (0, 0, 0), weight=0.3, envelope=2.0, **PLAIN
    ),
    "GCCARegularizer": _views(
        GCCARegularizer, TRIPLE, (0, 0, 0), weight=0.3, split=THREE, nan_is_missing=True
    ),
    "Prox l1": _prox(
        SEQUENCES, lambda: dict(regularizer="l1"), masks="passed", jit=True, always=True
    ),
    "Prox simplex over time": _prox(
        SEQUENCES, lambda: dict(constraint=Regularizer("simplex", total=2.0), over="time"), jit=True
    ),
    "Prox nuclear over the batch": _prox(
        ROWS, lambda: dict(regularizer="nuclear", over="batch"), rows="together"
    ),
    "Prox total_variation over time": _prox(
        SEQUENCES,
        lambda: dict(regularizer="total_variation", over="time"),
        masks="respected",
        jit=True,
    ),
    "Prox of a function": _prox(
        SEQUENCES,
        lambda: dict(
            regularizer=log_cosh, start=0.5, tolerance=1e-4, max_iterations=50, monitor="r"
        ),
        masks="passed",
        always=True,
    ),
    "Prox of a function on a set": _prox(
        ROWS, lambda: dict(regularizer=log_cosh, constraint="simplex", monitor="r")
    ),
    "Prox of a layer with a context": _prox(
        [ROWS, ROWS[::-1].copy()], lambda: dict(regularizer=Pull(), monitor="r"), (1, 1, 0)
    ),
    "ProxDropout": Layer(
        ProxDropout, lambda: dict(lam=0.4), SEQUENCES, (0, 1, 0), masks="passed", always=True
    ),
    "ProxKernelFeatures": Layer(
        ProxKernelFeatures, _kernel(power=-0.5), SEQUENCES, (0, 5, 0), masks="passed", always=True
    ),
    "ProxKernelFeatures, solved": Layer(
        ProxKernelFeatures,
        _kernel(invariances=[Invariance("gradient_variation", weight=0.5), "graph_laplacian"]),
        SEQUENCES[:, 0],
        (0, 6, 0),
    ),
    "ProxLSTM": Layer(
        ProxLSTM,
        _gates(jit_compile=False, max_iterations=9),
        SEQUENCES,
        (3, 1, 1),
        jit=True,
        always=True,
    ),
    "ProxLSTM, sequences": Layer(
        ProxLSTM, _gates(return_sequences=True), SEQUENCES, (3, 1, 1), masks="steps", jit=True
    ),
    "ProxLSTM, unrolled": Layer(
        ProxLSTM,
        _gates(
            unroll=True,
            return_sequences=True,
            return_state=True,
            go_backwards=True,
            zero_output_for_mask=True,
            output_from_prox=True,
            tolerance=1e-4,
        ),
        SEQUENCES,
        (3, 1, 1),
        jit=True,
    ),
    "ProxLSTMCell": _rnn("ProxLSTMCell", (3, 1, 1)),
    "ProxGRU": Layer(
        ProxGRU, _gates(return_sequences=True), SEQUENCES, (3, 1, 1), masks="steps", jit=True
    ),
    "ProxGRU, output from prox": Layer(
        ProxGRU,
        _gates(return_sequences=True, output_from_prox=True, jit_compile=False, use_bias=False),
        SEQUENCES,
        (2, 1, 1),
        masks="steps",
        jit=True,
    ),
    "ProxGRUCell": _rnn("ProxGRUCell", (3, 1, 1)),
    "ProxRNNCell of GRUCell": _rnn("ProxRNNCell of GRUCell", (3, 1, 1), always=True),
    "ProxRNNCell of LSTMCell": _rnn("ProxRNNCell of LSTMCell", (3, 1, 1), empty=False),
    "ProxRNNCell of a user's cell": _rnn("ProxRNNCell of a user's cell", (1, 1, 0)),
}


def layers(select=lambda case: True, among=LAYERS):
    """Parameters of a contract test: names of the layers that `select` takes.

    Where the kinds of layers show nothing more, those that are not `among` the given are slow, too.
    """
    return [
        pytest.param(name, marks=[] if case.always and name in among else pytest.mark.slow)
        for name, case in LAYERS.items()
        if select(case)
    ]


def takes_views(case):
    """Whether the layer takes a list of arrays."""
    return isinstance(case.inputs, list)


# Objects for the checks of configurations: the layers above, and arguments that no call there has.
_GATES = dict(
    activation="softplus",
    recurrent_activation="hard_sigmoid",
    use_bias=False,
    kernel_initializer="he_normal",
    recurrent_initializer="glorot_uniform",
    bias_initializer="ones",
    unit_forget_bias=False,
    kernel_regularizer="l2",
    recurrent_regularizer="l1",
    bias_regularizer="l2",
    kernel_constraint="max_norm",
    recurrent_constraint="unit_norm",
    bias_constraint="non_neg",
    dropout=0.2,
    recurrent_dropout=0.3,
    seed=7,
    implementation=1,
)
_SOLVE = dict(output_from_prox=True, tolerance=1e-4, max_iterations=7, monitor="r")
_GRU_GATES = {k: v for k, v in _GATES.items() if k != "unit_forget_bias"}
_VIEWS = dict(
    num_components=2,
    lam=3.0,
    weight=0.2,
    epsilon=0.1,
    solver=LBFGS(max_iterations=40, tolerance=1e-6, jit_compile=False, device="CPU:0"),
    gradient="finite_difference",
    inference="moving",
    momentum=0.5,
    monitor="agreement",
    nan_is_missing=True,
)
CONFIGURED = {
    "ProxCCA, every argument": lambda: ProxCCA(**_VIEWS, split=SIZES),
    "ProxCCA, replicas": lambda: ProxCCA(synchronized=True),
    "ProxGCCA, every argument": lambda: ProxGCCA(**_VIEWS, split=THREE),
    "ProxGCCA, replicas": lambda: ProxGCCA(2, synchronized=True),
    "CCARegularizer, every argument": lambda: CCARegularizer(
        0.3,
        num_components=2,
        epsilon=0.1,
        envelope=2.0,
        solver=Newton(tolerance=1e-6),
        split=SIZES,
        nan_is_missing=True,
        synchronized=True,
    ),
    "GCCARegularizer, replicas": lambda: GCCARegularizer(num_components=2, synchronized=True),
    "GCCARegularizer, envelope": lambda: GCCARegularizer(
        num_components=2, envelope=2.0, solver=LBFGS()
    ),
    "Prox over time": lambda: Prox(
        roughness, lam=2.0, over="time", start=0.5, tolerance=1e-4, max_iterations=7, monitor="r"
    ),
    "Prox over the batch": lambda: Prox(spread, over="batch"),
    "Prox of an activation": lambda: Prox(**prox_of_activation("tanh")),
    "Prox of a quadratic": lambda: Prox(
        Regularizer("quadratic", matrix=[[2.0, 1.0], [1.0, 2.0]]), constraint="box"
    ),
    "ProxKernelFeatures, kernel": lambda: ProxKernelFeatures(
        wide_kernel,
        landmarks=LANDMARKS,
        kernel_options={"length_scale": 0.9},
        invariances=Invariance("graph_laplacian", points=LANDMARKS, num_neighbors=2),
        monitor="r",
    ),
    "ProxDropout, monitored": lambda: ProxDropout(monitor="r"),
    "ProxLSTM, every argument": lambda: ProxLSTM(
        UNITS, **_GATES, stateful=True, jit_compile=True, activity_regularizer="l2", monitor="r"
    ),
    "ProxLSTMCell": lambda: ProxLSTMCell(**_gates(**_GATES, **_SOLVE, jit_compile=False)()),
    "ProxGRU, every argument": lambda: ProxGRU(
        **_gates(
            **_GRU_GATES,
            **_SOLVE,
            jit_compile=False,
            return_sequences=True,
            return_state=True,
            go_backwards=True,
            stateful=True,
            unroll=True,
            zero_output_for_mask=True,
            activity_regularizer="l2",
        )()
    ),
    "ProxGRUCell": lambda: ProxGRUCell(**_gates(**_GRU_GATES, **_SOLVE, jit_compile=False)()),
    "ProxRNNCell": lambda: wrapped(
        keras.layers.LSTMCell(UNITS, activation="softplus"), state_index=0, **_SOLVE
    ),
    "Regularizer": lambda: Regularizer("box", weight=2.0, low=-0.5, high=3.0),
    "Invariance": lambda: Invariance(
        "gradient_variation", points=LANDMARKS, weight=0.5, num_neighbors=3, smoothing=0.1
    ),
    "CCALoss": lambda: CCALoss(
        2,
        epsilon=0.1,
        split=SIZES,
        nan_is_missing=True,
        synchronized=True,
        name="agreement",
        dtype="float64",
    ),
    "GCCALoss": lambda: GCCALoss(
        4, epsilon=0.1, split=THREE, nan_is_missing=True, synchronized=True, name="core"
    ),
    "CanonicalCorrelation": lambda: CanonicalCorrelation(
        2, epsilon=0.1, split=SIZES, nan_is_missing=True, name="agreement"
    ),
    "RecallAtK": lambda: RecallAtK(
        2,
        direction="first_to_second",
        capacity=len(PAIR),
        split=(3, 3),
        nan_is_missing=True,
        name="agreement",
    ),
    **{name: case.make for name, case in LAYERS.items() if case.cls is not keras.layers.RNN},
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the contract tests: `make(dtype=None)`, its inputs and its targets.

    Attributes:
        make: the model, not compiled.
        inputs: an array or a list of views.
        targets: class numbers.
        pretrained: whether `pretrain` comes before `fit`.
    """

    make: Callable[..., keras.Model]
    inputs: Any
    targets: np.ndarray
    pretrained: bool = False


def _parts(count=2, **more):
    encoders = [Dense(3, "tanh", **more) for _ in range(count)]
    return encoders, [Dense(2, **more) for _ in range(count)]


def _classifier(*between, count=2, **arguments):
    def make(**more):
        layers = [layer(**more) for layer in between]
        return MultiviewClassifier(*_parts(count, **more), layers, **arguments, **more)

    return make


def _dccae(**more):
    encoders, predictors = _parts(**more)
    decoders = [Dense(size, **more) for size in SIZES]
    return DCCAE(
        encoders,
        decoders,
        predictors,
        reconstruction_weight=0.1,
        num_components=2,
        epsilon=0.1,
        concatenate_inputs=True,
        predict_with=1,
        nan_is_missing=True,
        **more,
    )


def _adversarial(**more):
    inner = keras.Sequential(
        [
            keras.Input((STEPS, FEATURES)),
            keras.layers.Masking(**more),
            keras.layers.SimpleRNN(UNITS, name="recurrent", **more),
            Dense(2, **more),
        ]
    )
    return AdversarialModel(
        inner,
        layer="recurrent",
        method="virtual",
        epsilon=0.1,
        weight=0.5,
        power_iterations=2,
        step=0.2,
        from_logits=True,
        seed=3,
        **more,
    )


_TWO = VIEWS[:2]
_CLASSES = np.arange(12) % 2
MODELS = {
    "MultiviewClassifier, prox": Model(
        _classifier(
            lambda **k: CCARegularizer(0.1, num_components=2, epsilon=0.1, **k),
            lambda **k: ProxCCA(2, lam=0.5, epsilon=0.1, inference="moving", **PLAIN, **k),
            predict_with=1,
        ),
        _TWO,
        _CLASSES,
    ),
    "MultiviewClassifier, three views": Model(
        _classifier(
            lambda **k: ProxGCCA(3, inference="batch", monitor="core", **PLAIN, **k),
            count=3,
            nan_is_missing=True,
        ),
        VIEWS,
        _CLASSES,
    ),
    "DCCA": Model(
        lambda **k: DCCA(
            *_parts(**k),
            num_components=2,
            epsilon=0.1,
            concatenate_inputs=True,
            predict_with=1,
            nan_is_missing=True,
            **k,
        ),
        _TWO,
        _CLASSES,
        pretrained=True,
    ),
    "DCCAE": Model(_dccae, _TWO, _CLASSES, pretrained=True),
    "AdversarialModel": Model(_adversarial, SEQUENCES, np.arange(BATCH) % 2),
}
