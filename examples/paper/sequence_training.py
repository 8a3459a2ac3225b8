"""Data, networks and training for `sequence_classification.py`.

A network of each kind (with an LSTM or a ProxLSTM, trained as it is or adversarially) is built
once; epsilon and lam are variables of its graph, and weights are reset between runs.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from padded import WithMask, by_length
from readers.sequences import load_imdb, load_spoken_arabic_digits, load_uci_har, load_uea

from proxnet_tf import AdversarialModel, ProxLSTM
from proxnet_tf.datasets import load_japanese_vowels
from proxnet_tf.models.adversarial import normalize_per_example

PREDICT = 100  # series at a time
STEPS = 16  # padded to a multiple of so many steps: few shapes to compile
REPETITIONS = 10  # of a digit by a speaker, one after the other in Spoken Arabic Digits


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set, its network, the sizes of its study, and the paper's accuracies.

    `epochs` are of the first stage, `fine_tune` of the second; `per_class` is how many training
    series a class has at most, `counts` are smaller numbers of them; `epsilons` are where the grid
    starts, in half decades; `least_lam` is the smallest decade of lam that is tried; `attacked` is
    how many test series are attacked at most.
    """

    title: str
    load: object
    units: int
    paper: tuple = ("", "", "")
    filters: int = 64
    kernel: int = 3
    batch: int = 64
    by_length: bool = False
    words: bool = False
    speakers: bool = False
    epsilons: tuple = (0, 1, 2)
    least_lam: int | None = None
    epochs: int = 100
    fine_tune: int = 50
    tuning_seeds: int = 2
    seeds: int = 10
    per_class: int | None = None
    counts: tuple = ()
    methods: tuple = ("LSTM", "AdvLSTM", "ProxLSTM", "both at once")
    examples: int | None = None
    attacked: int = 500

    def optimizer(self):
        if self.words:
            return keras.optimizers.Adam(
                keras.optimizers.schedules.ExponentialDecay(5e-4, 1, 0.9998)
            )
        return keras.optimizers.Adam(1e-3, weight_decay=1e-4)


def load_reviews(options):
    return load_imdb(
        options.data,
        num_words=options.words,
        max_length=options.steps,
        allow_pickle=options.allow_pickle,
    )


TASKS = {
    "japanese_vowels": Task(
        "Japanese Vowels",
        lambda options: load_japanese_vowels(),
        64,
        ("94.02 ± 0.72", "94.96 ± 0.44", "95.52 ± 0.63"),
        filters=32,
        batch=45,
        by_length=True,
        epochs=60,
        fine_tune=30,
        tuning_seeds=3,
        counts=(5, 10, 15, 20),
        methods=(*Task.methods, "ProxLSTM after AdvLSTM"),
    ),
    "har": Task(
        "UCI HAR",
        lambda options: load_uci_har(options.data),
        128,
        ("89.75 ± 0.59", "92.01 ± 0.18", "92.08 ± 0.23"),
        kernel=8,
    ),
    "arabic_digits": Task(
        "Spoken Arabic Digits",
        lambda options: load_spoken_arabic_digits(options.data),
        64,
        ("96.32 ± 0.55", "97.45 ± 0.38", "97.99 ± 0.29"),
        batch=50,
        by_length=True,
        speakers=True,
        per_class=100,
        epochs=20,
        fine_tune=10,
        seeds=3,
        attacked=200,
    ),
    "uea": Task("UEA", lambda options: load_uea(options.data, options.name), 64, by_length=True),
    "imdb": Task(
        "IMDB",
        load_reviews,
        64,
        ("92.65 ± 0.04", "93.65 ± 0.03", "94.16 ± 0.11"),
        words=True,
        epsilons=(-2, -1, 0),
        least_lam=-3,
        epochs=6,
        fine_tune=3,
        tuning_seeds=1,
        seeds=5,
        methods=(*Task.methods, "ProxLSTM after AdvLSTM"),
        examples=5000,
    ),
}


