"""Keras's own `run_layer_test` over the registry, in three precisions."""

import keras
import pytest
from keras.src import testing

from tests.helpers.layer_checks import flat
from tests.helpers.registry import LAYERS

HALVES = ("float16", "bfloat16")


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize(
    "dtype",
    # `test_calls` trains in 16 bits.
    [
        "float32",
        *(pytest.param(f"mixed_{t}", marks=pytest.mark.slow) for t in ("float16", "bfloat16")),
    ],
)
@pytest.mark.parametrize("name", LAYERS)
def test_run_layer_test(name, dtype):
    case = LAYERS[name]
    keras.utils.set_random_seed(0)
    arguments = case.arguments() | {"dtype": dtype}
    if case.cls is keras.layers.RNN:
        cell = arguments["cell"]
        arguments["cell"] = type(cell).from_config(cell.get_config() | {"dtype": dtype})
    trainable, fixed, seeds = case.weights
    outputs = flat(case.cls(**arguments)(case.inputs))
    shapes = [o.shape for o in outputs]
    half = keras.DTypePolicy(dtype).compute_dtype
    structure = type(case.inputs) if isinstance(case.inputs, list) else tuple
    single = len(outputs) == 1
    testing.TestCase("run_layer_test").run_layer_test(
        case.cls,
        init_kwargs=arguments,
        input_data=case.inputs,
        call_kwargs={"training": True} if case.training else None,
        expected_output_shape=shapes[0] if single else structure(shapes),
        expected_output_dtype=half if single else structure([half] * len(shapes)),
        expected_num_trainable_weights=trainable,
        expected_num_non_trainable_weights=fixed,
        expected_num_non_trainable_variables=fixed + seeds,
        expected_num_seed_generators=seeds,
        expected_num_losses=case.losses,
        supports_masking=True,
        # Keras's generator takes no lists. Training in 16 bits is checked in test_calls.
        run_training_check=dtype == "float32" and not isinstance(case.inputs, list),
        run_mixed_precision_check=dtype == "float32",
    )
