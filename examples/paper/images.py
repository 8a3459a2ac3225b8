"""Photos and sketches: networks, augmentation, batches and data of the image experiment."""

import keras
import tensorflow as tf
from glyphs import glyph_pairs
from keras import layers
from readers.sketchy import load_sketchy, load_sketchy_pickle, split_pairs

BATCH = 100
COMPONENTS = 20


def conv(x, filters, strides=1, size=3):
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def resnet18(inputs):
    """ResNet-18 without its top (He et al. 2016): features (batch, 512)."""
    x = layers.ReLU()(conv(inputs, 64, 2, 7))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for filters in (64, 128, 256, 512):
        for block in range(2):
            strides = 2 if filters > 64 and block == 0 else 1
            y = conv(layers.ReLU()(conv(x, filters, strides)), filters)
            x = layers.ReLU()(y + (conv(x, filters, strides, 1) if strides > 1 else x))
    return layers.GlobalAveragePooling2D()(x)


def small(inputs):
    """Two strided convolutions: features (batch, (size / 8)^2 * 64)."""
    x = layers.ReLU()(conv(inputs, 32, 4, 4))
    return layers.Flatten()(layers.ReLU()(conv(x, 64, 2)))


def make_encoder(shape, backbone):
    """Images to codes of zero mean and unit variance."""
    inputs = keras.Input(shape)
    code = layers.Dense(COMPONENTS)({"resnet18": resnet18, "small": small}[backbone](inputs))
    norm = layers.BatchNormalization(momentum=0.9, center=False, scale=False)
    return keras.Model(inputs, norm(code))


def make_decoder(shape):
    """Codes to images of `shape`, by transposed convolutions."""
    size, filters = shape[0] // 8, 64
    decoder = keras.Sequential([keras.Input((COMPONENTS,)), layers.Dense(size * size * filters)])
    decoder.add(layers.Reshape((size, size, filters)))
    for filters in (32, 16):
        decoder.add(layers.ReLU())
        decoder.add(layers.Conv2DTranspose(filters, 3, 2, padding="same"))
    decoder.add(layers.ReLU())
    decoder.add(layers.Conv2DTranspose(shape[-1], 3, 2, padding="same"))
    return decoder


def make_predictor(classes, units):
    hidden = [layers.Dense(units, activation="sigmoid") for _ in range(3)]
    return keras.Sequential([*hidden, layers.Dense(classes)])


def normalize(images):
    """Pixels 0..255 to -1..1."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0


def augment(images, flip):
    """A random part of each image, 85 to 100 % of its sides, perhaps mirrored, as large again."""
    count, height, width = (images.shape[k] or tf.shape(images)[k] for k in range(3))
    side = tf.random.uniform([count, 1], 0.85, 1.0)
    corner = tf.random.uniform([count, 2]) * (1.0 - side)
    top, left = corner[:, :1], corner[:, 1:]
    right = left + side
    if flip:
        mirrored = tf.random.uniform([count, 1]) < 0.5
        left, right = tf.where(mirrored, right, left), tf.where(mirrored, left, right)
    boxes = tf.concat([top, left, top + side, right], 1)
    return tf.image.crop_and_resize(images, boxes, tf.range(count), [height, width])


def training_batches(data, seed, flip):
    """Shuffled batches of augmented images ((photos, sketches), labels)."""

    def prepare(views, labels):
        photos, sketches = (augment(normalize(images), flip) for images in views)
        light = tf.random.uniform([tf.shape(photos)[0], 1, 1, 1], 0.8, 1.2)
        return (tf.clip_by_value(photos * light, -1.0, 1.0), sketches), labels

    batches = tf.data.Dataset.from_tensor_slices(((data.photos, data.sketches), data.labels))
    batches = batches.shuffle(len(data.labels), seed=seed)
    batches = batches.batch(BATCH, drop_remainder=len(data.labels) >= BATCH)
    return batches.map(prepare, tf.data.AUTOTUNE).prefetch(2)


def test_batches(data):
    batches = tf.data.Dataset.from_tensor_slices(((data.photos, data.sketches), data.labels))
    return batches.batch(BATCH).map(lambda views, y: (tuple(map(normalize, views)), y)).prefetch(1)


def load(classes, seed, options, holdout=False):
    """Training and test part: 80 and 20 pairs of each of `classes` classes, drawn by `seed`.

    With `holdout` the training part alone, divided likewise.
    """
    source, count = options.data, options.pairs
    if source is not None and not source.is_dir():
        parts = load_sketchy_pickle(source, classes, allow_pickle=options.allow_pickle)
    else:
        if source is None:
            pairs = glyph_pairs(classes, count, seed)
        else:
            size = options.size
            pairs = load_sketchy(source, classes, pairs_per_class=count, size=size, seed=seed)
        parts = split_pairs(pairs, seed=seed)
    return split_pairs(parts[0], seed=[seed, 2]) if holdout else parts  # a draw of its own
