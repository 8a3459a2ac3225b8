"""How the files in `saved_0_1_0` were made: by this script, on the code of version 0.1.0.

It was run before the modules of the package were rearranged, and it is only kept as documentation
of what the files hold. Do not run it again: files that a later version writes would prove nothing
about those that users of 0.1.0 have. `tests/test_saved_by_0_1_0.py` loads them.

For each of `CASES` there are, of one small model with arguments other than the defaults,

    <name>.keras        `model.save`; of compiled models after a training step (repacked with
                        compression, the contents are as Keras wrote them)
    <name>.weights.zip  the weights-only file of `model.save_weights`, zipped because it is sparse
    <name>.export.zip   the SavedModel of `model.export`, where a similar case has none already
    <name>.npz          inputs, cotangents, weights, outputs, gradients, what a further training
                        step gives

and `manifest.json` lists them, with the configs of the public objects. `reference_outputs.npz`
holds outputs and gradients of the layers with many settings (`REFERENCES`), of which the manifest
has the configs.

    PYTHONPATH=. python tests/data/make_saved_0_1_0.py
"""

import json
import pathlib
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras.layers import Dense

import proxnet_tf
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
    LambdaSchedule,
    LinearCCA,
    MultiviewClassifier,
    Prox,
    ProxCCA,
    ProxDropout,
    ProxGCCA,
    ProxKernelFeatures,
    ProxLSTM,
    ProxLSTMCell,
    ProxRNNCell,
    Regularizer,
    linear_lambda,
    prox_of_activation,
)
from tests.helpers.data import shared_views
from tests.helpers.saved_numbers import (
    arguments_of,
    call,
    numbers_of,
    outputs_and_gradients,
    weights_of,
)

FOLDER = pathlib.Path(__file__).parent / "saved_0_1_0"

WIDTHS = (3, 4, 2)
ROWS = shared_views(10, WIDTHS, seed=3)
VIEWS = np.split(ROWS, np.cumsum(WIDTHS)[:-1], axis=1)
LABELS = np.array([0, 1, 2, 1, 0, 2, 2, 0, 1, 0])
STEPS = np.random.default_rng(4).normal(size=(4, 5, 3))
STEPS[1, 3:] = STEPS[3, 2:] = 0.0  # what `Masking` leaves out
SEQUENCES = shared_views(20, (3, 4), seed=5).reshape(4, 5, 7)
SEQUENCES[2, 3:] = 0.0
MATRIX = [[2.0, -1.0, 0.0, 0.0], [-1.0, 2.0, -1.0, 0.0], [0.0, -1.0, 2.0, 0.0], [0, 0, 0, 0.5]]


class Case(NamedTuple):
    """A model and what to do with it.

    Attributes:
        model: built; compiled if `target` is given.
        inputs: one array or a list of them.
        training: whether `training=True` differs from inference and gives no random numbers.
        target: of a further training step, which is recorded.
        export: whether to write a SavedModel.
        graph: whether the numbers come from graphs, which solvers written as loops need for speed.
        tolerance: of the comparison, relative to the largest number of an array; None is 1e-6 in
            float32 and 1e-10 in float64.
    """

    model: keras.Model
    inputs: Any
    training: bool = False
    target: Any = None
    export: bool = True
    graph: bool = False
    tolerance: float | None = None


def single(inputs, dtype="float32"):
    """Arrays in a dtype, in the structure of `inputs`."""
    return tf.nest.map_structure(lambda x: np.asarray(x, dtype), inputs)


def functional(layer, inputs, before=None):
    """A functional model around a layer that takes one tensor or a list."""
    symbols = tf.nest.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=x.dtype.name, name=None), inputs
    )
    given = tf.nest.map_structure(before, symbols) if before else symbols
    return keras.Model(symbols, layer(given))


def around(layer, inputs, dtype="float32", *, lam=None, before=None, **options):
    """A `Case` of one layer; `lam` replaces the value of the constructor in the weights."""
    inputs = single(inputs, dtype)
    model = functional(layer, inputs, before)
    if lam is not None:
        layer.lam.assign(lam)
    return Case(model, inputs, **options)


def masking(dtype="float32"):
    """Masks of the steps that are 0, for every input its own layer."""
    return lambda x: keras.layers.Masking(dtype=dtype)(x)


# Multiview layers ------------------------------------------------------------------------------


def cca_identity():
    layer = ProxCCA(
        2, lam=0.5, epsilon=1e-3, max_iterations=150, tolerance=1e-9, monitor=True,
        jit_solver=False, synchronized=True, name="cca",
    )  # fmt: skip
    return around(layer, VIEWS[:2], lam=0.3, training=True)


def cca_batch_float64():
    layer = ProxCCA(
        3, lam=2.0, epsilon=1e-2, solver="lbfgs", inference="batch", split=(3, 4),
        nan_is_missing=True, jit_solver=False, tolerance=1e-10, dtype="float64",
    )  # fmt: skip
    rows = ROWS[:, :7].copy()
    rows[4, 1] = np.nan
    return around(layer, rows, "float64", graph=True, tolerance=1e-8, export=False)


