"""Importing the toolbox loads none of the heavy optional packages."""

import subprocess
import sys

MODULES = [
    "convex.prox",
    "convex.regularizer",
    "convex.activations",
    "convex.dropout",
    "kernels",
    "monitor",
]


def test_toolbox_loads_neither_tfp_nor_scipy_nor_matplotlib():
    # What Keras and TensorFlow load by themselves does not count.
    program = "import sys, keras, tensorflow\nbefore = set(sys.modules)\n"
    program += "".join(f"import proxnet_tf.layers.{m}\n" for m in MODULES)
    program += (
        "heavy = {'tensorflow_probability', 'tf_keras', 'matplotlib', 'scipy', 'sklearn'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip().endswith("[]"), found.stdout + found.stderr
