"""Phone recognition from sound and articulation: the paper's audio-visual speech experiment.

    python examples/paper/speech_recognition.py --data xrmb.mat --train-utterances 1837 \\
        --frames 1000 --noises 0 0.2 0.5 0.8

Each view has an encoder, two LSTM layers and a dense one to K = 20, and a predictor to 40 phones
and the blank of CTC. ProxNet puts `ProxCCA` between them, over all time steps of the batch. In the
mode "logit-avg" the loss and the prediction take the mean of both views' logits; in the mode
"acoustic" every view has its loss, and the acoustic view predicts alone. DCCA and DCCAE train their
encoders first; their predictors get the code beside the input. A mini-batch holds sequences of
similar length. Noise is a share of another sequence's acoustics, added to a sequence's own, in
training and test.

Reports the phone error rate, (substitutions + deletions + insertions) / phones over the test part,
with greedy decoding. Writes the table and the numbers to `--output` after every model.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras.layers import LSTM, Dense
from methods import NAMES, TWO_STAGES, assemble, lam_callbacks
from padded import WithMask, by_length
from readers.speech import cut_utterances, load_articulatory_speech, split_utterances
from report import learning_curves, markdown, mean_and_spread, positive, write

MODES = {"acoustic": 0, "logit-avg": "average"}  # what predicts
BLANK = 40
BUCKET = 50  # frames: a mini-batch is as long as its longest sequence, rounded up to these
PAPER = {  # PER by noise: acoustic, logit-avg
    "vanilla": {0: (17.9, 17.1), 0.2: (19.3, 19.1), 0.5: (27.7, 21.4), 0.8: (45.1, 24.4)},
    "dcca": {0: (17.3, 16.3), 0.2: (18.8, 16.3), 0.5: (26.0, 23.6), 0.8: (45.1, 34.9)},
    "dccae": {0: (15.5, 15.3), 0.2: (16.7, 15.9), 0.5: (23.6, 21.8), 0.8: (43.9, 34.8)},
    "rrm": {0: (16.1, 15.0), 0.2: (16.6, 16.9), 0.5: (22.3, 21.6), 0.8: (40.7, 23.9)},
    "prox": {0: (12.9, 10.5), 0.2: (15.3, 11.2), 0.5: (21.6, 16.6), 0.8: (39.3, 20.1)},
}


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


def targets(sequences):
    """Rows of (phones, frames, the phones padded): what the loss and the metric take.

    The phones of a sequence are its frame labels without immediate repetitions.
    """
    phones = []
    for labels, length in zip(sequences.labels, sequences.lengths, strict=True):
        labels = labels[:length]
        phones.append(labels[np.append(True, labels[1:] != labels[:-1])])
    rows = np.zeros((len(phones), 2 + max(map(len, phones))), "int32")
    for row, sequence, length in zip(rows, phones, sequences.lengths, strict=True):
        row[:2] = len(sequence), length
        row[2 : 2 + len(sequence)] = sequence
    return rows


def unpack(y_true):
    """Phones (sparse), their number, and the number of frames, from what `targets` packed."""
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
    """One of the methods; the parts are the same for all."""
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

    encoders = [encoder(width) for width in widths]
    predictors = [network(BLANK + 1) for _ in widths]
    return assemble(
        method,
        encoders,
        predictors,
        lambda: [network(width) for width in widths],
        correlation_weight=options.correlation_weight,
        reconstruction_weight=options.reconstruction_weight,
        lam=options.lam,
        inference=options.inference,
        concatenate_inputs=True,
        epsilon=options.epsilon,
        predict_with=MODES[mode],
    )


def batches(views, y, size, seed):
    """Mini-batches in random order, cut out of the sequences sorted by length (ties at random)."""
    order = by_length(y[:, 1], seed)
    data = tf.data.Dataset.from_tensor_slices((tuple(x[order] for x in views), y[order]))

    def trim(views, y):
        steps = -(-tf.reduce_max(y[:, 1]) // BUCKET) * BUCKET
        return tuple(x[:, :steps] for x in views), y

    return data.batch(size).shuffle(-(-len(y) // size), seed=seed).map(trim).prefetch(1)


def fit(model, method, data, options):
    """Trains a model (both stages of DCCA and DCCAE); returns the figures of every epoch."""
    schedule = {"epochs": options.epochs, "shuffle": False, "verbose": 0}

    def adam():
        return keras.optimizers.Adam(options.learning_rate, weight_decay=5e-4, clipnorm=5.0)

    if method in TWO_STAGES:
        model.pretrain(data, optimizer=adam(), **schedule)
    callbacks = lam_callbacks(method, options.lam, options.growth)
    callbacks.append(keras.callbacks.TerminateOnNaN())
    model.compile(adam(), CTC(), jit_compile=False)
    history = model.fit(data, callbacks=callbacks, **schedule).history
    return {name: [round(float(v), 5) for v in values] for name, values in history.items()}


def error_rate(model, views, y, batch_size=32):
    """PER over all sequences, %."""
    metric = PhoneErrorRate()
    logits = model.predict(views, batch_size=batch_size, verbose=0)
    for start in range(0, len(y), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(y[part], logits[part])
    return 100 * float(metric.result())


def prepare(parts, noise, seed):
    """Views and targets of the training and the test part."""
    data = []
    for index, sequences in enumerate(parts):
        views = normalize(sequences, parts[0])
        if noise:
            views[0] = add_noise(views[0], sequences.lengths, noise, [seed, index])
        data.append((views, targets(sequences)))
    return data


def run(method, mode, noise, seed, parts, options):
    """Trains and tests one model."""
    started = time.perf_counter()
    (views, y), (test_views, test_y) = prepare(parts, noise, seed)
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = make_model(method, mode, [x.shape[-1] for x in views], options)
    history = fit(model, method, batches(views, y, options.batch_size, seed), options)
    return {
        "per": error_rate(model, test_views, test_y),
        "train_per": error_rate(model, views, y),
        "history": history,
        "seconds": time.perf_counter() - started,
    }


def table(results, noises):
    """Markdown: mean ± std (seeds) in %, the paper's below; the difference to RRM by seed."""
    columns = [(noise, mode) for noise in noises for mode in MODES]
    titles = [f"noise {noise:g}, {mode}" for noise, mode in columns]

    def errors(method, noise, mode):
        return [run["per"] for run in results.get(f"{method} {mode} {noise:g}", [])]

    rows, known, differences = [], [], []
    for method, name in NAMES.items():
        found = [errors(method, *column) for column in columns]
        cells = [f"{mean_and_spread(values)} ({len(values)})" if values else "" for values in found]
        if any(cells):
            rows.append((name, *cells))
        paper = [PAPER[method].get(noise, ("", "")) for noise in noises]
        known.append((f"paper: {name}", *(str(number) for pair in paper for number in pair)))
        pairs = []
        for values, column in zip(found, columns, strict=True):
            pairs.append([a - b for a, b in zip(values, errors("rrm", *column), strict=False)])
        if method != "rrm" and any(pairs):
            differences.append((name, *(mean_and_spread(values, sign="+") for values in pairs)))
    tables = [markdown(("PER, %", *titles), rows + known)]
    if differences:
        tables.append(markdown(("PER minus RRM's on the same seed", *titles), differences))
    return "\n".join(tables)