def cca_moving():
    layer = ProxCCA(
        lam=0.4, gradient="finite_difference", inference="moving", momentum=0.5,
        jit_solver=False, solver_device="CPU:0",
    )  # fmt: skip
    case = around(layer, VIEWS[:2], training=True, tolerance=1e-5)  # differences
    case.model(case.inputs, training=True)
    return case


def cca_masked():
    layer = ProxCCA(1, lam=0.2, inference="batch", split=(3, 4))  # with the compiled solver
    return around(layer, SEQUENCES, before=masking())


def gcca_identity():
    layer = ProxGCCA(
        2, lam=0.5, epsilon=1e-3, jit_solver=False, split=(3, 4, 2), monitor=True, name="gcca"
    )
    return around(layer, ROWS, lam=0.25, training=True)


def gcca_batch():
    layer = ProxGCCA(3, lam=1.5, inference="batch", nan_is_missing=True, jit_solver=False)
    return around(layer, VIEWS)


def gcca_moving_float64():
    layer = ProxGCCA(
        2, lam=0.3, epsilon=1e-3, inference="moving", momentum=0.8, jit_solver=False,
        tolerance=1e-11, dtype="float64",
    )  # fmt: skip
    case = around(layer, VIEWS, "float64", training=True, tolerance=1e-8)
    case.model(case.inputs, training=True)
    return case


# Recurrent layers ------------------------------------------------------------------------------


def lstm():
    layer = ProxLSTM(
        3, lam=0.4, delta=0.7, output_from_prox=True, solver="cholesky", jit_compile=False,
        return_sequences=True, go_backwards=True, activation="softplus",
        recurrent_activation="tanh", unit_forget_bias=False, bias_initializer="ones", seed=5,
        dropout=0.25, kernel_regularizer=keras.regularizers.L2(0.01),
        activity_regularizer=keras.regularizers.L1(0.02), name="lstm",
    )  # fmt: skip
    return around(layer, STEPS, lam=0.3)


def lstm_masked():
    layer = ProxLSTM(
        3, lam=0.6, delta=1.5, tolerance=1e-7, max_iterations=9, jit_compile=False,
        return_sequences=True, return_state=True, zero_output_for_mask=True,
        recurrent_dropout=0.1, seed=6,
    )  # fmt: skip
    return around(layer, STEPS, before=masking())


def lstm_compiled():
    return around(ProxLSTM(3, lam=0.2, use_bias=False), STEPS)  # XLA in the SavedModel


def lstm_unrolled_float64():
    layer = ProxLSTM(
        2, lam=0.2, delta=0.5, unroll=True, implementation=1, trainable=False, dtype="float64"
    )
    return around(layer, STEPS, "float64")


def lstm_stateful():
    # "cg" of 0.1.0 with two units is off by more than its tolerance in float32.
    layer = ProxLSTM(2, lam=0.5, stateful=True, solver="cholesky", jit_compile=False)
    inputs = single(STEPS)
    symbol = keras.Input(batch_shape=inputs.shape)
    return Case(keras.Model(symbol, layer(symbol)), inputs)


def lstm_cell():
    cell = ProxLSTMCell(
        3, lam=0.5, delta=2.0, output_from_prox=True, tolerance=1e-7, max_iterations=12,
        dropout=0.2, recurrent_dropout=0.3, seed=7,
    )  # fmt: skip
    case = around(keras.layers.RNN(cell, return_sequences=True), STEPS, before=masking())
    cell.lam.assign(0.35)
    return case


def gru_cell():
    cell = ProxRNNCell(
        keras.layers.GRUCell(3, reset_after=False, dropout=0.2, seed=8), lam=0.5, delta=0.8,
        output_prox=True, tolerance=1e-7, max_iterations=11, name="proximal",
    )  # fmt: skip
    case = around(keras.layers.RNN(cell), STEPS)
    cell.lam.assign(0.7)
    return case


def black_box_lstm_cell():
    cell = ProxRNNCell(
        keras.layers.LSTMCell(2, dtype="float64"), lam=0.3, state_index=1, solver="cholesky",
        dtype="float64",
    )  # fmt: skip
    rnn = keras.layers.RNN(cell, return_state=True, go_backwards=True, dtype="float64")
    return around(rnn, STEPS, "float64")


# Prox and its relatives ------------------------------------------------------------------------


def l1():
    return around(Prox("l1", lam=3.0, name="sparse"), ROWS, lam=4.0)


def l1_float64():
    return around(Prox(Regularizer("l1", weight=0.25), lam=0.5, dtype="float64"), ROWS, "float64")


def group_over_time():
    regularizer = Regularizer("fused_lasso", weight=0.5, sparsity=0.3)
    return around(Prox(regularizer, lam=2.0, over="time"), STEPS, before=masking())


def group_axis():
    layer = Prox(Regularizer("group_l2", weight=0.5, group_size=5), lam=2.0, axis=1)
    return around(layer, STEPS)


def quadratic():
    regularizer = Regularizer("quadratic", weight=2.0, matrix=MATRIX)
    return around(Prox(regularizer, lam=0.5, dtype="float64"), VIEWS[1], "float64")