def make_model(task, data, recurrent, vocabulary):
    """The paper's network around a recurrent layer."""
    classes = int(data.labels.max()) + 1
    if task.words:
        inputs = keras.Input(data.values.shape[1:])
        y = keras.layers.Embedding(vocabulary, task.units, mask_zero=True)(inputs)
        y = keras.layers.Dense(30, activation="relu")(recurrent(y))
        return keras.Model(inputs, keras.layers.Dense(classes)(y))
    inputs = keras.Input((None, data.values.shape[-1]))
    y = keras.layers.Conv1D(task.filters, task.kernel, padding="same", activation="relu")(inputs)
    y = recurrent(WithMask()([y, inputs]))
    return keras.Model(inputs, keras.layers.Dense(classes)(y))


def make_recurrent(task, prox):
    if prox:
        return ProxLSTM(task.units, name="recurrent")
    return keras.layers.LSTM(task.units, name="recurrent", use_cudnn=False)


def pieces(x, size, similar, seed=0):
    """Rows of mini-batches, each with its number of steps.

    Mini-batches of similar length are cut out of the series sorted by length (ties at random). Each
    has the steps of its longest series, rounded up. Other mini-batches take random series and all
    steps.
    """
    if not similar:
        order = np.random.default_rng(seed).permutation(len(x))
        return [(rows, x.shape[1]) for rows in np.split(order, range(size, len(x), size))]
    lengths = np.any(x != 0.0, axis=-1).sum(axis=1)
    cut = np.split(by_length(lengths, seed), range(size, len(x), size))
    longest = [lengths[rows].max() for rows in cut]
    return [
        (rows, min(-(-m // STEPS) * STEPS, x.shape[1]))
        for rows, m in zip(cut, longest, strict=True)
    ]


def batches(x, y, size, similar, seed):
    """Mini-batches without end: pass after pass over the data, each in a random order."""
    rng = np.random.default_rng(seed)
    while True:
        cut = pieces(x, size, similar, rng.integers(2**32))
        for k in rng.permutation(len(cut)):
            rows, steps = cut[k]
            yield x[rows, :steps], y[rows]


class Network:
    """A network that is trained again and again."""

    def __init__(self, task, data, vocabulary, prox=False, adversarial=False):
        self.task = task
        self.recurrent = make_recurrent(task, prox)
        self.network = self.model = make_model(task, data, self.recurrent, vocabulary)
        self.epsilon = tf.Variable(0.0, trainable=False)
        if adversarial:
            self.model = AdversarialModel(self.network, layer="recurrent")
            self.model.epsilon = self.epsilon  # read by the graph: one graph for all values
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = task.optimizer()
        self.model.compile(optimizer, self.loss, jit_compile=True)
        optimizer.build(self.network.trainable_variables)
        self.fresh = [v.numpy() for v in optimizer.variables]
        # One graph for series of any length; reviews have one length.
        shape = (None, *data.values.shape[1:]) if task.words else (None, None, data.values.shape[2])
        x = tf.TensorSpec(shape, data.values.dtype)
        y = tf.TensorSpec((None,), data.labels.dtype)
        self.signature = x, y
        self.forward = tf.function(lambda x: self.network(x, training=False), input_signature=[x])
        number, mask = tf.TensorSpec(()), tf.TensorSpec((None, None), tf.bool)
        self.attack_step = tf.function(
            self._attack_step, input_signature=[x, x, y, mask, number, number]
        )

    def train(self, start, data, steps, seed, epsilon=None, lam=None):
        """Trains from the weights `start` (by layer) with a fresh optimizer."""
        if epsilon is not None:
            self.epsilon.assign(epsilon)
        if lam is not None:
            self.recurrent.lam.assign(lam)
        keras.utils.set_random_seed(seed)
        for layer, values in zip(self.network.layers, start, strict=True):
            layer.set_weights(values)
        for variable, value in zip(self.model.optimizer.variables, self.fresh, strict=True):
            variable.assign(value)
        x, y = data
        fed = tf.data.Dataset.from_generator(
            lambda: batches(x, y, self.task.batch, self.task.by_length, seed),
            output_signature=self.signature,
        )
        self.model.fit(fed, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)

    def get(self):
        """Weights by layer, without lam."""
        return weights_by_layer(self.network, self.recurrent)

    def _parts(self, x):
        return pieces(x, PREDICT, self.task.by_length)

    def logits(self, x):
        parts = [(rows, self.forward(x[rows, :steps]).numpy()) for rows, steps in self._parts(x)]
        found = np.empty((len(x), parts[0][1].shape[-1]), np.float32)
        for rows, values in parts:
            found[rows] = values
        return found

    def accuracy(self, x, y):
        return 100 * float(np.mean(self.logits(x).argmax(-1) == y))

    def validation(self, x, y):
        """Accuracy and -loss, to be compared in this order."""
        logits = self.logits(x)
        accuracy = 100 * float(np.mean(logits.argmax(-1) == y))
        return [accuracy, -float(self.loss(y, logits))]

    def states(self, x):
        """The last hidden state of every series."""
        part = keras.Model(self.network.inputs[0], self.recurrent.output)
        return np.concatenate([part(x[k : k + PREDICT]) for k in range(0, len(x), PREDICT)])

    def _attack_step(self, x, r, y, mask, size, radius):
        with tf.GradientTape() as tape:
            tape.watch(r)
            loss = tf.reduce_sum(
                keras.losses.sparse_categorical_crossentropy(
                    y, self.network(x + r, training=False), from_logits=True
                )
            )
        r += size * normalize_per_example(tape.gradient(loss, r), mask)
        norm = tf.sqrt(tf.reduce_sum(r**2, axis=[1, 2], keepdims=True))
        return r * tf.minimum(1.0, radius / tf.maximum(norm, 1e-12))

    def attacked(self, x, y, mask, radius, steps=5):
        """Accuracy after projected gradient ascent of the loss in the L2 ball of `radius`."""
        size, limit = tf.constant(2.0 * radius / steps), tf.constant(radius)
        moved = x.copy()
        for rows, length in self._parts(x):
            part, valid = (tf.constant(t[rows, :length]) for t in (x, mask))
            labels = tf.constant(y[rows])
            r = tf.zeros_like(part)
            for _ in range(steps):
                r = self.attack_step(part, r, labels, valid, size, limit)
            moved[rows, :length] += r
        return self.accuracy(moved, y)


def weights_by_layer(network, recurrent):
    return [
        layer.get_weights()[:3] if layer is recurrent else layer.get_weights()
        for layer in network.layers
    ]


def fresh_weights(task, data, vocabulary, seed):
    keras.utils.set_random_seed(seed)
    recurrent = make_recurrent(task, prox=False)
    return weights_by_layer(make_model(task, data, recurrent, vocabulary), recurrent)


def split(data, seed, speakers=False, count=None):
    """Indices of 5/6 of the examples (of those at most `count` a class), and of the rest.

    A sixth of every class is held out, or a sixth of the speakers with all that they say.
    """
    rng = np.random.default_rng(seed)
    order = [rng.permutation(np.flatnonzero(data.labels == k)) for k in np.unique(data.labels)]
    if speakers:
        place = np.concatenate([np.arange(len(o)) for o in order])  # sorted by class
        speaker = place // REPETITIONS
        chosen = rng.permutation(speaker.max() + 1)
        held = np.isin(speaker, chosen[: max(1, len(chosen) // 6)])
        parts = [(o[~held[o]], o[held[o]]) for o in order]
    else:
        parts = [np.split(o, [len(o) * 5 // 6]) for o in order]
    fitted = np.concatenate([some[:count] for some, _ in parts])
    return fitted, np.concatenate([rest for _, rest in parts])


def normalized(task, train, test, fitted):
    """Both with mean 0 and deviation 1 by feature over the valid steps of the `fitted` examples."""
    if task.words:
        return train.values, test.values
    steps = train.values[fitted][train.mask[fitted]]
    mean, std = steps.mean(axis=0), np.maximum(steps.std(axis=0), 1e-6)
    return [
        np.where(part.mask[..., None], (part.values - mean) / std, 0.0).astype(np.float32)
        for part in (train, test)
    ]


def first(data, count, seed):
    """At most `count` examples, drawn at random."""
    if count is None or count >= len(data.labels):
        return data
    rows = np.random.default_rng(seed).permutation(len(data.labels))[:count]
    return type(data)(*(part[rows] for part in data))
