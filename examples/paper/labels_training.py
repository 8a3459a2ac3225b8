"""Training for `labels.py`: one graph for all settings, labels and seeds of a method on a pair.

Learning rate, strengths, ridge and lam are variables or arguments of that graph, and weights are
set back between runs, so that nothing is traced twice. Its losses are those of the package:
`tests/examples/paper/test_labels.py` compares them with `MultiviewClassifier`, `DCCA` and `DCCAE`.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from proxnet_tf import CCARegularizer, LinearCCA, ProxCCA, solvers

COMPONENTS = 10
HIDDEN = 64
# A quarter faster than the default tolerance, 1e-8.
SOLVER = solvers.Newton(tolerance=1e-4)


def make_encoder(shape):
    """From a view to its code of mean 0 and variance 1: a hidden layer, or two convolutions."""
    norm = layers.BatchNormalization(momentum=0.9, center=False, scale=False)
    if len(shape) == 1:
        hidden = [layers.Dense(HIDDEN, activation="relu")]
    else:
        hidden = [
            layers.Conv2D(16, 4, strides=4, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
        ]
    return keras.Sequential([keras.Input(shape), *hidden, layers.Dense(COMPONENTS), norm])


def make_dense(width, units):
    hidden = layers.Dense(HIDDEN, activation="relu")
    return keras.Sequential([keras.Input((width,)), hidden, layers.Dense(units)])


def barlow_twins(f, g, off_diagonal):
    """sum_i (1 - C_ii)^2 + off_diagonal sum_{i != j} C_ij^2, C the correlations of f_i and g_j."""
    f, g = ((x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0) for x in (f, g))
    squares = tf.matmul(f, g, transpose_a=True) / tf.cast(tf.shape(f)[0], f.dtype)
    squares = tf.square(squares - tf.eye(f.shape[1]))
    diagonal = tf.reduce_sum(tf.linalg.diag_part(squares))
    return diagonal + off_diagonal * (tf.reduce_sum(squares) - diagonal)


def vicreg(f, g, covariance):
    """Squared distance of a pair + hinge at deviation 1 + covariance x off-diagonal covariances.

    The first two have the weight 1 each, as (25, 25) in the paper of VICReg; there `covariance` is
    1/25.
    """
    loss = tf.reduce_mean(tf.square(f - g))
    for x in (f, g):
        x = x - tf.reduce_mean(x, 0)
        s = tf.matmul(x, x, transpose_a=True) / tf.cast(tf.shape(x)[0] - 1, x.dtype)
        variances = tf.linalg.diag_part(s)
        loss += tf.reduce_mean(tf.nn.relu(1.0 - tf.sqrt(variances + 1e-4)))
        off = tf.reduce_sum(tf.square(s)) - tf.reduce_sum(tf.square(variances))
        loss += covariance * off / x.shape[1]
    return loss


def linear(part, ridge, is_image):
    """Linear CCA of the training rows, as a function from views to codes of width 10."""

    def rows(views):
        """The columns: those of the views, or the means of 4 x 4 pixels."""
        if is_image:
            views = [x.reshape(len(x), 8, 4, 8, 4, -1).mean((2, 4)) for x in views]
        return [x.reshape(len(x), -1) for x in views]

    def encode(views):
        codes = [np.asarray(code, "float32") for code in map(cca.project, rows(views), range(2))]
        return [np.pad(code, ((0, 0), (0, COMPONENTS - code.shape[1]))) for code in codes]

    flat = rows(part.views)
    cca = LinearCCA(min(COMPONENTS, *(x.shape[1] for x in flat)), ridge=ridge).fit(*flat)
    return encode


class Trainer:
    """Trains one kind of model.

    Kinds: "plain", "dropout" (of the codes), "rrm", "prox", "prox+" (the correlation in the loss,
    too), "own" (the layer's own envelope in the loss, too), "envelope" (the envelope alone, without
    the output of the layer), "barlow", "vicreg"; the first stages "dcca" and "dccae", which have no
    predictors; "codes", predictors on fixed codes.

    Args:
        kind: as above.
        shapes: of both views.
        classes: number of classes.
    """

    def __init__(self, kind, shapes, classes):
        self.kind = kind
        self.first_stage = kind in ("dcca", "dccae")
        self.encoders = [] if kind == "codes" else [make_encoder(shape) for shape in shapes]
        self.predictors, self.decoders = [], []
        if not self.first_stage:
            self.predictors = [make_dense(COMPONENTS, classes) for _ in shapes]
        if kind == "dccae":
            self.decoders = [make_dense(COMPONENTS, int(np.prod(shape))) for shape in shapes]
        self.ridge = tf.Variable(1e-4, dtype="float64")
        self.prox = self.penalty = None
        if kind in ("prox", "prox+", "own", "envelope"):
            weight = float(kind in ("own", "envelope"))  # times that of the settings
            self.prox = ProxCCA(COMPONENTS, weight=weight, inference="moving", solver=SOLVER)
            self.prox.build([(None, COMPONENTS)] * 2)
            self.prox.epsilon = self.ridge
        if kind in ("rrm", "prox+", "dcca", "dccae"):
            self.penalty = CCARegularizer(1.0, num_components=COMPONENTS)
            self.penalty.epsilon = self.ridge
        parts = [*self.encoders, *self.predictors, *self.decoders]
        parts += [self.prox] if self.prox else []
        self.trained = [w.value for part in parts for w in part.trainable_weights]
        self.initial = [w.numpy() for w in self.trained]
        rest = [w.value for part in parts for w in part.non_trainable_weights]
        self.rest = [(w, w.numpy()) for w in rest]
        self.moments = [(tf.Variable(0.0 * w), tf.Variable(0.0 * w)) for w in self.trained]
        self.options = {name: tf.Variable(0.0) for name in ("lr", "strength", "second", "rate")}
        self._train = tf.function(self._train_steps, reduce_retracing=True)
        self.codes = tf.function(self._codes, reduce_retracing=True)
        self._logits = tf.function(self._logits_of, reduce_retracing=True)

    def reset(self, seed, **options):
        """Initial weights by the seed (Glorot's; vectors as built), no moments, settings."""
        generator = np.random.default_rng([seed, 2])
        for weight, initial in zip(self.trained, self.initial, strict=True):
            value = initial
            if len(weight.shape) > 1:
                area = np.prod(weight.shape[:-2])
                bound = np.sqrt(6.0 / (area * (weight.shape[-2] + weight.shape[-1])))
                value = generator.uniform(-bound, bound, weight.shape)
            weight.assign(value)
        for weight, value in self.rest:
            weight.assign(value)
        for moment in (m for pair in self.moments for m in pair):
            moment.assign(tf.zeros_like(moment))
        self.ridge.assign(options.pop("ridge", 1e-4))
        for name, value in options.items():
            self.options[name].assign(value)

    def train(self, part, *, seed, epochs, batch, lams=None):
        """Trains on a `Part`; lams: lam of each epoch."""
        count = len(part.labels)
        generator = np.random.default_rng([seed, 3])
        used = count // batch * batch
        order = [generator.permutation(count)[:used].reshape(-1, batch) for _ in range(epochs)]
        order = np.concatenate(order).astype("int32")
        lams = np.ones(epochs) if lams is None else np.asarray(lams)
        lams = np.repeat(lams, len(order) // epochs).astype("float32")
        views = [tf.constant(x) for x in part.views]
        loss = self._train(views, tf.constant(part.labels), tf.constant(part.weights), order, lams)
        return float(loss)

    def _train_steps(self, views, labels, weights, order, lams):
        last = 0.0
        for step in tf.range(tf.shape(order)[0]):
            rows = order[step]
            batch = [tf.gather(x, rows) for x in views]
            if self.prox:
                self.prox.lam.assign(lams[step])
            with tf.GradientTape() as tape:
                last = self.loss(batch, tf.gather(labels, rows), tf.gather(weights, rows), step)
            self._adam(tape.gradient(last, self.trained), step)
        return last

    def _adam(self, gradients, step):
        powers = tf.pow([0.9, 0.999], tf.cast(step + 1, "float32"))
        for weight, (m, v), gradient in zip(self.trained, self.moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=self.options["lr"],
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
            )

    def loss(self, views, labels, weights, step):
        """The loss of a batch, a scalar."""
        strength, second = self.options["strength"], self.options["second"]
        codes = self._codes(views, training=True)
        loss = 0.0
        if self.penalty:
            self.penalty(codes)
            weight = 1.0 if self.first_stage else second if self.kind == "prox+" else strength
            loss += weight * self.penalty.losses[-1]
        if self.kind == "dccae":
            for decoder, x, code in zip(self.decoders, views, codes, strict=True):
                error = tf.reshape(x, [len(x), -1]) - decoder(code, training=True)
                loss += strength * tf.reduce_mean(tf.square(error))
        elif self.kind == "barlow":
            loss += strength * barlow_twins(*codes, second)
        elif self.kind == "vicreg":
            loss += strength * vicreg(*codes, second)
        elif self.prox:
            moved = self.prox(codes, training=True)
            if self.prox.weight:
                loss += strength * self.prox.losses[-1]
            codes = codes if self.kind == "envelope" else moved
        elif self.kind == "dropout":
            keep = 1.0 - self.options["rate"]
            for j, x in enumerate(codes):
                drawn = tf.random.stateless_uniform(tf.shape(x), [2 * step + j, 5])
                codes[j] = tf.where(drawn < keep, x / keep, 0.0)
        for predictor, code in zip(self.predictors, codes, strict=not self.first_stage):
            logits = predictor(code, training=True)
            entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss += tf.reduce_mean(weights * entropy) / len(self.predictors)
        return loss

    def _codes(self, views, training=False):
        if self.kind == "codes":
            return views
        return [e(x, training=training) for e, x in zip(self.encoders, views, strict=True)]

    def _logits_of(self, views, inference):
        codes = self._codes(views)
        if inference == "moving":
            codes = self.prox(codes, training=False)
        elif inference == "batch":
            codes = self.prox(codes, training=True)
        return tf.stack([p(x, training=False) for p, x in zip(self.predictors, codes, strict=True)])

    def logits(self, views, inference="identity", batch=100):
        """Logits of every view by itself (2, n, classes).

        `inference` is what the proximal layer does; "batch" solves on batches of `batch` rows.
        """
        views = [tf.constant(x) for x in views]
        if inference != "batch":
            return self._logits(views, inference).numpy()
        starts = range(0, len(views[0]), batch)
        pieces = [self._logits([x[i : i + batch] for x in views], "batch") for i in starts]
        return np.concatenate(pieces, 1)