def nuclear():
    return around(Prox(Regularizer("nuclear", weight=0.75), lam=1.5), STEPS)


def ball_over_batch():
    layer = Prox(constraint=Regularizer("l2_ball", radius=1.5), lam=2.0, over="batch")
    return around(layer, ROWS)


def smooth_on_simplex():
    layer = Prox(
        Regularizer("squared_l2", weight=0.5), constraint=Regularizer("simplex", total=2.0),
        lam=2.0, start=0.5, tolerance=1e-10, max_iterations=300, monitor=False, dtype="float64",
    )  # fmt: skip
    return around(layer, VIEWS[1], "float64", graph=True, tolerance=1e-8)


def sigmoid():
    layer = Prox(**prox_of_activation("sigmoid"), lam=1.5, tolerance=1e-6, max_iterations=90)
    return around(layer, ROWS, graph=True)


def tanh_float64():
    layer = Prox(**prox_of_activation("tanh"), lam=2.0, tolerance=1e-11, dtype="float64")
    return around(layer, ROWS, "float64", export=False, graph=True, tolerance=1e-8)


def softmax():
    layer = Prox(**prox_of_activation("softmax"), tolerance=1e-6, monitor=False)
    return around(layer, [VIEWS[0], VIEWS[1][:, :1]], export=False, graph=True)


def relu():
    return around(Prox(**prox_of_activation("relu"), lam=0.3), ROWS)


def hard_tanh():
    return around(Prox(**prox_of_activation("hard_tanh"), over="time"), STEPS)


def batch_normalization():
    return around(Prox(**prox_of_activation("batch_normalization"), over="batch"), ROWS)


def network_as_regularizer():
    network = keras.Sequential(
        [
            Dense(3, "softplus", dtype="float64"),
            Dense(1, use_bias=False, kernel_initializer="ones", dtype="float64"),
            keras.layers.Reshape((), dtype="float64"),
        ],
        name="regularizer",
    )
    return around(
        Prox(network, lam=2.0, dtype="float64"),
        VIEWS[1],
        "float64",
        export=False,
        graph=True,
        tolerance=1e-8,
    )


def kernel_adapted():
    invariances = [
        Invariance("gradient_flatness", weight=0.2),
        Invariance("graph_laplacian", points=VIEWS[0][:6], weight=0.5, num_neighbors=2),
    ]
    layer = ProxKernelFeatures(
        "MaternFiveHalves", num_landmarks=4, kernel_options={"length_scale": 1.5},
        invariances=invariances, lam=0.5, power=-0.5, seed=3,
    )  # fmt: skip
    layer.adapt(VIEWS[0])
    return around(layer, VIEWS[0], lam=0.4)


def kernel_variation():
    invariances = ["gradient_flatness", Invariance("gradient_variation", weight=0.1, smoothing=0.5)]
    layer = ProxKernelFeatures(
        "gaussian", landmarks=VIEWS[2][:4], invariances=invariances, lam=2.0, dtype="float64"
    )
    return around(layer, VIEWS[2], "float64", graph=True, tolerance=1e-8, export=False)


def dropout():
    return around(ProxDropout(0.5, num_points=64), ROWS, lam=0.8)


def dropout_float64():
    return around(ProxDropout(1.5, num_points=32, dtype="float64"), STEPS, "float64", export=False)


# Correlation as a loss -------------------------------------------------------------------------


def cca_regularizer():
    layer = CCARegularizer(0.3, num_components=2, epsilon=1e-3, split=(3, 4), nan_is_missing=True)
    return around(layer, ROWS[:, :7])


def gcca_regularizer_float64():
    layer = GCCARegularizer(0.7, num_components=2, epsilon=1e-2, dtype="float64")
    return around(layer, VIEWS, "float64")


def trained(
    model, inputs, target, loss, *, epochs=1, optimizer=None, metrics=(), graph=False, **options
):
    """A `Case` of a model that is compiled and has done training steps on the whole batch."""
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.9)
    model(inputs)
    model.compile(optimizer, loss, metrics=list(metrics), run_eagerly=not graph)
    for _ in range(epochs):
        model.train_on_batch(inputs, target)
    return Case(model, inputs, target=target, graph=graph, **options)


def cca_loss():
    inputs = single(ROWS)
    model = keras.Sequential([keras.Input((9,)), Dense(4, "tanh"), Dense(5)])
    loss = CCALoss(2, epsilon=1e-3, split=(2, 3), nan_is_missing=True, name="correlation")
    metric = CanonicalCorrelation(1, epsilon=1e-4, split=(2, 3), name="largest")
    return trained(model, inputs, np.zeros((10, 1), "float32"), loss, metrics=[metric])


def gcca_loss():
    inputs = single(ROWS)
    model = keras.Sequential([keras.Input((9,)), Dense(6, use_bias=False)])
    loss = GCCALoss(2, epsilon=1e-2, split=(2, 2, 2), name="core")
    optimizer = keras.optimizers.Adam(0.05)
    return trained(model, inputs, np.zeros((10, 1), "float32"), loss, optimizer=optimizer)


