"""Phone recognition from sound and articulation: the paper's audio-visual speech experiment.

    python examples/paper/speech_recognition.py --data articulatory_synth.mat
    python examples/paper/speech_recognition.py --data xrmb.mat --train-utterances 1837 \\
        --frames 1000 --stack 1 --noises 0 0.2 0.5 0.8 --units 256 --epochs 40 --rates 3e-4 3e-3

Each view has an encoder, two LSTM layers and a dense one to K = 20, and a predictor to 40 phones
and the blank of CTC. ProxNet puts `ProxCCA` between them, over all time steps of the batch. In the
mode "logit-avg" the loss and the prediction take the mean of both views' logits; in the mode
"acoustic" every view has its loss, and the acoustic view predicts alone. DCCA and DCCAE train their
encoders first; their predictors get the code beside the input. A time step is `--stack` frames side
by side. A mini-batch holds sequences of similar length. Noise is a share of the acoustics of
another sequence that is added to a sequence, in training and test.

The protocol, written before the first run: for every method `--trials` settings, a Latin hypercube
of `spaces` (learning rates are the same for all), trained in the first of `--modes` with the
largest noise on the first 80 % of the training utterances and judged on the others; the best one is
used in every mode and with every noise. All seeds of one mode come before the next. ProxNet is as
published, lam rising linearly to `rise` times its first value; "ProxCCA with its envelope" has a
constant lam. Linear CCA of the time steps takes the place of the encoders of DCCA. The seed draws
the noise, the initial weights and the batches.

A change after a look at the search: a first search, in the mode "acoustic" with 120 frames a
sequence and 99 steps of training, was stopped after eight runs. Vanilla had validation errors of 69
to 80 %. Shorter sequences give twice as many steps in the same time.

Reports the phone error rate, (substitutions + deletions + insertions) / phones over the test part,
with greedy decoding. Writes the table, a figure and `runs.jsonl` to `--output` after every run; the
same command goes on after a stop.
"""

import argparse
import functools
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras.layers import LSTM, Dense
from methods import TWO_STAGES, assemble
from padded import WithMask, by_length
from readers.speech import cut_utterances, load_articulatory_speech, split_utterances
from report import learning_curves, positive, write
from search import TITLES, Kept, Study, scheduled, spaces

from proxnet_tf import DCCA, LinearCCA

MODES = {"logit-avg": "average", "acoustic": 0}  # what predicts
BLANK = 40
BUCKET = 50  # time steps: a mini-batch is as long as its longest sequence, rounded up to these
PAPER = {  # PER by noise: acoustic, logit-avg
    "vanilla": {0: (17.9, 17.1), 0.2: (19.3, 19.1), 0.5: (27.7, 21.4), 0.8: (45.1, 24.4)},
    "dcca": {0: (17.3, 16.3), 0.2: (18.8, 16.3), 0.5: (26.0, 23.6), 0.8: (45.1, 34.9)},
    "dccae": {0: (15.5, 15.3), 0.2: (16.7, 15.9), 0.5: (23.6, 21.8), 0.8: (43.9, 34.8)},
    "rrm": {0: (16.1, 15.0), 0.2: (16.6, 16.9), 0.5: (22.3, 21.6), 0.8: (40.7, 23.9)},
    "prox": {0: (12.9, 10.5), 0.2: (15.3, 11.2), 0.5: (21.6, 16.6), 0.8: (39.3, 20.1)},
}

RATE = (6e-3, 3e-2)  # after a look at Vanilla's validation error, 32 % at 0.011; see --rates
RIDGE, WEIGHT, LAM = (1e-4, 0.3), (1e-2, 1.0), (3e-2, 10.0)


def normalize(sequences, reference):
    """Both views with mean 0 and deviation 1 over the valid frames of `reference`, 0 after them."""
    views = []
    for name in ("acoustic", "articulatory"):
        frames = getattr(reference, name)[reference.labels >= 0]
        deviation = frames.std(0)
        scaled = (getattr(sequences, name) - frames.mean(0)) / np.where(deviation, deviation, 1.0)
        views.append(np.where(sequences.labels[..., None] >= 0, scaled, 0).astype("float32"))
    return views


