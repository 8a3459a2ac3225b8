"""`ProxKernelFeatures`: contract, agreement with the exact kernels, the P1/P2 identity."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from exact_kernels import invariant_inner_products

from proxnet_tf.layers.kernels.features import ProxKernelFeatures
from proxnet_tf.layers.kernels.invariance import Invariance
from proxnet_tf.ops import kernels

RNG = np.random.default_rng(3)
DATA = RNG.standard_normal((30, 2))
GAUSSIAN = {"length_scale": 0.8}


def make_cubic(dtype):
    one = tf.ones([], dtype)
    linear = tfp.math.psd_kernels.Linear(bias_amplitude=one, slope_amplitude=one)
    return linear * linear * linear


def features(**arguments):
    defaults = dict(landmarks=DATA[:12], kernel_options=GAUSSIAN, dtype="float64")
    return ProxKernelFeatures("gaussian", **{**defaults, **arguments})


@pytest.mark.parametrize("power", [-1.0, -0.5])
@pytest.mark.parametrize("kind", ["gradient_flatness", "graph_laplacian"])
def test_inner_products_equal_the_exact_ones_where_the_landmarks_span_all(kind, power):
    """Cubics of two variables have ten dimensions; 12 landmarks span them, Nystroem is exact."""
    layer = ProxKernelFeatures(
        make_cubic, landmarks=DATA[:12], invariances=[kind], lam=0.7, power=power, dtype="float64"
    )
    x, y = layer(DATA[12:16]), layer(DATA[16:])
    lam = float(layer.lam.value)
    exact = invariant_inner_products(
        layer._kernel(tf.float64),
        Invariance(kind).functionals(DATA[:12]),
        DATA[12:16],
        DATA[16:],
        lam,
        power,
    )
    np.testing.assert_allclose(tf.matmul(x, y, transpose_b=True), exact, atol=1e-5)


def embedded(layer):
    """The representers of the derivatives at the landmarks, as columns."""
    kernel, points = layer._kernel(tf.float64), kernels.Functionals(DATA[:12], derivative=True)
    whitening = kernels.nystroem(kernel, DATA[:12])
    return kernels.embedded_representers(kernel, DATA[:12], whitening, points).numpy()


def test_p1_and_p2_are_one_problem_with_another_spectrum():
    """Section 3: h = (lam I + grad R) f / lam predicts the same, and squares the spectrum."""
    lam = 0.5
    plain = features(invariances=[])(DATA).numpy()
    layer = features(lam=lam)
    proximal = layer(DATA).numpy()
    z = embedded(layer)
    mu, vectors = np.linalg.eigh(z @ z.T)
    f = RNG.standard_normal(12)
    h = f + z @ z.T @ f / lam
    np.testing.assert_allclose(proximal @ h, plain @ f, atol=1e-9)
    along = vectors.T @ f
    np.testing.assert_allclose(((z.T @ f) ** 2).sum() / 2, (mu * along**2).sum() / 2, rtol=1e-9)
    np.testing.assert_allclose(lam**2 * h @ h, ((lam + mu) ** 2 * along**2).sum(), rtol=1e-9)


def test_gradient_variation_minimises_its_objective():
    smoothing = 0.2
    layer = features(
        invariances=[Invariance("gradient_variation", weight=0.3, smoothing=smoothing)], lam=0.5
    )
    solved = layer(DATA[12:15]).numpy()
    plain = features(invariances=[])(DATA[12:15]).numpy()
    z = embedded(layer)

    def objective(v):
        slopes = (v @ z).reshape(len(v), 12, 2)
        variation = 0.3 * np.sqrt((slopes**2).sum(axis=-1) + smoothing**2).sum(axis=-1)
        return variation + 0.25 * ((v - plain) ** 2).sum(axis=-1)

    best = objective(solved)
    for size in (1e-4, 1e-2, 1.0):
        rival = solved + size * RNG.standard_normal((50, 1, 12))
        assert all((objective(r) > best).all() for r in rival)


def test_input_gradient_equals_central_differences():
    for invariances in (["gradient_flatness"], [Invariance("gradient_variation", smoothing=0.3)]):
        layer = features(invariances=invariances, lam=0.5)
        x, weights = DATA[12:14], RNG.standard_normal((2, 12))
        # Row i of x once for every feature, moved by h in that feature.
        rows, cotangents = np.repeat(x, 2, axis=0), np.repeat(weights, 2, axis=0)
        steps = 1e-6 * np.tile(np.eye(2), (2, 1))

        @tf.function
        def value_and_gradient(points, layer=layer, cotangents=cotangents):
            with tf.GradientTape() as tape:
                tape.watch(points)
                value = tf.reduce_sum(layer(points) * cotangents, axis=-1)
            return value, tape.gradient(value, points)

        up, down = (value_and_gradient(tf.constant(rows + s))[0] for s in (steps, -steps))
        gradient = value_and_gradient(tf.constant(rows))[1]
        numeric = (up - down).numpy().reshape(2, 2) / 2e-6
        np.testing.assert_allclose(gradient[::2], numeric, atol=1e-6)


def test_float32_features_of_close_landmarks():
    """K_W is singular to rounding: inner products stay right, nothing is amplified."""
    close = np.concatenate([DATA[:12], DATA[:12] + 1e-5])
    single = features(landmarks=close, lam=0.1, dtype="float32")(DATA).numpy()
    double = features(lam=0.05)(DATA).numpy()  # every representer twice is half the lambda
    np.testing.assert_allclose(single @ single.T, double @ double.T, atol=2e-3)


def test_lam_moves_between_plain_and_flat_features():
    x = DATA[:5]
    layer = features(lam=1.0)
    layer.lam.assign(1e12)
    np.testing.assert_allclose(layer(x), features(invariances=[])(x), atol=1e-9)
    sequence = features(lam=1.0)(np.stack([x, x]))
    np.testing.assert_allclose(sequence[1], features(lam=1.0)(x), atol=1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ProxKernelFeatures("gausian", landmarks=DATA), "psd_kernels"),
        (lambda: features(power=-2.0), "`power` must be -1.0 or -0.5"),
        (lambda: features(lam=-1.0), "lam"),
        (lambda: features(invariances=["gradient_variation"], power=-0.5), "power=-1"),
        (lambda: features(invariances=["flat"]), "gradient_flatness"),
        (lambda: features(landmarks=DATA[0]), "rows, features"),
        (lambda: features(landmarks=np.zeros((0, 2))), r"neither of them 0.*\(0, 2\)"),
        (lambda: Invariance("gradient_flatness", points=np.zeros((3, 0))), "neither of them 0"),
        (lambda: features(kernel_options={"length_scale": 0.0}), "numbers that Exponentiated"),
        (lambda: features(kernel_options={"length_scale": "wide"}), "`length_scale` must be a fin"),
        (lambda: features(kernel_options={"wide": 0.3}), "numbers that Exponentiated.*'wide': 0.3"),
        (lambda: ProxKernelFeatures("Constant", landmarks=DATA), "psd_kernels.*Received"),
        (lambda: ProxKernelFeatures("__name__", landmarks=DATA), "psd_kernels.*Received"),
        (lambda: ProxKernelFeatures(None, landmarks=DATA), "psd_kernels.*Received"),
        (lambda: features(invariances=None), r"`invariances` must be .*\(\) for none.*None"),
        (lambda: features(invariances=[3]), r"`invariances` must be a name .*\[3\]"),
        (lambda: features()(np.zeros((2, 3))), r"landmarks' 2 features.*\(2, 3\)"),
        (lambda: Invariance("graph_laplacian", num_neighbors=0), "num_neighbors"),
    ],
)
def test_bad_input_says_what_and_how(make, message):
    with pytest.raises(ValueError, match=message):
        make()
