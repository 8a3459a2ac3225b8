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
    views, _ = load_multiple_features()
    np.testing.assert_array_equal(views["fac"][0, :6], [98, 236, 531, 673, 607, 647])
    np.testing.assert_allclose(views["fou"][0, :3], [0.065882, 0.19731, 0.10383], rtol=1e-7)
    np.testing.assert_allclose(views["kar"][0, :3], [-10.297, -11.667, 11.561], rtol=1e-7)
    np.testing.assert_allclose(views["mor"][0], [1.0, 0.0, 0.0, 133.15, 1.3117, 1620.2], rtol=1e-7)
    np.testing.assert_array_equal(views["pix"][0, :6], [0, 3, 4, 4, 6, 6])
    np.testing.assert_allclose(views["zer"][0, :3], [0.011033, 0.83147, 15.352], rtol=1e-7)


def test_rows_of_the_views_describe_the_same_digit():
    # The Karhunen-Loeve coefficients are linear in the image up to resampling.
    views, _ = load_multiple_features(["pix", "kar"])
    pixels, coefficients = (x - x.mean(0) for x in views.values())

    def explained(x):
        fit = x @ np.linalg.lstsq(x, coefficients, rcond=None)[0]
        return 1 - np.sum((coefficients - fit) ** 2) / np.sum(coefficients**2)

    assert explained(pixels) > 0.9
    assert explained(np.roll(pixels, 1, axis=0)) < 0.7


def test_views_come_in_the_order_asked_for():
    views, _ = load_multiple_features(["zer", "fou"])
    assert list(views) == ["zer", "fou"]


@pytest.mark.parametrize("views", [["zer", "gabor"], ["fou", "fou"], [], "fou", 3, None, [["fou"]]])
def test_unknown_views_are_refused(views):
    with pytest.raises(ValueError, match=r"fac, fou, kar, mor, pix, zer.*Received: views="):
        load_multiple_features(views)