# Models ----------------------------------------------------------------------------------------


def classes(dtype="float32"):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)


def parts(count=2, width=3, dtype="float32"):
    """Encoders and predictors."""
    encoders = [Dense(width, "tanh", dtype=dtype) for _ in range(count)]
    return encoders, [Dense(3, dtype=dtype) for _ in range(count)]


def classifier_prox():
    options = {
        "solver": "newton", "momentum": 0.5, "max_iterations": 150, "tolerance": 1e-9,
        "jit_solver": False, "synchronized": True, "solver_device": "CPU:0",
    }  # fmt: skip
    model = MultiviewClassifier(
        *parts(), num_components=2, lam=0.3, epsilon=1e-3, inference="moving",
        correlation_weight=0.2, monitor=True, prox_options=options, name="proxnet",
    )  # fmt: skip
    metrics = [keras.metrics.SparseCategoricalAccuracy()]
    return trained(model, single(VIEWS[:2]), LABELS, classes(), metrics=metrics, training=True)


def classifier_prox_float64():
    model = MultiviewClassifier(
        *parts(dtype="float64"), lam=0.2, inference="batch", predict_with=1, dtype="float64",
        prox_options={"jit_solver": False, "tolerance": 1e-11},
    )  # fmt: skip
    return trained(
        model,
        single(VIEWS[:2], "float64"),
        LABELS,
        classes("float64"),
        training=True,
        tolerance=1e-8,
    )


def classifier_prox_three_views():
    model = MultiviewClassifier(
        *parts(3), num_components=2, lam=0.5, predict_with=2, inference="batch",
        prox_options={"jit_solver": False, "gradient": "finite_difference"},
    )  # fmt: skip
    return trained(
        model, single(VIEWS), LABELS, classes(), training=True, tolerance=1e-5, export=False
    )


def classifier_rrm():
    model = MultiviewClassifier(
        *parts(), method="rrm", num_components=2, epsilon=1e-3, correlation_weight=0.4
    )
    return trained(model, single(VIEWS[:2]), LABELS, classes(), training=True)


def classifier_rrm_three_views_float64():
    """Not trained: Keras does not add a float64 loss of a layer to the compiled one."""
    encoders, predictors = parts(3, dtype="float64")
    model = MultiviewClassifier(
        encoders, predictors, method="rrm", num_components=2, predict_with=0, dtype="float64"
    )
    inputs = single(VIEWS, "float64")
    model(inputs)
    return Case(model, inputs, training=True)


def classifier_vanilla():
    model = MultiviewClassifier(*parts(), method="vanilla", predict_with=1)
    return trained(model, single(VIEWS[:2]), LABELS, classes(), training=True)


def dcca():
    model = DCCA(*parts(), num_components=2, epsilon=1e-3, concatenate_inputs=True, predict_with=0)
    inputs = single(VIEWS[:2])
    model.pretrain(inputs, epochs=1, batch_size=10, shuffle=False, verbose=0)
    return trained(model, inputs, LABELS, classes(), training=True)


def dccae():
    encoders, predictors = parts()
    decoders = [Dense(width) for width in WIDTHS[:2]]
    model = DCCAE(
        encoders, decoders, predictors, reconstruction_weight=0.5, num_components=1, epsilon=1e-2
    )
    inputs = single(VIEWS[:2])
    model.pretrain(inputs, epochs=1, batch_size=10, shuffle=False, verbose=0)
    return trained(model, inputs, LABELS, classes(), training=True)


def recurrent(layer, head):
    symbol = keras.Input((5, 3))
    return keras.Model(symbol, head(layer(Dense(3, "tanh")(keras.layers.Masking()(symbol)))))


def adversarial():
    layer = keras.layers.LSTM(3, name="memory")
    model = AdversarialModel(
        recurrent(layer, Dense(3, "softmax")), layer="memory", epsilon=0.2, weight=0.5, seed=2
    )
    loss = keras.losses.SparseCategoricalCrossentropy()
    return trained(model, single(STEPS), LABELS[:4], loss)


def sequential_adversarial():
    """Version 0.1.0 saved this but could not load it."""
    layers = [keras.layers.Masking(), Dense(2, "tanh"), keras.layers.LSTM(2, name="memory")]
    sequential = keras.Sequential([keras.Input((5, 3)), *layers, Dense(3)])
    model = AdversarialModel(sequential, layer="memory")
    return trained(model, single(STEPS), LABELS[:4], classes())


def virtual_adversarial():
    layer = ProxLSTM(2, lam=0.5, solver="cholesky", jit_compile=False, name="memory")
    model = AdversarialModel(
        recurrent(layer, Dense(3)), layer="memory", method="virtual", epsilon=0.3, weight=0.7,
        power_iterations=2, step=0.05, from_logits=True, seed=4, name="virtual",
    )  # fmt: skip
    case = trained(model, single(STEPS), LABELS[:4], classes())
    model.seed_generator.state.assign([4, 0])  # Keras does not save it: a loaded model has this
    return case


