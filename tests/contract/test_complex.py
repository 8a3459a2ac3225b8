"""Complex numbers are refused in words wherever only their real part would be used."""

import numpy as np
import pytest
import tensorflow as tf

from proxnet_tf import (
    CanonicalCorrelation,
    CCALoss,
    Invariance,
    LinearCCA,
    Prox,
    ProxKernelFeatures,
    RecallAtK,
    Regularizer,
)
from tests.helpers.layer_checks import map_inputs
from tests.helpers.registry import LAYERS

ROWS = np.random.default_rng(0).normal(size=(9, 4))
LEFT, RIGHT = ROWS[:, :2], ROWS[:, 2:]
WORDS = "must be real.*Received: complex|floating-point dtype.*Received: complex"


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    case = LAYERS[name]
    with pytest.raises(ValueError, match=WORDS):
        case.make()(map_inputs(lambda x: x.astype("complex64"), case.inputs))


def fitted():
    return LinearCCA(1).fit(LEFT, RIGHT)


def metric():
    return CanonicalCorrelation(1, split=(2, 2))


CALLS = {
    "LinearCCA.fit": lambda: LinearCCA(1).fit(LEFT + 0j, RIGHT),
    "LinearCCA.fit, nested numbers": lambda: LinearCCA(1).fit((LEFT + 0j).tolist(), RIGHT),
    "LinearCCA.project": lambda: fitted().project(LEFT + 0j, 0),
    "metric": lambda: metric().update_state(None, ROWS + 0j),
    "metric, weights": lambda: metric().update_state(None, ROWS, np.ones(9) + 0j),
    "retrieval": lambda: RecallAtK().update_state(None, ROWS + 0j),
    "retrieval, weights": lambda: RecallAtK().update_state(None, ROWS, np.ones(9) + 0j),
    "loss": lambda: CCALoss(1, split=(2, 2))(None, ROWS + 0j),
    "landmarks": lambda: ProxKernelFeatures("gaussian", landmarks=LEFT + 0j),
    "points": lambda: Invariance("graph_laplacian", points=LEFT + 0j),
    "matrix": lambda: Regularizer("quadratic", matrix=np.eye(2) + 0j),
    "lam assigned": lambda: Prox("l1").lam.assign(np.complex64(1)),
    "lam assigned, a tensor": lambda: Prox("l1").lam.assign(tf.constant(1 + 0j)),
    "lam set": lambda: setattr(Prox("l1"), "lam", 1 + 0j),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_entries(name):
    with pytest.raises(ValueError, match=WORDS):
        CALLS[name]()
