"""Export and serve: does a process without proxnet_tf predict the same?

A model with a proximal layer is trained and exported. With `inference="moving"` the layer applies a
mean and a linear map that it learned while training: no solver is left in the exported model, and
the prediction of a row does not depend on its batch. A new process predicts with TensorFlow alone.

To copy: `ProxCCA(..., inference="moving")`, `model.export`, and SERVE for the other side.
"""

import subprocess
import sys
import tempfile

import keras
import numpy as np
import show
from keras.layers import Average, BatchNormalization, Dense

from proxnet_tf import ProxCCA
from proxnet_tf.datasets import load_multiple_features

SERVE = """
import sys, time
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1] + "/model")
with np.load(sys.argv[1] + "/views.npz") as views:
    views = [tf.constant(views[name]) for name in ("fou", "zer")]
for rows in (1, 100, len(views[0])):
    batch = [view[:rows] for view in views]
    logits = model.serve(batch).numpy()
    began = time.perf_counter()
    for _ in range(20):
        model.serve(batch)
    print(rows, (time.perf_counter() - began) / 20 * 1e3)
np.save(sys.argv[1] + "/logits.npy", logits)
assert "proxnet_tf" not in sys.modules
"""


def train(views, labels, inference, epochs):
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((view.shape[1],)) for view in views]
    codes = [Dense(10)(Dense(64, "relu")(BatchNormalization()(x))) for x in inputs]
    codes = ProxCCA(10, lam=10.0, inference=inference)(codes)
    model = keras.Model(inputs, Average()([Dense(10)(code) for code in codes]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    model.fit(views, labels, batch_size=200, epochs=epochs, verbose=0)
    return model


def main(arguments=None):
    options = show.options(__doc__, arguments)
    views, labels = load_multiple_features(["fou", "zer"])
    rows = []
    for inference in ("identity", "moving"):
        model = train(list(views.values()), labels, inference, 1 if options.small else 10)
        wanted = model.predict(list(views.values()), verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            model.export(f"{folder}/model", verbose=False)
            np.savez(f"{folder}/views.npz", **views)
            command = [sys.executable, "-c", SERVE, folder]
            printed = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            difference = np.abs(np.load(f"{folder}/logits.npy") - wanted).max()
        times = [f"{float(line.split()[1]):.2f}" for line in printed.splitlines()]
        rows.append((inference, f"{difference:.1e}", *times))
    header = ("inference", "largest difference", "ms for 1 row", "100 rows", "2000 rows")
    show.table(header, rows, options.output)
    return rows


if __name__ == "__main__":
    main()