def lambda_schedule():
    """The third epoch of a schedule has set lam, in a nested model too."""
    symbol = keras.Input((9,))
    nested = keras.Sequential([keras.Input((9,)), Prox("l2", lam=7.0)])
    features = Prox("elastic_net", lam=5.0)(Dense(4)(nested(symbol)))
    model = keras.Model(symbol, Dense(1)(features))
    inputs, target = single(ROWS), np.ones((10, 1), "float32")
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    schedule = LambdaSchedule(linear_lambda(2.0, 0.5))
    model.fit(inputs, target, epochs=3, batch_size=10, verbose=0, callbacks=[schedule])
    return Case(model, inputs, target=target)


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        cca_identity, cca_batch_float64, cca_moving, cca_masked,
        gcca_identity, gcca_batch, gcca_moving_float64,
        lstm, lstm_masked, lstm_compiled, lstm_unrolled_float64, lstm_stateful,
        lstm_cell, gru_cell, black_box_lstm_cell,
        l1, l1_float64, group_over_time, group_axis, quadratic, nuclear, ball_over_batch,
        smooth_on_simplex, sigmoid, tanh_float64, softmax, relu, hard_tanh, batch_normalization,
        network_as_regularizer, kernel_adapted, kernel_variation, dropout, dropout_float64,
        cca_regularizer, gcca_regularizer_float64, cca_loss, gcca_loss,
        classifier_prox, classifier_prox_float64, classifier_prox_three_views,
        classifier_rrm, classifier_rrm_three_views_float64, classifier_vanilla,
        dcca, dccae, adversarial, sequential_adversarial, virtual_adversarial, lambda_schedule,
    )
}  # fmt: skip


# Objects of which the config is kept as well.
OBJECTS: dict[str, Callable[[], Any]] = {
    "cca_loss": lambda: CCALoss(
        2, epsilon=1e-3, split=(2, 3), nan_is_missing=True, name="correlation", reduction="sum"
    ),
    "gcca_loss": lambda: GCCALoss(
        3, epsilon=1e-3, split=(2, 3, 2), nan_is_missing=True, name="core", dtype="float64"
    ),
    "canonical_correlation": lambda: CanonicalCorrelation(
        2, epsilon=1e-3, split=(2, 3), name="largest", dtype="float64"
    ),
    "invariance": lambda: Invariance(
        "graph_laplacian", points=MATRIX, weight=0.5, num_neighbors=2, smoothing=0.1
    ),
    "lstm_cell": lambda: ProxLSTMCell(
        3, lam=0.5, delta=2.0, output_from_prox=True, solver="cholesky", tolerance=1e-7,
        max_iterations=12, implementation=1, dropout=0.2, seed=7,
    ),
    **{
        f"regularizer_{name}": lambda name=name, options=options: Regularizer(
            name, weight=0.5, **options
        )
        for name, options in {
            "l1": {}, "elastic_net": {"ridge": 0.5}, "l2": {}, "group_l2": {"group_size": 3},
            "squared_l2": {}, "quadratic": {"matrix": MATRIX}, "l_inf": {}, "entropy": {},
            "nuclear": {}, "total_variation": {}, "fused_lasso": {"sparsity": 0.2},
            "box": {"low": -0.5, "high": 2.0}, "nonnegative": {}, "l2_ball": {"radius": 2.0},
            "l1_ball": {"radius": 0.5}, "simplex": {"total": 3.0}, "sparsemax": {"total": 2.0},
            "isotonic": {}, "standardized": {},
        }.items()
    },
}  # fmt: skip


# Reference outputs -----------------------------------------------------------------------------


class Reference(NamedTuple):
    """A layer, or loss, and what it is called with.

    Attributes:
        make: dtype -> the layer.
        inputs: one array or a list of them.
        mode: arguments of the call, such as `training`.
        tolerance: of the comparison in float64; None for closed forms, which are exact.
        graph: as for `Case`.
        single: whether float32 is recorded too.
        adapt: rows for `adapt`.
    """

    make: Callable[..., Any]
    inputs: Any
    mode: dict[str, Any] = {}  # noqa: RUF012
    tolerance: float | None = None
    graph: bool = False
    single: bool = True
    adapt: Any = None


TRAINING = {"training": True}
MASK = [True, True, False, True, True, True, False, True, True, True]
STEP_MASK = (STEPS != 0).any(-1).tolist()
SMALL = VIEWS[1] / 3
MISSING = [VIEWS[0].copy(), VIEWS[1].copy()]
MISSING[0][2, 1] = MISSING[1][5] = np.nan
DEFICIENT = [VIEWS[0], np.concatenate([VIEWS[1], VIEWS[1][:, :1], np.ones((10, 1))], 1)]


def multiview(layer, inputs, *arguments, mode=TRAINING, single=False, **options):
    """A reference of ProxCCA or ProxGCCA, in float64 only unless told otherwise."""
    options = {"jit_solver": False, "tolerance": 1e-10, **options}
    return Reference(
        lambda dtype: layer(*arguments, dtype=dtype, **options), inputs, mode, 1e-8, single=single
    )


def prox(inputs, *arguments, mode=None, **options):
    """References of Prox in closed form."""
    return Reference(lambda dtype: Prox(*arguments, dtype=dtype, **options), inputs, mode or {})