def histories(results):
    """What `learning_curves` draws: the figures of every epoch."""
    drawn = {}
    for cell, runs in results.items():
        method, mode, noise = cell.split()
        group = drawn.setdefault(f"{mode}, noise {noise}", {})
        group[NAMES[method]] = [run["history"] for run in runs]
    return drawn


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help=".mat file")
    parser.add_argument(
        "--train-utterances", type=positive, help="the first of all (default: 80%%)"
    )
    parser.add_argument("--frames", type=positive, default=250, help="of a sequence; paper: 1000")
    parser.add_argument("--noises", nargs="+", type=float, default=[0.0, 0.5])
    parser.add_argument("--methods", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=positive, default=40, help="of each stage")
    parser.add_argument("--batch-size", type=positive, default=32)
    parser.add_argument("--units", type=positive, default=256, help="of the LSTM and hidden layers")
    parser.add_argument("--code", type=positive, default=20, help="K")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--lam", type=float, default=0.5, help="at epoch 0")
    parser.add_argument("--growth", type=float, default=1.0, help="of lam per epoch")
    parser.add_argument("--epsilon", type=float, default=1e-4)
    parser.add_argument("--correlation-weight", type=float, default=0.1, help="RRM")
    parser.add_argument("--reconstruction-weight", type=float, default=1.0, help="DCCAE")
    parser.add_argument("--inference", choices=["identity", "batch", "moving"], default="identity")
    parser.add_argument("--output", type=Path, default=Path("outputs"))
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    utterances = load_articulatory_speech(options.data)
    train = options.train_utterances or round(0.8 * len(utterances.lengths))
    parts = [cut_utterances(u, options.frames) for u in split_utterances(utterances, train)]
    if any(options.noises) and min(len(part.lengths) for part in parts) < 2:
        raise SystemExit("Noise is that of another sequence: each part needs two at least.")
    print(f"{len(parts[0].lengths)} training and {len(parts[1].lengths)} test sequences")
    settings = {name: str(value) for name, value in vars(options).items()}
    results = {}
    for seed in options.seeds:
        for noise in options.noises:
            for mode in options.modes:
                for method in options.methods:
                    found = run(method, mode, noise, seed, parts, options)
                    results.setdefault(f"{method} {mode} {noise:g}", []).append(found)
                    print(
                        f"seed {seed}, noise {noise:g}, {mode}, {NAMES[method]}: "
                        f"{found['per']:.1f} % (training part {found['train_per']:.1f} %), "
                        f"{found['seconds']:.0f} s",
                        flush=True,
                    )
                    record = json.dumps({"settings": settings, "results": results}, indent=1)
                    write(options.output / "speech_recognition.json", record)
                    shown = table(results, options.noises)
                    write(options.output / "speech_recognition.md", shown)
                learning_curves(histories(results), options.output / "speech_recognition.png")
    print(shown, end="")
    return results


if __name__ == "__main__":
    main()
