"""One problem in D x D with its NumPy reference, and the map of rows, for the multiview modules."""

import numpy as np
import tensorflow as tf

from proxnet_tf.ops.multiview import problem
from proxnet_tf.ops.multiview.correlation import CCA
from proxnet_tf.ops.multiview.finite_difference import by_finite_difference
from proxnet_tf.ops.multiview.gram import apply_step, gram_of
from proxnet_tf.ops.multiview.of_gram import map_of_gram
from proxnet_tf.ops.multiview.problem import bare_metric
from tests.helpers import multiview_reference as reference
from tests.helpers.data import shared_views


class Case:
    """Rows, what `reduce_gram` makes of them, and value and slope of (4) in NumPy."""

    def __init__(self, kind, x=None, *, lam=1.0, epsilon=1e-2, n=40, seed=0):
        self.kind, self.lam, self.epsilon = kind, lam, epsilon
        self.x = shared_views(n, kind.sizes, seed) if x is None else np.asarray(x)
        count, _, gram, rounding = gram_of(tf.constant(self.x))
        numbers = (tf.constant(v, tf.float64) for v in (lam, epsilon))
        self.reduction = problem.reduce_gram(kind, gram, count, rounding, *numbers)
        self.data = self.reduction.problem
        self.root = self.data.root.numpy()
        self.within = np.eye(kind.width) - self.data.unused.numpy()
        objective = "cca" if isinstance(kind, CCA) else "gcca"
        numbers = kind.sizes, lam, kind.num_components, epsilon
        self._arguments = len(self.x), *numbers, objective

    def reference(self, w):
        """Objective and F(W)."""
        return reference.reduced_value_and_slope(np.asarray(w), self.root, *self._arguments)

    def minimiser(self):
        return reference.reduced_minimiser(self.root, self.within, *self._arguments)

    def differential(self, w, change, h=1e-5):
        """H V for V = `change`, by central differences of F."""
        above, below = (self.reference(w + s * h * change)[1] for s in (1, -1))
        return (above - below) / (2 * h)

    def random(self, seed=1, scale=1.0):
        """A direction inside the row spaces of the views."""
        noise = np.random.default_rng(seed).normal(size=self.root.shape)
        return scale * noise @ self.within

    def away(self):
        """A point that solves nothing."""
        return self.root + self.random(2, 0.3)

    def point(self, w):
        return problem.evaluate(self.kind, self.data, tf.constant(w))

    def hessian(self, model, point, wide=False):
        ingredients = model.ingredients_at(self.kind, self.data, point)
        decomposed = model.decompose(self.kind, ingredients, wide)
        return model.hessian_at(self.kind, self.data, point, decomposed)

    def matrix(self, function, hessian):
        """The matrix of a linear map of coordinates, such as `product` of a model."""
        size, width = self.kind.width**2, self.kind.width
        units = np.eye(size).reshape(size, width, width)
        return np.stack([np.ravel(function(self.kind, hessian, tf.constant(e))) for e in units])


def deficient_rows(n, sizes, seed=3):
    """Views of which the first has a repeated column and the last a constant one."""
    x = shared_views(n, sizes, seed)
    x[:, 1], x[:, -1] = x[:, 0], 0.7
    return x


def hessian_times(case, model, point, hessian, change):
    """H V in the coordinates of W, through those of the model."""
    kind, basis = case.kind, point.spectrum.basis
    v = model.enter(kind, hessian, tf.constant(change) @ basis)
    product = model.leave(kind, hessian, model.product(kind, hessian, v))
    return product.numpy() @ basis.numpy().T


def inverses(case, point):
    """Of T^-1 T^-T, without and with the positive part of t Gam'."""
    bare, pull = bare_metric(case.kind, case.data, point.spectrum).numpy(), point.pull.numpy()
    values, vectors = np.linalg.eigh(pull)
    positive = vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T
    return np.linalg.inv(bare), np.linalg.inv(bare + positive)


def moved(x, kind, epsilon, lam, settings, *, valid=None, gradient="implicit", observer=None):
    """The rows of P, and what `map_of_gram` says of them."""

    def prox(x, observer=None):
        sample = gram_of(x, valid)
        found = map_of_gram(kind, sample, lam, epsilon, settings, dtype=x.dtype, observer=observer)
        return apply_step(x, valid, sample.mean, found.step), sample, found

    output, _, found = prox(x, observer)
    if gradient == "finite_difference":
        output = by_finite_difference(output, prox, x, valid, observer)
    return output, found