def solved(inputs, *arguments, **options):
    """A reference of Prox with a solver, in float64 only."""
    return Reference(
        lambda dtype: Prox(*arguments, dtype=dtype, tolerance=1e-10, **options),
        inputs, tolerance=1e-7, graph=True, single=False,
    )  # fmt: skip


def memory(units=3, mode=None, inputs=STEPS, single=False, **options):
    """References of ProxLSTM."""
    options = {"jit_compile": False, **options}
    return Reference(
        lambda dtype: ProxLSTM(units, dtype=dtype, **options),
        inputs, mode or {}, 1e-9, single=single,
    )  # fmt: skip


def cells(make, *, tolerance=1e-9, mode=None, **options):
    """A reference of a cell inside `keras.layers.RNN`."""
    return Reference(
        lambda dtype: keras.layers.RNN(make(dtype), dtype=dtype, **options),
        STEPS, mode or {}, tolerance, single=False,
    )  # fmt: skip


def kernel(inputs=VIEWS[0], adapt=VIEWS[0], tolerance=1e-10, graph=False, **options):
    """A reference of ProxKernelFeatures, in float64 only."""
    options = {"kernel_options": {"length_scale": 1.5}, "num_landmarks": 4, **options}
    return Reference(
        lambda dtype: ProxKernelFeatures("gaussian", dtype=dtype, **options),
        inputs, {}, tolerance, graph, single=False, adapt=adapt,
    )  # fmt: skip


REGULARIZERS = {
    "l1": {}, "elastic_net": {"ridge": 0.5}, "l2": {}, "group_l2": {"group_size": 2},
    "squared_l2": {}, "quadratic": {"matrix": MATRIX}, "l_inf": {}, "entropy": {},
    "total_variation": {}, "fused_lasso": {"sparsity": 0.2}, "box": {"low": -0.5, "high": 0.7},
    "nonnegative": {}, "l2_ball": {"radius": 0.5}, "l1_ball": {"radius": 0.6},
    "simplex": {"total": 2.0}, "sparsemax": {}, "isotonic": {}, "standardized": {},
}  # fmt: skip
LAMS = (0.1, 1.0, 10.0)

