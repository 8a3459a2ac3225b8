"""Keras layers and cells."""

from proxnet_tf.layers.convex.activations import prox_of_activation
from proxnet_tf.layers.convex.dropout import ProxDropout
from proxnet_tf.layers.convex.prox import Prox
from proxnet_tf.layers.convex.regularizer import Regularizer
from proxnet_tf.layers.kernels.features import ProxKernelFeatures
from proxnet_tf.layers.kernels.invariance import Invariance
from proxnet_tf.layers.multiview.penalty import CCARegularizer, GCCARegularizer
from proxnet_tf.layers.multiview.prox import ProxCCA, ProxGCCA
from proxnet_tf.layers.recurrent.any_cell import ProxRNNCell
from proxnet_tf.layers.recurrent.gru import ProxGRU, ProxGRUCell
from proxnet_tf.layers.recurrent.lstm import ProxLSTM, ProxLSTMCell

__all__ = [
    "CCARegularizer",
    "GCCARegularizer",
    "Invariance",
    "Prox",
    "ProxCCA",
    "ProxDropout",
    "ProxGCCA",
    "ProxGRU",
    "ProxGRUCell",
    "ProxKernelFeatures",
    "ProxLSTM",
    "ProxLSTMCell",
    "ProxRNNCell",
    "Regularizer",
    "prox_of_activation",
]
