"""KerasTuner searches: HyperModels of the multiview methods and of ProxLSTM.

The only package that needs the extra `proxnet_tf[tuner]`, and the only one that imports it.
"""

try:
    import keras_tuner  # noqa: F401
    import tensorboard  # noqa: F401  (KerasTuner imports it in every search)
except ImportError as error:
    raise ImportError(
        "proxnet_tf.tuning needs KerasTuner and TensorBoard. Install them with "
        "pip install 'proxnet_tf[tuner]'"
    ) from error

from proxnet_tf.tuning.multiview import MultiviewHyperModel
from proxnet_tf.tuning.recurrent import ProxLSTMHyperModel

__all__ = ["MultiviewHyperModel", "ProxLSTMHyperModel"]