REFERENCES: dict[str, Reference] = {
    **{f"cca_lam_{lam:g}": multiview(ProxCCA, VIEWS[:2], 2, lam=lam, single=True) for lam in LAMS},
    "cca_k_1": multiview(ProxCCA, VIEWS[:2], 1, lam=0.3),
    "cca_k_all": multiview(ProxCCA, VIEWS[:2], lam=0.3, epsilon=1e-2),
    "cca_split": multiview(ProxCCA, ROWS, 2, lam=0.5, split=(5, 4)),
    "cca_lbfgs": multiview(ProxCCA, VIEWS[:2], 2, lam=1.0, solver="lbfgs")._replace(graph=True),
    "cca_finite_difference": multiview(
        ProxCCA, VIEWS[:2], 2, lam=1.0, gradient="finite_difference"
    )._replace(tolerance=1e-6),
    "cca_mask": multiview(ProxCCA, VIEWS[:2], 2, lam=0.3, mode={"mask": MASK, **TRAINING}),
    "cca_masks": multiview(
        ProxCCA, VIEWS[:2], 2, lam=0.3, mode={"masks": [MASK, MASK[::-1]], **TRAINING}
    ),
    "cca_missing": multiview(ProxCCA, MISSING, 2, lam=0.3, nan_is_missing=True),
    "cca_deficient": multiview(ProxCCA, DEFICIENT, 2, lam=0.3),
    "cca_sequences": multiview(
        ProxCCA, SEQUENCES, 2, lam=0.3, split=(3, 4), mode={"mask": STEP_MASK, **TRAINING}
    ),
    "cca_batch": multiview(ProxCCA, VIEWS[:2], 2, lam=0.3, inference="batch", mode={}, single=True),
    "cca_moving": multiview(ProxCCA, VIEWS[:2], 2, lam=0.3, inference="moving", momentum=0.5),
    "cca_one_row": multiview(ProxCCA, [v[:1] for v in VIEWS[:2]], 2),
    **{f"gcca_lam_{lam:g}": multiview(ProxGCCA, VIEWS, 2, lam=lam, single=True) for lam in LAMS},
    "gcca_two_views": multiview(ProxGCCA, VIEWS[:2], 2, lam=0.3),
    "gcca_k_5": multiview(ProxGCCA, VIEWS, 5, lam=0.7),
    "gcca_split": multiview(ProxGCCA, ROWS, 2, lam=0.5, split=(2, 2, 2, 3), epsilon=1e-2),
    "gcca_lbfgs": multiview(ProxGCCA, VIEWS, 2, lam=1.0, solver="lbfgs")._replace(graph=True),
    "gcca_mask": multiview(ProxGCCA, VIEWS, 2, mode={"masks": [MASK, None, MASK], **TRAINING}),
    "gcca_batch": multiview(ProxGCCA, VIEWS, 2, lam=0.3, inference="batch", mode={}),
    "gcca_moving": multiview(ProxGCCA, VIEWS, 2, lam=0.3, inference="moving", momentum=0.5),
    **{
        f"prox_{name}_lam_{lam:g}": prox(VIEWS[1], Regularizer(name, 0.5, **options), lam=lam)
        for name, options in REGULARIZERS.items()
        for lam in ((0.3, 3.0) if name not in ("box", "isotonic", "standardized") else (1.0,))
    },
    "prox_nuclear": prox(STEPS, Regularizer("nuclear", 0.5), lam=0.7)._replace(tolerance=1e-11),
    "prox_nuclear_batch": prox(ROWS, "nuclear", lam=0.7, over="batch")._replace(tolerance=1e-11),
    "prox_axis": prox(STEPS, Regularizer("group_l2", group_size=5), lam=3.0, axis=1),
    "prox_l1_time": prox(STEPS, "l1", lam=3.0, over="time", mode={"mask": STEP_MASK}),
    "prox_l2_time": prox(STEPS, "l2", lam=1.0, over="time", mode={"mask": STEP_MASK}),
    "prox_tv_time": prox(STEPS, "total_variation", over="time", mode={"mask": STEP_MASK}),
    "prox_simplex_time": prox(STEPS, constraint="simplex", over="time"),
    "prox_entropy_batch": prox(VIEWS[1], "entropy", lam=2.0, over="batch"),
    "prox_sigmoid": solved(VIEWS[1], **prox_of_activation("sigmoid")),
    "prox_sigmoid_lam_3": solved(STEPS, **prox_of_activation("sigmoid"), lam=3.0),
    "prox_tanh": solved(VIEWS[1], **prox_of_activation("tanh")),
    "prox_softmax": solved([VIEWS[0], VIEWS[1][:, :1]], **prox_of_activation("softmax")),
    "prox_constrained": solved(
        VIEWS[1], Regularizer("quadratic", matrix=MATRIX), constraint="simplex", lam=2.0, start=0.25
    ),
    **{
        f"dropout_lam_{lam:g}": Reference(
            lambda dtype, lam=lam: ProxDropout(lam, dtype=dtype), SMALL, {}, 1e-8
        )
        for lam in LAMS
    },
    "dropout_points": Reference(
        lambda dtype: ProxDropout(0.2, num_points=16, dtype=dtype), STEPS, {}, 1e-8
    ),
    **{f"lstm_lam_{lam:g}": memory(lam=lam, single=True) for lam in LAMS},
    "lstm_delta_0": memory(delta=0.0),
    "lstm_output": memory(lam=0.3, output_from_prox=True, return_sequences=True, single=True),
    "lstm_cholesky": memory(lam=0.3, delta=1.5, solver="cholesky", return_state=True),
    "lstm_backwards": memory(lam=0.3, go_backwards=True, mode={"mask": STEP_MASK}),
    "lstm_masked": memory(
        lam=0.3, return_sequences=True, mode={"mask": STEP_MASK, **TRAINING}, single=True
    ),
    "lstm_zero_output": memory(
        lam=0.3, return_sequences=True, zero_output_for_mask=True, mode={"mask": STEP_MASK}
    ),
    "lstm_training": memory(lam=0.3, dropout=0.0, use_bias=False, mode=TRAINING),
    "lstm_unrolled": memory(2, lam=0.3, unroll=True, inputs=STEPS[:, :3]),
    "lstm_activations": memory(activation="softplus", recurrent_activation="tanh", lam=0.5),
    "lstm_cell": cells(lambda dtype: ProxLSTMCell(3, lam=0.3, dtype=dtype), return_sequences=True),
    "gru_cell": cells(
        lambda dtype: ProxRNNCell(keras.layers.GRUCell(2, dtype=dtype), lam=0.3, dtype=dtype),
        mode={"mask": STEP_MASK},
    ),
    "black_box_lstm_cell": cells(
        lambda dtype: ProxRNNCell(
            keras.layers.LSTMCell(2, dtype=dtype), lam=0.3, delta=2.0, dtype=dtype,
            solver="cholesky",
        ),
        return_state=True,
    ),
    "kernel_plain": kernel(invariances=()),
    "kernel_flat": kernel(lam=0.3),
    "kernel_warped": kernel(
        lam=0.3, power=-0.5, invariances=["gradient_flatness", "graph_laplacian"]
    ),
    "kernel_variation": kernel(
        lam=0.7, invariances=["gradient_variation"], tolerance=1e-7, graph=True
    ),
    "cca_regularizer": Reference(
        lambda dtype: CCARegularizer(0.3, num_components=2, dtype=dtype), VIEWS[:2], {}, 1e-11
    ),
    "gcca_regularizer": Reference(
        lambda dtype: GCCARegularizer(0.3, num_components=3, dtype=dtype), VIEWS, {}, 1e-11
    ),
}  # fmt: skip


# Writing ---------------------------------------------------------------------------------------


