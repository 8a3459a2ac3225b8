"""Keras's own `run_layer_test` over the registry."""

import keras
import pytest
from keras.src import testing

from tests.helpers.layer_checks import flat
from tests.helpers.registry import LAYERS, layers, takes_views

SHOWN = ("ProxCCA, in training", "CCARegularizer", "Prox of a function", "ProxKernelFeatures")
SHOWN += ("ProxLSTM", "ProxRNNCell of GRUCell")


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("name", layers(among=SHOWN))
def test_run_layer_test(name):
    case = LAYERS[name]
    keras.utils.set_random_seed(0)
    trainable, fixed, seeds = case.weights
    shapes = [o.shape for o in flat(case.make()(case.inputs))]
    structure = list if takes_views(case) else tuple
    single = len(shapes) == 1
    testing.TestCase("run_layer_test").run_layer_test(
        case.cls,
        init_kwargs=case.arguments(),
        input_data=case.inputs,
        call_kwargs={"training": True} if case.training else None,
        expected_output_shape=shapes[0] if single else structure(shapes),
        expected_output_dtype="float32" if single else structure(["float32"] * len(shapes)),
        expected_num_trainable_weights=trainable,
        expected_num_non_trainable_weights=fixed,
        expected_num_non_trainable_variables=fixed + seeds,
        expected_num_seed_generators=seeds,
        expected_num_losses=case.losses,
        supports_masking=True,
        run_training_check=not takes_views(case),  # Keras's generator takes no lists
    )
