"""Uses proxnet_tf as it is installed, without the checkout; run with `python -I`.

python -I use_wheel.py             # the installed package
python -I use_wheel.py FOLDER      # an unpacked wheel, before what is installed
"""

import importlib
import importlib.metadata
import pkgutil
import re
import sys
import warnings
from pathlib import Path

sys.path[:0] = sys.argv[1:]

import keras  # noqa: E402
import numpy as np  # noqa: E402

import proxnet_tf  # noqa: E402
from proxnet_tf.datasets import load_japanese_vowels, load_multiple_features  # noqa: E402

root = Path(proxnet_tf.__file__).parent
assert not (root.parent / "pyproject.toml").exists(), f"{root} is the checkout"
assert not sys.argv[1:] or root.parent == Path(sys.argv[1]), root
assert (root / "py.typed").exists()
description = importlib.metadata.metadata("proxnet-tf").get_payload()
assert "# proxnet_tf" in description
assert not re.search(r"\]\((?!https://)", description), "dead links on an index"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of other packages
    for module in pkgutil.walk_packages(proxnet_tf.__path__, "proxnet_tf."):
        if not module.name.startswith("proxnet_tf.tuning"):  # the only one that needs an extra
            importlib.import_module(module.name)

train, test = load_japanese_vowels()
assert (len(train.labels), len(test.labels)) == (270, 370)
views, labels = load_multiple_features(["fou", "zer"])
views, labels = [view[::10] for view in views.values()], labels[::10]
inputs = [keras.Input(view.shape[1:]) for view in views]
codes = [keras.layers.Dense(3)(keras.layers.BatchNormalization()(x)) for x in inputs]
codes = proxnet_tf.ProxCCA(3, lam=0.5)(codes)
model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Concatenate()(codes)))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(views, labels, batch_size=100, epochs=2, verbose=0).history
assert np.isfinite(history["loss"]).all()
print(f"proxnet_tf {proxnet_tf.__version__} in {root} works")