def pack(target, files, compression=zipfile.ZIP_DEFLATED):
    """A zip archive of (name, bytes) that depends on nothing else."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = compression
            archive.writestr(entry, content, compresslevel=9)


def save(name, case, scratch):
    """Writes the files of a case; returns its entry in the manifest."""
    model = case.model
    model.save(scratch / f"{name}.keras")
    with zipfile.ZipFile(scratch / f"{name}.keras") as archive:
        pack(FOLDER / f"{name}.keras", [(n, archive.read(n)) for n in archive.namelist()])
    model.save_weights(scratch / "model.weights.h5")
    content = (scratch / "model.weights.h5").read_bytes()
    pack(FOLDER / f"{name}.weights.zip", [("model.weights.h5", content)])
    suffixes = [".keras", ".weights.zip"]
    if case.export:
        folder = scratch / name
        model.export(folder, verbose=False)
        files = [f for f in folder.rglob("*") if f.is_file()]
        pack(
            FOLDER / f"{name}.export.zip",
            [(f.relative_to(folder).as_posix(), f.read_bytes()) for f in files],
            zipfile.ZIP_LZMA,
        )
        suffixes.append(".export.zip")
    inputs = tf.nest.flatten(case.inputs)
    numbers = numbers_of(
        model,
        inputs,
        cotangents_of(model, case),
        case.target,
        training=case.training,
        graph=case.graph,
    )
    np.savez_compressed(FOLDER / f"{name}.npz", **numbers)
    default = 1e-10 if inputs[0].dtype == np.float64 else 1e-6
    return {
        "files": [name + suffix for suffix in suffixes],
        "class": type(model).__name__,
        "training": case.training,
        "graph": case.graph,
        "tolerance": case.tolerance or default,
    }


def cotangents_of(model, case):
    """Random numbers in the shapes of the outputs of training (which may be more)."""
    rng = np.random.default_rng(11)
    state = [v.numpy().copy() for v in model.variables]
    shapes = [tuple(o.shape) for o in tf.nest.flatten(model(case.inputs, training=case.training))]
    for variable, value in zip(model.variables, state, strict=True):
        variable.assign(value)
    for layer in model.layers:
        if getattr(layer, "stateful", False):
            layer.reset_state()
    return [rng.normal(size=shape) for shape in shapes]


def write_references():
    """Writes the outputs of `REFERENCES`; returns the configs of the layers."""
    arrays, entries = {}, {}
    for seed, (name, reference) in enumerate(REFERENCES.items()):
        for dtype in ("float64", "float32")[: 1 + reference.single]:
            keras.utils.set_random_seed(seed)
            layer = reference.make(dtype)
            inputs = single(reference.inputs, dtype)
            if reference.adapt is not None:
                layer.adapt(reference.adapt)
            config = keras.saving.serialize_keras_object(layer)
            mode = arguments_of(reference.mode)
            outputs = call(layer, tf.nest.flatten(inputs), **mode)
            if getattr(layer, "inference", None) == "moving":
                mode = {}  # the call has set the statistics
            rng = np.random.default_rng(12)
            cotangents = [rng.normal(size=output.shape) for output in outputs]
            key = f"{name}_{dtype}"
            numbers = {
                **{f"input_{i}": x for i, x in enumerate(tf.nest.flatten(inputs))},
                **{f"cotangent_{i}": c for i, c in enumerate(cotangents)},
                **weights_of(layer),
                **outputs_and_gradients(
                    layer, tf.nest.flatten(inputs), cotangents, graph=reference.graph, **mode
                ),
            }
            arrays |= {f"{key}/{k}": v for k, v in numbers.items()}
            entries[key] = {
                "config": config,
                "mode": reference.mode if mode else {},
                "graph": reference.graph,
                "adapt": None if reference.adapt is None else np.asarray(reference.adapt).tolist(),
                "tolerance": tolerance_of(reference.tolerance, dtype),
            }
    np.savez_compressed(FOLDER / "reference_outputs.npz", **arrays)
    return entries


def tolerance_of(tolerance, dtype):
    """Float32 results of solvers are compared as those of closed forms in float32, or nearly."""
    if dtype == "float64":
        return tolerance or 1e-12
    return 3e-7 if tolerance is None else 2e-6


def main():
    """Writes everything."""
    FOLDER.mkdir(exist_ok=True)
    manifest = {
        "proxnet_tf": proxnet_tf.__version__,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for seed, (name, build) in enumerate(CASES.items()):
            keras.utils.set_random_seed(seed)
            manifest["cases"][name] = save(name, build(), pathlib.Path(scratch))
    manifest["objects"] = {
        name: keras.saving.serialize_keras_object(build()) for name, build in OBJECTS.items()
    }
    manifest["references"] = write_references()
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, sort_keys=True) + "\n")
    cca = LinearCCA(2, ridge=0.1).fit(*VIEWS[:2])
    np.savez_compressed(
        FOLDER / "linear_cca.npz",
        x=VIEWS[0],
        y=VIEWS[1],
        correlations=cca.correlations_,
        **{f"weights_{i}": w for i, w in enumerate(cca.weights_)},
        **{f"means_{i}": m for i, m in enumerate(cca.means_)},
        **{f"projections_{i}": p for i, p in enumerate(cca.transform(*VIEWS[:2]))},
    )


if __name__ == "__main__":
    main()
