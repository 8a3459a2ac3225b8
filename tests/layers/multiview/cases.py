"""The two proximal layers side by side, and what they should return, from the NumPy reference."""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest

from proxnet_tf import ProxCCA, ProxGCCA
from proxnet_tf.solvers import Newton
from tests.helpers import multiview_reference as reference
from tests.helpers.data import COMPONENTS, CORE, SIZES, THREE, shared_views

# Compiling for every shape would take most of the time; jit_compile=True is tested where named.
PLAIN = Newton(jit_compile=False)
TIGHT = Newton(1e-12, jit_compile=False)
EPSILON = 1e-2


class Kind(NamedTuple):
    """A layer with the widths and the number of components that most tests use."""

    name: str
    cls: type
    sizes: tuple[int, ...]
    k: int

    def layer(self, **options):
        defaults = dict(num_components=self.k, epsilon=EPSILON, solver=PLAIN)
        return self.cls(**(defaults | options))

    def joined(self, n, seed=0, dtype="float32"):
        return shared_views(n, self.sizes, seed).astype(dtype)

    def parts(self, x):
        return np.split(x, np.cumsum(self.sizes)[:-1], axis=-1)

    def views(self, n, seed=0, dtype="float32"):
        return self.parts(self.joined(n, seed, dtype))

    def sequences(self, seed=0):
        """Views (6, 4, d_j) and a random mask of their steps."""
        x = self.joined(24, seed).reshape(6, 4, -1)
        return x, np.random.default_rng(seed).random((6, 4)) < 0.7

    def expected(self, x, lam, k=None, epsilon=EPSILON):
        """The proximal map of rows side by side, float64, good to about 1e-6."""
        x = np.asarray(x, "float64")
        found = _expected(x.tobytes(), x.shape, self.sizes, lam, k or self.k, epsilon, self.name)
        return np.array(found)

    def expected_of_steps(self, x, valid, lam):
        """The same for sequences: the valid steps are the rows, the others stay."""
        moved = x.astype("float64")
        moved[valid] = self.expected(moved[valid], lam)
        return moved

    def expected_gradient(self, x, cotangent, lam, k=None, epsilon=EPSILON):
        """(lam/n) H^-1 of the cotangent, H the Hessian of the problem over all n x D entries."""
        x, n = np.asarray(x, "float64"), len(x)

        def slope(p):
            p = p.reshape(x.shape)
            of_l = reference.value_and_gradient(p, self.sizes, k or self.k, epsilon, self.name)[1]
            return (of_l + lam / n * (p - x)).ravel()

        p = self.expected(x, lam, k, epsilon).ravel()
        for _ in range(2):  # the first polishes the point
            h, eye = 1e-5, np.eye(p.size)
            hessian = np.stack([(slope(p + h * e) - slope(p - h * e)) / (2 * h) for e in eye])
            p = p - np.linalg.solve(hessian, slope(p))
        return np.linalg.solve(hessian, lam / n * cotangent.ravel()).reshape(x.shape)

    def correlation(self, x, k=None, epsilon=EPSILON):
        """The monitored correlation of rows side by side: the sum of the top k mu."""
        k = k or self.k
        value = reference.value_and_gradient(np.float64(x), self.sizes, k, epsilon, self.name)[0]
        return -value if self.name == "cca" else len(self.sizes) * k - value

    def encoded(self, layer):
        """Inputs, Dense encoders, the layer: symbolic."""
        keras.utils.set_random_seed(0)
        inputs = [keras.Input((size,)) for size in self.sizes]
        codes = [keras.layers.Dense(d)(x) for d, x in zip(self.sizes, inputs, strict=True)]
        return inputs, layer(codes)

    def regression(self, layer, **compile_options):
        """Encoders, the layer, a head."""
        inputs, moved = self.encoded(layer)
        joined = keras.layers.Concatenate()(moved)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(joined))
        model.compile(**({"optimizer": "sgd", "loss": "mse"} | compile_options))
        return model


@functools.lru_cache(maxsize=256)
def _expected(data, shape, sizes, lam, k, epsilon, name):
    x = np.frombuffer(data).reshape(shape)
    return reference.prox(x, sizes, lam, k, epsilon, name, descent=True)[0]


CCA = Kind("cca", ProxCCA, SIZES, COMPONENTS)
GCCA = Kind("gcca", ProxGCCA, THREE, CORE)
KINDS = (CCA, GCCA)
# For tests of what the kinds share: two views by default, more on request.
CCA_FIRST = pytest.mark.parametrize(
    "kind", [CCA, pytest.param(GCCA, marks=pytest.mark.slow)], ids=["cca", "gcca"]
)
