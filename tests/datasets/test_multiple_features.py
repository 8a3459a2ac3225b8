import hashlib
from importlib import resources

import numpy as np
import pytest

from proxnet_tf.datasets import load_multiple_features

WIDTHS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}
SHA256 = "c4e95a602f5bb2ef824a4386d4fa36f27be240b7aeb7aa65f7b25b6cb43460d8"


def test_the_file_is_the_one_that_was_built():
    file = resources.files("proxnet_tf.datasets") / "data" / "multiple_features.npz"
    content = file.read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert len(content) < 2.1e6


def test_shapes_dtypes_and_labels():
    views, labels = load_multiple_features()
    assert {name: x.shape for name, x in views.items()} == {n: (2000, d) for n, d in WIDTHS.items()}
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in views.values())
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 200))


def test_values_are_those_of_the_source():
    order = ["zer", "fac", "fou", "kar", "mor", "pix"]
    views, _ = load_multiple_features(order)
    assert list(views) == order
    np.testing.assert_array_equal(views["fac"][0, :6], [98, 236, 531, 673, 607, 647])
    np.testing.assert_allclose(views["fou"][0, :3], [0.065882, 0.19731, 0.10383], rtol=1e-7)
    np.testing.assert_allclose(views["kar"][0, :3], [-10.297, -11.667, 11.561], rtol=1e-7)
    np.testing.assert_allclose(views["mor"][0], [1.0, 0.0, 0.0, 133.15, 1.3117, 1620.2], rtol=1e-7)
    np.testing.assert_array_equal(views["pix"][0, :6], [0, 3, 4, 4, 6, 6])
    np.testing.assert_allclose(views["zer"][0, :3], [0.011033, 0.83147, 15.352], rtol=1e-7)


@pytest.mark.parametrize("views", [["zer", "gabor"], ["fou", "fou"], [], "fou"])
def test_unknown_views_are_refused(views):
    with pytest.raises(ValueError, match=r"fac, fou, kar, mor, pix, zer.*Received: views="):
        load_multiple_features(views)
