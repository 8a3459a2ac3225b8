"""Kernel features that respect invariances (section 3 and the appendix on kernel warping)."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from proxnet_tf.checks import HasLam, at_least_float32, check_number
from proxnet_tf.layers.kernels.invariance import Invariance, finite_matrix
from proxnet_tf.layers.monitor import Monitor, check_monitor
from proxnet_tf.ops import kernels
from proxnet_tf.ops.convex.chain import as_rows
from proxnet_tf.ops.convex.smooth import ProxSolution, smooth_prox
from proxnet_tf.ops.linear.number import check_real
from proxnet_tf.ops.linear.report import exact

_SHORT_NAMES = {"gaussian": "ExponentiatedQuadratic", "laplace": "MaternOneHalf"}


@keras.saving.register_keras_serializable(package="proxnet_tf")
class ProxKernelFeatures(HasLam, keras.layers.Layer):
    """Nystroem features of a kernel after the proximal map of invariances.

        (I + Zt Zt^T/lam)^power phi(x),    phi(x) = K_W^{-1/2} k_W(x)

    with W the landmarks and Zt the embedded representers of the quadratic invariances: power -1 is
    the proximal map of R(f) = 1/2 sum_i <z_i, f>^2, power -1/2 kernel warping. With a
    "gradient_variation" there is no closed form, and a solver runs for every row (power -1 only).

    Args:
        kernel: name of a kernel in `tfp.math.psd_kernels`, or "gaussian", "laplace"; or a
            registered callable (dtype) -> kernel. Derivatives need a twice differentiable one.
        landmarks: (m, d) array of points, such as some rows of the training data.
        kernel_options: the kernel's arguments, {"length_scale": 0.3} for instance.
        invariances: names or `Invariance` objects; ("gradient_flatness",) by default, () for none.
        lam: > 0; 1 by default; large: plain features. A variable that `LambdaSchedule` sets.
        power: -1 (the default) or -0.5.
        monitor: True for the metric `unsolved` of the solves for a "gradient_variation" and of
            their gradients (zero without one, where there is a closed form). "all" adds `residual`,
            `iterations` and `backward_residual`; another string is a prefix of the names. False by
            default: `status` reads the last eager call.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: (batch, ..., d).

    Output:
        (batch, ..., m) in the layer's compute dtype; smooth in the inputs.

    The landmarks and all that follows from them are weights: they are saved, loaded and set like
    those of any layer.

    Raises:
        ValueError: an unknown kernel, a value out of range, landmarks of another width than the
            inputs.

    Example:
        >>> features = ProxKernelFeatures("gaussian", lam=0.1, kernel_options={"length_scale": 0.3},
        ...                               landmarks=[[0.0, 0.0], [0.5, 1.0], [1.0, 0.0]])
        >>> features(tf.constant([[0.2, 0.1]])).shape
        TensorShape([1, 3])

    Reference: Li, Ma, Zhang (2020), appendix on kernel warping, the last equation.
    """

    def __init__(
        self,
        kernel: str | Callable[[tf.DType], Any],
        *,
        landmarks: Any,
        kernel_options: dict[str, float] | None = None,
        invariances: Any = ("gradient_flatness",),
        lam: float = 1.0,
        power: float = -1.0,
        monitor: bool | str = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel = kernel
        self.kernel_options = dict(kernel_options or {})
        self.landmarks = finite_matrix("landmarks", landmarks)
        self.invariances = [
            Invariance(i) if isinstance(i, str) else i for i in _listed(invariances)
        ]
        if power not in (-1.0, -0.5):
            raise ValueError(f"`power` must be -1.0 or -0.5. Received: power={power!r}")
        self.power = float(power)
        if self.power != -1.0 and not all(i.quadratic for i in self.invariances):
            raise ValueError("A 'gradient_variation' has a proximal map only: use power=-1.")
        self.monitor = check_monitor(monitor)
        self.supports_masking = True
        self.supports_jit = False  # because of TensorFlow Probability's kernels
        self.add_lam(lam)
        self._monitor = Monitor(
            self, self.monitor, advice="Raise `lam`, or the `smoothing` of the gradient variation."
        )
        self._kernel(tf.float32, validate_args=True)  # an unknown name or option raises here
        self._constants = self._prepare()

    def _kernel(self, dtype: tf.DType, validate_args: bool = False) -> Any:
        """The kernel with its parameters in `dtype`."""
        if callable(self.kernel):
            return self.kernel(dtype)
        from tensorflow_probability import math as tfp_math

        kernels_of_tfp = tfp_math.psd_kernels
        name = _SHORT_NAMES.get(self.kernel, str(self.kernel))
        kernel_class = getattr(kernels_of_tfp, name, None)
        base = kernels_of_tfp.PositiveSemidefiniteKernel
        if not isinstance(kernel_class, type) or not issubclass(kernel_class, base):
            raise ValueError(
                "`kernel` must be 'gaussian', 'laplace', a name in tfp.math.psd_kernels such as "
                f"'MaternFiveHalves', or a callable. Received: kernel={self.kernel!r}"
            )
        options = {
            option: tf.constant(check_number(option, value), dtype)
            for option, value in self.kernel_options.items()
        }
        try:
            return kernel_class(**options, validate_args=validate_args)
        except (TypeError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"`kernel_options` must be numbers that {name} of psd_kernels takes, in their "
                "ranges: amplitude and length_scale are positive, for instance. Received: "
                f"kernel_options={self.kernel_options!r} ({error})"
            ) from error

    def build(self, input_shape: Any) -> None:
        size = input_shape[-1]
        if size != self.landmarks.shape[1]:
            raise ValueError(
                "ProxKernelFeatures needs dense inputs whose last axis has the landmarks' "
                f"{self.landmarks.shape[1]} features. Received: inputs of the shape "
                f"{tuple(input_shape)}"
            )
        names = ["landmarks", "whitening", "basis", "spectrum"]
        names += [f"representers_{i}" for i in range(len(self._constants) - len(names))]
        # As initial values, since Keras may create a weight later.
        weights = [
            self.add_weight(
                name=name,
                shape=value.shape,
                initializer=_constant(value),
                trainable=False,
                dtype=at_least_float32(self.variable_dtype).name,
                autocast=False,
            )
            for name, value in zip(names, self._constants, strict=True)
        ]
        self._points, self._whitening, self._basis, self._spectrum, *self._variations = weights
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: size})
        self.built = True

    def _prepare(self) -> list[np.ndarray]:
        """Everything that depends neither on the input nor on lam, in float64.

        Zt Zt^T of the quadratic invariances = basis diag(spectrum) basis^T.
        """
        kernel, landmarks = self._kernel(tf.float64), self.landmarks
        # Smaller eigenvalues of K_W would only amplify the rounding of k_W(x).
        double = at_least_float32(self.compute_dtype) == tf.float64
        whitening = kernels.nystroem(kernel, landmarks, 1e-12 if double else 1e-6)
        energy = tf.zeros_like(whitening)
        variations = []
        for invariance in self.invariances:
            embedded = kernels.embedded_representers(
                kernel, landmarks, whitening, invariance.functionals(landmarks)
            )
            if invariance.quadratic:
                energy += invariance.weight * tf.matmul(embedded, embedded, transpose_b=True)
            else:
                variations.append(embedded)
        spectrum, basis = tf.linalg.eigh(energy)
        constants = [landmarks, whitening, basis, tf.maximum(spectrum, 0), *variations]
        return [np.asarray(c) for c in constants]

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        dtype = at_least_float32(self.compute_dtype)
        rows = as_rows(tf.cast(check_real("The input", inputs), dtype))
        points, whitening, basis, spectrum = (
            tf.cast(v, dtype) for v in (self._points, self._whitening, self._basis, self._spectrum)
        )
        lam = self.lam_in(dtype)
        plain = tf.matmul(self._kernel(dtype).matrix(rows, points), whitening)
        if self._variations:
            found = self._solve(plain, basis, spectrum, lam, training)
            features, report = found.point, found.report
        else:
            along = tf.matmul(plain, basis) * (1 + spectrum / lam) ** self.power
            features = tf.matmul(along, basis, transpose_b=True)
            report = exact(features)
        given = {"the input": rows, "lam": lam, "the kernel of the input": plain}
        self._monitor.forward(report, None, lambda: given)
        shape = tf.concat([tf.shape(inputs)[:-1], tf.shape(points)[:1]], axis=0)
        features = tf.ensure_shape(
            tf.reshape(features, shape), self.compute_output_shape(inputs.shape)
        )
        return tf.cast(self.nan_without(lam, features), self.compute_dtype)

    def _solve(
        self,
        plain: tf.Tensor,
        basis: tf.Tensor,
        spectrum: tf.Tensor,
        lam: tf.Tensor,
        training: bool,
    ) -> ProxSolution:
        """argmin_v 1/2 v^T Zt Zt^T v + sum of the variations + lam/2 ||v - phi(x)||^2."""
        varying = [i for i in self.invariances if not i.quadratic]
        columns = [tf.cast(v, plain.dtype) for v in self._variations]
        size = self._points.shape[1]

        def regularizer(v: tf.Tensor) -> tf.Tensor:
            value = tf.reduce_sum(spectrum * tf.matmul(v, basis) ** 2, axis=-1) / 2
            for invariance, representers in zip(varying, columns, strict=True):
                slopes = tf.reshape(
                    tf.matmul(v, representers),
                    [tf.shape(v)[0], representers.shape[1] // size, size],
                )
                squares = tf.reduce_sum(slopes**2, axis=-1) + invariance.smoothing**2
                value += invariance.weight * tf.reduce_sum(tf.sqrt(squares), axis=-1)
            return value

        return smooth_prox(regularizer, plain, lam, observer=self._monitor.backward(training))

    @property
    def status(self) -> dict[str, float]:
        """The metrics of `monitor` since their last reset; without them, of the last eager call."""
        return self._monitor.status

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], len(self.landmarks))

    def get_config(self) -> dict[str, Any]:
        kernel, serialize = self.kernel, keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "kernel": kernel if isinstance(kernel, str) else serialize(kernel),
            "landmarks": self.landmarks.tolist(),
            "kernel_options": self.kernel_options,
            "invariances": [serialize(i) for i in self.invariances],
            "lam": self.initial_lam,
            "power": self.power,
            "monitor": self.monitor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ProxKernelFeatures":
        config = dict(config)
        config["invariances"] = [
            keras.saving.deserialize_keras_object(i) if isinstance(i, dict) else i
            for i in config["invariances"]
        ]
        if isinstance(config["kernel"], dict):
            config["kernel"] = keras.saving.deserialize_keras_object(config["kernel"])
        return cls(**config)


def _constant(value: np.ndarray) -> Callable[..., tf.Tensor]:
    """An initializer; that of Keras would round to float32 first."""
    return lambda shape, dtype: tf.constant(value, dtype)


def _listed(value: Any) -> list[Any]:
    listed = [value] if isinstance(value, str | Invariance) else value
    ok = isinstance(listed, list | tuple)
    if not ok or not all(isinstance(one, str | Invariance) for one in listed):
        raise ValueError(
            "`invariances` must be a name or an `Invariance`, or a list of them; () for none. "
            f"Received: invariances={value!r}"
        )
    return list(listed)