def add_noise(acoustic, lengths, share, seed):
    """Adds `share` of the acoustics of another sequence, repeated to the length, to each one."""
    rng = np.random.default_rng(seed)
    count, frames, _ = acoustic.shape
    others = (np.arange(count) + rng.integers(1, count, count)) % count
    steps = np.arange(frames) % lengths[others, None]
    valid = np.arange(frames) < lengths[:, None]
    mixed = acoustic + share * acoustic[others[:, None], steps]
    return np.where(valid[..., None], mixed, 0).astype("float32")


def stack(frames, count):
    """`count` frames side by side become one time step; zeros fill the last one."""
    frames = np.pad(frames, [(0, 0), (0, -frames.shape[1] % count), (0, 0)])
    return frames.reshape(len(frames), frames.shape[1] // count, -1)


def targets(sequences, count=1):
    """Rows of (phones, time steps of `count` frames, the phones padded) for loss and metric.

    The phones of a sequence are its frame labels without immediate repetitions.
    """
    phones = []
    for labels, length in zip(sequences.labels, sequences.lengths, strict=True):
        labels = labels[:length]
        phones.append(labels[np.append(True, labels[1:] != labels[:-1])])
    rows = np.zeros((len(phones), 2 + max(map(len, phones))), "int32")
    for row, sequence, length in zip(rows, phones, sequences.lengths, strict=True):
        row[:2] = len(sequence), -(-length // count)
        row[2 : 2 + len(sequence)] = sequence
    return rows


def unpack(y_true):
    """Phones (sparse), their number, and the number of time steps, from what `targets` packed."""
    y_true = tf.cast(y_true, tf.int32)
    phones, count, frames = y_true[:, 2:], y_true[:, 0], y_true[:, 1]
    where = tf.where(tf.sequence_mask(count, tf.shape(phones)[1]))
    sparse = tf.SparseTensor(where, tf.gather_nd(phones, where), tf.shape(phones, tf.int64))
    return sparse, count, frames


class CTC(keras.losses.Loss):
    """Connectionist temporal classification: mean over sequences of -log p(phones) / phones.

    TensorFlow's kernel for sparse labels, as `keras.ops.ctc_loss` but four times as fast.
    """

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Not Keras's reduction: it would apply the mask of time steps to the losses of sequences.
        return tf.reduce_mean(self.call(y_true, y_pred))

    def call(self, y_true, y_pred):
        phones, count, frames = unpack(y_true)
        logits = tf.cast(y_pred, tf.float32)
        loss = tf.nn.ctc_loss(
            phones, logits, None, frames, logits_time_major=False, blank_index=BLANK
        )
        return loss / tf.cast(count, loss.dtype)


class PhoneErrorRate(keras.metrics.Metric):
    """(S + D + I) / N over all sequences seen, of greedily decoded logits."""

    def __init__(self, name="per", **kwargs):
        super().__init__(name=name, **kwargs)
        self.errors = self.add_variable(shape=(), initializer="zeros", name="errors")
        self.phones = self.add_variable(shape=(), initializer="zeros", name="phones")

    def update_state(self, y_true, y_pred, sample_weight=None):
        phones, count, frames = unpack(y_true)
        logits = tf.transpose(tf.cast(y_pred, tf.float32), [1, 0, 2])
        (decoded,), _ = tf.nn.ctc_greedy_decoder(logits, frames, blank_index=BLANK)
        distance = tf.edit_distance(decoded, tf.cast(phones, tf.int64), normalize=False)
        self.errors.assign_add(tf.reduce_sum(distance))
        self.phones.assign_add(tf.cast(tf.reduce_sum(count), self.phones.dtype))

    def result(self):
        return tf.math.divide_no_nan(
            tf.convert_to_tensor(self.errors), tf.convert_to_tensor(self.phones)
        )


def make_model(method, mode, widths, options):
    """The model of a method; all methods use the same networks."""
    units = options.units

    def encoder(width):
        # The padding comes last, so the LSTM layers need no mask: a third faster.
        inputs = keras.Input((None, width))
        hidden = inputs
        for _ in range(2):
            hidden = LSTM(units, return_sequences=True)(hidden)
        return keras.Model(inputs, WithMask()([Dense(options.code)(hidden), inputs]))

    def network(width):
        hidden = [Dense(units, activation="relu") for _ in range(2)]
        frame_by_frame = keras.Sequential([*hidden, Dense(width)])
        frame_by_frame.supports_masking = True
        return frame_by_frame

    def linear(width):
        inputs = keras.Input((None, width))
        return keras.Model(inputs, WithMask()([Dense(options.code)(inputs), inputs]))

    predictors = [network(BLANK + 1) for _ in widths]
    common = dict(concatenate_inputs=True, predict_with=MODES[mode])
    if method == "linear":
        return DCCA([linear(width) for width in widths], predictors, **common)
    return assemble(
        method,
        [encoder(width) for width in widths],
        predictors,
        lambda: [network(width) for width in widths],
        correlation_weight=1.0,
        **common,
    )


def batches(views, y, size, seed):
    """Mini-batches in random order, cut out of the sequences sorted by length (ties at random)."""
    order = by_length(y[:, 1], seed)
    data = tf.data.Dataset.from_tensor_slices((tuple(x[order] for x in views), y[order]))

    def trim(views, y):
        steps = -(-tf.reduce_max(y[:, 1]) // BUCKET) * BUCKET
        return tuple(x[:, :steps] for x in views), y

    return data.batch(size).shuffle(-(-len(y) // size), seed=seed).map(trim).prefetch(1)


def error_rate(model, views, y, batch_size=32):
    """PER over all sequences, %."""
    metric = PhoneErrorRate()
    logits = model.predict(views, batch_size=batch_size, verbose=0)
    for start in range(0, len(y), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(y[part], logits[part])
    return 100 * float(metric.result())


def prepare(parts, noise, seed, count):
    """Views and targets of the training and the test part."""
    data = []
    for index, sequences in enumerate(parts):
        views = normalize(sequences, parts[0])
        if noise:
            views[0] = add_noise(views[0], sequences.lengths, noise, [seed, index])
        data.append(([stack(view, count) for view in views], targets(sequences, count)))
    return data


class Speech:
    """Trains and measures; keeps a model for every method and mode."""

    def __init__(self, utterances, options):
        self.options, self.kept, self.first_stages = options, {}, {}
        train = options.train_utterances or round(0.8 * len(utterances.lengths))
        parts = split_utterances(utterances, train)
        self.parts = {"test": parts, "tune": split_utterances(parts[0], round(0.8 * train))}
        self.parts = {
            stage: [cut_utterances(part, options.frames) for part in parts]
            for stage, parts in self.parts.items()
        }

    def model(self, method, mode, widths):
        if (method, mode) not in self.kept:
            model = make_model(method, mode, widths, self.options)
            model.build([(None, None, width) for width in widths])
            model.compile(self.adam(), CTC(), jit_compile=False)
            networks = [*model.encoders, *model.predictors, *getattr(model, "decoders", [])]
            self.kept[method, mode] = Kept(model, networks, getattr(model, "between", []))
        return self.kept[method, mode]

    @staticmethod
    def adam(rate=1e-3):
        return keras.optimizers.Adam(rate, weight_decay=5e-4, clipnorm=5.0)

    def train(self, method, mode, settings, seed, views, y):
        """The trained model, and its figures of every epoch."""
        kept = self.model(method, mode, [x.shape[-1] for x in views])
        rate = settings.get("lr2", settings.get("lr"))
        ridge = settings.get("ridge", 1e-4)
        model = kept.reset(seed, rate, settings.get("weight", 1.0), ridge)
        data = batches(views, y, self.options.batch_size, seed)
        schedule = {"epochs": self.options.epochs, "shuffle": False, "verbose": 0}
        if method == "linear":
            valid = np.arange(views[0].shape[1]) < y[:, 1:2]
            cca = LinearCCA(self.options.code, ridge=ridge).fit(*(x[valid] for x in views))
            for encoder, mean, map_ in zip(model.encoders, cca.means_, cca.weights_, strict=True):
                encoder.set_weights([map_, -mean @ map_])
            model.pretrained.assign(1.0)
        if method in TWO_STAGES:
            model.epsilon = ridge
            model.reconstruction_weight = settings.get("reconstruction", 0.0)
            first = method, seed, settings["lr"], float(views[0].sum())  # the same in both modes
            if first in self.first_stages:
                for encoder, weights in zip(model.encoders, self.first_stages[first], strict=True):
                    encoder.set_weights(weights)
                model.pretrained.assign(1.0)
            else:
                model.pretrain(data, optimizer=self.adam(settings["lr"]), **schedule)
                self.first_stages[first] = [encoder.get_weights() for encoder in model.encoders]
        callbacks = [
            *scheduled(method, settings, self.options.epochs),
            keras.callbacks.TerminateOnNaN(),
        ]
        history = model.fit(data, callbacks=callbacks, **schedule).history
        return model, {
            name: [round(float(v), 5) for v in values] for name, values in history.items()
        }

    def run(self, stage, method, settings, seed, mode, noise):
        (views, y), held = prepare(self.parts[stage], noise, seed, self.options.stack)
        model, history = self.train(method, mode, settings, seed, views, y)
        return error_rate(model, *held), history

    def validate(self, method, settings, seed):
        noise = max(self.options.noises)
        mode = self.options.modes[0]
        return {"error": self.run("tune", method, settings, seed, mode, noise)[0]}

    def test(self, method, settings, seed, condition):
        noise, mode = condition
        error, history = self.run("test", method, settings, seed, mode, noise)
        return {column(condition): error, f"history {condition}": history}


def column(condition):
    return f"noise {condition[0]:g}, {condition[1]}"


def table(study, conditions):
    """Markdown: phone error rates, the paper's, differences to Vanilla, settings."""
    paper = {
        method: {
            f"noise {noise:g}, {mode}": str(number)
            for noise, numbers in known.items()
            for mode, number in zip(("acoustic", "logit-avg"), numbers, strict=True)
        }
        for method, known in PAPER.items()
    }
    return study.tables("PER, %", TITLES, list(map(column, conditions)), paper)


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help=".mat file")
    parser.add_argument(
        "--train-utterances", type=positive, help="the first of all (default: 80%%)"
    )
    parser.add_argument("--frames", type=positive, default=60, help="of a sequence; paper: 1000")
    parser.add_argument("--stack", type=positive, default=4, help="frames of a step; paper: 1")
    parser.add_argument("--noises", nargs="+", type=float, default=[0.5])
    parser.add_argument("--methods", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--trials", type=positive, default=2, help="settings tried per method")
    parser.add_argument(
        "--rates", nargs=2, type=float, default=RATE, help="range of the learning rates"
    )
    parser.add_argument("--epochs", type=positive, default=8, help="of each stage")
    parser.add_argument("--batch-size", type=positive, default=32)
    parser.add_argument("--units", type=positive, default=32, help="of the LSTM and hidden layers")
    parser.add_argument("--code", type=positive, default=20, help="K")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    speech = Speech(load_articulatory_speech(options.data), options)
    lengths = [len(part.lengths) for part in speech.parts["test"]]
    if any(options.noises) and min(lengths) < 2:
        raise SystemExit("Noise is that of another sequence: each part needs two at least.")
    print(f"{lengths[0]} training and {lengths[1]} test sequences")
    size = ("train_utterances", "frames", "stack", "epochs", "batch_size", "units", "code")
    conditions = [[noise, mode] for noise in options.noises for mode in options.modes]
    study = Study(
        options.output,
        {name: getattr(options, name) for name in size},
        spaces(tuple(options.rates), RIDGE, WEIGHT, LAM, options.methods),
        options.trials,
        options.seeds,
        conditions,
        speech.validate,
        speech.test,
    )
    show = functools.partial(table, study, conditions)
    study.run(lambda: write(options.output / "speech_recognition.md", show()))
    learning_curves(study.histories(TITLES), options.output / "speech_recognition.png")
    print(show(), end="")
    return study.results()


if __name__ == "__main__":
    main()
